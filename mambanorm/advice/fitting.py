"""Small trainings for the experiments: one thread, everything by seed; and a cache of what they measured.

    digits        the handwritten digits as images (B, 1, 8, 8), from the kit's task
    fit           trains a model on batches by the kit's loop, and returns its losses
    accuracy      of a classifier, in eval mode, in per cent
    cached        rows of an experiment by seed, from the run store or measured now
    stored        the same, of those that are there already

A frame of rows is kept in `<run store>/.advice/` (training/kept.py): changed code measures anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm import loop
from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import default_scale
from mambanorm.tasks import load_task
from mambanorm.training import kept

FOLDER = ".advice"
OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
}


@lru_cache(maxsize=32)
def digits(scale: str, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """train, val, test → images (n, 1, 8, 8) in [−1, 1] and labels (n,); the seed decides the split."""
    data = load_task("digits_images", scale, seed)
    splits = {"train": data.train, "val": data.val, "test": data.test}
    return {name: (split.inputs.permute(0, 3, 1, 2).contiguous(), split.labels) for name, split in splits.items()}


def shuffled(rows: int, batch: int, steps: int, seed: int) -> Iterable[Tensor]:
    """`steps` batches of row numbers, epoch after epoch in a new order; a last batch that is not whole is left out."""
    draw, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(rows, generator=draw)
        yield order[:batch]
        order = order[batch:]


def fit(
    model: nn.Module,
    loss_of: Callable[[nn.Module, object], Tensor],
    batches: Iterable[object],
    *,
    lr: float,
    steps: int,
    optimizer: str = "adam",
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Trains the model, one step a batch, and returns the loss of each step. A loss or gradient that is not finite
    ends it.

    The rate falls linearly to 0 over `steps`, so that running statistics catch up with the weights at the end.
    loss_of(model, batch) is a scalar; watch(step) is called after each step. ValueError for another optimizer.
    """
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    curve: list[dict] = []
    loop.fit(
        model,
        OPTIMIZERS[optimizer](model.parameters(), lr),
        batches,
        lambda model, batch, step: [loss_of(model, batch)],
        rate=lambda step: lr * (1 - (step - 1) / steps),
        curve=curve,
        observers=[] if watch is None else [watch],
    )
    return [row["train_loss"] for row in curve]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    """Per cent of the rows that the model, in eval mode, gives their label; one that is not finite counts as wrong."""
    model.eval()
    scores = model(x)
    right = (scores.argmax(-1) == labels) & scores.isfinite().all(-1)
    return 100 * right.float().mean().item()


def cached(
    name: str, one_seed: Callable[[str, int], list[dict]], scale: str, seeds: Sequence[int], runs_dir=None
) -> pd.DataFrame:
    """The rows of `one_seed(scale, seed)` for each seed, with the columns seed and scale; what is stored is read."""

    def rows(seed: int) -> list[dict]:
        return [row | dict(scale=scale) for row in one_seed(scale, seed)]

    return kept.kept(FOLDER, f"{name}-{scale}", rows, seeds, _digest(), runs_dir)


def stored(name: str, scale: str | None = None, runs_dir=None) -> pd.DataFrame:
    """Every stored row of an experiment at a scale (None = the environment's); an empty frame where there is none."""
    return kept.stored(FOLDER, f"{name}-{default_scale() if scale is None else scale}", _digest(), runs_dir)


@lru_cache(maxsize=1)
def _digest() -> str:
    """Of the code that measures."""
    return kept.digest(*(Path(__file__).with_name(f"{name}.py") for name in MEASURES))


MEASURES = ("blocks", "experiments", "fitting")
