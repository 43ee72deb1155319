"""BatchNorm with few rows where it hurts most: behind linear layers a statistic has only the rows to average over.

Of a convolution's batch of 2 it still has 2·H·W values (`batch_size` in experiments.py). Here it has 2, and whatever
goes in, what comes out of BatchNorm in training is −1 and 1.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from mambanorm.advice.fitting import accuracy, digits, fit, shuffled

BATCHES = (2, 4, 8, 16, 32, 64)
WIDTH, GROUPS = 64, 4
NORMS = {"BN": nn.BatchNorm1d, "GN": lambda features: nn.GroupNorm(GROUPS, features)}


def dense_net(norm: str) -> nn.Sequential:
    """Two hidden layers with a norm each: images (B, 1, 8, 8) → (B, 10)."""
    hidden = [layer for _ in range(2) for layer in (nn.Linear(64, WIDTH), NORMS[norm](WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(WIDTH, 10))


def dense(scale: str, seed: int) -> list[dict]:
    """norm, batch → accuracy (%): all see the same number of rows; Adam's rate goes with the root of the batch."""
    data, rows = digits(scale, seed), []
    x, labels = data["train"]
    for norm in NORMS:
        for batch in BATCHES:
            torch.manual_seed(seed)
            model, steps = (
                dense_net(norm),
                max({"smoke": 4, "quick": 48, "evening": 48}.get(scale, 192) * 32 // batch, 2),
            )
            losses = fit(
                model,
                lambda model, which: F.cross_entropy(model(x[which]), labels[which]),
                shuffled(len(labels), batch, steps, seed),
                lr=5e-3 * math.sqrt(batch / 32),
                steps=steps,
            )
            rows.append(dict(norm=norm, batch=batch, accuracy=accuracy(model, *data["test"]), losses=losses))
    return rows
