"""Which back end computes an operation: the one that is asked for, or the fastest that takes device and dtype.

==============  ======================================  ===========================================================
back end        file                                    where it works
==============  ======================================  ===========================================================
``reference``   `mambanorm/operations/reference.py`     every device; float64 or float32; a loop to read
``cpu``         `mambanorm/kernels/scan_cpu.py`         CPU; float32 (bfloat16 and half are computed in float32)
``mamba_ssm``   `mambanorm/kernels/cuda.py`             CUDA, if the package mamba-ssm is installed; N up to 256
``triton``      `mambanorm/kernels/scan_triton.py`      CUDA, if the package triton is installed; the state in float32
==============  ======================================  ===========================================================

"auto" takes the first that works: `cpu` on the CPU, `mamba_ssm` or `triton` on CUDA, and else `reference`.
"""

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
    return _fastest(tensor)


def fused_on_cpu(*tensors):
    """Whether the fused loops take these tensors: float32 on the CPU, all of them; None is no tensor."""
    return all([t is None or (t.is_cpu and t.dtype is torch.float32) for t in tensors])  # a list: several times as fast


def kernel(name):
    """The scan of a back end but the reference. Imported on first use: Numba and mamba-ssm take seconds to import."""
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
        from mambanorm.kernels.scan_low_rank import low_rank_scan_cpu

        return low_rank_scan_cpu
    if name == "triton":
        from mambanorm.kernels.scan_triton import MOST_RANKS, low_rank_scan_triton

        return low_rank_scan_triton if dt_weight.shape[1] <= MOST_RANKS else None
    return None


def gpu_convolution(u):
    """The causal convolution with its SiLU on CUDA: Triton's if it can run and takes u, else torch's."""
    from mambanorm.kernels import scan_triton

    if u.dtype in _KERNEL_DTYPES and scan_triton.obstacle("cuda") is None:
        from mambanorm.kernels.conv_triton import conv_silu_triton as convolution
    else:
        from mambanorm.kernels.cuda import conv_silu_gpu as convolution
    return convolution


def _fastest(u, state=1):
    """The fastest back end that takes u and N = `state`."""
    if u.dtype not in _KERNEL_DTYPES or u.device.type not in ("cpu", "cuda"):
        return "reference"
    if u.device.type == "cpu":
        return "cpu"
    from mambanorm.kernels import cuda, scan_triton

    if cuda.available() and state <= _MAMBA_SSM_STATES:
        return "mamba_ssm"
    return "triton" if scan_triton.obstacle("cuda") is None else "reference"


def choose(backend, u, state):
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
    from mambanorm.kernels import cuda

    if u.device.type != "cuda" or u.dtype not in _KERNEL_DTYPES:
        raise ValueError(f"backend 'mamba_ssm' takes float32, bfloat16 or float16 on CUDA, given {where}; use 'auto'")
    if state > _MAMBA_SSM_STATES:
        raise ValueError(f"backend 'mamba_ssm' takes N up to {_MAMBA_SSM_STATES}, given N = {state}; use 'auto'")
    if not cuda.available():
        raise ValueError("backend 'mamba_ssm' needs the package mamba-ssm, which cannot be imported; use 'auto'")


def _check_triton(u, where):
    from mambanorm.kernels import scan_triton

    if u.dtype not in _KERNEL_DTYPES:
        raise ValueError(f"backend 'triton' takes float32, bfloat16 or float16, given {where}; use 'auto'")
    if (obstacle := scan_triton.obstacle(u.device.type)) is not None:
        raise ValueError(f"backend 'triton' {obstacle}; given {where}, use 'auto'")
