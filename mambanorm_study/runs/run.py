"""`train`: one run of the study, config in, RunResult out. `loop.py` has the loop; here stands what
is handed to it.

Divergence is a result, not an exception: the run stops at the first non-finite loss or gradient,
keeps the step and the first non-finite site, and is scored as chance. Validation selects the step,
the test split is read once.

Paired by construction: the seed alone decides the initial weights of every shared parameter, the
batch order and, on the small tasks, the split. Two arms with one seed differ in their norms and in
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.inside import record_sites
from mambanorm.kernels.threads import exactly_threads
from mambanorm.loop import batch_order, build_optimizer, fit, learning_rate
from mambanorm.operations import scan_backend
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import machine
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import accuracy, autocast, errors, evaluate, predict, to_device
from mambanorm_study.runs.observers import Average, Best, Checkpoint, Progress
from mambanorm_study.runs.regimen import Loss, micro_batches, mixed, take_over, teacher_of
from mambanorm_study.runs.result import RunResult
from mambanorm_study.runs.weight_log import WeightLog
from mambanorm_study.tasks import Shape, TaskData, load_task


def train(
    config: RunConfig,
    *,
    on_step: Callable[[int, nn.Module, float], None] | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every_s: float = 300.0,
    runs_dir: str | Path | None = None,
) -> RunResult:
    """Trains one config and tests it once. `on_step(step, model, loss)` is called after each
    optimizer step.

    With `checkpoint_dir` the run continues from the checkpoint that it finds there, to the same
    result bit for bit, and saves one every `checkpoint_every_s` seconds (runs/observers.py).
    `wall_s` leaves out work that a kill lost. It trains on `config.threads` threads and with torch
    as it comes, whatever the caller has set. Raises ValueError for a config that cannot be run
    (unknown task, norm that does not fit, a batch larger than the data, more threads than there
    are), TypeError for what is no config; never for divergence. `runs_dir`: where the runs lie that
    a config names as its teacher or start (None = the run store).
    """
    check_kind("config", config, RunConfig, "base_config")
    with exactly_threads(config.threads), plain_torch():
        return _train(config, on_step, checkpoint_dir, checkpoint_every_s, runs_dir)


def _train(
    config: RunConfig,
    on_step: Callable[[int, nn.Module, float], None] | None,
    checkpoint_dir: str | Path | None,
    checkpoint_every_s: float,
    runs_dir: str | Path | None,
) -> RunResult:
    device = machine.pick_device(config.device)
    memory = machine.PeakMemory(device)
    data = load_task(config.task, config.scale, config.seed)
    rows_used = check_data(config, data)
    model = build_model(config, data)
    take_over(model, config, runs_dir)
    teacher = teacher_of(config, lambda other: build_model(other, data).to(device), runs_dir)
    model = model.to(device)
    optimizer, average, log = (
        optimizer_of(model, config),
        Average(model, config.ema),
        WeightLog(model),
    )
    best, curve, progress = (
        Best(by_loss=data.units is not None or data.per_position),
        [],
        Progress(),
    )
    state = dict(
        model=model,
        optimizer=optimizer,
        average=average,
        log=log,
        best=best,
        curve=curve,
        progress=progress,
    )
    checkpoint = Checkpoint(checkpoint_dir, checkpoint_every_s, config, **state)
    checkpoint.load()

    def batches() -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
        for rows in islice(
            batch_order(config.seed, rows_used, config.batch_size, config.steps), len(curve), None
        ):
            batch = to_device(data.train.batch(rows), device)
            progress.tokens += positions(*batch[:2], data.patch)
            yield batch

    def tell(step: int) -> None:
        if on_step is not None:
            on_step(step, model, curve[-1]["train_loss"])

    def look(step: int) -> None:
        if step % config.eval_every == 0 or step == config.steps:
            curve[-1] |= evaluate(average.judged, data.val, config, device, data.units)
            best.offer(curve, average.judged)
            log.snapshot(step)

    def out_of_patience(step: int) -> bool:
        return best.is_old(curve, config.patience)

    lost = None
    if not curve:
        log.snapshot(0)
    if not out_of_patience(len(curve)):  # as a run may be that goes on from its checkpoint
        lost = fit(
            model,
            optimizer,
            batches(),
            Loss(config, model, teacher=teacher, units=data.units, watching=log.watching),
            lr_of=partial(lr_at, config),
            curve=curve,
            callbacks=[average, log.turn, tell, look, checkpoint, out_of_patience],
        )
    site = None if lost is None else nonfinite_site(model, lost, config, len(curve))
    wall_s = progress.seconds

    best.restore(average.judged)
    predictions = predict(average.judged, data.test, config, device, data.units)
    return result_of(
        config, data, average.judged, curve, best, log, predictions, site,
        wall_s=wall_s,
        tokens_per_s=progress.tokens / wall_s,
        peak_memory_mb=memory.growth(),
        backend=scan_backend(torch.empty(0, device=device)),
    )  # fmt: skip


def optimizer_of(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """Return the optimizer that a config names, for a model."""
    return build_optimizer(
        model,
        lr=config.lr,
        weight_decay=config.weight_decay,
        betas=config.betas,
        name=config.optimizer,
    )


def lr_at(config: RunConfig, step: int) -> float:
    """Return the learning rate of a config's step, counted from 1."""
    return learning_rate(
        step,
        lr=config.lr,
        steps=config.steps,
        warmup_steps=config.warmup_steps,
        schedule=config.schedule,
    )


