"""Which back end computes an operation: the one that is asked for, or the fastest that takes device and dtype.

==============  ======================================  ===========================================================
back end        file                                    where it works
==============  ======================================  ===========================================================
``reference``   `mambanorm/operations/reference.py`     every device; float64 or float32; a loop to read
``cpu``         `mambanorm/kernels/scan_cpu.py`         CPU; float32 (bfloat16 and half are computed in float32)
``mamba_ssm``   `mambanorm/kernels/cuda.py`             CUDA, if the package mamba-ssm is installed; N up to 256
``triton``      `mambanorm/kernels/scan_triton.py`      CUDA, if the package triton is installed; the state in float32
==============  ======================================  ===========================================================

"auto" takes the first that works: `cpu` on the CPU, `mamba_ssm` or `triton` on CUDA, and else `reference`. `cpu` and
`triton` take B and C that vary along the sequence, as a Mamba's do. Kernels are imported on first use: Numba, Triton
and mamba-ssm take seconds to import.
"""

import functools
import importlib

import torch

from mambanorm.basics.checks import check_tensor
from mambanorm.basics.errors import unknown

BACKENDS = ("auto", "reference", "cpu", "mamba_ssm", "triton")
_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAMBA_SSM_STATES = 256  # the largest N of its kernel


def scan_backend(tensor):
    """The back end that "auto" takes for this tensor's device and dtype: "cpu", "mamba_ssm", "triton" or "reference".

    "mamba_ssm" is limited to N ≤ 256; above that, `selective_scan` takes the next one.
    """
    if not (hasattr(tensor, "dtype") and hasattr(tensor, "device")):
        check_tensor("tensor", tensor)
    return choose("auto", tensor)


def fused_on_cpu(*tensors):
    """Whether the fused loops take these tensors: float32 on the CPU, all of them; None is no tensor."""
    return all([t is None or (t.is_cpu and t.dtype is torch.float32) for t in tensors])  # a list: several times as fast


def runs_triton(u):
    """Whether Triton's kernels can run on CUDA and take u."""
    return u.dtype in _KERNEL_DTYPES and _obstacle("triton", "cuda") is None


def kernel(name):
    """The scan of a back end but the reference."""
    if name == "cpu":
        from mambanorm.kernels.scan_cpu import scan_cpu as scan
    elif name == "mamba_ssm":
        from mambanorm.kernels.cuda import scan_mamba_ssm as scan
    else:
        from mambanorm.kernels.scan_triton import scan_triton as scan
    return scan


def low_rank_kernel(backend, u, dt, B, C, dt_weight, dt_bias, A_log, D):
    """The kernel of a scan that projects Δ itself, None where Δ is projected before it; `backend` as in `choose`."""
    name = choose(backend, u, A_log.shape[1])
    if name == "cpu" and fused_on_cpu(u, dt, B, C, dt_weight, dt_bias, A_log, D):
        from mambanorm.kernels.scan_cpu import low_rank_scan_cpu

        return low_rank_scan_cpu
    if name == "triton":
        from mambanorm.kernels.scan_triton import MOST_RANKS, low_rank_scan_triton

        return low_rank_scan_triton if dt_weight.shape[1] <= MOST_RANKS else None
    return None


def choose(backend, u, state=1, *, vary=True):
    """The back end to use for u with N = `state`; ValueError if the one named is unknown or does not fit. `vary`:
    whether both B and C vary along the sequence."""
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    device, fits = u.device.type, u.dtype in _KERNEL_DTYPES
    if backend == "reference" or (backend == "auto" and not fits):
        return "reference"
    where = f"{u.dtype} on {u.device}"
    if not vary and backend in ("cpu", "triton"):
        raise ValueError(f"backend {backend!r} takes B and C that vary along the sequence: use 'auto' or 'reference'")
    if backend == "auto":
        found = "cpu" if device == "cpu" else _on_cuda(state) if device == "cuda" else "reference"
        return found if vary or found == "mamba_ssm" else "reference"
    if backend == "cpu" and (device != "cpu" or not fits):
        raise ValueError(
            f"backend 'cpu' takes float32, bfloat16 or float16 on the CPU, given {where}; use 'auto' or 'reference'"
        )
    if backend == "mamba_ssm" and (device != "cuda" or not fits):
        raise ValueError(f"backend 'mamba_ssm' takes float32, bfloat16 or float16 on CUDA, given {where}; use 'auto'")
    if backend == "mamba_ssm" and state > _MAMBA_SSM_STATES:
        raise ValueError(f"backend 'mamba_ssm' takes N up to {_MAMBA_SSM_STATES}, given N = {state}; use 'auto'")
    if backend == "triton" and not fits:
        raise ValueError(f"backend 'triton' takes float32, bfloat16 or float16, given {where}; use 'auto'")
    if backend != "cpu" and (obstacle := _obstacle(backend, device)) is not None:
        raise ValueError(f"backend {backend!r} {obstacle}; given {where}, use 'auto'")
    return backend


def _on_cuda(state):
    """The fastest on CUDA for N = `state`."""
    if _obstacle("mamba_ssm", "cuda") is None and state <= _MAMBA_SSM_STATES:
        return "mamba_ssm"
    return "triton" if _obstacle("triton", "cuda") is None else "reference"


def _obstacle(backend, device):
    """Why a back end of CUDA cannot run on a device, None if it can."""
    from mambanorm.kernels import cuda

    if backend == "triton":
        return triton_obstacle(device)
    return None if cuda.available() else "needs the package mamba-ssm, which cannot be imported"


@functools.cache
def triton_obstacle(device_type):
    """Why no Triton kernel can run on such a device, to follow "backend 'triton'"; None if one can (tried once)."""
    try:
        interpreted = importlib.import_module("mambanorm.kernels.scan_triton_loops").INTERPRETED
    except Exception as error:  # a build for another Python fails with what it likes
        return f"needs the package triton, which cannot be imported ({error}): pip install triton, on Linux"
    if interpreted and device_type in ("cpu", "cuda"):
        return None
    if device_type != "cuda":
        return "runs on CUDA; on the CPU only in Triton's slow interpreter: set TRITON_INTERPRET=1 before Python starts"
    try:
        importlib.import_module("triton.runtime").driver.active.get_current_target()
    except Exception as error:
        return f"cannot start here ({error}): Triton builds its launcher with a C compiler, gcc or clang"
    return None
