"""What a run is: `RunConfig`, and how configs are made from a task, a scale, arms and seeds.

A config states its defaults flat, with a reason beside those that have one. A scale is a named set of differences and
nothing else (`training/presets.py`). An experiment is a visible list built by plain Python (`study/experiments.py`).

Map
    RunConfig       one run, flat; its run_id names its folder in the store
    base_config     a task at a scale → its config
    grid            arms, tasks and seeds → one config for each
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

from mambanorm.arms import Arm, AttentionArm, norm_name, preset_options
from mambanorm.basics.errors import NotRegistered, unknown
from mambanorm.basics.settings import KIT_TASKS, SCALES, check_scale, default_scale
from mambanorm.training.presets import DIFFERENCES, transformer_differences
from mambanorm.training.schedule import SCHEDULES
from mambanorm.training.seeds import check_seed, check_seeds

SCHEMA = 1
"""A version number. It goes up by 1 when the same config would give other results (a golden test tells when). Part of
every run_id."""

PRECISIONS = ("float32", "bf16")
DEVICES = ("auto", "cpu", "cuda", "mps")


KNOWN: dict[str, Sequence[str]] = dict(
    scale=SCALES, optimizer=("adamw",), schedule=list(SCHEDULES), precision=PRECISIONS,
    positional=("none", "learned", "sinusoidal"), norm_position=("after", "before"),
)  # fmt: skip

ADDABLE = ("optimizer", "schedule", "positional", "norm_position")
"""Of these, a file of one's own may add some. A stored run that names one that is unknown here is not damaged."""

MODELS = ("mamba", "mamba2", "transformer")

COUNTS = (
    "d_model", "n_layers", "n_heads", "d_state", "expand", "d_conv", "batch_size", "steps", "eval_every", "threads",
    "head_dim", "n_groups",
)  # fmt: skip

LATER: dict[str, Any] = dict(
    micro_batch=0, down_sample=(), down_norm="None", positional="none", threads=1, optimizer="adamw",
    model="mamba", head_dim=16, n_groups=1, n_heads=4, norm_position="after", squeeze_excite=False,
    drop_path=0.0, mixup=0.0, cutmix=0.0, label_smoothing=0.0, ema=0.0, patience=0,
    teacher="", teacher_weight=0.5, temperature=2.0, start="", head_steps=0,
)  # fmt: skip
"""Fields added after the first runs were recorded. While such a field has its default, it is not part of the run_id, so
that those runs keep their ids. `betas` is another such field: its default is the preset's."""


