"""Trained models on corrupted rows, their latency (S2, §IV.C.4), and classical models beside them.

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

# Kind → severities: Gaussian noise in standard deviations of the split's inputs; a rotation in
# degrees, each picture by a random angle, uniform in ±severity.
CORRUPTIONS: dict[str, tuple[float, ...]] = {
    "noise": (0.1, 0.2, 0.4, 0.8),
    "rotation": (10.0, 20.0, 30.0, 45.0),
}

FACTS = ["run_id", "task", "arm", "seed"]
COLUMNS = [*FACTS, "kind", "severity", "accuracy"]


def kinds_of(split: Split) -> list[str]:
    """Return the corruptions that a split can have: images both, other real values noise, token ids
    and tables none.
    """
    if len(split.inputs.shape) == 4:
        return ["noise", "rotation"]
    return ["noise"] if split.inputs.dtype.is_floating_point and not split.is_regression else []


def corrupted(split: Split, kind: str, severity: float, seed: int = 0) -> Split:
    """Return the split with every row corrupted by one of its `kinds_of`; the seed decides how."""
    inputs, _, _ = split.batch(slice(None))
    rng = np.random.default_rng([seed, list(CORRUPTIONS).index(kind)])
    if kind == "noise":
        noise = torch.as_tensor(rng.standard_normal(inputs.shape), dtype=torch.float32)
        inputs = inputs + severity * inputs.std() * noise
    else:
        inputs = rotated(inputs, torch.as_tensor(rng.uniform(-severity, severity, len(inputs))))
    return Split(inputs, split.labels, split.lengths)


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Return images (B, H, W, C), each turned by its angle (B,) about its centre, bilinear, with
    the border continued.
    """
    angle = torch.deg2rad(degrees).float()
    H, W = images.shape[1:3]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    first_row = torch.stack([cos, -sin * H / W, zero], -1)
    second_row = torch.stack([sin * W / H, cos, zero], -1)
    x = images.permute(0, 3, 1, 2)
    turn = torch.stack([first_row, second_row], 1)
    grid = F.affine_grid(turn, list(x.shape), align_corners=False)
    turned = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return turned.permute(0, 2, 3, 1).contiguous()


def stored_model(run: StoredRun) -> nn.Module:
    """Return the model of a stored run with the weights of its best validation step."""
    config = run.config
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    model.load_state_dict(run.checkpoint)
    return model


def trained_model(config: RunConfig, runs_dir: str | Path | None = None) -> nn.Module:
    """Return the stored model of a config in eval mode. ValueError if the run is not stored."""
    run = find_run(config, runs_dir)
    if run is None:
        raise ValueError(
            f"run {config.run_id} ({config.task}, {config.arm}) is not stored: train it first"
        )
    return stored_model(run).eval()


