"""`selective_scan`, mamba-ssm's, and `low_rank_scan`, which projects Δ itself and is what a Mamba
block is made around.

Glossary: see `mambanorm/operations/__init__.py`.
"""

import torch
import torch.nn.functional as F

from mambanorm.checks import check_real, check_shapes, check_together
from mambanorm.kernels.backends import choose, kernel, low_rank_kernel
from mambanorm.operations.conv_gate import gated
from mambanorm.operations.reference import scan_reference


def selective_scan(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, *,
    backend="auto", initial_state=None,
):  # fmt: skip
    """The selective scan, a drop-in for mamba-ssm's `selective_scan_fn`.

    Δ = softplus(delta + delta_bias),  h_t = exp(Δ_t·A)·h_(t-1) + Δ_t·B_t·u_t,  out_t = (Σ_n C_t·h_t
    + D·u_t)·SiLU(z_t); bias, softplus, D·u and gate only where asked for.

    Arguments: u, delta, z (B, D, L); A (D, N), real; B and C, each for itself, constant (D, N), or
    (B, N, L), or (B, G, N, L) where G divides D; D and delta_bias (D,). On the CPU, views of (B, L,
    D) tensors transposed to (B, D, L) are taken without a copy, and results and gradients come back
    in that layout. Constant B or C, which no Mamba has, are left to the reference, which goes step
    by step (on CUDA to mamba-ssm, if installed). So are, on the CPU, scans whose state may grow: an
    A above 0, or a Δ below 0.

    Returns out (B, D, L) in u's dtype; with `return_last_state` (out, last_state), where last_state
    (B, D, N) is h after the last step in the dtype of the computation (float64 for float64 u in the
    reference, else float32). last_state carries no gradient, as upstream.

    `initial_state` (B, D, N): h before the first step, for generation; no gradient goes through it.
    From a state other than zero the reference computes the scan. Raises ValueError for wrong
    shapes, devices or dtypes, and for an unknown or unsuitable back end. Source: state-spaces/mamba
    `ops/selective_scan_interface.py`. Deviation: complex A is refused.
    """
    _check_arguments(u, delta, A, B, C, D, z, delta_bias)
    tensors = u, delta, A, B, C, D, delta_bias, delta_softplus
    name = choose(backend, u, A.shape[1], vary=B.dim() > 2 and C.dim() > 2)
    onward = initial_state is not None and (u.shape[2] == 1 or bool(initial_state.any()))
    if (
        onward
        or name == "reference"
        or (name == "cpu" and _may_grow(delta, A, delta_bias, delta_softplus))
    ):
        out, last = scan_reference(*tensors, return_last_state, initial_state)
    else:
        out, last = kernel(name)(*tensors, return_last_state)
    if z is not None:
        out = gated(out.transpose(1, 2), z.transpose(1, 2)).transpose(1, 2).to(u.dtype)
    return (out, last) if return_last_state else out


def low_rank_scan(u, dt, B, C, dt_weight, dt_bias, A_log, D, *, state=None, backend="auto"):
    """The scan of a Mamba block, Δ = softplus(dt·dt_weightᵀ + dt_bias) and A = −exp(A_log): as
    `selective_scan`, but for float32 on the CPU, and with Triton, Δ is never stored.

    u (B, L, E); dt (B, L, R), B and C (B, L, N), or with groups of channels that each have their
    own, (B, L, G, ·); dt_weight (E, R), dt_bias and D (E,), A_log (E, N). Returns y (B, L, E); with
    `state`, h before the first step (B, E, N), (y, h after the last step), without gradient. Raises
    ValueError as `selective_scan`.
    """
    _check_low_rank(u, dt, B, C, dt_weight, dt_bias, A_log, D)
    dt, B, C = (m if m.dim() == 4 else m.unsqueeze(2) for m in (dt, B, C))  # (B, L, G, ·)
    tensors = u, dt, B, C, dt_weight, dt_bias, A_log, D
    onward = state is not None and (u.shape[1] == 1 or bool(state.any()))
    if not onward and (scan := low_rank_kernel(backend, *tensors)) is not None:
        y, last = scan(*tensors, want_last=state is not None)
        return y if state is None else (y, last)
    y, last = selective_scan(
        u.transpose(1, 2), project_delta(dt, dt_weight).transpose(1, 2), -torch.exp(A_log),
        B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1), D, delta_bias=dt_bias, delta_softplus=True,
        return_last_state=True, backend=backend, initial_state=state,
    )  # fmt: skip
    return y.transpose(1, 2) if state is None else (y.transpose(1, 2), last)


