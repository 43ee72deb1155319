"""The recorded results of a scale, part by part: what they hold, in which order it is trained, and what is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.settings import CHECKOUT, KIT, default_scale
from mambanorm.basics.text import plural
from mambanorm.claims.evidence import kind_of, tasks_of
from mambanorm.claims.frames import of_seeds
from mambanorm.claims.hypotheses import BEYOND, CLAIMS
from mambanorm.claims.needed import needed, until_grown
from mambanorm.claims.other_sources import AUTONORM_CLAIMS
from mambanorm.claims.protocol import (
    FIRST_CLAIMS,
    LAST,
    SAME_RUNS,
    TRAINED_TASKS,
    VERDICT_SEEDS,
    VERSION,
    commit_in_force,
    planned_seeds,
)
from mambanorm.claims.said_in_passing import IN_PASSING
from mambanorm.config import RunConfig
from mambanorm.runs.grid import check_names, check_seeds, unique
from mambanorm.runs.presets import TABLES
from mambanorm.runs.recorded_results import read_results, recorded_inside, recorded_path, write_inside, write_recorded
from mambanorm.runs.store import load_runs, missing_runs, stored_run
from mambanorm.study.experiments import (
    BUDGETS,
    STUDY_TASKS,
    at_budget,
    failing_runs,
    growth_runs,
    inside_task,
    leaves_grid_out,
    study,
)
from mambanorm.study.summaries import with_summaries

STEPWISE = (("H1", "H2"), ("H8",), ("H3", "H4", "H15"))
GRID = ("H5", "H6", "H7")
"""Claims, without the letter of their kind: those over the budget, and those that need more of the grid. At all steps
the first are recorded in the parts of STEPWISE, so that a night that ends early has some of them whole."""
FAILURES = (("H10", "H11"), ("H12",), ("H9", "H16"))
FURTHER, LATER_MODELS = (("H14",), ("A1", "A2", "A3")), (("H13",), ("E1",), ("E2",), ("E3", "E4"))
"""Claims of §4.6; what is asked besides; ladders of rates and later models. In the order in which they are recorded."""

TRAINED_ALONE = (*AUTONORM_CLAIMS, *IN_PASSING)  # claims that are recorded of trained models alone

RECORDED = ("run_id", "scale", "config", "git_commit", "protocol", "protocol_commit")  # of no other frame


@dataclass(frozen=True)
class Part:
    """Some claims on one task with their seeds, `changes` of their settings; or the runs of the notebooks (`also`)."""

    name: str
    claims: tuple[str, ...] = ()
    task: str = ""
    seeds: tuple[int, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[RunConfig, ...] = ()

    def configs(self, scale: str, frame: pd.DataFrame) -> list[RunConfig]:
        """Its runs; the results in the frame may ask for further learning rates."""
        asked = (self.seeds, [self.task], scale, of_seeds(frame, self.seeds), self.changes)
        return unique([*(config for claim in self.claims for config in needed(claim, *asked)), *self.also])


def parts(
    scale: str | None = None, seeds: int | Iterable[int] | None = None, tasks: str | Iterable[str] | None = None
) -> list[Part]:
    """What the recorded results of a scale hold (None = the environment's scale; the seeds and tasks of its plan).

    At evening: some claims on each task, then the next; the grid and §4.6; what is asked besides; fewer steps. At the
    other scales: each task's claims, then the runs of the notebooks.
    """
    scale = default_scale() if scale is None else scale
    if scale == "evening":
        return _evening(None if seeds is None else tuple(check_seeds(seeds, scale)), tasks)
    seeds = tuple(check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale))
    tasks = check_names("tasks", STUDY_TASKS if tasks is None else tasks)
    found = []
    for task in (task for task in tasks if task not in TABLES):  # no claim is about a regression
        grid_out = leaves_grid_out(task, scale)
        known = (claim for claim in CLAIMS.values() if claim not in TRAINED_ALONE)
        claims = tuple(claim.id for claim in known if not (claim.needs_grid and grid_out))
        found.append(Part(f"verdicts, {task}", claims, task, seeds))
    runs = tuple(config for runs in study(scale, tasks, seeds, "trained").values() for config in runs)
    return [*found, Part("the notebooks", also=runs)]


def _evening(seeds: tuple[int, ...] | None, tasks: str | Iterable[str] | None) -> list[Part]:
    known, inside = CLAIMS | BEYOND, inside_task("evening")
    tasks = check_names("tasks", (*TRAINED_TASKS, inside) if tasks is None else tasks)
    last, tasks = ([task for task in tasks if (task in LAST) is it] for it in (True, False))
    images = [task for task in tasks if kind_of(task) == "vision"]
    others = [task for task in tasks if task not in images]

    def asked(numbers: Iterable[str], task: str) -> tuple[str, ...]:
        """The claims of these numbers that are about the task; the task of §4.6 is asked nothing else."""
        found = [known[name] for number in numbers if (name := number + kind_of(task)[0]) in known]
        mine = (claim for claim in found if tasks_of(claim, [task], "evening"))
        return tuple(claim.id for claim in mine if task != inside or claim.runs != "tuned")

    def of_each(claims: Iterable[tuple[str, ...]], tasks: list[str], share: float = 1) -> Iterator[Part]:
        """Some claims on each task, then the next claims."""
        for numbers, task in product(claims, tasks):
            if some := asked(numbers, task):
                name = f": {', '.join(name[:-1] for name in some)}" if share == 1 else f", steps × {share:g}"
                mine = seeds or planned_seeds(some[0], "evening")
                yield Part(task + name, some, task, mine, at_budget(task, "evening", share))

    found = [*of_each(STEPWISE, tasks), *of_each([GRID], others), *of_each(FAILURES, tasks), *of_each(FURTHER, tasks)]
    found += [*of_each(LATER_MODELS, tasks), *of_each([GRID], images), *of_each(sorted(STEPWISE, key=len), last)]
    for share in reversed(BUDGETS[:-1]):
        found += of_each([FIRST_CLAIMS], tasks, share)
    return found


def manifest(
    frame: pd.DataFrame,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    tasks: str | Iterable[str] | None = None,
) -> pd.DataFrame:
    """How many runs each part needs, and how many of them the run frame has."""
    scale = default_scale() if scale is None else scale
    has, rows = set(frame.run_id) if len(frame) else set(), []
    for part in parts(scale, seeds, tasks):
        ids = [config.run_id for config in part.configs(scale, frame)]
        there = sum(name in has for name in ids)
        rows.append((part.name, ", ".join(part.claims), len(part.seeds), len(ids), there))
    return pd.DataFrame(rows, columns=["part", "claims", "seeds", "needed", "there"])


def recorded_configs(
    scale: str,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """The runs of all `parts`; the results of `frame` (None = those of the store) may ask for further rates."""
    frame = load_runs(runs_dir, scale=scale) if frame is None else frame
    return unique(config for part in parts(scale, seeds, tasks) for config in part.configs(scale, frame))


def known_runs(scale: str, runs_dir: str | Path | None, before: pd.DataFrame | None) -> pd.DataFrame:
    """The run frame of a store, with the rows of `before` (what is recorded already) that it lacks."""
    stored = load_runs(runs_dir, scale=scale)
    if before is None or before.empty:
        return stored
    others = before[~before.run_id.isin(stored.run_id)] if len(stored) else before
    return pd.concat([stored, others], ignore_index=True) if len(stored) else others


def recorded_before(scale: str, path: Path | None = None) -> pd.DataFrame | None:
    """What the file holds already; None = no file yet. ValueError for a file that is no recorded frame of the scale,
    which recording would spoil, and OSError for a folder that cannot be written to."""
    path = (recorded_path(scale) if path is None else path).resolve()
    if not CHECKOUT and KIT in path.parents:
        raise ValueError("the kit's own results are recorded in a checkout of the project: name a file, with --out")
    writable_folder(path.parent, "the recorded results")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file, and what is recorded is read again: let it go elsewhere (--out)")
    if not path.is_file():
        return None
    frame = read_results(path)
    lacks = [f"the column {name}" for name in RECORDED if name not in frame]
    if lacks or set(frame.scale) - {scale} or not set(frame.protocol) <= set(SAME_RUNS):
        what = f"lacks {lacks[0]}" if lacks else "holds runs of another scale or protocol"
        raise ValueError(f"{path} {what}: move it away, or let what is recorded go elsewhere (--out)")
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
    """Trains the `parts` one after the other and writes the recorded results of a scale; returns their path.

    The file is written anew after each part, so that what is complete is there when this is stopped; called again, it
    goes on. A run that the file has is not trained again, even if the store has lost it. Rows of parts that are not
    done yet stay as they are. Each row names the protocol that was in force before this recording began, and its
    commit; a run that was recorded before keeps its own. `engine`: sweep's scheduler, workers, client, progress.
    RuntimeError if a run could not be trained: its part is not recorded. Errors of the file as in `recorded_before`,
    before anything is trained.
    """
    scale, protocol = default_scale() if scale is None else scale, commit_in_force()
    path = (recorded_path(scale) if path is None else Path(path)).resolve()
    before, asked = recorded_before(scale, path), parts(scale, seeds, tasks)
    for i, part in enumerate(asked):
        print(f"part {i + 1} of {len(asked)}, {part.name}")
        asked_now = partial(_to_train, part, scale, runs_dir, before)
        if not asked_now() and part.configs(scale, known_runs(scale, runs_dir, before)):
            print("recorded already, and not in the run store: left as it is")
            continue
        frame, configs = until_grown(asked_now, runs_dir, **engine)
        if failed := int((frame.status == "failed").sum()):
            raise RuntimeError(f"{part.name}: {plural(failed, 'run')} could not be trained: this part is not recorded")
        before = _write(configs, before, protocol, path, runs_dir)
    return path


def _to_train(part: Part, scale: str, runs_dir: str | Path | None, before: pd.DataFrame | None) -> list[RunConfig]:
    """The runs of a part without those that `before` has and the store has not: they stay as they were recorded."""
    configs = part.configs(scale, known_runs(scale, runs_dir, before))
    kept = set() if before is None else set(before.run_id) & {c.run_id for c in missing_runs(configs, runs_dir)}
    return [config for config in configs if config.run_id not in kept]


def _write(
    configs: list[RunConfig], before: pd.DataFrame | None, protocol: str, path: Path, runs_dir: str | Path | None
) -> pd.DataFrame:
    """Writes and returns the rows of these runs and of `before`, which keeps those that it has as the store has them:
    under the protocol that they name, and with summaries that can take minutes to read."""
    rows = load_runs(runs_dir, configs=configs)
    if before is not None:
        same = ["run_id", "git_commit"]
        rows = rows[~pd.MultiIndex.from_frame(rows[same]).isin(pd.MultiIndex.from_frame(before[same]))]
    frame = with_summaries(rows, runs_dir, again=True).assign(protocol=VERSION, protocol_commit=protocol)
    if before is not None:
        others = before[~before.run_id.isin(frame.run_id)]
        frame = pd.concat([part for part in (others, frame) if len(part)], ignore_index=True)
    write_recorded(frame, configs, path)
    kept = {run_id: arrays for run_id, arrays in recorded_inside(path).items() if run_id in set(frame.run_id)}
    write_inside(kept | _inside(configs, runs_dir), path)
    return read_results(path)


def _inside(configs: list[RunConfig], runs_dir: str | Path | None) -> dict[str, dict[str, np.ndarray]]:
    """What those of the runs that Figures 9 and 10 are about kept; singular values, which are many, of one seed."""
    scale, seeds = configs[0].scale, sorted({config.seed for config in configs})
    asked = unique([*growth_runs(scale, seeds=seeds), *failing_runs(scale, seeds)])
    ids = {config.run_id for config in configs}
    kept = {config.run_id: config.seed for config in asked if config.run_id in ids}
    found = {run_id: stored_run(run_id, runs_dir) for run_id in kept}
    return {
        run_id: {
            name: values
            for name, values in run.diagnostics.items()
            if kept[run_id] == seeds[0] or not name.endswith("singular_values")
        }
        for run_id, run in found.items()
        if run is not None and (run.path / "diagnostics.npz").is_file()
    }
