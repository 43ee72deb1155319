"""Lists of runs for the paper's experiments: arms, depths, failures, learning rates and budgets.

An arm names the norms N1 before and N2 after the SSM, e.g. RMSN>SSM>GN. Sections (§), tables and
figures without a named source are the paper's. notebook_runs.py says which of these runs each
notebook reads.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

from mambanorm.arms import MORE_SITES, NORM_CHOICES, PAPER_NORMS, Arm
from mambanorm_study.config import RunConfig
from mambanorm_study.models.attention_arms import AUTONORM, AUTONORM_LINEAR, AttentionArm
from mambanorm_study.runs.grid import Cell, arms, base_config, check_seeds, grid, unique
from mambanorm_study.runs.presets import TEXTS

# ---------------------------------------------------------------------------------- tasks and arms

# The default tasks of the study: RECORDED_TASKS at scale evening, STUDY_TASKS at the other scales.
# All of RECORDED_TASKS but diabetes have recorded runs.
STUDY_TASKS = ("digits", "listops", "digits_images", "diabetes")
RECORDED_TASKS = ("curves", "glyphs_images", "diabetes")

NO_NORM = Arm("None", "None")
# The arm of the original Mamba.
MAMBA_ARM = Arm("RMSN", "None")

# §4.2 of the paper: the same norm before and after the SSM, and no norm at either site.
TYPE_ARMS = [Arm(n, n) for n in PAPER_NORMS]

# §4.3 and Table 1 of the paper: no norm, and one norm before or after the SSM.
AFTER_ARMS = [Arm("None", n) for n in NORM_CHOICES]
POSITION_ARMS = [NO_NORM, *(Arm(n, "None") for n in NORM_CHOICES), *AFTER_ARMS]

# The arms that are also tested on corrupted images.
CORRUPTED_ARMS = (
    str(NO_NORM), *map(str, AFTER_ARMS), "FrozenLN", "AutoNorm", "AutoNorm_Linear",
)  # fmt: skip

# §4.4 of the paper: all 6×6 pairs of a norm (or none) before and a norm (or none) after the SSM.
GRID_ARMS = [Arm(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS]

# §4.5 of the paper: the original RMSN→None, the proposal NormVary→GN, the two arms that change only
# one norm of the original (the paper's Table 2 changes both at once, I7 in docs/paper.md), and
# NormVary-fixed→GN, the proposal with uniform weights in NormVary that are not learned.
NORMVARY_CORE_ARMS = arms(
    "NormVary>SSM>None", "NormVary>SSM>GN", "NormVary-fixed>SSM>GN", "RMSN>SSM>None", "RMSN>SSM>GN"
)
# NORMVARY_CORE_ARMS; NormVary and RMSN before the SSM, each with every norm after it; and two arms
# to compare with NormVary→LN, the paper's proposal for images: NormVary-fixed→LN, with uniform
# weights, and LN→LN, the original for images.
NORMVARY_ARMS = [
    *dict.fromkeys(
        [
            *NORMVARY_CORE_ARMS,
            *(Arm(n1, n2) for n1 in ("NormVary", "RMSN") for n2 in PAPER_NORMS),
            *arms("NormVary-fixed>SSM>LN", "LN>SSM>LN"),
        ]
    )
]

# Table 2 of the paper: the original RMSN→None; the proposals NormVary→GN for sequences and
# NormVary→LN for images; RMSN→GN, RMSN→LN and NormVary→None, which separate the effects of the two
# norms (I7 in docs/paper.md); and NormVary-fixed→GN, with uniform weights in NormVary.
VALIDATION_ARMS = [
    *(Arm(n1, n2) for n1 in ("RMSN", "NormVary") for n2 in ("None", "GN", "LN")),
    *arms("NormVary-fixed>SSM>GN"),
]

# Mamba's arm RMSN→None, without and with the norm that Mamba-2 has after the gate. In the recorded
# runs of notebook 13 no other site has a norm, apart from those before and after the SSM.
GATED_ARMS = [MAMBA_ARM, MAMBA_ARM._replace(more=(("gated", "RMSN"),))]

# The norms tried at further sites (sites other than before and after the SSM): RMSN, which most
# later models use; LN; and Scale, a learned gain without normalization.
SITE_NORMS = ("RMSN", "LN", "Scale")

# The adaptive norm of AutoNorm (S2 in docs/sources.md), the paper's learned norm and a fixed norm:
# for each of them, one arm with this norm before the SSM and one with this norm after it.
CROSSING_ARMS = arms(
    "NormSelector>SSM>None", "None>SSM>NormSelector", "NormVary>SSM>None", "None>SSM>NormVary",
    "RMSN>SSM>None", "None>SSM>RMSN",
)  # fmt: skip


def figure_9_arms(norm: str) -> list[Arm]:
    """Return the four arms of the paper's Figure 9: no norm, `norm` before the SSM, `norm` after
    the SSM, and `norm` on both sides of it.
    """
    return [NO_NORM, Arm(norm, "None"), Arm("None", norm), Arm(norm, norm)]


def site_arms(norms: Sequence[str] = SITE_NORMS) -> list[Arm]:
    """Return Mamba's arm RMSN→None, and one arm for each of the norms and each further site (a site
    other than before and after the SSM): Mamba's arm with this norm added at this site.
    """
    further = [MAMBA_ARM._replace(more=((site, n),)) for n in norms for site in MORE_SITES]
    return [MAMBA_ARM, *further]


def site_runs(
    scale: str, tasks: Sequence[str] = ("digits",), seeds: int | Iterable[int] | None = None
) -> list[RunConfig]:
    """Return the runs of all `site_arms()` on these tasks, and the runs of `site_arms(["RMSN"])` on
    the language tasks; [] if `tasks` is empty. Every run has the default learning rate of its task.
    """
    if not tasks:
        return []
    sequences = grid(site_arms(), tasks, scale=scale, seeds=seeds)
    return sequences + grid(site_arms(["RMSN"]), TEXTS, scale=scale, seeds=seeds)


# ------------------------------------------------------------- the inside of models, and failures

# Scale → numbers of blocks for the paper's Figure 9. The figure shows four layers, too few to call
# the growth over depth exponential (I5 in docs/paper.md).
DEPTHS = {"smoke": (1, 2, 4, 5)} | dict.fromkeys(
    ("quick", "evening", "lab", "paper"), (4, 8, 16, 24)
)

# Settings with which deep models beat chance after a few seconds of training at scale quick.
DEEP_QUICK = dict(n_layers=12, lr=6e-3, batch_size=16, steps=80, eval_every=20, warmup_steps=10)

# Two learning rates for the task digits: at the lower rate models train, at the higher rate some
# models fail.
EDGE_LRS = (1e-2, 2.5e-2)
# Scale → number of blocks → learning rates of `failure_runs`, the smallest first.
FAILURES = {
    "smoke": dict.fromkeys((1, 2), EDGE_LRS),
    "evening": {8: (4e-3, 6e-3)},  # for the task MNIST-1D
    **{scale: dict.fromkeys((4, 8, 16), EDGE_LRS) for scale in ("quick", "lab", "paper")},
}


def inside_task(scale: str) -> str:
    """Return the task of the runs for §4.6 of the paper (measurements inside models): MNIST-1D at
    scale evening, because the learning rates at which models fail on MNIST-1D are known; digits at
    the other scales.
    """
    return "mnist1d" if scale == "evening" else "digits"


def failure_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of models without norms and of models with RMSN on both sides of the SSM, at
    each number of blocks and learning rate that FAILURES has for this scale.
    """
    both_arms = [NO_NORM, Arm("RMSN", "RMSN")]
    settings = [(depth, lr) for depth, lrs in FAILURES[scale].items() for lr in lrs]
    runs = [_runs_to_failure(both_arms, scale, seeds, n_layers=n, lr=lr) for n, lr in settings]
    return list(chain.from_iterable(runs))


