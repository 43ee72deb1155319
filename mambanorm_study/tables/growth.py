"""The outputs' norms over depth: the data of Figure 9, and the law by which they grow."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor, nn

from mambanorm.inside import blocks_of, preserve_state, token_norms
from mambanorm_study.basics.settings import FLAT

EXPONENTIAL = "exponential (log y ~ l)"
# Law → the function of depth that log y is fitted on.
GROWTH_LAWS = {
    "flat": np.zeros_like,
    EXPONENTIAL: np.asarray,
    "power law (log y ~ log l)": np.log,
    "faster (log y ~ l²)": np.square,
}

# Decades from 1 to the largest float32. A growth that overflowed was at least this large.
FLOAT32_DECADES = 38.0

MODEL_KEYS = ("task", "phase", "arm", "mode", "n_layers", "site")


def norms_by_depth(
    models: Mapping[str, nn.Module],
    x: Tensor,
    lengths: Tensor | None = None,
    *,
    phase: str = "initial",
) -> pd.DataFrame:
    """Return `token_norms` of several models (by arm) in train and in eval mode, with the columns
    arm, mode, phase and n_layers.
    """
    frames = []
    for arm, model in models.items():
        with preserve_state(model):
            for mode in ("train", "eval"):
                tokens = pd.DataFrame(token_norms(model.train(mode == "train"), x, lengths))
                facts = {"arm": arm, "phase": phase, "n_layers": len(blocks_of(model))}
                frames.append(tokens.assign(mode=mode, **facts))
    return pd.concat(frames, ignore_index=True)


def norm_quantiles(tokens: pd.DataFrame) -> pd.DataFrame:
    """Return ‖y‖₂ by depth of the tokens of one site: columns median, largest, and nonfinite (share
    of tokens).

    A token that is not finite, NaN included, counts as infinitely large: leaving it out would
    describe only the finite ones.
    """
    l2 = tokens.l2.where(np.isfinite(tokens.l2), np.inf)
    groups = l2.groupby(tokens.depth)
    nonfinite = np.isinf(l2).groupby(tokens.depth).mean()
    return pd.DataFrame(
        {"median": groups.median(), "largest": groups.max(), "nonfinite": nonfinite}
    )


def growth_fits(depth: np.ndarray, log_y: np.ndarray) -> pd.DataFrame:
    """Return least-squares fits of log y on nothing, l, log l and l² over depth l, compared by AIC.

    One row a law, best first: law, slope, r2, aic, and delta_aic from the best. ValueError for
    fewer than four depths.
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
    """Return how a norm grows with depth, its index: law, r2, decades_per_8, margin.

    law            the best by AIC (GROWTH_LAWS), r2 its fit. Otherwise no law is named, and r2 is
                   NaN: "flat" where the slope is negligible (FLAT) and no block lies far off, "no
                   trend" where one does or no law beats a constant, "explodes (non-finite from
                   block k)", "vanishes (0 in block k)", "–" below four blocks
    decades_per_8  slope of log₁₀ y on depth, times 8 blocks. Where a block is not finite: float32's
                   whole range over the blocks, which is a lower bound
    margin         AIC of the best other law minus that of the exponential: above 0 = exponential; 0
                   = undecided
    """
    finite = np.isfinite(y)
    if not finite.all():
        return _growth(
            f"explodes (non-finite from block {y.index[~finite][0]})", 8 * FLOAT32_DECADES / len(y)
        )
    if (y == 0).any():
        return _growth(f"vanishes (0 in block {y.index[y == 0][0]})", np.nan)
    log_y = np.log10(y)
    if len(y) < 4:
        slope = np.polyfit(y.index, log_y, 1)[0] if len(y) > 1 else np.nan
        return _growth("–", 8 * slope)
    fits = growth_fits(log_y.index, log_y)
    best, by_law = fits.iloc[0], fits.set_index("law")
    decades = 8 * by_law.slope[EXPONENTIAL]
    margin = by_law.aic.drop(EXPONENTIAL).min() - by_law.aic[EXPONENTIAL]
    if abs(decades) <= FLAT and np.ptp(log_y) <= FLAT * max(len(y) / 8, 1):
        return _growth("flat", decades, margin)
    if best.law == "flat" or abs(decades) <= FLAT:
        return _growth("no trend", decades, margin)
    return _growth(best.law, decades, margin, best.r2)


def _growth(
    law: str, decades: float, margin: float = 0.0, r2: float = np.nan
) -> dict[str, str | float]:
    return {"law": law, "r2": r2, "decades_per_8": float(decades), "margin": float(margin)}


def growth_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return one row a phase, arm, mode, n_layers and site (and task, if the frame has that column)
    of `norms_by_depth`.

    Columns: `growth` of the median token's norm (law, r2, decades_per_8), log₁₀ of the median's and
    of the largest token's norm in the first and in the last block (inf where not finite), nonfinite
    (share of all tokens).
    """
    keys = [key for key in MODEL_KEYS if key in frame]
    rows = []
    for key, tokens in frame.groupby(keys, sort=False):
        norms = norm_quantiles(tokens)
        row = dict(zip(keys, key, strict=True)) | growth(norms["median"])
        del row["margin"]
        with np.errstate(divide="ignore"):  # a norm of 0 is −inf decades
            ends = np.log10(norms.iloc[[0, -1]])
        for name in ("median", "largest"):
            row[f"{name}_first"], row[f"{name}_last"] = ends[name]
        row["nonfinite"] = 1 - np.isfinite(tokens.l2).mean()
        rows.append(row)
    return pd.DataFrame(rows)
