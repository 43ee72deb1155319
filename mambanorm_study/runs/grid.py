"""Makes configs from a task, a scale, arms and seeds.

An arm, e.g. RMSN>SSM>GN, states the norms before and after the SSM of a Mamba block. A cell is an
arm with changed settings, e.g. `RMSN>SSM>GN; n_layers=8`; base_config, grid and comparisons take
cells in place of arms. An experiment is a list of configs that plain Python code builds
(tables/experiments.py).
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, Self

from mambanorm.arms import PRESETS, Arm
from mambanorm.errors import brief, unknown
from mambanorm_study.basics.checks import check_kind, check_whole
from mambanorm_study.basics.settings import check_scale, default_scale
from mambanorm_study.config import DEFAULTS, NAMES, RunConfig, canonical_json, check_seed, hash_of
from mambanorm_study.models.attention_arms import AttentionArm
from mambanorm_study.runs.presets import DIFFERENCES, PAPER, transformer_differences


def arms(*texts: str) -> list[Arm]:
    """Return one arm for each text, such as "RMSN>SSM>GN"."""
    return [Arm.parse(text) for text in texts]


# Fields that --set cannot change, because they have their own options, and fields that a cell
# cannot change, because its learning rate is tuned.
FIELDS_WITH_OPTIONS = ("task", "arm", "scale", "seed")
FIELDS_OUTSIDE_CELLS = (*FIELDS_WITH_OPTIONS, "lr")


def parse_changes(
    pairs: Sequence[str], source: str = "--set", excluded: Sequence[str] = FIELDS_WITH_OPTIONS
) -> dict[str, Any]:
    """Return values by field: ["lr=1e-3", "n_layers=8"] → {"lr": 1e-3, "n_layers": 8}.

    source: where the texts are from, for the message. excluded: fields that cannot be changed.
    Raises ValueError for an unknown field, a missing value, and a field that is given twice.
    """
    fields = [name for name in NAMES if name not in excluded]
    check_once(source, [pair.partition("=")[0].strip() for pair in pairs])
    changes = {}
    for pair in pairs:
        name, equals, text = map(str.strip, pair.partition("="))
        if name not in fields:
            raise unknown(f"field for {source}", name, fields)
        if not equals:
            raise ValueError(f"{source} takes {name}=VALUE, got {brief(pair)}")
        default = getattr(DEFAULTS, name)
        changes[name] = text
        if not isinstance(default, str):
            # a value that is not valid JSON stays text, and RunConfig refuses it
            with suppress(ValueError, RecursionError):
                changes[name] = json.loads(text.lower() if isinstance(default, bool) else text)
    return changes


class Cell(NamedTuple):
    """An arm and the fields of RunConfig in which its runs differ from those of the task.

    As text: `RMSN>SSM>None; dt_init=zero; n_layers=8`. The values are written as for --set.
    """

    arm: str
    changes: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the cell that a text states; the text of an arm is a cell without changes.

        The options of a preset (`preset:VMamba`) become changes. Raises ValueError for an unknown
        arm or field, and for a value that the field does not have.
        """
        arm, *pairs = map(str.strip, str(text).split(";"))
        changes = parse_changes(list(filter(None, pairs)), "a cell", FIELDS_OUTSIDE_CELLS)
        name = arm.removeprefix("preset:").strip()
        if arm.startswith("preset:") and name in PRESETS and PRESETS[name].options:
            changes = {"norm_options": dict(PRESETS[name].options), **changes}
        if changes:
            RunConfig(**changes)  # raises ValueError for a wrong value
        return cls(str(Arm.parse(arm)), dict(sorted(changes.items())))

    def __str__(self) -> str:
        return "; ".join([self.arm, *self._changes_as_text])

    @property
    def label(self) -> str:
        """The short name: `RMSN→None; dt_init=zero`."""
        return "; ".join([Arm.parse(self.arm).label, *self._changes_as_text])

    @property
    def _changes_as_text(self) -> list[str]:
        return [
            f"{name}={value if isinstance(value, str) else json.dumps(value)}"
            for name, value in self.changes.items()
        ]


def base_config(task: str = "digits", scale: str | None = None, **changes: Any) -> RunConfig:
    """Return the config of a task at a scale, with the fields in `changes` changed.

    scale: None means `default_scale()`. `changes["arm"]` may be a cell. Raises ValueError for
    changes that make the warm-up longer than the run. `RunConfig` itself accepts a longer warm-up,
    because stored runs may have one.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    arm = changes.get("arm", "")
    if isinstance(arm, str) and ";" in arm:
        cell = Cell.parse(arm)
        check_once("field", [*cell.changes, *changes])
        arm, changes = cell.arm, {**changes, **cell.changes, "arm": cell.arm}
    if isinstance(arm, str) and arm.startswith("preset:"):
        # an unknown preset is refused later, by Arm.parse in RunConfig
        preset = PRESETS.get(arm.removeprefix("preset:").strip())
        changes = {"norm_options": preset.options if preset else {}, **changes}
    elif arm and isinstance(Arm.parse(arm), AttentionArm):
        changes = {"model": "transformer", **changes}
    differences = DIFFERENCES[scale].get("*", {}) | DIFFERENCES[scale].get(task, {})
    if changes.get("model") == "transformer":
        differences = transformer_differences(scale, task, differences)
    config = RunConfig.from_dict({"task": task, "scale": scale, **differences, **changes})
    if config.warmup_steps > config.steps and changes.keys() & {"warmup_steps", "steps"}:
        raise ValueError(
            f"warmup_steps={config.warmup_steps} is beyond steps={config.steps}: "
            "change one of the two"
        )
    return config


@lru_cache(maxsize=50_000)
def setting_id(
    task: str, scale: str, arm: str, lr: float, seed: int, changes: tuple[tuple[str, Any], ...] = ()
) -> str:
    """Return the run_id of `base_config` with these values.

    arm: an arm or a cell. changes: pairs (field, value).
    """
    text = _setting_text(task, scale, arm, changes)
    return hash_of(text.replace('"<lr>"', json.dumps(lr)).replace('"<seed>"', json.dumps(seed)))


@lru_cache(maxsize=1_000)
def _setting_text(task: str, scale: str, arm: str, changes: tuple[tuple[str, Any], ...]) -> str:
    """Return the canonical JSON of a config, with placeholders for its learning rate and seed."""
    values = base_config(task, scale, arm=arm, **dict(changes)).values()
    return canonical_json(values | {"lr": "<lr>", "seed": "<seed>"})


def relative_cost(config: RunConfig) -> float:
    """Return a number proportional to a run's work: steps × batch × layers × (width + constant)."""
    return config.steps * config.batch_size * config.n_layers * (config.d_model + 16)


