"""mamba-ssm's own scan on CUDA, if that package can be imported. The readable twin is operations/reference.py.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate.

Source: state-spaces/mamba `ops/selective_scan_interface.py`. Its kernel needs N ≤ 256; A, D and delta_bias in float32;
delta, and B and C that vary in time, in u's dtype; and the same number of groups for B and C.
"""

import functools
import importlib
import math


@functools.cache
def _upstream():
    """mamba-ssm's `selective_scan_fn`, or None. Any error means None: a build for another torch fails at import."""
    try:
        return importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    except Exception:
        return None


def available():
    """Whether mamba-ssm can be imported (tried once)."""
    return _upstream() is not None


def _as_upstream(m, groups, dtype):
    """B or C as upstream's kernel needs it: constant in float32, else (B, G, N, L) in u's dtype, `groups` groups."""
    if m.dim() == 2:
        return m.float()
    m = m.unsqueeze(1) if m.dim() == 3 else m
    return m.repeat_interleave(groups // m.shape[1], dim=1).to(dtype)


def scan_mamba_ssm(u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True):
    """The scan by mamba-ssm's CUDA kernel; arguments as `selective_scan`, already checked.

    Returns out (B, D, L) and last_state (B, D, N), the latter without gradient.
    """
    groups = math.lcm(*(1 if m.dim() < 4 else m.shape[1] for m in (B, C)))
    B, C = (_as_upstream(m, groups, u.dtype) for m in (B, C))
    D, bias = (None if v is None else v.float() for v in (D, delta_bias))
    out, last = _upstream()(
        u, delta.to(u.dtype), A.float(), B, C, D, None, bias, delta_softplus, return_last_state=True
    )
    return out, last.detach() if want_last else None
