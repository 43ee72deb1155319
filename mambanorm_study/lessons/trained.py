"""Two lessons that train small models, and the loop of a few lines that they share; it goes by
epochs, the kit's (loop.py) by steps.

The lecture's claim about batch norm (Patel, CS460, after Santurkar et al. 2018, Figure 1): a VGG
trained on CIFAR-10 reaches a higher training accuracy with batch norm. Here: six convolutions in
VGG's manner on the 8×8 digits that come with scikit-learn, plain SGD with momentum, two learning
rates. Beside "none" and "BN" stands a third arm without a norm, whose weights start as He et al.
(2015) propose. It tells how much of the gain is one of the norm, and how much one of the start.

What the convolution and the gate of a Mamba block are for: small models with and without them, on
two tasks. `neighbours`: does "a" stand directly before "b" somewhere? Every row holds the same
symbols in another order, so only the order can tell; made up for this lesson. `digits`: the pixels
of handwritten digits as a sequence, real data.

What was measured is kept in `<run store>/.lessons/` (runs/measurements.py); a lesson that is written anew
is measured anew.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import BlockCache, MambaBlock
from mambanorm.errors import unknown
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import load_task
from mambanorm_study.tasks.base import Split


def fit(
    model: nn.Module,
    train: Split,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    batch_size: int = 64,
) -> Iterator[float]:
    """Trains the model and yields the training accuracy after each epoch, measured while it learns
    (a fraction).

    The order of the rows follows torch's seed. A loss that is not finite ends the training: the
    epochs that are left yield the accuracy of a guess, 1 over the number of classes.
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


def _kept(
    name: str, one_seed: Callable[[int], Iterable[dict]], seeds: int | Iterable[int], runs_dir
) -> pd.DataFrame:
    """Return the rows for each seed, from the store or measured now. ValueError for seeds that are
    none."""
    listed = check_seeds(seeds, "smoke")
    return load_or_measure(".lessons", name, one_seed, listed, digest_of(Path(__file__)), runs_dir)


# batch norm in a small VGG

ARMS = ("none", "none, He start", "BN")
RATES = (0.02, 0.1)
VGG_EPOCHS, VGG_SEEDS = (
    {"smoke": 1, "quick": 5, "evening": 5},
    {"smoke": 1, "quick": 4, "evening": 4},
)
"""At larger scales 10 epochs and 8 seeds."""


def small_vgg(arm: str, *, classes: int = 10) -> nn.Sequential:
    """Three stages of two 3×3 convolutions (16, 32, 64 channels), each halved by pooling: images
    (n, 1, 8, 8) → logits. With "BN" a batch norm follows each convolution. ValueError for another
    arm than those of ARMS."""
    if arm not in ARMS:
        raise unknown("arm", arm, ARMS)
    layers, before = [], 1
    for width in (16, 32, 64):
        for _ in range(2):
            norm = [nn.BatchNorm2d(width)] if arm == "BN" else []
            layers += [nn.Conv2d(before, width, 3, padding=1), *norm, nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(before, classes))
    if arm == "none, He start":
        for layer in model[:-1]:
            if isinstance(layer, nn.Conv2d):
                (
                    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu"),
                    nn.init.zeros_(layer.bias),
                )
    return model


def with_and_without(
    scale: str, seeds: int | None = None, rates: Iterable[float] = RATES, runs_dir=None
) -> pd.DataFrame:
    """Trains every arm at every rate with every seed, or reads what the run store holds of that. A
    row an epoch: arm, lr, scale, epoch, train_accuracy, val_accuracy of the trained model (the same
    in all rows of a run), seed; accuracies are fractions."""
    seeds = VGG_SEEDS.get(scale, 8) if seeds is None else seeds
    each = {f"vgg-{scale}-{rate:g}": partial(_curves, scale, rate) for rate in rates}
    return pd.concat(
        [_kept(name, curves, seeds, runs_dir) for name, curves in each.items()], ignore_index=True
    )


def _curves(scale: str, rate: float, seed: int) -> list[dict]:
    data, rows = load_task("digits_images", scale, seed), []
    # (n, H, W, C) → (n, C, H, W)
    train, val = (
        Split(s.inputs.permute(0, 3, 1, 2).contiguous(), s.labels) for s in (data.train, data.val)
    )
    for arm in ARMS:
        torch.manual_seed(seed)
        model = small_vgg(arm)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        curve = list(fit(model, train, optimizer, epochs=VGG_EPOCHS.get(scale, 10)))
        facts = dict(arm=arm, lr=rate, scale=scale, val_accuracy=accuracy(model, val))
        rows += [
            facts | dict(epoch=epoch, train_accuracy=share)
            for epoch, share in enumerate(curve, start=1)
        ]
    return rows


