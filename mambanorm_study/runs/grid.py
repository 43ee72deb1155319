"""Configs, made from a task, a scale, arms and seeds. An experiment is a visible list of them,
built by plain Python (`study/experiments.py`).
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from mambanorm.arms import Arm
from mambanorm.errors import brief
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.presets import preset_options
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.config import RunConfig, check_seed
from mambanorm_study.models.attention_arms import AttentionArm
from mambanorm_study.runs.presets import DIFFERENCES, PAPER, SEEDS_PER_ARM, transformer_differences


def base_config(task: str = "digits", scale: str | None = None, **changes: Any) -> RunConfig:
    """The config of a task at a scale (None = the environment's), with some fields changed.

    ValueError for changes that do not go together: a warm-up that outlasts the run, a part larger
    than its whole. `RunConfig` itself accepts these, because stored runs may have them.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    own = DIFFERENCES[scale].get(task, {}) if isinstance(task, str) else {}
    differences = {**DIFFERENCES[scale].get("*", {}), **own}
    if options := preset_options(changes.get("arm")):
        changes = {"norm_options": options} | changes
    arm = changes.get("arm")
    if (
        "model" not in changes
        and isinstance(arm, str | Arm)
        and isinstance(Arm.parse(arm), AttentionArm)
    ):
        changes["model"] = "transformer"
    if changes.get("model") == "transformer":
        differences = transformer_differences(scale, task, differences)
    config = RunConfig.from_dict({"task": task, "scale": scale, **differences, **changes})
    parts = (("warmup_steps", "steps"), ("micro_batch", "batch_size"), ("batch_size", "train_rows"))
    for part, whole in parts:
        size, limit = getattr(config, part), getattr(config, whole)
        if size > limit > 0 and {part, whole} & set(changes):
            raise ValueError(f"{part}={size} is beyond {whole}={limit}: change one of the two")
    return config


@lru_cache(maxsize=50_000)
def setting_id(
    task: str, scale: str, arm: str, lr: float, seed: int, changes: tuple[tuple[str, Any], ...] = ()
) -> str:
    """Return the run_id of a run that differs from the task's settings at a scale in these fields
    alone."""
    return base_config(task, scale, arm=arm, lr=lr, **dict(changes)).with_seed(seed).run_id


def relative_cost(config: RunConfig) -> float:
    """Work of a run up to a factor: steps × batch × layers × (width + a constant for what does not
    grow with it)."""
    return config.steps * config.batch_size * config.n_layers * (config.d_model + 16)


def config_list(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """Configs as a list; a single one becomes a list of one. TypeError for what is none."""
    listed = isinstance(configs, Iterable) and not isinstance(configs, str | bytes | Mapping)
    configs = list(configs) if listed else [configs]
    for config in configs:
        check_kind("each of configs", config, RunConfig, "grid")
    return configs


def unique(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The configs in their order, each run once."""
    return list({config.run_id: config for config in config_list(configs)}.values())


def grid(
    arms: Sequence[Arm | str],
    tasks: Sequence[str] = ("digits",),
    *,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    **changes: Any,
) -> list[RunConfig]:
    """One config for each task, arm and seed, ordered by seed: a sweep that is stopped has all arms
    of its seeds.

    ValueError without an arm. An empty list of tasks gives no configs.
    """
    if not isinstance(arms, Iterable) or not (
        arms := [arms] if isinstance(arms, str | Arm) else list(arms)
    ):
        raise ValueError(f"arms must be a list of arms such as ['RMSN>SSM>GN'], got {arms!r}")
    scale = default_scale() if scale is None else check_scale(scale)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    seeds, configs = check_seeds(seeds, scale), []
    for task in tasks:
        first = [base_config(task, scale, arm=str(arm), seed=seeds[0], **changes) for arm in arms]
        configs += first + [config.with_seed(seed) for seed in seeds[1:] for config in first]
    return unique(configs)


# --------------------------------------------------------------------------------------------------
# seeds and names

FIRST_TEST_SEED, LAST_TEST_SEED = 52, 99
"""The seeds on which arms are compared. Seeds below, and those from 100 to 199, choose learning
rates."""


def is_test_seed(seed: int) -> bool:
    return FIRST_TEST_SEED <= seed <= LAST_TEST_SEED


def is_tuning_seed(seed: int) -> bool:
    return seed < FIRST_TEST_SEED or 100 <= seed < 200


MOST_SEEDS, MOST_COUNTED = 1_000, 100
"""How many seeds a list may have; and the largest plain number n, which stands for 0…n−1: seed 100
tunes."""


def check_seeds(seeds: int | Iterable[int] | None, scale: str) -> list[int]:
    """Return `8` as [0…7], a list of seeds as it is, and None as the scale's.

    ValueError if there are none, too many, one twice, or one that is no whole number from 0 up.
    """
    seeds = SEEDS_PER_ARM[check_scale(scale)] if seeds is None else seeds
    if isinstance(seeds, Iterable) and not isinstance(seeds, str | bytes):
        chosen, most = [check_seed(seed) for seed in islice(seeds, MOST_SEEDS + 1)], MOST_SEEDS
    else:
        chosen, most = range(min(_count_of(seeds), MOST_COUNTED + 1)), MOST_COUNTED
    if not 0 < len(chosen) <= most:
        wrong = "at least one seed is needed" if not chosen else f"more than {most:,} seeds"
        raise ValueError(
            f"{wrong}: give a number of seeds, which 8 as 0…7 is, or a list such as [0, 1, 2]"
        )
    check_once("seed", chosen)
    return list(chosen)


def _count_of(seeds: Any) -> int:
    """Return a number of seeds as a plain one. ValueError for what is none; 0 and large ones are
    left to the caller."""
    if isinstance(seeds, bool) or not hasattr(type(seeds), "__index__") or seeds < 0:
        raise ValueError(
            f"the number of seeds must be a whole number from 1 to {MOST_COUNTED}, got {brief(seeds)}: "
            "3 stands for the seeds 0, 1, 2; a list such as [4, 7] names them"
        )
    return operator.index(seeds)


def check_once(what: str, given: Sequence[object]) -> None:
    """ValueError for what is given twice."""
    if twice := [one for one, times in Counter(given).items() if times > 1]:
        raise ValueError(f"{what} {twice[0]!r} is given twice")


def check_task(name: str) -> str:
    """As that of the registry, which a task of the kit need not wait for."""
    if isinstance(name, str) and name in PAPER:
        return name
    from mambanorm_study import tasks

    return tasks.check_task(name)


def check_names(what: str, names: str | Iterable[str]) -> list[str]:
    """A list of names; a single name becomes a list of one. ValueError for no name, and for what is
    not a name."""
    listed = (
        [names] if isinstance(names, str) else list(names) if isinstance(names, Iterable) else []
    )
    if not listed or not all(isinstance(name, str) and name for name in listed):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    return listed
