"""The loss that a run goes down, with the regimen of S2 (§IV.C.3): each part a field of RunConfig
and off by default.

What is random depends on the seed and the step alone, so a run that continues from a checkpoint is
the same run.

Sources: Zhang et al. 2018 (MixUp); Yun et al. 2019 (CutMix); Szegedy et al. 2016 (label smoothing);
Hinton et al. 2015 (distillation). Averaged weights are in observers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.evaluation import autocast
from mambanorm_study.tasks import TASKS
from mambanorm_study.tasks.base import Units

if TYPE_CHECKING:
    from mambanorm_study.runs.result import StoredRun


class Lesson(NamedTuple):
    """What the outputs of a batch are compared with. other: the labels of the rows mixed in,
    `share` of the loss is the own labels'. soft: the teacher's outputs."""

    labels: Tensor
    other: Tensor | None = None
    share: float = 1.0
    soft: Tensor | None = None

    def of(self, rows: slice) -> Lesson:
        return Lesson(*(part[rows] if isinstance(part, Tensor) else part for part in self))


class Loss:
    """The loss of a batch of a run, in parts, one for each micro-batch; a norm sees one at a time.

    units: the scale of a regression's targets. watching: opened around every forward pass of the
    model that learns.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        *,
        teacher: nn.Module | None = None,
        units: Units | None = None,
        watching: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.config, self.teacher, self.units, self.watching = config, teacher, units, watching
        self.head_first = HeadFirst(model, config)

    def __call__(
        self, model: nn.Module, batch: tuple[Tensor, Tensor | None, Tensor], step: int
    ) -> Iterator[Tensor]:
        inputs, lengths, labels = batch
        labels = labels if self.units is None else self.units.scaled(labels)
        inputs, lesson = mixed(inputs, lengths, labels, self.config, step)
        lowered = autocast(self.config, inputs.device)
        if self.teacher is not None:
            with torch.no_grad(), lowered:
                lesson = lesson._replace(soft=self.teacher(inputs, lengths).float())
        self.head_first.at(step)
        draws = StepDraws(self.config, step) if self.config.drop_path else nullcontext()
        for part in micro_batches(len(labels), self.config.micro_batch):
            taught = lesson.of(part)
            with (
                self.watching(),
                draws,
                lowered,
            ):  # all closed before the backward pass, which may fail
                outputs = model(inputs[part], None if lengths is None else lengths[part])
                loss = loss_of(outputs, taught, self.config) * (len(taught.labels) / len(labels))
            yield loss


# --------------------------------------------------------------------------------------------------
# mixing


def mixed(
    inputs: Tensor, lengths: Tensor | None, labels: Tensor, config: RunConfig, step: int
) -> tuple[Tensor, Lesson]:
    """The inputs of a step, (B, L, F) or (B, H, W, C), each row mixed with another one; where both
    ways are on, one of them by a coin. ValueError for token ids, which are no numbers, and for rows
    with padding, which is no part of a row."""
    if not (config.mixup or config.cutmix):
        return inputs, Lesson(labels)
    if not inputs.is_floating_point():
        raise ValueError(
            f"mixup and cutmix mix numbers, and {config.task} has token ids: set both to 0"
        )
    if lengths is not None:
        raise ValueError(
            f"mixup and cutmix mix rows of one length, and {config.task} has padding: set both to 0"
        )
    rng = np.random.default_rng([config.seed, step])
    other = torch.as_tensor(rng.permutation(len(labels)), device=labels.device)
    cut = config.cutmix and (not config.mixup or rng.random() < 0.5)
    share = float(rng.beta(*[config.cutmix if cut else config.mixup] * 2))
    if cut:
        inputs, share = _cut(inputs, inputs[other], share, rng)
    else:
        inputs = share * inputs + (1 - share) * inputs[other]
    return inputs, Lesson(labels, labels[other], share)


