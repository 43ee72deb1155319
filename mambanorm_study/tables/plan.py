"""What a run costs before it starts: parameters, tokens, FLOPs, memory and hours on this machine.
It needs no data.

Glossary: B rows of a batch, L positions of a row, T = B·L; D, E, N, R, K as in
`mambanorm/block.py`.
"""

import math
import statistics
import time
from collections.abc import Iterable, Iterator
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
from mambanorm_study.models.vision import PatchMerging
from mambanorm_study.runs import machine
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import autocast
from mambanorm_study.runs.grid import config_list
from mambanorm_study.runs.regimen import (
    Targets,
    load_start_weights,
    load_teacher,
    loss_of,
    mix_rows,
)
from mambanorm_study.runs.run import check_data
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.tasks import TASKS, Shape, TaskData, check_task, load_task

STEPS_WARM, STEPS_TIMED = 2, 3
LONG_S = 2.0  # seconds after which, the first step aside, no further one is timed
# the most rows × positions and FLOPs of a timed step, so that the largest task or model takes
# seconds; then × B
POSITIONS_TIMED, FLOPS_TIMED = 8_192, 2 * 10**11
FLOAT = 4  # bytes
FREE = ("seed", "lr", "weight_decay", "schedule", "warmup_steps", "steps", "eval_every")
FELT = tuple(field.name for field in fields(RunConfig) if field.name not in FREE)
LARGE = 10**7  # layers × width × inner width: weights, up to a small factor


def plan(
    config: RunConfig, *, measured: bool = True, data: TaskData | None = None
) -> dict[str, Any]:
    """What one run costs: parameters, steps, tokens, FLOPs, bytes and, if `measured`, hours on this
    machine.

    FLOPs (a multiply-add is two) of a step are 3 × those of the forward pass, `forward_flops`.
    Bytes are float32: weights P, gradients P, AdamW's two moments 2P, the best weights so far P,
    and `activation_floats` kept for the backward pass. `seconds_per_step` and `hours` are NaN
    unless measured; the hours include the evaluations. The shape is that of `data`, else the one
    that the task states. ValueError for an unknown task, and for a model to be measured that this
    machine's memory cannot hold. TypeError for what is no config.
    """
    check_kind("config", config, RunConfig, "base_config")
    shape = shape_of(config) if data is None else shape_of_data(data)
    model = _counted(config, shape)
    parameters = sum(p.numel() for p in model.parameters())
    needed, there = 4 * FLOAT * parameters, machine.memory()
    if measured and needed > there and machine.pick_device(config.device).type == "cpu":
        raise ValueError(
            f"{prefixed(parameters)} weights with gradients and moments take {prefixed(needed)}B, and this machine has "
            f"{prefixed(there)}B, so no step can be timed here: choose a smaller model, or measure nothing "
            "(--no-measure, measured=False)"
        )
    flops = 3 * sum(forward_flops(model, config.batch_size, shape.length).values())
    step_s, row_s = measure(config, shape) if measured else (math.nan, math.nan)
    evaluations = math.ceil(config.steps / config.eval_every)
    looked_at = (
        evaluations * shape.held_out[0] + shape.held_out[1]
    )  # rows of validation and test, forward only
    memory = dict(weights=1, gradients=1, adamw=2, best=1)
    memory = {f"{name}_bytes": FLOAT * copies * parameters for name, copies in memory.items()}
    at_once = min(config.micro_batch or config.batch_size, config.batch_size)
    memory["activations_bytes"] = FLOAT * activation_floats(model, at_once, shape.length)
    return {
        **{name: getattr(config, name) for name in ("task", "scale", "arm")},
        "parameters": parameters,
        "steps": config.steps,
        "tokens": config.steps * config.batch_size * (shape.tokens or shape.length),
        "flops_per_step": flops,
        "flops": config.steps * flops,
        **memory,
        "bytes": sum(memory.values()),
        "seconds_per_step": step_s,
        "hours": (config.steps * step_s + looked_at * row_s) / 3600,
    }


def _counted(config: RunConfig, shape: Shape) -> nn.Module:
    """The model, to be counted; a large one without its numbers, unless a norm of one's own needs
    some to be made."""
    if (
        config.n_layers * config.expand * config.d_model**2 > LARGE
    ):  # torch takes two seconds to be ready for it
        with suppress(RuntimeError), torch.device("meta"):
            return build_model(config, shape)
    return build_model(config, shape)


