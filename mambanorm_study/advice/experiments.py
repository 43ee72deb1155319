"""Small real runs behind the guide's advice: each takes seconds on one CPU thread and depends on
its seed alone.

`measure(name)` gives one row a run: the columns of the experiment, `losses` (one a step), seed and
scale.

    batch_size    ConvNet on digits, BN and GN at batches of 2 … 64         norm, batch → accuracy
                  (%)
    dense         the same with a net of linear layers, whose statistics have no positions to
                  average over (BN, GN)
    inference     the ConvNets with BN and GN, tested in train and in eval mode, in batches of 1 …
                                                                            64, and sorted norm,
                                                                            mode, batch, rows →
                                                                            accuracy
    rates         ConvNet, None, BN and GN over learning rates   norm, lr → accuracy, steps to 80 %
    depth         Transformer on the rows of digits, pre- and post-norm     place, norm, depth →
                  accuracy
    counting      LSTM that counts pulses, None, LN, BN, tested in eval and in train mode    norm,
                  lengths → error
    style         images of many contrasts → one contrast, IN, BN, None     norm → error, and what
                  of the style survives

EXPERIMENTS holds them by name. A demo of a mistake is a pair of their rows (mistakes.py). A frame
of rows is kept in `<run store>/.advice/` (runs/measurements.py): changed code measures anew.
"""

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
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
DEPTHS = {"smoke": (1, 2)} | dict.fromkeys(("quick", "evening", "lab", "paper"), (2, 12, 24))
LENGTHS = (4, 8, 16, 32)
SGD = partial(torch.optim.SGD, momentum=0.9)
REACHED = 80.0
"""Per cent of the validation rows: how soon an arm of `rates` gets there is its speed."""


def _steps(scale: str, quick: int) -> int:
    """The steps of a run: a few at smoke, four times as many at lab and paper."""
    return {"smoke": 4, "quick": quick, "evening": quick}.get(scale, 4 * quick)


# --------------------------------------------------------------------------------------------------
# small trainings: one thread, everything by seed


