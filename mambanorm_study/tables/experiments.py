"""The lists of runs that the study asks for: arms, depths, failures, and what each notebook
needs."""

from collections import UserDict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from mambanorm.arms import MORE_SITES, NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.basics.presets import arms
from mambanorm_study.basics.settings import STUDY_SCALE, check_scale, default_scale, study_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM, AttentionArm
from mambanorm_study.runs.grid import (
    base_config,
    check_names,
    check_seeds,
    check_task,
    grid,
    unique,
)
from mambanorm_study.runs.presets import (
    LANGUAGE_TASKS,
    PAPER,
    TABLES,
    TEXTS,
    VISION_TASKS,
    kind_of_input,
)
from mambanorm_study.runs.recorded_lr import grid_at_recorded_lr

TYPE_ARMS = [Arm(n, n) for n in PAPER_NORMS]
"""§4.2: the same norm before and after, and none at all."""

AFTER_ARMS = [Arm("None", n) for n in NORM_CHOICES]
POSITION_ARMS = [Arm("None", "None"), *(Arm(n, "None") for n in NORM_CHOICES), *AFTER_ARMS]
"""§4.3, Table 1."""

CORRUPTED_ARMS = (
    str(Arm("None", "None")),
    *map(str, AFTER_ARMS),
    "FrozenLN",
    "AutoNorm",
    "AutoNorm_Linear",
)
"""Those of images that are asked for their accuracy on corrupted rows, too."""

