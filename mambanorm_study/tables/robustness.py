"""The accuracy of trained models on corrupted images, the latency of models, and classical models
for tabular data.

Corruptions and latency follow §IV.C.4 of the AutoNorm article (S2 in docs/sources.md). The article
names noise and rotation, but states no strength and no angle, so we chose the severities.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.benchmark import Timer

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import build, evaluation, machine
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.tasks import Split, load_task

# Kind of corruption → severities. For noise the severity is the standard deviation of the Gaussian
# noise, divided by that of the split's inputs. For rotation each image is rotated by a random
# angle, uniform between −severity and +severity degrees.
CORRUPTIONS: dict[str, tuple[float, ...]] = {
    "noise": (0.1, 0.2, 0.4, 0.8),
    "rotation": (10.0, 20.0, 30.0, 45.0),
}

RUN_COLUMNS = ["run_id", "task", "arm", "seed"]
COLUMNS = [*RUN_COLUMNS, "kind", "severity", "accuracy"]


def corrupted(split: Split, kind: str, severity: float, seed: int = 0) -> Split:
    """Return a copy of a split of images in which every image is corrupted. kind ("noise" or
    "rotation"), severity: see CORRUPTIONS. seed: determines the noise or the angles.
    """
    inputs, _, _ = split.batch(slice(None))
    rng = np.random.default_rng([seed, list(CORRUPTIONS).index(kind)])
    if kind == "noise":
        noise = torch.as_tensor(rng.standard_normal(inputs.shape), dtype=torch.float32)
        inputs = inputs + severity * inputs.std() * noise
    else:
        inputs = rotated(inputs, torch.as_tensor(rng.uniform(-severity, severity, len(inputs))))
    return Split(inputs, split.labels, split.lengths)


def rotated(images: Tensor, degrees: Tensor) -> Tensor:
    """Return images (B, H, W, C), each rotated about its centre by its angle from `degrees` (B,).

    Values between pixels are interpolated. Positions outside the original image get the value of
    the nearest pixel on its border.
    """
    angle = torch.deg2rad(degrees).float()
    H, W = images.shape[1:3]
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin * H / W, zero, sin * W / H, cos, zero], -1).view(-1, 2, 3)
    x = images.permute(0, 3, 1, 2)
    grid = nn.functional.affine_grid(turn, list(x.shape), align_corners=False)
    turned = nn.functional.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return turned.permute(0, 2, 3, 1).contiguous()


def stored_model(run: StoredRun) -> nn.Module:
    """Return the model of a stored run in eval mode, with the weights of the step that was best on
    validation.
    """
    config = run.config
    model = build.build_model(config, load_task(config.task, config.scale, config.seed))
    model.load_state_dict(run.checkpoint)
    return model.eval()


def robustness_table(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """Return the accuracy of stored runs on corrupted images of the test split: one row for each
    run, kind of corruption and severity.

    Columns: run_id, task, arm, seed, kind ("noise" or "rotation"), severity (0 means clean images),
    accuracy (fraction). All runs of one task and seed are tested on the same corrupted images.
    """
    rows, cpu = [], torch.device("cpu")
    for run in runs:
        config, model = run.config, stored_model(run)
        data = load_task(config.task, config.scale, config.seed)
        facts = [getattr(config, name) for name in RUN_COLUMNS]
        for kind, severities in CORRUPTIONS.items():
            for severity in (0.0, *severities):
                split = corrupted(data.test, kind, severity, config.seed) if severity else data.test
                with exactly_threads(config.threads):
                    predictions = evaluation.predict(model, split, config, cpu, data.units)
                rows.append((*facts, kind, severity, evaluation.accuracy(predictions)))
    return pd.DataFrame(rows, columns=COLUMNS)


def corrupted_facts(run: StoredRun) -> dict[str, float]:
    """Return {"noise": a, "rotation": b}: for each kind of corruption the accuracy of a run on
    corrupted test images, averaged over the severities.
    """
    table = robustness_table([run])
    return table[table.severity > 0].groupby("kind").accuracy.mean().to_dict()


def recorded_corrupted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the columns of `robustness_table` for those recorded runs that were
    tested on corrupted images.

    A run has two rows for each kind of corruption: one with severity 0 and the accuracy on clean
    images, and one with severity NaN and the mean accuracy over all severities.
    """
    kinds = [kind for kind in CORRUPTIONS if kind in runs]
    tested = runs.dropna(subset=kinds) if kinds else runs.iloc[:0]
    mean = tested.melt(RUN_COLUMNS, kinds, var_name="kind", value_name="accuracy").assign(
        severity=np.nan
    )
    clean_accuracy = mean.run_id.map(tested.set_index("run_id").test_accuracy)
    clean = mean.assign(severity=0.0, accuracy=clean_accuracy)
    return pd.concat([clean, mean], ignore_index=True).reindex(columns=COLUMNS)


