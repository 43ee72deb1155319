"""What the scale of the input features does to gradient descent, on real measurements of 178 wines.

A linear model w·x without intercept is fitted to a centred target by full-batch gradient descent.
Its loss is a bowl whose steepness is the matrix H = 2 XᵀX / n. The largest eigenvalue of H bounds
the learning rate, the smallest sets the speed, so their ratio, the condition number, says how many
steps it takes.

Source: Aeberhard & Forina (1991), Wine, UCI, doi:10.24432/C5PC7J; scikit-learn `load_wine`.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

FEATURES, TARGET = ("alcalinity_of_ash", "hue"), "alcohol"
CLOSE = 0.01
"""Converged: this share of the loss that can be removed is left."""


def wines() -> pd.DataFrame:
    """178 wines, 13 measurements each, in the units of the laboratory."""
    from sklearn.datasets import load_wine  # here: scikit-learn takes a second

    return load_wine(as_frame=True).data


def scaled(x: np.ndarray, how: str) -> np.ndarray:
    """Columns of x (n, features): "raw" but centred, "min–max" to [0, 1], "min–max, centred", or
    "standardised"."""
    if how == "min–max":
        return (x - x.min(0)) / np.ptp(x, 0)
    return (x - x.mean(0)) / {"raw": 1, "min–max, centred": np.ptp(x, 0), "standardised": x.std(0)}[
        how
    ]


def wine_problem(how: str) -> tuple[np.ndarray, np.ndarray]:
    """Two features of the wines, scaled in that way (178, 2), and the standardised target
    (178,)."""
    frame = wines()
    return scaled(frame[list(FEATURES)].to_numpy(), how), scaled(
        frame[TARGET].to_numpy(), "standardised"
    )


def curvature(x: np.ndarray) -> np.ndarray:
    """Eigenvalues of H = 2 XᵀX / n, the smallest first."""
    return np.linalg.eigvalsh(2 * x.T @ x / len(x))


def squared_error(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Mean of (x·w − y)² for one w (features,) or many (…, features)."""
    return ((w @ x.T - y) ** 2).mean(-1)


def descend(
    x: np.ndarray, y: np.ndarray, *, rate: float | None = None, steps: int = 2000
) -> pd.DataFrame:
    """Gradient descent from w = 0: columns step, w0, w1, …, loss and left: the share of the
    removable loss.

    `rate`: None = 1 over the largest eigenvalue of H, the safest quick one; from twice that on it
    diverges. Stops once CLOSE is reached.
    """
    rate = 1 / curvature(x)[-1] if rate is None else rate
    w, rows = np.zeros(x.shape[1]), []
    best = squared_error(x, y, np.linalg.lstsq(x, y, rcond=None)[0])
    first = squared_error(x, y, w)
    for step in range(steps + 1):
        loss = squared_error(x, y, w)
        left = (loss - best) / (first - best)
        rows.append(
            dict(step=step, **{f"w{i}": value for i, value in enumerate(w)}, loss=loss, left=left)
        )
        if left <= CLOSE or not np.isfinite(loss):
            break
        w = w - rate * 2 * x.T @ (x @ w - y) / len(x)
    return pd.DataFrame(rows)


def outlier_table() -> pd.DataFrame:
    """The range (largest minus smallest) of all wines but the first after scaling their proline by
    min–max, by mean and standard deviation, and by median and quartiles ("robust"): as measured,
    and after the first wine's value was typed a hundred times too large. Rows ways, columns "as
    measured" and "one wrong"."""
    x = wines()["proline"].to_numpy()
    wrong = np.where(np.arange(len(x)) == 0, 100 * x, x)
    ways = {
        "min–max": np.ptp,
        "standardised": np.std,
        "robust": lambda v: np.subtract(*np.percentile(v, [75, 25])),
    }
    rows = {how: [np.ptp(x[1:]) / size(v) for v in (x, wrong)] for how, size in ways.items()}
    return pd.DataFrame.from_dict(
        rows, orient="index", columns=["as measured", "one wrong"]
    ).rename_axis("scaling")


@dataclass(frozen=True)
class Bowl:
    """The loss over the two weights, and the way down: w0 and w1 (n,), loss (n of w1, n of w0),
    path of `descend`."""

    w0: np.ndarray
    w1: np.ndarray
    loss: np.ndarray
    path: pd.DataFrame


def bowl(how: str) -> Bowl:
    """The loss surface around the path of gradient descent from w = 0, for one way of scaling the
    two features."""
    x, y = wine_problem(how)
    path, best = descend(x, y), np.linalg.lstsq(x, y, rcond=None)[0]
    reach = (
        1.4 * np.abs(best).max()
    )  # the same for both weights, so that a valley looks as narrow as it is
    w0, w1 = (np.linspace(centre - reach, centre + reach, 120) for centre in best)
    grid = np.stack(np.meshgrid(w0, w1), axis=-1)  # (w1, w0, 2)
    return Bowl(w0, w1, squared_error(x, y, grid), path)


def scaling_table() -> pd.DataFrame:
    """One row a way of scaling: the condition number and the steps until 99 % of the removable loss
    is gone (NaN if that was not reached)."""
    rows = []
    for how in ("raw", "min–max", "min–max, centred", "standardised"):
        x, y = wine_problem(how)
        path, (low, *_, high) = descend(x, y), curvature(x)
        steps = path.step.iloc[-1] if path.left.iloc[-1] <= CLOSE else np.nan
        rows.append(dict(features=how, condition=high / low, steps=steps))
    return pd.DataFrame(rows).set_index("features")
