"""The notebooks in one table: the question, the tasks and the runs of each.

README.md and notebook 00 show the questions; a test compares them with NOTEBOOKS.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import STUDY_SCALE, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import arms, check_names, check_seeds, check_task, grid, unique
from mambanorm_study.runs.presets import (
    LANGUAGE_TASKS,
    PAPER,
    TABLES,
    TEXTS,
    VISION_TASKS,
    kind_of_input,
)
from mambanorm_study.runs.recorded_results import grid_at_recorded_lr
from mambanorm_study.tables.experiments import (
    AUTONORM_SEEDS,
    CROSSING_ARMS,
    GATED_ARMS,
    GRID_ARMS,
    NORMVARY_ARMS,
    NORMVARY_CORE_ARMS,
    POSITION_ARMS,
    RECORDED_TASKS,
    STUDY_TASKS,
    TYPE_ARMS,
    VALIDATION_ARMS,
    autonorm_runs,
    four_arms,
    site_runs,
)

# The rows of Table 2.
VALIDATION_TASKS = ("listops", "imdb", "cifar100", "pathfinder64")


@dataclass(frozen=True)
class Request:
    """The tasks, seeds and source that a study asks its notebooks for. tasks: None = the scale's.
    seeds: None = the scale's, or the recorded ones.
    """

    scale: str
    tasks: list[str] | None
    seeds: list[int] | None
    source: str | None

    @property
    def small_scale(self) -> str:
        """The scale of runs that are trained here: those that scale evening does not record, and
        those whose weights are needed.
        """
        return "quick" if self.scale == STUDY_SCALE else self.scale

    @property
    def recorded_tasks(self) -> tuple[str, ...]:
        """The tasks of this scale of which all arms are recorded or trained."""
        return RECORDED_TASKS if self.scale == STUDY_SCALE else STUDY_TASKS

    @cached_property
    def asked_tasks(self) -> list[str]:
        """The given tasks, else the scale's."""
        return list(self.recorded_tasks) if self.tasks is None else self.tasks

    @property
    def images(self) -> list[str]:
        """The asked tasks of images."""
        return [task for task in self.asked_tasks if task in VISION_TASKS]

    @property
    def sequences(self) -> list[str]:
        """The asked tasks of sequences."""
        others = {*VISION_TASKS, *TABLES, *LANGUAGE_TASKS}
        return [task for task in self.asked_tasks if task not in others]

    @property
    def grid_sequences(self) -> list[str]:
        """The asked tasks of sequences on which the whole grid is trained."""
        return [task for task in self.sequences if not self.leaves_grid_out(task)]

    @property
    def first_sequence(self) -> list[str]:
        """The sequence task of a notebook that trains models on one task; [] without one."""
        if self.scale == STUDY_SCALE and self.tasks is None:
            return [STUDY_TASKS[0]]
        return (self.grid_sequences or self.sequences)[:1]

    @property
    def transformer_tasks(self) -> list[str]:
        """The tasks of S2's models: images that are small enough, and tables."""
        small = STUDY_TASKS if self.tasks is None else self.asked_tasks
        images = [task for task in small if task in VISION_TASKS]
        return images + [task for task in self.asked_tasks if task in TABLES]

    def leaves_grid_out(self, task: str) -> bool:
        """Return True for ListOps at scale quick: its 36 arms would double the study's time."""
        return (self.scale, task) == ("quick", "listops")

    def runs(self, arms: Sequence[Arm], tasks: Sequence[str]) -> list[RunConfig]:
        """Return the runs of these arms, each at its recorded learning rate if it has one."""
        configs = []
        for task in tasks:
            # few arms of other tasks are recorded
            whole = task not in self.recorded_tasks or self.leaves_grid_out(task)
            configs += grid_at_recorded_lr(
                arms, [task], self.scale, self.seeds, self.source, whole=whole
            )
        return configs


