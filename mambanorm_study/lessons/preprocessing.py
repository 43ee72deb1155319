"""What the scale of the input features does to gradient descent, on measurements of 178 wines.

A linear model w·x without intercept is fitted to a centred target by full-batch gradient descent.
The loss is a bowl with the curvature matrix H = 2 XᵀX / n. The largest eigenvalue of H bounds the
learning rate, and the smallest sets the speed. So their ratio, the condition number, determines the
number of steps.

Source: Aeberhard & Forina (1991), Wine, UCI, doi:10.24432/C5PC7J; scikit-learn `load_wine`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEATURES, TARGET = ("alcalinity_of_ash", "hue"), "alcohol"
# Descent has converged when this share of the removable loss is left
CLOSE = 0.01


def wines() -> pd.DataFrame:
    """Return 178 wines with 13 measurements each, in the units of the laboratory."""
    from sklearn.datasets import load_wine  # imported here because it takes a second

    return load_wine(as_frame=True).data


def scaled(x: np.ndarray, how: str) -> np.ndarray:
    """Return x (n, features) with scaled columns.

    how: "raw" (centred only), "min–max" (to [0, 1]), "min–max, centred", or "standardised".
    """
    if how == "min–max":
        return (x - x.min(0)) / np.ptp(x, 0)
    spread = {"raw": 1, "min–max, centred": np.ptp(x, 0), "standardised": x.std(0)}
    return (x - x.mean(0)) / spread[how]


def wine_problem(how: str) -> tuple[np.ndarray, np.ndarray]:
    """Return two scaled features of the wines (178, 2) and the standardized target (178,)."""
    frame = wines()
    x = scaled(frame[list(FEATURES)].to_numpy(), how)
    return x, scaled(frame[TARGET].to_numpy(), "standardised")


def curvature(x: np.ndarray) -> np.ndarray:
    """Return the eigenvalues of H = 2 XᵀX / n in ascending order."""
    return np.linalg.eigvalsh(2 * x.T @ x / len(x))


def squared_error(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the mean of (x·w − y)² for one w (features,) or for many (…, features)."""
    return ((w @ x.T - y) ** 2).mean(-1)


def descend(
    x: np.ndarray, y: np.ndarray, *, lr: float | None = None, steps: int = 2000
) -> pd.DataFrame:
    """Run gradient descent from w = 0 and return its path: step, w0, w1, …, loss, left.

    left: the share of the removable loss. lr: None = 1 over the largest eigenvalue of H; from twice
    that value on, descent diverges. Stops when CLOSE is reached.
    """
    if lr is None:
        lr = 1 / curvature(x)[-1]
    w, rows = np.zeros(x.shape[1]), []
    best = squared_error(x, y, np.linalg.lstsq(x, y, rcond=None)[0])
    first = squared_error(x, y, w)
    for step in range(steps + 1):
        loss = squared_error(x, y, w)
        left = (loss - best) / (first - best)
        weights = {f"w{i}": value for i, value in enumerate(w)}
        rows.append(dict(step=step, **weights, loss=loss, left=left))
        if left <= CLOSE or not np.isfinite(loss):
            break
        w = w - lr * 2 * x.T @ (x @ w - y) / len(x)
    return pd.DataFrame(rows)


def outlier_table() -> pd.DataFrame:
    """Return the range of all wines but the first after scaling their proline, in three ways.

    Rows: min–max, mean and standard deviation, median and quartiles ("robust"). Columns: "as
    measured", and "one wrong", where the first wine's value is a hundred times too large.
    """
    x = wines()["proline"].to_numpy()
    wrong = x.copy()
    wrong[0] *= 100
    spreads = {
        "min–max": np.ptp,
        "standardised": np.std,
        "robust": lambda v: np.subtract(*np.percentile(v, [75, 25])),
    }
    rows = {how: [np.ptp(x[1:]) / spread(v) for v in (x, wrong)] for how, spread in spreads.items()}
    table = pd.DataFrame(rows, index=["as measured", "one wrong"]).T
    return table.rename_axis("scaling")


@dataclass(frozen=True)
class Bowl:
    """The loss over two weights: axes w0, w1 (n,), loss (n of w1, n of w0), path of `descend`."""

    w0: np.ndarray
    w1: np.ndarray
    loss: np.ndarray
    path: pd.DataFrame


def bowl(how: str) -> Bowl:
    """Return the loss around the path of gradient descent, for one scaling of the features."""
    x, y = wine_problem(how)
    path, best = descend(x, y), np.linalg.lstsq(x, y, rcond=None)[0]
    reach = 1.4 * np.abs(best).max()  # equal for both weights, so that the axes are comparable
    w0, w1 = (np.linspace(centre - reach, centre + reach, 120) for centre in best)
    grid = np.stack(np.meshgrid(w0, w1), axis=-1)  # (w1, w0, 2)
    return Bowl(w0, w1, squared_error(x, y, grid), path)


def scaling_table() -> pd.DataFrame:
    """Return the condition number of each scaling, and the steps that remove 99 % of the loss.

    Steps are NaN if that was not reached.
    """
    rows = []
    for how in ("raw", "min–max", "min–max, centred", "standardised"):
        x, y = wine_problem(how)
        path, eigenvalues = descend(x, y), curvature(x)
        steps = path.step.iloc[-1] if path.left.iloc[-1] <= CLOSE else np.nan
        condition = eigenvalues[-1] / eigenvalues[0]
        rows.append(dict(features=how, condition=condition, steps=steps))
    return pd.DataFrame(rows).set_index("features")
