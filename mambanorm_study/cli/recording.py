"""`mambanorm record`: the parts of the recorded results, and writing them to data/results.

PROTOCOL.md has the plan. A part is written when all its runs are trained. Trained runs are in the
run store, so that a recording which was stopped continues where it stopped.
"""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.settings import CHECKOUT, KIT, check_scale, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.claims.claim import (
    FURTHER_TEST_SEEDS,
    MAIN_TASK,
    TEST_SEEDS,
    Claim,
    pair,
)
from mambanorm_study.claims.evidence import VERSION, Evidence, tasks_of
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS
from mambanorm_study.claims.plan import (
    PROTOCOL,
    VERDICT_SEEDS,
    arm_runs,
    check_test_seeds,
    tuned_arms,
    verdict_runs,
)
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import check_names, grid, unique
from mambanorm_study.runs.needed_runs import FindNeeded, train_needed
from mambanorm_study.runs.recorded_results import (
    read_results,
    recorded,
    recorded_inside,
    recorded_path,
    write_inside,
    write_recorded,
)
from mambanorm_study.runs.store import find_run, load_runs
from mambanorm_study.tables.experiments import (
    POSITION_ARMS,
    STUDY_TASKS,
    at_budget,
    failing_runs,
    fixed_runs,
    growth_runs,
    inside_task,
    lr_grid,
)
from mambanorm_study.tables.notebook_runs import notebook_runs
from mambanorm_study.tables.summaries import with_summaries

# Task → its name in the names of parts.
TASK_NAMES = {
    "curves": "curves",
    "glyphs_images": "images of letters and digits",
    "pydoc": "text",
    "listops": "ListOps",
    "glyphs": "letters and digits as sequences",
}

DEEP_ARMS = tuple(
    pair(*norms.split())
    for norms in (
        "None None",
        "RMSN None",
        "None GN",
        "None BN",
        "RMSN BN",
        "LN BN",
        "LN LN",
        "GN GN",
    )
)
DEEP, DEEP_TUNING, DEEP_SEEDS = dict(n_layers=8), tuple(range(40, 44)), tuple(range(52, 60))

# Shares of the steps of `curves` at which the arms of Table 1 are tested once more: 300, 1,200 and
# 2,400 steps.
STEPS, STEPS_SEEDS = (0.5, 2.0, 4.0), tuple(range(52, 58))

# A part has so many seeds at most, so that a recording that ends early has whole parts.
SEEDS_OF_PART = 3

RECORDED_COLUMNS = ("run_id", "scale", "config", "git_commit", "protocol", "protocol_commit")


@dataclass(frozen=True)
class Part:
    """A part of the recorded results; it is recorded as a whole or not at all."""

    name: str
    seeds: tuple[int, ...]
    ask: FindNeeded


