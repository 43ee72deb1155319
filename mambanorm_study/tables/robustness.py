"""Trained models on corrupted rows, how fast they answer (S2, §IV.C.4), and classical rivals beside
them.

Severities are this kit's: S2 names noise and rotation and gives neither strength nor angle.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import machine
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import accuracy, predict
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run
from mambanorm_study.tasks import Split, load_task

CORRUPTIONS: dict[str, tuple[float, ...]] = {
    "noise": (0.1, 0.2, 0.4, 0.8),
    "rotation": (10.0, 20.0, 30.0, 45.0),
}
"""Kind → severities. Of Gaussian noise × the standard deviation of the split's inputs; of a
rotation degrees at most, each picture by its own angle, uniform in ±severity."""

FACTS = ["run_id", "task", "arm", "seed"]
COLUMNS = [*FACTS, "kind", "severity", "accuracy"]


def kinds_of(split: Split) -> list[str]:
    """The corruptions that a split can have: token ids and tables none, other real values noise,
    images both."""
    if len(split.inputs.shape) == 4:
        return ["noise", "rotation"]
    return ["noise"] if split.inputs.dtype.is_floating_point and not split.is_regression else []


def corrupted(split: Split, kind: str, severity: float, seed: int = 0) -> Split:
    """The split with every row corrupted, by one of `kinds_of` it; the seed decides how."""
    inputs, _, _ = split.batch(slice(None))
    rng = np.random.default_rng([seed, list(CORRUPTIONS).index(kind)])
    if kind == "noise":
        noise = torch.as_tensor(rng.standard_normal(inputs.shape), dtype=torch.float32)
        inputs = inputs + severity * inputs.std() * noise
    else:
        inputs = rotated(inputs, torch.as_tensor(rng.uniform(-severity, severity, len(inputs))))
    return Split(inputs, split.labels, split.lengths)


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Images (B, H, W, C), each turned by its angle (B,) about its centre, bilinear, the border
    continued."""
    angle = torch.deg2rad(degrees).float()
    H, W = images.shape[1:3]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack(
        [torch.stack([cos, -sin * H / W, zero], -1), torch.stack([sin * W / H, cos, zero], -1)], 1
    )
    x = images.permute(0, 3, 1, 2)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    return (
        F.grid_sample(x, grid, padding_mode="border", align_corners=False)
        .permute(0, 2, 3, 1)
        .contiguous()
    )


def stored_model(run: StoredRun) -> nn.Module:
    """The model of a stored run with the weights of its best validation step."""
    config = run.config
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    model.load_state_dict(run.checkpoint)
    return model


def trained_model(config: RunConfig, runs_dir: str | Path | None = None) -> nn.Module:
    """The same of a config, ready to be asked. ValueError if the run is not stored."""
    run = find_run(config, runs_dir)
    if run is None:
        raise ValueError(
            f"run {config.run_id} ({config.task}, {config.arm}) is not stored: train it first"
        )
    return stored_model(run).eval()


