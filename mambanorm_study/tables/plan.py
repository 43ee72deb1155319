"""Estimates of the cost of runs before training: parameters, tokens, FLOPs, memory, and hours on
this machine.

`plan` estimates one run, `dry_run` all runs that the store lacks. For a task that states the shape
of its data, no data are loaded. flops.py says what a FLOP is.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numba
import pandas as pd
import torch
from torch import nn
from torch.utils.benchmark import Timer

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.text import number_text, plural, prefixed, spell
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import evaluation, grid, machine, regimen, store
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.run import check_data
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.tables.flops import row_flops
from mambanorm_study.tables.norm_catalog import saved_bytes
from mambanorm_study.tables.run_tables import markdown_table
from mambanorm_study.tasks import TASKS, Shape, TaskData, check_task, load_task

# A training step that is timed on a CPU has at most this many rows × positions, so that the step
# takes seconds.
POSITIONS_TIMED = 8_192
# Steps are timed for at least this many seconds, and at least two steps are timed.
SECONDS_TIMED = 0.5
# Bytes for each parameter: its value, its gradient, AdamW's two moments and its value at the best
# validation step, each in float32.
BYTES_OF_PARAMETER = 5 * 4
# Column of `plan_table` → its heading in `table_text` and its format.
COLUMNS = {
    "task": ("task", "{}".format),
    "arm": ("arm", "`{}`".format),
    "parameters": ("parameters", "{:,}".format),
    "steps": ("steps", "{:,}".format),
    "tokens": ("tokens", prefixed),
    "flops_per_step": ("FLOPs per step", prefixed),
    "flops": ("FLOPs", prefixed),
    "bytes": ("memory", lambda number: f"{prefixed(number)}B"),
    "seconds_per_step": ("s per step", number_text),
    "hours": ("hours", number_text),
}


@plain_torch()
def plan(config: RunConfig, *, measured: bool = True) -> dict[str, Any]:
    """Return the cost of one run as a dictionary with the keys task, scale, arm, parameters, steps,
    tokens, flops_per_step, flops, bytes, seconds_per_step and hours.

    FLOPs are counted as in flops.py, a training step as three forward passes. `bytes` is the
    memory of the parameters with their gradients and optimizer states, and of the tensors that a
    forward pass saves for the backward pass. `hours` includes the evaluations. `bytes`,
    `seconds_per_step` and `hours` are extrapolated from a few steps on random data; if `measured`
    is False, no step is run and these three are NaN. Raises ValueError for an unknown task, for a
    batch larger than the data, and for a model that does not fit in this machine's memory;
    TypeError if config is not a RunConfig.
    """
    check_kind("config", config, RunConfig, "base_config")
    model, shape = untrained_model(config)
    parameters = sum(p.numel() for p in model.parameters())
    flops_per_step = 3 * config.batch_size * row_flops(model, shape.length)
    seconds_per_step = activation_bytes = math.nan
    if measured:
        seconds_per_step, activation_bytes = measure(model, config, shape)
    evaluations = math.ceil(config.steps / config.eval_every)
    _, n_val, n_test = shape.sizes
    rows_evaluated = evaluations * n_val + n_test
    # evaluating a row takes one forward pass, a third of the time of training on this row
    equivalent_steps = config.steps + rows_evaluated / config.batch_size / 3
    return {
        "task": config.task,
        "scale": config.scale,
        "arm": config.arm,
        "parameters": parameters,
        "steps": config.steps,
        "tokens": config.steps * config.batch_size * (shape.tokens or shape.length),
        "flops_per_step": flops_per_step,
        "flops": config.steps * flops_per_step,
        "bytes": BYTES_OF_PARAMETER * parameters + activation_bytes,
        "seconds_per_step": seconds_per_step,
        "hours": equivalent_steps * seconds_per_step / 3600,
    }


def plan_table(configs: Iterable[RunConfig], *, measured: bool = True) -> pd.DataFrame:
    """Return the results of `plan` as a table, one row for each different config."""
    return pd.DataFrame([plan(config, measured=measured) for config in grid.unique(configs)])


def table_text(table: pd.DataFrame) -> str:
    """Return the result of `plan_table` as a Markdown table, with prefixes such as M, G and T for
    large numbers.
    """
    texts = pd.DataFrame(
        {
            heading: table[name].map(text, na_action="ignore").astype(object)
            for name, (heading, text) in COLUMNS.items()
        }
    )
    return markdown_table(texts.fillna("–").set_index("task"))


def untrained_model(config: RunConfig) -> tuple[nn.Module, Shape]:
    """Return the untrained model of a config and the shape of its data.

    Raises ValueError if the batch is larger than the data, and if training the model needs more
    memory than this machine has.
    """
    shape = shape_of(config)
    check_data(config, shape)
    # in_proj has 2·expand·D² weights, out_proj expand·D²
    weights = 3 * config.n_layers * config.expand * config.d_model**2
    needed, available = BYTES_OF_PARAMETER * weights, machine.memory()
    if needed > available:
        raise ValueError(
            f"training {prefixed(weights)} weights takes {prefixed(needed)}B of memory, and this "
            f"machine has {prefixed(available)}B: choose a smaller model"
        )
    return build_model(config, shape), shape


def shape_of(config: RunConfig) -> Shape:
    """Return the shape of a config's data. The data are loaded only if the task does not state
    their shape.
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


