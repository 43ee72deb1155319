"""The cost of a run before it starts: parameters, tokens, FLOPs, memory and hours on this machine.

No data are needed.

Glossary: B rows of a batch, L positions of a row; D, E, N, R as in `mambanorm/block.py`.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from mambanorm.inside import blocks_of
from mambanorm.kernels.threads import exactly_threads
from mambanorm.models.language import LanguageModel
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.text import digits, prefixed
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import RunConfig
from mambanorm_study.models.mamba2 import Mamba2Block
from mambanorm_study.models.transformer import TransformerBlock
from mambanorm_study.models.vision import PatchMerging, VSSBlock
from mambanorm_study.runs import machine
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import autocast
from mambanorm_study.runs.grid import unique
from mambanorm_study.runs.regimen import (
    Targets,
    load_start_weights,
    load_teacher,
    loss_of,
    mix_rows,
)
from mambanorm_study.runs.run import check_data
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.tables.run_tables import markdown_rows
from mambanorm_study.tasks import TASKS, Shape, TaskData, check_task, load_task

STEPS_WARM, STEPS_TIMED = 2, 3
# Seconds of timed steps, the first one excluded, after which no further step is timed.
LONG_S = 2.0
# The most rows × positions and FLOPs of a timed step, so that large tasks and models take seconds.
POSITIONS_TIMED, FLOPS_TIMED = 8_192, 2 * 10**11
# Layers × width × inner width of a large model, about its number of weights.
LARGE = 10**7
FLOAT = 4  # bytes
# Numbers stored for each parameter: the weight, its gradient, AdamW's two moments, and the best
# weight so far.
COPIES = {"weights": 1, "gradients": 1, "adamw": 2, "best": 1}
NOT_OF_THE_MODEL = (
    "seed", "lr", "weight_decay", "schedule", "warmup_steps", "steps", "eval_every",
)  # fmt: skip
MODEL_FIELDS = [field.name for field in fields(RunConfig) if field.name not in NOT_OF_THE_MODEL]
COLUMNS = (
    "task", "arm", "parameters", "steps", "tokens", "FLOPs a step", "FLOPs", "memory", "s a step",
    "hours",
)  # fmt: skip


def plan(
    config: RunConfig, *, measured: bool = True, data: TaskData | None = None
) -> dict[str, Any]:
    """Return the cost of one run: parameters, steps, tokens, FLOPs, bytes, seconds and hours.

    A multiply-add is two FLOPs; a training step takes three times the FLOPs of a forward pass.
    Bytes are float32: COPIES of the parameters, and the activations kept for the backward pass.
    `seconds_per_step` and `hours`, evaluations included, are NaN unless `measured`. The shape is
    that of `data`, else the one that the task states. ValueError for an unknown task, and for a
    model that is to be measured and does not fit in this machine's memory. TypeError unless config
    is a RunConfig.
    """
    check_kind("config", config, RunConfig, "base_config")
    shape = shape_of(config) if data is None else shape_of_data(data)
    model = countable_model(config, shape)
    parameters = sum(p.numel() for p in model.parameters())
    rows_at_once = min(config.micro_batch or config.batch_size, config.batch_size)
    memory = {f"{name}_bytes": FLOAT * copies * parameters for name, copies in COPIES.items()}
    memory["activations_bytes"] = FLOAT * activation_floats(model, rows_at_once, shape.length)
    flops_per_step = 3 * sum(forward_flops(model, config.batch_size, shape.length).values())
    seconds_per_step = seconds_per_row = math.nan
    if measured:
        _check_memory(config, parameters)
        seconds_per_step, seconds_per_row = measure(config, shape)
    evaluations = math.ceil(config.steps / config.eval_every)
    rows_evaluated = evaluations * shape.held_out[0] + shape.held_out[1]
    seconds = config.steps * seconds_per_step + rows_evaluated * seconds_per_row
    return {
        "task": config.task,
        "scale": config.scale,
        "arm": config.arm,
        "parameters": parameters,
        "steps": config.steps,
        "tokens": config.steps * config.batch_size * (shape.tokens or shape.length),
        "flops_per_step": flops_per_step,
        "flops": config.steps * flops_per_step,
        **memory,
        "bytes": sum(memory.values()),
        "seconds_per_step": seconds_per_step,
        "hours": seconds / 3600,
    }


def _check_memory(config: RunConfig, parameters: int) -> None:
    """Raise ValueError if the weights, gradients and moments do not fit in this machine's
    memory.
    """
    needed, available = 4 * FLOAT * parameters, machine.memory()
    if needed > available and machine.pick_device(config.device).type == "cpu":
        raise ValueError(
            f"{prefixed(parameters)} weights with gradients and moments take {prefixed(needed)}B, "
            f"and this machine has {prefixed(available)}B, so no step can be timed here: choose a "
            "smaller model, or measure nothing (--no-measure, measured=False)"
        )


def countable_model(config: RunConfig, shape: Shape) -> nn.Module:
    """Return the model, to be counted: a large one on the meta device, which holds no numbers.

    Small ones are built, because torch takes two seconds to prepare the meta device; so are those
    with a user's norm that needs numbers.
    """
    if config.n_layers * config.expand * config.d_model**2 > LARGE:
        with suppress(RuntimeError), torch.device("meta"):
            return build_model(config, shape)
    return build_model(config, shape)


def check_trainable(configs: list[RunConfig], runs_dir: str | Path | None = None) -> None:
    """Raise ValueError for runs that training would refuse: a norm or a batch that does not fit,
    or a teacher that is not stored.

    No data are loaded. Of runs whose models are alike, the first one is checked.
    """
    run_ids = {config.run_id for config in configs}
    distinct: dict[tuple[str, ...], RunConfig] = {}
    for config in configs:
        distinct.setdefault(tuple(str(getattr(config, name)) for name in MODEL_FIELDS), config)
    for config in distinct.values():
        shape = shape_of(config)
        check_data(config, shape)
        lengths = torch.ones(2) if shape.tokens else None
        mix_rows(shape.batch(2), lengths, shape.labels(2), config, step=1)
        countable_model(config, shape)
        if config.start and config.start not in run_ids:
            load_start_weights(build_model(config, shape), config, runs_dir)
        if config.teacher not in run_ids:
            load_teacher(config, partial(build_model, data=shape), runs_dir)


def plan_table(configs: Iterable[RunConfig], *, measured: bool = True) -> pd.DataFrame:
    """Return `plan` of several configs, one row each."""
    return pd.DataFrame([plan(config, measured=measured) for config in unique(configs)])


def table_text(table: pd.DataFrame) -> str:
    """Return the rows of `plan_table` as a Markdown table in readable units."""
    rows = [
        [
            row.task, f"`{row.arm}`", f"{row.parameters:,}", f"{row.steps:,}",
            prefixed(row.tokens), prefixed(row.flops_per_step), prefixed(row.flops),
            f"{prefixed(row.bytes)}B", _seconds(row.seconds_per_step), _seconds(row.hours),
        ]
        for row in table.itertuples()
    ]  # fmt: skip
    alignment = ["---"] * 2 + ["---:"] * (len(COLUMNS) - 2)
    return markdown_rows([COLUMNS, alignment, *rows])


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else digits(value)


# ------------------------------------------------------------------------------------------- shapes


def shape_of(config: RunConfig) -> Shape:
    """Return the shape of the data, as the task states it; the data are loaded if it states
    none.
    """
    stated_shape = TASKS[check_task(config.task)].shape
    if stated_shape is None:
        return shape_of_data(load_task(config.task, config.scale, config.seed))
    return stated_shape(config.scale)


def shape_of_data(data: TaskData) -> Shape:
    """Return the shape of loaded data."""
    inputs, lengths = data.train.inputs, data.train.lengths
    positions = inputs.shape[1]
    if len(inputs.shape) == 4:
        positions = math.prod(side // data.patch for side in inputs.shape[1:3])
    return Shape(
        n_classes=data.n_classes,
        vocab_size=data.vocab_size,
        in_features=data.in_features,
        in_channels=data.in_channels,
        patch=data.patch,
        per_position=data.per_position,
        targets=data.targets,
        length=positions,
        tokens=0 if lengths is None else round(float(lengths.double().mean())),
        sizes=(len(data.train), len(data.val), len(data.test)),
    )


# ---------------------------------------------------------------------------------- work and memory


def forward_flops(model: nn.Module, rows: int, length: int) -> dict[str, int]:
    """Return the FLOPs of a forward pass: linear, conv, scan and attention, a multiply-add counted
    as two.

    Every weight of a product is used once a position; an embedding takes no product, and a
    classifier's head works once a row. The scan takes 7·E·N + 3·E a position: for each state Δ·A,
    its exp, (Δu)·B, the product and the sum of h ← Āh + B̄u, the product and the sum of C·h; for
    each channel Δ·u, and the product and the sum of + D·u. A Mamba-2 is counted as the selective
    scan that carries it. Attention takes 4·L²·D a row: L² scores of D products, and as many to
    weigh the values. Norms, SiLU, softplus and gate are not counted; the MLP of a NormSelector is.
    The weights are counted because torch's counter must run the model, and takes seconds to start.
    """
    if isinstance(model, LanguageModel):
        ends = length * _weights(model.lm_head)
    else:
        stem = 0 if isinstance(model.stem, nn.Embedding) else length * _weights(model.stem)
        ends = stem + _weights(model.head)
    flops = {"linear": 2 * rows * ends, "conv": 0, "scan": 0, "attention": 0}
    for block, positions in _blocks(model, length):
        if isinstance(block, PatchMerging):
            flops["linear"] += 2 * rows * positions * _weights(block.reduction)
            continue
        if isinstance(block, TransformerBlock):
            flops["attention"] += 4 * rows * positions**2 * block.d_model
        else:
            scan = _directions(block) * block.d_inner * (7 * block.d_state + 3)
            flops["scan"] += rows * positions * scan
        for name, parameter in block.named_parameters():
            if not _is_product(name, parameter):
                continue
            uses = rows if name.startswith("squeeze.") else rows * positions
            flops["conv" if name.startswith("conv") else "linear"] += 2 * uses * parameter.numel()
    return flops


def _is_product(name: str, parameter: nn.Parameter) -> bool:
    """Return True for the weights of linear layers and convolutions, a NormSelector's among
    them.
    """
    of_a_norm = name.startswith(("n1.", "n2.", "more.")) and ".selector." not in name
    of_the_scan = name.startswith("A_log") or "bias" in name
    return parameter.dim() > 1 and not of_a_norm and not of_the_scan


def _weights(module: nn.Module) -> int:
    """Return the number of weights in a module's matrices, without biases and norms."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def _directions(block: nn.Module) -> int:
    """Return in how many directions the block scans."""
    return 4 if isinstance(block, VSSBlock) else 1