@lru_cache(maxsize=32)
def digits(scale: str, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """train, val, test → images (n, 1, 8, 8) in [−1, 1] and labels (n,); the seed decides the
    split."""
    data = load_task("digits_images", scale, seed)
    splits = {"train": data.train, "val": data.val, "test": data.test}
    return {
        name: (split.inputs.permute(0, 3, 1, 2).contiguous(), split.labels)
        for name, split in splits.items()
    }


def shuffled(rows: int, batch: int, steps: int, seed: int) -> Iterable[Tensor]:
    """`steps` batches of row numbers, epoch after epoch in a new order; a last batch that is not
    whole is left out."""
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
    optimizer: Callable = torch.optim.Adam,
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Trains the model, one step a batch, and returns the loss of each step. A loss or gradient
    that is not finite ends it.

    The rate falls linearly to 0 over `steps`, so that running statistics catch up with the weights
    at the end. loss_of(model, batch) is a scalar; watch(step) is called after each step.
    """
    curve: list[dict] = []
    loop.fit(
        model,
        optimizer(model.parameters(), lr),
        batches,
        lambda model, batch, step: [loss_of(model, batch)],
        lr_of=lambda step: lr * (1 - (step - 1) / steps),
        curve=curve,
        callbacks=[] if watch is None else [watch],
    )
    return [row["train_loss"] for row in curve]


@torch.no_grad()
def accuracy(
    model: nn.Module, x: Tensor, labels: Tensor, batch: int | None = None, mode: str = "eval"
) -> float:
    """Per cent of the rows that the model gives their label, batch by batch (None = all at once);
    what is not finite is wrong. Mode and running statistics stay as they are."""
    with preserve_state(model):
        model.train(mode == "train")
        scores = torch.cat([model(rows) for rows in x.split(batch or len(x))])
    right = (scores.argmax(-1) == labels) & scores.isfinite().all(-1)
    return 100 * right.float().mean().item()


def classify(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def regress(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def _batches(
    data: tuple[Tensor, Tensor], batch: int, steps: int, seed: int
) -> Iterable[tuple[Tensor, Tensor]]:
    return ((data[0][rows], data[1][rows]) for rows in shuffled(len(data[1]), batch, steps, seed))


# --------------------------------------------------------------------------------------------------
# images


def _trained(make: Callable[..., nn.Module], norm: str, batch: int, scale: str, seed: int):
    """A net of digits that has seen the same number of rows whatever its batch, and its losses;
    Adam's rate goes with the batch's root."""
    torch.manual_seed(seed)
    model, steps = make(norm=norm), max(_steps(scale, 48) * 32 // batch, 2)
    batches = _batches(digits(scale, seed)["train"], batch, steps, seed)
    return model, fit(model, classify, batches, lr=5e-3 * math.sqrt(batch / 32), steps=steps)


def batch_size(scale: str, seed: int, make: Callable[..., nn.Module] = ConvNet) -> list[dict]:
    rows = []
    for norm in ("BN", "GN"):
        for batch in BATCHES:
            model, losses = _trained(make, norm, batch, scale, seed)
            score = accuracy(model, *digits(scale, seed)["test"])
            rows.append(dict(norm=norm, batch=batch, accuracy=score, losses=losses))
    return rows


def inference(scale: str, seed: int) -> list[dict]:
    """The same trained models, tested as they should be and with eval() forgotten; sorted: by the
    label."""
    rows, (x, labels) = [], digits(scale, seed)["test"]
    for norm in ("BN", "GN"):
        model, losses = _trained(ConvNet, norm, 32, scale, seed)
        for order, where in (
            ("mixed", torch.arange(len(labels))),
            ("sorted", labels.argsort(stable=True)),
        ):
            for batch in (1, *BATCHES):
                for mode in ("train", "eval"):
                    score = accuracy(model, x[where], labels[where], batch, mode)
                    rows.append(
                        dict(
                            norm=norm,
                            mode=mode,
                            batch=batch,
                            rows=order,
                            accuracy=score,
                            losses=losses,
                        )
                    )
    return rows


def rates(scale: str, seed: int) -> list[dict]:
    """SGD at each learning rate: validation accuracy every fourth step, and the step at which it
    reaches REACHED."""
    data, rows, steps = digits(scale, seed), [], _steps(scale, 80)
    for norm in ("None", "BN", "GN"):
        for lr in RATES:
            torch.manual_seed(seed)
            model, seen = ConvNet(norm=norm), []

            def look(step: int, model: nn.Module = model, seen: list = seen) -> None:
                if step % 4 == 0:
                    seen.append((step, accuracy(model, data["val"][0][:200], data["val"][1][:200])))

            batches = _batches(data["train"], 32, steps, seed)
            losses = fit(model, classify, batches, lr=lr, steps=steps, optimizer=SGD, watch=look)
            reached = next((step for step, score in seen if score >= REACHED), math.nan)
            score = accuracy(model, *data["test"])
            rows.append(
                dict(norm=norm, lr=lr, accuracy=score, reached=reached, limit=steps, losses=losses)
            )
    return rows


# --------------------------------------------------------------------------------------------------
# sequences


def _rows_as_steps(scale: str, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The digits as eight steps of eight pixels, (n, 8, 8)."""
    return {name: (x[:, 0], labels) for name, (x, labels) in digits(scale, seed).items()}


def depth(scale: str, seed: int) -> list[dict]:
    """Adam without warm-up, as the guide's own examples have none."""
    data, rows, steps = _rows_as_steps(scale, seed), [], _steps(scale, 40)
    arms = [(place, "LN", n) for place in ("pre", "post") for n in DEPTHS[scale]]
    for place, norm, n in [*arms, ("pre", "RMSN", DEPTHS[scale][1])]:
        torch.manual_seed(seed)
        where = (
            dict(norm_position="before", final_norm=norm)
            if place == "pre"
            else dict(norm_position="after")
        )
        sizes = dict(in_features=8, d_model=32, n_layers=n, expand=4)
        model = TransformerClassifier(10, arm=f"{norm}>MHA>{norm}", **sizes, **where)
        losses = fit(
            model, classify, _batches(data["train"], 32, steps, seed), lr=3e-3, steps=steps
        )
        score = accuracy(model, *data["test"])
        rows.append(dict(place=place, norm=norm, depth=n, accuracy=score, losses=losses))
    return rows


def pulses(length: int, rows: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (rows, length, 1) of zeros and ones, and how many ones there are, in eights (rows,
    1)."""
    rate = 0.1 + 0.6 * torch.rand(rows, 1, generator=draw)
    x = (torch.rand(rows, length, generator=draw) < rate).float()
    return x[..., None], x.sum(1, keepdim=True) / 8


def counting(scale: str, seed: int) -> list[dict]:
    """Counting, with sequences of one length, and of four lengths, each batch of one; error: RMSE
    in pulses."""
    rows = []
    for lengths in ("one", "four"):
        for norm in ("None", "LN", "BN"):
            torch.manual_seed(seed)
            model, draw = (
                SequenceNet(1, 1, d=24, n_layers=1, norm=norm),
                torch.Generator().manual_seed(seed),
            )
            choice = (16,) if lengths == "one" else LENGTHS
            order = [
                choice[int(torch.randint(len(choice), (), generator=draw))]
                for _ in range(_steps(scale, 200))
            ]
            losses = fit(
                model, regress, (pulses(n, 32, draw) for n in order), lr=1e-2, steps=len(order)
            )
            test = [pulses(n, 200, torch.Generator().manual_seed(10_000 + n)) for n in choice]
            for mode in ("eval", "train"):
                with torch.no_grad():
                    model.train(mode == "train")
                    error = 8 * math.sqrt(np.mean([regress(model, batch).item() for batch in test]))
                rows.append(dict(norm=norm, lengths=lengths, mode=mode, error=error, losses=losses))
    return rows


# --------------------------------------------------------------------------------------------------
# style


def styled_digits(
    x: Tensor, draw: torch.Generator, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Each image in a style of its own: a contrast in [low, high] (its logarithm uniform), a
    brightness in ±1.

    Returns the images (n, 1, 8, 8) and the styles (n, 2): log contrast and brightness.
    """
    n = len(x)
    contrast = math.log(low) + math.log(high / low) * torch.rand(n, generator=draw)
    brightness = 2 * torch.rand(n, generator=draw) - 1
    image = contrast.exp().view(-1, 1, 1, 1) * x + brightness.view(-1, 1, 1, 1)
    return image, torch.stack([contrast, brightness], 1)


def style(scale: str, seed: int) -> list[dict]:
    """Whatever the style of an image, paint its digit in one style. Tested on styles like those of
    training, and on contrasts beyond them. survives: the share of the styles' variance (R²) that a
    linear model reads off the means and spreads of the first block's normalized channels."""
    data, rows, steps = digits(scale, seed), [], _steps(scale, 150)
    for norm in ("IN", "BN", "None"):
        torch.manual_seed(seed)
        model, draw = StyleNet(norm=norm), torch.Generator().manual_seed(seed)
        batches = (
            data["train"][0][rows_] for rows_ in shuffled(len(data["train"][1]), 32, steps, seed)
        )
        pairs = ((styled_digits(x, draw, 0.5, 2)[0], x) for x in batches)
        losses = fit(model, regress, pairs, lr=5e-3, steps=steps)
        facts = dict(
            norm=norm, survives=_style_survives(model, data["test"][0], seed), losses=losses
        )
        for name, low, high in (("error", 0.5, 2), ("error_beyond", 4, 8)):
            x = data["test"][0]
            given, _ = styled_digits(x, torch.Generator().manual_seed(10_000), low, high)
            with torch.no_grad():
                facts[name] = math.sqrt(regress(model.eval(), (given, x)).item())
        rows.append(facts)
    return rows


@torch.no_grad()
def _style_survives(model: nn.Module, x: Tensor, seed: int) -> float:
    images, styles = styled_digits(x, torch.Generator().manual_seed(seed), 0.5, 2)
    convolution, norm, _ = model.eval()[0]
    y = norm(convolution(images))
    pooled = torch.cat([y.mean((2, 3)), y.var((2, 3)).add(1e-12).log()], 1).double().numpy()
    half = len(y) // 2
    # a pinch of ridge: without it the constant channels of IN would be read by their rounding
    # errors
    return Ridge(alpha=1e-3).fit(pooled[:half], styles[:half]).score(pooled[half:], styles[half:])


# --------------------------------------------------------------------------------------------------

EXPERIMENTS = dict(
    batch_size=batch_size, dense=partial(batch_size, make=DenseNet), inference=inference, rates=rates, depth=depth,
    counting=counting, style=style,
)  # fmt: skip


def measure(
    name: str, scale: str | None = None, seeds: int | Sequence[int] | None = None, runs_dir=None
):
    """The rows of an experiment, one a run; those that the run store holds are not measured again.

    scale, seeds: None = the environment's, and SEEDS of the scale. ValueError for an unknown
    experiment or scale.
    """
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(SEEDS[scale] if seeds is None else seeds, scale)

    def rows(seed: int) -> list[dict]:
        return [row | dict(scale=scale) for row in EXPERIMENTS[name](scale, seed)]

    return load_or_measure(".advice", f"{name}-{scale}", rows, seeds, _digest(), runs_dir)


@lru_cache(maxsize=1)
def _digest() -> str:
    """Of the code that measures."""
    return digest_of(Path(__file__), Path(__file__).with_name("blocks.py"))
