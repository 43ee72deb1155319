"""One training run, read from top to bottom: config in, RunResult out.

Divergence is a result, not an exception: the run stops at the first non-finite loss or gradient, keeps the step and
the first non-finite site, and is scored as chance. Validation selects the step, the test split is read once.

Paired by construction: the seed alone decides the initial weights of every shared parameter, the batch order and, on
the small tasks, the split. Two arms with one seed differ in their norms and in nothing else.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.config import RunConfig
from mambanorm.diagnostics import WeightLog
from mambanorm.kernels.threads import exactly_threads
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm.models.transformer import TransformerClassifier
from mambanorm.operations import scan_backend
from mambanorm.tasks import Shape, TaskData, load_task
from mambanorm.training import machine
from mambanorm.training.averaging import Average
from mambanorm.training.checkpoint import Best, Checkpoint
from mambanorm.training.evaluation import accuracy, autocast, errors, evaluate, predict, to_device
from mambanorm.training.gradients import Gradients, find_nonfinite, finite_gradients
from mambanorm.training.optimizer import build_optimizer
from mambanorm.training.regimen import HeadFirst, mixed, take_over, taught, teacher_of
from mambanorm.training.result import RunResult
from mambanorm.training.schedule import schedule
from mambanorm.vision import ImageClassifier

COMMON_FIELDS = (
    "d_model", "n_layers", "arm", "stem_norm", "final_norm", "expand", "norm_options", "positional", "drop_path",
)  # fmt: skip
"""The fields of a config that every model takes as they are."""
MODEL_FIELDS = (*COMMON_FIELDS, "d_state", "d_conv")
MAMBA2_FIELDS = (*MODEL_FIELDS, "model", "head_dim", "n_groups")
TRANSFORMER_FIELDS = (*COMMON_FIELDS, "n_heads", "norm_position", "squeeze_excite")
FIELDS_OF = {"mamba": MODEL_FIELDS, "mamba2": MAMBA2_FIELDS, "transformer": TRANSFORMER_FIELDS}
IMAGE_FIELDS = ("down_sample", "down_norm")
"""Those that models of images take in addition."""
BUILDING = threading.Lock()  # the random state is the process's: two threads of a worker must not share it


def train(
    config: RunConfig,
    *,
    on_step: Callable[[int, nn.Module, float], None] | None = None,
    checkpoint_dir: str | Path | None = None,
    checkpoint_every_s: float = 300.0,
    runs_dir: str | Path | None = None,
) -> RunResult:
    """Trains one config and tests it once. `on_step(step, model, loss)` is called after each optimizer step.

    With `checkpoint_dir` the run continues from the checkpoint that it finds there, to the same result bit for bit, and
    saves one every `checkpoint_every_s` seconds (training/checkpoint.py). `wall_s` leaves out work that a kill lost.
    It trains on `config.threads` threads, whatever torch was set to before. Raises ValueError for a config that cannot
    be run (unknown task, norm that does not fit, a batch larger than the data, more threads than there are); never for
    divergence. `runs_dir`: where the runs lie that a config names as its teacher or start (None = the run store).
    """
    with exactly_threads(config.threads), machine.whole_float32():
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
    rows_used, units = check_data(config, data), data.units
    model = build_model(config, data)
    take_over(model, config, runs_dir)
    teacher = teacher_of(config, lambda other: build_model(other, data).to(device), runs_dir)
    model = model.to(device)
    optimizer = build_optimizer(model, config)
    average, head_first = Average(model, config.ema), HeadFirst(model, config)
    log, curve, best = WeightLog(model), [], Best(by_loss=units is not None or data.per_position)
    nonfinite_step = nonfinite_site = None
    parts = dict(model=model, optimizer=optimizer, average=average, log=log, best=best, curve=curve)
    checkpoint = Checkpoint(checkpoint_dir, checkpoint_every_s, config, **parts)
    tokens, earlier_s = checkpoint.load()
    gradients = Gradients(model, optimizer, config, log)
    start, done = time.perf_counter() - earlier_s, len(curve)

    if not done:
        log.snapshot(0)
    for step, rows in enumerate(islice(batch_order(config, rows_used), done, None), start=done + 1):
        if best.is_old(curve, config.patience):
            break
        inputs, lengths, labels = to_device(data.train.batch(rows), device)
        labels = labels if units is None else units.scaled(labels)
        inputs, lesson = mixed(inputs, lengths, labels, config, step)
        lesson = taught(lesson, teacher, inputs, lengths, config)
        factor = schedule(config.schedule, step, steps=config.steps, warmup_steps=config.warmup_steps)
        for group in optimizer.param_groups:
            group["lr"] = config.lr * factor
        if not model.training:  # after an evaluation
            model.train()
        head_first.at(step)
        loss, grad_norm = gradients.fill(step, inputs, lengths, labels, lesson)
        curve.append({"step": step, "train_loss": loss, "grad_norm": grad_norm, "lr": group["lr"]})
        if not (math.isfinite(curve[-1]["train_loss"]) and (math.isfinite(grad_norm) or finite_gradients(model))):
            with autocast(config, device):
                nonfinite_step, nonfinite_site = step, find_nonfinite(model, inputs, lengths, config.micro_batch)
            break
        optimizer.step()
        average.update()
        log.turn(step)
        tokens += positions(inputs, lengths, data.patch)
        if on_step is not None:
            on_step(step, model, curve[-1]["train_loss"])
        if step % config.eval_every == 0 or step == config.steps:
            curve[-1] |= evaluate(average.judged, data.val, config, device, units)
            best.offer(curve, average.judged)
            log.snapshot(step)
            memory.sample()
        checkpoint.offer(tokens, time.perf_counter() - start)
    wall_s = time.perf_counter() - start

    judged = average.judged
    best.restore(judged)
    predictions = predict(judged, data.test, config, device, units)
    return result_of(
        config, data, judged, curve, best, log, predictions, nonfinite_step, nonfinite_site,
        wall_s=wall_s,
        tokens_per_s=tokens / wall_s,
        peak_memory_mb=memory.sample(),
        backend=scan_backend(torch.empty(0, device=device)),
    )  # fmt: skip


def result_of(
    config: RunConfig,
    data: TaskData,
    judged: nn.Module,
    curve: list[dict],
    best: Best,
    log: WeightLog,
    predictions: dict[str, np.ndarray],
    nonfinite_step: int | None,
    nonfinite_site: str | None,
    **measured: float | str,
) -> RunResult:
    """The result of a run that has ended: the model with the weights that were tested, and what was seen on the way."""
    diverged = nonfinite_step is not None
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
        first_nonfinite_step=nonfinite_step,
        first_nonfinite_site=nonfinite_site,
        threads=config.threads,
        parameters=sum(p.numel() for p in judged.parameters()),
        versions=machine.versions(),
        git_commit=machine.git_commit(),
        machine=machine.machine(),
        curves=pd.DataFrame(curve).reindex(
            columns=["step", "train_loss", "grad_norm", "lr", "val_loss", "val_accuracy"]
        ),
        test_loss=data.chance_loss if diverged and data.per_position else float(predictions["loss"].mean()),
        chance_loss=data.chance_loss,
        **errors(predictions),
        predictions=predictions,
        diagnostics=log.arrays(),
        checkpoint={name: value.detach().cpu().clone() for name, value in judged.state_dict().items()},
        **measured,
    )


def check_data(config: RunConfig, data: TaskData) -> int:
    """How many rows of the training split a run uses. ValueError where its config does not fit the data."""
    if data.units is not None and config.label_smoothing:
        raise ValueError(f"label_smoothing={config.label_smoothing} smooths classes, and {config.task} is a regression")
    return check_rows(config, len(data.train))


def check_rows(config: RunConfig, n: int) -> int:
    """How many of the n rows of the training split a run uses. ValueError where train_rows, batch_size or
    micro_batch is larger than what it is taken from: the run would not be what its config says."""
    used = config.train_rows or n
    for part, whole, limit in (
        ("train_rows", f"the {n:,} training rows of {config.task} at scale {config.scale}", n),
        ("batch_size", f"the {used:,} training rows of {config.task} at scale {config.scale}", used),
        ("micro_batch", f"batch_size={config.batch_size}", config.batch_size),
    ):
        if getattr(config, part) > limit:
            raise ValueError(f"{part}={getattr(config, part)} is beyond {whole}: at most {limit} fit")
    return used


def build_model(
    config: RunConfig, data: TaskData | Shape
) -> SequenceClassifier | ImageClassifier | TransformerClassifier | LanguageModel:
    """The model of a config, on the CPU, its weights decided by the seed; the caller's random state is left alone."""
    if data.per_position:
        return build_language_model(config, data.vocab_size)
    options = {name: getattr(config, name) for name in FIELDS_OF[config.model]}
    options["positions"] = data.positions if config.positional == "learned" else None
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.model == "transformer":
            if config.down_sample:
                raise ValueError(
                    f"down_sample={config.down_sample} halves the images of a Mamba: a Transformer has none"
                )
            stem = {name: getattr(data, name) for name in ("vocab_size", "in_features", "in_channels", "patch")}
            return TransformerClassifier(data.n_classes, **stem, **options)
        if data.in_channels is not None:
            if config.model == "mamba2":
                raise ValueError(f"model='mamba2' reads sequences, and {config.task} has images: leave it at 'mamba'")
            options |= {name: getattr(config, name) for name in IMAGE_FIELDS}
            return ImageClassifier(data.n_classes, in_channels=data.in_channels, patch=data.patch, **options)
        if config.down_sample:
            raise ValueError(f"down_sample={config.down_sample} halves images, and {config.task} has sequences")
        return SequenceClassifier(data.n_classes, vocab_size=data.vocab_size, in_features=data.in_features, **options)


