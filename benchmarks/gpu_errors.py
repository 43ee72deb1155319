"""The part `correctness` of benchmarks.gpu: errors of the Triton kernels against float64 on the
CPU.

In float32 the limit is absolute. In bfloat16 the inputs alone are off by a part in 256, so the
limit is relative to the readable twin: the same block, or the plain scan or convolution, in
bfloat16 on the same device.

Glossary: B rows, L positions, D or E channels, N state size, K taps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu_workers import Cases, ErrorTooLarge, Setting
from mambanorm import Arm, MambaBlock, selective_scan
from mambanorm.operations.conv_gate import causal_conv
from mambanorm_study import Mamba2Block

# odd sizes on purpose
SCAN_SHAPES = ((1, 1, 3, 4), (2, 37, 40, 16), (3, 130, 24, 5), (2, 257, 96, 64))  # (B, L, D, N)
CONV_SHAPES = ((1, 1, 3, 4), (2, 37, 40, 4), (3, 301, 67, 3))  # (B, L, E, K)
ARMS = (
    "None>SSM>None",
    "RMSN>SSM>GN",
    "RMSN>SSM>RMSN+B:RMSN+C:RMSN+delta:RMSN",
    "RMSN>SSM>None+conv:LN+z:RMSN",
)
MAX_ERROR = 1e-4  # of ‖ours − float64‖ / ‖float64‖ in float32
# In bfloat16 the error may be twice the twin's, or four units in bfloat16's last place: a block
# passes its intermediate results in bfloat16.
MAX_TWIN_FACTOR, MAX_BFLOAT16_ERROR = 2.0, 4 * 2.0**-8


def correctness(setting: Setting) -> Cases:
    """Yield scan and convolution at odd sizes, then blocks with norms at several sites."""
    device, tiny = setting.device, setting.tiny
    kernels = ((scan, scan_inputs, SCAN_SHAPES), (conv, conv_inputs, CONV_SHAPES))
    precisions = (torch.float32, torch.bfloat16)
    for kernel, make_inputs, shapes in kernels:
        for shape in shapes[:1] if tiny else shapes:
            for dtype in precisions:
                inputs = partial(make_inputs, shape, device, dtype)
                name = f"{kernel.__name__} {shape}, {dtype_name(dtype)}"
                yield name, partial(kernel_error, kernel, inputs)
    width, shape = (8, (2, 5)) if tiny else (40, (2, 37))
    blocks = [(arm, partial(MambaBlock, width, *Arm.parse(arm))) for arm in ARMS]
    blocks.append(
        ("RMSN>SSM>None", partial(Mamba2Block, width, "RMSN", "None", head_dim=width // 2))
    )
    for arm, make_block in blocks:
        for dtype in precisions:
            x = torch.randn(*shape, width)
            name = f"{make_block.func.__name__} {arm}, {dtype_name(dtype)}"
            yield name, partial(block_error, make_block, x, device, dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


# --------------------------------------------------------------------------------------------------
# the kernels and their inputs


def scan_inputs(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the scan's inputs as a block makes them: u and delta (B, L, D), B and C (B, L, N),
    which are parts of a wider tensor, A (D, N), D and delta_bias (D,).
    """
    batch, length, channels, size = shape
    rank = math.ceil(channels / 32)  # of delta, as in a block with D = 2 · d_model
    torch.manual_seed(0)
    u, delta = (torch.randn(batch, length, channels, device=device).to(dtype) for _ in range(2))
    dt_B_C = torch.randn(batch, length, rank + 2 * size, device=device).to(dtype)
    _, B, C = dt_B_C.split([rank, size, size], dim=-1)
    A = -torch.rand(channels, size, device=device) * size - 0.5
    D = torch.randn(channels, device=device)
    delta_bias = torch.randn(channels, device=device) - 2
    inputs = {"u": u, "delta": delta, "B": B, "C": C, "A": A, "D": D, "delta_bias": delta_bias}
    return {name: value.detach().requires_grad_() for name, value in inputs.items()}


def scan(inputs: dict[str, Tensor], backend: str) -> Tensor:
    """Return the scan's result (B, L, D) by one of the back ends of `selective_scan`.

    The back end gets (B, D, L) views of (B, L, D) tensors, as in a block.
    """
    transposed = {k: v.transpose(1, 2) if v.dim() == 3 else v for k, v in inputs.items()}
    return selective_scan(**transposed, delta_softplus=True, backend=backend).transpose(1, 2)


