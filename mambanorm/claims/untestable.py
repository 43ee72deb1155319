"""Why runs cannot tell a comparison, however many there are: "" where they can.

The reasons are those of PROTOCOL.md. None of them hides what is told anyway: a side that is told to be behind by more
than the threshold is behind, ceiling or not.
"""

from __future__ import annotations

import numpy as np

from mambanorm.claims.comparisons import ACCURACIES, NONE
from mambanorm.claims.evidence import Paired, Splits
from mambanorm.claims.gaps import label
from mambanorm.claims.hypotheses import UNEVEN, Claim
from mambanorm.claims.parts import Part, spread
from mambanorm.study.intervals import t_quantile

NO_VARIANCE = "no variance: every seed gives the same difference"


def untestable(claim: Claim, paired: Paired, part: Part, facts: dict, splits: Splits) -> str:
    column, threshold = part.comparison.column, facts["threshold"]
    if column == "unevenness" and lower_end(paired.columns[column][paired.arms.index(NONE)]) <= UNEVEN:
        return "out of reach: without norms the blocks are not told to differ by 5 %, so there is nothing to even out"
    if claim.runs == "ladder" and not all(_climbed(part, paired, sign, splits) for sign in (1, -1)):
        return "at chance: an arm is told from guessing at no rate"
    if claim.runs != "tuned":
        return ""
    if column == "bits" and not np.isfinite(facts["low"]):
        return "the frame lacks the losses on parts of the test text (summaries.with_summaries)"
    if not any(_learned(part, paired, sign, splits) for sign in (1, -1)):
        return "at chance: neither side is told from guessing"
    room = 100 - part.side(-1, paired.columns[column]).mean() if column in ACCURACIES else np.inf
    if room <= threshold and facts["high"] >= -threshold:
        return "at the ceiling: the other side leaves no room for the threshold"
    if column == "spread" and not any(_told_spread(paired, part, sign, threshold) for sign in (1, -1)):
        return "no spread: on neither side it is told to be larger than the threshold"
    return _at_the_edge(paired, part, facts["state"])


def lower_end(values: np.ndarray) -> float:
    """The lower end of the plain 95 % interval of the mean."""
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return -np.inf
    return values.mean() - t_quantile(len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))


def _learned(part: Part, paired: Paired, sign: int, splits: Splits) -> bool:
    """Whether a side is above chance on average, or one of its runs by three standard deviations of counting rows (no
    part of what bits tell)."""
    in_bits = part.comparison.column == "bits"
    gain, chance = (part.side(sign, paired.columns[name]) for name in ("bits" if in_bits else "score", "chance"))
    gain = gain - chance
    if in_bits:
        return lower_end(gain) > 0
    counting = 100 * np.sqrt(chance / 100 * (1 - chance / 100) / splits.test_rows)
    return lower_end(gain) > 0 or bool((gain > 3 * counting).any())


def _climbed(part: Part, paired: Paired, sign: int, splits: Splits) -> bool:
    """Whether the best rates of a side are above chance by three standard deviations of counting rows, on average: the
    best of five models that guess is above it by one."""
    best, chance = (part.side(sign, paired.columns[name]).mean() for name in ("score", "chance"))
    return bool(best - chance > 300 * np.sqrt(chance / 100 * (1 - chance / 100) / splits.test_rows))


def _told_spread(paired: Paired, part: Part, sign: int, threshold: float) -> bool:
    return lower_end(sign * spread(paired.columns["score"], part.weights, (sign,))) > threshold


def _at_the_edge(paired: Paired, part: Part, state: str) -> str:
    """A row cannot hold against an arm, or fail with an arm, that a learning rate beyond its grid may still improve.
    Where one arm of a group is chosen, any of the group may be the better one."""
    sign = {"holds": -1, "fails": 1}.get(state, 0)
    at_edge = [
        f"{label(arm)} ({lr:g})"
        for arm, lr, edge, weight in zip(paired.arms, paired.chosen, paired.edge, part.candidates, strict=True)
        if edge and weight * sign > 0
    ]
    return f"learning rate at the edge of its grid: {', '.join(at_edge)}" if at_edge else ""
