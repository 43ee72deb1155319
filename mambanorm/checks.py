"""Checks of the arguments of public functions, before any computation.

The fused loops read raw memory: with a wrong shape, dtype or layout they would read past the end of
a tensor. So each public function that calls such a loop, directly or through private functions,
first checks its arguments with the functions below. Norms and blocks do so in `forward`. Private
functions do not check the arguments again.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mambanorm.errors import shown

# REAL: the floating-point dtypes that operations accept. HALF: the 16-bit dtypes among them. WHOLE:
# integer dtypes; lengths may have any of them, token ids one of the first two.
REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_size(name: str, size: object) -> None:
    """Raise ValueError unless `size` is a positive whole number."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name} must be a positive whole number, got {shown(size)}")


def check_flag(name: str, flag: object) -> None:
    """Raise ValueError unless `flag` is a bool, because a text such as "no" would count as True."""
    if not isinstance(flag, bool):
        raise ValueError(f"{name} must be True or False, got {shown(flag)}")


def check_tensor(name: str, value: object, form: str = "") -> Tensor:
    """Return the value. Raise ValueError unless it is a tensor.

    `form` describes the needed tensor in the error's message, such as "(B, L)".
    """
    if not isinstance(value, Tensor):
        is_array = isinstance(value, list | tuple | np.ndarray)
        hint = f": use torch.as_tensor({name})" if is_array else ""
        needed = f"{form} " if form else ""
        raise ValueError(f"{name} is {shown(value)}; a tensor {needed}is needed{hint}")
    return value


def check_real(name: str, value: object, form: str = "") -> Tensor:
    """Return the value. Raise ValueError unless it is a dense tensor with a dtype of REAL.

    An ordinary tensor (`is_ordinary`) must not be a negated view and, on the CPU, must have
    storage. `form` is as in `check_tensor`.
    """
    x = check_tensor(name, value, form)
    if x.dtype not in REAL:
        raise ValueError(
            f"{name} has dtype {x.dtype}; a real floating-point one is needed, "
            f"such as {name}.float()"
        )
    if x.layout is not torch.strided:
        raise ValueError(
            f"{name} has layout {x.layout}; a dense one is needed: use {name}.to_dense()"
        )
    if not is_ordinary(x):
        return x
    if x.is_neg():  # the values in memory have the opposite sign
        raise ValueError(
            f"{name} is a negated view; an ordinary tensor is needed: use {name}.resolve_neg()"
        )
    if x.is_cpu and x.numel() and not x.data_ptr():
        raise ValueError(f"{name} has no storage: it was freed or never allocated")
    return x


def check_all_real(**values: object) -> None:
    """Check each value with `check_real`. Raise ValueError unless all are on one device."""
    tensors = {name: check_real(name, value) for name, value in values.items()}
    first, reference = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.device != reference.device:
            raise ValueError(
                f"{name} is on {tensor.device} and {first} on {reference.device}; "
                "all tensors must be on one device"
            )


def is_ordinary(*tensors: Tensor | None) -> bool:
    """Return True if kernels, instead of torch operations, may compute with these tensors.

    That is False for tensor subclasses (FakeTensor, DTensor), and while torch.compile,
    torch.export, torch.func, jit.trace, forward-mode differentiation or a dispatch mode must see
    every torch operation. None counts as an ordinary tensor.
    """
    if _compiling() or _dispatch_modes() or _tracing():
        return False
    if _transforms() is not None or forward_ad._current_level >= 0:
        return False
    return all([type(tensor) in _ORDINARY for tensor in tensors])  # faster than a generator


_compiling, _dispatch_modes = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack
_tracing, _transforms = torch._C._is_tracing, torch._C._functorch.peek_interpreter_stack
_ORDINARY = (Tensor, torch.nn.Parameter, type(None))


def check_like_weight(name: str, x: Tensor, weight: Tensor, owner: str) -> None:
    """Raise ValueError unless x has the weight's device and, if floating-point, the weight's dtype.

    Under autocast the dtypes may differ. The device of a weight on meta is not compared, because
    such a weight may be offloaded and loaded only when its layer is called. `name` (of x) and
    `owner` (of the weight) appear in the message.
    """
    if x.device != weight.device and not weight.is_meta:
        raise ValueError(
            f"{name} is on {x.device} and {owner} on {weight.device}: move both to one device"
        )
    is_other = x.dtype != weight.dtype and x.is_floating_point()
    if is_other and not torch.is_autocast_enabled(x.device.type):
        raise ValueError(
            f"{name} is {x.dtype} and {owner} {weight.dtype}: use {name}.to({weight.dtype})"
        )


def check_shapes(
    owner: str,
    names: Sequence[str],
    tensors: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...]],
) -> None:
    """Raise ValueError unless each tensor has the shape at the same index in `shapes`.

    A tensor that is None is skipped. `owner` and the tensor's name appear in the message.
    """
    for name, tensor, shape in zip(names, tensors, shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{owner}: {name} has shape {tuple(tensor.shape)}, {tuple(shape)} is needed"
            )


def check_ids(ids: object, n: int, axes: str = "(B, L)") -> None:
    """Raise ValueError unless ids are int64 or int32 token ids in 0…n−1 of the shape `axes`.

    `axes` is "(B, L)" or "(B,)". The range is checked on the CPU only, because a check on CUDA
    would wait for the device.
    """
    if not isinstance(ids, Tensor):
        hint = "text must be encoded first" if isinstance(ids, str) else "use torch.as_tensor(…)"
        raise ValueError(f"expected a tensor of token ids {axes}, got {shown(ids)}: {hint}")
    dims = len(re.findall(r"\w", axes))
    if ids.dim() != dims or ids.dtype not in WHOLE[:2] or not ids.numel():
        raise ValueError(
            f"expected token ids {axes}, at least one, as int64 or int32, "
            f"got {ids.dtype} {tuple(ids.shape)}"
        )
    if ids.device.type == "cpu" and is_ordinary(ids):
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= n:
            raise ValueError(f"token ids must lie in 0..{n - 1}, got {low}..{high}")


def check_lengths(lengths: object, x: Tensor) -> None:
    """Raise ValueError unless lengths is None or a tensor (B,) of whole numbers in 1…L.

    x: (B, L, …). The range is checked on the CPU only, and not in compiled code.
    """
    if lengths is None:
        return
    B, L = x.shape[:2]
    if not isinstance(lengths, Tensor):
        raise ValueError(
            f"lengths must be a tensor of {B} whole numbers, got {shown(lengths)}: "
            "use torch.tensor(…)"
        )
    if lengths.shape != (B,) or lengths.dtype not in WHOLE:
        raise ValueError(
            f"lengths must be {B} whole numbers, one per row, "
            f"got {lengths.dtype} of shape {tuple(lengths.shape)}"
        )
    if lengths.device != x.device:
        raise ValueError(f"lengths must be on the device of x, {x.device}, got {lengths.device}")
    if lengths.device.type == "cpu" and is_ordinary(lengths):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 1 or high > L:
            raise ValueError(f"lengths must lie in 1..{L} (the sequence length), got {low}..{high}")
