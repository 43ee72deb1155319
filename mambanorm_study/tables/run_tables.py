"""A run frame → small tables: means with intervals, paired differences, ours beside the paper's.

Accuracies are fractions; differences are percentage points (pp). Intervals are 95 % t-intervals
over seeds. A diverged run is a result: its test accuracy is chance, as in the run store, and the
number of such runs is shown.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.runs.presets import VISION_TASKS
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.paper import MAIN_TASKS, paper_values

# Fewer seeds than this are called a sketch: at 5, an exact sign flip cannot reach p < .05.
SKETCH_BELOW = 6

# Our tasks that are in the paper's Table 2 too; ours are smaller versions below scale paper.
SAME_TASK = {
    "listops": "ListOps",
    "imdb": "IMDB",
    "cifar100": "CIFAR-100",
    "pathfinder64": "Path-64",
}

# Columns of the run frame in which runs of one arm may differ, so that their mean has no meaning.
VARIANTS = ("norm_options", "model")

# The columns of `beside_paper`.
BESIDE = [
    "task", "arm", "ours", "sd", "n", "paper", "paper_sd", "paper_task", "source", "section",
    "printed", "note",
]  # fmt: skip

# What is said of an interval that contains zero, and of an arm that may be as good as the chosen
# one.
CANNOT_TELL = "we cannot tell"


def label(arm: str | Arm) -> str:
    """Return the arm as it is read: `RMSN>SSM>GN` → RMSN→GN."""
    return Arm.parse(arm).label


def percent(x: float, digits: int = 1) -> str:
    """Return a fraction in per cent: 0.688 → "68.8 %"; "–" for a missing one."""
    return "–" if x is None or not np.isfinite(x) else f"{100 * x:.{digits}f} %"


def mean_sd(row: pd.Series) -> str:
    """Return a row of `summarize` as text: "68.8 ± 1.2 %"; of one seed "68.8 %"."""
    if not np.isfinite(row.sd):
        return percent(row["mean"])
    return f"{100 * row['mean']:.1f} ± {percent(row.sd)}"


def check_frame(
    frame: pd.DataFrame, columns: Sequence[str] = ("task", "arm", "seed", "test_accuracy")
) -> None:
    """Raise ValueError for a frame without runs or without the columns, TypeError unless it is a
    frame.
    """
    check_kind("frame", frame, pd.DataFrame, "load_runs")
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise ValueError(
            f"the run frame lacks the columns {', '.join(missing)}: see mambanorm.load_runs"
        )
    if frame.empty:
        raise ValueError(
            "the run frame holds no runs: train some first (mambanorm.sweep), or loosen the filter"
        )


def summarize(frame: pd.DataFrame, by: Sequence[str] = ("task", "arm")) -> pd.DataFrame:
    """Return one row a group, in the order of the frame.

    Columns: mean, sd, n, low and high (95 % t-interval) of test_accuracy, diverged (number of
    runs), chance, best_val (mean best validation accuracy). Failed runs are not in n. ValueError
    where a mean would hide a difference: several norm options, models or further sites.
    """
    check_frame(frame, (*by, "test_accuracy", "status", "chance", "best_val_accuracy"))
    _check_alike(frame, by)
    rows = []
    for key, runs in frame.groupby(list(by), sort=False, dropna=False):
        accuracy = runs.test_accuracy.dropna()
        low, high = t_interval(accuracy)
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "mean": accuracy.mean(),
                "sd": accuracy.std(),
                "n": len(accuracy),
                "low": low,
                "high": high,
                "diverged": int((runs.status == "diverged").sum()),
                "chance": runs.chance.mean(),
                "best_val": runs.best_val_accuracy.mean(),
            }
        )
    return pd.DataFrame(rows)


def _check_alike(frame: pd.DataFrame, by: Sequence[str]) -> None:
    """Raise ValueError if a group named by its arm, or by N1 and N2, holds runs of several
    variants.
    """
    columns: tuple[str, ...] = ()
    if "arm" in by:
        columns = VARIANTS
    elif {"n1", "n2"} <= set(by):
        columns = ("arm", *VARIANTS)
    for column in columns:
        if column not in frame or column in by:
            continue
        counts = frame.groupby(list(by), sort=False)[column].nunique()
        mixed = counts[counts > 1]
        if len(mixed):
            raise ValueError(
                f"the runs of {mixed.index[0]} differ in {column}, so that their mean would be of "
                f"none: add {column!r} to `by`, or take run_tables.distinguish_arms(frame) or "
                "run_tables.pairs_only(frame)"
            )


def pairs_only(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of Mamba arms without further sites, which N1 and N2 name completely."""
    return frame[frame.arm == frame.n1 + ">SSM>" + frame.n2]


