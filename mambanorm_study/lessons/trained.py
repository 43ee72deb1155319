"""Two lessons that train small models, and their short training loop.

**Batch norm.** A lecture (Patel, CS460, after Santurkar et al. 2018, Figure 1) claims that a VGG
trained on CIFAR-10 reaches a higher training accuracy with batch norm than without. This lesson
trains six convolutions in the style of VGG, with and without batch norm, on the 8×8 digits of
scikit-learn, by SGD with momentum at two learning rates. A third network has no norm and the
initial weights of He et al. (2015). This network shows how much of the gain better initial weights
alone can give.

**Parts of a Mamba block.** This lesson trains models of one Mamba block: the whole block, the block
without its convolution, and the block without its gate, on two tasks. The task `neighbours`, made
up for this lesson, asks if the symbol "a" is directly before the symbol "b" anywhere in the row.
Every row contains the same symbols, so the answer depends on their order alone. The task `digits`
has real data: the pixels of a handwritten digit as a sequence.

Results are cached in `<run store>/.lessons/` (runs/measurements.py) until this file changes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.block import BlockCache, MambaBlock
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import Split, load_task


def fit(
    model: nn.Module,
    train: Split,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    batch_size: int = 64,
) -> Iterator[float]:
    """Train the model, and after each epoch yield its training accuracy (a fraction).

    The accuracy on a batch is measured before the optimizer step on this batch. Torch's global seed
    decides the order of the rows. After a loss that is not finite, the accuracy is the chance
    level: 1 divided by the number of classes.
    """
    x, labels, finite = train.inputs, train.labels, True
    for _ in range(epochs):
        n_right = 0
        for rows in torch.randperm(len(x)).split(batch_size):
            logits = model.train()(x[rows])
            loss = nn.functional.cross_entropy(logits, labels[rows])
            finite = finite and bool(loss.isfinite())
            n_right += int((logits.argmax(-1) == labels[rows]).sum())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield n_right / len(x) if finite else 1 / logits.shape[-1]


@torch.no_grad()
def accuracy(model: nn.Module, split: Split) -> float:
    """Return the model's accuracy on a split (a fraction), in eval mode."""
    return float((model.eval()(split.inputs).argmax(-1) == split.labels).float().mean())


def _measured_rows(
    name: str, measure_seed: Callable[[int], Iterable[dict]], seeds: int | Iterable[int], runs_dir
) -> pd.DataFrame:
    """Return the rows of `measure_seed(seed)` for all seeds, as a DataFrame with a column seed.

    Rows that are cached under `name` are read, not measured again.
    """
    listed = check_seeds(seeds, "smoke")
    return load_or_measure(
        ".lessons", name, measure_seed, listed, digest_of(Path(__file__)), runs_dir
    )


# Lesson 1: batch norm in a small VGG

ARMS = ("none", "none, He start", "BN")
LEARNING_RATES = (0.02, 0.1)
VGG_EPOCHS = {"smoke": 1, "quick": 5, "evening": 5}  # epochs; larger scales: 10
VGG_SEEDS = {"smoke": 1, "quick": 4, "evening": 4}  # number of seeds; larger scales: 8


def small_vgg(arm: str) -> nn.Sequential:
    """Return a convolutional net that maps images (n, 1, 8, 8) to logits (n, 10).

    The net has three stages with 16, 32 and 64 channels. A stage has two 3×3 convolutions and then
    pooling. arm: "none"; "none, He start" (initial weights of He et al. 2015); or "BN" (a batch
    norm follows each convolution).
    """
    layers, channels = [], 1
    for width in (16, 16, 32, 32, 64, 64):
        conv = nn.Conv2d(channels, width, 3, padding=1)
        norm = [nn.BatchNorm2d(width)] if arm == "BN" else []
        pool = [nn.MaxPool2d(2)] if width == channels else []  # after every second convolution
        layers += [conv, *norm, nn.ReLU(), *pool]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))
    if arm == "none, He start":
        for layer in filter(lambda layer: isinstance(layer, nn.Conv2d), model):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def batch_norm_curves(scale: str, seeds: int | None = None, runs_dir=None) -> pd.DataFrame:
    """Return the learning curves of `small_vgg` for all ARMS, LEARNING_RATES and seeds.

    The DataFrame has one row per run and epoch. Columns: arm, lr, scale, val_accuracy (of the
    trained model, so the same in all rows of a run), epoch, train_accuracy, seed. Accuracies are
    fractions. seeds: number of seeds; None means VGG_SEEDS of the scale. Missing runs are trained;
    the other runs are read from the cache.
    """
    seeds = VGG_SEEDS.get(scale, 8) if seeds is None else seeds
    frames = [
        _measured_rows(f"vgg-{scale}-{lr:g}", partial(_vgg_curves, scale, lr), seeds, runs_dir)
        for lr in LEARNING_RATES
    ]
    return pd.concat(frames, ignore_index=True)


def _vgg_curves(scale: str, lr: float, seed: int) -> list[dict]:
    data, rows = load_task("digits_images", scale, seed), []
    train, val = (
        Split(split.inputs.permute(0, 3, 1, 2).contiguous(), split.labels)  # (n, C, H, W)
        for split in (data.train, data.val)
    )
    for arm in ARMS:
        torch.manual_seed(seed)
        model = small_vgg(arm)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        curve = list(fit(model, train, optimizer, epochs=VGG_EPOCHS.get(scale, 10)))
        run = dict(arm=arm, lr=lr, scale=scale, val_accuracy=accuracy(model, val))
        rows += [dict(run, epoch=n, train_accuracy=y) for n, y in enumerate(curve, start=1)]
    return rows


