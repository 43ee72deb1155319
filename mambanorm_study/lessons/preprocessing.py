"""How the scale of the input features affects gradient descent: measurements of 178 wines.

A linear model w·x without intercept is fitted to a centred target by full-batch gradient descent.
The loss is quadratic with the Hessian H = 2 XᵀX / n. The largest eigenvalue of H bounds the
learning rate, and the smallest eigenvalue sets the speed of descent. So the condition number, the
largest divided by the smallest eigenvalue, determines the number of steps.

Source: Aeberhard & Forina (1991), Wine, UCI, doi:10.24432/C5PC7J; scikit-learn `load_wine`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEATURES, TARGET = ("alcalinity_of_ash", "hue"), "alcohol"
# Descent has converged when at most this share of the removable loss is left. The removable loss is
# the loss at w = 0 minus the smallest possible loss.
CONVERGED_SHARE = 0.01
# Name of a scaling → function of the features x (n, features). "raw" only centres each feature.
SCALINGS = {
    "raw": lambda x: x - x.mean(0),
    "min–max": lambda x: (x - x.min(0)) / np.ptp(x, 0),
    "min–max, centred": lambda x: (x - x.mean(0)) / np.ptp(x, 0),
    "standardised": lambda x: (x - x.mean(0)) / x.std(0),
}


def wines() -> pd.DataFrame:
    """Return 178 wines (rows) with 13 measurements (columns), in the units of the laboratory."""
    from sklearn.datasets import load_wine  # imported here because it takes a second

    return load_wine(as_frame=True).data


def wine_problem(scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the scaled FEATURES of the wines (178, 2) and the standardized TARGET (178,).

    scaling: a key of SCALINGS.
    """
    frame = wines()
    x, y = frame[list(FEATURES)].to_numpy(), frame[TARGET].to_numpy()
    return SCALINGS[scaling](x), SCALINGS["standardised"](y)


def hessian_eigenvalues(x: np.ndarray) -> np.ndarray:
    """Return the eigenvalues (features,) of H = 2 XᵀX / n, ascending, for X = x (n, features)."""
    return np.linalg.eigvalsh(2 * x.T @ x / len(x))


def squared_error(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the mean of (x·w − y)² for one w (features,) or for many (…, features)."""
    return ((w @ x.T - y) ** 2).mean(-1)


def descend(
    x: np.ndarray, y: np.ndarray, *, lr: float | None = None, steps: int = 2000
) -> pd.DataFrame:
    """Run gradient descent on the mean of (x·w − y)² from w = 0; return the path, one row per step.

    Columns: step, w0, w1, … (the weights), loss, left (the share of the removable loss that is
    left; the removable loss is the loss at w = 0 minus the smallest possible loss).

    x (n, features), y (n,). lr: None means 1 divided by the largest eigenvalue of H; above twice
    that value, descent diverges. Descent stops when `left` is at most CONVERGED_SHARE, when the
    loss is not finite, or after `steps` steps.
    """
    lr = 1 / hessian_eigenvalues(x)[-1] if lr is None else lr
    w, path = np.zeros(x.shape[1]), []
    best = squared_error(x, y, np.linalg.lstsq(x, y, rcond=None)[0])
    first = squared_error(x, y, w)
    for step in range(steps + 1):
        loss = squared_error(x, y, w)
        left = (loss - best) / (first - best)
        path.append([step, *w, loss, left])
        if left <= CONVERGED_SHARE or not np.isfinite(loss):
            break
        w = w - lr * 2 * x.T @ (x @ w - y) / len(x)
    return pd.DataFrame(path, columns=["step", *(f"w{i}" for i in range(len(w))), "loss", "left"])


def outlier_table() -> pd.DataFrame:
    """Return how a wrong value of one wine changes the scaled proline of the other wines.

    An entry is the range of proline over all wines but the first, divided by a measure of spread
    over all wines. Rows, with the measure: "min–max" (range), "standardised" (standard deviation),
    "robust" (distance between the quartiles). Columns: "as measured", and "one wrong", where the
    proline of the first wine is a hundred times too large.
    """
    x = wines()["proline"].to_numpy()
    wrong = x.copy()
    wrong[0] *= 100
    spreads = {
        "min–max": np.ptp,
        "standardised": np.std,
        "robust": lambda v: np.subtract(*np.percentile(v, [75, 25])),
    }
    rows = {name: [np.ptp(x[1:]) / f(v) for v in (x, wrong)] for name, f in spreads.items()}
    table = pd.DataFrame(rows, index=["as measured", "one wrong"]).T
    return table.rename_axis("scaling")


@dataclass(frozen=True)
class Bowl:
    """The loss as a function of two weights, and the path of gradient descent (see `descend`).

    w0, w1: the values of the two weights, (n,) each. loss: (n, n), one row per value of w1 and one
    column per value of w0.
    """

    w0: np.ndarray
    w1: np.ndarray
    loss: np.ndarray
    path: pd.DataFrame


def loss_bowl(scaling: str) -> Bowl:
    """Return the loss of `wine_problem` around its minimum, and the path of gradient descent.

    scaling: a key of SCALINGS.
    """
    x, y = wine_problem(scaling)
    path, best = descend(x, y), np.linalg.lstsq(x, y, rcond=None)[0]
    reach = 1.4 * np.abs(best).max()  # the same for w0 and w1, so that their axes are comparable
    w0, w1 = (np.linspace(centre - reach, centre + reach, 120) for centre in best)
    grid = np.stack(np.meshgrid(w0, w1), axis=-1)  # (w1, w0, 2)
    return Bowl(w0, w1, squared_error(x, y, grid), path)


def scaling_table() -> pd.DataFrame:
    """Return the condition number and the number of steps of gradient descent, one row per scaling.

    Columns: condition, steps (until 99 % of the removable loss is removed; NaN if descent ends
    earlier).
    """
    rows = []
    for scaling in SCALINGS:
        x, y = wine_problem(scaling)
        path, eigenvalues = descend(x, y), hessian_eigenvalues(x)
        steps = len(path) - 1 if path.left.iloc[-1] <= CONVERGED_SHARE else np.nan
        rows.append(dict(features=scaling, condition=eigenvalues[-1] / eigenvalues[0], steps=steps))
    return pd.DataFrame(rows).set_index("features")