def distinguish_arms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with model and norm options behind the name of each arm that was run with
    several: `RMSN>SSM>None+B:RMSN {"B": {"affine": false}}` (Jamba and Falcon-Mamba are one
    arm).
    """
    arm = frame.arm
    for column in [name for name in VARIANTS if name in frame]:
        several = frame.groupby("arm")[column].transform("nunique") > 1
        arm = arm.where(~several, arm + " " + frame[column].astype(str))
    return frame.assign(arm=arm)


def paired(frame: pd.DataFrame, a: str, b: str, value: str = "test_accuracy") -> pd.DataFrame:
    """Return the paired difference a − b over shared seeds, in percentage points, one row a task.

    Columns: task, a, b, difference (mean), low, high (95 % t-interval), n, per_seed (list), scale.
    Raises ValueError if an arm has no runs on a task, if the two share no seed, or if a seed was
    run in more than one way.
    """
    check_frame(frame, ("task", "arm", "seed", value))
    a, b = str(Arm.parse(a)), str(Arm.parse(b))
    tasks = frame.groupby("task", sort=False)
    return pd.DataFrame([_paired_row(task, runs, a, b, value) for task, runs in tasks])


def _paired_row(task: str, runs: pd.DataFrame, a: str, b: str, value: str) -> dict:
    fractions = by_seed(runs, task, a, value) - by_seed(runs, task, b, value)
    points = 100 * fractions.dropna().sort_index()
    if points.empty:
        raise ValueError(
            f"{a} and {b} share no seed on task {task!r}: paired differences need the same seeds"
        )
    low, high = t_interval(points)
    return {
        "task": task,
        "a": a,
        "b": b,
        "difference": points.mean(),
        "low": low,
        "high": high,
        "n": len(points),
        "per_seed": points.tolist(),
        "scale": ", ".join(runs.scale.unique()) if "scale" in runs else "",
    }


def paired_steps(frame: pd.DataFrame, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """Return `paired` for several named pairs (name → a, b), task by task, with the name in the
    column `step`; no row where one of the two arms was not run.
    """
    rows = []
    for task, runs in frame.groupby("task", sort=False):
        run_arms = set(runs.arm)
        for step, pair in pairs.items():
            a, b = (str(Arm.parse(arm)) for arm in pair)
            if a in run_arms and b in run_arms:
                rows.append({"step": step, **_paired_row(task, runs, a, b, "test_accuracy")})
    return pd.DataFrame(rows)


def points(
    difference: float, low: float = float("nan"), high: float = float("nan"), unit: str = "pp"
) -> str:
    """Return a difference as text: +2.3 points [−0.4, 5.0]; +2.3 points (one seed: no interval).

    Other units than points have three decimals.
    """
    digits, name = (1, "points") if unit == "pp" else (3, unit)
    interval = "(one seed: no interval)"
    if np.isfinite(low):
        interval = f"[{low:.{digits}f}, {high:.{digits}f}]"
    return f"{difference:+.{digits}f} {name} {interval}".replace("-", "−")


def interval_says(low: float, high: float) -> str:
    """Return the meaning of a difference's 95 % interval: clearly above zero, clearly below zero,
    or we cannot tell.
    """
    if not np.isfinite(low):
        return "one seed cannot tell"
    if low > 0:
        return "clearly above zero"
    return "clearly below zero" if high < 0 else CANNOT_TELL


def markdown_rows(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells, the head and the line of dashes included, as a Markdown table."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in rows)


def markdown_table(frame: pd.DataFrame) -> str:
    """Return the frame with its index as a Markdown table, each cell as `str` writes it."""
    head = [frame.index.name or "", *frame.columns]
    return markdown_rows([head, ["---"] * len(head), *frame.itertuples(name=None)])


def how_trained(runs: pd.DataFrame) -> str:
    """Return depth, width, steps and learning rate of runs, with the arms that have them, as a
    Markdown table.
    """
    columns = {"n_layers": "blocks", "d_model": "width", "steps": "steps", "lr": "learning rate"}
    labelled = runs.assign(arm=runs.arm.map(label)).rename(columns=columns)
    settings = labelled.groupby(["task", *columns.values()], sort=False).arm
    arms = settings.agg(lambda labels: ", ".join(dict.fromkeys(labels)))
    return markdown_table(arms.to_frame("arms").reset_index().set_index("task"))


def by_seed(runs: pd.DataFrame, task: str, arm: str, value: str = "test_accuracy") -> pd.Series:
    """Return an arm's values on one task, by seed. ValueError for none, and for several of a
    seed.
    """
    arm_runs = runs[(runs.task == task) & (runs.arm == arm)]
    if arm_runs.empty:
        raise ValueError(
            f"arm {arm} has no run on task {task!r}: arms there are {', '.join(runs.arm.unique())}"
        )
    if arm_runs.seed.duplicated().any():
        raise ValueError(
            f"arm {arm} has several runs of one seed on task {task!r}: keep one scale, depth and lr"
        )
    return arm_runs.set_index("seed")[value]


def choose(
    frame: pd.DataFrame,
    task: str,
    arms: Iterable[str] | None = None,
    value: str = "best_val_accuracy",
) -> str:
    """Return the arm with the highest mean validation accuracy; a diverged run counts as chance.

    ValueError for an unknown task, and if none of the arms was run.
    """
    check_frame(frame, ("task", "arm", value, "status", "chance"))
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    candidates = set(frame.arm) if arms is None else {str(Arm.parse(arm)) for arm in arms}
    runs = frame[(frame.task == task) & frame.arm.isin(candidates)]
    validation = runs[value].where(runs.status != "diverged", runs.chance)
    means = validation.groupby(runs.arm, sort=False).mean().dropna()
    if means.empty:
        raise ValueError(
            f"none of {', '.join(sorted(candidates))} has been run on task {task!r}: nothing to "
            "choose from"
        )
    return str(means.idxmax())


def paper_kind(frame: pd.DataFrame) -> str:
    """Return which of the paper's experiments a frame is compared with: vision if all its tasks are
    of images, else sequence.
    """
    return "vision" if set(frame.task) <= set(VISION_TASKS) else "sequence"


def beside_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """Return our means beside the paper's accuracies, one row a task of ours and printed value of
    an arm that both have: the columns BESIDE.

    The paper's tasks are others than ours, or larger. Table 2 is set beside the task of the same
    name only.
    """
    kind = paper_kind(frame)
    names = {"task": "paper_task", "accuracy": "paper", "sd": "paper_sd"}
    printed = paper_values(kind).rename(columns=names).drop(columns="kind")
    ours = summarize(frame).rename(columns={"mean": "ours"})[["task", "arm", "ours", "sd", "n"]]
    both = ours.merge(printed, on="arm")
    is_main = both.paper_task == MAIN_TASKS[kind]
    is_same = both.paper_task == both.task.map(SAME_TASK)
    return both.loc[is_main | is_same, BESIDE].reset_index(drop=True)


def seeds_text(counts: Iterable[int]) -> str:
    """Return numbers of seeds as text: "8 seeds", "3 seeds: a sketch", "1–3 seeds: a sketch"."""
    counts = list(counts)
    low, high = min(counts), max(counts)
    number = f"{low}" if low == high else f"{low}–{high}"
    return f"{number} seed{'s' if high > 1 else ''}" + (": a sketch" if low < SKETCH_BELOW else "")


def sketch_note(counts: Iterable[int]) -> str:
    """Return the remark "3 seeds, not corrected for several comparisons: a sketch. "; "" from
    SKETCH_BELOW seeds on.
    """
    counts = list(counts)
    if min(counts) >= SKETCH_BELOW:
        return ""
    number = seeds_text(counts).removesuffix(": a sketch")
    return f"{number}, not corrected for several comparisons: a sketch. "


def describe_frame(frame: pd.DataFrame, shows: str = "mean ± sd") -> str:
    """Return the caption of a figure: "quick scale · 3 seeds: a sketch · mean ± sd · digits,
    listops", and how many runs diverged or failed.

    shows: what is drawn of several seeds.
    """
    check_frame(frame, ("task", "arm", "seed", "scale", "status"))
    scales = list(frame.scale.unique())
    seeds = frame.groupby(["task", "scale", "arm"], sort=False).seed.nunique()
    scale = f"{scales[0]} scale" if len(scales) == 1 else f"scales {' and '.join(scales)} mixed"
    parts = [scale, seeds_text(seeds)]
    if "model" in frame and "mamba2" in set(frame.model):
        parts.append(f"blocks of {' and '.join(frame.model.unique())}")
    parts += [shows if seeds.max() > 1 else "single runs", ", ".join(frame.task.unique())]
    diverged, failed = (frame.status == "diverged").sum(), (frame.status == "failed").sum()
    if diverged:
        parts.append(f"{diverged} of {len(frame)} runs diverged (scored as chance)")
    if failed:
        parts.append(f"{failed} of {len(frame)} runs failed (left out)")
    return " · ".join(parts)