@dataclass(frozen=True)
class RunConfig:
    """One run, flat. Raises ValueError for an unknown or impossible value, at construction."""

    task: str = "digits"
    arm: str = "RMSN>SSM>None"  # the original Mamba (§4.5)
    scale: str = "quick"
    seed: int = 0  # initial weights, batch order and, on the small tasks, the split
    d_model: int = 32
    n_layers: int = 4  # App. C: 4 layers on ListOps, IMDB and CIFAR
    d_state: int = 16  # mamba-ssm's default
    expand: int = 2  # App. C
    d_conv: int = 4  # App. C
    norm_options: dict[str, Any] = field(default_factory=dict)  # groups, eps, statistics, …
    stem_norm: str = "None"  # off, so that an arm is exactly what it says (I6)
    final_norm: str = "None"
    lr: float = 4e-3
    weight_decay: float = 0.01
    optimizer: str = "adamw"  # one of OPTIMIZERS (training/optimizer.py)
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's β₁ and β₂: PyTorch's
    schedule: str = "cosine_warmup"
    warmup_steps: int = 20
    batch_size: int = 64
    train_rows: int = 0  # use only the first rows of the training split, 0 = all; for §4.6 with less data (H9…H11)
    steps: int = 200
    eval_every: int = 25
    precision: str = "float32"
    device: str = "auto"  # CUDA if there is one, else the CPU
    threads: int = 1  # on the CPU; part of the config, because sums over several threads differ in the last digits
    micro_batch: int = 0  # rows of one forward pass, all that BN sees; gradients are summed. 0 = the whole batch
    down_sample: tuple[int, ...] = ()  # images: the blocks, from 1, after which they are halved and the width doubled
    down_norm: str = "None"  # images: the norm of a halving
    positional: str = "none"  # §2.1's encoding of positions, after the stem; off by default: the scan knows the order
    model: str = "mamba"  # "mamba2", or "transformer", whose arm is N1>MHA>N2 and whose d_state and d_conv do nothing
    head_dim: int = 16  # of a Mamba-2: channels that share Δ and A; upstream's 64 would leave our widths a single head
    n_groups: int = 1  # of a Mamba-2: groups of heads that share B and C
    n_heads: int = 4  # of a Transformer's attention
    norm_position: str = "after"  # of a Transformer: behind the residual sum as in S2, or "before" each branch
    squeeze_excite: bool = False  # of a Transformer: SE on the feed-forward branch (S2)
    # the regimen (S2, §IV.C.3; training/regimen.py), all of it off
    drop_path: float = 0.0  # share of the rows that skip the deepest block's branch; grows from 0 at the first
    mixup: float = 0.0  # α of the Beta that mixes two rows and their labels (Zhang et al. 2018)
    cutmix: float = 0.0  # α of the Beta that says how much of a row is another's (Yun et al. 2019)
    label_smoothing: float = 0.0  # share of a label that goes to all classes alike
    ema: float = 0.0  # decay a step of the averaged weights that are then validated and tested
    patience: int = 0  # stop after so many evaluations without a better one, 0 = never
    teacher: str = ""  # run_id of a stored run whose outputs are learned as well (Hinton et al. 2015)
    teacher_weight: float = 0.5  # share of the loss that the teacher has
    temperature: float = 2.0  # at which both outputs are compared
    start: str = ""  # run_id of a stored run whose weights are taken over, the head only if it fits the same task
    head_steps: int = 0  # of these weights, train only the head so long, then all

    def __post_init__(self) -> None:
        self._check_arm(Arm.parse(self.arm))
        for name in ("stem_norm", "down_norm", "final_norm"):
            object.__setattr__(self, name, norm_name(getattr(self, name)))
        if not isinstance(self.task, str) or not self.task:
            raise ValueError(f"task must be the name of one, such as 'digits', got {self.task!r}")
        for name, known in KNOWN.items():
            if getattr(self, name) not in list(known) and getattr(self, name) not in list(valid := _valid(name)):
                error = NotRegistered if name in ADDABLE and isinstance(getattr(self, name), str) else unknown
                raise error(name, getattr(self, name), valid)
        if not isinstance(self.device, str) or not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise unknown("device", self.device, DEVICES + ("cuda:1",))
        if not isinstance(self.norm_options, dict):
            raise ValueError(f"norm_options must be a dict such as {{'groups': 8}}, got {self.norm_options!r}")
        object.__setattr__(self, "norm_options", dict(self.norm_options))
        for name in ("down_sample", "betas"):
            if isinstance(getattr(self, name), list):  # as JSON has it
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_numbers()

    def _check_arm(self, arm: Arm) -> None:
        """The arm, as it is written; it must be one of the model."""
        if self.model not in MODELS:
            raise unknown("model", self.model, MODELS)
        if (self.model == "transformer") != isinstance(arm, AttentionArm):
            other = "mamba" if self.model == "transformer" else "transformer"
            here = f"{arm.n1}>{'MHA' if self.model == 'transformer' else 'SSM'}>{arm.n2}"
            raise ValueError(f"arm {arm} is of model={other!r}, this is a {self.model!r}: did you mean {here!r}?")
        object.__setattr__(self, "arm", str(arm))

    def __hash__(self) -> int:
        return hash(self.run_id)

    def _check_numbers(self) -> None:
        for name in COUNTS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        for name in ("lr", "weight_decay"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")
            object.__setattr__(self, name, float(value))
        for name in ("seed", "warmup_steps", "train_rows", "micro_batch", "patience", "head_steps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ValueError(f"{name} must be a whole number of at least 0, got {value!r}")
        check_seed(self.seed)
        if not isinstance(self.betas, tuple) or len(self.betas) != 2 or not all(map(_is_beta, self.betas)):
            raise ValueError(f"betas must be two numbers from 0 to below 1 such as [0.9, 0.95], got {self.betas!r}")
        object.__setattr__(self, "betas", tuple(map(float, self.betas)))
        self._check_regimen()
        blocks = self.down_sample
        if not isinstance(blocks, tuple) or not all(type(block) is int and block > 0 for block in blocks):
            raise ValueError(f"down_sample must be a list of blocks, counted from 1, such as [2, 4], got {blocks!r}")
        if self.down_norm != "None" and not blocks:
            raise ValueError(f"down_norm={self.down_norm!r} without down_sample: say behind which blocks to halve")

    def _check_regimen(self) -> None:
        """Rates and shares, and that each part has what it needs."""
        for name, low, high, allowed in (
            *((rate, 0, 1, "from 0 to below 1") for rate in ("drop_path", "label_smoothing", "ema")),
            *((alpha, 0, math.inf, "of at least 0") for alpha in ("mixup", "cutmix")),
            ("teacher_weight", 0, math.nextafter(1, 2), "from 0 to 1"),
            ("temperature", math.ulp(0), math.inf, "above 0"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value < high:
                raise ValueError(f"{name} must be a number {allowed}, got {value!r}")
            object.__setattr__(self, name, float(value))
        if not isinstance(self.squeeze_excite, bool):
            from mambanorm.basics.checks import check_flag

            check_flag("squeeze_excite", self.squeeze_excite)
        if self.model == "mamba2":
            from mambanorm.mamba2 import heads_of

            heads_of(self.expand * self.d_model, self.head_dim, self.n_groups)
        if self.model == "transformer" and self.d_model % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide d_model={self.d_model}: every head has as many")
        for name in ("teacher", "start"):
            value = getattr(self, name)
            if not isinstance(value, str) or not re.fullmatch("([0-9a-f]{16})?", value):
                raise ValueError(f"{name} must be the run_id of a stored run, 16 digits of 0…f, got {value!r}")
        if self.head_steps and not self.start:
            raise ValueError(f"head_steps={self.head_steps} without start: say which run's weights are to be kept")

    @cached_property
    def run_id(self) -> str:
        """Hash of the canonical form and SCHEMA: the name of the run's folder."""
        before, after = self._around_seed
        return _hash(f'{before}"seed": {self.seed}{after}')

    @cached_property
    def _around_seed(self) -> tuple[str, str]:
        """The canonical form before and after the seed, which is all that configs of a grid differ in."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        before, after = _canonical(values | {"seed": "here"}).split('"seed": "here"')
        return before, after

    @property
    def role(self) -> str:
        """What the seed is for: tune (100…199), select (200…299) or test (0…99 and the rest, such as the paper's)."""
        return {1: "tune", 2: "select"}.get(self.seed // 100, "test")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The config that `to_json` wrote. ValueError if the text is no config, TypeError for an unknown field."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        if not isinstance(values, dict):
            raise ValueError(f"a config is a JSON object, got {str(values)[:40]!r}")
        names = [f.name for f in fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("field of RunConfig", name, names, TypeError)
        return cls(**{"betas": _preset_betas(values), **values})

    def but(self, **changes: Any) -> RunConfig:
        """A copy with some fields changed. TypeError for an unknown field."""
        return RunConfig.from_dict({**asdict(self), **changes})

    def with_seed(self, seed: int) -> RunConfig:
        """`but(seed=seed)`, many times as fast, because only the seed is checked."""
        other = object.__new__(RunConfig)
        _ = self._around_seed  # the copy has it too
        options = deepcopy(self.norm_options) if self.norm_options else {}
        vars(other).update(vars(self), seed=check_seed(seed), norm_options=options)
        vars(other).pop("run_id", None)
        return other


def _valid(name: str) -> Sequence[str]:
    """What a field may be. Imported here, because a config of what is KNOWN need not wait for torch."""
    if name == "positional":
        from mambanorm.models.positional import POSITIONAL as valid
    elif name == "norm_position":
        from mambanorm.models.transformer import NORM_POSITIONS as valid
    elif name == "optimizer":
        from mambanorm.training.optimizer import OPTIMIZERS as valid
    elif name == "schedule":
        valid = SCHEDULES
    else:
        return KNOWN[name]
    return list(valid)


def _is_beta(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _preset_betas(values: dict[str, Any]) -> tuple[float, float]:
    """The betas of a config that names none, such as one stored before the field existed: those of its preset."""
    task, scale = values.get("task", RunConfig.task), values.get("scale", RunConfig.scale)
    preset = DIFFERENCES[scale].get(task, {}) if isinstance(task, str) and scale in SCALES else {}
    return preset.get("betas", RunConfig.betas)


def run_id_of(values: dict[str, Any]) -> str:
    """The run_id of a config's values, also as read from JSON. The norms that they name need not be registered here."""
    return _hash(_canonical(values))


def _hash(canonical: str) -> str:
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _canonical(values: dict[str, Any]) -> str:
    """The values in JSON, without later fields that have their default, and with the SCHEMA."""
    defaults = LATER | {"betas": _preset_betas(values)}
    kept = {name: value for name, value in values.items() if name not in defaults or _differs(value, defaults[name])}
    return json.dumps({"schema": SCHEMA, **kept}, sort_keys=True)


def _differs(value: object, default: object) -> bool:
    """Whether JSON would show them differently: 0 is not 0.0, but a list is as good as a tuple."""
    value, default = (list(one) if isinstance(one, tuple) else one for one in (value, default))
    return repr(value) != repr(default)


def check_names(what: str, names: str | Iterable[str]) -> list[str]:
    """A list of names; a single name becomes a list of one. ValueError for no name, and for what is not a name."""
    if not isinstance(names, str | Iterable):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    names = [names] if isinstance(names, str) else list(names)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} must be a list of names, got {names!r}")
    return names


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


def check_task(name: str) -> str:
    """As that of the registry, which a task of the kit need not wait for."""
    if isinstance(name, str) and name in KIT_TASKS:
        return name
    from mambanorm import tasks

    return tasks.check_task(name)


def relative_cost(config: RunConfig) -> float:
    """Work of a run up to a factor: steps × batch × layers × (width + a constant for what does not grow with it)."""
    return config.steps * config.batch_size * config.n_layers * (config.d_model + 16)


def unique(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The configs in their order, each run once."""
    return list({config.run_id: config for config in configs}.values())


def grid(
    arms: Sequence[Arm | str],
    tasks: Sequence[str] = ("digits",),
    *,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    **changes: Any,
) -> list[RunConfig]:
    """One config for each task, arm and seed, ordered by seed: a sweep that is stopped has all arms of its seeds."""
    scale = default_scale() if scale is None else check_scale(scale)
    tasks = [tasks] if isinstance(tasks, str) else tasks
    arms = [arm if isinstance(arm, str) else str(arm) for arm in ([arms] if isinstance(arms, str | Arm) else arms)]
    seeds, configs = check_seeds(seeds, scale), []
    for task in tasks:
        first = [base_config(task, scale, arm=arm, seed=seeds[0], **changes) for arm in arms]
        configs += first + [config.with_seed(seed) for seed in seeds[1:] for config in first]
    return unique(configs)
