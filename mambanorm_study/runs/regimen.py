"""The loss of a run with the regimen of S2, §IV.C.3, and weights and teachers from stored runs.

Each part of the regimen is a field of RunConfig and off by default. Its random numbers depend on
the seed and the step alone, so a run that continues from a checkpoint is the same run.

Sources: Zhang et al. 2018 (MixUp); Yun et al. 2019 (CutMix); Szegedy et al. 2016 (label smoothing);
Hinton et al. 2015 (distillation). Averaged weights are in runs/training_state.py.
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
    """The targets of a batch's outputs.

    mixed_labels: labels of the rows mixed into the batch. share: weight of the loss on `labels`;
    the loss on `mixed_labels` has weight 1 − share. teacher_outputs: the teacher's logits or
    values.
    """

    labels: Tensor
    mixed_labels: Tensor | None = None
    share: float = 1.0
    teacher_outputs: Tensor | None = None

    def rows(self, rows: slice) -> Self:
        """Return the targets of some rows."""
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
    """Yield the parts of a batch's loss, one for each micro-batch; their sum is the mean loss.

    units: scale of a regression's targets. recording: returns a context manager that is open during
    each forward pass of the trained model.
    """
    inputs, lengths, labels = batch
    labels = labels if units is None else units.standardize(labels)
    inputs, targets = mix_rows(inputs, lengths, labels, config, step)
    precision = autocast(config, inputs.device)
    if teacher is not None:
        with torch.no_grad(), precision:
            outputs = teacher(inputs, lengths).float()
        targets = targets._replace(teacher_outputs=outputs)
    frozen = head_only if step <= config.head_steps else nullcontext
    for rows in micro_batches(len(labels), config.micro_batch):
        part = targets.rows(rows)
        # drop path draws random numbers that depend on seed, step and first row alone
        random_state = torch.random.fork_rng(devices=[], enabled=config.drop_path > 0)
        seeds = np.random.SeedSequence([config.seed, step, rows.start])
        # all contexts are closed before the backward pass, which may raise
        with recording(), random_state, precision, frozen(model):
            if config.drop_path > 0:
                torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0] >> 1))
            outputs = model(inputs[rows], None if lengths is None else lengths[rows])
            loss = loss_of(outputs, part, config) * (len(part.labels) / len(labels))
        yield loss


@contextmanager
def head_only(model: nn.Module) -> Iterator[None]:
    """Freeze all of a classifier but its head inside the `with`.

    The frozen part gets no gradients, and is in eval mode, so running statistics stay as they are.
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
        return nn.functional.mse_loss(outputs.float(), labels)
    return nn.functional.cross_entropy(
        outputs.flatten(0, -2), labels.flatten(), label_smoothing=config.label_smoothing
    )


def distillation_loss(outputs: Tensor, targets: Targets, config: RunConfig) -> Tensor:
    """Return T²·KL(teacher/T ‖ student/T), the mean over rows or positions (Hinton et al. 2015).

    For real-valued targets, return the mean squared difference.
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
# weights and teachers from stored runs

# Config fields that decide, besides the shapes, what a model computes with its weights.
FUNCTION_FIELDS = (
    *("model", "arm", "norm_options", "stem_norm", "final_norm"),
    *("n_groups", "n_heads", "norm_position"),
)


def load_start_weights(model: nn.Module, config: RunConfig, runs_dir: str | Path | None) -> None:
    """Load the weights of the run `config.start`; the head's only if the task is the same.

    Raises ValueError if the run cannot be used (`source_run`), or if its model computes another
    function or has other weights.
    """
    if not config.start:
        return
    run, name = source_run("start", config, runs_dir)
    different = [f for f in FUNCTION_FIELDS if getattr(run.config, f) != getattr(config, f)]
    if different:
        raise ValueError(
            f"{name} differs from this run in {', '.join(different)}: "
            "its weights mean another model"
        )
    weights = run.checkpoint
    if run.config.task != config.task:
        weights |= {key: w for key, w in model.state_dict().items() if key.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        first_problem = str(error).splitlines()[1].strip()
        raise ValueError(f"{name} does not fit: {first_problem}") from None


def load_teacher(
    config: RunConfig, build: Callable[[RunConfig], nn.Module], runs_dir: str | Path | None
) -> nn.Module | None:
    """Return the model of the run `config.teacher` in eval mode, None if the config names none.

    build: makes a model for this run's data. Raises ValueError if the run cannot be used
    (`source_run`) or is of another task.
    """
    if not config.teacher:
        return None
    run, name = source_run("teacher", config, runs_dir)
    if run.config.task != config.task:
        raise ValueError(f"{name} was not trained on {config.task}, the task of this run")
    model = build(run.config.but(scale=config.scale, seed=config.seed))
    model.load_state_dict(run.checkpoint)
    return model.eval().requires_grad_(False)


def source_run(field: str, config: RunConfig, runs_dir: str | Path | None) -> tuple[StoredRun, str]:
    """Return the stored run that a config names in `field`, and its name for error messages.

    Raises ValueError if the run does not exist, diverged, or may have seen this run's test rows.
    """
    run_id = getattr(config, field)
    run = find_run(run_id, runs_dir)
    if run is None:
        raise ValueError(
            f"{field}={run_id!r}: the store holds no such run, "
            "train it first (mambanorm runs lists them)"
        )
    name = f"{field}: run {run_id} ({run.config.task}, {run.config.arm})"
    if run.facts["status"] != "ok":
        raise ValueError(f"{name} diverged, there is nothing to learn from it")
    shape = TASKS[config.task].shape
    is_reshuffled = shape is None or shape(config.scale).reshuffled
    has_same_split = (run.config.scale, run.config.seed) == (config.scale, config.seed)
    if run.config.task == config.task and is_reshuffled and not has_same_split:
        raise ValueError(
            f"{name} has scale {run.config.scale}, seed {run.config.seed}, and this run scale "
            f"{config.scale}, seed {config.seed}, which split the data differently: it may have "
            "learned this run's test rows; take one of the same scale and seed"
        )
    return run, name


def micro_batches(rows: int, size: int) -> list[slice]:
    """Return the slices of a batch that go through the model one after another; size 0 = one."""
    return [slice(start, start + (size or rows)) for start in range(0, rows, size or rows)]
