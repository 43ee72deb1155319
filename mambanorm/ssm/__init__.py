"""The selective scan: one function with mamba-ssm's arguments, several back ends.

Map: `selective_scan` checks its arguments here, once, and hands them to a back end.

==============  ====================================  =============================================================
back end        file                                  where it works
==============  ====================================  =============================================================
``reference``   `mambanorm/ssm/reference.py`          every device; float64 or float32; a loop to read
``cpu``         `mambanorm/kernels/scan_cpu.py`                CPU; float32 (bfloat16 and half are computed in float32)
``mamba_ssm``   `mambanorm/kernels/cuda.py`                CUDA, if the package mamba-ssm is installed; N up to 256
``triton``      `mambanorm/kernels/triton_scan.py`        CUDA, if the package triton is installed; the state in float32
==============  ====================================  =============================================================

"auto" takes on the CPU `cpu`, on CUDA the first of `mamba_ssm`, `triton` and `reference` that works, else `reference`.

Glossary: B batch, L length, D channels, N state size, G groups of channels that share B and C; u input, delta (Δ) step
size, A decay rate, B_t and C_t input and output vectors, z gate, h state.

Source: Gu & Dao 2023, "Mamba", section 3; state-spaces/mamba `ops/selective_scan_interface.py`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch

from mambanorm.checks import check_real, check_shapes, check_tensor, shown
from mambanorm.errors import unknown

__all__ = ["BACKENDS", "conv_silu", "scan_backend", "selective_scan", "set_threads"]

BACKENDS = ("auto", "reference", "cpu", "mamba_ssm", "triton")
_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAMBA_SSM_STATES = 256  # the largest N of its kernel


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
    name = _choose(backend, u, A.shape[1])
    out, last = _implementation(name)(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)
    return (out, last) if return_last_state else out


def conv_silu(u, weight, bias):
    """SiLU of the causal depthwise convolution that stands before the scan: fused for float32 on the CPU, by torch's
    kernel on CUDA, else plain.

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
    from mambanorm.ssm.reference import causal_conv

    return torch.nn.functional.silu(causal_conv(u, weight, bias))


def scan_backend(tensor):
    """The back end that "auto" takes for this tensor's device and dtype: "cpu", "mamba_ssm", "triton" or "reference".

    "mamba_ssm" is limited to N ≤ 256; above that, `selective_scan` takes the next one.
    """
    if not (hasattr(tensor, "dtype") and hasattr(tensor, "device")):
        check_tensor("tensor", tensor)
    return _fastest(tensor)


def set_threads(n):
    """Let torch and the CPU scan use n threads; returns (torch's count, the scan's count).

    The scan's count is at most what Numba was started with (the number of cores, or NUMBA_NUM_THREADS).
    Raises ValueError if n is no whole number or less than 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral) or n < 1:
        raise ValueError(f"threads: {shown(n)} given, a whole number of at least 1 is needed")
    from mambanorm.kernels import scan_cpu as cpu

    torch.set_num_threads(int(n))
    return torch.get_num_threads(), cpu.set_numba_threads(n)


@contextmanager
def exactly_threads(n: int) -> Iterator[None]:
    """While open, torch and the CPU kernels of this thread use n threads, no more and no fewer: what is summed over
    several threads depends in its last digits on how many they are.

    ValueError if Numba was started with fewer than n; it tells what to do.
    """
    import numba

    from mambanorm.kernels import scan_cpu as cpu  # noqa: F401  (starts Numba's threads without changing torch's)

    most = numba.config.NUMBA_NUM_THREADS
    if n > most:
        raise ValueError(
            f"threads={n}, but the CPU kernels of this process were started with at most {most}: "
            f"set NUMBA_NUM_THREADS={n} in the environment before Python starts"
        )
    before = torch.get_num_threads(), numba.get_num_threads()
    set_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


def _implementation(name):
    """The function of a back end. Imported on first use: Numba and mamba-ssm take seconds to import."""
    if name == "cpu":
        from mambanorm.kernels.scan_cpu import scan_cpu

        return scan_cpu
    if name == "mamba_ssm":
        from mambanorm.kernels.cuda import scan_mamba_ssm

        return scan_mamba_ssm
    if name == "triton":
        from mambanorm.kernels.triton_scan import scan_triton

        return scan_triton
    from mambanorm.ssm.reference import scan_reference

    return scan_reference


def _fastest(u, state=1):
    """The fastest back end that takes u and N = `state`."""
    if u.dtype not in _KERNEL_DTYPES or u.device.type not in ("cpu", "cuda"):
        return "reference"
    if u.device.type == "cpu":
        return "cpu"
    from mambanorm.kernels import cuda as gpu
    from mambanorm.kernels import triton_scan

    if gpu.available() and state <= _MAMBA_SSM_STATES:
        return "mamba_ssm"
    return "triton" if triton_scan.obstacle("cuda") is None else "reference"


def _choose(backend, u, state):
    """The back end to use for u with N = `state`; ValueError if the one named is unknown or does not fit."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "auto":
        return _fastest(u, state)
    where = f"{u.dtype} on {u.device}"
    if backend == "cpu" and (u.device.type != "cpu" or u.dtype not in _KERNEL_DTYPES):
        raise ValueError(
            f"backend 'cpu' takes float32, bfloat16 or float16 on the CPU, given {where}; use 'auto' or 'reference'"
        )
    if backend == "mamba_ssm":
        _check_mamba_ssm(u, state, where)
    if backend == "triton":
        _check_triton(u, where)
    return backend


def _check_mamba_ssm(u, state, where):
    from mambanorm.kernels import cuda as gpu

    if u.device.type != "cuda" or u.dtype not in _KERNEL_DTYPES:
        raise ValueError(f"backend 'mamba_ssm' takes float32, bfloat16 or float16 on CUDA, given {where}; use 'auto'")
    if state > _MAMBA_SSM_STATES:
        raise ValueError(f"backend 'mamba_ssm' takes N up to {_MAMBA_SSM_STATES}, given N = {state}; use 'auto'")
    if not gpu.available():
        raise ValueError("backend 'mamba_ssm' needs the package mamba-ssm, which cannot be imported; use 'auto'")


def _check_triton(u, where):
    from mambanorm.kernels import triton_scan

    if u.dtype not in _KERNEL_DTYPES:
        raise ValueError(f"backend 'triton' takes float32, bfloat16 or float16, given {where}; use 'auto'")
    if (obstacle := triton_scan.obstacle(u.device.type)) is not None:
        raise ValueError(f"backend 'triton' {obstacle}; given {where}, use 'auto'")


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
