"""The rule of the verdicts, version 12, which PROTOCOL.md states in words.

The rule's input is one difference for each seed: the test score of one arm minus the test score of
another arm, or a weighted sum of the test scores of several arms. The rule compares the 95 %
t-interval of the mean difference with two thresholds: zero, and the smallest effect of interest.
Its result is a verdict, such as "supported".
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from scipy import special

from mambanorm_study.tables.intervals import t_quantile

SUPPORTED, NO_GAIN, OPPOSITE = "supported", "no gain", "opposite"
CANNOT_TELL, NO_WORD = "cannot tell", "no word"

# All verdicts, in the order in which they are listed.
WORDS = (SUPPORTED, NO_GAIN, OPPOSITE, CANNOT_TELL, NO_WORD)

# The verdicts, from the weakest to the strongest support for a claim.
STRENGTH = (OPPOSITE, NO_GAIN, NO_WORD, CANNOT_TELL, SUPPORTED)

# The one-sided error level: a 95 % interval leaves out 2.5 % on each side.
ONE_SIDED = 0.025

# A comparison with fewer pairs of runs than this gets the verdict "no word". With five pairs all
# differences would have the same sign by chance in one of 16 studies.
FEWEST = 6


def interval(
    differences: Sequence[float], lower: float = ONE_SIDED, upper: float = ONE_SIDED
) -> tuple[float, float]:
    """Return the lower and the upper end of the t-interval for the mean difference. Both are NaN
    for fewer than two differences.

    lower, upper: the one-sided error levels of the lower and of the upper end.
    """
    n = len(differences)
    if n < 2:
        return float("nan"), float("nan")
    mean, error = np.mean(differences), np.std(differences, ddof=1) / np.sqrt(n)
    low, high = mean - t_quantile(n - 1, lower) * error, mean + t_quantile(n - 1, upper) * error
    return float(low), float(high)


def comparison_verdict(
    differences: Sequence[float],
    smallest: float,
    lower: float = ONE_SIDED,
    upper: float = ONE_SIDED,
) -> str:
    """Return the verdict on one comparison from its paired differences, one for each seed. The
    verdict depends on where the t-interval for the mean difference lies relative to zero and to
    `smallest`, the smallest effect of interest.

    lower, upper: the one-sided error levels of the two ends of the interval.
    """
    if len(differences) < FEWEST:
        return NO_WORD
    low, high = interval(differences, lower, upper)
    if low > 0:
        return SUPPORTED
    if high < 0:
        return OPPOSITE
    if high < smallest:
        return NO_GAIN
    return CANNOT_TELL


def levels(n_comparisons: int, one_suffices: bool) -> tuple[float, float]:
    """Return the one-sided error levels of the lower and of the upper end of the intervals, for a
    claim with this number of comparisons.

    Only one end needs a correction: the end at which a single error would decide the claim. If one
    comparison suffices, a single false "supported" supports the claim, so the lower end is
    corrected. If all comparisons must hold, a single false "opposite" refutes the claim, so the
    upper end is corrected.
    """
    shared = ONE_SIDED / n_comparisons
    return (shared, ONE_SIDED) if one_suffices else (ONE_SIDED, shared)


def claim_verdict(verdicts: Iterable[str], one_suffices: bool) -> str:
    """Return the verdict on a claim from the verdicts on its comparisons: the strongest verdict if
    it suffices that one comparison holds, and the weakest verdict if all comparisons must hold.
    """
    return (max if one_suffices else min)(verdicts, key=STRENGTH.index)


def better_or_worse(differences: Sequence[float], smallest: float) -> str:
    """Return the verdict on the first of two arms that are compared without a claim: "better",
    "worse", "about the same", "cannot tell" or, for fewer than FEWEST differences, "no word".

    differences: the first arm minus the second arm, one for each seed. smallest: the smallest
    effect of interest.
    """
    if len(differences) < FEWEST:
        return NO_WORD
    low, high = interval(differences)
    if low > 0:
        return "better"
    if high < 0:
        return "worse"
    return "about the same" if -smallest < low and high < smallest else CANNOT_TELL


def seeds_to_tell(
    differences: Sequence[float],
    smallest: float,
    lower: float = ONE_SIDED,
    upper: float = ONE_SIDED,
) -> int | None:
    """Return how many new seeds a study would need to reach a verdict other than "cannot tell" in
    about four of five cases, if the true mean and spread are those of `differences`; None if the
    study would need more than 10,000 seeds.

    smallest: the smallest effect of interest. lower, upper: see `interval`.
    """
    mean, n = np.mean(differences), np.arange(FEWEST, 10_001)
    error = np.std(differences, ddof=1) / np.sqrt(n)
    above_zero = mean > _margins(lower) * error
    # the interval ends below `smallest`, so the verdict is "no gain" or "opposite"
    below_smallest = smallest - mean > _margins(upper) * error
    enough = n[above_zero | below_smallest]
    return int(enough[0]) if len(enough) else None


@lru_cache(maxsize=64)
def _margins(level: float) -> np.ndarray:
    """Return, for n = FEWEST to 10,000 seeds, how many standard errors the mean must lie from a
    bound so that the interval excludes the bound in four of five cases.
    """
    return special.ndtri(0.8) - special.stdtrit(np.arange(FEWEST, 10_001) - 1, level)
