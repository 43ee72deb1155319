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
from mambanorm.claims import hypotheses
from mambanorm.claims.claim import Claim
from mambanorm.claims.evidence import kind_of, tasks_of
from mambanorm.claims.frames import of_seeds
from mambanorm.claims.hypotheses import CLAIMS
from mambanorm.claims.needed import needed, until_grown
from mambanorm.claims.protocol import (
    CEILING_TASK,
    EVENING_SEEDS,
    FIRST_CLAIMS,
    GRID_SEEDS,
    SAME_RUNS,
    TRAINED_TASKS,
    VERDICT_SEEDS,
    VERSION,
    commit_in_force,
)
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.version_11 import NEXT
from mambanorm.config import RunConfig
from mambanorm.runs.grid import check_names, check_seeds, unique
from mambanorm.runs.presets import TABLES
from mambanorm.runs.recorded_results import read_results, recorded_inside, recorded_path, write_inside, write_recorded
from mambanorm.runs.store import load_runs, missing_runs, stored_run
from mambanorm.study.experiments import (
    BUDGETS,
    SIZES,
    STUDY_TASKS,
    at_budget,
    failing_runs,
    growth_runs,
    inside_task,
    leaves_grid_out,
    study,
)

EVENING_TASKS = (*TRAINED_TASKS, CEILING_TASK)

STEPWISE = (("H1", "H2"), ("H8",), ("H3", "H4", "H15"))
GRID = ("H5", "H6", "H7")
"""Claims, without the letter of their kind: those over the budget, and those that need more of the grid. At all steps
the first are recorded in the parts of STEPWISE, so that a night that ends early has some of them whole."""
FURTHER, LATER_MODELS = (("H14",), ("A1", "A2", "A3")), (("H13",), ("E1",), ("E2",), ("E3", "E4"))
"""What is asked besides; ladders of rates and later models, on few seeds. In the order in which they are recorded."""
FAILING_SEEDS = tuple(range(40, 80))
"""Those of H9 in version 11: a run that fails costs a second."""
INSIDE, SIZED, CEILING = ("H9s", "H10s", "H11s", "H12s"), ("H1s", "H3s", "H8s"), ("H1s", "H8s")
"""Claims of §4.6; those that are judged at other sizes of the model; and those that digits are asked, near their
ceiling."""

RECORDED = ("run_id", "scale", "config", "git_commit", "protocol", "protocol_commit")
"""Columns that tell a recorded frame from any other."""


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
        known = _known(self.seeds)
        return unique([*(config for claim in self.claims for config in needed(known[claim], *asked)), *self.also])


def parts(
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    tasks: str | Iterable[str] | None = None,
) -> list[Part]:
    """What the recorded results of a scale hold (None = the environment's scale; the seeds and tasks of its plan).

    At evening: some claims on each task, then the next; the grid and §4.6; what lies beyond the paper; fewer steps;
    other sizes of the model; last, digits. At the other scales: each task's claims, then the runs of the notebooks.
    """
    scale = default_scale() if scale is None else scale
    if scale == "evening":
        return _evening(None if seeds is None else tuple(check_seeds(seeds, scale)), tasks)
    seeds = tuple(check_seeds(VERDICT_SEEDS if seeds is None else seeds, scale))
    tasks = check_names("tasks", STUDY_TASKS if tasks is None else tasks)
    found = []
    for task in (task for task in tasks if task not in TABLES):  # no claim is about a regression
        grid_out = leaves_grid_out(task, scale)
        claims = tuple(name for name, claim in CLAIMS.items() if not (claim.needs_grid and grid_out))
        found.append(Part(f"verdicts, {task}", claims, task, seeds))
    runs = tuple(config for runs in study(scale, tasks, seeds, "trained").values() for config in runs)
    return [*found, Part("the notebooks", also=runs)]


def _evening(seeds: tuple[int, ...] | None, tasks: str | Iterable[str] | None) -> list[Part]:
    most, found = seeds or EVENING_SEEDS, []
    few = most[: len(GRID_SEEDS)]
    tasks = check_names("tasks", EVENING_TASKS if tasks is None else tasks)
    over = [task for task in tasks if task != CEILING_TASK]
    images = [task for task in over if kind_of(task) == "vision"]

    def of_each(claims: Iterable[tuple[str, ...]], seeds: tuple[int, ...], tasks: list[str] = over) -> Iterator[Part]:
        """Some claims on each task, then the next claims."""
        for numbers, task in product(claims, tasks):
            if some := _of_kind(numbers, task, seeds):
                yield Part(f"{task}: {', '.join(name[:-1] for name in some)}", some, task, seeds)

    found += of_each(STEPWISE, most)
    found += of_each([GRID], few, [task for task in over if task not in images])
    inside = inside_task("evening")
    found += [Part(f"{inside}: H9–H12", INSIDE, inside, few)] if inside in over else []
    found += [Part(f"{inside}: H9", INSIDE[:1], inside, FAILING_SEEDS)] if inside in over and _next(most) else []
    found += of_each(FURTHER if _next(most) else (), most)
    found += of_each(LATER_MODELS, few)
    found += of_each([GRID], few, images)
    for task, share in product(over, reversed(BUDGETS[:-1])):
        if first := _of_kind(FIRST_CLAIMS, task, most):
            found.append(Part(f"{task}, steps × {share:g}", first, task, most, at_budget(task, "evening", share)))
    if "mnist1d" in tasks and not _next(most):
        quarter = at_budget("mnist1d", "evening", 1 / 4)
        for size in SIZES:
            name = ", ".join(f"{field} {value}" for field, value in size.items())
            found.append(Part(f"mnist1d, steps × 0.25, {name}", SIZED, "mnist1d", few, quarter | size))
    if CEILING_TASK in tasks:
        found.append(Part(f"{CEILING_TASK}, at their ceiling", CEILING, CEILING_TASK, few))
    return found


def _next(seeds: tuple[int, ...]) -> bool:
    """Whether these are seeds of the next version of the protocol, behind those of this one."""
    return bool(seeds) and min(seeds) > EVENING_SEEDS[-1]


def _known(seeds: tuple[int, ...]) -> dict[str, Claim]:
    """The claims by id, as they are asked on these seeds."""
    return CLAIMS | hypotheses.BEYOND | (NEXT if _next(seeds) else {})


def _of_kind(numbers: tuple[str, ...], task: str, seeds: tuple[int, ...]) -> tuple[str, ...]:
    """The claims of these numbers that are about the task; of language models there are few. On the next seeds the task
    of §4.6 is asked nothing else."""
    known, asked = _known(seeds), (number + kind_of(task)[0] for number in numbers)
    found = (name for name in asked if name in known and tasks_of(known[name], [task], "evening"))
    alone = _next(seeds) and task == inside_task("evening")
    return tuple(name for name in found if not (alone and known[name].runs == "tuned"))


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
    scale: str | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """The runs of all `parts`; the results of `frame` (None = those of the store) may ask for further rates."""
    scale = default_scale() if scale is None else scale
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
    frame = with_summaries(rows, runs_dir).assign(protocol=VERSION, protocol_commit=protocol)
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
