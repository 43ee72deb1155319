"""The choice of the back end that computes an operation.

    back end     file                       where it works
    reference    operations/reference.py    every device; float64 or float32; a loop to read
    cpu          kernels/scan_cpu.py        CPU; float32, and 16-bit types in float32
    mamba_ssm    this file                  CUDA with the package mamba-ssm; N up to 256
    triton       kernels/scan_triton.py     CUDA with the package triton; the state in float32

"auto" takes the first that works: `cpu` on the CPU; `mamba_ssm`, then `triton` on CUDA; else
`reference`. `cpu` and `triton` need B and C that vary along the sequence, as those of a Mamba do.
Kernels are imported on first use, because Numba, Triton and mamba-ssm take seconds to import.
"""

import functools
import importlib.util
import math
import warnings

import torch

from mambanorm.checks import check_tensor, is_ordinary
from mambanorm.errors import unknown

HAS_NUMBA = importlib.util.find_spec("numba") is not None
if not HAS_NUMBA:
    warnings.warn(
        "numba cannot be imported: the CPU computes in slow plain torch. pip install numba",
        stacklevel=2,
    )
BACKENDS = ("auto", "reference", "cpu", "mamba_ssm", "triton")
_FASTEST = {"cpu": ("cpu",), "cuda": ("mamba_ssm", "triton")}
_KERNEL_DTYPES = torch.float32, torch.bfloat16, torch.float16
_MAMBA_SSM_STATES = 256  # the largest N of its kernel


def scan_backend(tensor):
    """Return the back end that "auto" takes for this tensor's device and dtype.

    It is "cpu", "mamba_ssm", "triton" or "reference". "mamba_ssm" is limited to N ≤ 256; for larger
    N `selective_scan` takes the next one.
    """
    if not (hasattr(tensor, "dtype") and hasattr(tensor, "device")):
        check_tensor("tensor", tensor)
    return choose_backend("auto", tensor)


def fused_on_cpu(*tensors):
    """Return True if the fused loops can take these tensors.

    They take ordinary float32 tensors on the CPU. None is skipped.
    """
    # all() of a list is several times as fast as of a generator
    fits = all([t is None or (t.is_cpu and t.dtype is torch.float32) for t in tensors])
    return fits and is_ordinary(*tensors) and HAS_NUMBA


def runs_triton(u):
    """Return True if Triton's kernels run on CUDA and can take u."""
    return u.dtype in _KERNEL_DTYPES and triton_obstacle("cuda") is None and _fits_kernels(u)


def scan_kernel(name):
    """Return the scan function of a back end other than the reference."""
    if name == "cpu":
        from mambanorm.kernels.scan_cpu import scan_cpu as scan
    elif name == "mamba_ssm":
        scan = scan_mamba_ssm
    else:
        from mambanorm.kernels.scan_triton import scan_triton as scan
    return scan


def low_rank_kernel(backend, u, dt, B, C, dt_weight, dt_bias, A_log, D):
    """Return the kernel of a scan that projects Δ itself, or None if there is none.

    Then Δ must be projected before the scan. `backend` is as in `choose_backend`.
    """
    name = choose_backend(backend, u, A_log.shape[1])
    tensors = u, dt, B, C, dt_weight, dt_bias, A_log, D
    if name == "cpu" and all([t.is_cpu and t.dtype is torch.float32 for t in tensors]):
        from mambanorm.kernels.scan_cpu import low_rank_scan_cpu

        return low_rank_scan_cpu
    if name == "triton":
        from mambanorm.kernels.scan_triton import MAX_RANK, low_rank_scan_triton

        return low_rank_scan_triton if dt_weight.shape[1] <= MAX_RANK else None
    return None