def robustness_table(
    configs: Iterable[RunConfig], runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """One row a run, kind and severity, 0 = as it was tested: run_id, task, arm, seed, kind,
    severity, accuracy.

    All runs of one task and seed see the same corrupted rows. Tasks of token ids and tables have no
    row."""
    rows = []
    for config in configs:
        data, model = (
            load_task(config.task, config.scale, config.seed),
            trained_model(config, runs_dir),
        )
        facts = {name: getattr(config, name) for name in FACTS}
        for kind in kinds_of(data.test):
            for severity in (0.0, *CORRUPTIONS[kind]):
                split = corrupted(data.test, kind, severity, config.seed) if severity else data.test
                with exactly_threads(config.threads):
                    found = predict(model, split, config, torch.device("cpu"), data.units)
                rows.append(facts | dict(kind=kind, severity=severity, accuracy=accuracy(found)))
    return pd.DataFrame(rows, columns=COLUMNS)


def recorded_corrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """The same of recorded runs, which keep each kind's mean over its severities: severity 0 and
    NaN. No row for a run that kept none."""
    kinds = [kind for kind in CORRUPTIONS if kind in runs]
    kept = runs.dropna(subset=kinds) if kinds else runs.iloc[:0]
    long = kept.melt(FACTS, kinds, var_name="kind", value_name="accuracy").assign(severity=np.nan)
    clean = long.assign(
        severity=0.0, accuracy=long.run_id.map(kept.set_index("run_id").test_accuracy)
    )
    return pd.concat([clean, long], ignore_index=True).reindex(columns=COLUMNS)


def against(table: pd.DataFrame, reference: str = "FrozenLN") -> pd.DataFrame:
    """One row a task, kind and arm of `robustness_table` or `recorded_corrupted`: corrupted (mean
    accuracy over the severities, per cent), change (that minus the clean accuracy, points), and
    both minus those of the reference arm, seed by seed, as series (accuracy_gap, change_gap; the
    reference's own are empty). No row for an empty table."""
    clean = table[table.severity == 0].drop_duplicates("run_id").set_index("run_id").accuracy
    keys = ["task", "kind", "seed", "arm", "run_id"]
    mean = table[table.severity != 0].groupby(keys).accuracy.mean().reset_index()
    mean["change"] = mean.accuracy - mean.run_id.map(clean)
    rows = []
    for (task, kind), mine in mean.groupby(["task", "kind"]):
        level, change = (
            100 * mine.pivot(index="seed", columns="arm", values=v) for v in ("accuracy", "change")
        )
        for arm in level.columns:
            facts = dict(
                task=task,
                kind=kind,
                arm=arm,
                corrupted=level[arm].mean(),
                change=change[arm].mean(),
            )
            both = {"accuracy_gap": level, "change_gap": change}
            gap = {
                name: (values[arm] - values[reference]).dropna() for name, values in both.items()
            }
            rows.append(
                facts | (gap if arm != reference else dict.fromkeys(gap, pd.Series(dtype=float)))
            )
    return pd.DataFrame(
        rows, columns=["task", "kind", "arm", "corrupted", "change", "accuracy_gap", "change_gap"]
    )


def latency_table(
    configs: Iterable[RunConfig], rows: Sequence[int] = (1, 64), repeats: int = 10, warm: int = 2
) -> pd.DataFrame:
    """Milliseconds of a forward pass in eval mode, with the run's threads: median, quartiles low
    and high, a row for each config and number of rows. All are timed in turn, so that a busy moment
    slows all."""
    work = []
    for config in configs:
        data = load_task(config.task, config.scale, config.seed)
        device = machine.pick_device(config.device)
        model = build_model(config, data).to(device).eval()
        for n in rows:
            inputs, lengths, _ = data.test.batch(torch.arange(n) % len(data.test))
            inputs, lengths = inputs.to(device), None if lengths is None else lengths.to(device)
            work.append((config, n, model, inputs, lengths))
    rounds = []
    for _ in range(warm + repeats):
        rounds.append([])
        for config, _, model, inputs, lengths in work:
            with exactly_threads(config.threads), torch.no_grad():
                start = time.perf_counter()
                model(inputs, lengths)
                if inputs.device.type != "cpu":
                    torch.accelerator.synchronize()
                rounds[-1].append(1e3 * (time.perf_counter() - start))
    low, median, high = np.quantile(np.array(rounds[warm:]), [0.25, 0.5, 0.75], axis=0)
    names = [dict(task=config.task, arm=config.arm, rows=n) for config, n, *_ in work]
    return pd.DataFrame(names).assign(ms=median, low=low, high=high)


# --------------------------------------------------------------------------------------------------
# rivals that take a second


def beside_rivals(runs: pd.DataFrame, arms: Iterable[str], scale: str) -> pd.DataFrame:
    """One row a table: RMSE of the arms, of boosted trees and of a linear model with scikit-learn's
    defaults, means over the seeds of the run frame, then that of predicting the training mean, the
    target, and `best`: the arm that is best on validation."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # here: it takes a second
    from sklearn.linear_model import RidgeCV

    table = runs.pivot_table(index="task", columns="arm", values="rmse", sort=False)[
        list(arms)
    ].astype(float)
    seeds = sorted(runs.seed.unique())
    for name, model in {
        "boosted trees": HistGradientBoostingRegressor(random_state=0),
        "linear": RidgeCV(),
    }.items():
        table[name] = [
            np.mean([_rmse(model, task, scale, int(s)) for s in seeds]) for task in table.index
        ]
    table["training mean"] = runs.groupby("task").chance_rmse.mean()
    table["target"] = ["; ".join(load_task(task, scale, 0).targets) for task in table.index]
    chosen = runs.groupby(["task", "arm"]).best_val_accuracy.mean()
    return table.assign(best=[chosen[task].idxmax() for task in table.index])


def _rmse(model, task: str, scale: str, seed: int) -> float:
    """The RMSE of a regressor on the test rows of a table's split, in the target's units; the mean
    over its targets."""
    data = load_task(task, scale, seed)
    place = range(
        data.train.inputs.shape[1]
    )  # column j of the table is the diagonal: position j, slot j
    (x, y), (x_test, y_test) = (
        (s.inputs[:, place, place].numpy(), s.labels.numpy()) for s in (data.train, data.test)
    )
    found = [model.fit(x, t).predict(x_test) for t in y.T]
    return float(
        np.mean([np.sqrt(np.mean((p - t) ** 2)) for p, t in zip(found, y_test.T, strict=True)])
    )
