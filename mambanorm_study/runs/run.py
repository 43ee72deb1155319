"""Trains and tests one run: from RunConfig to RunResult. The loop itself is mambanorm/loop.py.

Divergence is a result, not an exception: the run stops at the first non-finite loss or gradient,
records the step and the first non-finite site (a tensor inside the model, the logits, a gradient or
the loss), and gets the accuracy of chance. Validation selects the weights that are tested; the test
split is used once.

Comparisons are paired: the seed alone decides the initial weights of every shared parameter, the
batch order and, on the small tasks, the split. Two arms (e.g. RMSN>SSM>None and RMSN>SSM>GN: the
norms before and after the SSM) with the same seed differ only in their norms.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.inside import record_sites
from mambanorm.kernels import graph_step
from mambanorm.kernels.threads import exactly_threads
from mambanorm.loop import batch_order, fit, learning_rate
from mambanorm.operations import scan_backend
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import machine, regimen, ssm_parameters
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import Batch, accuracy, autocast, errors, predict, to_device
from mambanorm_study.runs.result import RunResult
from mambanorm_study.runs.training_state import Checkpoint, TrainingState
from mambanorm_study.tasks import Shape, TaskData, load_task
from mambanorm_study.tasks.base import Units

# True if `cuda_graph="auto"` replays steps on CUDA. Changing it changes no run_id.
GRAPH_BY_DEFAULT = True
# Largest share of positions that padding every batch to the same length may add.
MOST_PADDING = 0.25
# Fields with which a step depends on its number or on random numbers that the CPU draws.
CHANGING_STEPS = ("mixup", "cutmix", "drop_path", "head_steps")

StepCallback = Callable[[int, nn.Module, float], None]


def train(
    config: RunConfig,
    *,
    on_step: StepCallback | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every_s: float = 300.0,
    runs_dir: str | Path | None = None,
) -> RunResult:
    """Train the model of a config and test it once. Return the result of the run.

    on_step(step, model, loss): called after each optimizer step with the step's training loss.
    checkpoint_dir: folder in which a checkpoint is saved every `checkpoint_every_s` seconds. If the
    folder has a checkpoint, the run continues from there to the same result, bit for bit
    (runs/training_state.py). The result's `wall_s` does not count work that was lost after the
    checkpoint.
    runs_dir: the store with the runs that the config names as `teacher` or `start`; None means the
    default store.

    Uses `config.threads` threads and torch's default settings, whatever the caller has set. Raises
    ValueError for a config that cannot be run (unknown task, norm that does not fit, a batch larger
    than the data, more threads than the machine has), TypeError if `config` is not a RunConfig.
    Divergence raises no exception.
    """
    check_kind("config", config, RunConfig, "base_config")
    with exactly_threads(config.threads), plain_torch():
        device = machine.pick_device(config.device)
        memory = machine.PeakMemory(device)
        data = load_task(config.task, config.scale, config.seed)
        rows_used = check_data(config, data)
        model = build_model(config, data)
        regimen.load_start_weights(model, config, runs_dir)
        teacher = regimen.load_teacher(
            config, lambda teacher: build_model(teacher, data).to(device), runs_dir
        )
        state = TrainingState(
            model.to(device), config, by_loss=data.units is not None or data.per_position
        )
        checkpoint = Checkpoint(checkpoint_dir, checkpoint_every_s, config.run_id, state)
        checkpoint.load()
        if not state.curve:
            state.log.snapshot(0)

        diverged_batch = None
        cuda_graph = uses_cuda_graph(config, data, rows_used, device)
        units = None if data.units is None else Units(*(part.to(device) for part in data.units))
        # the checkpoint may be from a run that had no patience left
        if not is_out_of_patience(state, config):
            diverged_batch = fit(
                model,
                state.optimizer,
                remaining_batches(config, data, rows_used, device, state, cut=not cuda_graph),
                partial(regimen.loss_parts, config, teacher, units, state.log.recording_outputs),
                lr_of=partial(
                    learning_rate,
                    lr=config.lr,
                    steps=config.steps,
                    warmup_steps=config.warmup_steps,
                    schedule=config.schedule,
                ),
                curve=state.curve,
                callbacks=[partial(after_step, config, data, device, state, on_step, checkpoint)],
                clip=config.clip or math.inf,
                cuda_graph=cuda_graph,
            )
        return _test(config, data, device, state, diverged_batch, memory)


def _test(
    config: RunConfig,
    data: TaskData,
    device: torch.device,
    state: TrainingState,
    diverged_batch: Batch | None,
    memory: machine.PeakMemory,
) -> RunResult:
    """Test the best weights of a run whose training has ended. Return the run's result.

    diverged_batch: the batch of the step that diverged, or None.
    """
    site = (
        None
        if diverged_batch is None
        else nonfinite_site(state.model, diverged_batch, config, len(state.curve))
    )
    wall_s = state.seconds
    model = state.evaluated_model
    if state.best.weights is not None:
        model.load_state_dict(state.best.weights)
    return result_of(
        config,
        data,
        state,
        predict(model, data.test, config, device, data.units),
        site,
        wall_s=wall_s,
        tokens_per_s=state.tokens / wall_s,
        peak_memory_mb=memory.growth(),
        backend=scan_backend(torch.empty(0, device=device)),
    )


def remaining_batches(
    config: RunConfig,
    data: TaskData,
    rows_used: int,
    device: torch.device,
    state: TrainingState,
    *,
    cut: bool = True,
) -> Iterator[Batch]:
    """Yield the batches of the remaining steps, and count their positions in `state.tokens`.

    cut: see `Split.batch`.
    """
    order = batch_order(config.seed, rows_used, config.batch_size, config.steps)
    for rows in islice(order, len(state.curve), None):
        batch = data.train.batch(rows, cut=cut)
        state.tokens += count_positions(*batch[:2], data.patch)  # on the CPU: needs no GPU to wait
        yield to_device(batch, device)


def uses_cuda_graph(
    config: RunConfig, data: TaskData, rows_used: int, device: torch.device
) -> bool:
    """Return True if `fit` is to replay the steps of a run as CUDA graphs.

    If `config.cuda_graph` asks for it and the run does not fit, a warning says why. Rows of
    different lengths fit if padding all batches to the longest row of the split costs little: norms
    leave padding out of their statistics, so only rounding changes. `fit` finds further reasons.
    """
    is_wanted = config.cuda_graph == "on" or (config.cuda_graph == "auto" and GRAPH_BY_DEFAULT)
    if not is_wanted or (device.type != "cuda" and config.cuda_graph == "auto"):
        return False
    changing = [f"{name}={value}" for name in CHANGING_STEPS if (value := getattr(config, name))]
    if changing:
        graph_step.report(f"with {changing[0]}, not every step computes the same")
        return False
    if data.train.lengths is not None:
        longest = torch.quantile(
            data.train.lengths[:rows_used].double(), 1 - 1 / config.batch_size
        )  # about the longest row of a batch
        added = data.train.inputs.shape[1] / float(longest) - 1
        if added > MOST_PADDING:
            graph_step.report(f"batches of the same length would have {added:.0%} more positions")
            return False
    return True


def after_step(
    config: RunConfig,
    data: TaskData,
    device: torch.device,
    state: TrainingState,
    on_step: StepCallback | None,
    checkpoint: Checkpoint,
    step: int,
) -> bool:
    """Record a step; evaluate and save a checkpoint when due. Return True if the run ends early."""
    row = state.curve[-1]
    if config.a_floor and step > config.head_steps:
        ssm_parameters.apply_floor(state.model, config.a_floor)
    if state.averaged is not None:
        state.averaged.update_parameters(state.model)
    state.log.record_step(step)
    if on_step is not None:
        on_step(step, state.model, row["train_loss"])
    if step % config.eval_every == 0 or step == config.steps:
        predictions = predict(state.evaluated_model, data.val, config, device, data.units)
        row.update(val_loss=float(predictions["loss"].mean()), val_accuracy=accuracy(predictions))
        state.best.update(row, state.evaluated_model)
        state.log.snapshot(step)
    checkpoint(step)
    return is_out_of_patience(state, config)


def is_out_of_patience(state: TrainingState, config: RunConfig) -> bool:
    """Return True if none of the last `patience` evaluations was a new best, and patience > 0."""
    return 0 < config.patience <= state.best.worse_evaluations


def result_of(
    config: RunConfig,
    data: TaskData,
    state: TrainingState,
    predictions: dict[str, np.ndarray],
    nonfinite_site: str | None,
    **measured: float | str,
) -> RunResult:
    """Return the result of a run, made from its last state and its test predictions.

    nonfinite_site: name of the first non-finite tensor; None if the run did not diverge. measured:
    the fields wall_s, tokens_per_s, peak_memory_mb and backend of the result.
    """
    diverged = nonfinite_site is not None
    curve, best, model = state.curve, state.best, state.evaluated_model
    return RunResult(
        config=config,
        status="diverged" if diverged else "ok",
        test_accuracy=data.chance if diverged else accuracy(predictions),
        val_accuracy=data.chance if diverged else curve[-1]["val_accuracy"],
        best_val_accuracy=best.accuracy,
        best_step=best.step,
        best_val_loss=curve[best.step - 1]["val_loss"] if best.step else None,
        chance=data.chance,
        steps=len(curve) - diverged,
        first_nonfinite_step=len(curve) if diverged else None,
        first_nonfinite_site=nonfinite_site,
        threads=config.threads,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        versions=machine.versions(),
        git_commit=machine.git_commit(),
        machine=machine.machine(),
        curves=pd.DataFrame(curve).reindex(
            columns=["step", "train_loss", "grad_norm", "lr", "val_loss", "val_accuracy"]
        ),
        test_loss=data.chance_loss
        if diverged and data.per_position
        else float(predictions["loss"].mean()),
        chance_loss=data.chance_loss,
        **errors(predictions),
        predictions=predictions,
        diagnostics=state.log.arrays(),
        checkpoint={
            name: value.detach().cpu().clone() for name, value in model.state_dict().items()
        },
        **measured,
    )


@torch.no_grad()
def nonfinite_site(model: nn.Module, batch: Batch, config: RunConfig, step: int) -> str:
    """Return the name of the first non-finite tensor in the step that diverged on this batch.

    The result is the name of a site in the model, "logits", "gradient of <parameter>" or "loss".
    Tensors are searched in the order of computation: the forward pass, then the backward pass.
    """
    inputs, lengths, _ = batch
    inputs, _ = regimen.mix_rows(*batch, config, step)
    model.train()
    for part in regimen.micro_batches(len(inputs), config.micro_batch):
        with record_sites(model) as recorded, autocast(config, inputs.device):
            logits = model(inputs[part], None if lengths is None else lengths[part])
        site = recorded.first_nonfinite()
        if site:
            return site
        if not logits.isfinite().all():
            return "logits"
    gradients = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and not parameter.grad.isfinite().all()
    ]
    return f"gradient of {gradients[-1]}" if gradients else "loss"


def check_data(config: RunConfig, data: TaskData | Shape) -> int:
    """Return the number of training rows that a run uses; 0 if `data`, a Shape, does not state it.

    Raises ValueError if the config does not fit the data.
    """
    if data.targets and config.label_smoothing:
        raise ValueError(
            f"label_smoothing={config.label_smoothing} smooths classes, "
            f"and {config.task} is a regression"
        )
    if data.per_position and config.head_steps:
        raise ValueError(
            f"head_steps={config.head_steps}: the head of a language model is its embedding, "
            "which cannot be trained alone"
        )
    rows = data.sizes[0] if isinstance(data, Shape) else len(data.train)
    if not rows:
        return 0
    rows_used = config.train_rows or rows
    split = f"training rows of {config.task} at scale {config.scale}"
    limits = [
        ("train_rows", rows, f"the {rows:,} {split}"),
        ("batch_size", rows_used, f"the {rows_used:,} {split}"),
        ("micro_batch", config.batch_size, f"batch_size={config.batch_size}"),
    ]
    for name, limit, limit_text in limits:
        value = getattr(config, name)
        if value > limit:
            raise ValueError(f"{name}={value} is beyond {limit_text}: at most {limit} fit")
    return rows_used


def count_positions(inputs: Tensor, lengths: Tensor | None, patch: int) -> int:
    """Return how many positions of a batch the blocks process, without padding.

    patch: an image is cut into squares of patch × patch pixels, one position each.
    """
    if lengths is not None:
        return int(lengths.sum())
    sides = inputs.shape[1:-1] if inputs.dim() == 4 else inputs.shape[1:2]
    return len(inputs) * math.prod(side // patch for side in sides)
