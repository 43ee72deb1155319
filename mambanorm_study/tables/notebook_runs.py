"""The question, the tasks and the runs of each notebook, in one table.

README.md and notebook 00 repeat the questions; a test compares them with NOTEBOOKS.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from mambanorm.arms import Arm
from mambanorm_study.basics.settings import STUDY_SCALE, check_source, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import arms, check_names, check_seeds, check_task, grid, unique
from mambanorm_study.runs.presets import PAPER, TABLES, TEXTS, kind_of_input
from mambanorm_study.runs.recorded_results import grid_at_recorded_lr
from mambanorm_study.tables.experiments import (
    AUTONORM_SEEDS,
    CROSSING_ARMS,
    GATED_ARMS,
    GRID_ARMS,
    NORMVARY_ARMS,
    NORMVARY_CORE_ARMS,
    POSITION_ARMS,
    PRETRAINED_ON,
    RECORDED_TASKS,
    RECORDED_TRANSFERS,
    STUDY_TASKS,
    TYPE_ARMS,
    VALIDATION_ARMS,
    autonorm_runs,
    figure_9_arms,
    site_runs,
    transfer_runs,
)
from mambanorm_study.tables.instance_norm_parts import parts_runs

# The tasks of Table 2 of the paper.
VALIDATION_TASKS = ("listops", "imdb", "cifar100", "pathfinder64")

# The kinds of inputs that are sequences, as `kind_of_input` names them.
SEQUENCES = ("values", "tokens")

# Scale and task for which the 6×6 grid of §4.4 of the paper is not trained, because its 36 arms
# would double the time of the study.
WITHOUT_GRID = ("quick", "listops")


@dataclass(frozen=True, eq=False)
class NotebookRuns(Mapping):
    """A mapping from the name of each notebook to the configs of its runs, which are listed when
    they are first read.

    tasks: the requested tasks; None means the default tasks of the scale. seeds: None means the
    seeds of the scale or, for recorded arms, the recorded seeds. source: see `grid_at_recorded_lr`.
    """

    scale: str
    tasks: list[str] | None
    seeds: list[int] | None
    source: str | None
    _listed: dict[str, list[RunConfig]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> list[RunConfig]:
        if name not in self._listed:
            self._listed[name] = RUNS[name](self)
        return self._listed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(RUNS)

    def __len__(self) -> int:
        return len(RUNS)

    def runs_of(self, name: str) -> list[RunConfig]:
        """Return the configs of a notebook's runs, and print which of the requested tasks the
        notebook does not use.

        Raises ValueError for an unknown task, and if the notebook uses none of the tasks.
        """
        check_usable_tasks(name, self.tasks, self.scale)
        used_tasks = {config.task for config in self[name]}
        unused_tasks = [task for task in self.tasks or () if task not in used_tasks]
        if unused_tasks:
            print(f"Not used in this notebook: {', '.join(unused_tasks)}")
        return self[name]

    @property
    def are_recorded(self) -> bool:
        """True if the notebooks show all recorded runs and no others."""
        is_default = self.scale == STUDY_SCALE and self.tasks is None and self.seeds is None
        return is_default and check_source(self.source) != "trained"

    @property
    def small_run_scale(self) -> str:
        """The scale of runs that are never read from recorded results: quick if STUDY_SCALE is
        requested, else the requested scale.
        """
        return "quick" if self.scale == STUDY_SCALE else self.scale

    @property
    def default_tasks(self) -> tuple[str, ...]:
        """The default tasks of this scale: RECORDED_TASKS at STUDY_SCALE, STUDY_TASKS at other
        scales.
        """
        return RECORDED_TASKS if self.scale == STUDY_SCALE else STUDY_TASKS

    def tasks_of(self, kinds: Sequence[str], *, small: bool = False) -> list[str]:
        """Return the requested tasks whose inputs are of these kinds. If no tasks are requested,
        select from `default_tasks` or, if `small` is True, from STUDY_TASKS, whose models train in
        seconds.
        """
        tasks = self.tasks
        if tasks is None:
            tasks = STUDY_TASKS if small else self.default_tasks
        return [task for task in tasks if kind_of_input(task) in kinds]

    def grid_tasks(self, *, small: bool = False) -> list[str]:
        """Return the requested sequence tasks on which the 6×6 grid of the paper's §4.4 is trained.

        small: see `tasks_of`.
        """
        sequences = self.tasks_of(SEQUENCES, small=small)
        return [task for task in sequences if (self.scale, task) != WITHOUT_GRID]

    def first_sequence_task(self) -> list[str]:
        """Return a list with one of the requested sequence tasks, for notebooks that train models
        on a single task: the first of `grid_tasks` or, if it is empty, the first sequence task. []
        if there is no sequence task.
        """
        return (self.grid_tasks(small=True) or self.tasks_of(SEQUENCES, small=True))[:1]

    def runs(self, arms: Sequence[Arm], tasks: Sequence[str]) -> list[RunConfig]:
        """Return the configs of these arms on these tasks, with the recorded learning rate of each
        arm that has one.
        """
        configs = []
        for task in tasks:
            # for tasks with few recorded arms, the arms without recorded runs are listed too
            keep_all_arms = task not in self.default_tasks or (self.scale, task) == WITHOUT_GRID
            configs += grid_at_recorded_lr(
                arms, [task], self.scale, self.seeds, self.source, keep_unrecorded=keep_all_arms
            )
        return configs


def _start_here_runs(study: NotebookRuns) -> list[RunConfig]:
    tasks = study.tasks_of(["values"], small=True)[:1]
    two_arms = [Arm("RMSN", "None"), Arm("RMSN", "GN")]
    return grid(two_arms, tasks, scale=study.small_run_scale, seeds=1)


def _normvary_runs(study: NotebookRuns) -> list[RunConfig]:
    further_arms = [arm for arm in NORMVARY_ARMS if arm not in NORMVARY_CORE_ARMS]
    core_runs = study.runs(NORMVARY_CORE_ARMS, study.tasks_of(SEQUENCES))
    return unique(core_runs + study.runs(further_arms, study.grid_tasks()))


def _validation_runs(study: NotebookRuns) -> list[RunConfig]:
    """Return the runs of notebook 08. The runs of each comparison are listed separately, because
    the arms of one comparison have more recorded seeds in common than all arms have.
    """
    tasks = validation_tasks(study.scale, study.tasks)
    core = [arm for arm in VALIDATION_ARMS if arm in NORMVARY_CORE_ARMS]
    comparisons = [core, arms("RMSN>SSM>None", "NormVary>SSM>LN"), arms("RMSN>SSM>LN")]
    return unique(config for compared in comparisons for config in study.runs(compared, tasks))


def _autonorm_runs(study: NotebookRuns) -> list[RunConfig]:
    tasks = study.tasks_of(["vision", "table"], small=True)
    if not tasks:  # CROSSING_ARMS alone do not answer the question
        return []
    seeds = AUTONORM_SEEDS[study.scale] if study.seeds is None else study.seeds
    scale = study.small_run_scale
    crossing = grid(CROSSING_ARMS, study.first_sequence_task(), scale=scale, seeds=seeds)
    return autonorm_runs(tasks, scale, seeds) + crossing


def _beyond_runs(study: NotebookRuns) -> list[RunConfig]:
    if study.scale != STUDY_SCALE:
        return site_runs(study.scale, study.first_sequence_task(), study.seeds)
    tasks = study.grid_tasks()[:1]
    return study.runs(GATED_ARMS, [*tasks, *TEXTS] if tasks else [])


@dataclass(frozen=True)
class Notebook:
    """One notebook: its question, the kinds of tasks that it can use, and a function that lists its
    runs.

    task_kinds: () if the notebook does not depend on the tasks of the study. runs: None if the
    notebook has no runs. first_arms: the arms of the notebook's main comparison, which a study
    trains first. trains_itself: True if the notebook trains its runs even if they are recorded.
    """

    question: str
    task_kinds: tuple[str, ...] = ()
    runs: Callable[[NotebookRuns], list[RunConfig]] | None = None
    first_arms: tuple[str, ...] = ()
    trains_itself: bool = False


NOTEBOOKS = {
    "00_start_here": Notebook(
        "what is this, what do I need, what does one run look like?",
        ("values",),
        _start_here_runs,
        first_arms=("RMSN>SSM>None", "RMSN>SSM>GN"),
        trains_itself=True,
    ),
    "01_normalization": Notebook(
        "what does each norm compute, over which axes, and what does it cost?"
    ),
    "02_mamba_block": Notebook("how does a Mamba block work, and where can a norm stand?"),
    "03_type": Notebook(
        "the same norm before and after: which type?",
        SEQUENCES,
        lambda study: study.runs(TYPE_ARMS, study.tasks_of(SEQUENCES)),
        first_arms=("None>SSM>None", "LN>SSM>LN"),
    ),
    "04_position": Notebook(
        "before or after the SSM?",
        SEQUENCES,
        lambda study: study.runs(POSITION_ARMS, study.tasks_of(SEQUENCES)),
        first_arms=("BN>SSM>None", "None>SSM>BN"),
    ),
    "05_combination": Notebook(
        "which pair?",
        SEQUENCES,
        lambda study: study.runs(GRID_ARMS, study.grid_tasks() or study.tasks_of(SEQUENCES)),
        first_arms=("RMSN>SSM>None", "GN>SSM>BN"),
    ),
    "06_normvary": Notebook(
        "can the norm be learned?",
        SEQUENCES,
        _normvary_runs,
        first_arms=("RMSN>SSM>GN", "NormVary>SSM>GN"),
    ),
    "07_diagnostics": Notebook(
        "why does it work?",
        SEQUENCES,
        lambda study: grid(figure_9_arms("BN"), scale=study.small_run_scale, seeds=1),
        first_arms=tuple(map(str, figure_9_arms("BN"))),
    ),
    "08_validation": Notebook(
        "does the proposal beat the original, and which of its norms brings the gain?",
        SEQUENCES,
        _validation_runs,
        first_arms=("RMSN>SSM>None", "NormVary>SSM>GN"),
    ),
    "09_vision": Notebook(
        "does it hold for images?",
        ("vision",),
        lambda study: study.runs([*GRID_ARMS, *NORMVARY_ARMS], study.tasks_of(["vision"])),
        first_arms=("None>SSM>None", "BN>SSM>BN"),
    ),
    "10_autonorm": Notebook(
        "can a network choose its norm token by token, in a Transformer and in Mamba?",
        ("vision", "table"),
        _autonorm_runs,
        first_arms=("AutoNorm", "FrozenLN", "FrozenDyT"),
    ),
    "11_choosing": Notebook("which norm when, and which mistakes are common?"),
    "12_verdicts": Notebook("every claim, every verdict, one page: what holds, and what to take"),
    "13_beyond": Notebook(
        "beyond the paper: the norms of Jamba, Mamba-2 and others, at their own sites, and what "
        "these models' authors say",
        SEQUENCES,
        _beyond_runs,
        first_arms=("RMSN>SSM>None", "RMSN>SSM>None+gated:RMSN"),
    ),
    "14_clinic": Notebook("your own Mamba goes NaN: where does it begin, and what cures it?"),
    "15_your_norm": Notebook(
        "an idea for a norm: what does it do, what does it cost, is it any good?",
        (*SEQUENCES, "vision", "language"),
    ),
    "16_field": Notebook(
        "questions that practitioners asked in public threads: what do runs answer, and how do I "
        "ask my own?"
    ),
}


# The order in which a study executes the notebooks: first the page of the verdicts, last those
# whose outputs do not depend on the study's runs.
EXECUTED_FIRST = ("12_verdicts",)
EXECUTED_LAST = (
    "01_normalization",
    "02_mamba_block",
    "11_choosing",
    "14_clinic",
    "15_your_norm",
    "16_field",
)

# Notebook → function that lists its runs, for the notebooks that have runs.
RUNS = {name: notebook.runs for name, notebook in NOTEBOOKS.items() if notebook.runs}


def notebook_runs(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
) -> NotebookRuns:
    """Return a mapping from the name of each notebook to the configs of its runs. A notebook that
    uses none of the given tasks has [].

    Notebook 07 always has runs on digits; notebook 13 also has runs of language models. tasks,
    seeds: see `NotebookRuns`. source: see `grid_at_recorded_lr`. Raises ValueError for unknown
    tasks and for wrong seeds.
    """
    scale = study_scale(scale)
    return NotebookRuns(
        scale=scale,
        tasks=None if tasks is None else check_names("tasks", tasks),
        seeds=None if seeds is None else check_seeds(seeds, scale),
        source=source,
    )


def extra_runs(scale: str) -> list[RunConfig]:
    """Return the small runs that notebooks 03, 06, 09, 10 and 13 need in addition to
    `notebook_runs`: variants of a norm, fine-tuned models, and solutions of exercises.

    At scale evening these notebooks read the recorded runs of scale quick. The runs on tables that
    must be downloaded are listed at scale quick only.
    """
    parts = parts_runs(scale)
    digits = dict(scale=scale, seeds=sorted({c.seed for c in parts if c.task == "digits"}))
    of_groups = [grid(["GN>SSM>GN"], **digits, norm_options={"groups": n}) for n in (2, 16)]
    jamba = grid(["preset:Jamba"], scale=scale, seeds=check_seeds(None, scale)[:2])
    bare = {"norm_options": {site: {"affine": False} for site in ("B", "C", "delta")}}
    by_notebook = notebook_runs(scale)
    normvary = next(c for c in by_notebook["06_normvary"] if c.arm == "NormVary>SSM>GN")
    images = by_notebook["09_vision"]
    pair = [c for c in images if c.arm in ("LN>SSM>LN", "LN>SSM>GN") and c.seed == images[0].seed]
    fine_tuned = [task for task in PRETRAINED_ON if scale == "quick" or task not in TABLES]
    transfers = chain.from_iterable(
        transfer_runs(task, scale, RECORDED_TRANSFERS[task]).values() for task in fine_tuned
    )
    return unique(
        [
            *parts,
            *grid(["LN-DL>SSM>LN-DL"], **digits),
            *chain.from_iterable(of_groups),
            normvary.but(norm_options={"statistics": "literal"}),
            *(c.but(down_sample=(2,), down_norm="LN") for c in pair),
            *(c.but(positional="learned") for c in pair),
            *jamba,
            *(c.but(**bare) for c in jamba),
            *chain.from_iterable(transfers),
        ]
    )


def validation_tasks(scale: str, tasks: Sequence[str] | None = None) -> list[str]:
    """Return the tasks of notebook 08: the given tasks that are in the paper's Table 2, `paths16`
    and, at scale evening, those among the first two of RECORDED_TASKS.

    tasks: None means the default of the scale: at scales smoke and quick ListOps, which needs no
    download; at scale evening the first two of RECORDED_TASKS; at the other scales all tasks of
    Table 2.
    """
    recorded = RECORDED_TASKS[:2] if scale == STUDY_SCALE else ()
    if tasks is not None:
        given = check_names("tasks", tasks)
        return [task for task in (*recorded, *VALIDATION_TASKS, "paths16") if task in given]
    if scale in ("smoke", "quick"):
        return [VALIDATION_TASKS[0]]
    return list(recorded or VALIDATION_TASKS)


def usable_tasks(notebook: str, tasks: Iterable[str], scale: str) -> list[str]:
    """Return the given tasks that a notebook can use at a scale."""
    if notebook == "08_validation":
        return validation_tasks(scale, list(tasks))
    return [task for task in tasks if kind_of_input(task) in NOTEBOOKS[notebook].task_kinds]


def check_usable_tasks(notebook: str, tasks: Sequence[str] | None, scale: str) -> list[str] | None:
    """Return the given tasks that a notebook can use at a scale; None if `tasks` is None.

    Raises ValueError for an unknown task, and if the notebook can use none of the tasks; the
    message lists the tasks that the notebook can use.
    """
    if tasks is None:
        return None
    given = list(map(check_task, check_names("tasks", tasks)))
    used = usable_tasks(notebook, given, scale)
    if not used:
        valid = ", ".join(usable_tasks(notebook, PAPER, scale))
        raise ValueError(
            f"notebook {notebook} takes {valid}, got tasks={given}: give one of these, or None"
        )
    return used
