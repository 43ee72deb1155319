"""Configs, made from a task, a scale, arms and seeds. An experiment is a visible list of them, built by plain Python
(`study/experiments.py`).

    base_config     a task at a scale → its config; a scale is a named set of differences (presets.py)
    grid            arms, tasks and seeds → one config for each
    unique          the same configs, each run once;   config_list: checked to be configs
    relative_cost   a config → the work of its run
    check_task, check_names     names of tasks, known without torch, and lists of names
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mambanorm.arms import Arm, AttentionArm, preset_options
from mambanorm.basics.errors import check_kind
from mambanorm.basics.settings import KIT_TASKS, check_scale, default_scale
from mambanorm.config import RunConfig
from mambanorm.training.presets import DIFFERENCES, transformer_differences
from mambanorm.training.seeds import check_seeds


def base_config(task: str = "digits", scale: str | None = None, **changes: Any) -> RunConfig:
    """The config of a task at a scale (None = the environment's), with some fields changed.

    ValueError for changes that do not go together: a warm-up that outlasts the run, a part larger than its whole.
    `RunConfig` itself accepts these, because stored runs may have them.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    differences = {
        **DIFFERENCES[scale].get("*", {}),
        **(DIFFERENCES[scale].get(task, {}) if isinstance(task, str) else {}),
    }
    if options := preset_options(changes.get("arm")):
        changes = {"norm_options": options} | changes
    if "model" not in changes and _is_attention(changes.get("arm")):
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


def _is_attention(arm: object) -> bool:
    return isinstance(arm, str | Arm) and isinstance(Arm.parse(arm), AttentionArm)


def relative_cost(config: RunConfig) -> float:
    """Work of a run up to a factor: steps × batch × layers × (width + a constant for what does not grow with it)."""
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
    """One config for each task, arm and seed, ordered by seed: a sweep that is stopped has all arms of its seeds.

    ValueError without an arm. An empty list of tasks gives no configs.
    """
    if not isinstance(arms, Iterable) or not (arms := [arms] if isinstance(arms, str | Arm) else list(arms)):
        raise ValueError(f"arms must be a list of arms such as ['RMSN>SSM>GN'], got {arms!r}")
    scale = default_scale() if scale is None else check_scale(scale)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    arms = [arm if isinstance(arm, str) else str(arm) for arm in arms]
    seeds, configs = check_seeds(seeds, scale), []
    for task in tasks:
        first = [base_config(task, scale, arm=arm, seed=seeds[0], **changes) for arm in arms]
        configs += first + [config.with_seed(seed) for seed in seeds[1:] for config in first]
    return unique(configs)


def check_task(name: str) -> str:
    """As that of the registry, which a task of the kit need not wait for."""
    if isinstance(name, str) and name in KIT_TASKS:
        return name
    from mambanorm import tasks

    return tasks.check_task(name)


def check_names(what: str, names: str | Iterable[str]) -> list[str]:
    """A list of names; a single name becomes a list of one. ValueError for no name, and for what is not a name."""
    if not isinstance(names, str | Iterable):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    names = [names] if isinstance(names, str) else list(names)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    return names
