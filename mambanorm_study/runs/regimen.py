"""Computes the loss of a run with a training regimen, and loads the weights of stored runs.

The regimen (MixUp, CutMix, label smoothing, distillation and more) is that of source S2
(docs/sources.md), §IV.C.3. Each part of the regimen is a field of RunConfig and off by default. The
random numbers of the regimen depend on the seed, the step and the rows alone, so a run that
continues from a checkpoint has the same result as a run that was not interrupted.

Sources: Zhang et al. 2018 (MixUp); Yun et al. 2019 (CutMix); Szegedy et al. 2016 (label smoothing);
Hinton et al. 2015 (distillation). The weights are averaged in runs/training_state.py.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.evaluation import Batch, autocast
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.runs.store import find_run
from mambanorm_study.tasks import TASKS
from mambanorm_study.tasks.base import Units


class Targets(NamedTuple):
    """The targets with which a batch's outputs are compared.

    mixed_labels: labels of the rows that are mixed into the batch. share: weight of the loss on
    `labels`; the loss on `mixed_labels` has the weight 1 − share. teacher_outputs: the teacher's
    logits, or in a regression the teacher's values.
    """

    labels: Tensor
    mixed_labels: Tensor | None = None
    share: float = 1.0
    teacher_outputs: Tensor | None = None

    def rows(self, rows: slice) -> Self:
        """Return the targets of a slice of the batch's rows."""
        return Targets(*(part[rows] if isinstance(part, Tensor) else part for part in self))


def loss_parts(
    config: RunConfig,
    teacher: nn.Module | None,
    units: Units | None,
    recording: Callable[[], AbstractContextManager],
    model: nn.Module,
    batch: Batch,
    step: int,
) -> Iterator[Tensor]:
    """Yield one part of the loss per micro-batch. The parts add up to the mean loss of the batch.

    teacher: None trains without a teacher. units: scale of a regression's targets; None for
    classes. recording: makes the context manager that is open during each forward pass of `model`.
    """
    inputs, lengths, labels = batch
    labels = labels if units is None else units.standardize(labels)
    inputs, targets = mix_rows(inputs, lengths, labels, config, step)
    precision = autocast(config, inputs.device)
    if teacher is not None:
        with torch.no_grad(), precision:
            outputs = teacher(inputs, lengths).float()
        targets = targets._replace(teacher_outputs=outputs)
    freeze = freeze_all_but_head if step <= config.head_steps else nullcontext
    for rows in micro_batches(len(labels), config.micro_batch):
        part = targets.rows(rows)
        # drop path's random numbers depend on the seed, the step and the part's first row alone
        random_state = torch.random.fork_rng(devices=[], enabled=config.drop_path > 0)
        seed_sequence = np.random.SeedSequence([config.seed, step, rows.start])
        # the contexts are closed before the caller's backward pass, which may raise an error
        with recording(), random_state, precision, freeze(model):
            if config.drop_path > 0:
                torch.manual_seed(int(seed_sequence.generate_state(1, np.uint64)[0] >> 1))
            outputs = model(inputs[rows], None if lengths is None else lengths[rows])
            loss = loss_of(outputs, part, config) * (len(part.labels) / len(labels))
        yield loss


@contextmanager
def freeze_all_but_head(model: nn.Module) -> Iterator[None]:
    """Inside the `with`, freeze all modules of a classifier except the head.

    The frozen modules get no gradients and are in eval mode, so their running statistics do not
    change. Afterwards they are in training mode.
    """
    body = [child for name, child in model.named_children() if name != "head"]
    for child in body:
        child.eval()
    try:
        with model.head.register_forward_pre_hook(lambda head, inputs: (inputs[0].detach(),)):
            yield
    finally:
        for child in body:
            child.train()


# --------------------------------------------------------------------------------------------------
# MixUp and CutMix


