"""The run frame → small tables: means with intervals, paired differences, ours beside the paper's,
captions.

Accuracies are fractions; differences are percentage points (pp). Intervals are 95 % t-intervals
over seeds. A diverged run is a result: its test accuracy is chance, as in the run store, and the
number of such runs is always told.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import check_kind, unknown
from mambanorm_study.runs.presets import VISION_TASKS
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.paper import MAIN_TASKS, paper_values

SKETCH_BELOW = 6
"""Fewer seeds than this are a sketch: at 5, an exact sign flip cannot reach p < .05."""

SAME_TASK = {
    "listops": "ListOps",
    "imdb": "IMDB",
    "cifar100": "CIFAR-100",
    "pathfinder64": "Path-64",
}
"""Our tasks that the paper's Table 2 has as well (ours are smaller versions, below scale paper)."""

WAYS = ("norm_options", "model")
"""Columns of the run frame in which runs of one arm may differ, so that they are no runs of one
thing."""

BESIDE = [
    "task",
    "arm",
    "ours",
    "sd",
    "n",
    "paper",
    "paper_sd",
    "paper_task",
    "source",
    "section",
    "printed",
    "note",
]
"""The columns of `beside_paper`."""


def label(arm: str | Arm) -> str:
    """`RMSN>SSM>GN` as it is read: RMSN→GN."""
    return Arm.parse(arm).label


def percent(x: float, digits: int = 1) -> str:
    """0.688 → "68.8 %"; "–" for what is missing."""
    return "–" if x is None or not np.isfinite(x) else f"{100 * x:.{digits}f} %"


def mean_sd(row: pd.Series) -> str:
    """A row of `summarize` in words: "68.8 ± 1.2 %"; of one seed "68.8 %"."""
    return (
        f"{100 * row['mean']:.1f} ± {percent(row.sd)}"
        if np.isfinite(row.sd)
        else percent(row["mean"])
    )


def check_frame(
    frame: pd.DataFrame, columns: Sequence[str] = ("task", "arm", "seed", "test_accuracy")
) -> None:
    """ValueError for a frame without runs or without the columns, TypeError for what is no
    frame."""
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
    """One row a group, in the order of the frame: mean, sd, n, low and high (95 % t-interval) of
    test_accuracy, diverged (how many of the runs), chance, best_val (mean best validation
    accuracy). Failed runs are not in n. ValueError where a mean would hide a difference: several
    norm options, models or further sites."""
    check_frame(frame, (*by, "test_accuracy", "status", "chance", "best_val_accuracy"))
    _check_alike(frame, by)
    rows = []
    for key, runs in frame.groupby(list(by), sort=False, dropna=False):
        accuracy = runs.test_accuracy.dropna()
        low, high = t_interval(accuracy)
        facts = dict(mean=accuracy.mean(), sd=accuracy.std(), n=len(accuracy), low=low, high=high)
        facts |= dict(diverged=int((runs.status == "diverged").sum()), chance=runs.chance.mean())
        rows.append(
            dict(zip(by, key, strict=True)) | facts | dict(best_val=runs.best_val_accuracy.mean())
        )
    return pd.DataFrame(rows)


def _check_alike(frame: pd.DataFrame, by: Sequence[str]) -> None:
    """ValueError if a group that is named by its arm, or by N1 and N2, holds runs of several
    kinds."""
    kinds = [*WAYS] if "arm" in by else ["arm", *WAYS] if {"n1", "n2"} <= set(by) else []
    for column in [name for name in kinds if name in frame and name not in by]:
        counts = frame.groupby(list(by), sort=False)[column].nunique()
        if (mixed := counts[counts > 1]).size:
            raise ValueError(
                f"the runs of {mixed.index[0]} differ in {column}, so that their mean would be of "
                f"none: add {column!r} to `by`, or take tables.told_apart(frame) or "
                "tables.pairs_only(frame)"
            )


