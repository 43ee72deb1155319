"""L2 norms of the blocks' outputs over depth (Figure 9's data), and the law of their growth."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from torch import Tensor, nn

from mambanorm.inside import blocks_of, preserve_state, token_norms
from mambanorm_study.basics.settings import FLAT
from mambanorm_study.runs.result import StoredRun

EXPONENTIAL = "exponential (log y ~ l)"
# Name of a law → the function of depth l on which log y depends linearly. y is the L2 norm of a
# block's output.
GROWTH_LAWS = {
    "flat": np.zeros_like,
    EXPONENTIAL: np.asarray,
    "power law (log y ~ log l)": np.log,
    "faster (log y ~ l²)": np.square,
}

# Decades from 1 to the largest float32. Outputs that overflow have grown by at least this much.
FLOAT32_DECADES = 38.0


def norms_by_depth(
    models: Mapping[str, nn.Module],
    x: Tensor,
    lengths: Tensor | None = None,
    *,
    phase: str = "initial",
) -> pd.DataFrame:
    """Return the L2 norm of each token after each block of several models, in train and in eval
    mode: one row for each model, mode, block, site and token.

    Columns: those of `token_norms` (depth, site, l2), arm, mode ("train" or "eval"), phase,
    n_layers (number of blocks). models: arm → model. x, lengths: the input of every model. phase:
    the text for the column phase, e.g. "initial" or "trained".
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
    """Return quantiles of ‖y‖₂ over the tokens of each block, one row for each depth. Columns:
    median, largest, and nonfinite (the share of tokens whose ‖y‖₂ is not finite).

    tokens: the rows that a table of `norms_by_depth` has for one model, mode and site. A ‖y‖₂ that
    is not finite (NaN included) counts as infinite, because omitting such tokens would make the
    quantiles describe only the finite tokens.
    """
    l2 = tokens.l2.where(np.isfinite(tokens.l2), np.inf)
    blocks = l2.groupby(tokens.depth)
    return blocks.agg(median="median", largest="max", nonfinite=lambda l2: np.isinf(l2).mean())


def growth_fits(depth: np.ndarray, log_y: np.ndarray) -> pd.DataFrame:
    """Return least-squares fits of log y as a function of depth l, one row for each law in
    GROWTH_LAWS, the law with the lowest AIC first.

    Columns: law, slope (of log y over the law's function of l; 0 for "flat"), r2, aic, delta_aic
    (the AIC of this law minus the lowest AIC). The laws can be compared only if there are at least
    four depths.
    """
    rows = []
    for law, transform in GROWTH_LAWS.items():
        t, degree = transform(np.asarray(depth, float)), int(law != "flat")
        coefficients = np.polyfit(t, log_y, degree)
        squares = np.sum((log_y - np.polyval(coefficients, t)) ** 2)
        aic = len(t) * np.log(max(squares, 1e-300) / len(t)) + 2 * (degree + 2)
        r2 = 1 - squares / np.sum((log_y - np.mean(log_y)) ** 2)
        rows.append((law, coefficients[0] if degree else 0.0, r2, aic))
    fits = pd.DataFrame(rows, columns=["law", "slope", "r2", "aic"])
    fits = fits.sort_values("aic", ignore_index=True)
    return fits.assign(delta_aic=fits.aic - fits.aic[0])


def growth(y: pd.Series) -> dict[str, str | float]:
    """Return how the L2 norm y of the blocks' outputs grows with depth (the index of y), as a
    dictionary with these keys:

    law            the law of GROWTH_LAWS with the smallest AIC. Exceptions: "flat" if the slope is
                   negligible (FLAT) and y is about the same in all blocks; "no trend" if the slope
                   is negligible but y is not about the same in all blocks, or if no law is better
                   than a constant; "explodes (non-finite from block k)"; "vanishes (0 in block k)";
                   "–" for fewer than four blocks
    r2             r² of the fit by this law; NaN for the exceptions
    decades_per_8  the slope of log₁₀ y over depth, times 8 blocks. If y is not finite for a block,
                   a lower bound: FLOAT32_DECADES divided by the number of blocks, times 8. NaN if y
                   is 0 in a block
    margin         the smallest AIC among the laws that are not exponential minus the AIC of the
                   exponential law: positive if the exponential law fits best; 0 if the laws were
                   not compared
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


def growth_facts(run: StoredRun) -> dict[str, float]:
    """Return {"growth": g, "law": m} for the last finite step of a run: g and m are decades_per_8
    and margin, as `growth` computes them from the largest ‖y‖₂ of a token after each block. {} is
    returned if the run failed in its first step.
    """
    if "ring_step" not in run.diagnostics:
        return {}
    outputs = run.diagnostics["ring_outputs"][-1]  # (layers,)
    law = growth(pd.Series(outputs, index=np.arange(len(outputs)) + 1))
    return {"growth": law["decades_per_8"], "law": law["margin"]}


def _growth(
    law: str, decades: float, margin: float = 0.0, r2: float = np.nan
) -> dict[str, str | float]:
    return {"law": law, "r2": r2, "decades_per_8": float(decades), "margin": float(margin)}