def _blocks(model: nn.Module, length: int) -> Iterator[tuple[nn.Module, int]]:
    """Yield every block, and every layer that halves the image after a block, with its number of
    positions.
    """
    merging = getattr(model, "merging", {})
    for depth, (_, block) in enumerate(blocks_of(model), start=1):
        yield block, length
        if str(depth) in merging:
            length //= 4
            yield merging[str(depth)], length


def activation_floats(model: nn.Module, rows: int, length: int) -> int:
    """Return how many numbers are kept for the backward pass: an estimate for float32 on the CPU,
    where the operations are fused.
    """
    return rows * sum(positions * _kept(block) for block, positions in _blocks(model, length))


def _kept(block: nn.Module) -> int:
    """Return how many numbers a block, or a halving, keeps for each position."""
    if isinstance(block, PatchMerging):  # its input and its result
        return block.reduction.in_features + block.reduction.out_features
    if isinstance(block, TransformerBlock):
        # the input, both sums, both norms, q, k, v, the results of attention and feed-forward, and
        # the hidden layer before and after its GELU
        return 11 * block.d_model + 2 * block.feed_forward[0].out_features
    further = sum(block.site_widths[site] for site, _ in block.arm.more)
    if isinstance(block, Mamba2Block):
        # in_proj's results before and after the convolution, Δ, y before and after its norm, Δ, u
        return further + 2 * block.d_model + 2 * block.in_proj.out_features + 5 * block.d_inner
    # x and N1(x); both products of in_proj, u, the gated output, and a state of the scan now and
    # then; N2's input and output; of a VSS block u and y in every direction; Δ, B and C
    directions = _directions(block)
    copies = 5
    if any(True for _ in block.n2.parameters()):
        copies += 2
    if directions > 1:
        copies += 2 * directions
    narrow = directions * (block.dt_rank + 2 * block.d_state)
    return further + 2 * block.d_model + copies * block.d_inner + narrow