def check_trainable(configs: list[RunConfig], runs_dir: str | Path | None = None) -> None:
    """ValueError for what training would refuse: a norm or a batch that does not fit, say, or a
    teacher that is not there. It needs no data, and looks at one run of those that differ in what
    no model feels."""
    coming = {config.run_id for config in configs}
    kinds = {
        tuple(str(getattr(config, name)) for name in FELT): config for config in reversed(configs)
    }
    for config in reversed(kinds.values()):
        shape = shape_of(config)
        check_data(config, shape)
        mix_rows(
            shape.batch(2), torch.ones(2) if shape.tokens else None, shape.labels(2), config, step=1
        )
        model = build_model(config, shape) if config.start else _counted(config, shape)
        if config.start not in coming:
            load_start_weights(model, config, runs_dir)
        if config.teacher not in coming:
            load_teacher(config, partial(build_model, data=shape), runs_dir)


def plan_table(configs: Iterable[RunConfig], *, measured: bool = True) -> pd.DataFrame:
    """`plan` of several configs, one row each."""
    return pd.DataFrame([plan(config, measured=measured) for config in config_list(configs)])


def table_text(table: pd.DataFrame) -> str:
    """The rows of `plan_table` in Markdown, in readable units."""
    head = [
        "task",
        "arm",
        "parameters",
        "steps",
        "tokens",
        "FLOPs a step",
        "FLOPs",
        "memory",
        "s a step",
        "hours",
    ]
    rows = []
    for row in table.itertuples():
        sizes = [f"{row.parameters:,}", f"{row.steps:,}", prefixed(row.tokens)]
        work = [prefixed(row.flops_per_step), prefixed(row.flops), f"{prefixed(row.bytes)}B"]
        times = [
            "–" if math.isnan(value) else digits(value)
            for value in (row.seconds_per_step, row.hours)
        ]
        rows.append([row.task, f"`{row.arm}`", *sizes, *work, *times])
    return "\n".join(
        f"| {' | '.join(cells)} |"
        for cells in [head, ["---"] * 2 + ["---:"] * (len(head) - 2), *rows]
    )


# ------------------------------------------------------------------------------------------- shapes


def shape_of(config: RunConfig) -> Shape:
    """The shape of the data, as the task states it. A task that does not state it is loaded."""
    tell = TASKS[check_task(config.task)].shape
    return (
        shape_of_data(load_task(config.task, config.scale, config.seed))
        if tell is None
        else tell(config.scale)
    )


