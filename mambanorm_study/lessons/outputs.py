"""Measures the growth of outputs over depth in trained models (Figure 9 of the paper).

The models have eight blocks and are trained on mnist1d as in Figure 9. Each of BN, GN, RMSN and LN
stands before the block, after the scan, or on both sides. The results are recorded
(runs/measurements.py), and are measured again when this file changes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

from mambanorm.arms import Arm
from mambanorm.inside import preserve_state, record_sites
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.measurements import digest_of, load_or_measure
from mambanorm_study.runs.result import RunResult
from mambanorm_study.tables import diagnostics, experiments
from mambanorm_study.tasks import load_task

NORMS = ("BN", "GN", "RMSN", "LN")
PLACES = {"before": "{}>SSM>None", "after": "None>SSM>{}", "both": "{0}>SSM>{0}"}
FIRST_SEED, ROWS = 40, 256


def outputs_by_depth(
    seeds: Sequence[int] = (0, 1, 2), runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return the sizes of the residual stream after each block of trained models.

    Columns: norm, place (before, after, both), depth (1 to 8), median and largest (L2 norm of a
    token), element (the largest magnitude of one number), accuracy (test accuracy in per cent),
    failed (whether the run ended in values that are not finite) and seed. The sizes are those of
    256 validation rows in train mode, with the weights of the run's best evaluation; inf stands for
    values that are not finite. seeds: 0 is the run with seed 40.
    """
    digest = digest_of(Path(__file__))
    return load_or_measure(".outputs", "outputs", _measure, seeds, digest, runs_dir)


def _measure(seed: int) -> Iterator[dict]:
    (config, *_) = experiments.growth_runs("evening", seeds=[FIRST_SEED + seed])
    data = load_task(config.task, config.scale, config.seed)
    x, lengths, _ = data.val.batch(slice(0, ROWS))
    for norm in NORMS:
        for place, arm in PLACES.items():
            run, model = _trained(config.but(arm=str(Arm.parse(arm.format(norm)))))
            with torch.no_grad(), preserve_state(model), record_sites(model, "residual") as sites:
                model.train()(x, lengths)
            facts = {"norm": norm, "place": place, "accuracy": 100 * run.test_accuracy}
            facts["failed"] = run.status == "diverged"
            for value in sites.values:
                y = value.value.double().nan_to_num(nan=torch.inf, posinf=torch.inf)
                tokens = y.norm(dim=-1)
                sizes = {"median": tokens.median(), "largest": tokens.max()}
                sizes["element"] = y.abs().max()
                sizes = {name: float(size) for name, size in sizes.items()}
                yield {**facts, "depth": value.depth, **sizes}


def _trained(config: RunConfig) -> tuple[RunResult, nn.Module]:
    """Return the result of a run and its model, with the weights of the best evaluation."""
    models: list[nn.Module] = []
    run = diagnostics.train_until(config, lambda _, model: models.append(model), None)
    return run, models[-1]
