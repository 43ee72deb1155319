"""Lists of runs for the paper's experiments: arms, depths, failures, learning rates and budgets.

Sections (§), tables and figures without a named source are the paper's. notebook_runs.py says which
of these runs each notebook reads.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from mambanorm.arms import MORE_SITES, NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM, AttentionArm
from mambanorm_study.runs.grid import arms, base_config, check_seeds, grid, unique
from mambanorm_study.runs.presets import TEXTS

# ---------------------------------------------------------------------------------- tasks and arms

# The default tasks of the study, and those at scale evening. Of the latter all but diabetes have
# recorded runs.
STUDY_TASKS = ("digits", "listops", "digits_images", "diabetes")
RECORDED_TASKS = ("curves", "glyphs_images", "diabetes")

NO_NORM = Arm("None", "None")
# The arm of the original Mamba.
MAMBA_ARM = Arm("RMSN", "None")

# §4.2: the same norm before and after the SSM, and no norm at either site.
TYPE_ARMS = [Arm(n, n) for n in PAPER_NORMS]

# §4.3, Table 1.
AFTER_ARMS = [Arm("None", n) for n in NORM_CHOICES]
POSITION_ARMS = [NO_NORM, *(Arm(n, "None") for n in NORM_CHOICES), *AFTER_ARMS]

# The arms that are also tested on corrupted images.
CORRUPTED_ARMS = (
    str(NO_NORM), *map(str, AFTER_ARMS), "FrozenLN", "AutoNorm", "AutoNorm_Linear",
)  # fmt: skip

# §4.4: the whole 6×6 grid.
GRID_ARMS = [Arm(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS]

# §4.5: the original RMSN→None, the proposal NormVary→GN, the two arms that change only one norm of
# the original (Table 2 changes both at once, I7 in docs/paper.md), and the proposal whose
# NormVary has uniform weights that are not learned.
NORMVARY_CORE_ARMS = arms(
    "NormVary>SSM>None", "NormVary>SSM>GN", "NormVary-fixed>SSM>GN", "RMSN>SSM>None", "RMSN>SSM>GN"
)
# The arms above; NormVary and RMSN as N1, each with every N2; and two arms beside NormVary→LN, the
# proposal for images: the same with uniform weights, and the original LN→LN.
NORMVARY_ARMS = [
    *dict.fromkeys(
        [
            *NORMVARY_CORE_ARMS,
            *(Arm(n1, n2) for n1 in ("NormVary", "RMSN") for n2 in PAPER_NORMS),
            *arms("NormVary-fixed>SSM>LN", "LN>SSM>LN"),
        ]
    )
]

# Table 2: the original, the proposals for sequences and for images, the three arms that separate
# the effects of N1 and N2 (I7 in docs/paper.md), and the proposal for sequences with uniform
# weights in NormVary.
VALIDATION_ARMS = [
    *(Arm(n1, n2) for n1 in ("RMSN", "NormVary") for n2 in ("None", "GN", "LN")),
    *arms("NormVary-fixed>SSM>GN"),
]

# Mamba's arm without and with Mamba-2's norm after the gate. In the recorded runs of notebook 13
# this is the only site other than N1 and N2 that has a norm.
GATED_ARMS = [MAMBA_ARM, MAMBA_ARM._replace(more=(("gated", "RMSN"),))]

# The norms tried at further sites (sites other than N1 and N2): RMSN, which most later models use;
# LN; and Scale, a learned gain without normalization.
SITE_NORMS = ("RMSN", "LN", "Scale")

# The adaptive norm of AutoNorm (S2 of docs/sources.md), the paper's learned norm and a fixed norm,
# each before and after the SSM.
CROSSING_ARMS = arms(
    "NormSelector>SSM>None", "None>SSM>NormSelector", "NormVary>SSM>None", "None>SSM>NormVary",
    "RMSN>SSM>None", "None>SSM>RMSN",
)  # fmt: skip


def four_arms(norm: str) -> list[Arm]:
    """Return Figure 9's arms: no norm, and `norm` before, after and on both sides of the SSM."""
    return [NO_NORM, Arm(norm, "None"), Arm("None", norm), Arm(norm, norm)]