def _cut(
    inputs: Tensor, others: Tensor, share: float, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """A box of about 1 − share of the positions is the other row's; returns the share that stays.
    The box is placed by its centre and cut off at the border, as in the paper."""
    sizes = inputs.shape[1:-1]
    place = [slice(None)]
    for size in sizes:
        length, centre = size * (1 - share) ** (1 / len(sizes)), rng.integers(size)
        place.append(
            slice(max(round(centre - length / 2), 0), min(round(centre + length / 2), size))
        )
    pasted = inputs.clone()
    pasted[tuple(place)] = others[tuple(place)]
    return pasted, 1 - float(
        np.prod([(s.stop - s.start) / n for s, n in zip(place[1:], sizes, strict=True)])
    )


# --------------------------------------------------------------------------------------------------
# the loss


def loss_of(outputs: Tensor, lesson: Lesson, config: RunConfig) -> Tensor:
    """The mean loss: cross-entropy of logits with classes, squared error of values with targets
    (float labels). Where each position has a class, (B, L), every position counts as a row."""
    labels = lesson.labels
    if labels.dim() == 2 and not labels.is_floating_point():
        soft = None if lesson.soft is None else lesson.soft.flatten(0, 1)
        return loss_of(
            outputs.flatten(0, 1), lesson._replace(labels=labels.flatten(), soft=soft), config
        )

    def hard(wanted: Tensor) -> Tensor:
        if wanted.is_floating_point():
            return F.mse_loss(outputs.float(), wanted)
        return F.cross_entropy(outputs, wanted, label_smoothing=config.label_smoothing)

    loss = hard(labels)
    if lesson.other is not None:
        loss = lesson.share * loss + (1 - lesson.share) * hard(lesson.other)
    if lesson.soft is None:
        return loss
    return (1 - config.teacher_weight) * loss + config.teacher_weight * distance(
        outputs, lesson, config
    )


def distance(outputs: Tensor, lesson: Lesson, config: RunConfig) -> Tensor:
    """T²·KL(teacher/T ‖ student/T), mean over the rows (Hinton et al. 2015); of values their
    squared error."""
    if lesson.labels.is_floating_point():
        return F.mse_loss(outputs.float(), lesson.soft.float())
    student, teacher = (
        (logits.float() / config.temperature).log_softmax(-1) for logits in (outputs, lesson.soft)
    )
    return config.temperature**2 * F.kl_div(
        student, teacher, reduction="batchmean", log_target=True
    )


# --------------------------------------------------------------------------------------------------
# what other runs give


def take_over(model: nn.Module, config: RunConfig, runs_dir: str | Path | None) -> None:
    """Fills the model with the weights of the run `start`; its head too if that run is of the same
    task.

    ValueError where there is no such run, one that diverged or has seen test rows of this one,
    where its model computes something else, or where a weight is missing, too many or of another
    shape."""
    if not config.start:
        return
    run = _run("start", config.start, config, runs_dir)
    for name in (*SAME_FUNCTION, *OWN_FUNCTION[config.model]):
        theirs, ours = getattr(run.config, name), getattr(config, name)
        if theirs != ours:
            raise ValueError(
                f"start: {_named(run)} has {name}={theirs!r}, this run {ours!r}: its weights mean another model"
            )
    theirs, ours = run.checkpoint, model.state_dict()
    if run.config.task != config.task:
        theirs = {name: value for name, value in theirs.items() if not name.startswith("head.")}
        theirs |= {name: value for name, value in ours.items() if name.startswith("head.")}
    _fill("start", run, model, theirs)


def teacher_of(
    config: RunConfig, build: Callable[[RunConfig], nn.Module], runs_dir: str | Path | None
) -> nn.Module | None:
    """The model of the run `teacher`, ready to be asked; None without one. `build` makes it for
    this run's data.

    ValueError where there is no such run, one that diverged, has seen test rows of this one or is
    of another task, or where its weights do not fit this run's inputs and classes."""
    if not config.teacher:
        return None
    run = _run("teacher", config.teacher, config, runs_dir)
    if run.config.task != config.task:
        raise ValueError(
            f"teacher: {_named(run)} knows nothing of {config.task}: a teacher is of the same task"
        )
    model = build(run.config.but(task=config.task, scale=config.scale, seed=config.seed))
    _fill("teacher", run, model, run.checkpoint)
    return model.eval().requires_grad_(False)


SAME_FUNCTION = ("arm", "norm_options", "stem_norm", "final_norm")
OWN_FUNCTION = {"mamba": (), "mamba2": ("n_groups",), "transformer": ("n_heads", "norm_position")}
"""What decides, beside the shapes, what weights compute: in every model, and in each besides."""


def _run(what: str, run_id: str, config: RunConfig, runs_dir: str | Path | None) -> StoredRun:
    """A run that this one may learn from."""
    from mambanorm_study.runs.store import stored_run  # here: what has no other run needs no store

    run = stored_run(run_id, runs_dir)
    if run is None:
        raise ValueError(
            f"{what}={run_id!r}: the store holds no such run, train it first (mambanorm runs lists them)"
        )
    if run.facts["status"] != "ok":
        raise ValueError(f"{what}: {_named(run)} diverged, there is nothing to learn from it")
    theirs, ours = ((c.scale, c.seed) for c in (run.config, config))
    tell = TASKS[config.task].shape
    if (
        run.config.task == config.task
        and theirs != ours
        and (tell is None or tell(config.scale).reshuffled)
    ):
        raise ValueError(
            f"{what}: {_named(run)} is of scale {theirs[0]}, seed {theirs[1]}, which deal out other rows than scale "
            f"{ours[0]}, seed {ours[1]}: it may have learned this run's test rows; take one of the same scale and seed"
        )
    return run


def _named(run: StoredRun) -> str:
    return f"run {run.config.run_id} ({run.config.task}, {run.config.arm})"


def _fill(what: str, run: StoredRun, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """ValueError, in torch's words, for the first weight that is missing, too many or of another
    shape."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(
            f"{what}: {_named(run)} does not fit: {str(error).splitlines()[1].strip()}"
        ) from None


class HeadFirst:
    """Phase 1 of fine-tuning, steps 1…head_steps: the body does not learn, and gives what it gives
    in a test."""

    def __init__(self, model: nn.Module, config: RunConfig):
        self.steps = config.head_steps
        self.body = [child for name, child in model.named_children() if name != "head"]
        self.learning = [p for child in self.body for p in child.parameters() if p.requires_grad]

    def at(self, step: int) -> None:
        """Freezes the body, or frees it; to be called after `model.train()`."""
        if not self.steps:
            return
        frozen = step <= self.steps
        for child in self.body:
            child.train(not frozen)
        for parameter in self.learning:
            parameter.requires_grad_(not frozen)


class StepDraws:
    """torch's random numbers of a step; the caller's are left alone. Opened again, for the next
    micro-batch, it goes on where it was closed."""

    def __init__(self, config: RunConfig, step: int):
        seed = np.random.SeedSequence([config.seed, step]).generate_state(1, np.uint64)[0]
        self.seed, self.state = int(seed >> 1), None

    def __enter__(self) -> None:
        self.callers = torch.get_rng_state()
        if self.state is None:
            torch.manual_seed(self.seed)
        else:
            torch.set_rng_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.state = torch.get_rng_state()
        torch.set_rng_state(self.callers)


def micro_batches(rows: int, size: int) -> list[slice]:
    """Return the slices of a batch that go through the model one after another; size 0 = one."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]
