"""Choose the back end that computes an operation.

    back end     file                       requirements and precision
    reference    operations/reference.py    any device; a readable loop in float64 or float32
    cpu          kernels/scan_cpu.py        CPU; computes float32 and 16-bit inputs in float32
    triton       kernels/scan_triton.py     CUDA and the package triton; keeps the state in float32
    mamba_ssm    this file                  CUDA and the package mamba-ssm; N up to 256

"auto" tries `cpu` on the CPU, and `triton`, then `mamba_ssm` on CUDA. It takes the first back end
that can compute the scan, or `reference` if none can. `cpu` and `triton` require that B and C vary
along the sequence, as in every Mamba block. Kernels are imported at their first use, because
importing Numba, Triton or mamba-ssm takes seconds.
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
        "numba cannot be imported, so the CPU computes in slow plain torch: pip install numba",
        stacklevel=2,
    )
BACKENDS = ("auto", "reference", "cpu", "triton", "mamba_ssm")
_FASTEST = {"cpu": ("cpu",), "cuda": ("triton", "mamba_ssm")}
_KERNEL_DTYPES = torch.float32, torch.bfloat16, torch.float16
MIN_TRITON = 3, 6  # Gluon, Triton's language with layouts, changes from version to version
_MAMBA_SSM_MAX_N = 256  # largest N that mamba-ssm's kernel takes


def scan_backend(tensor):
    """Return the name of the back end that "auto" takes for this tensor's device and dtype.

    The name is "cpu", "triton", "mamba_ssm" or "reference". If the name is "mamba_ssm" but N > 256,
    `selective_scan` takes "reference".
    """
    if not (hasattr(tensor, "dtype") and hasattr(tensor, "device")):
        check_tensor("tensor", tensor)
    return choose_backend("auto", tensor)


def fused_on_cpu(*tensors):
    """Return True if the fused CPU loops can take all of these tensors.

    Each must be an ordinary float32 tensor on the CPU (see `is_ordinary`) or None, and Numba must
    be importable.
    """
    # all() of a list is several times as fast as all() of a generator
    fits = all([t is None or (t.is_cpu and t.dtype is torch.float32) for t in tensors])
    return fits and is_ordinary(*tensors) and HAS_NUMBA


def runs_triton(u):
    """Return True if Triton kernels can run on CUDA here and can take u."""
    return u.dtype in _KERNEL_DTYPES and triton_obstacle("cuda") is None and _fits_kernels(u)


def scan_kernel(backend):
    """Return the function that computes the scan in a back end other than "reference"."""
    if backend == "cpu":
        from mambanorm.kernels.scan_cpu import scan_cpu as scan
    elif backend == "mamba_ssm":
        scan = scan_mamba_ssm
    else:
        from mambanorm.kernels.scan_triton import scan_triton as scan
    return scan


def low_rank_kernel(backend, u, dt, B, C, dt_weight, dt_bias, A_log, D):
    """Return the function that computes Δ and the scan in one kernel, or None if there is none.

    Δ = softplus(dt·dt_weightᵀ + dt_bias). If the result is None, the caller must compute Δ before
    the scan. `backend` means the same as in `choose_backend`, and the same errors are raised.
    """
    name = choose_backend(backend, u, A_log.shape[1])
    tensors = u, dt, B, C, dt_weight, dt_bias, A_log, D
    if name == "cpu" and all([t.is_cpu and t.dtype is torch.float32 for t in tensors]):
        from mambanorm.kernels.scan_cpu import low_rank_scan_cpu

        return low_rank_scan_cpu
    return None


def choose_backend(backend, u, state_size=1, *, vary=True):
    """Return the name of the back end that computes the scan of u with N = `state_size`.

    `backend` is the requested back end, one of BACKENDS. `vary` is True if both B and C vary
    along the sequence. Raises ValueError if the requested back end is unknown or cannot compute
    this scan.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    if backend == "auto":
        candidates = _FASTEST.get(u.device.type, ())
        return next(
            (name for name in candidates if _obstacle(name, u, state_size, vary) is None),
            "reference",
        )
    obstacle = None if backend == "reference" else _obstacle(backend, u, state_size, vary)
    if obstacle is not None:
        raise ValueError(
            f"backend {backend!r} {obstacle}, given {u.dtype} on {u.device}: use 'auto'"
        )
    return backend


