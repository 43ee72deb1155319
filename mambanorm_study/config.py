"""`RunConfig`: the flat config of a run. Each field states its default and its allowed values.

To add a field, add a line with `since` to RunConfig. A field with `since` enters the run_id only if
it differs from its default, so stored runs keep their ids. runs/grid.py makes configs from a task,
a scale, arms and seeds. In the comments, "§4.5" is a section of the paper, "App. C" its Appendix C,
and "S2" a source (docs/sources.md).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from math import inf
from typing import Any, Self

from mambanorm.arms import Arm
from mambanorm.errors import WORD, brief, unknown
from mambanorm.loop import OPTIMIZERS, SCHEDULES
from mambanorm.models.parts import POSITIONAL
from mambanorm.norms import registered_name
from mambanorm_study.basics.checks import check_whole
from mambanorm_study.basics.fields import (
    check_and_convert,
    checked,
    choice,
    count,
    frozen_options,
    number,
    share,
    text,
    tuple_field,
)
from mambanorm_study.basics.settings import SCALES
from mambanorm_study.models import MODELS
from mambanorm_study.models.transformer import NORM_POSITIONS
from mambanorm_study.models.vision import MERGES

# Version of the results, part of every run_id. Raise it by 1 when the same config gives different
# results; the golden test (tests/mambanorm_study/runs/test_run.py) fails in this case.
SCHEMA = 1


def check_seed(seed: Any) -> int:
    """Return a seed as an int. Raise ValueError unless it is a whole number from 0 to 2³² − 1."""
    return check_whole("a seed", seed, 0, 2**32 - 1)


# norm_field makes a field for the name of a norm, run_id_field one for the run_id of a stored run
# ("" means no run).
norm_field = partial(checked, "None", convert=registered_name)
run_id_field = partial(text, "", "the run_id of a stored run, 16 digits of 0…f", "([0-9a-f]{16})?")


@dataclass(frozen=True)
class RunConfig:
    """The config of one run. Raises ValueError for an unknown or impossible value."""

    task: str = text("digits", "the name of a task: a word such as 'digits'", WORD)
    # default: the norms of the original Mamba (§4.5 of the paper)
    arm: str = checked("RMSN>SSM>None", convert=lambda arm: str(Arm.parse(arm)))
    scale: str = choice("quick", SCALES)
    # the seed decides the initial weights, the batch order and, on the small tasks, the split
    seed: int = checked(0, convert=check_seed)
    d_model: int = count(32, most=65_536)
    n_layers: int = count(4, most=1_000)  # the paper's App. C: 4 layers on ListOps, IMDB and CIFAR
    d_state: int = count(16, most=512)  # mamba-ssm's default
    expand: int = count(2, most=16)  # the paper's App. C
    d_conv: int = count(4, most=1_024)  # the paper's App. C
    # options of all norms: groups, eps, statistics, …; under the name of a site (a place of a norm
    # in the block, such as "B"), a dict of options for the norm at that site only
    norm_options: Mapping[str, Any] = checked(
        {}, "a dict such as {'groups': 8}", lambda value: isinstance(value, Mapping), frozen_options
    )
    # norms outside the blocks, off by default, so that the arm names every norm (I6 of
    # docs/paper.md)
    stem_norm: str = norm_field()
    final_norm: str = norm_field()
    lr: float = number(4e-3)
    weight_decay: float = number(0.01)
    optimizer: str = choice("adamw", OPTIMIZERS, since="2026-11-22")
    betas: tuple[float, float] = tuple_field(  # AdamW's β₁ and β₂; PyTorch's defaults
        (0.9, 0.999),
        share(0),
        "two numbers from 0 to below 1 such as [0.9, 0.95]",
        n=2,
        since="2026-11-22",
    )
    schedule: str = choice("cosine_warmup", SCHEDULES)
    warmup_steps: int = count(20, least=0)
    batch_size: int = count(64)
    train_rows: int = count(0, least=0)  # number of first training rows to use; 0 means all
    steps: int = count(200)
    eval_every: int = count(25)
    precision: str = choice("float32", ("float32", "bf16"))
    # "auto": CUDA if available, else the CPU
    device: str = text(
        "auto",
        "",
        "auto|cpu|mps|cuda(:[0-9]+)?",
        choices=("auto", "cpu", "cuda", "mps", "cuda:1"),
    )
    # replay training steps as CUDA graphs: "auto" as GRAPH_BY_DEFAULT in runs/run.py, "on" whenever
    # possible; the results differ by rounding, as those of another `device` do
    cuda_graph: str = choice("auto", ("auto", "on", "off"), since="2026-11-27")
    # CPU threads; with another number of threads, results are rounded differently
    threads: int = count(1, most=4_096, since="2026-11-21")
    # rows per forward pass, so BN's statistics are over these rows; gradients are summed over the
    # batch. 0 means the whole batch
    micro_batch: int = count(0, least=0, since="2026-11-20")
    # images: the blocks, counted from 1, after which height and width are halved and the channels
    # doubled
    down_sample: tuple[int, ...] = tuple_field(
        (), count(1), "a list of blocks, counted from 1, such as [2, 4]", since="2026-11-20"
    )
    down_norm: str = norm_field(since="2026-11-20")  # the norm of each downsampling
    # encoding of the positions, added after the stem (§2.1 of the paper); off by default, because
    # the scan depends on the order anyway
    positional: str = choice("none", POSITIONAL, since="2026-11-21")
    # a Transformer has arms N1>MHA>N2 and ignores d_state and d_conv
    model: str = choice("mamba", MODELS, since="2026-11-22")
    # Mamba-2: channels per head; the channels of a head share Δ and A. mamba-ssm's default of 64
    # would give one head
    head_dim: int = count(16, since="2026-11-23")
    n_groups: int = count(1, since="2026-11-23")  # Mamba-2: groups of heads that share B and C
    n_heads: int = count(4, since="2026-11-22")  # Transformer: attention heads
    # Transformer: norms after the residual sum, as in source S2, or before each branch
    norm_position: str = choice("after", NORM_POSITIONS, since="2026-11-22")
    # Transformer: squeeze-and-excitation on the feed-forward branch (source S2)
    squeeze_excite: bool = checked(
        False, "True or False", lambda value: isinstance(value, bool), since="2026-11-22"
    )
    # From here on: the training regimen of source S2, its §IV.C.3 (runs/regimen.py); off by default

    # share of the rows that skip the last block's branch; the share grows with depth, from 0
    drop_path: float = share(0.0, since="2026-11-22")
    # MixUp: α of the Beta distribution of the weight with which two rows and their labels are mixed
    # (Zhang et al. 2018)
    mixup: float = number(0.0, since="2026-11-22")
    # CutMix: α of the Beta distribution of the share of positions that another row replaces (Yun et
    # al. 2019)
    cutmix: float = number(0.0, since="2026-11-22")
    # share of a label's probability that is spread over all classes
    label_smoothing: float = share(0.0, since="2026-11-22")
    # decay of the moving average of the weights; above 0, the averaged weights are validated and
    # tested
    ema: float = share(0.0, since="2026-11-22")
    # a gradient whose L2 norm is larger is scaled down to this norm; 0 means no clipping
    clip: float = number(0.0, since="2026-11-28")
    # stop after this many evaluations in a row that do not beat the best one; 0 means never
    patience: int = count(0, least=0, since="2026-11-22")
    # distillation: the run whose outputs are learned besides the labels (Hinton et al. 2015)
    teacher: str = run_id_field(since="2026-11-22")
    # distillation: weight of the teacher's part of the loss; the labels' part has weight
    # 1 − teacher_weight
    teacher_weight: float = number(
        0.5, "a number from 0 to 1", lambda value: 0 <= value <= 1, since="2026-11-22"
    )
    # distillation: divisor of the teacher's and the student's logits
    temperature: float = number(
        2.0, "a finite number above 0", lambda value: 0 < value < inf, since="2026-11-22"
    )
    # fine-tuning: the run whose weights are the initial weights
    start: str = run_id_field(since="2026-11-22")
    # fine-tuning: number of first steps that train only the head; later steps train all weights
    head_steps: int = count(0, least=0, since="2026-11-22")
    # From here on: what users change about the SSM (notebook 16); off by default

    # weight decay of A_log and D, which mamba-ssm excludes from weight decay
    decay_ssm: float = number(0.0, since="2026-11-27")
    # initial bias of Δ: as in mamba-ssm, or zero, as after a `model.apply` that sets all biases to
    # zero
    dt_init: str = choice("mamba", ("mamba", "zero"), since="2026-11-27")
    # initial −A: 1, 2, …, N as in mamba-ssm, or 1 everywhere
    a_init: str = choice("mamba", ("mamba", "ones"), since="2026-11-27")
    # after each step, an |A| below this number is set to it
    a_floor: float = number(0.0, since="2026-11-27")
    # images: the block's scans in four directions are added, or averaged
    merge: str = choice("sum", MERGES, since="2026-11-27")

    def __post_init__(self) -> None:
        check_and_convert(self, NAMES)
        self._check_combination()

    def _check_combination(self) -> None:
        arm, model = Arm.parse(self.arm), MODELS[self.model]
        if arm.mixer != model.mixer:
            other = next(name for name, entry in MODELS.items() if entry.mixer == arm.mixer)
            raise ValueError(
                f"arm {arm} needs model={other!r}, got {self.model!r}: "
                f"did you mean '{arm.n1}>{model.mixer}>{arm.n2}'?"
            )
        model.check(self)
        for name in SSM_FIELDS if arm.mixer != "SSM" else ():
            if getattr(self, name) != getattr(RunConfig, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no effect on a model without an SSM: "
                    f"leave it at {getattr(RunConfig, name)!r}"
                )
        if self.start and (self.dt_init, self.a_init) != ("mamba", "mamba"):
            raise ValueError(
                f"dt_init={self.dt_init!r} and a_init={self.a_init!r} have no effect with start: "
                "the run starts from stored weights"
            )
        if self.head_steps and not self.start:
            raise ValueError(
                f"head_steps={self.head_steps} without start: name the run whose weights are frozen"
            )
        if self.down_norm != "None" and not self.down_sample:
            raise ValueError(
                f"down_norm={self.down_norm!r} without down_sample: "
                "name the blocks after which the image is halved"
            )

    def __hash__(self) -> int:
        return hash(self.run_id)

    @cached_property
    def run_id(self) -> str:
        """The hash of the config and SCHEMA, which is also the name of the run's folder."""
        return run_id_of(self.values())

    @property
    def role(self) -> str:
        """Use of the seed: "tune" (seeds 100…199), "select" (200…299) or "test" (all others)."""
        return {1: "tune", 2: "select"}.get(self.seed // 100, "test")

    def values(self) -> dict[str, Any]:
        """Return a map from each field to its value."""
        return {name: getattr(self, name) for name in NAMES}

    def to_json(self) -> str:
        """Return the config as JSON."""
        return json.dumps(self.values(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the config of a text that `to_json` returned.

        Raises ValueError for any other text, TypeError for an unknown field.
        """
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Return the config with these field values. Raise TypeError for an unknown field."""
        if not isinstance(values, dict):
            raise ValueError(f"a config is a JSON object, got {brief(values)}")
        _check_names(values)
        return cls(**values)

    def but(self, **changes: Any) -> Self:
        """Return a copy of the config in which the fields named in `changes` have the values given.

        Raises TypeError for an unknown field.
        """
        _check_names(changes)
        config = object.__new__(RunConfig)  # not RunConfig(…), which would check all fields again
        vars(config).update(self.values(), **changes)
        check_and_convert(config, changes)
        config._check_combination()
        return config


# Fields about the SSM that every model with an SSM uses (runs/ssm_parameters.py).
SSM_FIELDS = ("decay_ssm", "dt_init", "a_init", "a_floor")

NAMES = [field.name for field in fields(RunConfig)]
DEFAULTS = RunConfig()
# Field that was added after the first runs were recorded → its default as JSON.
LATER_DEFAULTS = {
    field.name: json.dumps(field.default) for field in fields(RunConfig) if field.metadata["since"]
}


def _check_names(names: Iterable[str]) -> None:
    """Raise TypeError unless each name is the name of a field of RunConfig."""
    for name in names:
        if name not in NAMES:
            raise unknown("field of RunConfig", name, NAMES, TypeError)


def run_id_of(values: dict[str, Any]) -> str:
    """Return the run_id of a config that is given as a dict, such as one read from JSON.

    The run_id is the hash of SCHEMA and of the values as JSON. A field of LATER_DEFAULTS that has
    its default is left out. The norms that the dict names need not be registered.
    """
    return hash_of(canonical_json(values))


def canonical_json(values: dict[str, Any]) -> str:
    """Return the JSON text whose hash is the run_id of a config that is given as a dict."""
    hashed = {
        name: value
        for name, value in values.items()
        if name not in LATER_DEFAULTS or LATER_DEFAULTS[name] != json.dumps(value)
    }
    return json.dumps({"schema": SCHEMA, **hashed}, sort_keys=True)


def hash_of(text: str) -> str:
    """Return the first 16 hex digits of the SHA-256 hash of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