def mix_rows(
    inputs: Tensor, lengths: Tensor | None, labels: Tensor, config: RunConfig, step: int
) -> tuple[Tensor, Targets]:
    """Return the inputs of a step, with each row mixed with another row, and their `Targets`.

    inputs: (B, L, F) or (B, H, W, C); the returned inputs have the same shape. If MixUp and CutMix
    are both on, each step uses one of them at random; if both are off, rows are not mixed. If one
    is on, raises ValueError for token ids, which cannot be averaged, and for rows with padding.
    """
    if not (config.mixup or config.cutmix):
        return inputs, Targets(labels)
    if lengths is not None or not inputs.is_floating_point():
        raise ValueError(
            f"mixup and cutmix mix real-valued inputs without padding, and {config.task} has token "
            "ids or padding: set both to 0"
        )
    rng = np.random.default_rng([config.seed, step])
    other_rows = torch.as_tensor(rng.permutation(len(labels)), device=labels.device)
    use_cutmix = config.cutmix and (not config.mixup or rng.random() < 0.5)
    alpha = config.cutmix if use_cutmix else config.mixup
    share = float(rng.beta(alpha, alpha))
    if use_cutmix:
        inputs, share = _paste_box(inputs, inputs[other_rows], share, rng)
    else:
        inputs = share * inputs + (1 - share) * inputs[other_rows]
    return inputs, Targets(labels, labels[other_rows], share)


def _paste_box(
    inputs: Tensor, other_inputs: Tensor, share: float, rng: np.random.Generator
) -> tuple[Tensor, float]:
    """Return `inputs` with a box of `other_inputs`, and the share of positions outside the box.

    The box has about 1 − share of the positions. Its centre is drawn at random, and a part of
    the box beyond the border of the image or sequence is cut off, as in the CutMix paper.
    """
    sizes = inputs.shape[1:-1]
    box, pasted_share = [slice(None)], 1.0
    for size in sizes:
        length, centre = size * (1 - share) ** (1 / len(sizes)), rng.integers(size)
        start, stop = max(round(centre - length / 2), 0), min(round(centre + length / 2), size)
        box.append(slice(start, stop))
        pasted_share *= (stop - start) / size
    inputs = inputs.clone()
    inputs[tuple(box)] = other_inputs[tuple(box)]
    return inputs, 1 - pasted_share


# --------------------------------------------------------------------------------------------------
# the loss of a batch


def loss_of(outputs: Tensor, targets: Targets, config: RunConfig) -> Tensor:
    """Return the mean loss of a batch or micro-batch.

    The loss is a weighted mean of the losses on the labels, on the mixed labels and on the
    teacher's outputs, as far as `targets` has them.
    """
    loss = label_loss(outputs, targets.labels, config)
    if targets.mixed_labels is not None:
        mixed_loss = label_loss(outputs, targets.mixed_labels, config)
        loss = targets.share * loss + (1 - targets.share) * mixed_loss
    if targets.teacher_outputs is not None:
        weight = config.teacher_weight
        loss = (1 - weight) * loss + weight * distillation_loss(outputs, targets, config)
    return loss


def label_loss(outputs: Tensor, labels: Tensor, config: RunConfig) -> Tensor:
    """Return the mean squared error if the labels are floats, else the mean cross-entropy."""
    if labels.is_floating_point():
        return nn.functional.mse_loss(outputs.float(), labels)
    return nn.functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), label_smoothing=config.label_smoothing
    )


def distillation_loss(outputs: Tensor, targets: Targets, config: RunConfig) -> Tensor:
    """Return T²·KL(softmax(teacher/T) ‖ softmax(student/T)), averaged over rows or positions.

    teacher, student: the logits of the two models. T: the temperature (Hinton et al. 2015). In a
    regression, return the mean squared difference between the outputs of teacher and student.
    """
    if targets.labels.is_floating_point():
        return nn.functional.mse_loss(outputs.float(), targets.teacher_outputs.float())
    student, teacher = (
        (logits.float().flatten(0, -2) / config.temperature).log_softmax(-1)
        for logits in (outputs, targets.teacher_outputs)
    )
    divergence = nn.functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return config.temperature**2 * divergence


# --------------------------------------------------------------------------------------------------
# initial weights and teachers from stored runs

# Config fields that change what a model computes with given weights.
FUNCTION_FIELDS = (
    *("model", "arm", "norm_options", "stem_norm", "final_norm"),
    *("n_groups", "n_heads", "norm_position"),
)