def site_arms(norms: Sequence[str] = SITE_NORMS) -> list[Arm]:
    """Return Mamba's arm, and one arm for each norm and further site that adds this norm at this
    site to Mamba's arm.
    """
    further = [MAMBA_ARM._replace(more=((site, n),)) for n in norms for site in MORE_SITES]
    return [MAMBA_ARM, *further]


def site_runs(
    scale: str, tasks: Sequence[str] = ("digits",), seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return the runs of `site_arms` on these tasks, and those of `site_arms(["RMSN"])` on text;
    [] if `tasks` is empty. Every run has its task's learning rate.
    """
    if not tasks:
        return []
    sequences = grid(site_arms(), tasks, scale=scale, seeds=seeds)
    return sequences + grid(site_arms(["RMSN"]), TEXTS, scale=scale, seeds=seeds)


# ------------------------------------------------------------- the inside of models, and failures

# Scale → numbers of blocks for Figure 9. The paper shows four layers, too few to call the growth
# exponential (I5).
DEPTHS = {"smoke": (1, 2, 4, 5)} | dict.fromkeys(
    ("quick", "evening", "lab", "paper"), (4, 8, 16, 24)
)

# Settings with which deep models beat chance after a few seconds of training at scale quick.
DEEP_QUICK = dict(n_layers=12, lr=6e-3, batch_size=16, steps=80, eval_every=20, warmup_steps=10)

# Two learning rates for digits: at the lower one models train, at the higher one some fail.
EDGE_LRS = (1e-2, 2.5e-2)
# Scale → number of blocks → learning rates of `failure_runs`, the smallest first.
FAILURES = {
    "smoke": dict.fromkeys((1, 2), EDGE_LRS),
    "evening": {8: (4e-3, 6e-3)},  # on MNIST-1D
    **{scale: dict.fromkeys((4, 8, 16), EDGE_LRS) for scale in ("quick", "lab", "paper")},
}


def inside_task(scale: str) -> str:
    """Return the task of the runs for §4.6 of the paper: MNIST-1D at scale evening, because the
    learning rates at which models fail on it are known; digits at the other scales.
    """
    return "mnist1d" if scale == "evening" else "digits"


def failure_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of models without norms and of models with RMSN on both sides of the SSM, at
    each depth and learning rate of FAILURES.
    """
    both_arms = [NO_NORM, Arm("RMSN", "RMSN")]
    settings = [(depth, lr) for depth, lrs in FAILURES[scale].items() for lr in lrs]
    runs = [_runs_to_failure(both_arms, scale, seeds, n_layers=n, lr=lr) for n, lr in settings]
    return list(chain.from_iterable(runs))


def failing_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return Figure 10's runs: a model without norms, which is expected to fail, and the same model
    with RMSN before, after and on both sides of the SSM.
    """
    return growth_runs(scale, "RMSN", seeds)


def growth_runs(scale: str, norm: str = "BN", seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of the four arms of Figure 9 that `norm` makes, at the largest number of
    blocks and the highest learning rate of `failure_runs`.
    """
    depth, lrs = list(FAILURES[scale].items())[-1]
    return _runs_to_failure(four_arms(norm), scale, seeds, n_layers=depth, lr=lrs[-1])


def deep_runs(
    scale: str,
    seeds: int | Iterable[int] = 1,
    arms: Sequence[Arm | str] = (NO_NORM, *AFTER_ARMS),
) -> list[RunConfig]:
    """Return the runs of these arms in models of at least 8 blocks; by default the arm without a
    norm and the arms with one norm after the SSM. At scale quick the models have the settings
    DEEP_QUICK.
    """
    task = inside_task(scale)
    settings: dict[str, Any] = {"n_layers": max(8, base_config(task, scale).n_layers)}
    if scale == "quick":
        settings = DEEP_QUICK
    elif scale == "evening":  # the lower learning rate, at which a model without norms trains
        settings["lr"] = FAILURES[scale][settings["n_layers"]][0]
    return grid(arms, task, scale=scale, seeds=seeds, **settings)


def _runs_to_failure(
    arms: Sequence[Arm], scale: str, seeds: int | Iterable[int], **changes: Any
) -> list[RunConfig]:
    """Return runs, some of which are expected to fail. At scales smoke and evening the training has
    its usual length; at the other scales it has 40 steps.
    """
    if scale not in ("smoke", "evening"):
        changes |= dict(steps=40, eval_every=10, warmup_steps=20)
    return grid(arms, inside_task(scale), scale=scale, seeds=seeds, **changes)


def fixed_runs(
    list_name: str, arms: Iterable[str], scale: str, seeds: Iterable[int]
) -> list[RunConfig]:
    """Return the runs of these arms in one of the lists of runs with fixed learning rates.

    list_name: "growth", "deep", "failing", "failure" or "ladder", as in `Claim.runs`, for the lists
    `growth_runs` … `ladder_runs`.
    """
    lists = dict(
        growth=growth_runs,
        deep=deep_runs,
        failing=failing_runs,
        failure=failure_runs,
        ladder=partial(ladder_runs, list(arms)),
    )
    return [config for config in lists[list_name](scale, seeds=seeds) if config.arm in arms]


@lru_cache(maxsize=64)
def fixed_ids(
    list_name: str, arms: tuple[str, ...], scale: str, seeds: tuple[int, ...]
) -> list[str]:
    """Return the run ids of `fixed_runs`; [] if `seeds` is empty."""
    return [config.run_id for config in fixed_runs(list_name, arms, scale, seeds)] if seeds else []


# --------------------------------------------------------------------------------- AutoNorm (S2)

AUTONORM_SEEDS = {"smoke": 1, "quick": 5, "evening": 8, "lab": 8, "paper": 5}


def autonorm_runs(tasks: Sequence[str], scale: str, seeds: int | Iterable[int]) -> list[RunConfig]:
    """Return the runs of S2's named models on these tasks. AutoNorm has two runs for each task and
    seed: one by itself, and one as the student of a Teacher with half as many blocks (S2,
    §IV.C.2).
    """
    seeds = check_seeds(seeds, scale)
    configs = grid([n for n in AUTONORM if n != "Teacher"], tasks, scale=scale, seeds=seeds)
    for task in tasks:
        student = base_config(task, scale, arm="AutoNorm")
        blocks = max(1, student.n_layers // 2)
        for teacher in grid(["Teacher"], task, scale=scale, seeds=seeds, n_layers=blocks):
            configs += [teacher, student.but(seed=teacher.seed, teacher=teacher.run_id)]
    return unique(configs)


# --------------------------------------------------------------------- learning rates and budgets

# The learning-rate grid on which the arms of a verdict are tuned, as multiples of the task's
# learning rate.
LR_FACTORS = (0.4, 1.0, 2.5)

# The learning-rate grid of claims E2 and H13, as multiples of the task's learning rate. At the
# highest rate no arm is expected to train.
LADDER = (1.0, 2.5, 6.25, 15.6, 39.0)

# Training lengths as shares of a scale's steps. Claims are judged again at these lengths, to show
# whether an arm only learns faster or also ends better.
BUDGETS = (1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)


@lru_cache(maxsize=256)
def lr_grid(
    task: str, scale: str, model: str = "mamba", factors: tuple[float, ...] = LR_FACTORS
) -> tuple[float, ...]:
    """Return the task's learning rate multiplied by each factor and rounded to three digits.

    With the default factors this is the grid on which the arms of a verdict are tuned.
    """
    lr = base_config(task, scale, model=model).lr
    return tuple(float(f"{factor * lr:.3g}") for factor in factors)


def ladder_runs(arms: Sequence[str], scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of these arms at each learning rate of the grid LADDER, on `inside_task`."""
    task = inside_task(scale)
    lrs = lr_grid(task, scale, factors=LADDER)
    runs_by_lr = [grid(arms, task, scale=scale, seeds=seeds, lr=lr) for lr in lrs]
    return list(chain.from_iterable(runs_by_lr))


def at_budget(task: str, scale: str, share: float) -> dict[str, Any]:
    """Return the config fields that change if a run has this share of its scale's steps: steps,
    eval_every (about eight evaluations) and warmup_steps. Return {} for a share of 1.
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
    """Return the kind of model that these arms belong to: "mamba" or "transformer".

    Raises ValueError for arms of both kinds, because their learning rates differ.
    """
    kinds = {isinstance(Arm.parse(arm), AttentionArm) for arm in arms}
    if len(kinds) > 1:
        raise ValueError(
            "Mamba and Transformer arms have different learning rates: compare arms of one model"
        )
    return "transformer" if kinds == {True} else "mamba"
