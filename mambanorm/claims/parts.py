"""The comparisons of a claim as numbers, seed by seed; of each group the one that validation chooses.

Part        one comparison: its weights and its values
parts_of    all that a claim makes
spread      the variance of the arms' means, without the noise of the seeds
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np

from mambanorm.claims.comparisons import Comparison
from mambanorm.claims.evidence import Paired
from mambanorm.claims.hypotheses import Claim


class Part:
    """One comparison of a claim, as numbers.

    `weights` (arms, seeds), by seed where one of a group is chosen; `values` (seeds,); `candidates` (arms,) the sign of
    every arm that any comparison of the group weighs.
    """

    def __init__(self, comparison: Comparison, weights: np.ndarray, candidates: np.ndarray, paired: Paired):
        self.comparison, self.weights, self.candidates = comparison, weights, candidates
        if comparison.column == "spread":
            self.values = spread(paired.columns["score"], weights)
        else:
            used = (weights != 0).any(axis=1)
            numbers = np.where(used[:, None], paired.columns[comparison.column], 0.0)
            self.values = (weights * numbers).sum(axis=0)

    def side(self, sign: int, numbers: np.ndarray) -> np.ndarray:
        """(seeds,) the mean of numbers (arms, seeds) over the arms on one side of the comparison."""
        mine = np.maximum(sign * self.weights, 0.0)
        return (mine * np.where(mine > 0, numbers, 0.0)).sum(axis=0) / mine.sum(axis=0)


def parts_of(claim: Claim, paired: Paired) -> list[Part]:
    """The comparisons that are made, of each group the one that validation on the other seeds chooses, seed by seed."""
    place = {arm: i for i, arm in enumerate(paired.arms)}
    made = []
    for group, members in groupby(claim.comparisons, key=lambda c: c.group if claim.select == "best" else c.name):
        members = list(members)
        weights = np.zeros((len(members), len(place), len(paired.seeds)))
        for i, member in enumerate(members):
            for arm, weight in member.weights.items():
                weights[i, place[arm]] = weight
        candidates = np.sign(weights).sum(axis=0).mean(axis=1) if paired.seeds else np.zeros(len(place))
        made.append(Part(*_chosen(group, members, weights, paired), candidates, paired))
    return made


def _chosen(name: str, members: list[Comparison], weights: np.ndarray, paired: Paired) -> tuple[Comparison, np.ndarray]:
    """The comparison with the largest promise (of most seeds), and its weights (arms, seeds), seed by seed."""
    if len(members) == 1:
        return members[0], weights[0]
    if not paired.seeds:
        return replace(members[0], name=name), weights[0]
    promise = np.where(weights != 0, weights * np.where(np.isfinite(paired.promise), paired.promise, 0.0), 0.0).sum(
        axis=1
    )
    absent = (np.any(weights != 0, axis=2) & ~np.isfinite(paired.promise).all(axis=1)).any(
        axis=1
    )  # a candidate not run
    if absent.any():
        return replace(members[0], name=name), np.full_like(weights[0], np.nan)
    best = np.round(promise, 9).argmax(axis=0)
    most = members[int(np.bincount(best, minlength=len(members)).argmax())]
    return most, np.take_along_axis(weights, best[None, None, :], axis=0)[0]


def spread(scores: np.ndarray, weights: np.ndarray, signs: tuple[int, ...] = (1, -1)) -> np.ndarray:
    """Variance of the arms' mean scores on the positive side minus that on the negative side, in points²; (seeds,), the
    jackknife's pseudo-values, whose mean is the estimate. `signs`: only these sides.

    Products of *different* seeds have no noise in their mean. So Σ_{j≠k} c_j·c_k / (n(n − 1)(a − 1)) of the a arms'
    centred scores c estimates the variance of their true means without bias, whatever the noise of each arm.
    """
    n = scores.shape[1]
    if n < 3:
        return np.full(n, np.nan)
    gram = np.zeros((n, n))
    for sign in signs:
        mine = scores[(sign * weights > 0).all(axis=1)]
        centred = mine - mine.mean(axis=0)
        gram += sign * (centred.T @ centred) / (len(mine) - 1)
    np.fill_diagonal(gram, 0.0)
    total = gram.sum()
    without = (total - 2 * gram.sum(axis=0)) / ((n - 1) * (n - 2))
    return total / (n - 1) - (n - 1) * without
