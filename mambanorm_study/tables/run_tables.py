"""Small tables from a run frame: means with intervals, paired differences, and our means beside the
paper's.

A run frame is a DataFrame with one row per run. An arm names the norms N1 before and N2 after the
SSM, e.g. RMSN>SSM>GN.

Accuracies are fractions; differences are percentage points (pp). Intervals are 95 % t-intervals
over seeds. A diverged run counts with the accuracy of chance, as in the run store, and the tables
say how many runs diverged.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.runs.grid import Cell
from mambanorm_study.runs.presets import LANGUAGE_TASKS, VISION_TASKS
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.paper import MAIN_TASKS, paper_values

# Results with fewer seeds than this are labelled "a sketch": with 5 seeds an exact sign-flip test
# cannot reach p < .05.
SKETCH_BELOW = 6

# Our name → the paper's name of each task in the paper's Table 2. Except at scale paper, our
# versions of these tasks are smaller than the paper's.
SAME_TASK = {
    "listops": "ListOps",
    "imdb": "IMDB",
    "cifar100": "CIFAR-100",
    "pathfinder64": "Path-64",
}

# Columns in which runs of one arm may differ; a mean over runs that differ in them has no meaning.
VARIANT_COLUMNS = ("norm_options", "model")

# The columns of `beside_paper`.
BESIDE_PAPER_COLUMNS = [
    "task", "arm", "ours", "sd", "n", "paper", "paper_sd", "paper_task", "source", "section",
    "printed", "note",
]  # fmt: skip

# The columns of `paired_steps`.
STEP_COLUMNS = [
    "step", "task", "a", "b", "difference", "low", "high", "n", "per_seed", "scale",
]  # fmt: skip

# The text for a difference whose interval contains zero, and for an arm that may be as good as the
# best arm.
CANNOT_TELL = "we cannot tell"


def label(arm: str | Arm) -> str:
    """Return the short name of an arm or a cell: "RMSN→GN" for `RMSN>SSM>GN`."""
    return Cell.parse(arm).label if isinstance(arm, str) and ";" in arm else Arm.parse(arm).label


def percent(x: float, digits: int = 1) -> str:
    """Return a fraction as text in per cent: "68.8 %" for 0.688, and "–" for None or NaN."""
    return "–" if x is None or not np.isfinite(x) else f"{100 * x:.{digits}f} %"


def mean_sd(row: pd.Series) -> str:
    """Return the mean and the standard deviation of a row of `summarize` as text: "68.8 ± 1.2 %",
    or "68.8 %" for one seed.
    """
    mean, sd = percent(row["mean"]), percent(row.sd)
    return mean if sd == "–" else f"{mean.removesuffix(' %')} ± {sd}"


def check_frame(
    frame: pd.DataFrame, columns: Sequence[str] = ("task", "arm", "seed", "test_accuracy")
) -> None:
    """Raise ValueError if `frame` has no rows or lacks one of `columns`, and TypeError if `frame`
    is not a DataFrame.
    """
    check_kind("frame", frame, pd.DataFrame, "load_runs")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(
            f"the run frame lacks the columns {', '.join(missing)}: see mambanorm_study.load_runs"
        )
    if frame.empty:
        raise ValueError(
            "the run frame holds no runs: train some first (mambanorm_study.sweep), "
            "or loosen the filter"
        )


def summarize(frame: pd.DataFrame, by: Sequence[str] = ("task", "arm")) -> pd.DataFrame:
    """Return the mean test accuracy of each group of runs, one row for each group, in the order of
    the frame. by: the columns by which the runs are grouped.

    Columns: those of `by`; mean, sd and n, the mean, standard deviation and number of the test
    accuracies (failed runs have none); diverged, the number of diverged runs; chance, the accuracy
    of chance; best_val, the mean of the best validation accuracies; low and high, the 95 %
    t-interval of the mean test accuracy. Raises ValueError for a group whose runs differ in norm
    options, model or further sites.
    """
    check_frame(frame, (*by, "test_accuracy", "status", "chance", "best_val_accuracy"))
    _check_same_settings(frame, by)
    runs = frame.assign(diverged=frame.status == "diverged")
    groups = runs.groupby(list(by), sort=False, dropna=False)
    table = groups.agg(
        mean=("test_accuracy", "mean"),
        sd=("test_accuracy", "std"),
        n=("test_accuracy", "count"),
        diverged=("diverged", "sum"),
        chance=("chance", "mean"),
        best_val=("best_val_accuracy", "mean"),
    )
    table[["low", "high"]] = [t_interval(values.dropna()) for _, values in groups.test_accuracy]
    return table.reset_index()


def _check_same_settings(frame: pd.DataFrame, by: Sequence[str]) -> None:
    """Raise ValueError if the runs are grouped by arm, or by N1 and N2, and the runs of one group
    differ in their arm or in one of VARIANT_COLUMNS.
    """
    if "arm" not in by and not {"n1", "n2"} <= set(by):
        return
    columns = [name for name in ("arm", *VARIANT_COLUMNS) if name in frame and name not in by]
    for column in columns:
        is_mixed = frame.groupby(list(by), sort=False)[column].nunique() > 1
        if is_mixed.any():
            raise ValueError(
                f"the runs of {is_mixed.idxmax()} differ in {column}, so their mean has no "
                f"meaning: add {column!r} to `by`, or pass run_tables.distinguish_arms(frame) or "
                "run_tables.pairs_only(frame)"
            )


def with_value(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs with the additional column `value`: the test accuracy in per cent, for
    language models the test loss in bits per character. A diverged run has the value of chance.
    """
    columns = ["test_accuracy", "chance", "test_loss", "chance_loss"]
    numbers = runs.reindex(columns=columns).astype(float)
    diverged, is_text = runs.status == "diverged", runs.task.isin(LANGUAGE_TASKS)
    accuracy = numbers.test_accuracy.mask(diverged, numbers.chance)
    loss = numbers.test_loss.mask(diverged, numbers.chance_loss)
    return runs.assign(value=(100 * accuracy).mask(is_text, loss / np.log(2)))