def pairs_only(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs of Mamba arms without further sites: those that N1 and N2 name fully, and a table by
    them may pool."""
    return frame[frame.arm == frame.n1 + ">SSM>" + frame.n2]


def told_apart(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with model and norm options behind the name of each arm that was run with several,
    as Jamba and Falcon-Mamba are one arm: `RMSN>SSM>None+B:RMSN {"B": {"affine": false}}`."""
    arm = frame.arm
    for column in [name for name in WAYS if name in frame]:
        several = frame.groupby("arm")[column].transform("nunique") > 1
        arm = arm.where(~several, arm + " " + frame[column].astype(str))
    return frame.assign(arm=arm)


def paired(frame: pd.DataFrame, a: str, b: str, value: str = "test_accuracy") -> pd.DataFrame:
    """The paired difference a − b over shared seeds, in percentage points, one row a task.

    Columns: task, a, b, difference (mean), low, high (95 % t-interval), n, per_seed (list), scale.
    Raises ValueError if an arm has no runs on a task, if the two share no seed, or if a seed was
    run in more than one way.
    """
    check_frame(frame, ("task", "arm", "seed", value))
    a, b = str(Arm.parse(a)), str(Arm.parse(b))
    return pd.DataFrame(
        [_paired_row(task, runs, a, b, value) for task, runs in frame.groupby("task", sort=False)]
    )


def _paired_row(task: str, runs: pd.DataFrame, a: str, b: str, value: str) -> dict:
    difference = (
        by_seed(runs, task, a, value) - by_seed(runs, task, b, value)
    ).dropna().sort_index() * 100
    if difference.empty:
        raise ValueError(
            f"{a} and {b} share no seed on task {task!r}: paired differences need the same seeds"
        )
    low, high = t_interval(difference)
    scale = ", ".join(runs.scale.unique()) if "scale" in runs else ""
    facts = dict(
        difference=difference.mean(),
        low=low,
        high=high,
        n=len(difference),
        per_seed=difference.tolist(),
    )
    return dict(task=task, a=a, b=b, **facts, scale=scale)


def paired_steps(frame: pd.DataFrame, pairs: Mapping[str, tuple[str, str]]) -> pd.DataFrame:
    """`paired` for several named pairs (name → a, b), task by task, with the name in the column
    `step`; no row where one of the two arms was not run."""
    rows = []
    for task, runs in frame.groupby("task", sort=False):
        known = set(runs.arm)
        for step, (a, b) in pairs.items():
            a, b = str(Arm.parse(a)), str(Arm.parse(b))
            if {a, b} <= known:
                rows.append({"step": step, **_paired_row(task, runs, a, b, "test_accuracy")})
    return pd.DataFrame(rows)


def points(
    difference: float, low: float = float("nan"), high: float = float("nan"), unit: str = "pp"
) -> str:
    """A difference in words: +2.3 points [−0.4, 5.0]; without an interval, +2.3 points (one seed:
    no interval). Of another unit than points, with three decimals."""
    digits, name = (1, "points") if unit == "pp" else (3, unit)
    interval = (
        f"[{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) else "(one seed: no interval)"
    )
    return f"{difference:+.{digits}f} {name} {interval}".replace("-", "−")


CANNOT_TELL = "we cannot tell"  # of an interval that holds zero; of an arm that may be as good as the chosen one


def interval_says(low: float, high: float) -> str:
    """What a 95 % interval says of its difference: clearly above zero, clearly below zero, or we
    cannot tell."""
    if not np.isfinite(low):
        return "one seed cannot tell"
    return "clearly above zero" if low > 0 else "clearly below zero" if high < 0 else CANNOT_TELL


def markdown_rows(rows: Iterable[Iterable[object]]) -> str:
    """Return rows of cells, the head and the line of dashes included, as a Markdown table."""
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in rows)


def markdown_table(frame: pd.DataFrame) -> str:
    """Return the frame with its index as a Markdown table, each cell as `str` writes it."""
    head = [frame.index.name or "", *frame.columns]
    return markdown_rows([head, ["---"] * len(head), *frame.itertuples(name=None)])


def how_trained(runs: pd.DataFrame) -> str:
    """Depth, width, steps and learning rate of runs, with the arms that have them, as a Markdown
    table."""
    columns = {"n_layers": "blocks", "d_model": "width", "steps": "steps", "lr": "learning rate"}
    runs = runs.assign(arm=runs.arm.map(lambda arm: Arm.parse(arm).label)).rename(columns=columns)
    found = runs.groupby(["task", *columns.values()], sort=False).arm.agg(
        lambda arms: ", ".join(dict.fromkeys(arms))
    )
    return markdown_table(found.to_frame("arms").reset_index().set_index("task"))