GRID_ARMS = [Arm(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
"""§4.4: the whole 6×6."""

NORMVARY_CORE_ARMS = arms(
    "NormVary>SSM>None", "NormVary>SSM>GN", "NormVary-fixed>SSM>GN", "RMSN>SSM>None", "RMSN>SSM>GN"
)
"""§4.5 and what isolates NormVary: the original and the proposal, the two arms between them,
because Table 2 changes both norms at once (I7), and NormVary with uniform weights."""

BOTH_N1 = [Arm(n1, n2) for n1 in ("NormVary", "RMSN") for n2 in PAPER_NORMS]
NORMVARY_ARMS = [
    *dict.fromkeys([*NORMVARY_CORE_ARMS, *BOTH_N1, *arms("NormVary-fixed>SSM>LN", "LN>SSM>LN")])
]
"""NormVary before each N2, beside RMSN before the same N2."""

VALIDATION_ARMS = [Arm(n1, n2) for n1 in ("RMSN", "NormVary") for n2 in ("None", "GN", "LN")]
VALIDATION_ARMS += arms("NormVary-fixed>SSM>GN")
"""Table 2: the original, both proposals, the three arms between them that tell N1's share from N2's
(I7), and the proposal for sequences with uniform weights."""

OWN = Arm("RMSN", "None")
"""Mamba's own arm, beside which those of `site_arms` stand."""
GATED_ARMS = [OWN, OWN._replace(more=(("gated", "RMSN"),))]
"""It, and with the norm behind the gate that Mamba-2 has: of the further sites the one recorded in
trained models."""

SITE_NORMS = ("RMSN", "LN", "Scale")
"""The norm of most later models, another one, and the gain alone that tells normalizing from
scaling."""


def site_arms(norms: Sequence[str] = SITE_NORMS) -> list[Arm]:
    """Mamba's own arm, and with it each norm at each of the further sites: beyond the paper."""
    return [OWN, *(OWN._replace(more=((site, norm),)) for norm in norms for site in MORE_SITES)]


def site_runs(
    scale: str, tasks: Sequence[str] = ("digits",), seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Every norm at every site at one learning rate, and RMSN at every site of a language model; []
    without a task."""
    tasks_of = ((site_arms(), tasks), (site_arms(["RMSN"]), TEXTS if tasks else []))
    return [config for arms, of in tasks_of for config in grid(arms, of, scale=scale, seeds=seeds)]


STUDY_TASKS = ("digits", "listops", "digits_images", "diabetes")
RECORDED_TASKS = ("curves", "glyphs_images", "diabetes")
"""What the study stands on at scale evening (of diabetes nothing is recorded there); elsewhere on
STUDY_TASKS."""

VALIDATION_TASKS = ("listops", "imdb", "cifar100", "pathfinder64")
"""The rows of Table 2."""


def leaves_grid_out(task: str, scale: str) -> bool:
    """At scale quick, ListOps is left out of the 6×6 grid: its 36 arms would double the study's
    time."""
    return (scale, task) == ("quick", "listops")


DEPTHS = {"smoke": (1, 2, 4, 5)} | dict.fromkeys(
    ("quick", "evening", "lab", "paper"), (4, 8, 16, 24)
)
"""Figure 9 shows four layers, too few to call growth exponential (I5)."""


def inside_task(scale: str) -> str:
    """The task of the runs of §4.6: at evening one of which it is known where models begin to
    fail."""
    return "mnist1d" if scale == "evening" else "digits"


def four_arms(norm: str) -> list[Arm]:
    """Figure 9's: no norm, the norm before, after and on both sides of the SSM."""
    return [Arm("None", "None"), Arm(norm, "None"), Arm("None", norm), Arm(norm, norm)]


TRAINED_FURTHER = dict(
    n_layers=12, lr=6e-3, batch_size=16, steps=80, eval_every=20, warmup_steps=10
)
"""Deep models of scale quick that beat chance in a few seconds each."""

FAILURE_DEPTHS = {
    "smoke": (1, 2),
    "quick": (4, 8, 16),
    "evening": (8,),
    "lab": (4, 8, 16),
    "paper": (4, 8, 16),
}
FAILURE_LRS = (1e-2, 2.5e-2)  # on digits the edge between training and failing lies there
EDGE_LRS = {8: (4e-3, 6e-3)}  # by depth, where it lies on MNIST-1D in models that train (evening)


def failure_lrs(scale: str, depth: int) -> tuple[float, ...]:
    """The learning rates of `failure_runs`, on both sides of the edge between training and
    failing."""
    return EDGE_LRS[depth] if scale == "evening" else FAILURE_LRS


def failure_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Models without any norm and controls with RMSN on both sides, over depth × learning rate: how
    often do they end non-finite?"""
    cells = [dict(n_layers=n, lr=lr) for n in FAILURE_DEPTHS[scale] for lr in failure_lrs(scale, n)]
    pair = [Arm("None", "None"), Arm("RMSN", "RMSN")]
    return [config for cell in cells for config in _runs_to_failure(pair, scale, seeds, **cell)]


def failing_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Figure 10: a model without norms where it fails within seconds, and normalized controls with
    its settings."""
    return growth_runs(scale, "RMSN", seeds)


def growth_runs(scale: str, norm: str = "BN", seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Figure 9's four arms with one norm, at the most blocks and the highest learning rate of
    `failure_runs`."""
    depth = FAILURE_DEPTHS[scale][-1]
    cell = dict(n_layers=depth, lr=failure_lrs(scale, depth)[-1])
    return _runs_to_failure(four_arms(norm), scale, seeds, **cell)


def deep_runs(
    scale: str,
    seeds: int | Iterable[int] = 1,
    arms: Sequence[Arm | str] = (Arm("None", "None"), *AFTER_ARMS),
) -> list[RunConfig]:
    """No norm, and each norm after the SSM (or other arms), in models of at least 8 blocks. At
    quick those of `TRAINED_FURTHER`, which beat chance."""
    task = inside_task(scale)
    deep = dict(n_layers=max(8, base_config(task, scale).n_layers))
    if scale == "evening":
        deep |= dict(
            lr=failure_lrs(scale, deep["n_layers"])[0]
        )  # at which a model without norms trains
    return grid(
        arms, task, scale=scale, seeds=seeds, **TRAINED_FURTHER if scale == "quick" else deep
    )


def fixed_runs(
    question: str, arms: Iterable[str], scale: str, seeds: Iterable[int]
) -> list[RunConfig]:
    """Return the runs of these arms whose learning rates are part of the question: "growth",
    "deep", "failing", "failure" or "ladder"."""
    if question == "ladder":
        return ladder_runs(list(arms), scale, seeds)
    lists = dict(growth=growth_runs, deep=deep_runs, failing=failing_runs, failure=failure_runs)
    return [config for config in lists[question](scale, seeds=seeds) if config.arm in arms]


@lru_cache(maxsize=64)
def fixed_ids(
    question: str, arms: tuple[str, ...], scale: str, seeds: tuple[int, ...]
) -> list[str]:
    """Return the run ids of `fixed_runs`; [] without seeds."""
    return [config.run_id for config in fixed_runs(question, arms, scale, seeds)] if seeds else []


def _runs_to_failure(
    arms: Sequence[Arm], scale: str, seeds: int | Iterable[int], **changes: Any
) -> list[RunConfig]:
    """Runs at rates at which models fail: within 40 steps, or, at evening, at any step of a whole
    training."""
    steps = {} if scale in ("smoke", "evening") else dict(steps=40, eval_every=10, warmup_steps=20)
    return grid(arms, inside_task(scale), scale=scale, seeds=seeds, **steps | changes)


AUTONORM_SEEDS = {"smoke": 1, "quick": 5, "evening": 8, "lab": 8, "paper": 5}
CROSSING_ARMS = arms(
    "NormSelector>SSM>None", "None>SSM>NormSelector", "NormVary>SSM>None", "None>SSM>NormVary", "RMSN>SSM>None",
    "None>SSM>RMSN",
)  # fmt: skip
"""S2's adaptive norm at the two places of a Mamba block, beside the paper's and a fixed one."""


def autonorm_runs(
    tasks: Sequence[str], scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """S2's named models on these tasks, the Teacher with half the blocks, and AutoNorm once more as
    its student."""
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(AUTONORM_SEEDS[scale] if seeds is None else seeds, scale)
    named = grid([name for name in AUTONORM if name != "Teacher"], tasks, scale=scale, seeds=seeds)
    pairs = [distilled(task, scale, seed) for task in tasks for seed in seeds]
    return unique([*named, *(config for pair in pairs for config in pair)])


def distilled(
    task: str, scale: str | None = None, seed: int = 0, **changes: Any
) -> tuple[RunConfig, RunConfig]:
    """A Teacher, which has half the blocks, and an AutoNorm that learns from it (S2, §IV.C.2)."""
    layers = base_config(task, scale, arm="AutoNorm", **changes).n_layers
    teacher = base_config(
        task,
        scale,
        arm="Teacher",
        seed=seed,
        **changes | dict(n_layers=max(1, layers // 2), norm_options={}),
    )
    return teacher, base_config(
        task, scale, arm="AutoNorm", seed=seed, teacher=teacher.run_id, **changes
    )


LR_FACTORS = (0.4, 1.0, 2.5)
"""The learning rates that every arm of a verdict may choose from, as multiples of the task's own at
its scale."""

FURTHER_LR_FACTORS = ((0.064, 0.16), (6.25, 15.6))
"""Those by which an arm's rates may grow, below and above, where the best lies at an end
(claims/evidence.py)."""

BUDGETS = (1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Shares of a scale's steps at which a claim is judged besides: does an arm learn faster, or end
better?"""


def at_budget(task: str, scale: str, share: float) -> dict[str, Any]:
    """The fields of a run that has a share of its scale's steps: a whole schedule, with eight
    evaluations. {} for 1."""
    own = base_config(task, scale)
    steps = max(round(share * own.steps), 1)
    short = dict(
        steps=steps, eval_every=max(steps // 8, 1), warmup_steps=min(own.warmup_steps, steps // 4)
    )
    return {} if share == 1 else short


def model_of(arms: Iterable[str]) -> str:
    """What these arms are of: "mamba" or "transformer". ValueError for a mixture, which shares no
    learning rate."""
    kinds = {isinstance(Arm.parse(arm), AttentionArm) for arm in arms}
    if len(kinds) > 1:
        raise ValueError(
            "arms of Mambas and of Transformers have learning rates of their own: compare one kind"
        )
    return "transformer" if kinds == {True} else "mamba"


def lr_grid(task: str, scale: str | None = None, model: str = "mamba") -> tuple[float, ...]:
    """The learning rates tried for every arm of a model, the smallest first; the scale's own is one
    of them."""
    below = len(FURTHER_LR_FACTORS[0])
    return all_rates(task, default_scale() if scale is None else scale, model)[
        below : below + len(LR_FACTORS)
    ]


@lru_cache(maxsize=256)
def all_rates(task: str, scale: str, model: str = "mamba") -> tuple[float, ...]:
    """The learning rates of the grid and those by which it may grow, the smallest first."""
    below, above = FURTHER_LR_FACTORS
    return tuple(scaled_lr(task, scale, factor, model) for factor in (*below, *LR_FACTORS, *above))


LADDER = (1.0, 2.5, 6.25, 15.6, 39.0)
"""Multiples of the task's learning rate, up to where no arm of E2 keeps what it can learn: how high
can a rate be?"""


def ladder(task: str, scale: str) -> tuple[float, ...]:
    """The learning rates of LADDER, the smallest first."""
    return tuple(scaled_lr(task, scale, factor) for factor in LADDER)


def ladder_runs(arms: Sequence[str], scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Each arm and seed at every rate of the ladder, on the task of the runs of §4.6."""
    task = inside_task(scale)
    return [
        config
        for lr in ladder(task, scale)
        for config in grid(arms, task, scale=scale, seeds=seeds, lr=lr)
    ]


def scaled_lr(task: str, scale: str | None, factor: float, model: str = "mamba") -> float:
    """A multiple of the task's learning rate, to three digits."""
    return float(f"{factor * base_config(task, scale, model=model).lr:.3g}")


def validation_tasks(scale: str, tasks: Sequence[str] | None = None) -> list[str]:
    """Those of Table 2's tasks that are asked for, and at evening of the recorded ones. None = all;
    at smoke and quick only ListOps, which needs no download, and at evening curves and images."""
    recorded = RECORDED_TASKS[:2] if scale == STUDY_SCALE else ()
    if tasks is None:
        few = {"smoke": VALIDATION_TASKS[:1], "quick": VALIDATION_TASKS[:1], STUDY_SCALE: recorded}
        return list(few.get(scale, VALIDATION_TASKS))
    return [task for task in (*recorded, *VALIDATION_TASKS) if task in check_names("tasks", tasks)]


TAKES = {"00_start_here": ("values",), "09_vision": ("vision",), "10_autonorm": ("vision", "table"),
         "15_your_norm": ("values", "tokens", "vision", "language")}  # fmt: skip
"""Notebook → the kinds of tasks that it takes; those of the plan that are missing here take
sequences."""


def taken(notebook: str, tasks: Iterable[str], scale: str) -> list[str]:
    """Return those of the tasks that a notebook takes at a scale."""
    if notebook == "08_validation":
        return validation_tasks(scale, list(tasks))
    return [
        task for task in tasks if kind_of_input(task) in TAKES.get(notebook, ("values", "tokens"))
    ]


def check_taken(notebook: str, tasks: Sequence[str] | None, scale: str) -> list[str] | None:
    """Return the given tasks that a notebook takes, or None. ValueError if it takes none of them,
    with those that it takes, and for an unknown task."""
    if tasks is None:
        return None
    given = list(map(check_task, check_names("tasks", tasks)))
    if not (used := taken(notebook, given, scale)):
        valid = ", ".join(taken(notebook, PAPER, scale))
        raise ValueError(
            f"notebook {notebook} takes {valid}, got tasks={given}: give one of these, or None"
        )
    return used


class Plan(UserDict):
    """Notebook → its runs, made when they are asked for: a notebook asks for its own alone."""

    def __init__(self, made_when_asked: Mapping[str, Any], scale: str, tasks: Sequence[str] | None):
        super().__init__(made_when_asked)
        self.scale, self.tasks = scale, tasks

    def __getitem__(self, name: str) -> list[RunConfig]:
        if callable(self.data[name]):
            self.data[name] = self.data[name]()
        return self.data[name]

    def runs_of(self, name: str) -> list[RunConfig]:
        """Return the runs of a notebook, and print which given tasks have none. ValueError as of
        `check_taken`."""
        check_taken(name, self.tasks, self.scale)
        runs = self[name]
        if unused := [
            task for task in self.tasks or () if task not in {config.task for config in runs}
        ]:
            print(f"Not used in this notebook: {', '.join(unused)}")
        return runs


def notebook_runs(
    scale: str | None = None,
    tasks: Sequence[str] | None = None,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
) -> Plan:
    """Return the runs that each notebook needs, by notebook; [] where it takes none of the given
    tasks. 07 always has runs on digits, 13 those of a language model beside a sequence's; 05 takes
    a task that is left out of the grid only if there is no other. seeds=None: the scale's, or those
    that are recorded."""
    scale = study_scale(scale)
    own = RECORDED_TASKS if scale == STUDY_SCALE else STUDY_TASKS
    seeds = seeds if seeds is None else check_seeds(seeds, scale)
    asked = own if tasks is None else check_names("tasks", tasks)
    images = [task for task in asked if task in VISION_TASKS]
    small_images = [
        task for task in (STUDY_TASKS if tasks is None else asked) if task in VISION_TASKS
    ]
    tables = [task for task in asked if task in TABLES]
    sequences = [task for task in asked if task not in (*images, *tables, *LANGUAGE_TASKS)]
    whole = [task for task in sequences if not leaves_grid_out(task, scale)]

    def runs(arms: Sequence[Arm], tasks: Sequence[str]) -> list[RunConfig]:
        few = {
            task for task in tasks if task not in own or leaves_grid_out(task, scale)
        }  # few of their arms recorded
        return [
            c
            for t in tasks
            for c in grid_at_recorded_lr(arms, [t], scale, seeds, source, whole=t in few)
        ]

    # what evening does not record, or what needs weights, is small enough to be trained here: at
    # scale quick
    small = "quick" if scale == STUDY_SCALE else scale
    first = (STUDY_TASKS if scale == STUDY_SCALE and tasks is None else whole or sequences)[:1]
    values = [task for task in (*first, *sequences) if kind_of_input(task) == "values"][:1]
    often = AUTONORM_SEEDS[scale] if seeds is None else seeds
    further = [arm for arm in NORMVARY_ARMS if arm not in NORMVARY_CORE_ARMS]
    # the arms of a comparison by themselves: they share more recorded seeds than all have
    core = [arm for arm in VALIDATION_ARMS if arm in NORMVARY_CORE_ARMS]
    step = [core, arms("RMSN>SSM>None", "NormVary>SSM>LN"), arms("RMSN>SSM>LN")]
    of_transformers = [*small_images, *tables]
    crossed = first if of_transformers else []  # a Mamba's runs alone do not answer notebook 10
    beyond = [*whole[:1], *(TEXTS if whole else ())]
    made_when_asked = {
        "00_start_here": lambda: grid(
            [Arm("RMSN", "None"), Arm("RMSN", "GN")], values, scale=small, seeds=1
        ),
        "03_type": lambda: runs(TYPE_ARMS, sequences),
        "04_position": lambda: runs(POSITION_ARMS, sequences),
        "05_combination": lambda: runs(GRID_ARMS, whole or sequences),
        "06_normvary": lambda: unique(
            [*runs(NORMVARY_CORE_ARMS, sequences), *runs(further, whole)]
        ),
        "07_diagnostics": lambda: grid(four_arms("BN"), scale=small, seeds=1),
        "08_validation": lambda: unique(
            c for some in step for c in runs(some, validation_tasks(scale, tasks))
        ),
        "09_vision": lambda: runs([*GRID_ARMS, *NORMVARY_ARMS], images),
        "10_autonorm": lambda: (
            autonorm_runs(of_transformers, small, often)
            + grid(CROSSING_ARMS, crossed, scale=small, seeds=often)
        ),
        "13_beyond": lambda: (
            site_runs(scale, first, seeds) if small == scale else runs(GATED_ARMS, beyond)
        ),
    }
    return Plan(made_when_asked, scale, None if tasks is None else asked)
