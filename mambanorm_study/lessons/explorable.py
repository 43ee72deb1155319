"""Measurements for the explorers: a run that fails, untrained models with larger weights, and the
prediction for one row of a batch.

The measurements take a minute, and an explorer must answer at once. So they are recorded
(runs/measurements.py), and are measured again when this file changes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from mambanorm.arms import Arm
from mambanorm.inside import preserve_state, record_sites
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.tables import diagnostics, experiments, growth
from mambanorm_study.tasks import load_task

FOLDER = ".explorers"
# The sites of a block at which the failing run is watched, in the order of the computation.
WATCHED = ("conv", "delta", "scan", "gated", "branch", "residual")
# The seed of a recorded run without norms that ends in values that are not finite after 26 steps.
FAILING_SEED = 40
GAINS, DEPTHS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), (4, 8, 16, 24)
GAIN_ARMS = (
    "None>SSM>None", "RMSN>SSM>None", "None>SSM>RMSN", "RMSN>SSM>RMSN", "BN>SSM>None",
    "None>SSM>BN", "BN>SSM>BN",
)  # fmt: skip
NEIGHBOUR_NORMS, ROWS = ("BN", "IN", "LN", "RMSN", "GN"), 12


def failing_run(runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return the largest magnitude at each watched site of each block after each training step of a
    run without norms that fails.

    Columns: step (0 is before the first step), depth (1 to 8), site (one of WATCHED) and largest;
    inf stands for values that are not finite.
    """
    return _measured("failing_run", _watch_failing_run, runs_dir)


def larger_weights(runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return the largest token of untrained models whose weights are multiplied by a gain.

    Columns: arm, n_layers, gain, depth and largest, the L2 norm of the largest token of the
    residual stream after a block, in train mode; inf stands for values that are not finite.
    """
    return _measured("larger_weights", _measure_gains, runs_dir)


def neighbours(runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return what a trained model predicts for one row while other rows of its batch are exchanged
    for rows of a single class.

    Columns: norm (before the block and after the scan), mode ("train" or "eval"), exchanged (number
    of the other rows that were exchanged), label (the row's class) and one column per class with
    its probability, "0" to "9".
    """
    return _measured("neighbours", _measure_neighbours, runs_dir)


def _measured(
    name: str, measure: Callable[[], Iterable[dict]], runs_dir: str | Path | None
) -> pd.DataFrame:
    digest = digest_of(Path(__file__))
    return load_or_measure(FOLDER, name, lambda seed: list(measure()), (0,), digest, runs_dir)


def _watch_failing_run() -> Iterator[dict]:
    configs = experiments.growth_runs("evening", seeds=[FAILING_SEED])
    (config,) = (config for config in configs if config.arm == "None>SSM>None")
    data = load_task(config.task, config.scale, config.seed)
    x, lengths, _ = data.train.batch(slice(0, 1000))
    rows = []

    def watch(step: int, model: nn.Module) -> None:
        with torch.no_grad(), preserve_state(model), record_sites(model, WATCHED) as sites:
            model.eval()(x, lengths)
        for value in sites.values:
            largest = float(value.value.abs().nan_to_num(nan=torch.inf).max())
            facts = {"depth": value.depth, "site": value.site, "largest": largest}
            rows.append({"step": step, **facts})

    watch(0, build_model(config, data))
    diagnostics.train_until(config, watch, None)
    yield from rows


def _measure_gains(
    arms: Sequence[str] = GAIN_ARMS, depths: Sequence[int] = DEPTHS
) -> Iterator[dict]:
    data = load_task("digits", "quick", 0)
    x, lengths, _ = data.train.batch(slice(0, diagnostics.ROWS))
    for arm in arms:
        for n_layers in depths:
            config = base_config("digits", "quick", arm=arm, n_layers=n_layers)
            for gain in GAINS:
                models = {arm: diagnostics.amplified_model(config, gain)}
                tokens = growth.norms_by_depth(models, x, lengths)
                tokens = tokens[(tokens.site == "residual") & (tokens["mode"] == "train")]
                for depth, largest in growth.norm_quantiles(tokens).largest.items():
                    facts = {"depth": depth, "largest": float(largest)}
                    yield {"arm": arm, "n_layers": n_layers, "gain": gain, **facts}


def _measure_neighbours() -> Iterator[dict]:
    config = base_config("digits", "quick")
    data = load_task(config.task, config.scale, config.seed)
    x, _, labels = data.val.batch(slice(None))
    models = {n: _trained(config.but(arm=str(Arm(n, n)))) for n in NEIGHBOUR_NORMS}

    def predictions(norm: str, row: int, *, training: bool) -> np.ndarray:
        """Return the probabilities for one row, if 0, 1, … of the other rows are exchanged."""
        mixed = [other for other in range(ROWS) if other != row]
        same_class = torch.nonzero(labels == (labels[row] + 1) % 10).flatten().tolist()
        batches = [[row, *same_class[:n], *mixed[n:]] for n in range(ROWS)]
        with torch.no_grad(), preserve_state(model := models[norm]):
            model.train(training)
            logits = torch.stack([model(x[rows], None)[0] for rows in batches])
        return logits.softmax(-1).double().numpy()

    # the row whose prediction moves most under BN
    moves = [np.ptp(predictions("BN", row, training=True)[:, labels[row]]) for row in range(ROWS)]
    row = int(np.argmax(moves))
    for norm in models:
        for mode in ("train", "eval"):
            for exchanged, values in enumerate(predictions(norm, row, training=mode == "train")):
                facts = {"norm": norm, "mode": mode, "exchanged": exchanged}
                facts["label"] = int(labels[row])
                yield facts | dict(zip("0123456789", values.tolist(), strict=True))


def _trained(config: RunConfig) -> nn.Module:
    """Return the model of a config with the weights of its best evaluation."""
    models: list[nn.Module] = []
    diagnostics.train_until(config, lambda _, model: models.append(model), None)
    return models[-1]