# --------------------------------------------------------------------------------------------- time


@plain_torch()
def measure(config: RunConfig, shape: Shape) -> tuple[float, float]:
    """Return the seconds of a training step, and of evaluating a row, from a few steps on random
    data with the run's threads. ValueError if this process does not have so many threads.

    On a CPU a part of a large batch is timed (POSITIONS_TIMED, FLOPS_TIMED) and scaled up, because
    time grows with the rows. On a GPU it does not, so a whole micro-batch is timed.
    """
    device = machine.pick_device(config.device)
    model = build_model(config, shape).to(device)
    most = config.batch_size
    if device.type == "cpu":
        flops = 3 * sum(forward_flops(model, 1, shape.length).values())
        most = min(POSITIONS_TIMED // shape.length, FLOPS_TIMED // flops)
    rows = max(1, min(config.micro_batch or config.batch_size, config.batch_size, most))
    optimizer = optimizer_of(model, config)
    with torch.random.fork_rng(devices=[]):  # the caller's random state is left alone
        inputs, labels = shape.batch(rows).to(device), shape.labels(rows).to(device)

    def train_step() -> None:
        with autocast(config, device):
            loss = loss_of(model(inputs, None), Targets(labels), config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def evaluate() -> None:
        with autocast(config, device):
            model(inputs, None)

    with exactly_threads(config.threads):
        train_s = _median_s(train_step, device)
        model.eval()
        return train_s * config.batch_size / rows, _median_s(evaluate, device) / rows


def _median_s(work: Callable[[], None], device: torch.device) -> float:
    times = []
    for _ in range(STEPS_WARM + STEPS_TIMED):
        start = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - start)
        if sum(times[1:]) > LONG_S:  # the first step may have waited for a compiler
            break
    return statistics.median(times[STEPS_WARM:] or times[1:])
