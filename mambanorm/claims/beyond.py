"""The hypotheses beyond the paper: E1…E4, what the authors of today's models say of their norms and sites.

The paper asks none of these. Each puts a sentence of its authors, who train models thousands of times as large, to the
models of this kit: what holds here need not hold there, and the other way round. E1s…E4s are about sequences, E3l and
E4l about language models.
"""

from __future__ import annotations

import math

from mambanorm.arms import NORM_CHOICES, PRESETS
from mambanorm.claims.claim import SMALLEST_BITS, SMALLEST_EFFECT, Claim
from mambanorm.claims.comparisons import NONE, Comparison, minus, pair

MAMBA, JAMBA = str(PRESETS["Mamba"].arm), str(PRESETS["Jamba"].arm)
AFTER_GATE = str(PRESETS["Mamba-2-norms"].arm)

TWICE = round(math.log10(2), 3)
"""E1: room for a factor of two, in decades."""
HIGHER_RATE = 0.1
"""E2: the smallest gain of interest, in decades of the learning rate: a quarter more."""


def _beyond(claim_id: str, comparisons: tuple[Comparison, ...], **said: object) -> Claim:
    facts = dict(paper="no number that these models could be held against", comparisons=comparisons)
    return Claim(id=claim_id, **facts, **said)


def _e1() -> Claim:
    norm = pair("None", "LN")
    others = (pair("None", n) for n in NORM_CHOICES if n != "LN")
    return _beyond(
        "E1s",
        (
            Comparison("None→LN has room", {norm: 1.0}, column="headroom"),
            minus(norm, NONE, column="headroom"),
            *(minus(other, NONE, column="headroom", decides=False) for other in others),
        ),
        words="In a deep model a norm after the scan keeps the scan's output within float16, where without one it is "
        "not.",
        quote="Our original attempt for adding ln is to avoid collapsing in training. It seems that the output of s6 "
        "is often too large (then get inf and finally NaN) to be in data type float16.",
        where="VMamba's authors, issue 182 of its repository",
        quantity="decades between the largest |y| of the scan, before the norm, and float16's 65,504, over 8 blocks "
        "and the first 256 test rows, with the weights that are tested; 0 where the run ended non-finite",
        direction="None→LN has room for a factor of two, and twice the room of None→None",
        threshold=TWICE,
        runs="deep",
        reference=NONE,
        note="its authors do not say that the scan itself stays within float16: theirs is computed in float32 and "
        "normed before it becomes float16 (issue 138). Contradicted is only the reading that such a norm holds the "
        "scan down. The models here train in float32",
    )


def _e2() -> Claim:
    arms = {JAMBA: 1.0, MAMBA: -1.0}
    best = Comparison("best accuracy", arms, threshold=SMALLEST_EFFECT, decides=False)
    return _beyond(
        "E2s",
        (minus(JAMBA, MAMBA, column="reach"), best),
        words="Norms on B, C and Δ let a model train at a higher learning rate.",
        quote="inner parts of the Mamba layers suffer from large activation values, leading to the spikes. We "
        "therefore added RMSNorm to internal activations. […] this stabilized training and prevented additional loss "
        "spikes.",
        where="Lieber et al. 2024 (Jamba), §6.4",
        quantity="log₁₀ of the highest of five rates, 1 to 39 times the task's own, at which a seed still has four "
        "fifths of what its best rate brings above chance (between two rates by interpolation); beside it the test "
        "accuracy of each arm's best rate",
        direction="higher with the norms, by a quarter of the rate",
        threshold=HIGHER_RATE,
        runs="ladder",
        note="its authors speak of loss spikes; a ladder of rates stands in for them, and no spike is counted. A seed "
        "that still trains at 39 times is given 39 times; the best of five rates is chosen on the test rows, of both "
        "arms",
    )


def _e3(claim_id: str) -> Claim:
    column = "bits" if claim_id.endswith("l") else "score"
    return _beyond(
        claim_id,
        (
            minus(AFTER_GATE, pair("RMSN", "RMSN"), column=column),
            minus(AFTER_GATE, MAMBA, column=column, decides=False),
        ),
        words="A norm after the gate, as in Mamba-2, beats the same norm before the gate.",
        quote="we found that instabilities were prone to arising in larger models. We were able to alleviate this by "
        "adding an extra normalization layer […] to the block right before the final output projection.",
        where="Dao & Gu 2024 (Mamba-2), extra normalization",
        quantity=f"{_measure(column)}, RMSN on y·SiLU(z) against RMSN on y, each with RMSN before the SSM; beside it "
        "what the norm after the gate brings at all",
        direction="after the gate better than before it",
        threshold=_smallest(column),
        note="its authors put it there for stability and say nothing of accuracy",
    )


def _e4(claim_id: str) -> Claim:
    column = "bits" if claim_id.endswith("l") else "score"
    before = minus(MAMBA, pair("Scale", "None"), column=column)
    after = minus(pair("None", "RMSN"), pair("None", "Scale"), column=column)
    of_gains = (
        minus(arm, NONE, column=column, decides=False) for arm in (pair("Scale", "None"), pair("None", "Scale"))
    )
    return _beyond(
        claim_id,
        (before, after, *of_gains),
        words="A norm brings more than its learned gain alone, before the SSM and after it.",
        quote="the simplest architecture change of gating each residual connection using a single zero-initialized "
        "parameter satisfies initial dynamical isometry and outperforms more complex approaches",
        where="against Bachlechner et al. 2021 (ReZero), abstract",
        quantity=f"{_measure(column)}, RMSN against Scale at the same place, a learned gain a channel and nothing else"
        "; beside it what the gain brings",
        direction="the norm better than the gain, at both places",
        threshold=_smallest(column),
        note="no test of ReZero, whose gain is one number a branch, starts at zero and stands on the branch; here it "
        "is one a channel, starts at one and stands where the norm does",
    )


def _measure(column: str) -> str:
    return "test loss in bits a character, less is better" if column == "bits" else "test accuracy"


def _smallest(column: str) -> float:
    return SMALLEST_BITS if column == "bits" else SMALLEST_EFFECT


BEYOND_CLAIMS = (_e1(), _e2(), _e3("E3s"), _e4("E4s"), _e3("E3l"), _e4("E4l"))