def robustness_table(
    configs: Iterable[RunConfig], runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return one row a run, kind and severity (0 = clean rows): run_id, task, arm, seed, kind,
    severity, accuracy.

    All runs of one task and seed see the same corrupted rows. Tasks of token ids and tables have no
    row.
    """
    rows = []
    for config in configs:
        data = load_task(config.task, config.scale, config.seed)
        model = trained_model(config, runs_dir)
        facts = {name: getattr(config, name) for name in FACTS}
        for kind in kinds_of(data.test):
            for severity in (0.0, *CORRUPTIONS[kind]):
                split = corrupted(data.test, kind, severity, config.seed) if severity else data.test
                with exactly_threads(config.threads):
                    predictions = predict(model, split, config, torch.device("cpu"), data.units)
                result = {"kind": kind, "severity": severity, "accuracy": accuracy(predictions)}
                rows.append(facts | result)
    return pd.DataFrame(rows, columns=COLUMNS)


def recorded_corrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of `robustness_table` for recorded runs, which store each kind's mean over
    its severities: severity 0 and NaN. No row for a run without them.
    """
    kinds = [kind for kind in CORRUPTIONS if kind in runs]
    kept = runs.dropna(subset=kinds) if kinds else runs.iloc[:0]
    mean = kept.melt(FACTS, kinds, var_name="kind", value_name="accuracy").assign(severity=np.nan)
    clean_accuracy = mean.run_id.map(kept.set_index("run_id").test_accuracy)
    clean = mean.assign(severity=0.0, accuracy=clean_accuracy)
    return pd.concat([clean, mean], ignore_index=True).reindex(columns=COLUMNS)


def against(table: pd.DataFrame, reference: str = "FrozenLN") -> pd.DataFrame:
    """Return one row a task, kind and arm of `robustness_table` or `recorded_corrupted`.

    Columns: corrupted (mean accuracy over the severities, per cent), change (that minus the clean
    accuracy, points), accuracy_gap and change_gap (both minus those of the reference arm, a series
    over seeds; empty for the reference). No row for an empty table.
    """
    clean = table[table.severity == 0].drop_duplicates("run_id").set_index("run_id").accuracy
    keys = ["task", "kind", "seed", "arm", "run_id"]
    mean = table[table.severity != 0].groupby(keys).accuracy.mean().reset_index()
    mean["change"] = mean.accuracy - mean.run_id.map(clean)
    rows = []
    for (task, kind), group in mean.groupby(["task", "kind"]):
        level = 100 * group.pivot(index="seed", columns="arm", values="accuracy")
        change = 100 * group.pivot(index="seed", columns="arm", values="change")
        for arm in level.columns:
            accuracy_gap = change_gap = pd.Series(dtype=float)
            if arm != reference:
                accuracy_gap = (level[arm] - level[reference]).dropna()
                change_gap = (change[arm] - change[reference]).dropna()
            means = (level[arm].mean(), change[arm].mean())
            rows.append((task, kind, arm, *means, accuracy_gap, change_gap))
    columns = ["task", "kind", "arm", "corrupted", "change", "accuracy_gap", "change_gap"]
    return pd.DataFrame(rows, columns=columns)


def latency_table(
    configs: Iterable[RunConfig], rows: Sequence[int] = (1, 64), repeats: int = 10, warm: int = 2
) -> pd.DataFrame:
    """Return the milliseconds of a forward pass in eval mode, with the run's threads: median,
    quartiles low and high, a row for each config and number of rows.

    All are timed in turn, so that a busy moment slows all.
    """
    cases, facts = [], []
    for config in configs:
        data = load_task(config.task, config.scale, config.seed)
        device = machine.pick_device(config.device)
        model = build_model(config, data).to(device).eval()
        for n in rows:
            inputs, lengths, _ = data.test.batch(torch.arange(n) % len(data.test))
            lengths = None if lengths is None else lengths.to(device)
            cases.append((config.threads, model, inputs.to(device), lengths))
            facts.append({"task": config.task, "arm": config.arm, "rows": n})
    rounds = [[_forward_ms(*case) for case in cases] for _ in range(warm + repeats)]
    low, median, high = np.quantile(np.array(rounds[warm:]), [0.25, 0.5, 0.75], axis=0)
    return pd.DataFrame(facts).assign(ms=median, low=low, high=high)


@torch.no_grad()
def _forward_ms(threads: int, model: nn.Module, inputs: Tensor, lengths: Tensor | None) -> float:
    with exactly_threads(threads):
        start = time.perf_counter()
        model(inputs, lengths)
        if inputs.device.type != "cpu":
            torch.accelerator.synchronize()
        return 1e3 * (time.perf_counter() - start)


# --------------------------------------------------------------------------------------------------
# classical models of tables, which train in a second


def beside_rivals(runs: pd.DataFrame, arms: Iterable[str], scale: str) -> pd.DataFrame:
    """Return one row a table: the RMSE of the arms, of boosted trees and of a linear model with
    scikit-learn's defaults, means over the seeds of the run frame.

    Then the RMSE of predicting the training mean, the target, and `best`: the arm that is best on
    validation.
    """
    # imported here: it takes a second
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    table = runs.pivot_table(index="task", columns="arm", values="rmse", sort=False)
    table = table[list(arms)].astype(float)
    seeds = [int(seed) for seed in sorted(runs.seed.unique())]
    rivals = {
        "boosted trees": HistGradientBoostingRegressor(random_state=0),
        "linear": RidgeCV(),
    }
    for name, model in rivals.items():
        for task in table.index:
            errors = [_rmse(model, task, scale, seed) for seed in seeds]
            table.loc[task, name] = np.mean(errors)
    table["training mean"] = runs.groupby("task").chance_rmse.mean()
    table["target"] = ["; ".join(load_task(task, scale, 0).targets) for task in table.index]
    validation = runs.groupby(["task", "arm"]).best_val_accuracy.mean()
    return table.assign(best=[validation[task].idxmax() for task in table.index])


def _rmse(model, task: str, scale: str, seed: int) -> float:
    """Return the RMSE of a regressor on the test rows of a table's split, in the target's units;
    the mean over its targets.
    """
    data = load_task(task, scale, seed)
    # column j of the table is the diagonal: position j, slot j
    x, x_test = (split.inputs.diagonal(dim1=1, dim2=2).numpy() for split in (data.train, data.test))
    errors = []
    for target, truth in zip(data.train.labels.numpy().T, data.test.labels.numpy().T, strict=True):
        prediction = model.fit(x, target).predict(x_test)
        errors.append(np.sqrt(np.mean((prediction - truth) ** 2)))
    return float(np.mean(errors))