# Prefixes of the weights whose shapes depend on the sizes of a task's inputs.
PARTS_OF_INPUTS = ("stem.", "positional.")


def load_start_weights(model: nn.Module, config: RunConfig, runs_dir: str | Path | None) -> None:
    """Load the weights of the stored run `config.start` into a model, unless `start` is empty.

    If the stored run has another task, the head keeps its new weights, and so does a stem or a
    positional encoding whose shape differs, because the inputs have other sizes (patches of 3×3 and
    of 2×2 pixels). Raises ValueError if the stored run cannot be used (`source_run`), if the stored
    weights do not fit into the model, or if the models of both runs compute different functions
    with the same weights.
    """
    if not config.start:
        return
    run, description = source_run("start", config, runs_dir)
    different = [f for f in FUNCTION_FIELDS if getattr(run.config, f) != getattr(config, f)]
    if different:
        raise ValueError(
            f"{description} differs from this run in {', '.join(different)}: "
            "its weights belong to another model"
        )
    weights = run.checkpoint
    if run.config.task != config.task:
        weights = keep_new_parts(model.state_dict(), weights)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first_problem = str(error).splitlines()[1].strip()
        raise ValueError(f"{description} does not fit: {first_problem}") from None


def keep_new_parts(new: dict[str, Tensor], stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the stored weights of another task's model, with the new weights of the head and of
    each part in PARTS_OF_INPUTS that has other shapes in the two models.
    """
    new_parts = ["head."]
    for part in PARTS_OF_INPUTS:
        new_shapes, stored_shapes = (
            {key: w.shape for key, w in weights.items() if key.startswith(part)}
            for weights in (new, stored)
        )
        if new_shapes.keys() == stored_shapes.keys() and new_shapes != stored_shapes:
            new_parts.append(part)
    return stored | {key: w for key, w in new.items() if key.startswith(tuple(new_parts))}


def load_teacher(
    config: RunConfig, build: Callable[[RunConfig], nn.Module], runs_dir: str | Path | None
) -> nn.Module | None:
    """Return the model of the stored run `config.teacher` in eval mode; None if `teacher` is empty.

    build: makes the model of a config for the data of `config`. Raises ValueError if the stored run
    cannot be used (`source_run`) or has another task.
    """
    if not config.teacher:
        return None
    run, description = source_run("teacher", config, runs_dir)
    if run.config.task != config.task:
        raise ValueError(f"{description} was not trained on {config.task}, the task of this run")
    model = build(run.config.but(scale=config.scale, seed=config.seed))
    model.load_state_dict(run.checkpoint)
    return model.eval().requires_grad_(False)


def source_run(field: str, config: RunConfig, runs_dir: str | Path | None) -> tuple[StoredRun, str]:
    """Return the stored run that a config names in `field`, and a description of the stored run.

    field: "start" or "teacher". Raises ValueError if the stored run does not exist, diverged, or
    may have been trained on rows that are test rows in the run of `config`.
    """
    run_id = getattr(config, field)
    run = find_run(run_id, runs_dir)
    if run is None:
        raise ValueError(
            f"{field}={run_id!r}: the store holds no such run, train it first "
            "(`mambanorm runs` lists the stored runs)"
        )
    description = f"{field}: run {run_id} ({run.config.task}, {run.config.arm})"
    if run.facts["status"] != "ok":
        raise ValueError(f"{description} diverged, so there is nothing to learn from it")
    shape = TASKS[config.task].shape
    is_reshuffled = shape is None or shape(config.scale).reshuffled
    has_same_split = (run.config.scale, run.config.seed) == (config.scale, config.seed)
    if run.config.task == config.task and is_reshuffled and not has_same_split:
        raise ValueError(
            f"{description} has scale {run.config.scale}, seed {run.config.seed}, and this run has "
            f"scale {config.scale}, seed {config.seed}, so their data are split differently: that "
            "run may have learned this run's test rows; take a run of the same scale and seed"
        )
    return run, description


def micro_batches(rows: int, size: int) -> list[slice]:
    """Return slices that divide `rows` rows into parts of at most `size` rows; size 0: one part."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]