def by_seed(runs: pd.DataFrame, task: str, arm: str, value: str = "test_accuracy") -> pd.Series:
    """An arm's values on one task, by seed. ValueError if it has none, or more than one a seed."""
    mine = runs[(runs.task == task) & (runs.arm == arm)]
    if mine.empty:
        raise ValueError(
            f"arm {arm} has no run on task {task!r}: arms there are {', '.join(runs.arm.unique())}"
        )
    if mine.seed.duplicated().any():
        raise ValueError(
            f"arm {arm} has several runs of one seed on task {task!r}: keep one scale, depth and lr"
        )
    return mine.set_index("seed")[value]


def choose(
    frame: pd.DataFrame,
    task: str,
    arms: Iterable[str] | None = None,
    value: str = "best_val_accuracy",
) -> str:
    """The arm with the highest mean validation accuracy; a diverged run counts as chance.
    ValueError if there is nothing to choose from."""
    check_frame(frame, ("task", "arm", value, "status", "chance"))
    wanted = set(frame.arm) if arms is None else {str(Arm.parse(arm)) for arm in arms}
    runs = frame[(frame.task == task) & frame.arm.isin(wanted)]
    scored = runs[value].where(runs.status != "diverged", runs.chance)
    means = scored.groupby(runs.arm, sort=False).mean().dropna()
    if task not in set(frame.task):
        raise unknown("task of this frame", task, frame.task.unique())
    if means.empty:
        raise ValueError(
            f"none of {', '.join(sorted(wanted))} has been run on task {task!r}: nothing to choose "
            "from"
        )
    return str(means.idxmax())


def paper_kind(frame: pd.DataFrame) -> str:
    """Which of the paper's experiments a frame is set beside: vision if all its tasks are of
    images, else sequence (also for a mixture: judge or draw the two kinds separately)."""
    return "vision" if set(frame.task) <= set(VISION_TASKS) else "sequence"


def beside_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """Ours next to the paper's, one row a task of ours and printed value of an arm that both have:
    the columns BESIDE. The paper's tasks are others than ours, or larger. Table 2 is set beside the
    task of the same name only."""
    kind = paper_kind(frame)
    values = paper_values(kind).rename(
        columns={"task": "paper_task", "accuracy": "paper", "sd": "paper_sd"}
    )
    ours = summarize(frame).rename(columns={"mean": "ours"})[["task", "arm", "ours", "sd", "n"]]
    both = ours.merge(values.drop(columns="kind"), on="arm")
    both = both[
        (both.paper_task == MAIN_TASKS[kind]) | (both.paper_task == both.task.map(SAME_TASK))
    ]
    return both[BESIDE].reset_index(drop=True)


def seeds_text(counts: Iterable[int]) -> str:
    """ "8 seeds", "3 seeds: a sketch", "1–3 seeds: a sketch" (unequal), "1 seed: a sketch"."""
    low, high = min(counts := list(counts)), max(counts)
    number = f"{low}" if low == high else f"{low}–{high}"
    return f"{number} seed{'s' if high > 1 else ''}" + (": a sketch" if low < SKETCH_BELOW else "")


def sketch_note(counts: Iterable[int]) -> str:
    """A sentence to stand among differences: "3 seeds, not corrected for several comparisons: a
    sketch. "; "" from SKETCH_BELOW seeds on."""
    text, few, _ = seeds_text(counts).partition(": a sketch")
    return f"{text}, not corrected for several comparisons: a sketch. " if few else ""


def describe_frame(frame: pd.DataFrame, shows: str = "mean ± sd") -> str:
    """The caption of a figure: "quick scale · 3 seeds: a sketch · mean ± sd · digits, listops", and
    how many runs diverged or failed. `shows` says what is drawn of several seeds."""
    check_frame(frame, ("task", "arm", "seed", "scale", "status"))
    scales = list(frame.scale.unique())
    seeds = frame.groupby(["task", "scale", "arm"], sort=False).seed.nunique()
    parts = [
        f"{scales[0]} scale" if len(scales) == 1 else f"scales {' and '.join(scales)} mixed",
        seeds_text(seeds),
    ]
    if "model" in frame and "mamba2" in set(frame.model):
        parts.append(f"blocks of {' and '.join(frame.model.unique())}")
    parts += [shows if seeds.max() > 1 else "single runs", ", ".join(frame.task.unique())]
    counts = frame.status.value_counts()
    if counts.get("diverged", 0):
        parts.append(f"{counts['diverged']} of {len(frame)} runs diverged (scored as chance)")
    if counts.get("failed", 0):
        parts.append(f"{counts['failed']} of {len(frame)} runs failed (left out)")
    return " · ".join(parts)
