"""The lecture's claim about batch norm (Patel, CS460, after Santurkar et al. 2018, Figure 1) in small.

Claim: a VGG trained on CIFAR-10 reaches a higher training accuracy with batch norm. Here: six convolutions in VGG's
manner on the 8×8 digits that come with scikit-learn, plain SGD with momentum, two learning rates. Beside "none" and
"BN" stands a third arm without a norm, whose weights start as He et al. (2015) propose. It tells how much of the gain
is one of the norm, and how much one of the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pandas as pd
import torch
from torch import nn

from mambanorm.basics.errors import unknown
from mambanorm.lessons.fitting import accuracy, channels_first, fit, kept_lesson
from mambanorm.tasks import load_task

ARMS = ("none", "none, He start", "BN")
RATES = (0.02, 0.1)
EPOCHS, SEEDS = {"smoke": 1, "quick": 5, "evening": 5}, {"smoke": 1, "quick": 4, "evening": 4}
"""At larger scales 10 epochs and 8 seeds."""


def small_vgg(arm: str, *, classes: int = 10) -> nn.Sequential:
    """Three stages of two 3×3 convolutions (16, 32, 64 channels), each halved by pooling: images (n, 1, 8, 8) → logits.
    With "BN" a batch norm follows each convolution. ValueError for another arm than those of ARMS."""
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
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu"), nn.init.zeros_(layer.bias)
    return model


def with_and_without(
    scale: str, seeds: int | None = None, rates: Iterable[float] = RATES, runs_dir=None
) -> pd.DataFrame:
    """Trains every arm at every rate with every seed, or reads what the run store holds of that. A row an epoch: arm,
    lr, scale, epoch, train_accuracy, val_accuracy of the trained model (the same in all rows of a run), seed;
    accuracies are fractions."""
    seeds = SEEDS.get(scale, 8) if seeds is None else seeds
    each = {f"vgg-{scale}-{rate:g}": partial(_curves, scale, rate) for rate in rates}
    return pd.concat(
        [kept_lesson(__file__, name, curves, seeds, runs_dir) for name, curves in each.items()], ignore_index=True
    )


def _curves(scale: str, rate: float, seed: int) -> list[dict]:
    return [row for arm in ARMS for row in _run(scale, arm, rate, seed)]


def _run(scale: str, arm: str, rate: float, seed: int) -> list[dict]:
    data = load_task("digits_images", scale, seed)
    torch.manual_seed(seed)
    model = small_vgg(arm)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    curve = list(fit(model, channels_first(data.train), optimizer, epochs=EPOCHS.get(scale, 10)))
    facts = dict(arm=arm, lr=rate, scale=scale, val_accuracy=accuracy(model, channels_first(data.val)))
    return [facts | dict(epoch=epoch, train_accuracy=share) for epoch, share in enumerate(curve, start=1)]
