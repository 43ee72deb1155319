"""The plan of a study: its notebooks, the runs that the notebooks read, and the runs to train.

This module does not import Jupyter, so that a dry run is quick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from mambanorm_study.basics.settings import study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.report.notebooks import find_notebooks
from mambanorm_study.runs.grid import check_names, check_task, unique
from mambanorm_study.tables.notebook_runs import NOTEBOOKS, notebook_runs, usable_tasks
from mambanorm_study.tables.replication import fresh_configs, unrecorded


@dataclass(frozen=True)
class StudyPlan:
    """The notebooks of a study and their runs."""

    scale: str
    tasks: list[str] | None  # None means the tasks of the scale
    seeds: int | list[int] | None  # None means the seeds of the scale
    runs_dir: str | Path | None  # the run store; None means the store that the environment sets
    paths: list[Path]  # the notebooks to execute, in teaching order
    left_out: list[str]  # names of the notebooks that use none of `tasks`
    configs: list[RunConfig]  # all runs that the notebooks read
    # runs on new seeds and the like, which are trained as far as the study has time, in this order
    optional: list[RunConfig]
    # notebook → runs to train on this machine: runs that are not recorded, and optional runs
    to_train: dict[str, list[RunConfig]]

    @property
    def required(self) -> list[RunConfig]:
        """The runs to train however long they take, because the notebooks need them."""
        return [config for config in self.configs_to_train if config not in self.optional]

    @property
    def configs_to_train(self) -> list[RunConfig]:
        """All runs to train on this machine, without duplicates."""
        return unique(chain.from_iterable(self.to_train.values()))


def plan_study(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | list[int] | None = None,
    *,
    runs_dir: str | Path | None = None,
    notebooks: str | Sequence[str] | None = None,
    draw: bool = True,
) -> StudyPlan:
    """Return the plan of a study. Raise ValueError for an unknown scale, task or notebook.

    notebooks: names of notebooks or beginnings of names; None means all notebooks. draw: True
    means that a new seed is drawn at random and stored, if the run store has none for this machine
    yet.
    """
    scale = study_scale(scale)
    if tasks is not None:
        tasks = [check_task(name) for name in check_names("tasks", tasks)]
    paths = find_notebooks(notebooks)
    runs = notebook_runs(scale, tasks, seeds)
    left_out = [path.stem for path in paths if tasks and is_left_out(path.stem, runs, tasks, scale)]
    paths = [path for path in paths if path.stem not in left_out]
    runs = {path.stem: runs[path.stem] for path in paths if path.stem in runs}
    configs = unique(chain.from_iterable(runs.values()))
    required = {name: unrecorded(configs_of) for name, configs_of in runs.items()}
    optional = {
        name: fresh_configs(configs_of, runs_dir=runs_dir, draw=draw)
        for name, configs_of in runs.items()
    }
    for name in optional:
        if optional[name] and NOTEBOOKS[name].trains_itself:
            optional[name] = runs[name]
    return StudyPlan(
        scale,
        tasks,
        seeds,
        runs_dir,
        paths,
        left_out,
        configs,
        optional=most_instructive_first(optional),
        to_train={name: unique(required[name] + optional[name]) for name in runs},
    )


def most_instructive_first(fresh: Mapping[str, Sequence[RunConfig]]) -> list[RunConfig]:
    """Return the fresh runs of all notebooks in the order in which a study trains them.

    The arms of each notebook's main comparison (`Notebook.first_arms`) come first, then one run of
    each notebook in turn.

    fresh: notebook → its fresh runs.
    """
    first = [
        c for name, configs in fresh.items() for c in configs if c.arm in NOTEBOOKS[name].first_arms
    ]
    rest = chain.from_iterable(zip_longest(*fresh.values()))
    return unique(config for config in chain(first, rest) if config is not None)


def is_left_out(
    notebook: str, runs: dict[str, list[RunConfig]], tasks: Sequence[str], scale: str
) -> bool:
    """Return True if the notebook is left out of a study of `tasks`, because it uses none of them.

    runs: notebook → runs, see `notebook_runs`.
    """
    if notebook in runs:
        return runs[notebook] == []
    takes_tasks = notebook in NOTEBOOKS and NOTEBOOKS[notebook].task_kinds
    return bool(takes_tasks) and not usable_tasks(notebook, tasks, scale)
