"""The hypotheses about Transformers: A1v…A3v, after the study's second source (S2), on images.

S2 asks these three questions, names the models that would answer them, and prints no number.
"""

from __future__ import annotations

from mambanorm.claims.claim import Claim
from mambanorm.claims.comparisons import Comparison, minus

CORRUPTED = ("noise", "rotation")
"""Columns of the run frame: accuracy on corrupted test rows (summaries.py)."""


def _a(number: int, words: str, quote: str, quantity: str, comparisons: tuple[Comparison, ...], note: str) -> Claim:
    return Claim(
        id=f"A{number}v",
        words=words,
        quote=quote,
        where="S2, §IV",
        quantity=quantity,
        direction="above",
        paper="no number printed",
        paper_task="CIFAR-10",
        comparisons=comparisons,
        note=f"S2 asks the question and gives no answer{note}",
    )


def _a1() -> Claim:
    return _a(
        1,
        "In a Transformer a learned selector between DyT and LN beats LN alone.",
        "`disable_selector`: In this mode, the `NormSelector` is effectively bypassed, and the model exclusively "
        "utilizes Layer Normalization. This allows us to evaluate the baseline performance",
        "test accuracy of AutoNorm minus FrozenLN",
        (minus("AutoNorm", "FrozenLN"),),
        "",
    )


def _a2() -> Claim:
    return _a(
        2,
        "In a Transformer a learned selector between DyT and LN beats random weights.",
        "`random_selector`: […] providing a stochastic baseline to assess whether the learned adaptive weighting by "
        "the MLP offers a significant advantage over arbitrary combinations.",
        "test accuracy of AutoNorm minus AutoNorm_RandomSelector",
        (minus("AutoNorm", "AutoNorm_RandomSelector"),),
        "",
    )


def _a3() -> Claim:
    return _a(
        3,
        "In a Transformer a learned selector is more accurate than LN alone on noisy and on rotated test rows.",
        "Robustness to noise and rotation: Evaluated using corrupted test loaders (e.g., Gaussian noise, random "
        "rotations) to assess model stability under perturbed inputs.",
        "accuracy on the test rows with Gaussian noise (mean of 0.1, 0.2, 0.4 and 0.8 of the inputs' standard "
        "deviation), and turned by a random angle (mean of at most 10, 20, 30 and 45°), of AutoNorm minus FrozenLN",
        tuple(
            Comparison(f"AutoNorm − FrozenLN, {kind}", {"AutoNorm": 1.0, "FrozenLN": -1.0}, column=kind)
            for kind in CORRUPTED
        ),
        "; a run that diverged has chance on corrupted rows as well",
    )


AUTONORM_CLAIMS = (_a1(), _a2(), _a3())