NOT_OF_TEXT = dict(stem_norm="None", positional="none", drop_path=0.0, down_sample=(), head_steps=0)
"""Fields that a language model does not have, and the only value that they may have."""
OF_TEXT = {model: [name for name in FIELDS_OF[model] if name not in NOT_OF_TEXT] for model in ("mamba", "mamba2")}
"""The models that a language model may be of, and their fields."""


def build_language_model(config: RunConfig, vocab_size: int) -> LanguageModel:
    """As `build_model`, where the next token is to be predicted. ValueError for a norm that sees later ones."""
    wrong = [] if config.model in OF_TEXT else [("model", "mamba")]
    for name, only in wrong + [pair for pair in NOT_OF_TEXT.items() if getattr(config, pair[0]) != pair[1]]:
        given = getattr(config, name)
        raise ValueError(
            f"{name}={given!r} is no part of a language model, and {config.task} needs one: leave it at {only!r}"
        )
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LanguageModel(vocab_size, **{name: getattr(config, name) for name in OF_TEXT[config.model]})


def positions(inputs: Tensor, lengths: Tensor | None, patch: int) -> int:
    """How many positions the blocks see of a batch, padding left out."""
    if lengths is not None:
        return int(lengths.sum())
    if inputs.dim() == 4:
        return len(inputs) * (inputs.shape[1] // patch) * (inputs.shape[2] // patch)
    return inputs.shape[0] * inputs.shape[1]


def batch_order(config: RunConfig, n: int) -> Iterator[Tensor]:
    """Rows of each step's batch, `steps` times: shuffled epochs, whose incomplete last batch is dropped."""
    generator = torch.Generator().manual_seed(config.seed)
    size, given = min(config.batch_size, n), 0
    while given < config.steps:
        order = torch.randperm(n, generator=generator)
        for rows in order[: n - n % size].split(size):
            if given == config.steps:
                return
            given += 1
            yield rows
