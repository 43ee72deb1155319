"""Computes the predictions, the accuracy and the loss of a model on a split, without gradients.

A language model's accuracy is the share of positions at which the token with the highest logit is
the next token of the text; its loss is the mean cross-entropy over the positions. A regression's
accuracy is R² against the training mean, averaged over the targets; a negative average counts as 0.
R² = 1 − (the model's squared error) / (the squared error of predicting the training mean). RMSE and
MAE are in the targets' units.
"""

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm_study.config import RunConfig
from mambanorm_study.tasks import Split
from mambanorm_study.tasks.base import Units

# A batch of rows: the inputs, the lengths (None if no row is padded) and the labels.
Batch = tuple[Tensor, Tensor | None, Tensor]

# Rows per batch. Results depend on this number, because it affects rounding.
EVAL_BATCH = 64


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """Return an autocast context: bfloat16 if the config's precision is "bf16", else disabled."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch with its tensors on `device`."""
    return tuple(part if part is None else part.to(device, non_blocking=True) for part in batch)


@torch.no_grad()
def predict(
    model: nn.Module,
    split: Split,
    config: RunConfig,
    device: torch.device,
    units: Units | None = None,
) -> dict[str, np.ndarray]:
    """Return the model's predictions and losses on the n rows of a split, as named arrays.

    Classes: label (n,), predicted (n,) and loss (n,). predicted is −1, which is always wrong, if a
    logit of the row is not finite.
    Regression with T targets: label (n, T) and predicted (n, T) in the targets' units; loss (n,),
    the mean squared error of the standardized targets; baseline (T,), the mean of each target over
    the training rows.
    Language models: right (n,), the share of the row's positions that are predicted correctly; and
    loss (n,), the mean cross-entropy over the row's positions.

    units: mean and scale of a regression's targets; None for classes and language models.
    """
    model.eval()
    parts: list[dict[str, Tensor]] = []
    for rows in torch.arange(len(split)).split(EVAL_BATCH):
        inputs, lengths, labels = to_device(split.batch(rows), device)
        with autocast(config, device):
            logits = model(inputs, lengths).float()
        parts.append(row_predictions(logits, labels, units))
    predictions = {
        name: np.concatenate([part[name].cpu().numpy() for part in parts]) for name in parts[0]
    }
    if units is not None:
        predictions["baseline"] = units.mean.numpy()
    return predictions


def row_predictions(logits: Tensor, labels: Tensor, units: Units | None) -> dict[str, Tensor]:
    """Return what `predict` returns, without baseline, for the rows of one batch and as tensors."""
    if units is not None:
        loss = (logits - units.standardize(labels)).square().mean(-1)
        return {"label": labels, "predicted": units.restore(logits), "loss": loss}
    predicted = torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)
    if labels.dim() == 1:
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        return {"label": labels, "predicted": predicted, "loss": loss}
    # a language model: labels and loss are (B, L)
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
    right = (predicted == labels).sum(1)
    return {"right": right / labels.shape[1], "loss": loss.sum(1) / labels.shape[1]}


def accuracy(predictions: dict[str, np.ndarray]) -> float:
    """Return the accuracy, as a fraction, of the predictions that `predict` returned.

    The accuracy of a regression is R² against the training mean, averaged over the targets; a
    negative average and an average that is not finite count as 0.
    """
    if "right" in predictions:
        return float(predictions["right"].mean(dtype=np.float64))
    if "baseline" not in predictions:
        return float(np.mean(predictions["label"] == predictions["predicted"]))
    error, baseline_error = regression_errors(predictions)
    unexplained = (error**2).sum(0) / (baseline_error**2).sum(0)
    return max(float(1 - unexplained.mean()), 0.0) if np.isfinite(unexplained).all() else 0.0


def errors(predictions: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Return a map with the errors of a regression: rmse, mae and chance_rmse.

    rmse and mae belong to the model; chance_rmse is the RMSE of predicting the training mean. Each
    error is a mean over the targets, in the targets' units. All three are None for classes and
    language models. rmse and mae are not finite if an output of the model is not finite.
    """
    if "baseline" not in predictions:
        return {"rmse": None, "mae": None, "chance_rmse": None}
    error, baseline_error = regression_errors(predictions)
    return {
        "rmse": float(np.sqrt((error**2).mean(0)).mean()),
        "mae": float(np.abs(error).mean()),
        "chance_rmse": float(np.sqrt((baseline_error**2).mean(0)).mean()),
    }


def regression_errors(predictions: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of the model (n, T) and of predicting the training mean (n, T), in float64.

    Errors are in the targets' units, for n rows and T targets.
    """
    label = predictions["label"].astype(float)
    return label - predictions["predicted"], label - predictions["baseline"]
