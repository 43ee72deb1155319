"""The parts `scan`, `step` and `runs` of benchmarks.gpu: times of kernels, training steps and runs.

Glossary: B rows, L positions, D or E channels, N state size, K taps. Times in ms are medians of
several calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from benchmarks.gpu_errors import Cases, conv, conv_inputs, scan, scan_inputs
from benchmarks.runs import seconds_of
from mambanorm_study import base_config
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.run import train
from mambanorm_study.tables.plan import plan, shape_of

# (B, L, D, N); the first is ListOps's at scale paper
SHAPES = ((32, 2048, 256, 64), (64, 1024, 128, 16), (8, 8192, 256, 16))
TAPS = 4
COPY_BYTES = 2**30  # of the copy that measures the speed of the memory
FLUSH_BYTES = 2**28  # more than a GPU's cache holds
SLEEP_CYCLES = 2_000_000  # about a millisecond, in which the host gets ahead of the GPU


def kernel_times(device: torch.device, tiny: bool) -> Cases:
    """Yield a copy, which gives the speed of the memory, then scan and convolution at each size
    beside their peers, forward and backward.
    """
    copy_speed: dict[str, float] = {}  # bytes_per_ms, filled by the first case
    yield "copy", partial(copy_row, device, 2**16 if tiny else COPY_BYTES, copy_speed)
    row = partial(kernel_row, device, copy_speed)
    for shape in ((1, 8, 4, 4),) if tiny else SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            inputs = partial(scan_inputs, shape, device, dtype)
            least_bytes = scan_bytes(shape, dtype.itemsize)
            for backend in ("triton", "mamba_ssm"):
                name = f"scan by {backend} {shape}, {dtype}"
                yield name, partial(row, scan, backend, inputs, least_bytes)
        conv_shape = (*shape[:3], TAPS)
        inputs = partial(conv_inputs, conv_shape, device, torch.bfloat16)
        # u is read and the result written; then u and its gradient are read and du is written
        least_bytes = 5 * torch.bfloat16.itemsize * math.prod(shape[:3])
        for backend in ("triton", "torch"):
            name = f"convolution by {backend} {conv_shape}, {torch.bfloat16}"
            yield name, partial(row, conv, backend, inputs, least_bytes)


def copy_row(device: torch.device, size: int, copy_speed: dict[str, float]) -> dict:
    """Return the row of a copy of `size` bytes, and put its bytes_per_ms into `copy_speed`."""
    source = torch.randn(size // 4, device=device)
    times = timed(device, source.clone)
    copy_speed["bytes_per_ms"] = 2 * size / times["ms"]  # read and written
    return {**times, "gb_per_s": copy_speed["bytes_per_ms"] / 1e6}


def kernel_row(
    device: torch.device,
    copy_speed: dict[str, float],
    kernel: Callable[[dict[str, Tensor], str], Tensor],
    backend: str,
    make_inputs: Callable[[], dict[str, Tensor]],
    least_bytes: int,
) -> dict:
    """Return the row of `kernel(inputs, backend)` with its backward pass. Raise ImportError if
    mamba-ssm is asked for and missing.
    """
    if backend == "mamba_ssm":
        import_module("mamba_ssm.ops.selective_scan_interface")
    inputs = make_inputs()
    leaves, direction = list(inputs.values()), torch.randn_like(inputs["u"])
    times = timed(device, lambda: torch.autograd.grad(kernel(inputs, backend), leaves, direction))
    share = least_bytes / times["ms"] / copy_speed["bytes_per_ms"] if copy_speed else ""
    return {**times, "mb_moved": least_bytes / 1e6, "share_of_copy": share}


def scan_bytes(shape: tuple[int, ...], itemsize: int) -> int:
    """Return the fewest bytes that a scan and its backward pass move: forward, each input is read
    and each result written once; backward, inputs and dout are read, and du, dΔ, dB, dC written.
    """
    batch, length, channels, states = shape
    wide, narrow = batch * length * channels * itemsize, batch * length * states * itemsize
    return (3 * wide + 2 * narrow) + (5 * wide + 4 * narrow)


def step_times(device: torch.device, tiny: bool) -> Cases:
    """Yield a training step of each of the paper's tasks, on random data of their shape."""
    for task in ("listops",) if tiny else ("listops", "cifar10", "pathfinder64"):
        for precision in ("bf16", "float32"):
            scale = "smoke" if tiny else "paper"
            config = base_config(task, scale, precision=precision, device=device.type)
            yield f"{task}, {precision}", partial(step_row, config)


def step_row(config: RunConfig) -> dict:
    """Return the time of a step, its tokens a second, and the hours of a whole run."""
    planned, tokens = plan(config), config.batch_size * shape_of(config).length
    seconds = planned["seconds_per_step"]
    hours = planned["hours"]
    return {"ms": 1e3 * seconds, "tokens_per_s": tokens / seconds, "hours_of_a_run": hours}


def run_times(device: torch.device, tiny: bool) -> Cases:
    """Yield whole runs of small tasks."""
    for task in ("digits",) if tiny else ("digits", "mnist1d"):
        config = base_config(task, "smoke" if tiny else "evening", device=device.type)
        yield task, partial(run_row, config)


def run_row(config: RunConfig) -> dict:
    """Return the seconds and the accuracy of a run."""
    start = time.perf_counter()
    result = train(config)
    return {
        "seconds": time.perf_counter() - start,
        "steps": config.steps,
        "test_accuracy": result.test_accuracy,
        "chance": result.chance,
    }


def timed(device: torch.device, call: Callable[[], object], seconds: float = 1.0) -> dict:
    """Return median and quartiles in ms of as many calls as fit into `seconds`, at least three,
    after three that are not counted. On a GPU only its own time counts, with an empty cache.
    """

    def once() -> float:
        if device.type != "cuda":
            return 1e3 * seconds_of(call)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device).zero_()
        torch.cuda._sleep(SLEEP_CYCLES)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    estimate = [once() for _ in range(3)][-1]
    repeats = min(max(3, int(1e3 * seconds / max(estimate, 1e-3))), 200)
    low, median, high = statistics.quantiles(
        [once() for _ in range(repeats)], n=4, method="inclusive"
    )
    return {"ms": median, "low_ms": low, "high_ms": high, "repeats": repeats}
