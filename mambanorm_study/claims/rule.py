"""The rule of the verdicts, version 12. PROTOCOL.md states it on its first page.

The input is one difference for each seed: the test score of one arm minus the score of another, or
a weighted sum of the scores of several arms. The 95 % t-interval of the mean difference is compared
with two marks: zero, and the smallest effect of interest.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

from mambanorm_study.tables.intervals import t_quantile

SUPPORTED, NO_GAIN, OPPOSITE = "supported", "no gain", "opposite"
CANNOT_TELL, NO_WORD = "cannot tell", "no word"

# All words of a verdict, in the order in which they are listed.
WORDS = (SUPPORTED, NO_GAIN, OPPOSITE, CANNOT_TELL, NO_WORD)

# The words from the weakest to the strongest support of a claim.
STRENGTH = (OPPOSITE, NO_GAIN, NO_WORD, CANNOT_TELL, SUPPORTED)

# A 95 % interval leaves out 2.5 % on each side.
ONE_SIDED = 0.025

# A comparison with fewer pairs of runs has no word: by chance, five differences have the same sign
# in one study of 16.
FEWEST = 6


def interval(
    differences: Sequence[float], lower: float = ONE_SIDED, upper: float = ONE_SIDED
) -> tuple[float, float]:
    """Return the two ends of the t-interval of the mean; NaN for fewer than two differences.

    lower, upper: the one-sided error levels of the two ends.
    """
    n = len(differences)
    if n < 2:
        return float("nan"), float("nan")
    mean, error = np.mean(differences), np.std(differences, ddof=1) / np.sqrt(n)
    low, high = mean - t_quantile(n - 1, lower) * error, mean + t_quantile(n - 1, upper) * error
    return float(low), float(high)


def word_of(
    differences: Sequence[float],
    smallest: float,
    lower: float = ONE_SIDED,
    upper: float = ONE_SIDED,
) -> str:
    """Return the word of one comparison from its paired differences, one for each seed. The
    position of their 95 % interval relative to zero and to the smallest effect decides.
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


def levels(comparisons: int, one_suffices: bool) -> tuple[float, float]:
    """Return the error levels of the lower and the upper end for a claim with several comparisons.

    Only one side needs a correction: the side on which a single error would decide the claim. If
    one comparison suffices, a single false "supported" supports the claim; if all must hold, a
    single false "opposite" refutes it.
    """
    shared = ONE_SIDED / comparisons
    return (shared, ONE_SIDED) if one_suffices else (ONE_SIDED, shared)


def word_of_claim(words: Iterable[str], one_suffices: bool) -> str:
    """Return the word of a claim from the words of its comparisons: the strongest if one
    comparison suffices, else the weakest.
    """
    return (max if one_suffices else min)(words, key=STRENGTH.index)


def better_or_worse(differences: Sequence[float], smallest: float) -> str:
    """Return "better", "worse", "about the same" or "cannot tell", for two arms that are compared
    without a claim.
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
    """Return how many new seeds would give an informative word in about four of five studies with
    this mean and spread; None if more than 10,000.
    """
    mean, n = np.mean(differences), np.arange(FEWEST, 10_001)
    error, z_80 = np.std(differences, ddof=1) / np.sqrt(n), special.ndtri(0.8)
    above_zero = mean > (z_80 - special.stdtrit(n - 1, lower)) * error
    # "no gain" or "opposite"
    below_smallest = smallest - mean > (z_80 - special.stdtrit(n - 1, upper)) * error
    enough = n[above_zero | below_smallest]
    return int(enough[0]) if len(enough) else None
