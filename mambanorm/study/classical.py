"""Rivals that take a second: classical regressors on a run's own split of a table (notebook 10)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV

from mambanorm.tasks import load_task


def rivals() -> dict[str, object]:
    """Boosted trees and a linear model, with scikit-learn's defaults."""
    return {"boosted trees": HistGradientBoostingRegressor(random_state=0), "linear": RidgeCV()}


def classical_rmse(model, task: str, scale: str, seed: int) -> float:
    """The RMSE of a regressor on the test rows of a table's split, in the target's units; the mean over its targets."""
    data = load_task(task, scale, seed)
    place = range(data.train.inputs.shape[1])  # column j of the table is the diagonal: position j, slot j
    (x, y), (x_test, y_test) = ((s.inputs[:, place, place].numpy(), s.labels.numpy()) for s in (data.train, data.test))
    found = [model.fit(x, t).predict(x_test) for t in y.T]
    return float(np.mean([np.sqrt(np.mean((p - t) ** 2)) for p, t in zip(found, y_test.T, strict=True)]))


def available(tasks: Iterable[str], scale: str) -> list[str]:
    """Those of the tasks whose data are here; the others are named, with what to do, in a printed line."""
    found = []
    for task in tasks:
        try:
            load_task(task, scale, 0)
        except ValueError as missing:
            print(missing)
        else:
            found.append(task)
    return found


def beside_rivals(runs: pd.DataFrame, arms: Iterable[str], scale: str) -> pd.DataFrame:
    """One row a table: RMSE of the arms and of the `rivals`, means over the seeds of the run frame, then that of
    predicting the training mean, the target, and `best`: the arm that is best on validation."""
    table = runs.pivot_table(index="task", columns="arm", values="rmse", sort=False)[list(arms)].astype(float)
    seeds = sorted(runs.seed.unique())
    for name, model in rivals().items():
        table[name] = [np.mean([classical_rmse(model, task, scale, int(s)) for s in seeds]) for task in table.index]
    table["training mean"] = runs.groupby("task").chance_rmse.mean()
    table["target"] = ["; ".join(load_task(task, scale, 0).targets) for task in table.index]
    chosen = runs.groupby(["task", "arm"]).best_val_accuracy.mean()
    return table.assign(best=[chosen[task].idxmax() for task in table.index])
