"""The hypotheses about Transformers: A1v…A3v, after the study's second source (S2), on images.

S2 asks these three questions, names the models that would answer them, and prints no number.
"""

from __future__ import annotations

from mambanorm.claims.claim import Claim
from mambanorm.claims.comparisons import Comparison, minus

CORRUPTED = ("noise", "rotation")
"""Columns of the run frame: accuracy on corrupted test rows (summaries.py)."""


OUR_READING = (
    "tested with the published DyT, γ·tanh(αx)+β, where S2 writes x ⊙ α; with S2's MixUp, DropPath and the like off, "
    "so that the norms alone differ; one weight a token and norms behind the sum are our reading"
)


def _a(number: int, words: str, quote: str, quantity: str, *comparisons: Comparison, note: str = "") -> Claim:
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
        note=f"S2 asks the question and asserts nothing; {note}{OUR_READING}",
    )


def _a1() -> Claim:
    return _a(
        1,
        "In a Transformer a learned selector between DyT and LN beats LN alone.",
        "`disable_selector`: In this mode, the `NormSelector` is effectively bypassed, and the model exclusively "
        "utilizes Layer Normalization. This allows us to evaluate the baseline performance",
        "test accuracy of AutoNorm minus FrozenLN",
        minus("AutoNorm", "FrozenLN"),
    )


def _a2() -> Claim:
    return _a(
        2,
        "In a Transformer a learned selector between DyT and LN beats random weights.",
        "`random_selector`: […] providing a stochastic baseline to assess whether the learned adaptive weighting by "
        "the MLP offers a significant advantage over arbitrary combinations.",
        "test accuracy of AutoNorm minus AutoNorm_RandomSelector",
        minus("AutoNorm", "AutoNorm_RandomSelector"),
        minus("AutoNorm", "AutoNorm_FixedSelector", decides=False),
        note="random weights are noise in training and a half each in the test, so the fixed half stands beside; ",
    )


def _a3() -> Claim:
    return _a(
        3,
        "In a Transformer a learned selector is more accurate than LN alone on noisy and on rotated test rows.",
        "Robustness to noise and rotation: Evaluated using corrupted test loaders (e.g., Gaussian noise, random "
        "rotations) to assess model stability under perturbed inputs.",
        "accuracy on the test rows with Gaussian noise (mean of 0.1, 0.2, 0.4 and 0.8 of the inputs' standard "
        "deviation), and turned by a random angle (mean of at most 10, 20, 30 and 45°), of AutoNorm minus FrozenLN",
        *(_corrupted(f"AutoNorm − FrozenLN, {kind}", kind) for kind in CORRUPTED),
        *(_corrupted(f"what {kind} changes", f"{kind}_change", decides=False) for kind in CORRUPTED),
        note="a run that diverged has chance on corrupted rows as well; a model that is better on clean rows has a "
        "head start, so what corruption changes stands beside; ",
    )


def _corrupted(name: str, column: str, decides: bool = True) -> Comparison:
    return Comparison(name, {"AutoNorm": 1.0, "FrozenLN": -1.0}, column=column, decides=decides)


AUTONORM_CLAIMS = (_a1(), _a2(), _a3())