def _obstacle(backend, u, state_size, vary):
    """Return why a back end cannot compute the scan of u, or None if it can.

    The returned text continues a sentence that starts with the back end's name.
    """
    if u.dtype not in _KERNEL_DTYPES:
        return "takes float32, bfloat16 or float16"
    if not _fits_kernels(u):
        return (
            "does not support torch.func, jit.trace, forward-mode differentiation, "
            "dispatch modes and tensor subclasses"
        )
    if not vary and backend != "mamba_ssm":
        return "takes B and C that vary along the sequence"
    if backend == "triton":
        return triton_obstacle(u.device.type)
    if backend == "cpu":
        if u.device.type != "cpu":
            return "runs only on the CPU"
        return None if HAS_NUMBA else "needs the package numba, which cannot be imported"
    if u.device.type != "cuda":
        return "runs only on CUDA"
    if state_size > _MAMBA_SSM_MAX_N:
        return f"takes N up to {_MAMBA_SSM_MAX_N}, not N = {state_size}"
    return "needs the package mamba-ssm, which cannot be imported" if mamba_ssm() is None else None


def _fits_kernels(u):
    """Return True if a kernel can compute the scan of u.

    A kernel needs an ordinary tensor (see `is_ordinary`). Under torch.compile the scan is called as
    an operator, and the operator takes every u.
    """
    return torch.compiler.is_compiling() or not isinstance(u, torch.Tensor) or is_ordinary(u)


@functools.cache
def triton_obstacle(device_type):
    """Return why Triton kernels cannot run on a type of device, or None if they can.

    The text continues a sentence that starts with "backend 'triton'". The result is cached.
    """
    try:
        version = importlib.import_module("triton").__version__
        if tuple(map(int, version.split(".")[:2])) < MIN_TRITON:
            return f"needs Triton {MIN_TRITON[0]}.{MIN_TRITON[1]} or newer, and this is {version}"
        interpreted = importlib.import_module("mambanorm.kernels.gluon").INTERPRETED
    except Exception as error:  # a Triton built for another Python may raise any error
        return (
            f"needs the package triton, which cannot be imported ({error}): "
            "pip install 'triton>=3.6', on Linux"
        )
    if interpreted and device_type in ("cpu", "cuda"):
        return None
    if device_type != "cuda":
        return (
            "runs on CUDA; on the CPU it needs Triton's slow interpreter: "
            "set TRITON_INTERPRET=1 before Python starts"
        )
    try:
        target = importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return (
            f"cannot start here ({error}): "
            "Triton needs a C compiler, gcc or clang, to build its launcher"
        )
    return None if target.backend == "cuda" else "runs on NVIDIA GPUs"


@functools.cache
def mamba_ssm():
    """Return mamba-ssm's `selective_scan_fn`, or None if it cannot be imported.

    Any exception gives None, because a mamba-ssm that was built for another torch fails at import.
    The result is cached.
    """
    try:
        return importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn
    except Exception:
        return None


def scan_mamba_ssm(
    u, delta, A, B, C, D=None, delta_bias=None, delta_softplus=False, want_last=True
):
    """Compute the scan with mamba-ssm's CUDA kernel.

    The arguments are those of `selective_scan`, already checked. They are converted to what the
    kernel needs. A, D and delta_bias become float32; delta gets u's dtype. A constant B or C
    becomes float32; a B or C that varies along L gets u's dtype, and if both vary, the same number
    of groups. Returns out (B, D, L) and last_state, which is (B, D, N) without gradient if
    `want_last`, else None.
    """
    groups = math.lcm(*(1 if m.dim() < 4 else m.shape[1] for m in (B, C)))

    def with_groups(m):  # returns (D, N) if m is constant, else (B, G, N, L)
        if m.dim() == 2:
            return m.float()
        m = m.unsqueeze(1) if m.dim() == 3 else m
        return m.repeat_interleave(groups // m.shape[1], dim=1).to(u.dtype)

    D, bias = (None if v is None else v.float() for v in (D, delta_bias))
    arguments = (
        u,
        delta.to(u.dtype),
        A.float(),
        with_groups(B),
        with_groups(C),
        D,
        None,
        bias,
        delta_softplus,
    )
    out, last = mamba_ssm()(*arguments, return_last_state=True)
    return out, last.detach() if want_last else None
