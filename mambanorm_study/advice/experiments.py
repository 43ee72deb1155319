"""Small runs that test the advice of the guide (S4): seconds each on one CPU thread.

`measure(name)` returns one row for each run: the columns below, `losses` (one for each step), seed
and scale. A run depends on its seed alone.

    batch_size  ConvNet on digits, BN and GN, batches of 2 … 64
                norm, batch → accuracy (%)
    dense       the same with linear layers, whose statistics have no positions to average over
    inference   ConvNets with BN and GN, tested in train and in eval mode, in batches of 1 … 64,
                with mixed and with sorted rows
                norm, mode, batch, rows → accuracy
    rates       ConvNet without a norm, with BN and with GN, over learning rates
                norm, lr → accuracy, steps to 80 %
    depth       Transformer on the rows of digits, pre-norm and post-norm
                place, norm, depth → accuracy
    counting    LSTM that counts pulses, without a norm, with LN and with BN, in eval and train mode
                norm, lengths, mode → error
    style       images of many contrasts → images of one contrast, IN, BN and no norm
                norm → error, and how much of the style survives

mistakes.py compares pairs of these rows. The rows are stored in `<run store>/.advice/`
(runs/measurements.py), and are measured again after a change of this file or of blocks.py.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn
from torch.nn import functional as F

from mambanorm import loop
from mambanorm.errors import unknown
from mambanorm.inside import preserve_state
from mambanorm_study.advice.blocks import ConvNet, DenseNet, SequenceNet, StyleNet
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.models.transformer import TransformerClassifier
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import load_task

SEEDS = {"smoke": 1, "quick": 3, "evening": 3, "lab": 8, "paper": 8}
BATCHES = (2, 4, 8, 16, 32, 64)
LEARNING_RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
DEPTHS = {
    "smoke": (1, 2),
    "quick": (2, 12, 24),
    "evening": (2, 12, 24),
    "lab": (2, 12, 24),
    "paper": (2, 12, 24),
}
LENGTHS = {"one": (16,), "four": (4, 8, 16, 32)}
SGD = partial(torch.optim.SGD, momentum=0.9)

# Validation accuracy in per cent; `rates` counts the steps until a run reaches it.
REACHED = 80.0

# Inputs and labels (or targets), one row each.
Data = tuple[Tensor, Tensor]


def _steps(scale: str, quick: int) -> int:
    """Return the steps of a run: 4 at smoke, `quick` at quick and evening, else four times as
    many.
    """
    return {"smoke": 4, "quick": quick, "evening": quick}.get(scale, 4 * quick)


# ------------------------------------------------------------------------------------ training


@lru_cache(maxsize=32)
def digits(scale: str, seed: int) -> dict[str, Data]:
    """Return train, val, test → images (n, 1, 8, 8) in [−1, 1] and labels (n,); the seed decides
    the split.
    """
    data = load_task("digits_images", scale, seed)
    splits = {"train": data.train, "val": data.val, "test": data.test}
    return {
        name: (split.inputs.permute(0, 3, 1, 2).contiguous(), split.labels)
        for name, split in splits.items()
    }


def row_batches(data: Data, batch: int, steps: int, seed: int) -> Iterable[Data]:
    """Yield `steps` batches of rows in a new order for each epoch, without an incomplete last
    batch.
    """
    inputs, labels = data
    generator, order = torch.Generator().manual_seed(seed), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(len(labels), generator=generator)
        rows, order = order[:batch], order[batch:]
        yield inputs[rows], labels[rows]


def fit(
    model: nn.Module,
    loss_of: Callable[[nn.Module, Data], Tensor],
    batches: Iterable[Data],
    *,
    lr: float,
    steps: int,
    optimizer: Callable = torch.optim.Adam,
    callbacks: Sequence[Callable[[int], None]] = (),
) -> list[float]:
    """Train the model, one step for each batch, and return the loss of each step; training ends at
    a loss or gradient that is not finite.

    The learning rate falls linearly to 0 over `steps`, so that running statistics fit the weights
    at the end. loss_of(model, batch): a scalar. callbacks: each is called with the step's number.
    """
    curve: list[dict] = []
    loop.fit(
        model,
        optimizer(model.parameters(), lr),
        batches,
        lambda model, batch, step: [loss_of(model, batch)],
        lr_of=lambda step: lr * (1 - (step - 1) / steps),
        curve=curve,
        callbacks=callbacks,
    )
    return [row["train_loss"] for row in curve]


@torch.no_grad()
def accuracy(
    model: nn.Module, x: Tensor, labels: Tensor, batch: int | None = None, mode: str = "eval"
) -> float:
    """Return the accuracy in per cent, computed batch by batch (None = all rows at once); outputs
    that are not finite are wrong. Mode and running statistics of the model stay as they are.
    """
    with preserve_state(model):
        model.train(mode == "train")
        logits = torch.cat([model(rows) for rows in x.split(batch or len(x))])
    right = (logits.argmax(-1) == labels) & logits.isfinite().all(-1)
    return 100 * right.float().mean().item()


def classify(model: nn.Module, batch: Data) -> Tensor:
    """Return the cross-entropy of a batch."""
    return F.cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: Data) -> Tensor:
    """Return the mean squared error of a batch."""
    return F.mse_loss(model(batch[0]), batch[1])


# -------------------------------------------------------------------------------------- images


def _trained(
    make: Callable[..., nn.Module], norm: str, batch: int, scale: str, seed: int
) -> tuple[nn.Module, list[float]]:
    """Return a net trained on digits, and its losses.

    The number of rows is the same for every batch size, and the learning rate of Adam grows with
    the root of the batch size.
    """
    torch.manual_seed(seed)
    model, steps = make(norm=norm), max(_steps(scale, 48) * 32 // batch, 2)
    batches = row_batches(digits(scale, seed)["train"], batch, steps, seed)
    return model, fit(model, classify, batches, lr=5e-3 * math.sqrt(batch / 32), steps=steps)


def batch_size(scale: str, seed: int, make: Callable[..., nn.Module] = ConvNet) -> list[dict]:
    """Return the rows of BN and GN at each batch size."""
    rows = []
    for norm, batch in itertools.product(("BN", "GN"), BATCHES):
        model, losses = _trained(make, norm, batch, scale, seed)
        score = accuracy(model, *digits(scale, seed)["test"])
        rows.append(dict(norm=norm, batch=batch, accuracy=score, losses=losses))
    return rows


def inference(scale: str, seed: int) -> list[dict]:
    """Return the rows of trained nets that are tested in eval mode, as they should be, and in train
    mode; `rows` says whether the test rows are mixed or sorted by label.
    """
    x, labels = digits(scale, seed)["test"]
    orders = {"mixed": torch.arange(len(labels)), "sorted": labels.argsort(stable=True)}
    settings = list(itertools.product(orders, (1, *BATCHES), ("train", "eval")))
    rows = []
    for norm in ("BN", "GN"):
        model, losses = _trained(ConvNet, norm, 32, scale, seed)
        for order, batch, mode in settings:
            score = accuracy(model, x[orders[order]], labels[orders[order]], batch, mode)
            row = dict(norm=norm, mode=mode, batch=batch, rows=order, accuracy=score)
            rows.append(dict(**row, losses=losses))
    return rows


def rates(scale: str, seed: int) -> list[dict]:
    """Return the rows of SGD at each learning rate. reached: the first step, of every fourth, at
    which the validation accuracy is at least REACHED; NaN if there is none.
    """
    data, steps = digits(scale, seed), _steps(scale, 80)
    validation = data["val"][0][:200], data["val"][1][:200]
    rows = []
    for norm, lr in itertools.product(("None", "BN", "GN"), LEARNING_RATES):
        torch.manual_seed(seed)
        model, reached = ConvNet(norm=norm), []

        def note(step: int, model: nn.Module = model, reached: list = reached) -> None:
            if step % 4 == 0 and accuracy(model, *validation) >= REACHED:
                reached.append(step)

        batches = row_batches(data["train"], 32, steps, seed)
        how = dict(lr=lr, steps=steps, optimizer=SGD, callbacks=[note])
        losses = fit(model, classify, batches, **how)
        score = accuracy(model, *data["test"])
        first = reached[0] if reached else math.nan
        row = dict(norm=norm, lr=lr, accuracy=score, reached=first, limit=steps)
        rows.append(dict(**row, losses=losses))
    return rows


# ----------------------------------------------------------------------------------- sequences


def depth(scale: str, seed: int) -> list[dict]:
    """Return the rows of Transformers with pre-norm and post-norm; Adam without warm-up, as the
    guide's examples have none.
    """
    splits = digits(scale, seed)
    # an image as a sequence of eight steps of eight pixels, (n, 8, 8)
    data = {name: (x[:, 0], labels) for name, (x, labels) in splits.items()}
    rows, steps = [], _steps(scale, 40)
    arms = [(place, "LN", n) for place in ("pre", "post") for n in DEPTHS[scale]]
    for place, norm, n in [*arms, ("pre", "RMSN", DEPTHS[scale][1])]:
        torch.manual_seed(seed)
        how = dict(norm_position="after")
        if place == "pre":
            how = dict(norm_position="before", final_norm=norm)
        sizes = dict(in_features=8, d_model=32, n_layers=n, expand=4)
        model = TransformerClassifier(10, arm=f"{norm}>MHA>{norm}", **sizes, **how)
        batches = row_batches(data["train"], 32, steps, seed)
        losses = fit(model, classify, batches, lr=3e-3, steps=steps)
        score = accuracy(model, *data["test"])
        rows.append(dict(place=place, norm=norm, depth=n, accuracy=score, losses=losses))
    return rows


def pulses(length: int, rows: int, generator: torch.Generator) -> Data:
    """Return sequences (rows, length, 1) of zeros and ones, and the number of ones divided by
    eight (rows, 1).
    """
    share = 0.1 + 0.6 * torch.rand(rows, 1, generator=generator)
    x = (torch.rand(rows, length, generator=generator) < share).float()
    return x[..., None], x.sum(1, keepdim=True) / 8


def counting(scale: str, seed: int) -> list[dict]:
    """Return the rows of counting, with sequences of one length and of four lengths, each batch of
    one length; error: RMSE in pulses.
    """
    rows, steps = [], _steps(scale, 200)
    for (lengths, choice), norm in itertools.product(LENGTHS.items(), ("None", "LN", "BN")):
        torch.manual_seed(seed)
        model = SequenceNet(1, 1, d=24, n_layers=1, norm=norm)
        generator = torch.Generator().manual_seed(seed)
        picks = [int(torch.randint(len(choice), (), generator=generator)) for _ in range(steps)]
        batches = (pulses(choice[pick], 32, generator) for pick in picks)
        losses = fit(model, regress, batches, lr=1e-2, steps=steps)
        test = [pulses(n, 200, torch.Generator().manual_seed(10_000 + n)) for n in choice]
        for mode in ("eval", "train"):
            with torch.no_grad():
                model.train(mode == "train")
                error = 8 * math.sqrt(np.mean([regress(model, batch).item() for batch in test]))
            rows.append(dict(norm=norm, lengths=lengths, mode=mode, error=error, losses=losses))
    return rows


# --------------------------------------------------------------------------------------- style


def styled_digits(x: Tensor, generator: torch.Generator, low: float, high: float) -> Data:
    """Return each image in its own style, (n, 1, 8, 8), and the styles (n, 2): log contrast and
    brightness.

    The contrast lies in [low, high] (its logarithm is uniform), the brightness in ±1.
    """
    n = len(x)
    contrast = math.log(low) + math.log(high / low) * torch.rand(n, generator=generator)
    brightness = 2 * torch.rand(n, generator=generator) - 1
    image = contrast.exp().view(-1, 1, 1, 1) * x + brightness.view(-1, 1, 1, 1)
    return image, torch.stack([contrast, brightness], 1)


def style(scale: str, seed: int) -> list[dict]:
    """Return the rows of nets that paint a digit of any style in one style.

    error: RMSE on styles like those of training; error_beyond: on larger contrasts. survives: the
    share of the variance of the styles (R²) that a linear model reads from the means and variances
    of the first block's normalized channels.
    """
    data, rows, steps = digits(scale, seed), [], _steps(scale, 150)
    images = data["test"][0]
    for norm in ("IN", "BN", "None"):
        torch.manual_seed(seed)
        model, generator = StyleNet(norm=norm), torch.Generator().manual_seed(seed)
        batches = row_batches(data["train"], 32, steps, seed)
        pairs = ((styled_digits(x, generator, 0.5, 2)[0], x) for x, _ in batches)
        losses = fit(model, regress, pairs, lr=5e-3, steps=steps)
        survives = _style_survives(model, images, seed)
        model.eval()
        errors = [_style_error(model, images, *contrasts) for contrasts in ((0.5, 2), (4, 8))]
        row = dict(norm=norm, survives=survives, losses=losses)
        rows.append(dict(**row, error=errors[0], error_beyond=errors[1]))
    return rows


@torch.no_grad()
def _style_error(model: nn.Module, images: Tensor, low: float, high: float) -> float:
    """Return the RMSE on images with contrasts in [low, high]."""
    styled, _ = styled_digits(images, torch.Generator().manual_seed(10_000), low, high)
    return math.sqrt(regress(model, (styled, images)).item())


@torch.no_grad()
def _style_survives(model: nn.Module, x: Tensor, seed: int) -> float:
    images, styles = styled_digits(x, torch.Generator().manual_seed(seed), 0.5, 2)
    convolution, norm, _ = model.eval()[0]
    y = norm(convolution(images))
    pooled = torch.cat([y.mean((2, 3)), y.var((2, 3)).add(1e-12).log()], 1).double().numpy()
    half = len(y) // 2
    # without ridge, the constant channels of IN would be read from their rounding errors
    return Ridge(alpha=1e-3).fit(pooled[:half], styles[:half]).score(pooled[half:], styles[half:])


# -------------------------------------------------------------------------------------- measure

EXPERIMENTS = {
    "batch_size": batch_size,
    "dense": partial(batch_size, make=DenseNet),
    "inference": inference,
    "rates": rates,
    "depth": depth,
    "counting": counting,
    "style": style,
}


def measure(
    name: str, scale: str | None = None, seeds: int | Sequence[int] | None = None, runs_dir=None
):
    """Return the rows of an experiment, one for each run; stored rows are not measured again.

    scale, seeds: None = the environment's scale, and SEEDS of the scale. ValueError for an unknown
    experiment or scale.
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(SEEDS[scale] if seeds is None else seeds, scale)

    def rows(seed: int) -> list[dict]:
        return [dict(**row, scale=scale) for row in EXPERIMENTS[name](scale, seed)]

    return load_or_measure(".advice", f"{name}-{scale}", rows, seeds, _digest(), runs_dir)


@lru_cache(maxsize=1)
def _digest() -> str:
    """Return the digest of the code that measures."""
    return digest_of(Path(__file__), Path(__file__).with_name("blocks.py"))
