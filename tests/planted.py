"""Run frames whose truth is planted: all runs that a claim needs, with made-up results."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm.claims import find_claim, needed

TASK = {"sequence": "digits", "vision": "digits_images", "language": "pydoc"}
NAMES = ("run_id", "task", "arm", "seed", "scale", "lr", "n_layers", "train_rows", "role", "steps")


@lru_cache(maxsize=128)
def skeleton(claim_id: str, seeds=8, scale: str = "quick", task: str = "") -> pd.DataFrame:
    """The runs that a claim needs, without results."""
    claim = find_claim(claim_id)
    return rows_of(needed(claim, seeds, [task or TASK[claim.kind]], scale))


def rows_of(configs) -> pd.DataFrame:
    frame = pd.DataFrame([{name: getattr(config, name) for name in NAMES} for config in configs])
    return frame.astype({name: object for name in ("run_id", "task", "arm", "scale", "role")})  # plain text is faster


def study(
    frame: pd.DataFrame,
    effects: Mapping[str, float] | None = None,
    rng: int = 0,
    *,
    sd: float = 1.0,
    shared: float = 2.0,
    curve: tuple[float, float, float] = (-4.0, 0.0, -4.0),
    base: float = 50.0,
) -> pd.DataFrame:
    """The frame with results: arms at `base` + their effect (points) at the middle rate; noise `sd` of a run, of a seed
    `shared`, which all arms have; `curve`: what the three rates give."""
    draw, effects = np.random.default_rng(rng), effects or {}
    seed, rate = (np.unique(frame[name].to_numpy(), return_inverse=True)[1] for name in ("seed", "lr"))
    expected = base + frame.arm.map(lambda arm: effects.get(arm, 0.0)).to_numpy() + np.array(curve)[rate]
    expected = expected + shared * draw.standard_normal(seed.max() + 1)[seed]
    test, validation = np.clip((expected + sd * draw.standard_normal((2, len(frame)))) / 100, 0.0, 1.0)
    status = pd.Series("ok", index=frame.index, dtype=object)
    return frame.assign(status=status, test_accuracy=test, best_val_accuracy=validation, chance=0.1)


def made_up(claim_id: str, effects=None, *, seeds=8, scale: str = "smoke", task: str = "", **how) -> pd.DataFrame:
    """`study` of all runs of a claim."""
    return study(skeleton(claim_id, seeds, scale, task), effects, **how)


def where(frame: pd.DataFrame, rows, **values) -> pd.DataFrame:
    """The frame with other values in these rows."""
    return frame.assign(**{name: frame[name].mask(rows, value) for name, value in values.items()})
