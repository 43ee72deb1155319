"""What the convolution and the gate of a Mamba block are for: small models with and without them, on two tasks.

- `neighbours`: does "a" stand directly before "b" somewhere? Every row holds the same symbols in another order, so
  only the order can tell. Made up for this lesson.
- `digits`: the pixels of handwritten digits as a sequence, real data.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.basics.errors import unknown
from mambanorm.block import BlockCache, MambaBlock
from mambanorm.lessons.fitting import accuracy, first, fit, kept_lesson
from mambanorm.tasks import load_task
from mambanorm.tasks.base import Split

PARTS = ("nothing", "conv", "gate")
TASKS = ("neighbours", "digits")
ROWS, SEEDS = {"smoke": 96, "quick": 960, "evening": 960}, {"smoke": 1, "quick": 3, "evening": 3}
"""Training rows and seeds; at larger scales 4,000 and 8."""
EPOCHS = {"smoke": {"neighbours": 1, "digits": 1}} | {
    scale: {"neighbours": 4, "digits": 6} for scale in ("quick", "evening")
}
"""At larger scales 15."""
SYMBOLS, A, B = 6, 0, 1


class BlockWithout(MambaBlock):
    """A Mamba block that leaves one part out, for all else as it is: "conv" leaves SiLU alone in the convolution's
    place, "gate" multiplies by nothing (Eq. 2 is gone), "nothing" is the whole block. ValueError for another part."""

    def __init__(self, part: str, d_model: int, n1: str = "RMSN", n2: str = "None", **options):
        if part not in PARTS:
            raise unknown("part of a block", part, PARTS)
        super().__init__(d_model, n1, n2, **options)
        self.part = part

    def convolve(self, u: Tensor, context: BlockCache | None) -> Tensor:
        return F.silu(u) if self.part == "conv" else super().convolve(u, context)

    def forward(self, x: Tensor, lengths: Tensor | None = None, context: BlockCache | None = None) -> Tensor:
        if self.part != "gate":
            return super().forward(x, lengths, context)
        at = self._sites(lengths)
        u, _, dt = self.project(at("n1", x))
        u, dt, B, C = self.select(self.convolve(u, context), dt, at, context)
        return x + self.out_proj(at("n2", self.scan(u, dt, B, C, at, context)))


class Reader(nn.Module):
    """Stem, one block, mean over the positions, head: token ids (n, L) or values (n, L, 1) → logits (n, classes)."""

    def __init__(self, part: str, stem: nn.Module, classes: int, *, d_model: int = 24, arm: str = "RMSN>SSM>None"):
        super().__init__()
        self.stem, self.block = stem, BlockWithout(part, d_model, *Arm.parse(arm)[:2])
        self.head = nn.Linear(d_model, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(1))


def neighbours(rows: int, seed: int, *, copies: int = 3) -> Split:
    """Rows of SYMBOLS · copies symbols in random order (rows, L), half of them with "a" directly before "b" (label 1)
    and half without (label 0)."""
    draw = torch.Generator().manual_seed(seed)
    length = SYMBOLS * copies
    ordered = torch.arange(length) % SYMBOLS
    many = ordered[torch.rand(6 * rows, length, generator=draw).argsort(1)]
    found = ((many[:, :-1] == A) & (many[:, 1:] == B)).any(1)
    both = torch.cat([many[found][: rows // 2], many[~found][: rows - rows // 2]])
    mixed = torch.randperm(rows, generator=draw)
    return Split(both[mixed], (torch.arange(rows) < rows // 2).long()[mixed])


def parts_of_a_block(
    scale: str, seeds: int | None = None, tasks: Iterable[str] = TASKS, *, epochs: int | None = None, runs_dir=None
) -> pd.DataFrame:
    """Trains a one-block model without each of PARTS, or reads what the run store holds of that. A row a run: task,
    without, scale, epochs, test_accuracy, chance (fractions), seed. None = the scale's seeds and epochs. ValueError for
    an unknown task."""
    seeds, frames = SEEDS.get(scale, 8) if seeds is None else seeds, []
    for task in tasks:
        if task not in TASKS:
            raise unknown("task of this lesson", task, TASKS)
        passes = EPOCHS.get(scale, {}).get(task, 15) if epochs is None else epochs
        each = partial(_runs, scale, task, passes)
        frames.append(kept_lesson(__file__, f"{task}-{scale}-{passes}", each, seeds, runs_dir))
    return pd.concat(frames, ignore_index=True)


def _runs(scale: str, task: str, epochs: int, seed: int) -> list[dict]:
    return [_run(scale, task, seed, part, epochs) for part in PARTS]


def _run(scale: str, task: str, seed: int, part: str, epochs: int) -> dict:
    train, test, classes = _data(task, scale, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Reader(part, nn.Linear(1, 24) if task == "digits" else nn.Embedding(SYMBOLS, 24), classes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
        for _ in fit(model, train, optimizer, epochs=epochs, batch_size=32):
            pass
    facts = dict(task=task, without=part, scale=scale, epochs=epochs)
    return facts | dict(test_accuracy=accuracy(model, test), chance=1 / classes)


def _data(task: str, scale: str, seed: int) -> tuple[Split, Split, int]:
    rows = ROWS.get(scale, 4000)
    if task == "digits":
        data = load_task("digits", scale, seed)
        return first(data.train, rows), data.test, data.n_classes
    return neighbours(rows, 2 * seed), neighbours(400, 2 * seed + 1), 2
