"""The parts `scan`, `step` and `runs` of benchmarks.gpu: times of kernels, training steps and runs.

Glossary: B rows, L positions, D or E channels, N state size, K taps. Times in ms are medians of
several calls.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu_errors import conv, conv_inputs, dtype_name, scan, scan_inputs
from benchmarks.gpu_workers import Cases, Setting
from benchmarks.runs import seconds_of
from mambanorm.operations import scan_backend
from mambanorm_study import base_config
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.run import train
from mambanorm_study.tables.plan import plan, shape_of

# (B, L, D, N); the first is ListOps's at scale paper
SHAPES = ((32, 2048, 256, 64), (64, 1024, 128, 16), (8, 8192, 256, 16))
TAPS = 4
COPY_BYTES = 2**30  # of the copy that measures the speed of the memory
FLUSH_BYTES = 2**28  # more than a GPU's cache holds
SLEEP_CYCLES = 6_000_000  # about three milliseconds, in which the host gets ahead of the GPU
LEAST_REPEATS, MOST_REPEATS = 3, 200
FEW_STEPS = 8  # enough to compile the kernels and to capture a graph


# --------------------------------------------------------------------------------------------------
# scan and convolution


@dataclass(frozen=True)
class KernelGroup:
    """Implementations of one operation at one size: the first is the peer of the others.

    calls: name → function that makes the inputs and returns the forward and backward pass.
    least_bytes: the fewest bytes that forward and backward pass move.
    """

    title: str
    calls: dict[str, Callable[[], Callable[[], object]]]
    least_bytes: int


def kernel_times(setting: Setting) -> Cases:
    """Yield a copy, which gives the speed of the memory, then scan and convolution at each size
    beside their peers, forward and backward.
    """
    speeds: dict[str, float] = {}  # "copy": bytes per ms; "peer of …": ms
    yield "copy", partial(copy_row, setting, speeds)
    for shape in ((1, 8, 4, 4),) if setting.tiny else SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            yield from group_cases(setting, scan_group(setting.device, shape, dtype), speeds)
        yield from group_cases(setting, conv_group(setting.device, (*shape[:3], TAPS)), speeds)


def group_cases(setting: Setting, group: KernelGroup, speeds: dict[str, float]) -> Cases:
    """Yield the implementations of a group, the peer first, because the others are compared with
    its time.
    """
    for name in group.calls:
        yield f"{group.title} by {name}", partial(kernel_row, setting, group, name, speeds)


def copy_row(setting: Setting, speeds: dict[str, float]) -> dict:
    """Return the row of a copy, and put its bytes per ms into `speeds`."""
    size = 2**16 if setting.tiny else COPY_BYTES
    source = torch.randn(size // 4, device=setting.device)
    times = timed(setting, partial(uncached_ms, setting.device, source.clone))
    speeds["copy"] = 2 * size / times["ms"]  # read and written
    return {**times, "gb_per_s": speeds["copy"] / 1e6}


def kernel_row(setting: Setting, group: KernelGroup, name: str, speeds: dict[str, float]) -> dict:
    """Return the row of one implementation. Raise ImportError if its package is missing."""
    call = group.calls[name]()
    times = timed(setting, partial(uncached_ms, setting.device, call))
    peer, peer_key = next(iter(group.calls)), f"peer of {group.title}"
    if name == peer:
        speeds[peer_key] = times["ms"]
    least_ms = group.least_bytes / speeds["copy"] if "copy" in speeds else math.nan
    return {
        **times,
        f"of_{peer}": ratio(times["ms"], speeds.get(peer_key)),
        "memory_mb": peak_mb(setting.device, call),
        "mb_moved": group.least_bytes / 1e6,
        "share_of_copy": ratio(least_ms, times["ms"]),
    }


def ratio(value: float, other: float | None) -> float | str:
    """Return value / other, or "" if `other` was not measured."""
    return value / other if other else ""


def scan_group(device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> KernelGroup:
    """Return mamba-ssm's scan and ours at one size (B, L, D, N).

    Bytes, forward: each input is read and each result written once; backward: inputs and dout are
    read, and du, dΔ, dB, dC written.
    """
    batch, length, channels, states = shape
    wide, narrow = (batch * length * width * dtype.itemsize for width in (channels, states))
    return KernelGroup(
        f"scan {shape}, {dtype_name(dtype)}",
        {
            "mamba_ssm": partial(mamba_ssm_call, shape, device, dtype),
            "triton": partial(our_call, scan, scan_inputs, "triton", shape, device, dtype),
        },
        (3 * wide + 2 * narrow) + (5 * wide + 4 * narrow),
    )


def conv_group(device: torch.device, shape: tuple[int, ...]) -> KernelGroup:
    """Return causal-conv1d's convolution, ours and torch's at one size (B, L, E, K), in bfloat16.

    Bytes: u is read and the result written; then u and its gradient are read and du is written.
    """
    dtype = torch.bfloat16
    ours = {
        name: partial(our_call, conv, conv_inputs, name, shape, device, dtype)
        for name in ("triton", "torch")
    }
    return KernelGroup(
        f"convolution {shape}, {dtype_name(dtype)}",
        {"causal_conv1d": partial(causal_conv1d_call, shape, device, dtype), **ours},
        5 * dtype.itemsize * math.prod(shape[:3]),
    )


def our_call(
    kernel: Callable[[dict[str, Tensor], str], Tensor],
    make_inputs: Callable[..., dict[str, Tensor]],
    backend: str,
    *size: object,
) -> Callable[[], object]:
    """Return the forward and backward pass of `kernel(inputs, backend)` on inputs in the memory
    layout of a block, (B, L, D).
    """
    inputs = make_inputs(*size)
    return with_backward(lambda: kernel(inputs, backend), inputs)


def mamba_ssm_call(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    """Return the forward and backward pass of mamba-ssm's scan on the same numbers, in the memory
    layout that it is made for: (B, D, L), and (B, 1, N, L) for B and C.
    """
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    inputs = scan_inputs(shape, device, dtype)
    for name in ("u", "delta", "B", "C"):
        value = inputs[name].detach().transpose(1, 2).contiguous()
        value = value.unsqueeze(1) if name in "BC" else value
        inputs[name] = value.requires_grad_()
    return with_backward(lambda: selective_scan_fn(**inputs, delta_softplus=True), inputs)


def causal_conv1d_call(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> Callable[[], object]:
    """Return the forward and backward pass of causal-conv1d's convolution on the same numbers, in
    the memory layout (B, E, L).
    """
    from causal_conv1d import causal_conv1d_fn

    values = conv_inputs(shape, device, dtype)
    inputs = {
        "u": values["u"].transpose(1, 2).contiguous(),
        "weight": values["weight"].squeeze(1),
        "bias": values["bias"],
    }
    inputs = {name: value.detach().requires_grad_() for name, value in inputs.items()}
    return with_backward(lambda: causal_conv1d_fn(*inputs.values(), activation="silu"), inputs)


def with_backward(
    forward: Callable[[], Tensor], inputs: dict[str, Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that calls `forward` and returns the gradients of the inputs along one
    random direction, which has the shape and memory layout of the input u.
    """
    leaves, direction = list(inputs.values()), torch.randn_like(inputs["u"])
    return lambda: torch.autograd.grad(forward(), leaves, direction)


