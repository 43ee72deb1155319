"""What the outputs' norms do over depth: the data of Figure 9, and the law by which they grow."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor, nn

from mambanorm.inside import blocks_of, preserve_state, token_norms
from mambanorm_study.basics.settings import FLAT


def norms_by_depth(
    models: Mapping[str, nn.Module],
    x: Tensor,
    lengths: Tensor | None = None,
    *,
    phase: str = "initial",
) -> pd.DataFrame:
    """`token_norms` of several models (by arm) in train and in eval mode: adds arm, mode, phase,
    n_layers."""
    frames = []
    for arm, model in models.items():
        facts = dict(arm=arm, phase=phase, n_layers=len(blocks_of(model)))
        with preserve_state(model):
            for mode in ("train", "eval"):
                tokens = pd.DataFrame(token_norms(model.train(mode == "train"), x, lengths))
                frames.append(tokens.assign(mode=mode, **facts))
    return pd.concat(frames, ignore_index=True)


# --------------------------------------------------------------------------------------------------
# What the norms do over depth
# --------------------------------------------------------------------------------------------------

EXPONENTIAL = "exponential (log y ~ l)"
GROWTH_LAWS = {
    "flat": lambda d: np.zeros_like(d),
    EXPONENTIAL: lambda d: d,
    "power law (log y ~ log l)": np.log,
    "faster (log y ~ l²)": np.square,
}

FLOAT32_DECADES = 38.0
"""Decades of float32 above 1. A growth that left this range was at least as large."""


def norm_quantiles(tokens: pd.DataFrame) -> pd.DataFrame:
    """‖y‖₂ by depth of the tokens of one site: columns median, largest, and nonfinite (share of
    tokens).

    A token that is not finite counts as infinitely large, NaN as well: leaving it out would
    describe only the finite ones.
    """
    l2 = tokens.l2.where(np.isfinite(tokens.l2), np.inf).groupby(tokens.depth)
    return pd.DataFrame(
        {
            "median": l2.median(),
            "largest": l2.max(),
            "nonfinite": l2.agg(lambda n: np.isinf(n).mean()),
        }
    )


def growth_fits(depth: np.ndarray, log_y: np.ndarray) -> pd.DataFrame:
    """How log y grows with depth l: least squares of log y on nothing, l, log l and l², compared by
    AIC.

    Returns one row a law, best first: law, slope, r2, aic, and delta_aic from the best. Needs at
    least four depths.
    """
    depth, log_y = np.asarray(depth, float), np.asarray(log_y, float)
    if len(np.unique(depth)) < 4:
        raise ValueError(
            "a growth law needs at least 4 depths to be told from another, got "
            f"{len(np.unique(depth))}"
        )
    rows = []
    for law, transform in GROWTH_LAWS.items():
        t = transform(depth)
        columns = np.stack([np.ones_like(t), t], 1)[:, : 1 if law == "flat" else 2]
        coefficients, *_ = np.linalg.lstsq(columns, log_y, rcond=None)
        residual = max(float(np.sum((log_y - columns @ coefficients) ** 2)), 1e-300)
        total = float(np.sum((log_y - log_y.mean()) ** 2))
        aic = len(log_y) * np.log(residual / len(log_y)) + 2 * (columns.shape[1] + 1)
        slope = 0.0 if law == "flat" else float(coefficients[1])
        rows.append(
            {
                "law": law,
                "slope": slope,
                "r2": 1 - residual / total if total else np.nan,
                "aic": aic,
            }
        )
    fits = pd.DataFrame(rows).sort_values("aic", ignore_index=True)
    return fits.assign(delta_aic=fits.aic - fits.aic.iloc[0])


def growth(y: pd.Series) -> dict[str, str | float]:
    """How a norm grows with depth, its index: law, r2, decades_per_8, margin.

    law            the best by AIC (GROWTH_LAWS), r2 its fit. Otherwise no law is named, and r2 is
                   NaN: "flat" where the slope is negligible (FLAT) and no block lies far off, "no
                   trend" where one does or no law beats a constant, "explodes (non-finite from
                   block k)", "vanishes (0 in block k)", "–" below four blocks
    decades_per_8  slope of log₁₀ y on depth, times 8 blocks. Where a block is not finite: float32's
                   whole range over the blocks, which is a lower bound
    margin         AIC of the best other law minus that of the exponential: above 0 = exponential; 0
                   = cannot be told
    """
    if not (finite := np.isfinite(y)).all():
        law = f"explodes (non-finite from block {y.index[~finite][0]})"
        return dict(law=law, r2=np.nan, decades_per_8=8 * FLOAT32_DECADES / len(y), margin=0.0)
    if (y == 0).any():
        return dict(
            law=f"vanishes (0 in block {y.index[y == 0][0]})",
            r2=np.nan,
            decades_per_8=np.nan,
            margin=0.0,
        )
    log_y = np.log10(y)
    if len(y) < 4:
        slope = np.polyfit(y.index, log_y, 1)[0] if len(y) > 1 else np.nan
        return dict(law="–", r2=np.nan, decades_per_8=float(8 * slope), margin=0.0)
    fits = growth_fits(log_y.index, log_y)
    best, by_law = fits.iloc[0], fits.set_index("law")
    decades = float(8 * by_law.slope[EXPONENTIAL])
    margin = float(by_law.aic.drop(EXPONENTIAL).min() - by_law.aic[EXPONENTIAL])
    law = best.law if best.law != "flat" and abs(decades) > FLAT else "no trend"
    if abs(decades) <= FLAT and np.ptp(log_y) <= FLAT * max(len(y) / 8, 1):
        law = "flat"
    return dict(
        law=law,
        r2=best.r2 if law == best.law != "flat" else np.nan,
        decades_per_8=decades,
        margin=margin,
    )


MODEL_KEYS = ("task", "phase", "arm", "mode", "n_layers", "site")


def growth_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a phase, arm, mode, n_layers and site (and task, if the frame has that column) of
    `norms_by_depth`.

    Columns: `growth` of the median token's norm (law, r2, decades_per_8), log₁₀ of the median's and
    of the largest token's norm in the first and in the last block (inf where not finite), nonfinite
    (share of all tokens).
    """
    keys = [key for key in MODEL_KEYS if key in frame]
    rows = []
    for key, tokens in frame.groupby(keys, sort=False):
        norms = norm_quantiles(tokens)
        facts = growth(norms["median"])
        del facts["margin"]
        with np.errstate(divide="ignore"):  # a norm of 0 is −inf decades
            ends = np.log10(norms.iloc[[0, -1]])
        for name in ("median", "largest"):
            facts |= {f"{name}_first": ends[name].iloc[0], f"{name}_last": ends[name].iloc[-1]}
        rows.append(
            dict(zip(keys, key, strict=True))
            | facts
            | {"nonfinite": 1 - np.isfinite(tokens.l2).mean()}
        )
    return pd.DataFrame(rows)
