"""Two lessons on why a norm helps: the loss along the gradient, and a net that needs no norm.

**Smoothness.** S4 says that normalization helps because it removes internal covariate shift: the
distribution of a layer's inputs no longer moves while earlier layers learn. Santurkar et al. 2018
(whom S5 cites) say that it helps because it makes the loss smooth. Their experiment, here on a
small VGG: at each training step, take steps of several sizes η along the gradient g and look at the
range of the losses L(θ − η·g) (their Figure 4a). A third net has noise after each batch norm, whose
mean and spread change at every step, so that the distribution shifts again (their Figure 2).

**A start without a norm.** In a residual net without a norm every block adds a branch as large as
its input, and the stream explodes. A normalizer-free net starts each branch at zero instead:
h ← h + α·f(h) with a learned α = 0 (SkipInit, De & Smith 2020; Brock et al. 2021 in S3). Both are
trained beside a net with batch norm before each branch.

The data are the 8×8 digits of scikit-learn; `task="cifar10_images"` takes CIFAR-10 where its files
are present. Results are recorded (runs/measurements.py) until this file changes.

Sources: S3, S4 and S5 in docs/sources.md. Santurkar et al. 2018, Figures 2 and 4, and their
Algorithm 1 (the noise). Deviation: SGD without momentum for minutes, not hours.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from mambanorm.inside import preserve_state
from mambanorm_study.lessons.trained import accuracy, fit
from mambanorm_study.runs.grid import check_seeds
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tasks import Split, load_task

TASK = "digits_images"
SEEDS = {"smoke": 1, "quick": 4, "evening": 4}  # number of seeds; larger scales: 8


def _measured(
    name: str,
    measure: Callable[[str, str, int, int], Iterator[dict]],
    scale: str,
    task: str,
    epochs: int,
    seeds: int | None,
    runs_dir: str | Path | None,
) -> pd.DataFrame:
    """Return the rows of `measure(task, scale, epochs, seed)` for all seeds, read or measured."""
    listed = check_seeds(SEEDS.get(scale, 8) if seeds is None else seeds, "smoke")
    data_scale = "evening" if scale == "quick" else scale  # the digits of both scales are the same
    measure_seed = partial(measure, task, data_scale, epochs)
    where = f"{name}-{task}-{data_scale}-{epochs}"
    return load_or_measure(
        ".lessons", where, measure_seed, listed, digest_of(Path(__file__)), runs_dir
    )


def _images(task: str, scale: str, seed: int) -> tuple[Split, Split]:
    """Return the training and validation images (n, C, H, W) of a task."""
    data, splits = load_task(task, scale, seed), []
    for split in (data.train, data.val):
        images, _, labels = split.batch(slice(None))
        splits.append(Split(images.permute(0, 3, 1, 2).contiguous(), labels))
    return splits[0], splits[1]


# Lesson 1: the loss along the gradient

VGG_ARMS = ("None", "BN", "BN + noise")
VGG_EPOCHS = {"smoke": 1, "quick": 5, "evening": 5}  # epochs; larger scales: 10
RATE = 0.1  # of SGD without momentum
STEP_SIZES = (0.05, 0.1, 0.2, 0.4)  # from a half of the learning rate to four times


class ShiftingNoise(nn.Module):
    """Noise whose mean and scale differ at each step, channel and position; identity in eval mode.

    y = s·x + m for each value of x (B, …). At each call every channel and position draws
    μ ~ U(−0.5, 0.5) and σ ~ U(1, 1.25); then each row draws m ~ U(μ − 0.1, μ + 0.1) and
    s ~ N(σ, 0.1²) (Santurkar et al. 2018, Algorithm 1).
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mean = torch.rand_like(x[:1]) - 0.5
        scale = 1 + 0.25 * torch.rand_like(x[:1])
        shift = mean + 0.2 * (torch.rand_like(x) - 0.5)
        return (scale + 0.1 * torch.randn_like(x)) * x + shift


