"""The selective scan with given delta, `selective_scan`, or with delta from dt, `low_rank_scan`.

`selective_scan` has the arguments of mamba-ssm's function; Mamba blocks use `low_rank_scan`.
Glossary: see mambanorm/operations/__init__.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mambanorm.kernels.backends import choose_backend, low_rank_kernel, scan_kernel
from mambanorm.operations.checks import check_low_rank_scan, check_selective_scan
from mambanorm.operations.conv_gate import gated
from mambanorm.operations.reference import scan_reference


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    backend: str = "auto",
    initial_state: Tensor | None = None,
) -> Any:
    """Compute the selective scan, as mamba-ssm's `selective_scan_fn` does.

    Δ = softplus(delta + delta_bias),  h_t = exp(Δ_t·A)·h_(t-1) + Δ_t·B_t·u_t,
    out_t = (Σ_n C_t·h_t + D·u_t)·SiLU(z_t); delta_bias, softplus, D·u and SiLU(z) are optional.

    Args:
        u: input, (B, D, L). On the CPU, transposed views of (B, L, D) tensors are used without a
            copy, and results and gradients have the same memory layout.
        delta: step sizes, (B, D, L).
        A: decay rates, (D, N), real.
        B: (D, N) if constant along the sequence, or (B, N, L), or (B, G, N, L) where G divides D.
        C: one of the shapes allowed for B, not necessarily that of B.
        D: factor of the skip connection, (D,).
        z: gate, (B, D, L).
        delta_bias: (D,).
        delta_softplus: apply softplus to delta + delta_bias.
        return_last_state: also return the last state.
        backend: one of BACKENDS. "cpu" leaves a scan whose state may grow (an A above 0 or a Δ
            below 0) to the reference (reference.py). "cpu" and "triton" do not take a constant B or
            C (which no Mamba has); for such a B or C, "auto" chooses another back end.
        initial_state: (B, D, N), h before the first step, for generation; it gets no gradient.
            The reference computes every scan with an initial state that is not zero.

    Returns out (B, D, L) in u's dtype; with `return_last_state`, the pair (out, last_state), where
    last_state (B, D, N) is h after the last step, in the dtype of the computation (float64 if the
    reference gets a float64 u, otherwise float32) and, as in mamba-ssm, without gradient.

    Raises ValueError for wrong shapes, devices or dtypes, and for an unknown or unsuitable back
    end. Source: state-spaces/mamba `ops/selective_scan_interface.py`. Deviation: a complex A raises
    ValueError.
    """
    check_selective_scan(u, delta, A, B, C, D, z, delta_bias)
    inputs = u, delta, A, B, C, D, delta_bias, delta_softplus
    name = choose_backend(backend, u, A.shape[1], vary=B.dim() > 2 and C.dim() > 2)
    use_reference = name == "reference" or _needs_reference(initial_state, u.shape[2])
    if use_reference or (name == "cpu" and _may_grow(delta, A, delta_bias, delta_softplus)):
        out, last = scan_reference(*inputs, return_last_state, initial_state)
    else:
        out, last = scan_kernel(name)(*inputs, return_last_state)
    if z is not None:
        out = gated(out.transpose(1, 2), z.transpose(1, 2)).transpose(1, 2).to(u.dtype)
    return (out, last) if return_last_state else out


def low_rank_scan(
    u: Tensor,
    dt: Tensor,
    B: Tensor,
    C: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    *,
    state: Tensor | None = None,
    backend: str = "auto",
) -> Any:
    """Compute the scan of a Mamba block, Δ = softplus(dt·dt_weightᵀ + dt_bias), A = −exp(A_log).

    The equations are those of `selective_scan`. If the scan runs on the CPU in float32, the kernel
    computes Δ and never stores it.

    Args:
        u: (B, L, E).
        dt: (B, L, R), or (B, L, G, R) for G groups of channels.
        B: (B, L, N), or (B, L, G, N).
        C: same shape as B.
        dt_weight: (E, R).
        dt_bias: (E,).
        A_log: (E, N).
        D: factor of the skip connection, (E,).
        state: h before the first step (B, E, N), or None.
        backend: one of BACKENDS.

    Returns y (B, L, E); if `state` is given, the pair (y, h after the last step), where h has no
    gradient. Raises ValueError as `selective_scan` does.
    """
    check_low_rank_scan(u, dt, B, C, dt_weight, dt_bias, A_log, D)
    dt, B, C = (m if m.dim() == 4 else m.unsqueeze(2) for m in (dt, B, C))  # (B, L, G, ·)
    inputs = u, dt, B, C, dt_weight, dt_bias, A_log, D
    scan = None if _needs_reference(state, u.shape[1]) else low_rank_kernel(backend, *inputs)
    if scan is not None:
        y, last = scan(*inputs, want_last=state is not None)
        return y if state is None else (y, last)
    delta = project_delta(dt, dt_weight).transpose(1, 2)
    y, last = selective_scan(
        u.transpose(1, 2), delta, -torch.exp(A_log), B.permute(0, 2, 3, 1), C.permute(0, 2, 3, 1),
        D, delta_bias=dt_bias, delta_softplus=True, return_last_state=True, backend=backend,
        initial_state=state,
    )  # fmt: skip
    return y.transpose(1, 2) if state is None else (y.transpose(1, 2), last)


def _needs_reference(state: Tensor | None, length: int) -> bool:
    """Return True if the reference must compute a scan of `length` steps that starts from `state`.

    Kernels start from zero, so a state that is not zero needs the reference. A single step from a
    given state uses the reference, too, because the reference is faster for one step.
    """
    return state is not None and (length == 1 or bool(state.any()))


def _may_grow(delta: Tensor, A: Tensor, delta_bias: Tensor | None, delta_softplus: bool) -> bool:
    """Return True if a state may grow (exp(Δ·A) > 1) or become NaN.

    The CPU loops need decaying states. Compiled code cannot branch on values: there the result is
    False, and a scan whose state may grow raises RuntimeError when it runs.
    """
    if torch.compiler.is_compiling() and (delta_softplus or delta_bias is None):
        decays = (A <= 0).all()
        if not delta_softplus:
            decays = decays & (delta >= 0).all()
        torch._assert_async(
            decays,
            "in compiled code a scan needs A ≤ 0 and Δ ≥ 0: compute this scan without compiling",
        )
        return False
    is_positive = delta_softplus or (delta_bias is None and bool((delta >= 0).all()))
    return not (is_positive and bool((A <= 0).all()))


def project_delta(dt: Tensor, dt_weight: Tensor) -> Tensor:
    """Return Δ before bias and softplus, (B, L, E), from dt (B, L, R) or (B, L, G, R)."""
    if dt.dim() == 3 or dt.shape[2] == 1:
        return F.linear(dt.flatten(2), dt_weight)
    return torch.einsum("blgr,ger->blge", dt, dt_weight.unflatten(0, (dt.shape[2], -1))).flatten(2)