def _start_here_runs(request: Request) -> list[RunConfig]:
    tasks = [*request.first_sequence, *request.sequences]
    values = [task for task in tasks if kind_of_input(task) == "values"]
    two_arms = [Arm("RMSN", "None"), Arm("RMSN", "GN")]
    return grid(two_arms, values[:1], scale=request.small_scale, seeds=1)


def _type_runs(request: Request) -> list[RunConfig]:
    return request.runs(TYPE_ARMS, request.sequences)


def _position_runs(request: Request) -> list[RunConfig]:
    return request.runs(POSITION_ARMS, request.sequences)


def _combination_runs(request: Request) -> list[RunConfig]:
    return request.runs(GRID_ARMS, request.grid_sequences or request.sequences)


def _normvary_runs(request: Request) -> list[RunConfig]:
    further = [arm for arm in NORMVARY_ARMS if arm not in NORMVARY_CORE_ARMS]
    core_runs = request.runs(NORMVARY_CORE_ARMS, request.sequences)
    return unique(core_runs + request.runs(further, request.grid_sequences))


def _diagnostics_runs(request: Request) -> list[RunConfig]:
    return grid(four_arms("BN"), scale=request.small_scale, seeds=1)


def _validation_runs(request: Request) -> list[RunConfig]:
    """Return the arms of each comparison by themselves: they share more recorded seeds than all
    arms do.
    """
    tasks = validation_tasks(request.scale, request.tasks)
    core = [arm for arm in VALIDATION_ARMS if arm in NORMVARY_CORE_ARMS]
    comparisons = [core, arms("RMSN>SSM>None", "NormVary>SSM>LN"), arms("RMSN>SSM>LN")]
    return unique(config for some in comparisons for config in request.runs(some, tasks))


def _vision_runs(request: Request) -> list[RunConfig]:
    return request.runs([*GRID_ARMS, *NORMVARY_ARMS], request.images)


def _autonorm_runs(request: Request) -> list[RunConfig]:
    tasks = request.transformer_tasks
    if not tasks:  # a Mamba's runs alone do not answer the notebook's question
        return []
    seeds = AUTONORM_SEEDS[request.scale] if request.seeds is None else request.seeds
    scale = request.small_scale
    crossing = grid(CROSSING_ARMS, request.first_sequence, scale=scale, seeds=seeds)
    return autonorm_runs(tasks, scale, seeds) + crossing


def _beyond_runs(request: Request) -> list[RunConfig]:
    if request.scale != STUDY_SCALE:
        return site_runs(request.scale, request.first_sequence, request.seeds)
    tasks = request.grid_sequences[:1]
    return request.runs(GATED_ARMS, [*tasks, *TEXTS] if tasks else [])


@dataclass(frozen=True)
class Notebook:
    """One notebook: its question, the kinds of tasks that it takes, and its runs of the study.

    takes: () if the study's tasks do not matter to it. runs: None if it has none.
    """

    question: str
    takes: tuple[str, ...] = ()
    runs: Callable[[Request], list[RunConfig]] | None = None


SEQUENCES = ("values", "tokens")
NOTEBOOKS = {
    "00_start_here": Notebook(
        "what is this, what do I need, what does one run look like?", ("values",), _start_here_runs
    ),
    "01_normalization": Notebook(
        "what does each norm compute, over which axes, and what does it cost?"
    ),
    "02_mamba_block": Notebook("how does a Mamba block work, and where can a norm stand?"),
    "03_type": Notebook("the same norm before and after: which type?", SEQUENCES, _type_runs),
    "04_position": Notebook("before or after the SSM?", SEQUENCES, _position_runs),
    "05_combination": Notebook("which pair?", SEQUENCES, _combination_runs),
    "06_normvary": Notebook("can the norm be learned?", SEQUENCES, _normvary_runs),
    "07_diagnostics": Notebook("why does it work?", SEQUENCES, _diagnostics_runs),
    "08_validation": Notebook(
        "does the proposal beat the original, and which of its norms brings the gain?",
        SEQUENCES,
        _validation_runs,
    ),
    "09_vision": Notebook("does it hold for images?", ("vision",), _vision_runs),
    "10_autonorm": Notebook(
        "can a network choose its norm token by token, in a Transformer and in Mamba?",
        ("vision", "table"),
        _autonorm_runs,
    ),
    "11_choosing": Notebook("which norm when, and which mistakes are common?"),
    "12_verdicts": Notebook("every claim, every verdict, one page: what holds, and what to take"),
    "13_beyond": Notebook(
        "beyond the paper: the norms of Jamba, Mamba-2 and others, at their own sites, and what "
        "these models' authors say",
        SEQUENCES,
        _beyond_runs,
    ),
    "14_clinic": Notebook("your own Mamba goes NaN: where does it begin, and what cures it?"),
    "15_your_norm": Notebook(
        "an idea for a norm: what does it do, what does it cost, is it any good?",
        (*SEQUENCES, "vision", "language"),
    ),
}