def vgg(arm: str, channels: int = 1) -> nn.Sequential:
    """Return a net of six 3×3 convolutions, images (n, channels, H, W) → logits (n, 10).

    arm: one of VGG_ARMS, what follows each convolution. The initial weights are those of He et al.
    2015 in every arm, so that the net without a norm has a fair start.
    """
    layers: list[nn.Module] = []
    for width in (16, 16, 32, 32, 64, 64):
        conv = nn.Conv2d(channels, width, 3, padding=1)
        layers.append(with_he_start(conv))
        layers += [nn.BatchNorm2d(width)] * (arm != "None")
        layers += [ShiftingNoise()] * (arm == "BN + noise")
        layers += [nn.ReLU(), *[nn.MaxPool2d(2)] * (width == channels)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def with_he_start(layer: nn.Module) -> nn.Module:
    """Set the weights of a layer before a ReLU as He et al. 2015 do, its bias to 0; return it."""
    nn.init.kaiming_normal_(layer.get_parameter("weight"), nonlinearity="relu")
    nn.init.zeros_(layer.get_parameter("bias"))
    return layer


def losses_along_gradient(
    model: nn.Module, x: Tensor, labels: Tensor, state: Tensor | None = None
) -> list[float]:
    """Return the loss of a batch at θ − η·g for each η in STEP_SIZES; g is in the parameters' grad.

    state: the random state from which each loss draws its noise. The model does not change.
    """
    losses = []
    with torch.no_grad(), preserve_state(model):
        for size in STEP_SIZES:
            if state is not None:
                torch.set_rng_state(state)
            moved = {name: p - size * p.grad for name, p in model.named_parameters()}
            losses.append(float(cross_entropy(functional_call(model, moved, x), labels)))
    return losses


def loss_ranges(
    scale: str, seeds: int | None = None, *, task: str = TASK, runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return the range of the loss along the gradient at each step of training, for all VGG_ARMS.

    Columns: arm, step (from 1), low and high (the smallest and largest loss over STEP_SIZES), range
    (high − low), train_accuracy (in the last epoch, per cent) and seed. The accuracy is that of
    training, as in the paper: in eval mode the running statistics would be those of the noise.
    seeds: number of seeds; None means SEEDS of the scale.
    """
    epochs = VGG_EPOCHS.get(scale, 10)
    return _measured("ranges", _ranges, scale, task, epochs, seeds, runs_dir)


def _ranges(task: str, scale: str, epochs: int, seed: int) -> Iterator[dict]:
    train, _ = _images(task, scale, seed)
    for arm in VGG_ARMS:
        torch.manual_seed(seed)
        model = vgg(arm, train.inputs.shape[1])
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        rows, right = [], []
        batches = [b for _ in range(epochs) for b in torch.randperm(len(train)).split(64)]
        for step, batch in enumerate(batches, start=1):
            x, labels = train.inputs[batch], train.labels[batch]
            state = torch.get_rng_state()
            logits = model.train()(x)
            loss = cross_entropy(logits, labels)
            right.append((logits.argmax(-1) == labels).float().mean().item())
            optimizer.zero_grad()
            loss.backward()
            losses = losses_along_gradient(model, x, labels, state)
            low, high = min(losses), max(losses)
            rows.append({"arm": arm, "step": step, "low": low, "high": high, "range": high - low})
            optimizer.step()
        last = right[-len(right) // epochs :]
        reached = 100 * sum(last) / len(last)
        yield from ({**row, "train_accuracy": reached} for row in rows)


# Lesson 2: a residual net without a norm

NET_ARMS = ("None", "BN", "normalizer-free")
RATES = (0.01, 0.05, 0.1)  # of SGD with momentum 0.9
NET_EPOCHS = {"smoke": 1, "quick": 10, "evening": 10}  # epochs; larger scales: 20
DEPTH, WIDTH = 24, 64


class Residual(nn.Module):
    """A residual block, h + α·f(h), with a branch f of two linear layers; h (n, width).

    arm: "BN" (batch norm before the branch, α = 1), "normalizer-free" (no norm, and a learned α
    that starts at zero), or "None" (no norm, α = 1).
    """

    def __init__(self, arm: str, width: int = WIDTH):
        super().__init__()
        one, two = (with_he_start(nn.Linear(width, width)) for _ in range(2))
        norm = nn.BatchNorm1d(width) if arm == "BN" else nn.Identity()
        self.branch = nn.Sequential(norm, one, nn.ReLU(), two)
        is_free = arm == "normalizer-free"
        self.alpha = nn.Parameter(torch.tensor(0.0 if is_free else 1.0), requires_grad=is_free)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.alpha * self.branch(h)


def residual_net(arm: str, inputs: int = 64) -> nn.Sequential:
    """Return a net of DEPTH residual blocks, images of `inputs` values → logits (n, 10)."""
    blocks = [Residual(arm) for _ in range(DEPTH)]
    last = [nn.BatchNorm1d(WIDTH)] if arm == "BN" else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, WIDTH), *blocks, *last, nn.Linear(WIDTH, 10)
    )


def normalizer_free_curves(
    scale: str, seeds: int | None = None, *, task: str = TASK, runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return the learning curves of `residual_net` for all NET_ARMS and RATES.

    Columns: arm, lr, epoch (from 1), train_accuracy, val_accuracy (of the trained net, the same in
    all rows of a run) and seed. Accuracies are in per cent; chance (10) after a loss that is not
    finite. seeds: number of seeds; None means SEEDS of the scale.
    """
    epochs = NET_EPOCHS.get(scale, 20)
    return _measured("free", _curves, scale, task, epochs, seeds, runs_dir)


def _curves(task: str, scale: str, epochs: int, seed: int) -> Iterator[dict]:
    train, val = _images(task, scale, seed)
    for arm in NET_ARMS:
        for lr in RATES:
            torch.manual_seed(seed)
            model = residual_net(arm, train.inputs[0].numel())
            optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
            curve = list(fit(model, train, optimizer, epochs=epochs))
            is_finite = all(bool(p.isfinite().all()) for p in model.parameters())
            reached = 100 * accuracy(model, val) if is_finite else 10.0
            for epoch, share in enumerate(curve, start=1):
                run = {"arm": arm, "lr": lr, "epoch": epoch, "train_accuracy": 100 * share}
                yield {**run, "val_accuracy": reached}