def against_reference(table: pd.DataFrame, reference: str = "FrozenLN") -> pd.DataFrame:
    """Return a comparison of each arm with a reference arm on corrupted images: one row for each
    task, kind of corruption and arm. table: a table of `robustness_table` or `recorded_corrupted`.

    Columns: task, kind, arm; corrupted, the accuracy on corrupted images in per cent, averaged over
    severities and seeds; change, `corrupted` minus the accuracy on clean images in percentage
    points; accuracy_gap, the arm's accuracy on corrupted images minus that of the reference arm;
    change_gap, the arm's change minus that of the reference arm. Each gap is a Series over seeds in
    percentage points, which is empty for the reference arm itself, and for all arms without it.
    """
    clean = table[table.severity == 0].drop_duplicates("run_id").set_index("run_id").accuracy
    keys = ["task", "kind", "seed", "arm", "run_id"]
    mean = table[table.severity != 0].groupby(keys).accuracy.mean().reset_index()
    mean["change"] = mean.accuracy - mean.run_id.map(clean)
    rows = []
    for (task, kind), group in mean.groupby(["task", "kind"]):
        by_seed = 100 * group.pivot(index="seed", columns="arm", values=["accuracy", "change"])
        if reference not in set(group.arm):  # no gap is known
            by_seed[[("accuracy", reference), ("change", reference)]] = np.nan
        for arm in group.arm.unique():
            values = by_seed.xs(arm, axis=1, level="arm")
            gaps = values - by_seed.xs(reference, axis=1, level="arm")
            gaps = gaps.dropna() if arm != reference else gaps.iloc[:0]
            rows.append((task, kind, arm, *values.mean(), gaps.accuracy, gaps.change))
    columns = ["task", "kind", "arm", "corrupted", "change", "accuracy_gap", "change_gap"]
    return pd.DataFrame(rows, columns=columns)


def latency_table(configs: Iterable[RunConfig], rows: Sequence[int] = (1, 64)) -> pd.DataFrame:
    """Return the milliseconds that a forward pass takes in eval mode, with the run's number of
    threads: one row for each config and batch size in `rows`.

    Columns: task, arm, rows (the batch size), ms (median), low and high (quartiles).
    """
    table = []
    for config in configs:
        data = load_task(config.task, config.scale, config.seed)
        device = machine.pick_device(config.device)
        model = build.build_model(config, data).to(device).eval()
        for n in rows:
            batch = evaluation.to_device(data.test.batch(torch.arange(n) % len(data.test)), device)
            timer = Timer(
                "model(inputs, lengths)",
                globals={"model": model, "inputs": batch[0], "lengths": batch[1]},
                num_threads=config.threads,
            )
            with exactly_threads(config.threads), torch.no_grad():
                seconds = timer.blocked_autorange(min_run_time=0.2).times
            low, median, high = 1e3 * np.quantile(seconds, [0.25, 0.5, 0.75])
            table.append((config.task, config.arm, n, median, low, high))
    return pd.DataFrame(table, columns=["task", "arm", "rows", "ms", "low", "high"])


# --------------------------------------------------------------------------------------------------
# classical models for tabular data, which train in a second


def rmse_beside_rivals(runs: pd.DataFrame, arms: Iterable[str], scale: str) -> pd.DataFrame:
    """Return the test RMSE of each arm beside that of two rivals with scikit-learn's defaults,
    boosted trees and a linear model: one row for each task. Each RMSE is averaged over the targets
    of the task and over the seeds in `runs`.

    Columns: each arm; "boosted trees" and "linear"; "training mean", the RMSE of always predicting
    the training mean; target, the names of the targets; best, the arm that is best on validation.
    """
    # imported here: the import takes a second
    from sklearn import ensemble, linear_model, metrics, multioutput

    rivals = {
        "boosted trees": ensemble.HistGradientBoostingRegressor(random_state=0),
        "linear": linear_model.RidgeCV(),
    }
    rows = []
    for task, seed in runs.groupby(["task", "seed"], sort=False).groups:
        data = load_task(task, scale, int(seed))
        # position j of a row has only feature j, so a row's features are on the diagonal
        x, x_test = (s.inputs.diagonal(dim1=1, dim2=2).numpy() for s in (data.train, data.test))
        for name, model in rivals.items():
            fitted = multioutput.MultiOutputRegressor(model).fit(x, data.train.labels.numpy())
            rmse = metrics.root_mean_squared_error(data.test.labels, fitted.predict(x_test))
            rows.append({"task": task, "arm": name, "rmse": rmse})
    scored = pd.concat([runs, pd.DataFrame(rows)]).astype({"rmse": float})
    table = scored.pivot_table(index="task", columns="arm", values="rmse", sort=False)
    table = table[[*arms, *rivals]]
    table["training mean"] = runs.groupby("task").chance_rmse.mean()
    table["target"] = ["; ".join(load_task(task, scale, 0).targets) for task in table.index]
    validation = runs.groupby(["arm", "task"]).best_val_accuracy.mean()
    return table.assign(best=validation.unstack("task").idxmax())