def pairs_only(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of Mamba arms that have norms only before (N1) and after the SSM (N2)."""
    return frame[frame.arm == frame.n1 + ">SSM>" + frame.n2]


def distinguish_arms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with longer names of arms: if the runs of an arm differ in norm options or
    model, these are appended to its name, as in `RMSN>SSM>None+B:RMSN {"B": {"affine": false}}`.

    For example, Jamba and Falcon-Mamba have the same arm and differ in norm options.
    """
    arm = frame.arm
    for column in [name for name in VARIANT_COLUMNS if name in frame]:
        several = frame.groupby("arm")[column].transform("nunique") > 1
        arm = arm.where(~several, arm + " " + frame[column].astype(str))
    return frame.assign(arm=arm)


def paired(frame: pd.DataFrame, a: str, b: str, value: str = "test_accuracy") -> pd.DataFrame:
    """Return the paired difference of arm a minus arm b in the column `value`, over the seeds that
    both arms share, in percentage points: one row per task.

    Columns: task, a, b, difference (mean), low and high (95 % t-interval), n (the number of shared
    seeds), per_seed (list of differences), scale. Raises ValueError if an arm has no run on a task
    or several runs on one seed, and if the two arms share no seed.
    """
    check_frame(frame, ("task", "arm", "seed", value))
    tasks = frame.groupby("task", sort=False)
    return pd.DataFrame([_paired_row(task, runs, (a, b), value) for task, runs in tasks])


def _paired_row(task: str, runs: pd.DataFrame, arms: Sequence[str], value: str) -> dict:
    arms = [str(Arm.parse(arm)) for arm in arms]
    signs = (1, -1, -1, 1)[: len(arms)]
    fractions = sum(
        sign * by_seed(runs, task, arm, value) for sign, arm in zip(signs, arms, strict=True)
    )
    per_seed = 100 * fractions.dropna().sort_index()
    if per_seed.empty:
        raise ValueError(
            f"{' and '.join(arms)} share no seed on task {task!r}: paired differences need the "
            "same seeds"
        )
    low, high = t_interval(per_seed)
    return {
        "task": task,
        "a": arms[0],
        "b": arms[1],
        "difference": per_seed.mean(),
        "low": low,
        "high": high,
        "n": len(per_seed),
        "per_seed": per_seed.tolist(),
        "scale": ", ".join(runs.scale.unique()) if "scale" in runs else "",
    }


def paired_steps(frame: pd.DataFrame, steps: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Return paired differences of test accuracy between arms, one row for each task and each named
    difference. Columns: step (the name of the difference) and those of `paired`.

    steps: name → arms (a, b) for a − b, or (a, b, c, d) for (a − b) − (c − d). A difference is
    omitted on a task that lacks one of its arms.
    """
    rows = []
    for task, runs in frame.groupby("task", sort=False):
        for step, arms in steps.items():
            if {str(Arm.parse(arm)) for arm in arms} <= set(runs.arm):
                rows.append({"step": step, **_paired_row(task, runs, arms, "test_accuracy")})
    return pd.DataFrame(rows, columns=STEP_COLUMNS)


def difference_with_interval(
    difference: float, low: float = float("nan"), high: float = float("nan"), unit: str = "pp"
) -> str:
    """Return a difference and its interval as text: "+2.3 points [−0.4, 5.0]", or "+2.3 points (one
    seed: no interval)" if `low` is NaN.

    unit: "pp" is written as "points", with one decimal; any other unit is written as it is, with
    three decimals.
    """
    digits, name = (1, "points") if unit == "pp" else (3, unit)
    interval = "(one seed: no interval)"
    if np.isfinite(low):
        interval = f"[{low:.{digits}f}, {high:.{digits}f}]"
    return f"{difference:+.{digits}f} {name} {interval}".replace("-", "−")


def interval_in_words(low: float, high: float) -> str:
    """Return in words where the 95 % interval of a difference lies: "clearly above zero", "clearly
    below zero", "we cannot tell" if it contains zero, or "one seed cannot tell" if `low` is NaN.
    """
    if not np.isfinite(low):
        return "one seed cannot tell"
    if low > 0:
        return "clearly above zero"
    return "clearly below zero" if high < 0 else CANNOT_TELL


def markdown_table(frame: pd.DataFrame) -> str:
    """Return the frame as a Markdown table whose first column is the index. Each cell is written by
    `str` on one line, and a bar in it, as in |A|, is escaped.
    """
    head = [frame.index.name or "", *frame.columns]
    rows = [head, ["---"] * len(head), *frame.itertuples(name=None)]
    texts = ([" ".join(str(cell).split()).replace("|", r"\|") for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)


def how_trained(runs: pd.DataFrame) -> str:
    """Return the training settings of the runs as a Markdown table, one row for each combination of
    task, number of blocks, width, number of steps and learning rate. The last column lists the arms
    that have these settings.
    """
    columns = {"n_layers": "blocks", "d_model": "width", "steps": "steps", "lr": "learning rate"}
    labelled = runs.assign(arm=runs.arm.map(label)).rename(columns=columns)
    settings = labelled.groupby(["task", *columns.values()], sort=False).arm
    arms = settings.agg(lambda labels: ", ".join(dict.fromkeys(labels)))
    return markdown_table(arms.to_frame("arms").reset_index().set_index("task"))


def by_seed(runs: pd.DataFrame, task: str, arm: str, value: str = "test_accuracy") -> pd.Series:
    """Return the column `value` of an arm's runs on one task, indexed by seed.

    Raises ValueError if the arm has no run on the task, or several runs on one seed.
    """
    arm_runs = runs[(runs.task == task) & (runs.arm == arm)]
    if arm_runs.empty:
        raise ValueError(
            f"arm {arm} has no run on task {task!r}: the frame has {', '.join(runs.arm.unique())}"
        )
    if arm_runs.seed.duplicated().any():
        raise ValueError(
            f"arm {arm} has several runs of one seed on task {task!r}: keep one scale, depth and lr"
        )
    return arm_runs.set_index("seed")[value]


def best_arm(
    frame: pd.DataFrame,
    task: str,
    arms: Iterable[str] | None = None,
    value: str = "best_val_accuracy",
) -> str:
    """Return the name of the arm with the highest mean of the column `value` on a task. A diverged
    run counts as chance.

    arms: the arms to choose from; None means all arms. Raises ValueError for an unknown task, and
    if none of the arms was run.
    """
    check_frame(frame, ("task", "arm", value, "status", "chance"))
    runs = frame[frame.task == task]
    if runs.empty:
        raise unknown("task of this frame", task, frame.task.unique())
    if arms is not None:
        runs = runs[runs.arm.isin([str(Arm.parse(arm)) for arm in arms])]
    validation = runs[value].where(runs.status != "diverged", runs.chance)
    means = validation.groupby(runs.arm, sort=False).mean().dropna()
    if means.empty:
        raise ValueError(f"none of the arms has been run on task {task!r}: nothing to choose from")
    return str(means.idxmax())


def paper_kind(frame: pd.DataFrame) -> str:
    """Return the kind of the paper's experiments with which the runs of a frame are compared:
    "vision" if all tasks of the frame are image tasks, else "sequence".
    """
    return "vision" if set(frame.task) <= set(VISION_TASKS) else "sequence"


def beside_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """Return our mean accuracies beside the paper's accuracies: one row for each pair of one of our
    means and one printed accuracy of the same arm.

    Columns: task, arm; ours, sd and n (our mean, its standard deviation over seeds, number of
    seeds); paper and paper_sd (the printed accuracy and its standard deviation); paper_task (the
    paper's name of the task); source, section, printed and note, as in `paper_values`.

    The paper's accuracies on its main task are paired with our means on all our tasks, although our
    tasks differ from the main task. Its accuracies in Table 2 are paired only with our means on the
    task of the same name.
    """
    kind = paper_kind(frame)
    names = {"task": "paper_task", "accuracy": "paper", "sd": "paper_sd"}
    printed = paper_values(kind).rename(columns=names).drop(columns="kind")
    ours = summarize(frame).rename(columns={"mean": "ours"})[["task", "arm", "ours", "sd", "n"]]
    both = ours.merge(printed, on="arm")
    is_main = both.paper_task == MAIN_TASKS[kind]
    is_same = both.paper_task == both.task.map(SAME_TASK)
    return both.loc[is_main | is_same, BESIDE_PAPER_COLUMNS].reset_index(drop=True)


def seeds_text(counts: Iterable[int]) -> str:
    """Return the range of several numbers of seeds as text, such as "8 seeds" or "3–8 seeds: a
    sketch". "A sketch" is added if the smallest number is below SKETCH_BELOW.
    """
    counts = list(counts)
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low}–{high}"
    return f"{number} seed{'s' if high > 1 else ''}" + (": a sketch" if low < SKETCH_BELOW else "")


def describe_frame(frame: pd.DataFrame, statistic: str = "mean ± sd") -> str:
    """Return the caption of a figure that shows the runs of a frame, such as "quick scale ·
    3 seeds: a sketch · mean ± sd · digits, listops", followed by how many runs diverged or failed.

    statistic: the name of the statistic that the figure shows if there are several seeds.
    """
    check_frame(frame, ("task", "arm", "seed", "scale", "status"))
    scales = list(frame.scale.unique())
    seeds = frame.groupby(["task", "scale", "arm"], sort=False).seed.nunique()
    scale = f"{scales[0]} scale" if len(scales) == 1 else f"scales {' and '.join(scales)} mixed"
    parts = [scale, seeds_text(seeds)]
    if "model" in frame and "mamba2" in set(frame.model):
        parts.append(f"blocks of {' and '.join(frame.model.unique())}")
    parts += [statistic if seeds.max() > 1 else "single runs", ", ".join(frame.task.unique())]
    for status, treatment in (("diverged", "scored as chance"), ("failed", "left out")):
        count = (frame.status == status).sum()
        if count:
            parts.append(f"{count} of {len(frame)} runs {status} ({treatment})")
    return " · ".join(parts)
