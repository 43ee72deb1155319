"""Trained models scored in both modes: what BN's running averages cost it in evaluation (notebook 04).

both_modes    stored runs → accuracy on validation in train and in eval mode, one row a run
modes_table   the same, as means over the seeds
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd
import torch

from mambanorm.config import RunConfig
from mambanorm.models.build import build_model
from mambanorm.tasks import load_task
from mambanorm.training.store import find_run

COLUMNS = ["task", "arm", "seed", "rows", "eval", "train", "points_lost"]


def both_modes(configs: Iterable[RunConfig], runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Accuracy on the validation split in either mode, one row for each of these runs that the store holds.

    Columns: task, arm, seed, rows (of the split), eval, train (fractions), points_lost (train − eval, percentage
    points). In train mode the whole split is one batch, and its statistics are those of that batch.
    """
    stored = ((config, find_run(config, runs_dir)) for config in configs)
    found = [_scores(config, run.checkpoint) for config, run in stored if run is not None]
    return pd.DataFrame(found, columns=COLUMNS)


def _scores(config: RunConfig, weights: dict[str, torch.Tensor]) -> dict:
    data = load_task(config.task, config.scale, config.seed)
    model = build_model(config, data)
    model.load_state_dict(weights)
    inputs, lengths, labels = data.val.batch(slice(None))
    found = dict(task=config.task, arm=config.arm, seed=config.seed, rows=len(labels))
    for mode in ("eval", "train"):  # in this order: train mode moves the running averages
        with torch.no_grad():
            guess = model.train(mode == "train")(inputs, lengths).argmax(-1)
        found[mode] = (guess == labels).float().mean().item()
    return found | dict(points_lost=100 * (found["train"] - found["eval"]))


def modes_table(modes: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, one row a task and arm: train, eval, points_lost_in_eval, sd_of_points, seeds, rows."""
    told = dict(train=("train", "mean"), eval=("eval", "mean"), points_lost_in_eval=("points_lost", "mean"))
    told |= dict(sd_of_points=("points_lost", "std"), seeds=("seed", "nunique"), rows=("rows", "first"))
    return modes.groupby(["task", "arm"], sort=False).agg(**told)
