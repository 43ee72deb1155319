"""Which rows of a data set a scale uses for training, validation and test.

In this file `n` holds the number of rows of a data set's two published parts, (train, test).
Validation is taken from the train part, unless a task says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIXED_SEED = 42  # seed of the split if the run's seed does not decide it, as in state-spaces/s4


@dataclass(frozen=True)
class SplitSizes:
    """Number of rows that a scale uses for each split; None means all available rows.

    If `reshuffle` is True, the run's seed decides which rows. Otherwise they are the same for every
    seed.
    """

    train: int | None
    val: int | None
    test: int | None
    reshuffle: bool

    def seed(self, run_seed: int) -> int:
        """Return the seed that decides which rows are used."""
        return run_seed if self.reshuffle else FIXED_SEED

    def counts(self, n: tuple[int, int], held_out: float = 0.1) -> tuple[int, int, int]:
        """Return the rows of train, validation (its share of the train part: held_out) and test."""
        val = n[0] - int(n[0] * (1 - held_out)) if self.val is None else self.val
        train = max(n[0] - val, 0) if self.train is None else self.train
        test = n[1] if self.test is None else self.test
        return train, val, test

    def draw_splits(
        self, n: tuple[int, int], seed: int, name: str, held_out: float = 0.1
    ) -> list[Tensor]:
        """Return the row numbers of the train, validation and test split of the data set `name`.

        The first two count in the train part, the third in the test part. With all rows and seed 42
        this is s4's split of CIFAR: validation is the last tenth of a permutation.
        """
        train, val, test = self.counts(n, held_out)
        seed = self.seed(seed)
        return [
            *draw_rows(n[0], (train, val), seed, f"{name}'s train"),
            *draw_rows(n[1], (test,), seed, f"{name}'s test"),
        ]


SMALL = {
    "smoke": SplitSizes(64, 32, 32, reshuffle=True),
    **dict.fromkeys(("quick", "evening"), SplitSizes(4_000, 1_000, 2_000, reshuffle=True)),
}
ALL = SplitSizes(None, None, None, reshuffle=False)
# The usual sizes: a random draw at smoke, quick and evening, all rows at lab and paper
SCALE_SIZES = {**SMALL, "lab": ALL, "paper": ALL}


def draw_rows(n: int, sizes: Sequence[int], seed: int, what: str) -> list[Tensor]:
    """Return disjoint random draws of these sizes from n rows.

    Raises ValueError if there are too few rows.
    """
    if n < sum(sizes):
        needed = " + ".join(f"{size:,}" for size in sizes)
        raise ValueError(
            f"{what} has {n:,} rows, needed are {needed}: provide all of it or use a smaller scale"
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return list(order[: sum(sizes)].split(list(sizes)))


def check_complete(
    where: object, counts: Sequence[int], published: Sequence[int], scale: str, unit: str = "rows"
) -> None:
    """Raise ValueError at lab and paper unless a data set is as large as it was published."""
    if scale in ("lab", "paper") and tuple(counts) != tuple(published):
        have = " + ".join(f"{count:,}" for count in counts)
        needed = " + ".join(f"{count:,}" for count in published)
        raise ValueError(
            f"{where} holds {have} {unit}, {scale} needs {needed}: "
            "provide all or use a smaller scale"
        )
