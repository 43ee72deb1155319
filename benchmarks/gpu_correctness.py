"""Part `correctness` of `benchmarks/gpu.py`: kernels and blocks against float64 on the CPU, results and gradients.

In float32 the error is judged by itself. In bfloat16, whose inputs alone are off by a part in 256, it is judged by the
readable twin's: the same block, or the plain scan or convolution, in bfloat16 on the same device.
"""

from __future__ import annotations

import copy
import functools
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.gpu_setting import Cases, Clock, Setting, conv, conv_inputs, scan, scan_inputs, short
from mambanorm import Arm, MambaBlock
from mambanorm.models.mamba2 import Mamba2Block

# ---------------------------------------------------------------------------------------------------------------------
# correctness

LIMIT = 1e-4  # of ‖ours − float64‖ / ‖float64‖, in float32
SLACK = 2.0  # in bfloat16 the error may be so many times that of the readable twin in bfloat16,
UNITS = 4  # or so many units in bfloat16's last place, 2⁻⁸: a block hands its parts on in bfloat16
ARMS = (
    "None>SSM>None", "RMSN>SSM>GN", "RMSN>SSM>RMSN+B:RMSN+C:RMSN+delta:RMSN", "RMSN>SSM>None+conv:LN+z:RMSN"
)  # fmt: skip


def correctness(setting: Setting, clock: Clock) -> Cases:
    """Scan and convolution at odd sizes, the scan in each form; blocks, with norms at both places and inside."""
    for shape in setting.sizes.odd:
        yield f"scan {shape}, float32", functools.partial(_scan_error, setting, shape, True, torch.float32)
    shape = setting.sizes.odd[-1]  # each further form is two kernels to compile, of some seconds each
    for by_step, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        form = "B and C by step" if by_step else "B and C constant"
        name = f"scan {shape}, {form}, {short(dtype)}"
        yield name, functools.partial(_scan_error, setting, shape, by_step, dtype)
    for shape in setting.sizes.taps:
        for dtype in (torch.float32, torch.bfloat16):
            yield f"convolution {shape}, {short(dtype)}", functools.partial(_conv_error, setting, shape, dtype)
    for precision in (torch.float32, torch.bfloat16):
        for arm in ARMS:
            yield f"block {arm}, {short(precision)}", functools.partial(_block_error, setting, arm, precision)
    other = functools.partial(_block_error, setting, "RMSN>SSM>None", torch.float32, Mamba2Block)
    yield "Mamba-2 block, float32", other


def twin_of(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().double().requires_grad_() for name, value in leaves.items()}


def errors_of(out: Tensor, leaves: list[Tensor], other: Tensor, others: list[Tensor]) -> list[float]:
    """‖a − b‖ / ‖b‖ of the result and of each gradient along one random direction; b in float64 on the CPU."""
    direction = torch.randn(other.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    pairs = [(out, other)]
    ours = torch.autograd.grad(out, leaves, direction.to(out), allow_unused=True)
    theirs = torch.autograd.grad(other, others, direction, allow_unused=True)
    pairs += [pair for pair in zip(ours, theirs, strict=True) if pair[1] is not None and pair[1].norm() > 0]
    return [float((a.detach().cpu().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]


def _scan_error(setting: Setting, shape: tuple, by_step: bool, dtype: torch.dtype) -> dict:
    return _kernel_error(scan, scan_inputs(shape, setting.device, dtype, by_step), dtype)


def _conv_error(setting: Setting, shape: tuple, dtype: torch.dtype) -> dict:
    return _kernel_error(conv, conv_inputs(shape, setting.device, dtype), dtype)


def _kernel_error(function: Callable[..., Tensor], leaves: dict[str, Tensor], dtype: torch.dtype) -> dict:
    """`function(leaves, backend)` by "triton" against its "reference" in float64."""

    def errors(backend: str) -> list[float]:
        twin = twin_of(leaves)
        exact = function(twin, "reference")
        return errors_of(function(leaves, backend), list(leaves.values()), exact, list(twin.values()))

    return judged(errors("triton"), None if dtype == torch.float32 else errors("reference"))


def _block_error(setting: Setting, arm: str, precision: torch.dtype, kind: type[nn.Module] = MambaBlock) -> dict:
    """A block as it trains, its parameters in float32; bfloat16 by autocast."""
    torch.manual_seed(0)
    sizes = setting.sizes
    own = dict(head_dim=sizes.width // 2) if kind is Mamba2Block else {}
    block = kind(sizes.width, *Arm.parse(arm), scan_backend="triton", **own)
    exact = copy.deepcopy(block).double()
    exact.scan_backend = "reference"
    readable = copy.deepcopy(block).to(setting.device)
    readable.scan_backend = "reference"
    block = block.to(setting.device)
    x = torch.randn(*sizes.block, sizes.width)

    def errors(model: nn.Module) -> list[float]:
        leaf, other = x.to(setting.device).requires_grad_(), x.double().requires_grad_()
        with torch.autocast(setting.device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
            out = model(leaf)
        twin = copy.deepcopy(exact)
        ours, theirs = ([p for p in one.parameters() if p.requires_grad] for one in (model, twin))
        return errors_of(out, [leaf, *ours], twin(other), [other, *theirs])

    return judged(errors(block), None if precision == torch.float32 else errors(readable))


def judged(errors: list[float], twin: list[float] | None = None) -> dict:
    """The row of a case. Without a twin, in float32, the largest error counts; with one, in bfloat16, the root of the
    mean square of all of them, because a single one of a few dozen numbers is chance. Raises Wrong above the limit."""
    if twin is None:
        row = {"error": max(errors, key=lambda e: math.inf if math.isnan(e) else e), "allowed": LIMIT}
    else:
        own, others = (math.sqrt(statistics.fmean(e**2 for e in some)) for some in (errors, twin))
        row = {"error": own, "allowed": max(SLACK * others, UNITS * 2.0**-8), "twin_error": others}
    if not row["error"] <= row["allowed"]:  # NaN is above every limit
        raise Wrong(row)
    return row


class Wrong(AssertionError):
    """An error above the limit; `row` has the numbers."""

    def __init__(self, row: dict):
        super().__init__(f"the error is {row['error']:.2g}, allowed is {row['allowed']:.2g}")
        self.row = row
