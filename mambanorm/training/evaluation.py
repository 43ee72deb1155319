"""A model on a split, without gradients: its predictions, their accuracy and loss."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.tasks import Split
from mambanorm.training.config import RunConfig

EVAL_BATCH = 64  # fits into the second-level cache beside the weights: a quarter faster than 256


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def to_device(
    batch: tuple[Tensor, Tensor | None, Tensor], device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor]:
    return tuple(part if part is None else part.to(device, non_blocking=True) for part in batch)


@torch.no_grad()
def predict(model: nn.Module, split: Split, config: RunConfig, device: torch.device) -> dict[str, np.ndarray]:
    """label, predicted (−1 where the logits are not finite: wrong, whatever the label) and loss of every row."""
    model.eval()
    found: dict[str, list[Tensor]] = {"label": [], "predicted": [], "loss": []}
    for rows in torch.arange(len(split)).split(EVAL_BATCH):
        inputs, lengths, labels = to_device(split.batch(rows), device)
        with autocast(config, device):
            logits = model(inputs, lengths).float()
        guess = torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)
        for key, value in zip(found, (labels, guess, F.cross_entropy(logits, labels, reduction="none")), strict=True):
            found[key].append(value.cpu())
    return {key: torch.cat(parts).numpy() for key, parts in found.items()}


def accuracy(predictions: dict[str, np.ndarray]) -> float:
    return float(np.mean(predictions["label"] == predictions["predicted"]))


def evaluate(model: nn.Module, split: Split, config: RunConfig, device: torch.device) -> dict[str, float]:
    predictions = predict(model, split, config, device)
    return {"val_loss": float(predictions["loss"].mean()), "val_accuracy": accuracy(predictions)}
