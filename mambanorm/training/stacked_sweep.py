"""The stacks of a sweep: which runs go into one, how many fit onto the device, and their training under leases.

train_stacks       the runs that can be stacked: each stack trained and stored
stacks_of          runs → stacks, evenly filled
slices_that_fit    how many slices the memory of a GPU takes, measured
check_stack        what `stack=` may be
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from mambanorm.basics.text import plural
from mambanorm.config import RunConfig
from mambanorm.training.leases import Held, lease
from mambanorm.training.machine import pick_device
from mambanorm.training.stacked import kind_of, open_stack, train_stacked, why_not
from mambanorm.training.store import find_run, resume_dir, save_run
from mambanorm.training.worker import with_space

FILLED = 0.9  # of the memory that is free: evaluations and the allocator's gaps take some as well


def check_stack(stack: int | str | None, configs: list[RunConfig]) -> None:
    """Raises ValueError for a stack that is neither None, "auto" nor a whole number from 1, and for "auto" on the CPU,
    which has no memory of its own to be filled."""
    if stack is None:
        return
    if stack != "auto" and (isinstance(stack, bool) or not isinstance(stack, int) or stack < 1):
        raise ValueError(f"stack must be None, 'auto' or how many runs train as one, a whole number, got {stack!r}")
    devices = {pick_device(config.device).type for config in configs} - {"cuda"}
    if stack == "auto" and devices:
        raise ValueError(
            f"stack='auto' measures the memory of a GPU, and there are runs on {min(devices)!r}: give a number, stack=8"
        )


def stacks_of(todo: list[RunConfig], size: int | str) -> Iterator[list[RunConfig]]:
    """The runs that can be stacked, those of one kind in as few stacks of at most `size` as they need, evenly filled.
    "auto": as many as fit. A run that is alone of its kind is in none."""
    kinds: dict[str, list[RunConfig]] = {}
    for config in todo:
        if why_not(config) is None:
            kinds.setdefault(kind_of(config), []).append(config)
    for runs in kinds.values():
        if len(runs) > 1:
            most = slices_that_fit(runs[0]) if size == "auto" else size
            parts = math.ceil(len(runs) / most)
            yield from (part for i in range(parts) if len(part := runs[i::parts]) > 1)


def slices_that_fit(config: RunConfig) -> int:
    """How many runs like this one fit into what is free of its GPU's memory, by the peaks of a first step of one slice
    and of two. ValueError for a config of another device."""
    check_stack("auto", [config])
    device = pick_device(config.device)
    _, one, two = (_peak_bytes(config, n, device) for n in (1, 1, 2))  # the first call also pays for work spaces
    gc.collect()
    torch.cuda.empty_cache()
    return fitting(one, two, torch.cuda.mem_get_info(device)[0])


def _peak_bytes(config: RunConfig, n: int, device: torch.device) -> int:
    gc.collect()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    slices, stack, feed = open_stack([config.but(seed=config.seed + i) for i in range(n)])
    rows = torch.arange(min(config.batch_size, slices[0].rows)).expand(n, -1)
    stack.step(*feed.batch(rows))
    return torch.cuda.max_memory_allocated(device) - before


def fitting(one: int, two: int, free: int) -> int:
    """How many slices fill `free` bytes where one takes `one` and two take `two`: at least 1."""
    each = max(two - one, 1)
    return max(1, int((FILLED * free - (one - each)) / each))


def train_stacks(todo: list[RunConfig], size: int | str, store: Path) -> Iterator[tuple[RunConfig, str | None, int]]:
    """Trains stacks in this process and stores their runs; yields (config, None, 0) for each run that is then stored.

    A stack keeps no checkpoints: what ends before it does trains it anew. OSError if the disk of the store stays full.
    Not among these, and left for the caller to train alone: what cannot be stacked, what another process trains, what
    has a checkpoint to go on from, and the runs of a stack that could not be trained, after a warning.
    """
    fresh = [config for config in todo if not resume_dir(config, store).exists()]
    for runs in stacks_of(fresh, size):
        with ExitStack() as leases:
            mine = [config for config in runs if _held(config, store, leases)]
            there = [config for config in mine if find_run(config, store) is not None]
            for config in there + _train_and_store([config for config in mine if config not in there], store):
                yield config, None, 0


def _held(config: RunConfig, store: Path, leases: ExitStack) -> bool:
    """Whether the run is ours now; False where another process trains it, or where the lease is an error to be told."""
    try:
        leases.enter_context(lease(config.run_id, store))
    except (Held, OSError):
        return False
    return True


def _train_and_store(runs: list[RunConfig], store: Path) -> list[RunConfig]:
    """The runs that were trained as one and stored. A stack must not take its runs with it: they can train alone."""
    if len(runs) < 2:
        return []
    try:
        results = train_stacked(runs)
    except Exception as error:
        what = f"a stack of {plural(len(runs), 'run')} of {runs[0].arm} on {runs[0].task}"
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{what} failed, its runs are trained one by one: {reason}", stacklevel=2)
        return []
    for result in results:
        with_space(lambda result=result: save_run(result, store), store)
    return runs