def failing_runs(scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs for the paper's Figure 10: a model without norms, which is expected to fail,
    and three models that differ from it only in RMSN before, after or on both sides of the SSM.
    """
    return growth_runs(scale, "RMSN", seeds)


def growth_runs(scale: str, norm: str = "BN", seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of `figure_9_arms(norm)` at the largest number of blocks and the highest
    learning rate of `failure_runs`.
    """
    depth, lrs = list(FAILURES[scale].items())[-1]
    return _runs_to_failure(figure_9_arms(norm), scale, seeds, n_layers=depth, lr=lrs[-1])


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
    elif scale == "evening":  # the lowest rate, at which a model without norms trains
        settings["lr"] = FAILURES[scale][settings["n_layers"]][0]
    return grid(arms, task, scale=scale, seeds=seeds, **settings)


def _runs_to_failure(
    arms: Sequence[Arm], scale: str, seeds: int | Iterable[int], **changes: Any
) -> list[RunConfig]:
    """Return the runs of these arms on the task of `inside_task`, some of which are expected to
    fail. At scales smoke and evening the training has the scale's number of steps; at the other
    scales it has 40 steps. changes: further fields of the configs.
    """
    if scale not in ("smoke", "evening"):
        changes |= dict(steps=40, eval_every=10, warmup_steps=20)
    return grid(arms, inside_task(scale), scale=scale, seeds=seeds, **changes)


def fixed_runs(
    list_name: str, arms: Iterable[str], scale: str, seeds: Iterable[int]
) -> list[RunConfig]:
    """Return those runs of one list that have these arms. The learning rates of the list are fixed
    in advance instead of tuned for each arm.

    list_name (a value of `Claim.runs`): "growth" for the list of `growth_runs`, "deep" for
    `deep_runs`, "failing" for `failing_runs`, "failure" for `failure_runs`, "ladder" for
    `ladder_runs`.
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
    """Return the run_ids of the runs that `fixed_runs` returns; [] if `seeds` is empty."""
    return [config.run_id for config in fixed_runs(list_name, arms, scale, seeds)] if seeds else []


# --------------------------------------------------------------------------------- AutoNorm (S2)

AUTONORM_SEEDS = {"smoke": 1, "quick": 5, "evening": 8, "lab": 8, "paper": 5}


def autonorm_runs(tasks: Sequence[str], scale: str, seeds: int | Iterable[int]) -> list[RunConfig]:
    """Return the runs of the models AUTONORM on these tasks: the models that the AutoNorm article
    names (S2 in docs/sources.md), one control, and three models with DyT as S2 writes it.

    For each task and seed, the model AutoNorm has two runs: one that is trained by itself, and one
    that is the student of a Teacher with half as many blocks (§IV.C.2 of S2). The runs of the
    Teachers are returned too.
    """
    seeds = check_seeds(seeds, scale)
    names = [name for name in (*AUTONORM, *AUTONORM_LINEAR) if name != "Teacher"]
    configs = grid(names, tasks, scale=scale, seeds=seeds)
    for task in tasks:
        student = base_config(task, scale, arm="AutoNorm")
        blocks = max(1, student.n_layers // 2)
        for teacher in grid(["Teacher"], task, scale=scale, seeds=seeds, n_layers=blocks):
            configs += [teacher, student.but(seed=teacher.seed, teacher=teacher.run_id)]
    return unique(configs)


# Task that a model is fine-tuned on → task that it is pretrained on. S2 (§IV.C.1) pretrains on
# CIFAR-100 and on California Housing; images of letters and digits take the place of CIFAR-100.
PRETRAINED_ON = {"digits_images": "glyphs_images", "energy": "california_housing"}

# The arms that are fine-tuned: LN alone, and S2's blend.
TRANSFER_ARMS = ("FrozenLN", "AutoNorm_Linear")

# Task → number of seeds, from 0, whose `transfer_runs` are recorded at scale quick.
RECORDED_TRANSFERS = {"digits_images": 8, "energy": 6}

# Task → steps of pretraining at scale quick; other scales have the task's own number of steps.
# HEAD_SHARE: share of the steps of fine-tuning that train the head only. S2 states neither.
PRETRAINING_STEPS = {"glyphs_images": 1_000, "california_housing": 400}
HEAD_SHARE = 0.25


def transfer_runs(
    task: str, scale: str, seeds: int | Iterable[int] | None = None
) -> dict[str, list[RunConfig]]:
    """Return the runs of the two-phase fine-tuning of S2 (§IV.C.3) on a task in PRETRAINED_ON, as a
    map from a description to the runs of TRANSFER_ARMS.

    The descriptions: "pretrained", the runs on the other task; "from scratch"; "all at once", which
    start from the pretrained weights; "head first", which also train only the head in the first
    quarter of the steps. Runs of the same arm and seed are comparable. All runs on `task` have the
    same number of steps.
    """
    runs: dict[str, list[RunConfig]] = {
        "pretrained": [], "from scratch": [], "all at once": [], "head first": []
    }  # fmt: skip
    for scratch in grid(TRANSFER_ARMS, task, scale=scale, seeds=seeds):
        source = base_config(PRETRAINED_ON[task], scale, arm=scratch.arm, seed=scratch.seed)
        sizes = {name: getattr(scratch, name) for name in ("d_model", "n_layers", "expand")}
        steps = PRETRAINING_STEPS[source.task] if scale == "quick" else source.steps
        pretrained = source.but(**sizes, steps=steps, eval_every=max(steps // 4, 1))
        tuned = scratch.but(start=pretrained.run_id)
        head_first = tuned.but(head_steps=round(HEAD_SHARE * scratch.steps))
        for name, config in zip(runs, (pretrained, scratch, tuned, head_first), strict=True):
            runs[name].append(config)
    return runs


# --------------------------------------------------------------------- learning rates and budgets

# The learning-rate grid on which the arms compared by a claim are tuned, as multiples of the task's
# default learning rate.
LR_FACTORS = (0.4, 1.0, 2.5)

# The learning-rate grid of claims E2 and H13, as multiples of the task's default learning rate. At
# the highest rate no arm is expected to train.
LADDER = (1.0, 2.5, 6.25, 15.6, 39.0)

# Training lengths as shares of a scale's number of steps. Claims are judged again at these lengths,
# to show whether the better arm of a claim only learns faster or also ends with a higher accuracy.
BUDGETS = (1 / 16, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)


@lru_cache(maxsize=256)
def lr_grid(
    task: str, scale: str, model: str = "mamba", factors: tuple[float, ...] = LR_FACTORS
) -> tuple[float, ...]:
    """Return the task's default learning rate multiplied by each factor, each product rounded to
    three significant digits.

    With the default factors this is the grid on which the arms compared by a claim are tuned.
    """
    lr = base_config(task, scale, model=model).lr
    return tuple(float(f"{factor * lr:.3g}") for factor in factors)


def ladder_runs(arms: Sequence[str], scale: str, seeds: int | Iterable[int] = 1) -> list[RunConfig]:
    """Return the runs of these arms on the task of `inside_task`, at each learning rate of the grid
    LADDER.
    """
    task = inside_task(scale)
    lrs = lr_grid(task, scale, factors=LADDER)
    runs_by_lr = [grid(arms, task, scale=scale, seeds=seeds, lr=lr) for lr in lrs]
    return list(chain.from_iterable(runs_by_lr))


def budget_changes(task: str, scale: str, share: float) -> dict[str, Any]:
    """Return the config fields that change if a run has this share (or, above 1, multiple) of its
    scale's number of steps, as a map from field to value; {} for a share of 1.

    The fields are steps, eval_every (for about eight evaluations) and warmup_steps.
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

    Raises ValueError for arms of both kinds, because the learning rates of the two kinds differ.
    """
    kinds = {isinstance(Arm.parse(Cell.parse(arm).arm), AttentionArm) for arm in arms}
    if len(kinds) > 1:
        raise ValueError(
            "Mamba and Transformer arms have different learning rates: compare arms of one model"
        )
    return "transformer" if kinds == {True} else "mamba"
