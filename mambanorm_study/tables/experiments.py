"""The lists of runs of the paper's experiments: arms, depths, failures, learning rates and budgets.

notebook_runs.py says which of them each notebook reads.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from mambanorm.arms import MORE_SITES, NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM, AttentionArm
from mambanorm_study.runs.grid import arms, base_config, check_seeds, grid, unique
from mambanorm_study.runs.presets import TEXTS

# ---------------------------------------------------------------------------------- tasks and arms

# The tasks of the study, and at scale evening; nothing of diabetes is recorded there.
STUDY_TASKS = ("digits", "listops", "digits_images", "diabetes")
RECORDED_TASKS = ("curves", "glyphs_images", "diabetes")

NO_NORM = Arm("None", "None")
# Mamba's own arm.
MAMBA_ARM = Arm("RMSN", "None")

# §4.2: the same norm before and after, and none at all.
TYPE_ARMS = [Arm(n, n) for n in PAPER_NORMS]

# §4.3, Table 1.
AFTER_ARMS = [Arm("None", n) for n in NORM_CHOICES]
POSITION_ARMS = [NO_NORM, *(Arm(n, "None") for n in NORM_CHOICES), *AFTER_ARMS]

# The arms of images that are also tested on corrupted rows.
CORRUPTED_ARMS = (
    str(NO_NORM), *map(str, AFTER_ARMS), "FrozenLN", "AutoNorm", "AutoNorm_Linear",
)  # fmt: skip

# §4.4: the whole 6×6 grid.
GRID_ARMS = [Arm(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS]

# §4.5: the original and the proposal, the two arms between them, because Table 2 changes both norms
# at once (I7), and NormVary with uniform weights.
NORMVARY_CORE_ARMS = arms(
    "NormVary>SSM>None", "NormVary>SSM>GN", "NormVary-fixed>SSM>GN", "RMSN>SSM>None", "RMSN>SSM>GN"
)
# NormVary before each N2, beside RMSN before the same N2.
NORMVARY_ARMS = [
    *dict.fromkeys(
        [
            *NORMVARY_CORE_ARMS,
            *(Arm(n1, n2) for n1 in ("NormVary", "RMSN") for n2 in PAPER_NORMS),
            *arms("NormVary-fixed>SSM>LN", "LN>SSM>LN"),
        ]
    )
]

# Table 2: the original, both proposals, the three arms between them that separate N1's share from
# N2's (I7), and the proposal for sequences with uniform weights.
VALIDATION_ARMS = [
    *(Arm(n1, n2) for n1 in ("RMSN", "NormVary") for n2 in ("None", "GN", "LN")),
    *arms("NormVary-fixed>SSM>GN"),
]

# Mamba's arm without and with Mamba-2's norm behind the gate, the only further site that is
# recorded.
GATED_ARMS = [MAMBA_ARM, MAMBA_ARM._replace(more=(("gated", "RMSN"),))]

# The norms tried at further sites: that of most later models, another one, and the gain alone,
# which separates normalizing from scaling.
SITE_NORMS = ("RMSN", "LN", "Scale")

# S2's adaptive norm at both places of a Mamba block, beside the paper's and a fixed one.
CROSSING_ARMS = arms(
    "NormSelector>SSM>None", "None>SSM>NormSelector", "NormVary>SSM>None", "None>SSM>NormVary",
    "RMSN>SSM>None", "None>SSM>RMSN",
)  # fmt: skip


def four_arms(norm: str) -> list[Arm]:
    """Return Figure 9's arms: no norm, the norm before, after and on both sides of the SSM."""
    return [NO_NORM, Arm(norm, "None"), Arm("None", norm), Arm(norm, norm)]


def site_arms(norms: Sequence[str] = SITE_NORMS) -> list[Arm]:
    """Return Mamba's arm alone, and with each norm at each of the further sites."""
    further = [MAMBA_ARM._replace(more=((site, n),)) for n in norms for site in MORE_SITES]
    return [MAMBA_ARM, *further]


