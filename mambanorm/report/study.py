"""The whole study: trains what it lacks, executes the notebooks headless, and makes one page of their answers.

study() → sweep → execute → reports/<scale>/index.html

run_study       the whole way
study_facts     what the page says about the run as a whole
exit_code       what the shell is told
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.settings import ROOT, check_scale, check_source, default_scale
from mambanorm.basics.text import spell
from mambanorm.config import RunConfig
from mambanorm.kernels.warm import warm_up
from mambanorm.report.execute import execute
from mambanorm.report.index import write_index
from mambanorm.report.notebooks import find_notebooks, study_runs
from mambanorm.report.outcome import NotebookOutcome, read_outcome
from mambanorm.study.experiments import study
from mambanorm.tasks import TASKS
from mambanorm.training import machine
from mambanorm.training.grid import check_names
from mambanorm.training.recorded_results import recorded
from mambanorm.training.seeds import check_seeds
from mambanorm.training.store import missing_runs
from mambanorm.training.store import runs_dir as store_dir
from mambanorm.training.sweep import sweep

REPORTS = ROOT / "reports"


def exit_code(outcomes: Iterable[NotebookOutcome]) -> int:
    """0 only if every notebook ran through and every run it needs could be trained."""
    return int(not all(outcome.ok for outcome in outcomes))


def run_study(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    runs_dir: str | Path | None = None,
    scheduler: str | None = None,
    notebooks: str | Sequence[str] | None = None,
    out_dir: str | Path | None = None,
    progress: bool = True,
    *,
    workers: int | str = "auto",
) -> list[NotebookOutcome]:
    """Trains what the store lacks, executes the notebooks (all, or those named) and writes the report.

    None = the environment's or the scale's value. ValueError for an unknown scale, task or notebook and OSError for a
    folder that cannot be written to, before anything starts; a run or a notebook that fails is in the outcomes instead.
    """
    start = time.monotonic()
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = seeds if seeds is None or isinstance(seeds, int) else check_seeds(seeds, scale)
    tasks = None if tasks is None else check_names("tasks", tasks)
    paths = find_notebooks(notebooks)
    plan = study_runs(scale, tasks, seeds, [path.stem for path in paths] if notebooks is not None else None)
    for path in [path for path in paths if tasks and plan.get(path.stem) == []]:
        paths.remove(path)
        print(f"{path.stem} is left out: {', '.join(tasks)} is none of its tasks")
    given = dict(scale=scale, seeds=seeds, tasks=tasks and list(tasks), runs_dir=runs_dir, scheduler=scheduler)
    parameters = {name: value for name, value in given.items() if value is not None}
    if runs_dir is not None:
        parameters["runs_dir"] = str(store_dir(runs_dir))
    out_dir = writable_folder(out_dir or REPORTS / scale, "the report")

    warm_up()  # here, on two cores, and not in every notebook
    trained, failed = _train(plan, runs_dir, scheduler, workers, progress)
    outcomes = [
        replace(outcome, failed_runs=sum(config.run_id in failed for config in plan.get(outcome.name, [])))
        for outcome in execute(paths, out_dir, parameters, progress)
    ]
    n_runs = len({config.run_id for configs in plan.values() for config in configs})
    facts = study_facts(scale, tasks, seeds, n_runs, trained, time.monotonic() - start)
    index = write_index(outcomes + _earlier(outcomes, out_dir), out_dir, facts)
    print(f"The report is at {index.as_uri()}")
    return outcomes


def to_train(configs: Iterable[RunConfig], runs_dir: str | Path | None) -> list[RunConfig]:
    """What the store lacks; where recorded results are the source, which the notebooks then read, the few besides."""
    missing = missing_runs(configs, runs_dir)
    if missing and check_source() == "recorded":
        held = set(recorded(missing[0].scale).run_id)
        missing = [config for config in missing if config.run_id not in held]
    return missing


def _train(plan: dict[str, list], runs_dir, scheduler, workers, progress: bool) -> tuple[int, set[str]]:
    """How many runs were missing, and the ids of those that could not be trained."""
    missing = to_train((config for configs in plan.values() for config in configs), runs_dir)
    if not missing:
        return 0, set()
    frame = sweep(missing, scheduler=scheduler, workers=workers, runs_dir=runs_dir, progress=progress)
    return len(missing), set(frame.loc[frame["status"] == "failed", "run_id"])


def _earlier(outcomes: Sequence[NotebookOutcome], out_dir: Path) -> list[NotebookOutcome]:
    """What the folder holds of notebooks that were not executed this time, so that the page stays whole."""
    done, found = {outcome.name for outcome in outcomes}, []
    for source in find_notebooks():
        path = out_dir / source.name
        if source.stem not in done and path.is_file():
            when = datetime.fromtimestamp(path.stat().st_mtime)
            found.append(replace(read_outcome(path), earlier=f"{when:%d %B %Y, %H:%M}"))
    return found


def study_facts(scale, tasks, seeds, n_runs: int, trained: int, wall_s: float) -> dict[str, str]:
    """What the page says about the run as a whole: label → text."""
    names = tuple(tasks or dict.fromkeys(c.task for runs in study(scale, tasks, seeds).values() for c in runs))
    return {
        "Scale": scale,
        "Seeds": ", ".join(map(str, check_seeds(seeds, scale))),
        "Tasks": "; ".join(f"{name} ({TASKS[name].title})" if name in TASKS else name for name in names),
        "Training runs": f"{n_runs}, of which {trained} trained this time"
        if trained
        else f"{n_runs}, all in the store",
        "Total time": spell(wall_s),
        "Date": f"{datetime.now().astimezone():%d %B %Y, %H:%M %Z}",
        "Machine": machine.machine(),
        "Code": f"commit {machine.git_commit() or 'unknown'}, {machine.versions()}",
    }
