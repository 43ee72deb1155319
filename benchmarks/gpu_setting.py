"""Where and at which sizes `benchmarks/gpu.py` measures, how it takes times, and the kernels of two of its parts.

What is to be known of the machine torch is asked for; no number of a GPU is written here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mambanorm import selective_scan
from mambanorm.kernels.cuda import conv_silu_gpu
from mambanorm.operations.conv_gate import causal_conv

CACHE, AHEAD_CYCLES = 2**28, 2_000_000  # bytes that are more than a GPU's cache holds; about a millisecond
Work = Callable[[], dict]
Cases = Iterator[tuple[str, Work]]
Clock = Callable[[], float]
"""Seconds that are left for the part."""


@dataclass(frozen=True)
class Sizes:
    """What is measured at. The sizes of PAPER are what the targets are about."""

    odd: tuple = ((1, 1, 3, 4), (2, 37, 40, 16), (3, 130, 24, 5), (2, 257, 96, 64))  # (B, L, D, N) of the correctness
    taps: tuple = ((1, 1, 3, 4), (2, 37, 40, 4), (3, 301, 67, 3))  # (B, L, E, K) of the convolution's correctness
    scan: tuple = ((32, 2048, 256, 64), (64, 1024, 128, 16), (8, 8192, 256, 16))  # the first is ListOps's at paper
    unrolled: tuple = (8, 32, 128, 16)  # torch.compile writes a loop over positions out
    step: tuple = ("listops", "cifar10", "pathfinder64")
    scale: str = "paper"
    width: int = 40  # of the blocks that are checked
    block: tuple = (2, 37)  # their (B, L)
    copied: int = 2**30  # bytes of the copy that tells the memory's speed
    runs: tuple = (("digits", "evening"), ("mnist1d", "evening"), ("listops", "paper"))


PAPER = Sizes()
TINY = Sizes(
    odd=((1, 1, 3, 4),), taps=((1, 2, 3, 4),), scan=((1, 8, 4, 4),), unrolled=(1, 4, 4, 4), step=("listops",),
    scale="smoke", width=8, block=(2, 5), copied=2**16, runs=(("digits", "smoke"),),
)  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Where and at which sizes."""

    device: torch.device
    sizes: Sizes
    take_rows: Callable[[], None] = lambda: None  # of ListOps, see gpu_data.py

    @property
    def name(self) -> str:
        if self.device.type != "cuda":
            return "no GPU: the CPU, Triton's kernels in its interpreter"
        facts = torch.cuda.get_device_properties(self.device)
        return f"{facts.name}, {facts.multi_processor_count} multiprocessors, {facts.total_memory / 2**30:.0f} GiB"

    def time(self, run: Callable[[], object], seconds: float = 1.0, *, host: bool = False) -> dict:
        """Median and quartiles in ms of as many runs as fit, at least three, after three that warm up. `host`: by the
        clock, what Python takes to ask for the work included."""
        for _ in range(3):
            run()
        self.wait()
        start = time.perf_counter()
        run()
        self.wait()
        count = min(max(3, int(seconds / max(time.perf_counter() - start, 1e-6))), 200)
        times = [self._once(run, host) for _ in range(count)]
        low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
        return {"ms": middle, "low_ms": low, "high_ms": high, "repeats": count}

    def _once(self, run: Callable[[], object], host: bool) -> float:
        """Milliseconds of the device alone, its cache emptied and the host a millisecond ahead; or by the clock, with
        all that the host does."""
        if host or self.device.type != "cuda":
            start = time.perf_counter()
            run()
            self.wait()
            return 1e3 * (time.perf_counter() - start)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.empty(CACHE, dtype=torch.uint8, device=self.device).zero_()
        torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def broken(self) -> str | None:
        """What is wrong with the device after a case, None if it still works."""
        try:
            self.wait()
        except Exception as error:
            return str(error).splitlines()[0]
        return None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_mb(self, run: Callable[[], object]) -> float | str:
        """Memory that the allocator reserves for what is run once. On the CPU nobody counts."""
        if self.device.type != "cuda":
            return ""
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        run()
        self.wait()
        return (torch.cuda.max_memory_reserved(self.device) - before) / 1e6


# ---------------------------------------------------------------------------------------------------------------------
# the kernels


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def scan_inputs(shape: tuple, device: torch.device, dtype: torch.dtype, by_step: bool = True) -> dict[str, Tensor]:
    """What a block hands to the scan: u, delta, z (B, D, L) as views of (B, L, D), A (D, N), B and C, D and bias."""
    batch, length, channels, size = shape
    torch.manual_seed(0)
    rows = {name: torch.randn(batch, length, channels, device=device).to(dtype) for name in ("u", "delta", "z")}
    steps = (batch, length, size) if by_step else (channels, size)
    both = {name: torch.randn(steps, device=device) for name in ("B", "C")}
    A = -torch.rand(channels, size, device=device) * size - 0.5
    D, bias = (torch.randn(channels, device=device) for _ in range(2))
    leaves = rows | {k: v.to(dtype) if by_step else v for k, v in both.items()} | dict(A=A, D=D, delta_bias=bias - 2)
    return {name: value.requires_grad_() for name, value in leaves.items()}


def scan(leaves: dict[str, Tensor], backend: str = "auto") -> Tensor:
    """(B, L, D), from and to channels last."""
    given = {k: v.transpose(1, 2) if v.dim() == 3 else v for k, v in leaves.items()}
    return selective_scan(**given, delta_softplus=True, backend=backend).transpose(1, 2)


def conv_inputs(shape: tuple, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """u (B, L, E) as a block hands it over, the first half of a wider tensor; weight (E, 1, K) and bias (E,)."""
    batch, length, channels, taps = shape
    torch.manual_seed(0)
    both = torch.randn(batch, length, 2 * channels, device=device).to(dtype)
    weight, bias = torch.randn(channels, 1, taps, device=device), torch.randn(channels, device=device)
    leaves = {"u": both[..., :channels], "weight": weight, "bias": bias}
    return {name: value.detach().requires_grad_() for name, value in leaves.items()}


def conv(leaves: dict[str, Tensor], backend: str = "triton") -> Tensor:
    """SiLU of the causal convolution, (B, L, E): by Triton, by torch's own convolution, or plain ("reference")."""
    u, weight, bias = leaves["u"], leaves["weight"], leaves["bias"]
    if backend == "triton":
        from mambanorm.kernels.conv_triton import conv_silu_triton  # here: only where Triton is

        return conv_silu_triton(u, weight, bias)
    if backend == "torch":
        return conv_silu_gpu(u, weight.to(u), bias.to(u))
    return F.silu(causal_conv(u, weight, bias))


def bytes_moved(shape: tuple, size: int, backward: bool) -> int:
    """The fewest bytes of a scan with gate and by-step B and C: each input read once, each result written once. The
    backward pass reads the inputs and dout and writes du, dΔ, dz, dB, dC."""
    batch, length, channels, states = shape
    row, steps = batch * length * channels * size, batch * length * states * size
    forward = 4 * row + 2 * steps
    return forward + 7 * row + 4 * steps if backward else forward
