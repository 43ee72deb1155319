"""A model on a split, without gradients: its predictions, their accuracy and loss.

Of a language model the accuracy is the share of the positions whose next token it finds likeliest,
and losses are means over positions. Of a regression the accuracy is R² against the training mean,
the mean over its targets, at least 0: the share of the squared error that a model takes away from
predicting the training mean. RMSE and MAE are in the targets' units.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm_study.config import RunConfig
from mambanorm_study.tasks import Split
from mambanorm_study.tasks.base import IGNORED, Units

EVAL_BATCH = 64  # part of what a run is: in a larger batch some products round otherwise (listops, d_model 16)


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def to_device(
    batch: tuple[Tensor, Tensor | None, Tensor], device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor]:
    return tuple(part if part is None else part.to(device, non_blocking=True) for part in batch)


@torch.no_grad()
def predict(
    model: nn.Module,
    split: Split,
    config: RunConfig,
    device: torch.device,
    units: Units | None = None,
) -> dict[str, np.ndarray]:
    """label, predicted (−1 where the logits are not finite: wrong, whatever the label) and loss of
    every row. Of a regression, label and predicted (n, T) in the targets' units, and `baseline`
    (T,), the training mean. Where each position has a label: `right`, the share of a row's
    positions, and loss, their mean."""
    model.eval()
    found: list[dict[str, np.ndarray]] = []
    for rows in torch.arange(len(split)).split(EVAL_BATCH):
        inputs, lengths, labels = to_device(split.batch(rows), device)
        with autocast(config, device):
            logits = model(inputs, lengths).float()
        found.append(
            {key: value.cpu().numpy() for key, value in answers(logits, labels, units).items()}
        )
    arrays = {key: np.concatenate([part[key] for part in found]) for key in found[0]}
    return arrays if units is None else arrays | {"baseline": units.mean.numpy()}


def answers(logits: Tensor, labels: Tensor, units: Units | None) -> dict[str, Tensor]:
    """What `predict` keeps of each row."""
    if units is not None:
        loss = (logits - units.scaled(labels)).square().mean(-1)
        return dict(label=labels, predicted=units.back(logits), loss=loss)
    guess = torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)
    if labels.dim() == 1:
        return dict(
            label=labels, predicted=guess, loss=F.cross_entropy(logits, labels, reduction="none")
        )
    loss = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")  # (B, L), 0 at IGNORED
    told = (labels != IGNORED).sum(1)
    return dict(right=(guess == labels).sum(1) / told, loss=loss.sum(1) / told)


def accuracy(predictions: dict[str, np.ndarray]) -> float:
    if "right" in predictions:
        return float(predictions["right"].mean(dtype=np.float64))
    if "baseline" not in predictions:
        return float(np.mean(predictions["label"] == predictions["predicted"]))
    label, predicted, baseline = (
        predictions[name].astype(float) for name in ("label", "predicted", "baseline")
    )
    left = ((label - predicted) ** 2).sum(0) / ((label - baseline) ** 2).sum(0)
    return max(float(1 - left.mean()), 0.0) if np.isfinite(left).all() else 0.0


def errors(predictions: dict[str, np.ndarray]) -> dict[str, float | None]:
    """rmse and mae in the targets' units, and chance_rmse, that of the training mean; the mean over
    several targets. None for classes."""
    if "baseline" not in predictions:
        return dict(rmse=None, mae=None, chance_rmse=None)
    off, by_mean = (
        predictions["label"].astype(float) - predictions[name] for name in ("predicted", "baseline")
    )
    rmse = {
        name: float(np.sqrt((d**2).mean(0)).mean())
        for name, d in (("rmse", off), ("chance_rmse", by_mean))
    }
    return rmse | dict(mae=float(abs(off).mean()))  # not finite where the model is not


def evaluate(
    model: nn.Module,
    split: Split,
    config: RunConfig,
    device: torch.device,
    units: Units | None = None,
) -> dict[str, float]:
    predictions = predict(model, split, config, device, units)
    return {"val_loss": float(predictions["loss"].mean()), "val_accuracy": accuracy(predictions)}
