"""Checks of arguments: what a caller passes in is checked here, before anything is computed with
it.

The fused loops read plain memory. If a tensor had another shape, dtype or layout than they are
told, they would read past its end. So every public function that ends in such a loop checks here
first; norms and blocks do so in `forward`. The code between them and the loops does not check
again.
"""

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from mambanorm.errors import shown

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HALF = (torch.bfloat16, torch.float16)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
"""REAL: dtypes to compute with. HALF: those of them that autocast produces. WHOLE: dtypes of whole
numbers."""


def check_size(name: str, size: object) -> None:
    """Raises ValueError unless a size is a positive whole number."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{name} must be a positive whole number, got {shown(size)}")


def check_flag(name: str, flag: object) -> None:
    """Raises ValueError unless a flag is True or False: a text such as "no" would count as True."""
    if not isinstance(flag, bool):
        raise ValueError(f"{name} must be True or False, got {shown(flag)}")


def check_tensor(name: str, value: object, form: str = "") -> None:
    """Raises ValueError unless value is a tensor; `form` describes it in the message."""
    if not isinstance(value, Tensor):
        array = isinstance(value, list | tuple | np.ndarray)
        hint = f": use torch.as_tensor({name})" if array else ""
        raise ValueError(f"{name} is {shown(value)}; a tensor {form and form + ' '}is needed{hint}")


def check_real(name: str, value: object, form: str = "") -> None:
    """Raises ValueError unless value is a tensor of floating-point numbers that lie in memory as
    its strides say."""
    check_tensor(name, value, form)
    if value.dtype not in REAL:
        raise ValueError(
            f"{name} has dtype {value.dtype}; a real floating-point one is needed, such as {name}.float()"
        )
    if value.layout is not torch.strided:
        raise ValueError(
            f"{name} has layout {value.layout}; a dense one is needed: use {name}.to_dense()"
        )
    if not is_ordinary(value):
        return
    if value.is_neg():  # a view whose numbers differ from its memory by their sign
        raise ValueError(
            f"{name} is a negated view; numbers of its own are needed: use {name}.resolve_neg()"
        )
    if value.is_cpu and value.numel() and not value.data_ptr():
        raise ValueError(f"{name} has no memory behind it: its storage was freed")


def check_together(**named: object) -> None:
    """`check_real` of each, and ValueError unless all are on the device of the first."""
    first, other = next(iter(named.items()))
    for name, value in named.items():
        check_real(name, value)
        if value.device != other.device:
            raise ValueError(
                f"{name} is on {value.device} and {first} on {other.device}; all must be on one device"
            )


def is_ordinary(*tensors: Tensor | None) -> bool:
    """Return True if the tensors hold numbers that a kernel can read, and nothing has to see the
    operations on them.

    False for subclasses (FakeTensor, DTensor), and while torch.compile, torch.export, torch.func,
    jit.trace, forward-mode differentiation or a dispatch mode looks at each operation. None is no
    tensor.
    """
    if (
        _compiling()
        or _dispatch_modes()
        or _tracing()
        or _transforms() is not None
        or forward_ad._current_level >= 0
    ):
        return False
    return all(
        [type(tensor) in _ORDINARY for tensor in tensors]
    )  # a list: twice as fast, and asked of every operation


_compiling, _dispatch_modes = torch.compiler.is_compiling, torch._C._len_torch_dispatch_stack
_tracing, _transforms = torch._C._is_tracing, torch._C._functorch.peek_interpreter_stack
_ORDINARY = (Tensor, torch.nn.Parameter, type(None))


def check_beside(name: str, x: Tensor, weight: Tensor, owner: str) -> None:
    """Raises ValueError unless x is on the weight's device and in its dtype; under autocast the
    dtype may differ. A weight on meta says nothing of the device: offloading brings it when its
    layer is called."""
    if x.device != weight.device and not weight.is_meta:
        raise ValueError(
            f"{name} is on {x.device} and {owner} on {weight.device}: move one to the other"
        )
    if (
        x.dtype != weight.dtype
        and x.is_floating_point()
        and not torch.is_autocast_enabled(x.device.type)
    ):
        raise ValueError(
            f"{name} is {x.dtype} and {owner} {weight.dtype}: use {name}.to({weight.dtype})"
        )


def check_shapes(
    owner: str, names: Sequence[str], tensors: Sequence[Tensor | None], shapes: Sequence[tuple]
) -> None:
    """Raises ValueError for the first tensor whose shape is not the given one; None is skipped."""
    for name, tensor, shape in zip(names, tensors, shapes, strict=True):
        if tensor is not None and tensor.shape != shape:
            raise ValueError(
                f"{owner}: {name} has shape {tuple(tensor.shape)}, needed is {tuple(shape)}"
            )


def check_ids(ids: object, n: int, axes: str = "(B, L)") -> None:
    """Raises ValueError unless ids are whole numbers in 0..n−1 (looked at on the CPU only) along
    (B, L) or (B,)."""
    if not isinstance(ids, Tensor):
        hint = "text must be encoded first" if isinstance(ids, str) else "use torch.as_tensor(…)"
        raise ValueError(f"expected a tensor of token ids {axes}, got {shown(ids)}: {hint}")
    if ids.dim() != len(re.findall(r"\w", axes)) or ids.dtype not in WHOLE[:2] or not ids.numel():
        found = f"{ids.dtype} {tuple(ids.shape)}"
        raise ValueError(f"expected token ids {axes}, at least one, as int64 or int32, got {found}")
    if (
        ids.device.type == "cpu"
        and is_ordinary(ids)
        and not 0 <= int(ids.min()) <= int(ids.max()) < n
    ):
        raise ValueError(
            f"token ids must lie in 0..{n - 1}, got {int(ids.min())}..{int(ids.max())}"
        )


def check_lengths(lengths: object, x: Tensor) -> None:
    """Raises ValueError unless lengths is None or holds a whole number in 1..L for each row of x
    (B, L, …).

    The range is checked on the CPU only, and not in compiled code: on CUDA that would stall the
    device.
    """
    if lengths is None:
        return
    B, L = x.shape[:2]
    if not isinstance(lengths, Tensor):
        raise ValueError(
            f"lengths must be a tensor of {B} whole numbers, got {shown(lengths)}: use torch.tensor(…)"
        )
    if lengths.shape != (B,) or lengths.dtype not in WHOLE:
        given = f"{lengths.dtype} of shape {tuple(lengths.shape)}"
        raise ValueError(f"lengths must be {B} whole numbers, one a row, got {given}")
    if lengths.device != x.device:
        raise ValueError(f"lengths must be on the device of x, {x.device}, got {lengths.device}")
    if (
        lengths.device.type == "cpu"
        and is_ordinary(lengths)
        and not bool(((lengths >= 1) & (lengths <= L)).all())
    ):
        found = f"{int(lengths.min())}..{int(lengths.max())}"
        raise ValueError(f"lengths must lie in 1..{L} (the sequence length), got {found}")