def parts(
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    tasks: str | Iterable[str] | None = None,
) -> list[Part]:
    """Return the parts of a scale in the order in which they are recorded, of all tasks or of some.

    seeds: other test seeds than the planned ones.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    own = None if seeds is None else check_test_seeds(seeds)
    tasks = None if tasks is None else check_names("tasks", tasks)
    if scale != "evening":
        return _other_scale(scale, own, tasks)
    found = []

    def add(
        name: str, task: str, arms: Iterable[str], planned: tuple[int, ...], **how: Any
    ) -> None:
        """Add the part, a few seeds at a time."""
        arms, used = tuple(arms), own or planned
        if tasks is not None and task not in tasks:
            return
        for some in np.array_split(used, -(-len(used) // SEEDS_OF_PART)):
            some = tuple(some.tolist())
            found.append(Part(name, some, partial(_arms_of_part, arms, task, some, scale, **how)))

    for task in MAIN_TASK.values():
        add(f"{TASK_NAMES[task]}, every arm", task, tuned_arms(task), TEST_SEEDS)
    add("curves, 8 blocks", "curves", DEEP_ARMS, DEEP_SEEDS, changes=DEEP, tuning=DEEP_TUNING)
    for task in MAIN_TASK.values():
        name = f"{TASK_NAMES[task]}, the arms of H4 and H8 once more"
        add(name, task, tuned_arms(task, with_further_seeds=True), FURTHER_TEST_SEEDS)
    add(TASK_NAMES["listops"], "listops", tuned_arms("listops"), TEST_SEEDS)
    for share in STEPS:
        changes = at_budget("curves", scale, share)
        add(
            f"curves, {changes['steps']:,} steps",
            "curves",
            map(str, POSITION_ARMS),
            STEPS_SEEDS,
            changes=changes,
        )
    add(TASK_NAMES["glyphs"], "glyphs", tuned_arms("glyphs"), TEST_SEEDS)
    if tasks is None or inside_task(scale) in tasks:
        found += _fixed_parts(own, scale)
    return found


def _fixed_parts(seeds: tuple[int, ...] | None, scale: str) -> list[Part]:
    """Return a part for each claim whose runs have fixed learning rates."""
    parts = []
    for claim in (CLAIMS | BEYOND).values():
        if claim.runs != "tuned":
            used = seeds or claim.seeds
            ask = partial(_fixed_of_part, claim, used, scale)
            parts.append(Part(f"mnist1d, {claim.id}", used, ask))
    return parts


def _arms_of_part(
    arms: tuple[str, ...],
    task: str,
    seeds: tuple[int, ...],
    scale: str,
    frame: pd.DataFrame,
    changes: Mapping[str, Any] | None = None,
    tuning: tuple[int, ...] = (),
) -> list[RunConfig]:
    tuned = [
        config
        for lr in (lr_grid(task, scale) if tuning else ())
        for config in grid(arms, [task], scale=scale, seeds=tuning, lr=lr, **changes or {})
    ]
    if {config.run_id for config in tuned} <= (set(frame.run_id) if len(frame) else set()):
        tuned += arm_runs(arms, task, seeds, Evidence(frame, scale, changes=changes))
    return tuned


def _fixed_of_part(
    claim: Claim, seeds: tuple[int, ...], scale: str, frame: pd.DataFrame
) -> list[RunConfig]:
    return fixed_runs(claim.runs, claim.arms, scale, seeds)


def _other_scale(scale: str, seeds: tuple[int, ...] | None, tasks: list[str] | None) -> list[Part]:
    """Return a part for each task's claims, and one for the runs of the notebooks."""
    tasks, found = list(STUDY_TASKS) if tasks is None else tasks, []
    used = seeds or check_test_seeds(VERDICT_SEEDS)
    for task in tasks:
        if claims := [name for name, claim in CLAIMS.items() if tasks_of(claim, [task], scale)]:
            ask = partial(verdict_runs, claims, seeds=used, tasks=[task], scale=scale)
            found.append(Part(f"verdicts, {task}", used, ask))
    runs = [
        config for runs in notebook_runs(scale, tasks, source="trained").values() for config in runs
    ]
    return [*found, Part("the notebooks", used, lambda frame: unique(runs))]


def manifest(
    frame: pd.DataFrame,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    tasks: str | Iterable[str] | None = None,
) -> pd.DataFrame:
    """Return one row for each part: part, seeds, needed (the number of its runs), and recorded (how
    many of them the frame has).
    """
    recorded_ids = set(frame.run_id) if len(frame) else set()
    rows = []
    for part in parts(scale, seeds, tasks):
        ids = {config.run_id for config in part.ask(frame)}
        seed_range = f"{part.seeds[0]}–{part.seeds[-1]}"
        rows.append((part.name, seed_range, len(ids), len(ids & recorded_ids)))
    return pd.DataFrame(rows, columns=["part", "seeds", "needed", "recorded"])


def commit_in_force() -> str:
    """Return the commit that last changed PROTOCOL.md, with ", changed since" if the file has been
    edited after it; "unknown" without git.
    """
    git = ["git", "-C", str(PROTOCOL.parent)]
    log = [*git, "log", "-1", "--format=%h", "--", PROTOCOL.name]
    diff = [*git, "diff", "--quiet", "HEAD", "--", PROTOCOL.name]
    try:
        commit = subprocess.run(log, capture_output=True, text=True).stdout.strip()
        is_edited = subprocess.run(diff, capture_output=True).returncode != 0
    except OSError:
        return "unknown"
    if not commit:
        return "unknown"
    return f"{commit}, changed since" if is_edited else commit


