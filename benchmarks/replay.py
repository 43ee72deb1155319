"""Train recorded rows anew and report how many are equal, how far the others are, and whether
rounding alone moves them so far.

    python -m benchmarks.replay                             # 120 rows, ten minutes on two cores
    python -m benchmarks.replay --rows 8 --out /tmp/replay  # another folder for the page

Rows are drawn by a fixed seed: all recorded rows are shuffled, then each task of each scale gives
one row in turn, so every task has as many rows as every other. Three kinds of rows are left out:
the slowest tenth of each task (by recorded time, which a busy machine can make an hour), those that
learn from another run, whose weights are not recorded, and those whose data must be downloaded.
Each row trains on one thread, as its config says, in two worker processes. The runs are not kept.

Differences are new minus recorded, in points of test accuracy (hundredths; for a regression, of
R²). A row beyond five points is trained again with its learning rate moved by some millionths, a
change as small as rounding. If that moves it beyond five points too, rounding decides this row, and
the difference says nothing about the code.

The results are written as `replay.md`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks.provenance import RESULTS, provenance
from benchmarks.table import as_markdown
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import SCALES
from mambanorm_study.basics.text import spell
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.runs.sweep import sweep

ROWS, WORKERS, SEED = 120, 2, 0
GROUP = ["scale", "task"]
DOWNLOADED = ("energy", "california_housing")
MAX_MEAN_POINTS = 0.2
MILLIONTHS = (1, -1, 2, -2, 3, -3, 5, -5)
ELSEWHERE = 0.05
"""Accuracy difference that rounding explains. On another machine rounding differs in the last bit,
and training amplifies it. With two threads instead of one, 14 runs of digits differed by at most
0.003. Between an Intel and an AMD processor 3 of 436 runs of scale quick differed by more than this
value, all of digits, by up to 0.49: rounding decides these runs. Another difference is accepted
only if rounding moves the run as far on this machine."""


def draw(rows: int) -> pd.DataFrame:
    """Return a sample of recorded rows, one of each task of each scale in turn, always the same."""
    frames = [recorded(scale) for scale in SCALES if recorded_path(scale).is_file()]
    frame = pd.concat(frames, ignore_index=True)
    slow = frame.wall_s > frame.groupby(GROUP).wall_s.transform("quantile", 0.9)
    configs = frame.config.map(RunConfig.from_json)
    left_out = configs.map(lambda config: bool(config.teacher or config.start))
    left_out |= frame.task.isin(DOWNLOADED)
    shuffled = frame[~slow & ~left_out].sample(frac=1, random_state=SEED)
    turn = shuffled.groupby(GROUP).cumcount().sort_values(kind="stable")
    return shuffled.loc[turn.index[:rows]]


def nearby(config: RunConfig) -> list[RunConfig]:
    """Return the config with its learning rate moved by each of MILLIONTHS."""
    return [config.but(lr=config.lr * (1 + k * 1e-6)) for k in MILLIONTHS]


def replay(sample: pd.DataFrame, **engine: int | str | Path) -> pd.DataFrame:
    """Train the sample, and return it with four more columns.

    anew is the accuracy; points is new minus recorded; equal compares the status, too; moved holds,
    for a row beyond ELSEWHERE, the points by which each of MILLIONTHS moves it on this machine, and
    None for other rows. `engine` holds workers and runs_dir, as `sweep` takes them. Raises
    RuntimeError if a row could not be trained.
    """
    configs = sample.config.map(RunConfig.from_json)
    trained = sweep(configs, **engine).set_index(sample.index)
    failed = (trained.status == "failed").sum()
    if failed:
        raise RuntimeError(f"{failed} of {len(sample)} rows could not be trained")
    sample = sample.assign(
        anew=trained.test_accuracy, points=100 * (trained.test_accuracy - sample.test_accuracy)
    )
    sample["equal"] = (sample.points == 0) & (sample.status == trained.status)
    moved = {}
    for i in sample.index[sample.points.abs() > 100 * ELSEWHERE]:
        accuracies = sweep(nearby(configs[i]), **engine).test_accuracy
        moved[i] = [100 * (accuracy - sample.anew[i]) for accuracy in accuracies]
    return sample.assign(moved=pd.Series(moved, dtype=object))


def counts(frame: pd.DataFrame) -> list[list[str]]:
    """Return how many rows are equal and how far the others are, by task, by processor, of all."""
    lines = [["", "rows", "equal", "mean difference", "mean absolute", "largest"]]
    groups = [(f"{task}, {scale}", rows) for (scale, task), rows in frame.groupby(GROUP)]
    groups += [(f"recorded on {name}", rows) for name, rows in frame.groupby("machine")]
    for name, rows in [*groups, ("all", frame)]:
        size, mean = rows.points.abs(), f"{rows.points.mean():+.3f} ± {rows.points.sem():.3f}"
        cells = [str(len(rows)), str(rows.equal.sum()), mean]
        lines.append([name, *cells, f"{size.mean():.3f}", f"{size.max():.2f}"])
    return lines


def largest(frame: pd.DataFrame) -> list[list[str]]:
    """Return the ten largest differences, and all beyond ELSEWHERE with what moving the learning
    rate by millionths does to them.
    """
    columns = ["row", "recorded", "anew", "difference"]
    lines = [[*columns, "learning rate moved by one millionth", "furthest of eight"]]
    ordered = frame.sort_values("points", key=abs, ascending=False)
    for row in ordered.head(max(10, frame.moved.notna().sum())).itertuples():
        name = f"{row.arm} on {row.task}, {row.scale}, seed {row.seed}, lr {row.lr:g}"
        cells = [name, f"{row.test_accuracy:.4f}", f"{row.anew:.4f}", f"{row.points:+.2f}"]
        if isinstance(row.moved, list):
            cells += [f"{row.moved[0]:+.2f}", f"{max(row.moved, key=abs):+.2f}"]
        else:
            cells += ["", ""]
        lines.append(cells)
    return lines


def findings(frame: pd.DataFrame) -> list[list[str]]:
    """Return what must hold of the sample, and whether it does."""
    mean, moved = abs(frame.points.mean()), frame.moved.dropna()
    decided = sum(max(map(abs, points)) > 100 * ELSEWHERE for points in moved)
    by_rounding = "rows beyond 5 points that millionths of the learning rate move beyond 5 points"
    answers = {True: "yes", False: "NO"}
    mean_holds = answers[bool(mean < MAX_MEAN_POINTS)]
    return [
        ["", "wanted", "found", ""],
        ["mean difference", f"< {MAX_MEAN_POINTS} points", f"{mean:.3f}", mean_holds],
        [by_rounding, "all", f"{decided} of {len(moved)}", answers[decided == len(moved)]],
    ]


def main() -> None:
    """Train the sample and write the page."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of replay.md")
    options = parser.parse_args()
    folder, start = writable_folder(options.out, "the results"), time.monotonic()
    with tempfile.TemporaryDirectory() as store:
        frame = replay(draw(options.rows), workers=options.workers, runs_dir=store)
    command = f"python -m benchmarks.replay --rows {options.rows} --workers {options.workers}"
    head = {**provenance(command), "took": spell(time.monotonic() - start)}
    facts = "\n".join(f"- {name}: {value}" for name, value in head.items())
    parts = [facts, as_markdown(findings(frame)), as_markdown(counts(frame))]
    parts += ["## The largest differences, in points", as_markdown(largest(frame))]
    text = "\n\n".join(parts)
    write_text(folder / "replay.md", f"# Recorded rows trained anew\n\n{text}\n")
    print(f"{text}\n\n{folder / 'replay.md'} written")


if __name__ == "__main__":
    main()
