"""The loss of a run, and what it takes over from other runs (S2, §IV.C.3).

Each part of the regimen is a field of RunConfig and off by default. Its random numbers depend on
the seed and the step alone, so a run that continues from a checkpoint is the same run.

Sources: Zhang et al. 2018 (MixUp); Yun et al. 2019 (CutMix); Szegedy et al. 2016 (label smoothing);
Hinton et al. 2015 (distillation). Averaged weights are in runs/training_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.evaluation import Batch, autocast
from mambanorm_study.tasks import TASKS
from mambanorm_study.tasks.base import Units

if TYPE_CHECKING:
    from mambanorm_study.runs.result import StoredRun


class Targets(NamedTuple):
    """The targets of a batch's outputs.

    mixed_labels: labels of the rows mixed into the batch. share: weight of the loss on `labels`;
    the loss on `mixed_labels` has weight 1 − share. teacher_outputs: the teacher's logits or
    values.
    """

    labels: Tensor
    mixed_labels: Tensor | None = None
    share: float = 1.0
    teacher_outputs: Tensor | None = None

    def rows(self, rows: slice) -> Targets:
        """Return the targets of some rows."""
        return Targets(*(part[rows] if isinstance(part, Tensor) else part for part in self))


class Loss:
    """The loss of a batch, in parts: one for each micro-batch.

    units: scale of a regression's targets. recording: returns a context manager that is opened
    around every forward pass of the trained model.
    """

    def __init__(
        self,
        config: RunConfig,
        model: nn.Module,
        *,
        teacher: nn.Module | None = None,
        units: Units | None = None,
        recording: Callable[[], AbstractContextManager] = nullcontext,
    ):
        self.config, self.teacher, self.units, self.recording = config, teacher, units, recording
        self.body = [child for name, child in model.named_children() if name != "head"]
        self.body_parameters = [
            parameter
            for child in self.body
            for parameter in child.parameters()
            if parameter.requires_grad
        ]

    def __call__(self, model: nn.Module, batch: Batch, step: int) -> Iterator[Tensor]:
        inputs, lengths, labels = batch
        labels = labels if self.units is None else self.units.scaled(labels)
        inputs, targets = mix_rows(inputs, lengths, labels, self.config, step)
        precision = autocast(self.config, inputs.device)
        if self.teacher is not None:
            with torch.no_grad(), precision:
                outputs = self.teacher(inputs, lengths).float()
            targets = targets._replace(teacher_outputs=outputs)
        if self.config.head_steps:
            self._freeze_body(step <= self.config.head_steps)
        for rows in micro_batches(len(labels), self.config.micro_batch):
            part = targets.rows(rows)
            random_numbers = seeded_numbers(self.config, step, rows.start)
            # all contexts are closed before the backward pass, which may raise
            with self.recording(), random_numbers, precision:
                outputs = model(inputs[rows], None if lengths is None else lengths[rows])
                loss = loss_of(outputs, part, self.config) * (len(part.labels) / len(labels))
            yield loss

    def _freeze_body(self, is_frozen: bool) -> None:
        """Freeze or free all of the model but its head, after `model.train()`."""
        for child in self.body:
            child.train(not is_frozen)
        for parameter in self.body_parameters:
            parameter.requires_grad_(not is_frozen)


@contextmanager
def seeded_numbers(config: RunConfig, step: int, row: int) -> Iterator[None]:
    """Let drop path draw random numbers that depend on seed, step and first row of a micro-batch.

    The caller's random state is restored.
    """
    if config.drop_path:
        with torch.random.fork_rng(devices=[]):
            seed = np.random.SeedSequence([config.seed, step, row]).generate_state(1, np.uint64)[0]
            torch.manual_seed(int(seed >> 1))
            yield
    else:
        yield


# --------------------------------------------------------------------------------------------------
# mixing


def mix_rows(
    inputs: Tensor, lengths: Tensor | None, labels: Tensor, config: RunConfig, step: int
) -> tuple[Tensor, Targets]:
    """Return the inputs of a step, (B, L, F) or (B, H, W, C), each row mixed with another row.

    If MixUp and CutMix are both on, each step uses one of them at random. Raises ValueError for
    token ids, which have no mean, and for rows with padding.
    """
    if not (config.mixup or config.cutmix):
        return inputs, Targets(labels)
    if lengths is not None or not inputs.is_floating_point():
        raise ValueError(
            f"mixup and cutmix mix numbers, and {config.task} has token ids or padding: "
            "set both to 0"
        )
    rng = np.random.default_rng([config.seed, step])
    order = torch.as_tensor(rng.permutation(len(labels)), device=labels.device)
    use_cutmix = config.cutmix and (not config.mixup or rng.random() < 0.5)
    alpha = config.cutmix if use_cutmix else config.mixup
    share = float(rng.beta(alpha, alpha))
    if use_cutmix:
        inputs, share = _paste_box(inputs, inputs[order], share, rng)
    else:
        inputs = share * inputs + (1 - share) * inputs[order]
    return inputs, Targets(labels, labels[order], share)


def _paste_box(
    inputs: Tensor, pasted: Tensor, share: float, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """Return inputs with a box of about 1 − share of the positions replaced, and the exact share.

    The box is placed by its centre and cut off at the border, as in the paper.
    """
    sizes = inputs.shape[1:-1]
    box, pasted_share = [slice(None)], 1.0
    for size in sizes:
        length, centre = size * (1 - share) ** (1 / len(sizes)), rng.integers(size)
        start, stop = max(round(centre - length / 2), 0), min(round(centre + length / 2), size)
        box.append(slice(start, stop))
        pasted_share *= (stop - start) / size
    inputs = inputs.clone()
    inputs[tuple(box)] = pasted[tuple(box)]
    return inputs, 1 - pasted_share


# --------------------------------------------------------------------------------------------------
# the loss


def loss_of(outputs: Tensor, targets: Targets, config: RunConfig) -> Tensor:
    """Return the mean loss: cross-entropy of logits, or squared error of values."""
    loss = label_loss(outputs, targets.labels, config)
    if targets.mixed_labels is not None:
        mixed_loss = label_loss(outputs, targets.mixed_labels, config)
        loss = targets.share * loss + (1 - targets.share) * mixed_loss
    if targets.teacher_outputs is not None:
        weight = config.teacher_weight
        loss = (1 - weight) * loss + weight * distillation_loss(outputs, targets, config)
    return loss


def label_loss(outputs: Tensor, labels: Tensor, config: RunConfig) -> Tensor:
    """Return the mean cross-entropy for classes, (B,) or (B, L), or squared error for floats."""
    if labels.is_floating_point():
        return F.mse_loss(outputs.float(), labels)
    smoothing = config.label_smoothing
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)


def distillation_loss(outputs: Tensor, targets: Targets, config: RunConfig) -> Tensor:
    """Return T²·KL(teacher/T ‖ student/T), the mean over rows or positions (Hinton et al. 2015).

    For real-valued targets, return the mean squared difference.
    """
    if targets.labels.is_floating_point():
        return F.mse_loss(outputs.float(), targets.teacher_outputs.float())
    student, teacher = (
        (logits.float().flatten(0, -2) / config.temperature).log_softmax(-1)
        for logits in (outputs, targets.teacher_outputs)
    )
    divergence = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return config.temperature**2 * divergence


# --------------------------------------------------------------------------------------------------
# weights and teachers from other runs

# Model → config fields that decide, besides the shapes, what the model's weights compute.
FUNCTION_FIELDS = {
    "mamba": ("arm", "norm_options", "stem_norm", "final_norm"),
    "mamba2": ("arm", "norm_options", "stem_norm", "final_norm", "n_groups"),
    "transformer": ("arm", "norm_options", "stem_norm", "final_norm", "n_heads", "norm_position"),
}


def load_start_weights(model: nn.Module, config: RunConfig, runs_dir: str | Path | None) -> None:
    """Load the weights of the run `config.start`; those of its head only if the task is the same.

    Raises ValueError if the run does not exist, diverged, may have seen test rows of this run,
    computes another function, or does not have exactly the model's weights.
    """
    if not config.start:
        return
    run = _find_source("start", config.start, config, runs_dir)
    for name in FUNCTION_FIELDS[config.model]:
        source_value, value = getattr(run.config, name), getattr(config, name)
        if source_value != value:
            raise ValueError(
                f"start: {_describe(run)} has {name}={source_value!r}, this run {value!r}: "
                "its weights mean another model"
            )
    weights = {name: w for name, w in model.state_dict().items() if name.startswith("head.")}
    for name, weight in run.checkpoint.items():
        if run.config.task == config.task or not name.startswith("head."):
            weights[name] = weight
    _load_weights("start", run, model, weights)


def load_teacher(
    config: RunConfig, build: Callable[[RunConfig], nn.Module], runs_dir: str | Path | None
) -> nn.Module | None:
    """Return the model of the run `config.teacher` in eval mode, None if the config names none.

    build: makes a model for this run's data. Raises ValueError if the run does not exist, diverged,
    may have seen test rows of this run, is of another task, or does not fit inputs and classes.
    """
    if not config.teacher:
        return None
    run = _find_source("teacher", config.teacher, config, runs_dir)
    if run.config.task != config.task:
        raise ValueError(
            f"teacher: {_describe(run)} knows nothing of {config.task}: "
            "a teacher is of the same task"
        )
    model = build(run.config.but(task=config.task, scale=config.scale, seed=config.seed))
    _load_weights("teacher", run, model, run.checkpoint)
    return model.eval().requires_grad_(False)


def _find_source(
    field: str, run_id: str, config: RunConfig, runs_dir: str | Path | None
) -> StoredRun:
    """Return the stored run that `field` names. Raise ValueError if this run may not use it."""
    from mambanorm_study.runs.store import stored_run  # most runs need no store

    run = stored_run(run_id, runs_dir)
    if run is None:
        raise ValueError(
            f"{field}={run_id!r}: the store holds no such run, "
            "train it first (mambanorm runs lists them)"
        )
    if run.facts["status"] != "ok":
        raise ValueError(f"{field}: {_describe(run)} diverged, there is nothing to learn from it")
    shape = TASKS[config.task].shape
    has_same_split = (run.config.scale, run.config.seed) == (config.scale, config.seed)
    is_reshuffled = shape is None or shape(config.scale).reshuffled
    if run.config.task == config.task and not has_same_split and is_reshuffled:
        raise ValueError(
            f"{field}: {_describe(run)} has scale {run.config.scale}, seed {run.config.seed}, "
            f"and this run scale {config.scale}, seed {config.seed}, which split the data "
            "differently: it may have learned this run's test rows; take one of the same scale "
            "and seed"
        )
    return run


def _describe(run: StoredRun) -> str:
    return f"run {run.config.run_id} ({run.config.task}, {run.config.arm})"


def _load_weights(field: str, run: StoredRun, model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights. Raise ValueError with the first problem that torch names."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = str(error).splitlines()[1].strip()
        raise ValueError(f"{field}: {_describe(run)} does not fit: {problem}") from None


def micro_batches(rows: int, size: int) -> list[slice]:
    """Return the slices of a batch that go through the model one after another; size 0 = one."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]
