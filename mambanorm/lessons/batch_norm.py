"""The lecture's claim about batch norm (Patel, CS460, after Santurkar et al. 2018, Figure 1) in small.

Claim: a VGG trained on CIFAR-10 reaches a higher training accuracy with batch norm. Here: six convolutions in VGG's
manner on the 8×8 digits that come with scikit-learn, plain SGD with momentum, two learning rates. Beside "none" and
"BN" stands a third arm without a norm, whose weights start as He et al. (2015) propose. It tells how much of the gain
is one of the norm, and how much one of the start.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import torch
from torch import nn

from mambanorm.basics.errors import unknown
from mambanorm.lessons.fitting import accuracy, channels_first, fit
from mambanorm.tasks import load_task

ARMS = ("none", "none, He start", "BN")
RATES = (0.02, 0.1)
EPOCHS, SEEDS = {"smoke": 1, "quick": 5}, {"smoke": 1, "quick": 4}
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


def with_and_without(scale: str, seeds: int | None = None, rates: Iterable[float] = RATES) -> pd.DataFrame:
    """Trains every arm at every rate with every seed. A row an epoch: arm, lr, seed, epoch, train_accuracy, and
    val_accuracy of the trained model (the same in all rows of a run); accuracies are fractions."""
    seeds = SEEDS.get(scale, 8) if seeds is None else seeds
    runs = [_run(scale, arm, rate, seed) for rate in rates for seed in range(seeds) for arm in ARMS]
    return pd.concat(runs, ignore_index=True)


def _run(scale: str, arm: str, rate: float, seed: int) -> pd.DataFrame:
    data = load_task("digits_images", scale, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_vgg(arm)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        curve = list(fit(model, channels_first(data.train), optimizer, epochs=EPOCHS.get(scale, 10)))
    frame = pd.DataFrame(dict(epoch=range(1, len(curve) + 1), train_accuracy=curve))
    facts = dict(arm=arm, lr=rate, seed=seed, scale=scale, val_accuracy=accuracy(model, channels_first(data.val)))
    return frame.assign(**facts)