# Lesson 2: a Mamba block without its convolution or without its gate

PARTS = ("nothing", "conv", "gate")
ROWS = {"smoke": 96, "quick": 960, "evening": 960}  # training rows; larger scales: 4,000
SEEDS = {"smoke": 1, "quick": 3, "evening": 3}  # number of seeds; larger scales: 8
EPOCHS = {
    "neighbours": {"smoke": 1, "quick": 4, "evening": 4},
    "digits": {"smoke": 1, "quick": 6, "evening": 6},
}  # epochs; larger scales: 15
D_MODEL = 24
SYMBOLS, COPIES = 6, 3  # a row of the task `neighbours` contains each of 6 symbols 3 times


class BlockWithout(MambaBlock):
    """A Mamba block without one of its parts.

    part: "conv": SiLU is applied without the convolution. "gate": the scan's output is not
    multiplied by the gate (Eq. 2 of the paper is left out). "nothing": the block is complete.
    """

    def __init__(self, part: str, d_model: int, n1: str = "RMSN", n2: str = "None"):
        super().__init__(d_model, n1, n2)
        self.part = part

    def convolve(self, u: Tensor, context: BlockCache | None) -> Tensor:
        return nn.functional.silu(u) if self.part == "conv" else super().convolve(u, context)

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, context: BlockCache | None = None
    ) -> Tensor:
        if self.part != "gate":
            return super().forward(x, lengths, context)
        at = self._make_at(lengths)
        u, _, dt = self.project(at("n1", x))
        u, dt, B, C = self.select(self.convolve(u, context), dt, at, context)
        return x + self.out_proj(at("n2", self.scan(u, dt, B, C, at, context)))


class OneBlockModel(nn.Module):
    """A classifier: stem, one Mamba block, mean over the positions, linear head.

    Maps the input of `stem`, token ids (n, L) or values (n, L, 1), to logits (n, classes). part:
    what the Mamba block lacks, "conv", "gate" or "nothing".
    """

    def __init__(self, part: str, stem: nn.Module, classes: int):
        super().__init__()
        self.stem = stem
        self.block = BlockWithout(part, D_MODEL)
        self.head = nn.Linear(D_MODEL, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)).mean(1))


def neighbours(rows: int, seed: int) -> Split:
    """Return shuffled symbols (rows, L) and labels (rows,) of the task "neighbours".

    Symbol 0 is "a", symbol 1 is "b". The label is 1 if "a" is directly before "b" at least once in
    the row, as in half of the rows, and 0 if not.
    """
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.arange(SYMBOLS * COPIES) % SYMBOLS
    x = symbols[torch.rand(6 * rows, len(symbols), generator=generator).argsort(1)]
    has_pair = ((x[:, :-1] == 0) & (x[:, 1:] == 1)).any(1)
    x = torch.cat([x[has_pair][: rows // 2], x[~has_pair][: rows - rows // 2]])
    order = torch.randperm(rows, generator=generator)
    return Split(x[order], (torch.arange(rows) < rows // 2).long()[order])


def parts_of_a_block(
    scale: str,
    seeds: int | None = None,
    tasks: Iterable[str] = tuple(EPOCHS),
    *,
    epochs: int | None = None,
    runs_dir=None,
) -> pd.DataFrame:
    """Return the test accuracy of `OneBlockModel` without each of PARTS, one row per run.

    Columns: task, scale, epochs, chance (the accuracy of guessing), without (one of PARTS),
    test_accuracy, seed. Accuracies are fractions. tasks: keys of EPOCHS. seeds: number of seeds;
    None means SEEDS of the scale. epochs: None means EPOCHS of the scale. Missing runs are trained;
    the other runs are read from the cache.
    """
    seeds = SEEDS.get(scale, 8) if seeds is None else seeds
    frames = []
    for task in tasks:
        n_epochs = EPOCHS[task].get(scale, 15) if epochs is None else epochs
        measure_seed = partial(_part_runs, scale, task, n_epochs)
        frames.append(_measured_rows(f"{task}-{scale}-{n_epochs}", measure_seed, seeds, runs_dir))
    return pd.concat(frames, ignore_index=True)


def _part_runs(scale: str, task: str, epochs: int, seed: int) -> list[dict]:
    n, rows = ROWS.get(scale, 4000), []
    if task == "digits":
        data, make_stem = load_task("digits", scale, seed), partial(nn.Linear, 1)
        classes, test = data.n_classes, data.test
        train = Split(data.train.inputs[:n], data.train.labels[:n])
    else:
        classes, make_stem = 2, partial(nn.Embedding, SYMBOLS)
        train, test = neighbours(n, 2 * seed), neighbours(400, 2 * seed + 1)
    facts = dict(task=task, scale=scale, epochs=epochs, chance=1 / classes)
    for part in PARTS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = OneBlockModel(part, make_stem(D_MODEL), classes)
            optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
            list(fit(model, train, optimizer, epochs=epochs, batch_size=32))
        rows.append(dict(**facts, without=part, test_accuracy=accuracy(model, test)))
    return rows
