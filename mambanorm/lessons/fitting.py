"""A loop of a few lines for the lessons' small experiments, and their place in the run store.

The loop goes by epochs, the kit's (loop.py) by steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.tasks.base import Split
from mambanorm.training import kept


def fit(
    model: nn.Module, train: Split, optimizer: torch.optim.Optimizer, *, epochs: int, batch_size: int = 64
) -> Iterator[float]:
    """Trains the model and yields the training accuracy after each epoch, measured while it learns (a fraction).

    The order of the rows follows torch's seed. A loss that is not finite ends the training: the epochs that are left
    yield the accuracy of a guess, 1 over the number of classes.
    """
    x, labels, finite = train.inputs, train.labels, True
    for _ in range(epochs):
        right = 0
        for rows in torch.randperm(len(x)).split(batch_size) if finite else ():
            logits = model.train()(x[rows])
            loss = F.cross_entropy(logits, labels[rows])
            finite = finite and bool(loss.isfinite())
            right += int((logits.argmax(-1) == labels[rows]).sum())
            optimizer.zero_grad(), loss.backward(), optimizer.step()
        yield right / len(x) if finite else 1 / logits.shape[-1]


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Share of a split's rows that the model names rightly, in eval mode."""
    return float((model.eval()(split.inputs).argmax(-1) == split.labels).float().mean())


def first(split: Split, rows: int) -> Split:
    """The first rows of a split."""
    return Split(split.inputs[:rows], split.labels[:rows])


def channels_first(split: Split) -> Split:
    """Images (n, H, W, C) as (n, C, H, W)."""
    images: Tensor = split.inputs.permute(0, 3, 1, 2).contiguous()
    return Split(images, split.labels)


def kept_lesson(
    file: str, name: str, one_seed: Callable[[int], Iterable[dict]], seeds: int, runs_dir=None
) -> pd.DataFrame:
    """The rows of a lesson's experiment for seeds 0, 1, …, from `<run store>/.lessons/` or measured now. file: where
    the lesson is written; a lesson that is written anew is measured anew."""
    return kept.kept(".lessons", name, one_seed, range(seeds), kept.digest(Path(file), Path(__file__)), runs_dir)
