"""`selective_scan`, and the convolution that stands before it: arguments are checked here, once, and nowhere below.

Glossary: see `mambanorm/operations/__init__.py`; E channels and K taps of the convolution.
"""

import torch

from mambanorm.basics.checks import check_real, check_shapes
from mambanorm.operations.backends import choose, implementation


def selective_scan(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, *, backend="auto"
):
    """The selective scan, a drop-in for mamba-ssm's `selective_scan_fn`.

    Δ = softplus(delta + delta_bias),  h_t = exp(Δ_t·A)·h_(t-1) + Δ_t·B_t·u_t,  out_t = (Σ_n C_t·h_t + D·u_t)·SiLU(z_t);
    bias, softplus, D·u and gate only where asked for.

    Arguments: u, delta, z (B, D, L); A (D, N), real; B and C, each for itself, constant (D, N), or (B, N, L), or
    (B, G, N, L) where G divides D; D and delta_bias (D,). On the CPU, views of (B, L, D) tensors transposed to
    (B, D, L) are taken without a copy, and results and gradients come back in that layout.

    Returns out (B, D, L) in u's dtype; with `return_last_state` (out, last_state), where last_state (B, D, N) is h
    after the last step in the dtype of the computation (float64 for float64 u in the reference, else float32).
    last_state carries no gradient, as upstream.

    Raises ValueError for wrong shapes, devices or dtypes, and for an unknown or unsuitable back end.
    Source: state-spaces/mamba `ops/selective_scan_interface.py`. Deviation: complex A is refused.
    """
    _check_arguments(u, delta, A, B, C, D, z, delta_bias)
    name = choose(backend, u, A.shape[1])
    out, last = implementation(name)(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)
    return (out, last) if return_last_state else out


def conv_silu(u, weight, bias):
    """SiLU of the causal depthwise convolution that stands before the scan: fused for float32 on the CPU, by torch's
    kernel on CUDA, else in plain torch.

    u (B, L, E), weight (E, 1, K) as nn.Conv1d has it, bias (E,) → (B, L, E). Raises ValueError for other shapes, dtypes
    that are not real, and tensors on several devices.
    """
    _check_conv(u, weight, bias)
    if u.device.type == "cuda":
        from mambanorm.kernels.cuda import conv_silu_gpu

        return conv_silu_gpu(u, weight, bias)
    if u.device.type == "cpu" and u.numel() and {u.dtype, weight.dtype, bias.dtype} == {torch.float32}:
        from mambanorm.kernels.conv import conv_silu_cpu

        return conv_silu_cpu(u, weight, bias)
    from mambanorm.operations.reference import causal_conv

    return torch.nn.functional.silu(causal_conv(u, weight, bias))


def _check_arguments(u, delta, A, B, C, D, z, delta_bias):
    """Check every shape, dtype and device; ValueError says what was given and what is allowed."""
    check_real("u", u, "(B, D, L)")
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(f"u has shape {tuple(u.shape)}; (B, D, L) is needed, each at least 1")
    batch, channels, length = u.shape
    named = {"u": u, "delta": delta, "A": A, "B": B, "C": C, "D": D, "z": z, "delta_bias": delta_bias}
    for name, tensor in named.items():
        if tensor is None and name in ("D", "z", "delta_bias"):
            continue
        check_real(name, tensor)
        if tensor.device != u.device:
            raise ValueError(f"{name} is on {tensor.device} and u on {u.device}; all must be on one device")
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise ValueError(f"A has shape {tuple(A.shape)}; (D, N) = ({channels}, N) is needed")
    full, vector = (batch, channels, length), (channels,)
    for name, shape in (("delta", full), ("z", full), ("D", vector), ("delta_bias", vector)):
        if named[name] is not None and named[name].shape != shape:
            raise ValueError(f"{name} has shape {tuple(named[name].shape)}; {shape} is needed for u {full}")
    for name in ("B", "C"):
        _check_input_output(name, tuple(named[name].shape), batch, channels, A.shape[1], length)


def _check_conv(u, weight, bias):
    """Check what `conv_silu` takes, as `_check_arguments` does."""
    for name, tensor, form in (("u", u, "(B, L, E)"), ("weight", weight, "(E, 1, K)"), ("bias", bias, "(E,)")):
        check_real(name, tensor, form)
        if tensor.device != u.device:
            raise ValueError(f"{name} is on {tensor.device} and u on {u.device}; all must be on one device")
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(f"u has shape {tuple(u.shape)}; (B, L, E) is needed, each at least 1")
    taps = weight.shape[-1] if weight.dim() == 3 else 0
    shapes = (u.shape[2], 1, max(taps, 1)), (u.shape[2],)
    check_shapes("conv_silu", ("weight", "bias"), (weight, bias), shapes)


def _check_input_output(name, shape, batch, channels, state, length):
    """B or C: constant (D, N), (B, N, L), or (B, G, N, L) with G dividing D."""
    allowed = [(channels, state), (batch, state, length)]
    grouped = len(shape) == 4 and shape[1] > 0 and (shape[0], *shape[2:]) == (batch, state, length)
    if shape in allowed or (grouped and channels % shape[1] == 0):
        return
    text = f"({batch}, G, {state}, {length}) where G divides {channels}"
    raise ValueError(f"{name} has shape {shape}; allowed are {allowed[0]}, {allowed[1]} and {text}")