def measure(model: nn.Module, config: RunConfig, shape: Shape) -> tuple[float, float]:
    """Return (seconds, bytes): the time that a training step takes, and the memory that its forward
    pass saves for the backward pass. Both are measured in a few steps on random data with the run's
    number of threads.

    On a CPU only part of a large batch is run (at most POSITIONS_TIMED positions), and time and
    bytes are scaled up. A GPU runs a whole micro-batch, because the time on a GPU is not
    proportional to the number of rows. Raises ValueError if this process has fewer threads than the
    run needs.
    """
    device = machine.pick_device(config.device)
    model.to(device)
    rows_at_once = rows = min(config.micro_batch or config.batch_size, config.batch_size)
    if device.type == "cpu":
        rows = max(1, min(rows, POSITIONS_TIMED // shape.length))
    optimizer = optimizer_of(model, config)
    with torch.random.fork_rng(devices=[]):  # the caller's random state does not change
        inputs, labels = shape.random_inputs(rows).to(device), shape.random_labels(rows).to(device)

    def train_step() -> None:
        with evaluation.autocast(config, device):
            loss = regimen.loss_of(model(inputs, None), regimen.Targets(labels), config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    with exactly_threads(config.threads):
        activation_bytes = saved_bytes(train_step, model.parameters())
        timer = Timer("step()", globals={"step": train_step}, num_threads=config.threads)
        seconds = timer.blocked_autorange(min_run_time=SECONDS_TIMED).median
    return seconds * config.batch_size / rows, activation_bytes * rows_at_once / rows


# --------------------------------------------------------------------------------------------------
# the runs that the store lacks


def dry_run(
    configs: Iterable[RunConfig],
    *,
    runs_dir: str | Path | None = None,
    workers: int | str = "auto",
    scheduler: str | None = None,
) -> str:
    """Return as text how many of the runs are stored, how many are missing, and about how long the
    missing runs would take. No run is trained.

    Raises ValueError for runs whose model cannot be built or whose batch is larger than the data,
    and OSError for a store that cannot be written to.
    """
    configs = grid.unique(configs)
    missing, folder = store.missing_runs(configs, runs_dir), store.runs_dir(runs_dir)
    stored = f"{len(configs) - len(missing)} in the store ({folder})"
    text = f"{plural(len(configs), 'run')} asked for, {stored}, {len(missing)} missing"
    if not missing:
        return text
    writable_folder(folder, "the run store")
    # of the runs that differ only in seed and learning rate, one run is checked
    for config in {config.but(seed=0, lr=1.0): config for config in missing}.values():
        untrained_model(config)
    return f"{text}\n{estimate_time(missing, workers=workers, scheduler=scheduler)[1]}"


def estimate_time(
    missing: list[RunConfig], *, workers: int | str, scheduler: str | None
) -> tuple[float, str]:
    """Return (seconds, sentence): about how long it takes to train the missing runs with these
    workers, as a number of seconds and as a sentence.
    """
    # imported here, so that Dask is not loaded where no run is missing
    from mambanorm_study.runs.cluster import count_workers

    count = max(1, count_workers(missing, workers, scheduler))
    seconds = training_seconds(missing) / count
    tasks = ", ".join(dict.fromkeys(config.task for config in missing))
    basis = f"judged by a few steps of one run on {tasks}, timed just now"
    return (
        seconds,
        f"Training takes about {spell(seconds)} with {plural(count, 'worker')} ({basis})",
    )


def training_seconds(configs: list[RunConfig]) -> float:
    """Return about how many seconds it takes to train the runs one after another.

    For each combination of task, number of threads and kind of model, one run is timed, with at
    most as many threads as this process has. The times of the other runs of the combination are
    estimated from the time of this run in proportion to `relative_cost`.
    """
    seconds_per_cost: dict[tuple, float] = {}
    seconds = 0.0
    for config in configs:
        kind, cost = (config.task, config.threads, config.model), grid.relative_cost(config)
        if kind not in seconds_per_cost:
            threads = min(config.threads, numba.config.NUMBA_NUM_THREADS)
            seconds_per_cost[kind] = 3600 * plan(config.but(threads=threads))["hours"] / cost
        seconds += seconds_per_cost[kind] * cost
    return seconds