# a Mamba block without its convolution or without its gate

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
    """A Mamba block that leaves one part out, for all else as it is: "conv" leaves SiLU alone in
    the convolution's place, "gate" multiplies by nothing (Eq. 2 is gone), "nothing" is the whole
    block. ValueError for another part."""

    def __init__(self, part: str, d_model: int, n1: str = "RMSN", n2: str = "None", **options):
        if part not in PARTS:
            raise unknown("part of a block", part, PARTS)
        super().__init__(d_model, n1, n2, **options)
        self.part = part

    def convolve(self, u: Tensor, context: BlockCache | None) -> Tensor:
        return F.silu(u) if self.part == "conv" else super().convolve(u, context)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, context: BlockCache | None = None
    ) -> Tensor:
        if self.part != "gate":
            return super().forward(x, lengths, context)
        at = self._sites(lengths)
        u, _, dt = self.project(at("n1", x))
        u, dt, B, C = self.select(self.convolve(u, context), dt, at, context)
        return x + self.out_proj(at("n2", self.scan(u, dt, B, C, at, context)))


class Reader(nn.Module):
    """Stem, one block, mean over the positions, head: token ids (n, L) or values (n, L, 1) → logits
    (n, classes)."""

    def __init__(
        self,
        part: str,
        stem: nn.Module,
        classes: int,
        *,
        d_model: int = 24,
        arm: str = "RMSN>SSM>None",
    ):
        super().__init__()
        self.stem, self.block = stem, BlockWithout(part, d_model, *Arm.parse(arm)[:2])
        self.head = nn.Linear(d_model, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(1))


def neighbours(rows: int, seed: int, *, copies: int = 3) -> Split:
    """Rows of SYMBOLS · copies symbols in random order (rows, L), half of them with "a" directly
    before "b" (label 1) and half without (label 0)."""
    draw = torch.Generator().manual_seed(seed)
    length = SYMBOLS * copies
    ordered = torch.arange(length) % SYMBOLS
    many = ordered[torch.rand(6 * rows, length, generator=draw).argsort(1)]
    found = ((many[:, :-1] == A) & (many[:, 1:] == B)).any(1)
    both = torch.cat([many[found][: rows // 2], many[~found][: rows - rows // 2]])
    mixed = torch.randperm(rows, generator=draw)
    return Split(both[mixed], (torch.arange(rows) < rows // 2).long()[mixed])


def parts_of_a_block(
    scale: str,
    seeds: int | None = None,
    tasks: Iterable[str] = TASKS,
    *,
    epochs: int | None = None,
    runs_dir=None,
) -> pd.DataFrame:
    """Trains a one-block model without each of PARTS, or reads what the run store holds of that. A
    row a run: task, without, scale, epochs, test_accuracy, chance (fractions), seed. None = the
    scale's seeds and epochs. ValueError for an unknown task."""
    seeds, frames = SEEDS.get(scale, 8) if seeds is None else seeds, []
    for task in tasks:
        if task not in TASKS:
            raise unknown("task of this lesson", task, TASKS)
        passes = EPOCHS.get(scale, {}).get(task, 15) if epochs is None else epochs
        each = partial(_runs, scale, task, passes)
        frames.append(_kept(f"{task}-{scale}-{passes}", each, seeds, runs_dir))
    return pd.concat(frames, ignore_index=True)


def _runs(scale: str, task: str, epochs: int, seed: int) -> list[dict]:
    (train, test, classes), rows = _data(task, scale, seed), []
    facts = dict(task=task, scale=scale, epochs=epochs, chance=1 / classes)
    for part in PARTS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = Reader(
                part, nn.Linear(1, 24) if task == "digits" else nn.Embedding(SYMBOLS, 24), classes
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
            for _ in fit(model, train, optimizer, epochs=epochs, batch_size=32):
                pass
        rows.append(facts | dict(without=part, test_accuracy=accuracy(model, test)))
    return rows


def _data(task: str, scale: str, seed: int) -> tuple[Split, Split, int]:
    rows = ROWS.get(scale, 4000)
    if task == "digits":
        data = load_task("digits", scale, seed)
        return Split(data.train.inputs[:rows], data.train.labels[:rows]), data.test, data.n_classes
    return neighbours(rows, 2 * seed), neighbours(400, 2 * seed + 1), 2