def unique(configs: RunConfig | Iterable[RunConfig]) -> list[RunConfig]:
    """Return `configs`, or a single config, as a list in the same order, each run only once.

    Raises TypeError for an item that is not a RunConfig.
    """
    configs = [configs] if isinstance(configs, RunConfig) else list(configs)
    for config in configs:
        check_kind("each of configs", config, RunConfig, "grid")
    return list({config.run_id: config for config in configs}.values())


def grid(
    arms: Sequence[Arm | str],
    tasks: Sequence[str] = ("digits",),
    *,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    **changes: Any,
) -> list[RunConfig]:
    """Return one config per task, arm and seed, with the fields in `changes` changed.

    The configs of a task are ordered by seed, so a sweep that is stopped early has trained all arms
    on the same first seeds. seeds: as in `check_seeds`. An empty list of tasks gives no configs.
    Raises ValueError if `arms` is empty.
    """
    arms = [arms] if isinstance(arms, str | Arm) else arms
    if not arms:
        raise ValueError(f"arms must be a list of arms such as ['RMSN>SSM>GN'], got {arms!r}")
    scale = default_scale() if scale is None else check_scale(scale)
    seeds = check_seeds(seeds, scale)
    configs = []
    for task in [tasks] if isinstance(tasks, str) else tasks:
        per_arm = [base_config(task, scale, arm=str(a), seed=seeds[0], **changes) for a in arms]
        configs += [config.but(seed=seed) for seed in seeds for config in per_arm]
    return unique(configs)


# --------------------------------------------------------------------------------------------------
# checks of seeds and names

# Arms are compared on the seeds 52…99. Learning rates are chosen on the seeds 0…51 and 100…199.
FIRST_TEST_SEED, LAST_TEST_SEED = 52, 99
# The test seeds of questions (claims/question.py). No claim about tuned arms is planned on them.
QUESTION_SEEDS = tuple(range(76, 88))


def is_test_seed(seed: int) -> bool:
    """Return True if arms are compared on this seed."""
    return FIRST_TEST_SEED <= seed <= LAST_TEST_SEED


def is_tuning_seed(seed: int) -> bool:
    """Return True if learning rates are chosen on this seed."""
    return seed < FIRST_TEST_SEED or 100 <= seed < 200


# Scale → default number of seeds per arm. The paper's Table 2 uses 3 seeds.
SEEDS_PER_ARM: dict[str, int] = {"smoke": 1, "quick": 3, "evening": 3, "lab": 8, "paper": 3}

# Largest length of a list of seeds, and largest number n that may stand for the seeds 0…n−1. With
# a larger n, these seeds would include 100, which is a tuning seed.
MOST_SEEDS, MOST_SEEDS_AS_NUMBER = 1_000, 100


def check_seeds(seeds: int | Iterable[int] | None, scale: str) -> list[int]:
    """Return the seeds as a list.

    seeds: a list; or a number n, which means [0, …, n − 1]; or None, which means the scale's
    default n.

    Raises ValueError for no seeds, too many seeds, a seed that is given twice, or a seed that is
    not a whole number from 0 to 2³² − 1.
    """
    if seeds is None:
        seeds = SEEDS_PER_ARM[check_scale(scale)]
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        return list(range(check_whole("the number of seeds", seeds, 1, MOST_SEEDS_AS_NUMBER)))
    chosen = [check_seed(seed) for seed in islice(seeds, MOST_SEEDS + 1)]
    if not 0 < len(chosen) <= MOST_SEEDS:
        problem = "at least one seed is needed" if not chosen else f"more than {MOST_SEEDS:,} seeds"
        raise ValueError(f"{problem}: give a list such as [0, 1, 2]")
    check_once("seed", chosen)
    return chosen


def check_once(what: str, values: Sequence[object]) -> None:
    """Raise ValueError if a value occurs twice. what: noun that the message uses for a value."""
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} {value!r} is given twice")


def check_task(name: str) -> str:
    """Return `name`, the name of a task. Raise ValueError if no task of this name is registered.

    The tasks of this kit are checked without importing their modules.
    """
    if isinstance(name, str) and name in PAPER:
        return name
    from mambanorm_study import tasks

    return tasks.check_task(name)


def check_names(what: str, names: str | Iterable[str]) -> list[str]:
    """Return names as a list; a single name gives a list of one.

    Raises ValueError unless there is at least one name and each is a non-empty string. what: the
    argument's name for the message.
    """
    names = [names] if isinstance(names, str) else list(names)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    return names
