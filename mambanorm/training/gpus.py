"""Which GPUs there are, and how many runs fit on one: measured, not guessed.

A worker takes more of a GPU than its tensors: the CUDA context, loaded kernels and workspaces count too, and only the
memory that is left on the whole device tells. So of two processes one trains a few steps, and the other looks on. They
are gone before the sweep begins, and the process of the sweep opens no GPU for it.

Map
    gpus_for        the GPUs that these runs may be dealt out to
    runs_a_gpu      tries the runs that need most and says how many fit beside each other
    largest         the runs that are tried
    fits            the arithmetic alone
    spread          several workers a GPU, in dask-cuda's cluster, which starts one

Nobody has run this on a GPU yet: the tests hold the arithmetic, the order of the calls, and dask-cuda's own class with
its device calls switched off.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from itertools import cycle
from typing import Any, NamedTuple

import torch
from dask.distributed import Client, LocalCluster

from mambanorm.basics.extensions import load_imports
from mambanorm.config import RunConfig
from mambanorm.training.run import train

USED = 0.9
"""The share of a GPU's free memory that is given to runs. The rest is for what a few steps do not show: blocks that the
allocator cannot use again, a longer batch, another process."""
STEPS, PATIENCE_S = 3, 60.0  # of each run that is tried; no further one is tried after that time


def gpus_for(todo: list[RunConfig]) -> list[str]:
    """The GPUs for these runs, by their names in CUDA_VISIBLE_DEVICES, else by their numbers; none if all runs train
    on the CPU. Several need dask-cuda: without it there is one, and a warning."""
    if not any(config.device in ("auto", "cuda") for config in todo) or not torch.cuda.is_available():
        return []
    count, named = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(count)] if named is None else [name.strip() for name in named.split(",")][:count]
    if len(names) > 1 and find_spec("dask_cuda") is None:
        warnings.warn(
            f"of {len(names)} GPUs only the first is used: `pip install dask-cuda` (the cuda extra) for all of them",
            stacklevel=2,
        )
        return names[:1]
    return names


def fits(free: int, needed: int, most: int) -> int:
    """How many workers share a GPU of `free` bytes if each takes `needed`: from 1 to `most`. 1 if nothing was measured
    (`needed` ≤ 0)."""
    return max(1, min(most, int(USED * free) // needed)) if needed > 0 else 1


def largest(todo: list[RunConfig]) -> list[RunConfig]:
    """The runs that are tried: of every task and arm with the task's largest model and batch one, as a run of few
    steps. What learns from other runs is tried without them: they may not be in the store yet."""
    found: dict[tuple[str, str], RunConfig] = {}
    most: dict[str, int] = {}
    for config in todo:
        most[config.task] = max(most.get(config.task, 0), _size(config))
    for config in todo:
        if _size(config) == most[config.task]:
            alone = dict(teacher="", start="", head_steps=0, patience=0)
            found.setdefault((config.task, config.arm), config.but(steps=STEPS, eval_every=STEPS, **alone))
    return list(found.values())


def _size(config: RunConfig) -> int:
    """What the memory of a task's runs grows with: rows of one forward pass × layers × inner width."""
    return (config.micro_batch or config.batch_size) * config.n_layers * config.expand * config.d_model


class Peak(NamedTuple):
    """Bytes that the allocator of a process holds: the most it ever did, and now."""

    most: int
    now: int


def try_runs(configs: list[str], imports: Mapping[str, str]) -> Peak:
    """In a worker: trains these runs (JSON) for PATIENCE_S seconds, at least the first of them. What cannot be trained
    is left out: the sweep will say why."""
    load_imports(imports)
    end, most = time.monotonic() + PATIENCE_S, 0
    for text in configs:
        with suppress(Exception):
            train(RunConfig.from_json(text))
        most = max(most, torch.cuda.max_memory_reserved())  # a run begins by resetting it
        if time.monotonic() > end:
            break
    return Peak(most, torch.cuda.memory_reserved())


def free_bytes() -> list[int]:
    """In a worker: what is free on each GPU. The first call opens a context on each."""
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def runs_a_gpu(client: Client, todo: list[RunConfig], most: int) -> int:
    """How many of these runs may train on a GPU at the same time, by a trial in the two workers of `client`: from 1 to
    `most`.

    The first GPU is tried, and the fullest decides. 1, and a warning, if the trial fails.
    """
    looks_on, trains = client.nthreads()
    try:
        free = _on(client, looks_on, free_bytes)
        peak = _on(client, trains, try_runs, [config.to_json() for config in largest(todo)], load_imports())
        held = free[0] - _on(client, looks_on, free_bytes)[0]  # by the whole process, as it is now
    except RuntimeError as error:
        message = (
            f"how many runs fit on a GPU could not be measured ({error}): each trains one at a time; or --workers N"
        )
        warnings.warn(message, stacklevel=2)
        return 1
    return fits(min(free), max(held + peak.most - peak.now, peak.most), most)


def _on(client: Client, worker: str, call: Callable, *given: Any) -> Any:
    """`call(*given)` in this worker. RuntimeError if the worker dies: Dask would wait for it for ever."""
    future = client.submit(call, *given, workers=[worker], pure=False)
    while True:
        try:
            return future.result(timeout=1)
        except TimeoutError:
            if worker not in client.nthreads():
                raise RuntimeError("the process that tried them died") from None


def spread(cluster: LocalCluster, workers: int) -> None:
    """Adds workers to a cluster of one worker a GPU until there are so many, evenly over the GPUs.

    dask-cuda deals GPUs out through each worker's environment, so a copy of a worker's specification is one more worker
    on its GPU. Dask reads the specifications when it scales.
    """
    first = dict(cluster.worker_spec)
    for i, (name, spec) in zip(range(len(first), workers), cycle(first.items())):
        cluster.worker_spec[f"{name}-{i}"] = {**spec, "options": dict(spec["options"])}
    cluster.scale(len(cluster.worker_spec))