def choose_backend(backend, u, state=1, *, vary=True):
    """Return the back end for u with N = `state`.

    `vary` says if both B and C vary along the sequence. Raises ValueError if `backend` is unknown
    or cannot take u.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "auto":
        fastest = _FASTEST.get(u.device.type, ())
        return next(
            (name for name in fastest if _obstacle(name, u, state, vary) is None), "reference"
        )
    obstacle = None if backend == "reference" else _obstacle(backend, u, state, vary)
    if obstacle is not None:
        raise ValueError(
            f"backend {backend!r} {obstacle}, given {u.dtype} on {u.device}: use 'auto'"
        )
    return backend


def _obstacle(backend, u, state, vary):
    """Return why a back end cannot take u, or None if it can.

    The text continues a sentence that starts with the back end's name.
    """
    if u.dtype not in _KERNEL_DTYPES:
        return "takes float32, bfloat16 or float16"
    if not _fits_kernels(u):
        return (
            "is not known to torch.func, jit.trace, forward-mode differentiation and dispatch modes"
        )
    if not vary and backend != "mamba_ssm":
        return "takes B and C that vary along the sequence"
    if backend == "triton":
        return triton_obstacle(u.device.type)
    if backend == "cpu":
        if u.device.type != "cpu":
            return "runs on the CPU"
        return None if HAS_NUMBA else "needs the package numba, which cannot be imported"
    if u.device.type != "cuda":
        return "runs on CUDA"
    if state > _MAMBA_SSM_STATES:
        return f"takes N up to {_MAMBA_SSM_STATES}, not N = {state}"
    return "needs the package mamba-ssm, which cannot be imported" if mamba_ssm() is None else None


def _fits_kernels(u):
    """Return True if a kernel may compute the scan of u.

    u must be an ordinary tensor. Under torch.compile every u will do, because the scan is an
    operator there.
    """
    return torch.compiler.is_compiling() or not isinstance(u, torch.Tensor) or is_ordinary(u)


@functools.cache
def triton_obstacle(device_type):
    """Return why Triton kernels cannot run on a type of device, or None if they can (tried once).

    The text continues a sentence that starts with "backend 'triton'".
    """
    try:
        interpreted = importlib.import_module("mambanorm.kernels.scan_triton_loops").INTERPRETED
    except Exception as error:  # a build for another Python may raise anything
        return (
            f"needs the package triton, which cannot be imported ({error}): "
            "pip install triton, on Linux"
        )
    if interpreted and device_type in ("cpu", "cuda"):
        return None
    if device_type != "cuda":
        return (
            "runs on CUDA; on the CPU only in Triton's slow interpreter: "
            "set TRITON_INTERPRET=1 before Python starts"
        )
    try:
        importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return (
            f"cannot start here ({error}): "
            "Triton builds its launcher with a C compiler, gcc or clang"
        )
    return None


@functools.cache
def mamba_ssm():
    """Return mamba-ssm's `selective_scan_fn`, or None if it cannot be imported (tried once).

    Every error counts, because a build for another torch fails at import.
    """
    try:
        return importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    except Exception:
        return None


def scan_mamba_ssm(
    u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True
):
    """Compute the scan with mamba-ssm's CUDA kernel.

    The arguments are those of `selective_scan`, already checked. The kernel needs A, D, delta_bias
    and a constant B or C in float32; delta, and a varying B or C, in u's dtype; and the same number
    of groups for B and C. Returns out (B, D, L) and last_state (B, D, N), the latter without
    gradient.
    """
    groups = math.lcm(*(1 if m.dim() < 4 else m.shape[1] for m in (B, C)))

    def grouped(m):  # → (D, N) or (B, G, N, L)
        if m.dim() == 2:
            return m.float()
        m = m.unsqueeze(1) if m.dim() == 3 else m
        return m.repeat_interleave(groups // m.shape[1], dim=1).to(u.dtype)

    D, bias = (None if v is None else v.float() for v in (D, delta_bias))
    arguments = (
        u,
        delta.to(u.dtype),
        A.float(),
        grouped(B),
        grouped(C),
        D,
        None,
        bias,
        delta_softplus,
    )
    out, last = mamba_ssm()(*arguments, return_last_state=True)
    return out, last.detach() if want_last else None