def recorded_before(scale: str, path: Path | None = None) -> pd.DataFrame | None:
    """Return the rows that the file has already; None if there is no file yet.

    ValueError for a file that is not a recorded frame of the scale, because recording would
    overwrite it; OSError for a folder that cannot be written to.
    """
    path = (recorded_path(scale) if path is None else path).resolve()
    if not CHECKOUT and KIT in path.parents:
        raise ValueError(
            "the kit's results are recorded in a checkout of the project: "
            "name another file with --out"
        )
    writable_folder(path.parent, "the recorded results")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: name another one with --out")
    if not path.is_file():
        return None
    frame = read_results(path)
    missing_columns = [name for name in RECORDED_COLUMNS if name not in frame]
    fault = ""
    if missing_columns:
        fault = f"lacks the column {missing_columns[0]}"
    elif set(frame.scale) - {scale} or not frame.protocol.between(2, VERSION).all():
        fault = "holds runs of another scale or protocol"
    if fault:
        raise ValueError(f"{path} {fault}: move it away, or record into another file with --out")
    return frame


def record_results(
    scale: str | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    runs_dir: str | Path | None = None,
    path: str | Path | None = None,
    **engine: Any,
) -> Path:
    """Train the parts one after the other, write the recorded results of a scale, and return their
    path.

    The file is written after each part, and a second call continues. Runs that the file or the kit
    has are not trained again. Each new row has the version of the protocol and its commit. engine:
    scheduler, workers, client and progress of `sweep`.

    RuntimeError if a run could not be trained: its part is not recorded. ValueError and OSError as
    of `recorded_before`, before anything is trained.
    """
    scale, commit = default_scale() if scale is None else scale, commit_in_force()
    path = (recorded_path(scale) if path is None else Path(path)).resolve()
    recorded_before(scale, path)  # an unusable file is refused before anything is trained
    to_record = parts(scale, seeds, tasks)
    for number, part in enumerate(to_record, start=1):
        seed_range = f"seeds {part.seeds[0]} to {part.seeds[-1]}"
        print(f"part {number} of {len(to_record)}: {part.name}, {seed_range}")
        trained = train_needed(part.ask, scale, runs_dir, recorded_before(scale, path), **engine)
        n_failed = len(trained.failed)
        if n_failed:
            raise RuntimeError(
                f"{plural(n_failed, 'run')} could not be trained: {part.name!r} is not recorded"
            )
        _write(trained.needed, commit, path, runs_dir)
    return path


def _write(configs: list[RunConfig], commit: str, path: Path, runs_dir: str | Path | None) -> None:
    """Add the stored runs of these configs to the file; rows that the file or the kit has are not
    changed. RuntimeError if the store lacks a run.
    """
    scale = configs[0].scale
    before = recorded_before(scale, path)  # read again: another process may have written to it
    recorded_ids = set() if before is None else set(before.run_id)
    if recorded_path(scale).is_file():
        recorded_ids.update(recorded(scale).run_id)
    configs = [config for config in configs if config.run_id not in recorded_ids]
    if not configs:
        return
    rows = load_runs(runs_dir, configs=configs)
    n_missing = len(configs) - len(rows)
    if n_missing:
        raise RuntimeError(
            f"the store lacks {plural(n_missing, 'run')} of this part, which is not recorded"
        )
    rows = with_summaries(rows, runs_dir, again=True)
    rows = rows.assign(protocol=VERSION, protocol_commit=commit)
    if before is not None:
        rows = pd.concat([before, rows], ignore_index=True)
    # the inside first: once the frame has its rows, these runs would not be written again
    write_inside(recorded_inside(path) | _inside(configs, runs_dir), path)
    write_recorded(rows, configs, path)


def _inside(
    configs: list[RunConfig], runs_dir: str | Path | None
) -> dict[str, dict[str, np.ndarray]]:
    """Return run_id → recorded statistics of the layers, for the runs of Figures 9 and 10.

    Singular values are large, and are returned for one seed only.
    """
    scale, seeds = configs[0].scale, sorted({config.seed for config in configs})
    drawn = [*growth_runs(scale, seeds=seeds), *failing_runs(scale, seeds)]
    drawn_ids = {config.run_id for config in drawn}
    inside = {}
    for config in configs:
        run = find_run(config, runs_dir) if config.run_id in drawn_ids else None
        if run is not None and (run.path / "diagnostics.npz").is_file():
            inside[config.run_id] = {
                name: values
                for name, values in run.diagnostics.items()
                if config.seed == seeds[0] or not name.endswith("singular_values")
            }
    return inside