def result_of(
    config: RunConfig,
    data: TaskData,
    judged: nn.Module,
    curve: list[dict],
    best: Best,
    log: WeightLog,
    predictions: dict[str, np.ndarray],
    nonfinite_site: str | None,
    **measured: float | str,
) -> RunResult:
    """The result of a run that has ended: the model with the weights that were tested, and what was
    seen on the way."""
    diverged = nonfinite_site is not None
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
        parameters=sum(p.numel() for p in judged.parameters()),
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
        diagnostics=log.arrays(),
        checkpoint={
            name: value.detach().cpu().clone() for name, value in judged.state_dict().items()
        },
        **measured,
    )


def nonfinite_site(
    model: nn.Module, batch: tuple[Tensor, Tensor | None, Tensor], config: RunConfig, step: int
) -> str:
    """Where the first non-finite number of a step stands that has just diverged on this batch."""
    inputs, _ = mixed(*batch, config, step)
    with autocast(config, inputs.device):
        return find_nonfinite(model, inputs, batch[1], config.micro_batch)


@torch.no_grad()
def find_nonfinite(
    model: nn.Module, inputs: Tensor, lengths: Tensor | None, micro_batch: int = 0
) -> str:
    """The first non-finite site of this very step: forward in the order of computation, then the
    gradients backward."""
    gradients = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not p.grad.isfinite().all()
    ]
    model.train()
    for part in micro_batches(len(inputs), micro_batch):
        with record_sites(model) as seen:
            logits = model(inputs[part], None if lengths is None else lengths[part])
        if site := seen.first_nonfinite():
            return site
        if not logits.isfinite().all():
            return "logits"
    return f"gradient of {gradients[-1]}" if gradients else "loss"


def check_data(config: RunConfig, data: TaskData | Shape) -> int:
    """How many rows of the training split a run uses, 0 = the shape does not tell. ValueError where
    its config does not fit the data."""
    if data.targets and config.label_smoothing:
        raise ValueError(
            f"label_smoothing={config.label_smoothing} smooths classes, and {config.task} is a regression"
        )
    n = data.train_rows if isinstance(data, Shape) else len(data.train)
    return check_rows(config, n) if n else 0


def check_rows(config: RunConfig, n: int) -> int:
    """How many of the n rows of the training split a run uses. ValueError where train_rows,
    batch_size or micro_batch is larger than what it is taken from: the run would not be what its
    config says."""
    used = config.train_rows or n
    for part, whole, limit in (
        ("train_rows", f"the {n:,} training rows of {config.task} at scale {config.scale}", n),
        (
            "batch_size",
            f"the {used:,} training rows of {config.task} at scale {config.scale}",
            used,
        ),
        ("micro_batch", f"batch_size={config.batch_size}", config.batch_size),
    ):
        if getattr(config, part) > limit:
            raise ValueError(
                f"{part}={getattr(config, part)} is beyond {whole}: at most {limit} fit"
            )
    return used


def positions(inputs: Tensor, lengths: Tensor | None, patch: int) -> int:
    """How many positions the blocks see of a batch, padding left out."""
    if lengths is not None:
        return int(lengths.sum())
    if inputs.dim() == 4:
        return len(inputs) * (inputs.shape[1] // patch) * (inputs.shape[2] // patch)
    return inputs.shape[0] * inputs.shape[1]