# --------------------------------------------------------------------------------------------------
# training steps at scale paper, whole runs


def step_times(setting: Setting) -> Cases:
    """Yield a training step of each of the paper's tasks, on random data of their shape."""
    for task in ("listops",) if setting.tiny else ("listops", "cifar10", "pathfinder64"):
        for precision in ("bf16", "float32"):
            scale = "smoke" if setting.tiny else "paper"
            config = base_config(task, scale, precision=precision, device=setting.device.type)
            yield f"{task}, {precision}", partial(step_row, config, setting.device)


def step_row(config: RunConfig, device: torch.device) -> dict:
    """Return the time of a step, its tokens a second, the hours of a whole run, and which scan
    `auto` takes.
    """
    planned, tokens = plan(config), config.batch_size * shape_of(config).length
    seconds = planned["seconds_per_step"]
    return {
        "ms": 1e3 * seconds,
        "tokens_per_s": tokens / seconds,
        "hours_of_a_run": planned["hours"],
        "scan": scan_backend(torch.empty(0, device=device)),
    }


def run_times(setting: Setting) -> Cases:
    """Yield whole runs of small tasks."""
    for task in ("digits",) if setting.tiny else ("digits", "mnist1d"):
        config = base_config(
            task, "smoke" if setting.tiny else "evening", device=setting.device.type
        )
        if not setting.seconds:
            config = config.but(steps=FEW_STEPS, eval_every=FEW_STEPS, warmup_steps=1)
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


# --------------------------------------------------------------------------------------------------
# clocks and memory


def timed(setting: Setting, once: Callable[[], float]) -> dict:
    """Return median and quartiles of as many calls of `once`, which returns ms, as fit into the
    measuring time, after three that are not counted.
    """
    if not setting.seconds:
        return {"ms": once()}
    for _ in range(2):
        once()
    repeats = int(setting.seconds / max(seconds_of(once), 1e-6))
    times = [once() for _ in range(min(max(LEAST_REPEATS, repeats), MOST_REPEATS))]
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": median, "low_ms": low, "high_ms": high, "repeats": len(times)}


def uncached_ms(device: torch.device, call: Callable[[], object]) -> float:
    """Return the milliseconds of a call; on a GPU, its own time, with an empty cache."""
    if device.type == "cuda":
        torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device).zero_()
    return device_ms(device, call, SLEEP_CYCLES)


def device_ms(device: torch.device, call: Callable[[], object], sleep_cycles: int) -> float:
    """Return the milliseconds of a call; on a GPU, its own time.

    The GPU first sleeps for so many cycles, so that it does not wait for the host during the call.
    """
    if device.type != "cuda":
        return 1e3 * seconds_of(call)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(sleep_cycles)
    start.record()
    call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def peak_mb(
    device: torch.device, call: Callable[[], object], base: int | None = None
) -> float | str:
    """Return by how many MB the memory that a call allocates on a GPU exceeds `base` bytes at its
    peak; "" on a CPU. A base of None means the memory in use before the call.
    """
    if device.type != "cuda":
        return ""
    base = torch.cuda.memory_allocated(device) if base is None else base
    torch.cuda.reset_peak_memory_stats(device)
    call()
    return (torch.cuda.max_memory_allocated(device) - base) / 1e6