def conv_inputs(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the convolution's inputs as a block makes them: u (B, L, E), which is the first half
    of a wider tensor, weight (E, 1, K) and bias (E,).
    """
    batch, length, channels, taps = shape
    torch.manual_seed(0)
    u_and_z = torch.randn(batch, length, 2 * channels, device=device).to(dtype)
    weight = torch.randn(channels, 1, taps, device=device)
    bias = torch.randn(channels, device=device)
    inputs = {"u": u_and_z[..., :channels], "weight": weight, "bias": bias}
    return {name: value.detach().requires_grad_() for name, value in inputs.items()}


def conv(inputs: dict[str, Tensor], backend: str) -> Tensor:
    """Return SiLU of the causal convolution, (B, L, E), by "triton", by torch's own convolution
    ("torch") or by the readable twin ("reference").
    """
    u, weight, bias = inputs["u"], inputs["weight"], inputs["bias"]
    if backend == "triton":
        from mambanorm.kernels.conv_triton import conv_silu_triton  # needs triton

        return conv_silu_triton(u, weight, bias)
    if backend == "torch":
        length, channels, taps = u.shape[1], u.shape[2], weight.shape[-1]
        padded = F.conv1d(
            u.transpose(1, 2), weight.to(u), bias.to(u), groups=channels, padding=taps - 1
        )
        return F.silu(padded[..., :length]).transpose(1, 2)
    return F.silu(causal_conv(u, weight, bias))


# --------------------------------------------------------------------------------------------------
# errors


def kernel_error(
    kernel: Callable[[dict[str, Tensor], str], Tensor],
    make_inputs: Callable[[], dict[str, Tensor]],
    backend: str = "triton",
) -> dict:
    """Return the row of `kernel(inputs, backend)` against `kernel(inputs, "reference")` in float64.
    Raise ErrorTooLarge above the limit.
    """
    inputs = make_inputs()
    exact_inputs = {
        name: value.detach().cpu().double().requires_grad_() for name, value in inputs.items()
    }
    leaves, exact_leaves = list(inputs.values()), list(exact_inputs.values())

    def errors(backend: str) -> list[float]:
        exact = kernel(exact_inputs, "reference")
        return relative_errors(kernel(inputs, backend), leaves, exact, exact_leaves)

    in_float32 = inputs["u"].dtype == torch.float32
    return check_errors(errors(backend), None if in_float32 else errors("reference"))


def block_error(
    make_block: Callable[..., nn.Module],
    x: Tensor,
    device: torch.device,
    dtype: torch.dtype,
    backend: str = "triton",
) -> dict:
    """Return the row of a block in training against the same block in float64 on the CPU.

    Parameters are in float32; bfloat16 is by autocast. Raise ErrorTooLarge above the limit.
    """
    torch.manual_seed(0)
    block = make_block(scan_backend="reference")
    in_float32 = dtype == torch.float32

    def errors(backend: str) -> list[float]:
        model, exact_model = copy.deepcopy(block).to(device), copy.deepcopy(block).double()
        model.scan_backend = backend
        leaf, exact_leaf = x.to(device).requires_grad_(), x.double().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16, enabled=not in_float32):
            result = model(leaf)
        leaves = [leaf, *model.parameters()]
        exact_leaves = [exact_leaf, *exact_model.parameters()]
        return relative_errors(result, leaves, exact_model(exact_leaf), exact_leaves)

    return check_errors(errors(backend), None if in_float32 else errors("reference"))


def relative_errors(
    result: Tensor, leaves: list[Tensor], exact: Tensor, exact_leaves: list[Tensor]
) -> list[float]:
    """Return ‖ours − exact‖ / ‖exact‖ of the result and of each gradient along one random
    direction. `exact` is in float64 on the CPU. Gradients that are zero or unused are left out.
    """
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(exact.shape, dtype=torch.float64, generator=generator)
    grads = torch.autograd.grad(result, leaves, direction.to(result), allow_unused=True)
    exact_grads = torch.autograd.grad(exact, exact_leaves, direction, allow_unused=True)
    errors = []
    for ours, target in zip((result, *grads), (exact, *exact_grads), strict=True):
        if target is not None and target.norm() > 0:
            errors.append(relative_error(ours, target))
    return errors


def relative_error(ours: Tensor, target: Tensor) -> float:
    """Return ‖ours − target‖ / ‖target‖, computed in float64 on the CPU."""
    ours, target = (tensor.detach().cpu().double() for tensor in (ours, target))
    return float((ours - target).norm() / target.norm())


def check_errors(errors: list[float], twin_errors: list[float] | None = None) -> dict:
    """Return the columns error and allowed, and with a twin its error. Raise ErrorTooLarge above
    the limit.

    Without a twin, in float32, the largest error counts. With one, in bfloat16, the root of the
    mean square of all errors counts, because a single one of a few dozen errors is chance.
    """
    if twin_errors is None:
        row = {"error": float(np.max(errors)), "allowed": MAX_ERROR}
    else:
        error, twin_error = (np.sqrt(np.mean(np.square(e))) for e in (errors, twin_errors))
        allowed = max(MAX_TWIN_FACTOR * float(twin_error), MAX_BFLOAT16_ERROR)
        row = {"error": float(error), "allowed": allowed, "twin_error": float(twin_error)}
    if not row["error"] <= row["allowed"]:  # NaN is above every limit
        raise ErrorTooLarge(row)
    return row