def shape_of_data(data: TaskData) -> Shape:
    inputs, lengths = data.train.inputs, data.train.lengths
    same = (
        "n_classes",
        "vocab_size",
        "in_features",
        "in_channels",
        "patch",
        "per_position",
        "targets",
    )
    return Shape(
        **{name: getattr(data, name) for name in same},
        length=math.prod(side // data.patch for side in inputs.shape[1:3])
        if len(inputs.shape) == 4
        else inputs.shape[1],
        tokens=0 if lengths is None else round(float(lengths.double().mean())),
        sizes=(len(data.train), len(data.val), len(data.test)),
    )


# ---------------------------------------------------------------------------------- work and memory


def forward_flops(model: nn.Module, rows: int, length: int) -> dict[str, int]:
    """FLOPs of a forward pass: linear, conv, scan and attention, a multiply-add counted as two.

    Every weight of a product is used once a position: a block's linear layers take 2·(D·2E +
    E·(R+2N) + R·E + E·D) a position, its convolution 2·E·K, stem and head alike (an embedding takes
    none, the head works once a row, of a text once a position). The scan takes 7·E·N + 3·E: for
    each state Δ·A, its exp, (Δu)·B, the product and the sum of h ← Āh + B̄u, the product and the
    sum of C·h; for each channel Δ·u and the product and the sum of + D·u. In a Mamba-2 too: the
    selective scan carries it. Attention takes 4·L²·D a row besides its linear layers: L² scores of
    D products, and as many to weigh the values. Norms, SiLU, softplus and gate are not counted; the
    MLP of a NormSelector is. A VSS block scans in several directions, each with its own weights;
    after each halving of the image, a quarter of the positions is left. Counted from the weights,
    and not by torch's counter, which must run the model: large ones are never built.
    """
    if isinstance(model, LanguageModel):  # its head works at every position
        ends = length * _weights(model.lm_head)
    else:
        ends = _weights(model.head) + (
            0 if isinstance(model.stem, nn.Embedding) else length * _weights(model.stem)
        )
    found = {"linear": 2 * rows * ends, "conv": 0, "scan": 0, "attention": 0}
    for block, positions in _blocks(model, length):
        if isinstance(block, PatchMerging):
            found["linear"] += 2 * rows * positions * _weights(block.reduction)
            continue
        if isinstance(block, TransformerBlock):
            found["attention"] += 4 * rows * positions**2 * block.d_model
        for name, parameter in block.named_parameters():
            if name.startswith(("n1.", "n2.", "more.")) and ".selector." not in name:
                continue
            size = rows * parameter.numel() * (1 if name.startswith("squeeze.") else positions)
            if isinstance(block, Mamba2Block) and name in (
                "A_log",
                "D",
            ):  # a number a head: used for each channel,
                size *= block.head_dim * (
                    block.d_state if name == "A_log" else 1
                )  # and A for each state
            if name.startswith("A_log"):
                found["scan"] += 7 * size
            elif name in ("D", "Ds"):
                found["scan"] += 3 * size
            elif parameter.dim() > 1 and "bias" not in name:
                found["conv" if name.startswith("conv") else "linear"] += 2 * size
    return found


def _blocks(model: nn.Module, length: int) -> Iterator[tuple[nn.Module, int]]:
    """Every block, and every layer that halves the image after one, with the number of positions
    that it computes."""
    merging = getattr(model, "merging", {})
    for depth, (_, block) in enumerate(blocks_of(model), start=1):
        yield block, length
        if str(depth) in merging:
            length //= 4
            yield merging[str(depth)], length


def _weights(module: nn.Module) -> int:
    """The number of weights in a module's matrices; biases and norms, which have one axis, do not
    count."""
    return sum(p.numel() for p in module.parameters() if p.dim() > 1)


def activation_floats(model: nn.Module, rows: int, length: int) -> int:
    """Numbers kept for the backward pass, estimated for float32 on the CPU, where the operations
    are fused."""
    return rows * sum(positions * _kept(block) for block, positions in _blocks(model, length))


def _kept(block: nn.Module) -> int:
    """Numbers that a block, or a halving, keeps for each position."""
    if isinstance(block, PatchMerging):  # its input and its result
        return block.reduction.in_features + block.reduction.out_features
    if isinstance(
        block, TransformerBlock
    ):  # the input, both sums, both norms, q, k, v, what attention and feed-forward
        return (
            11 * block.d_model + 2 * block.feed_forward[0].out_features
        )  # gave; the hidden layer around its GELU
    further = sum(
        block.site_widths[site] for site, _ in block.arm.more
    )  # what norms at further sites gave
    if isinstance(
        block, Mamba2Block
    ):  # what in_proj gave around the convolution, Δ, y around its norm, Δ and u again
        return further + 2 * block.d_model + 2 * block.in_proj.out_features + 5 * block.d_inner
    # x and h = N1(x); both products of in_proj, u, the gated output, and a state of the scan now
    # and then; N2's input and output; of a VSS block u and y of every direction; Δ, B and C before
    # they are widened
    names = dict(block.named_parameters())
    logs, wide = names.get("A_log", names.get("A_logs")), block.d_inner
    directions = logs.numel() // (wide * logs.shape[-1])
    copies = (
        5
        + 2 * any(name.startswith("n2.") for name in names)
        + (2 * directions if directions > 1 else 0)
    )
    return (
        further
        + 2 * block.d_model
        + copies * wide
        + directions * (block.dt_rank + 2 * logs.shape[-1])
    )


# --------------------------------------------------------------------------------------------- time


@plain_torch()
def measure(config: RunConfig, shape: Shape) -> tuple[float, float]:
    """Seconds of a training step, and of evaluating a row, on this machine now with the run's
    threads, from a few steps on random data. ValueError if this process does not have so many
    threads.

    On a CPU a part of a large batch is timed (POSITIONS_TIMED, FLOPS_TIMED) and scaled up, because
    time grows with the rows. On a GPU it does not, so a whole micro-batch is timed.
    """
    device = machine.pick_device(config.device)
    model = build_model(config, shape).to(device)
    flops = 3 * sum(forward_flops(model, 1, shape.length).values())
    most = (
        min(POSITIONS_TIMED // shape.length, FLOPS_TIMED // flops)
        if device.type == "cpu"
        else config.batch_size
    )
    rows = max(1, min(config.micro_batch or config.batch_size, config.batch_size, most))
    optimizer = optimizer_of(model, config)
    with torch.random.fork_rng(devices=[]):  # the caller's random state is left alone
        inputs, labels = shape.batch(rows).to(device), shape.labels(rows).to(device)

    def step() -> None:
        with autocast(config, device):
            loss = loss_of(model(inputs, None), Targets(labels), config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    @torch.no_grad()
    def look() -> None:
        with autocast(config, device):
            model(inputs, None)

    with exactly_threads(config.threads):
        train_s = _median_s(step, device)
        model.eval()
        return train_s * config.batch_size / rows, _median_s(look, device) / rows


def _median_s(work, device: torch.device) -> float:
    times = []
    for _ in range(STEPS_WARM + STEPS_TIMED):
        start = time.perf_counter()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        times.append(time.perf_counter() - start)
        if sum(times[1:]) > LONG_S:  # the first may have waited for a compiler
            break
    return statistics.median(times[STEPS_WARM:] or times[1:])