class NotebookRuns(Mapping):
    """Notebook → its runs, made when they are first read."""

    def __init__(self, request: Request):
        self.request = request
        self._runs: dict[str, list[RunConfig]] = {}

    def __getitem__(self, name: str) -> list[RunConfig]:
        if name not in list(self):
            raise KeyError(name)
        if name not in self._runs:
            self._runs[name] = NOTEBOOKS[name].runs(self.request)
        return self._runs[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, notebook in NOTEBOOKS.items() if notebook.runs is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def runs_of(self, name: str) -> list[RunConfig]:
        """Return the runs of a notebook, and print which given tasks have none. ValueError as in
        `check_taken`.
        """
        given_tasks = self.request.tasks
        check_taken(name, given_tasks, self.request.scale)
        runs = self[name]
        used_tasks = {config.task for config in runs}
        unused_tasks = [task for task in given_tasks or () if task not in used_tasks]
        if unused_tasks:
            print(f"Not used in this notebook: {', '.join(unused_tasks)}")
        return runs


def notebook_runs(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
) -> NotebookRuns:
    """Return the runs of each notebook, by notebook; [] where it takes none of the given tasks.

    07 always has runs on digits, 13 those of a language model beside a sequence's; 05 takes a task
    that is left out of the grid only if there is no other. seeds=None: the scale's, or the recorded
    ones. ValueError for unknown tasks and wrong seeds.
    """
    scale = study_scale(scale)
    return NotebookRuns(
        Request(
            scale=scale,
            tasks=None if tasks is None else check_names("tasks", tasks),
            seeds=None if seeds is None else check_seeds(seeds, scale),
            source=source,
        )
    )


def validation_tasks(scale: str, tasks: Sequence[str] | None = None) -> list[str]:
    """Return those of Table 2's tasks that are given, and at scale evening of the recorded ones.

    None = all; at smoke and quick only ListOps, which needs no download, and at evening curves and
    images.
    """
    recorded = RECORDED_TASKS[:2] if scale == STUDY_SCALE else ()
    if tasks is not None:
        given = check_names("tasks", tasks)
        return [task for task in (*recorded, *VALIDATION_TASKS) if task in given]
    if scale in ("smoke", "quick"):
        return [VALIDATION_TASKS[0]]
    return list(recorded or VALIDATION_TASKS)


def taken(notebook: str, tasks: Iterable[str], scale: str) -> list[str]:
    """Return those of the tasks that a notebook takes at a scale."""
    if notebook == "08_validation":
        return validation_tasks(scale, list(tasks))
    return [task for task in tasks if kind_of_input(task) in NOTEBOOKS[notebook].takes]


def check_taken(notebook: str, tasks: Sequence[str] | None, scale: str) -> list[str] | None:
    """Return the given tasks that a notebook takes, or None. ValueError if it takes none of them,
    with those that it takes, and for an unknown task.
    """
    if tasks is None:
        return None
    given = list(map(check_task, check_names("tasks", tasks)))
    used = taken(notebook, given, scale)
    if not used:
        valid = ", ".join(taken(notebook, PAPER, scale))
        raise ValueError(
            f"notebook {notebook} takes {valid}, got tasks={given}: give one of these, or None"
        )
    return used