def _may_grow(delta, A, delta_bias, delta_softplus):
    """Return True if a state could grow, exp(Δ·A) > 1, or is no number: the loops on the CPU leave
    no room for that.

    Compiled code cannot branch on numbers: there such a scan raises RuntimeError when it runs.
    """
    if torch.compiler.is_compiling() and (delta_softplus or delta_bias is None):
        decays = (A <= 0).all() if delta_softplus else (A <= 0).all() & (delta >= 0).all()
        torch._assert_async(
            decays,
            "in compiled code a scan needs A ≤ 0 and Δ ≥ 0: compute this one without compiling",
        )
        return False
    forward_in_time = delta_softplus or (delta_bias is None and bool((delta >= 0).all()))
    return not (forward_in_time and bool((A <= 0).all()))


def project_delta(dt, dt_weight):
    """Δ's R numbers a step, (B, L, R) or (B, L, G, R), to one a channel, (B, L, E)."""
    if dt.dim() == 3 or dt.shape[2] == 1:
        return F.linear(dt.flatten(2), dt_weight)
    return torch.einsum("blgr,ger->blge", dt, dt_weight.unflatten(0, (dt.shape[2], -1))).flatten(2)


def _check_arguments(u, delta, A, B, C, D, z, delta_bias):
    """Check every shape, dtype and device; ValueError says what was given and what is allowed."""
    check_real("u", u, "(B, D, L)")
    if u.dim() != 3 or 0 in u.shape:
        raise ValueError(f"u has shape {tuple(u.shape)}; (B, D, L) is needed, each at least 1")
    batch, channels, length = u.shape
    wanted = {
        name: value
        for name, value in dict(D=D, z=z, delta_bias=delta_bias).items()
        if value is not None
    }
    check_together(u=u, delta=delta, A=A, B=B, C=C, **wanted)
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise ValueError(f"A has shape {tuple(A.shape)}; (D, N) = ({channels}, N) is needed")
    full, vector = (batch, channels, length), (channels,)
    for name, value in {"delta": delta, **wanted}.items():
        if value.shape != (shape := full if name in ("delta", "z") else vector):
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}; {shape} is needed for u {full}"
            )
    for name, value in (("B", B), ("C", C)):
        _check_input_output(name, tuple(value.shape), batch, channels, A.shape[1], length)


def _check_input_output(name, shape, batch, channels, state, length):
    """B or C: constant (D, N), (B, N, L), or (B, G, N, L) with G dividing D."""
    allowed = {
        2: (channels, state),
        3: (batch, state, length),
    }  # by axes: torch.export would note B ≠ channels
    grouped = len(shape) == 4 and shape[1] > 0 and (shape[0], *shape[2:]) == (batch, state, length)
    if allowed.get(len(shape)) == shape or (grouped and channels % shape[1] == 0):
        return
    text = f"({batch}, G, {state}, {length}) where G divides {channels}"
    raise ValueError(f"{name} has shape {shape}; allowed are {allowed[2]}, {allowed[3]} and {text}")


def _check_low_rank(u, dt, B, C, dt_weight, dt_bias, A_log, D):
    """Check what the loops rely on: the shapes, and one device and dtype for what varies along
    L."""
    names = "u", "dt", "B", "C", "dt_weight", "dt_bias", "A_log", "D"
    tensors = u, dt, B, C, dt_weight, dt_bias, A_log, D
    check_together(**dict(zip(names, tensors)))
    if (
        u.dim() != 3
        or 0 in u.shape
        or A_log.dim() != 2
        or dt_weight.dim() != 2
        or dt.dim() not in (3, 4)
    ):
        given = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in zip(names, tensors))
        raise ValueError(
            f"low_rank_scan needs u (B, L, E), dt (B, L, R), dt_weight (E, R), A_log (E, N), got {given}"
        )
    (batch, length, channels), groups = u.shape, dt.shape[2:-1]
    rank, size = dt_weight.shape[1], A_log.shape[1]
    if groups and (not groups[0] or channels % groups[0]):
        raise ValueError(
            f"{groups[0]} groups of dt, B and C do not divide the {channels} channels of u"
        )
    narrow, vector = (batch, length, *groups), (channels,)
    shapes = (
        (*narrow, rank),
        (*narrow, size),
        (*narrow, size),
        (channels, rank),
        vector,
        (channels, size),
        vector,
    )
    check_shapes("low_rank_scan", names[1:], tensors[1:], shapes)
