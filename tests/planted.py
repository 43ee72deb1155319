"""Run frames whose truth is planted: all runs that a claim needs, with made-up results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm_study.claims import find_claim, needed
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS
from mambanorm_study.claims.plan import check_test_seeds
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import grid
from mambanorm_study.tables.experiments import lr_grid, model_of

TASK = {"sequence": "digits", "vision": "digits_images", "language": "pydoc"}
NAMES = ("run_id", "task", "arm", "seed", "scale", "lr", "n_layers", "train_rows", "role", "steps")


def tuned_and_tested(
    arms: Iterable[str],
    task: str,
    seeds=8,
    scale: str = "smoke",
    tuning=NEW_TUNING_SEEDS,
    **changes,
) -> list[RunConfig]:
    """Return the configs of each arm at three rates on the tuning seeds, and at the middle one on
    the test seeds.
    """
    configs, how = [], dict(scale=scale, **changes)
    for arm in arms:
        rates = lr_grid(task, scale, model_of([arm]))
        for lr in rates:
            configs += grid([arm], [task], seeds=tuning, lr=lr, **how)
        configs += grid([arm], [task], seeds=check_test_seeds(seeds), lr=rates[1], **how)
    return configs


@lru_cache(maxsize=128)
def skeleton(claim_id: str, seeds=8, scale: str = "smoke", task: str = "") -> pd.DataFrame:
    """Return the runs that a claim needs, without results. seeds: 8 = 52…59, or a tuple of test
    seeds.
    """
    claim = find_claim(claim_id)
    if claim.runs == "tuned":
        return rows_of(tuned_and_tested(claim.arms, task or TASK[claim.kind], seeds, scale))
    return rows_of(needed(claim, seeds, scale=scale))


def rows_of(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """Return one row a config, with the fields that verdicts read."""
    frame = pd.DataFrame([{name: getattr(config, name) for name in NAMES} for config in configs])
    return frame.astype(
        {name: object for name in ("run_id", "task", "arm", "scale", "role")}
    )  # plain text is faster


def planted_frame(
    frame: pd.DataFrame,
    effects: Mapping[str, float] | None = None,
    rng: int = 0,
    *,
    sd: float = 1.0,
    shared: float = 2.0,
    curve: tuple[float, ...] = (-4.0, 0.0, -4.0),
    base: float = 50.0,
) -> pd.DataFrame:
    """Return the frame with results, in points.

    An arm has `base` + its effect + what `curve` gives its rate (of the task's rates, the smallest
    first) + noise of standard deviation `sd` for each run and `shared` for each seed, which all
    arms have.
    """
    draw, effects = np.random.default_rng(rng), effects or {}
    rate = frame.groupby("task").lr.rank(method="dense").astype(int).to_numpy() - 1
    seed = np.unique(frame.seed.to_numpy(), return_inverse=True)[1]
    expected = (
        base + frame.arm.map(lambda arm: effects.get(arm, 0.0)).to_numpy() + np.array(curve)[rate]
    )
    expected = expected + shared * draw.standard_normal(seed.max() + 1)[seed]
    test, validation = np.clip(
        (expected + sd * draw.standard_normal((2, len(frame)))) / 100, 0.0, 1.0
    )
    status = pd.Series("ok", index=frame.index, dtype=object)
    return frame.assign(status=status, test_accuracy=test, best_val_accuracy=validation, chance=0.1)


def made_up(
    claim_id: str, effects=None, *, seeds=8, scale: str = "smoke", task: str = "", **how
) -> pd.DataFrame:
    """Return `study` of all runs of a claim."""
    return planted_frame(skeleton(claim_id, seeds, scale, task), effects, **how)


def where(frame: pd.DataFrame, rows, **values) -> pd.DataFrame:
    """Return the frame with other values in these rows."""
    return frame.assign(**{name: frame[name].mask(rows, value) for name, value in values.items()})


def table_of(verdict) -> pd.DataFrame:
    """Return one row a comparison of a verdict, with every field of it."""
    return pd.DataFrame([asdict(row) for row in verdict.rows])
