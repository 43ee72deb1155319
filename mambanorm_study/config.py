"""What a run is: `RunConfig`, flat. Each field says its default, what it may be and since when it
is there; the comment beside it says why.

A field is added by its line here and nowhere else. It needs `since`: while it has its default, it
is not part of the run_id, so that runs that were stored before keep theirs. Configs are made from a
task, a scale, arms and seeds in `runs/grid.py`.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from mambanorm.arms import Arm
from mambanorm.errors import WORD, brief, unknown
from mambanorm.loop import OPTIMIZERS, SCHEDULES
from mambanorm.models.parts import POSITIONAL
from mambanorm.norms import NORMS, norm_name
from mambanorm_study.basics.fields import (
    checked,
    choice,
    count,
    flag,
    keep_checked,
    number,
    options,
    several,
    text,
)
from mambanorm_study.basics.settings import SCALES
from mambanorm_study.models import MODELS
from mambanorm_study.models.transformer import NORM_POSITIONS

SCHEMA = 1
"""A version number. It goes up by 1 when the same config would give other results (a golden test
tells when). Part of every run_id."""

DEVICES = ("auto", "cpu", "cuda", "mps", "cuda:1")


def check_seed(seed: Any) -> int:
    """A seed of any integer type as a plain one. ValueError for what is none."""
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__") or not 0 <= seed < 2**32:
        raise ValueError(f"a seed is a whole number from 0 to 2³² − 1, got {brief(seed)}")
    return operator.index(seed)


def norm(default: str = "None", *, since: str = "") -> Any:
    return checked(default, keep=norm_name, choices=NORMS, since=since)


def run_named(*, since: str) -> Any:
    return text("", "the run_id of a stored run, 16 digits of 0…f", "([0-9a-f]{16})?", since=since)


@dataclass(frozen=True)
class RunConfig:
    """One run: each setting is a field. Raises ValueError for an unknown or impossible value, at
    construction."""

    task: str = text("digits", "the name of one: a word such as 'digits'", WORD)
    arm: str = checked("RMSN>SSM>None", choices=NORMS)  # the original Mamba (§4.5)
    scale: str = choice("quick", SCALES)
    seed: int = checked(
        0, keep=check_seed
    )  # initial weights, batch order and, on the small tasks, the split
    d_model: int = count(32, most=65_536)
    n_layers: int = count(4, most=1_000)  # App. C: 4 layers on ListOps, IMDB and CIFAR
    d_state: int = count(16, most=512)  # mamba-ssm's default
    expand: int = count(2, most=16)  # App. C
    d_conv: int = count(4, most=1_024)  # App. C
    norm_options: Mapping[str, Any] = (
        checked(  # groups, eps, statistics, …; under the name of a site its own
            {}, "a dict such as {'groups': 8}", lambda value: isinstance(value, dict), options
        )
    )
    stem_norm: str = norm()  # off, so that an arm is exactly what it says (I6)
    final_norm: str = norm()
    lr: float = number(4e-3)
    weight_decay: float = number(0.01)
    optimizer: str = choice("adamw", OPTIMIZERS, since="2026-11-22")
    betas: tuple[float, float] = several(  # AdamW's β₁ and β₂: PyTorch's
        (0.9, 0.999),
        number(0, below=1),
        "two numbers from 0 to below 1 such as [0.9, 0.95]",
        n=2,
        since="2026-11-22",
    )
    schedule: str = choice("cosine_warmup", SCHEDULES)
    warmup_steps: int = count(20, least=0)
    batch_size: int = count(64)
    train_rows: int = count(0, least=0)  # only the first rows of the training split, 0 = all
    steps: int = count(200)
    eval_every: int = count(25)
    precision: str = choice("float32", ("float32", "bf16"))
    device: str = text(
        "auto", "", "auto|cpu|mps|cuda(:[0-9]+)?", choices=DEVICES
    )  # CUDA if there is one, else the CPU
    threads: int = count(
        1, most=4_096, since="2026-11-21"
    )  # on the CPU; each number rounds otherwise
    # rows of one forward pass, all that BN sees; gradients are summed. 0 = the whole batch
    micro_batch: int = count(0, least=0, since="2026-11-20")
    # images: the blocks, from 1, after which they are halved and the width doubled; the norm of a
    # halving
    down_sample: tuple[int, ...] = several(
        (), count(1), "a list of blocks, counted from 1, such as [2, 4]", since="2026-11-20"
    )
    down_norm: str = norm(since="2026-11-20")
    # §2.1's encoding of positions, after the stem; off by default: the scan knows the order
    positional: str = choice("none", POSITIONAL, since="2026-11-21")
    # a Transformer's arm is N1>MHA>N2, and its d_state and d_conv do nothing
    model: str = choice("mamba", MODELS, since="2026-11-22")
    head_dim: int = count(
        16, since="2026-11-23"
    )  # of a Mamba-2: channels that share Δ and A; 64 would leave one head
    n_groups: int = count(1, since="2026-11-23")  # of a Mamba-2: groups of heads that share B and C
    n_heads: int = count(4, since="2026-11-22")  # of a Transformer's attention
    # of a Transformer: behind the residual sum as in S2, or before each branch
    norm_position: str = choice("after", NORM_POSITIONS, since="2026-11-22")
    squeeze_excite: bool = flag(
        False, since="2026-11-22"
    )  # of a Transformer: SE on the feed-forward branch (S2)
    # the regimen (S2, §IV.C.3; runs/regimen.py), all of it off
    drop_path: float = number(
        0.0, below=1, since="2026-11-22"
    )  # share of rows that skip the last branch; grows from 0
    mixup: float = number(
        0.0, since="2026-11-22"
    )  # α of the Beta that mixes two rows and labels (Zhang et al. 2018)
    cutmix: float = number(
        0.0, since="2026-11-22"
    )  # α of the Beta: how much of a row is another's (Yun et al. 2019)
    label_smoothing: float = number(
        0.0, below=1, since="2026-11-22"
    )  # share of a label for all classes alike
    ema: float = number(
        0.0, below=1, since="2026-11-22"
    )  # decay of the averaged weights, which are then tested
    patience: int = count(
        0, least=0, since="2026-11-22"
    )  # stop after so many evaluations without a better; 0 = never
    teacher: str = run_named(
        since="2026-11-22"
    )  # whose outputs are learned as well (Hinton et al. 2015)
    teacher_weight: float = number(
        0.5, most=1, since="2026-11-22"
    )  # share of the loss that the teacher has
    temperature: float = number(
        2.0, above=0, since="2026-11-22"
    )  # at which both outputs are compared
    start: str = run_named(
        since="2026-11-22"
    )  # whose weights are taken over, the head only if it fits the same task
    head_steps: int = count(
        0, least=0, since="2026-11-22"
    )  # of these weights, train only the head so long, then all

    def __post_init__(self) -> None:
        arm = Arm.parse(self.arm)
        object.__setattr__(self, "arm", str(arm))
        keep_checked(self)
        self._check_arm(arm)
        self._check_together()

    def _check_arm(self, arm: Arm) -> None:
        """Raise ValueError for an arm of another kind of model."""
        mixer = MODELS[self.model].mixer
        if arm.mixer != mixer:
            other = next(name for name, model in MODELS.items() if model.mixer == arm.mixer)
            raise ValueError(
                f"arm {arm} is of model={other!r}, this is a {self.model!r}: did you mean '{arm.n1}>{mixer}>{arm.n2}'?"
            )

    def _check_together(self) -> None:
        """Raise ValueError for values that are possible alone, but not with one another."""
        MODELS[self.model].check(self)
        if self.head_steps and not self.start:
            raise ValueError(
                f"head_steps={self.head_steps} without start: say which run's weights are to be kept"
            )
        if self.down_norm != "None" and not self.down_sample:
            raise ValueError(
                f"down_norm={self.down_norm!r} without down_sample: say behind which blocks to halve"
            )

    def __hash__(self) -> int:
        return hash(self.run_id)

    @cached_property
    def run_id(self) -> str:
        """Hash of the canonical form and SCHEMA: the name of the run's folder."""
        return run_id_of(self._values())

    @property
    def role(self) -> str:
        """What the seed is for: tune (100…199), select (200…299) or test (0…99 and the rest, such
        as the paper's)."""
        return {1: "tune", 2: "select"}.get(self.seed // 100, "test")

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in NAMES}

    def to_json(self) -> str:
        return json.dumps(self._values(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """The config that `to_json` wrote. ValueError if the text is no config, TypeError for an
        unknown field."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        if not isinstance(values, dict):
            raise ValueError(f"a config is a JSON object, got {str(values)[:40]!r}")
        for name in values:
            if name not in NAMES:
                raise unknown("field of RunConfig", name, NAMES, TypeError)
        return cls(**values)

    def but(self, **changes: Any) -> RunConfig:
        """A copy with some fields changed. TypeError for an unknown field."""
        return RunConfig.from_dict(self._values() | changes)

    def with_seed(self, seed: int) -> RunConfig:
        """`but(seed=seed)`, many times as fast, because only the seed is checked."""
        other = object.__new__(RunConfig)
        vars(other).update(vars(self), seed=check_seed(seed))
        vars(other).pop("run_id", None)
        return other


NAMES = [one.name for one in fields(RunConfig)]
ADDABLE = [one.name for one in fields(RunConfig) if isinstance(one.metadata["choices"], Mapping)]
"""Fields that name what a file of yours may add. A stored run that names what is unknown here is
not damaged."""
DEFAULTS = RunConfig()
ADDED = {one.name: getattr(DEFAULTS, one.name) for one in fields(DEFAULTS) if one.metadata["since"]}
"""Fields added after the first runs were recorded, with their defaults."""


def run_id_of(values: dict[str, Any]) -> str:
    """The run_id of a config's values, also as read from JSON. The norms that they name need not be
    registered here.

    It is the hash of the values in JSON, without later fields that have their default, and with the
    SCHEMA.
    """
    kept = {
        name: value
        for name, value in values.items()
        if name not in ADDED or _differs(value, ADDED[name])
    }
    canonical = json.dumps({"schema": SCHEMA, **kept}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _differs(value: object, default: object) -> bool:
    """Whether JSON would show them differently: 0 is not 0.0, but a list is as good as a tuple."""
    value, default = (list(one) if isinstance(one, tuple) else one for one in (value, default))
    return repr(value) != repr(default)
