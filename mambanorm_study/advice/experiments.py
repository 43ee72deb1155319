"""Small experiments that test the advice of the guide *Normalization Techniques*.

Each experiment takes seconds on one CPU thread. `measure(name)` returns the rows of an experiment.
The columns are listed below as settings → results. Each row also has `losses` (one loss per
training step), seed and scale. A run depends only on its scale, settings and seed.

    batch_size  ConvNet on images of digits with BN or GN, batches of 2 … 64
                norm, batch → accuracy (%)
    dense       DenseNet instead of ConvNet: linear layers have no positions to average over
                norm, batch → accuracy (%)
    inference   trained ConvNets with BN or GN, tested in train and in eval mode, in batches of
                1 … 64, with the test rows mixed or sorted by label
                norm, mode, batch, rows → accuracy (%)
    rates       ConvNet without a norm, with BN or with GN, at several learning rates
                norm, lr → accuracy (%), reached (steps until the validation accuracy is 80 %),
                limit (number of training steps)
    depth       Transformer on the pixel rows of digits; place is pre-norm or post-norm, depth is
                the number of layers
                place, norm, depth → accuracy (%)
    counting    LSTM that counts pulses, without a norm, with LN or with BN, in eval and train mode
                norm, lengths, mode → error (RMSE in pulses)
    style       images of many contrasts → images of one contrast, with IN, BN or no norm
                norm → error and error_beyond (RMSE at contrasts in and above those of training),
                survives (how well the style can be read after the first norm, as an R²)

mistakes.py compares some of the rows in pairs. All rows are stored in `<run store>/.advice/`
(runs/measurements.py), and are measured again when this file or blocks.py changes.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import pandas as pd
import torch
from sklearn.linear_model import Ridge
from torch import Tensor, nn

from mambanorm import loop
from mambanorm.inside import preserve_state
from mambanorm_study.advice.blocks import ConvNet, DenseNet, SequenceNet, StyleNet
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.models.transformer import TransformerClassifier
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import load_task

SEEDS = {"smoke": 1, "quick": 3, "evening": 3, "lab": 8, "paper": 8}
BATCHES = (2, 4, 8, 16, 32, 64)
LENGTHS = {"one": (16,), "four": (4, 8, 16, 32)}

# Validation accuracy in per cent. `rates` counts the steps until a run reaches this accuracy.
TARGET_ACCURACY = 80.0

# A pair: inputs, and labels or targets. Both have one row per example.
Data = tuple[Tensor, Tensor]
# One dict per row of the data frame that `measure` returns.
Rows = Iterable[dict]


def _number_of_steps(scale: str, quick_steps: int) -> int:
    """Return the number of training steps at a scale.

    It is 4 at scale smoke, `quick_steps` at scales quick and evening, and 4 · `quick_steps` at
    larger scales.
    """
    return {"smoke": 4, "quick": quick_steps, "evening": quick_steps}.get(scale, 4 * quick_steps)


# ------------------------------------------------------------------------------------ training


@lru_cache(maxsize=32)
def digits(scale: str, seed: int) -> dict[str, Data]:
    """Return the digits as a map from "train", "val" and "test" to the split with this name.

    A split is a pair: images (n, 1, 8, 8) in [−1, 1], and their labels (n,). The seed decides which
    images are in which split.
    """
    data = load_task("digits_images", scale, seed)
    return {
        name: (split.inputs.permute(0, 3, 1, 2).contiguous(), split.labels)
        for name, split in (("train", data.train), ("val", data.val), ("test", data.test))
    }


def digit_batches(scale: str, batch: int, steps: int, seed: int) -> Iterable[Data]:
    """Yield `steps` pairs: images and labels of `batch` training rows of digits.

    The training rows are shuffled again in each epoch.
    """
    images, labels = digits(scale, seed)["train"]
    for rows in loop.batch_order(seed, len(labels), batch, steps):
        yield images[rows], labels[rows]


def fit(
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[Data],
    *,
    lr: float,
    steps: int,
    optimizer: Callable = torch.optim.Adam,
    callbacks: Sequence[Callable[[int], None]] = (),
) -> list[float]:
    """Train the model, one step per batch, and return the list of losses, one per step.

    The learning rate falls linearly from `lr` to 0 over `steps` steps, so that the running
    statistics of a norm fit the final weights. Training stops at a loss or gradient that is not
    finite.

    loss(outputs, targets): returns a scalar. callbacks: functions that are called after each step
    with the number of the step.
    """
    curve: list[dict] = []
    loop.fit(
        model,
        optimizer(model.parameters(), lr),
        batches,
        lambda model, batch, step: [loss(model(batch[0]), batch[1])],
        lr_of=lambda step: lr * (1 - (step - 1) / steps),
        curve=curve,
        callbacks=callbacks,
    )
    return [row["train_loss"] for row in curve]


@torch.no_grad()
def accuracy(
    model: nn.Module, x: Tensor, labels: Tensor, batch: int | None = None, mode: str = "eval"
) -> float:
    """Return the accuracy of the model on the inputs x, in per cent.

    batch: rows per test batch; None means one batch of all rows. mode: the mode of the model during
    the test, "train" or "eval". An output that is not finite counts as wrong. Afterwards the model
    has the mode and the running statistics that it had before.
    """
    with preserve_state(model):
        model.train(mode == "train")
        logits = torch.cat([model(rows) for rows in x.split(batch or len(x))])
    right = (logits.argmax(-1) == labels) & logits.isfinite().all(-1)
    return 100 * right.float().mean().item()


# -------------------------------------------------------------------------------------- images


def _train_at_batch_size(
    make_model: Callable[..., nn.Module], norm: str, batch: int, scale: str, seed: int
) -> tuple[nn.Module, list[float]]:
    """Train a model on digits. Return the model and the losses, one per training step.

    batch: the batch size. The number of steps is chosen so that training reads the same number of
    rows at every batch size. The learning rate of Adam grows with the square root of the batch
    size. make_model: a function that takes the argument `norm` and returns the model.
    """
    model, steps = make_model(norm=norm), max(_number_of_steps(scale, 48) * 32 // batch, 2)
    batches, lr = digit_batches(scale, batch, steps, seed), 5e-3 * math.sqrt(batch / 32)
    return model, fit(model, nn.functional.cross_entropy, batches, lr=lr, steps=steps)


def batch_size(
    scale: str, seed: int, *, norm: str, batch: int, make_model: Callable[..., nn.Module] = ConvNet
) -> Rows:
    """Yield one row: the test accuracy (%) of a model trained with batches of `batch` rows."""
    model, losses = _train_at_batch_size(make_model, norm, batch, scale, seed)
    yield dict(accuracy=accuracy(model, *digits(scale, seed)["test"]), losses=losses)


def inference(scale: str, seed: int, *, norm: str) -> Rows:
    """Yield the test accuracies of one trained model: one row per order, batch size and mode.

    Columns: rows (the order of the test rows, "mixed" or "sorted" by label), batch (rows per test
    batch), mode (the mode of the model during the test: "eval", which is correct, or "train", which
    is the mistake), accuracy (%) and losses (of the training).
    """
    x, labels = digits(scale, seed)["test"]
    orders = {"mixed": torch.arange(len(labels)), "sorted": labels.argsort(stable=True)}
    model, losses = _train_at_batch_size(ConvNet, norm, 32, scale, seed)
    for order, batch, mode in itertools.product(orders, (1, *BATCHES), ("train", "eval")):
        score = accuracy(model, x[orders[order]], labels[orders[order]], batch, mode)
        yield dict(mode=mode, batch=batch, rows=order, accuracy=score, losses=losses)


def rates(scale: str, seed: int, *, norm: str, lr: float) -> Rows:
    """Yield one row: the test accuracy (%) of a ConvNet that SGD trained at a learning rate.

    The validation accuracy is computed at every fourth step. Further columns: reached (the first
    step at which the validation accuracy is at least TARGET_ACCURACY; NaN if there is no such step)
    and limit (the number of training steps).
    """
    data, steps = digits(scale, seed), _number_of_steps(scale, 80)
    images, labels = data["val"]
    model, steps_reached = ConvNet(norm=norm), []

    def validate(step: int) -> None:
        if step % 4 == 0 and accuracy(model, images[:200], labels[:200]) >= TARGET_ACCURACY:
            steps_reached.append(step)

    losses = fit(
        model,
        nn.functional.cross_entropy,
        digit_batches(scale, 32, steps, seed),
        lr=lr,
        steps=steps,
        optimizer=partial(torch.optim.SGD, momentum=0.9),
        callbacks=[validate],
    )
    score, reached = accuracy(model, *data["test"]), min(steps_reached, default=math.nan)
    yield dict(accuracy=score, reached=reached, limit=steps, losses=losses)


# ----------------------------------------------------------------------------------- sequences


def depth(scale: str, seed: int, *, place: str, norm: str, depth: int) -> Rows:
    """Yield one row: the test accuracy (%) of a Transformer with pre-norm or post-norm.

    place: "pre" (pre-norm) or "post" (post-norm). depth: the number of layers. An image is a
    sequence of eight rows of eight pixels. The learning rate of Adam has no warm-up, as in the
    guide's examples.
    """
    position = dict(norm_position="after")
    if place == "pre":
        position = dict(norm_position="before", final_norm=norm)
    sizes = dict(in_features=8, d_model=32, n_layers=depth, expand=4)
    transformer = TransformerClassifier(10, arm=f"{norm}>MHA>{norm}", **sizes, **position)
    model = nn.Sequential(nn.Flatten(1, 2), transformer)  # (n, 1, 8, 8) → (n, 8, 8) → (n, 10)
    steps = _number_of_steps(scale, 40)
    batches = digit_batches(scale, 32, steps, seed)
    losses = fit(model, nn.functional.cross_entropy, batches, lr=3e-3, steps=steps)
    yield dict(accuracy=accuracy(model, *digits(scale, seed)["test"]), losses=losses)


def pulses(length: int, rows: int, generator: torch.Generator) -> Data:
    """Return random sequences (rows, length, 1) of zeros and ones, and their targets (rows, 1).

    The target is the number of ones in the sequence, divided by eight.
    """
    share = 0.1 + 0.6 * torch.rand(rows, 1, generator=generator)
    x = (torch.rand(rows, length, generator=generator) < share).float()
    return x[..., None], x.sum(1, keepdim=True) / 8


def counting(scale: str, seed: int, *, lengths: str, norm: str) -> Rows:
    """Yield two rows: the error of a trained network that counts pulses, in eval and train mode.

    Columns: mode (of the network during the test, "eval" or "train"), error (RMSE in pulses) and
    losses (of the training). lengths: a key of LENGTHS, "one" or "four" sequence lengths in
    training and test. All sequences of a batch have the same length.
    """
    choice, steps = LENGTHS[lengths], _number_of_steps(scale, 200)
    model = SequenceNet(1, 1, norm=norm)
    generator = torch.Generator().manual_seed(seed)
    picks = [int(torch.randint(len(choice), (), generator=generator)) for _ in range(steps)]
    batches = (pulses(choice[pick], 32, generator) for pick in picks)
    losses = fit(model, nn.functional.mse_loss, batches, lr=1e-2, steps=steps)
    test = [pulses(n, 200, torch.Generator().manual_seed(10_000 + n)) for n in choice]
    for mode in ("eval", "train"):
        model.train(mode == "train")
        with torch.no_grad():
            squares = [nn.functional.mse_loss(model(x), count).item() for x, count in test]
        yield dict(mode=mode, error=8 * math.sqrt(sum(squares) / len(squares)), losses=losses)


# --------------------------------------------------------------------------------------- style


def styled_digits(x: Tensor, generator: torch.Generator, low: float, high: float) -> Data:
    """Return the images x in random styles, (n, 1, 8, 8), and the styles, (n, 2).

    A style is two numbers: the logarithm of the contrast, and the brightness. An image x in a style
    is contrast · x + brightness. The contrast is in [low, high], and its logarithm is uniform. The
    brightness is uniform in [−1, 1].
    """
    n = len(x)
    contrast = math.log(low) + math.log(high / low) * torch.rand(n, generator=generator)
    brightness = 2 * torch.rand(n, generator=generator) - 1
    image = contrast.exp().view(-1, 1, 1, 1) * x + brightness.view(-1, 1, 1, 1)
    return image, torch.stack([contrast, brightness], 1)


def style(scale: str, seed: int, *, norm: str) -> Rows:
    """Yield one row: how well a trained model turns images in random styles into the plain images.

    Columns: losses (of the training), survives (see `style_survives`), error (RMSE for contrasts in
    the range of training) and error_beyond (RMSE for contrasts above this range).
    """
    images, steps = digits(scale, seed)["test"][0], _number_of_steps(scale, 150)
    model, generator = StyleNet(norm=norm), torch.Generator().manual_seed(seed)
    batches = digit_batches(scale, 32, steps, seed)
    pairs = ((styled_digits(x, generator, 0.5, 2)[0], x) for x, _ in batches)
    row = dict(losses=fit(model, nn.functional.mse_loss, pairs, lr=5e-3, steps=steps))
    row["survives"] = style_survives(model.eval(), images, seed)
    for column, contrasts in dict(error=(0.5, 2), error_beyond=(4, 8)).items():
        test = styled_digits(images, torch.Generator().manual_seed(10_000), *contrasts)[0]
        with torch.no_grad():
            row[column] = math.sqrt(nn.functional.mse_loss(model(test), images).item())
    yield row


@torch.no_grad()
def style_survives(model: nn.Module, x: Tensor, seed: int) -> float:
    """Return how well the style of an image can be read after the model's first norm, as an R².

    A linear model predicts the style from the mean and the logarithm of the variance of each
    channel after the first norm. The linear model is fitted to the first half of the images x, and
    the R² is computed on the second half.
    """
    images, styles = styled_digits(x, torch.Generator().manual_seed(seed), 0.5, 2)
    convolution, norm, _ = model.eval()[0]
    y = norm(convolution(images))
    pooled = torch.cat([y.mean((2, 3)), y.var((2, 3)).add(1e-12).log()], 1).double().numpy()
    half = len(y) // 2
    # IN makes means and variances constant; without a penalty, Ridge would fit rounding errors
    return Ridge(alpha=1e-3).fit(pooled[:half], styles[:half]).score(pooled[half:], styles[half:])


# -------------------------------------------------------------------------------------- measure


def _grid(**values: Iterable) -> list[dict]:
    """Return all combinations of the values of these names, one dict (name → value) for each.

    The value of the last name changes fastest.
    """
    return [dict(zip(values, combo, strict=True)) for combo in itertools.product(*values.values())]


# Name of an experiment → a pair: the function that yields the rows for one setting, and the list of
# all settings.
EXPERIMENTS: dict[str, tuple[Callable[..., Rows], list[dict]]] = {
    "batch_size": (batch_size, _grid(norm=("BN", "GN"), batch=BATCHES)),
    "dense": (partial(batch_size, make_model=DenseNet), _grid(norm=("BN", "GN"), batch=BATCHES)),
    "inference": (inference, _grid(norm=("BN", "GN"))),
    "rates": (rates, _grid(norm=("None", "BN", "GN"), lr=(0.01, 0.03, 0.1, 0.3, 1.0))),
    "depth": (
        depth,
        [
            *_grid(place=("pre", "post"), norm=["LN"], depth=(2, 12, 24)),
            dict(place="pre", norm="RMSN", depth=12),
        ],
    ),
    "counting": (counting, _grid(lengths=LENGTHS, norm=("None", "LN", "BN"))),
    "style": (style, _grid(norm=("IN", "BN", "None"))),
}


def measure(
    name: str, scale: str | None = None, seeds: int | Sequence[int] | None = None, runs_dir=None
) -> pd.DataFrame:
    """Return the rows of an experiment for all settings and seeds, as a DataFrame.

    Stored rows are read, and rows that are not stored are measured. name: a key of EXPERIMENTS.
    scale: None means the default scale. seeds: the number of seeds or a list of seeds; None means
    SEEDS of the scale. runs_dir: the run store. Raises ValueError for an unknown scale.
    """
    run, settings = EXPERIMENTS[name]
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(SEEDS[scale] if seeds is None else seeds, scale)

    def rows(seed: int) -> Rows:
        for setting in settings:
            torch.manual_seed(seed)
            for row in run(scale, seed, **setting):
                yield dict(**setting, **row, scale=scale)

    digest = digest_of(Path(__file__), Path(__file__).with_name("blocks.py"))
    return load_or_measure(".advice", f"{name}-{scale}", rows, seeds, digest, runs_dir)