def site_runs(
    scale: str, tasks: Sequence[str] = ("digits",), seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return every norm at every site at one learning rate, and RMSN at every site of a language
    model; [] without a task.
    """
    if not tasks:
        return []
    sequences = grid(site_arms(), tasks, scale=scale, seeds=seeds)
    return sequences + grid(site_arms(["RMSN"]), TEXTS, scale=scale, seeds=seeds)


# ------------------------------------------------------------- the inside of models, and failures

# Depths of Figure 9, which shows four layers: too few to call growth exponential (I5).
DEPTHS = {"smoke": (1, 2, 4, 5)} | dict.fromkeys(
    ("quick", "evening", "lab", "paper"), (4, 8, 16, 24)
)

# Settings of deep models of scale quick that beat chance in a few seconds each.
DEEP_QUICK = dict(n_layers=12, lr=6e-3, batch_size=16, steps=80, eval_every=20, warmup_steps=10)

FAILURE_DEPTHS = {
    "smoke": (1, 2),
    "quick": (4, 8, 16),
    "evening": (8,),
    "lab": (4, 8, 16),
    "paper": (4, 8, 16),
}
# Learning rates on both sides of the edge between training and failing: on digits, and on MNIST-1D
# at scale evening by depth.
FAILURE_LRS = (1e-2, 2.5e-2)
EDGE_LRS = {8: (4e-3, 6e-3)}


def inside_task(scale: str) -> str:
    """Return the task of the runs of §4.6; at scale evening one on which the edge of failure is
    known.
    """
    return "mnist1d" if scale == "evening" else "digits"


def failure_lrs(scale: str, depth: int) -> tuple[float, ...]:
    """Return the learning rates of `failure_runs`, the smallest first."""
    return EDGE_LRS[depth] if scale == "evening" else FAILURE_LRS


def failure_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return models without norms and controls with RMSN on both sides, over depth × learning
    rate.
    """
    both_arms = [NO_NORM, Arm("RMSN", "RMSN")]
    configs = []
    for depth in FAILURE_DEPTHS[scale]:
        for lr in failure_lrs(scale, depth):
            configs += _runs_to_failure(both_arms, scale, seeds, n_layers=depth, lr=lr)
    return configs


def failing_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return Figure 10's runs: a model without norms where it fails, and normalized controls."""
    return growth_runs(scale, "RMSN", seeds)


def growth_runs(scale: str, norm: str = "BN", seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return Figure 9's four arms with one norm, at the most blocks and the highest learning rate
    of `failure_runs`.
    """
    depth = FAILURE_DEPTHS[scale][-1]
    lr = failure_lrs(scale, depth)[-1]
    return _runs_to_failure(four_arms(norm), scale, seeds, n_layers=depth, lr=lr)


def deep_runs(
    scale: str,
    seeds: int | Iterable[int] = 1,
    arms: Sequence[Arm | str] = (NO_NORM, *AFTER_ARMS),
) -> list[RunConfig]:
    """Return models of at least 8 blocks, without a norm and with each norm after the SSM (or with
    other arms); at scale quick with DEEP_QUICK.
    """
    task = inside_task(scale)
    settings: dict[str, Any] = {"n_layers": max(8, base_config(task, scale).n_layers)}
    if scale == "quick":
        settings = DEEP_QUICK
    elif scale == "evening":  # the learning rate at which a model without norms trains
        settings["lr"] = failure_lrs(scale, settings["n_layers"])[0]
    return grid(arms, task, scale=scale, seeds=seeds, **settings)


def _runs_to_failure(
    arms: Sequence[Arm], scale: str, seeds: int | Iterable[int], **changes: Any
) -> list[RunConfig]:
    """Return runs at learning rates at which models fail: within 40 steps, or, at scale evening, at
    any step of a whole training.
    """
    if scale not in ("smoke", "evening"):
        changes |= dict(steps=40, eval_every=10, warmup_steps=20)
    return grid(arms, inside_task(scale), scale=scale, seeds=seeds, **changes)


def fixed_runs(
    question: str, arms: Iterable[str], scale: str, seeds: Iterable[int]
) -> list[RunConfig]:
    """Return the runs of these arms whose learning rates are part of the question: "growth",
    "deep", "failing", "failure" or "ladder".
    """
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


# --------------------------------------------------------------------------------- AutoNorm (S2)

AUTONORM_SEEDS = {"smoke": 1, "quick": 5, "evening": 8, "lab": 8, "paper": 5}


def autonorm_runs(
    tasks: Sequence[str], scale: str | None = None, seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return S2's named models on these tasks, the Teacher with half the blocks, and AutoNorm once
    more as its student.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(AUTONORM_SEEDS[scale] if seeds is None else seeds, scale)
    configs = grid([n for n in AUTONORM if n != "Teacher"], tasks, scale=scale, seeds=seeds)
    for task in tasks:
        for seed in seeds:
            configs += distilled(task, scale, seed)
    return unique(configs)


def distilled(
    task: str, scale: str | None = None, seed: int = 0, **changes: Any
) -> tuple[RunConfig, RunConfig]:
    """Return a Teacher, which has half the blocks, and an AutoNorm that learns from it (S2,
    §IV.C.2).
    """
    student = base_config(task, scale, arm="AutoNorm", seed=seed, **changes)
    smaller = dict(n_layers=max(1, student.n_layers // 2), norm_options={})
    teacher = base_config(task, scale, arm="Teacher", seed=seed, **{**changes, **smaller})
    return teacher, student.but(teacher=teacher.run_id)


# --------------------------------------------------------------------- learning rates and budgets

# The learning rates that every arm of a verdict may choose from, as multiples of the task's.
LR_FACTORS = (0.4, 1.0, 2.5)

# Multiples of the task's learning rate, up to where no arm of E2 keeps what it can learn.
LADDER = (1.0, 2.5, 6.25, 15.6, 39.0)

# Shares of a scale's steps at which claims are judged besides, to show whether an arm learns faster
# or ends better.
BUDGETS = (1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)


def scaled_lr(task: str, scale: str | None, factor: float, model: str = "mamba") -> float:
    """Return a multiple of the task's learning rate, to three digits."""
    return float(f"{factor * base_config(task, scale, model=model).lr:.3g}")


def lr_grid(task: str, scale: str | None = None, model: str = "mamba") -> tuple[float, ...]:
    """Return the learning rates tried for every arm of a model, the smallest first."""
    return _lr_grid(task, default_scale() if scale is None else scale, model)


@lru_cache(maxsize=256)
def _lr_grid(task: str, scale: str, model: str) -> tuple[float, ...]:
    return tuple(scaled_lr(task, scale, factor, model) for factor in LR_FACTORS)


def ladder(task: str, scale: str) -> tuple[float, ...]:
    """Return the learning rates of LADDER, the smallest first."""
    return tuple(scaled_lr(task, scale, factor) for factor in LADDER)


def ladder_runs(arms: Sequence[str], scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return each arm and seed at every learning rate of the ladder, on the task of §4.6."""
    task = inside_task(scale)
    configs = []
    for lr in ladder(task, scale):
        configs += grid(arms, task, scale=scale, seeds=seeds, lr=lr)
    return configs


def at_budget(task: str, scale: str, share: float) -> dict[str, Any]:
    """Return the fields of a run with a share of its scale's steps: a whole schedule, with eight
    evaluations. {} for 1.
    """
    if share == 1:
        return {}
    config = base_config(task, scale)
    steps = max(round(share * config.steps), 1)
    return {
        "steps": steps,
        "eval_every": max(steps // 8, 1),
        "warmup_steps": min(config.warmup_steps, steps // 4),
    }


def model_of(arms: Iterable[str]) -> str:
    """Return the model of these arms: "mamba" or "transformer". ValueError for a mixture, which
    shares no learning rate.
    """
    kinds = {isinstance(Arm.parse(arm), AttentionArm) for arm in arms}
    if len(kinds) > 1:
        raise ValueError(
            "arms of Mambas and of Transformers have learning rates of their own: compare one kind"
        )
    return "transformer" if kinds == {True} else "mamba"
