"""The first value that is not finite in a pass through any model, and what stood just before it.

    Search      hooks on every module while `open` is entered; afterwards `first`, `first_gradient` and `largest`
    First       where it was, what came before, and told: the sentences that the clinic and check_model both say
    magnitude   the largest magnitude of a tensor, masks left out

Nothing is kept but numbers; gradients are seen by hooks on the tensors, which leave modules as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor, nn

from mambanorm.diagnostics.recording import blocks_of

SMALL = 80.0
"""Largest magnitude of inputs and weights at which nothing is taken to overflow: e⁸⁹ leaves float32."""
NO_OVERFLOW = "log or sqrt of a number below 0, 0/0 or a division by 0"
BACKWARD = "a lower rate, clip_grad_norm_, or a larger eps in the norm whose backward pass comes just before"
"""What to try where only gradients are not finite."""
MASKED = 1e3
"""Magnitudes above which values may be a mask's."""


@dataclass(frozen=True)
class First:
    """The first non-finite value. where: path of the module, ":input" behind it for its input, or a site of one of this
    kit's blocks. site, depth: as in the table, "" and 0 for a tensor that is no site. before: what came just before it
    and was finite, "" if nothing did; before_max: its largest magnitude; before_site: the site that it is, or "".
    inside: path of the module whose code made it. reach: the largest magnitude of all that this module has seen so far,
    and of its weights and buffers; infinite where float16 takes part."""

    where: str
    site: str = ""
    depth: int = 0
    before: str = ""
    before_max: float = math.nan
    before_site: str = ""
    inside: str = ""
    reach: float = math.inf

    @property
    def no_overflow(self) -> bool:
        """Whether all that it was made of is finite and small."""
        return bool(self.before) and self.reach <= SMALL

    @property
    def told(self) -> str:
        found = f"the first non-finite value of the forward pass is {place(self.site, self.depth, self.where)}"
        if self.before:
            before = place("", 0, self.before)
            found += f"; just before it {before} is finite, its largest magnitude {self.before_max:.3g}"
        return found

    @property
    def told_backward(self) -> str:
        """`told` of a first_gradient."""
        at = place(self.site, self.depth, self.where)
        found = f"the forward pass is finite; of the backward pass the gradient of {at} is the first that is not"
        if self.before:
            found += f", behind that of {place('', 0, self.before)} (largest {self.before_max:.3g})"
        return found

    @property
    def look_at(self) -> str:
        """What to look at where no norm would help, "" where one may."""
        if self.where == ":input":
            return "look at the data: the model's input is not finite"
        if not self.no_overflow:
            return ""
        inside = self.inside or "the model"
        small = f"no value or weight there is above {self.reach:.3g}, too small for an overflow"
        return f"look for {NO_OVERFLOW} in the code of {inside}: {small}; clamp the argument or add an eps"


def place(site: str, depth: int, where: str) -> str:
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where


def magnitude(value: Tensor, largest: float | None = None) -> float:
    """The largest magnitude of a tensor, NaN and infinity included. What a mask has written is left out: many values
    far below 0, all nearly the same, beside others. largest: the magnitude with them, if it is known."""
    value = value.detach()
    largest = float(value.abs().max()) if largest is None else largest
    if not MASKED < largest < math.inf or largest != -float(value.min()):
        return largest
    low = value < -0.5 * largest
    same = float(value[low].max()) < -0.99 * largest and int(low.sum()) > 1 and not low.all()
    return float(value[~low].abs().max()) if same else largest


class Search:
    """Hooks on every module while `open` is entered, its input before its output, so that what is found first is first
    in the order of execution.

    first: of the forward pass; first_gradient: of the backward pass; None if all is finite. largest: where → the
    largest magnitude that a finite tensor has had there. Before the backward pass `end_forward` is to be called.

    −inf alone is how masks are written. So a tensor whose non-finite values are all −inf counts as the first only where
    what is seen next is not finite either, or the loss is not.
    """

    def __init__(self):
        self.first: First | None = None
        self.first_gradient: First | None = None
        self.largest: dict[str, float] = {}
        self._before = {"first": ("", math.nan, ""), "first_gradient": ("", math.nan, "")}
        self._held: First | None = None  # a mask, or the first
        self._inside: list[list] = []  # the modules that run, innermost last: path, module, largest magnitude seen
        self._half = False
        self._forward = True
        self._on_tensors: list = []

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        hooks, blocks = [], blocks_of(model)
        before = [block.observer for _, block in blocks]
        for path, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entered(path), with_kwargs=True))
            hooks.append(module.register_forward_hook(self._left(path)))
        for depth, (name, block) in enumerate(blocks, 1):
            block.observer = self._observer(name, depth, block)
        try:
            yield
        finally:
            for hook in [*hooks, *self._on_tensors]:  # a weight that went in as a tensor would keep its hook
                hook.remove()
            for (_, block), observer in zip(blocks, before, strict=True):
                block.observer = observer

    def end_forward(self, loss: float) -> None:
        """What runs from here on is not seen: a checkpointed layer computes its values again on the way back."""
        self._forward = False
        if self.first is None and not math.isfinite(loss):
            self.first = self._held
        self._held = None

    def _entered(self, path: str):
        def hook(module, args, kwargs):
            self._see_all(path, "input", [*args, *kwargs.values()])
            self._inside.append([path, module, self.largest.get(f"{path}:input", 0.0)])

        return hook

    def _left(self, path: str):
        def hook(_module, _args, output):
            self._see_all(path, "output", tensors_in(output))
            while self._inside and self._inside.pop()[0] != path:  # one that has raised has not left
                pass

        return hook

    def _observer(self, name: str, depth: int, _block: nn.Module):
        return lambda site, value: self._see(f"{name}.{site}".lstrip("."), value, site, depth)

    def _see_all(self, path: str, side: str, given: Iterable[object]) -> None:
        where = path if side == "output" else f"{path}:input"
        for value in given:
            if isinstance(value, Tensor) and value.is_floating_point():
                self._see(where, value)

    def _see(self, where: str, value: Tensor, site: str = "", depth: int = 0) -> None:
        if self._forward:
            self._judge("first", where, value, site, depth)
            self._see_gradient(value, lambda grad: self._judge("first_gradient", where, grad, site, depth))

    def _see_gradient(self, value: Tensor, see) -> None:
        if value.requires_grad and torch.is_grad_enabled():
            self._on_tensors.append(value.register_hook(see))

    def _judge(self, which: str, where: str, value: Tensor, site: str, depth: int) -> None:
        if not value.numel() or (which == "first_gradient" and self.first_gradient is not None):
            return
        largest = float(value.detach().abs().max())
        forward = which == "first"
        if forward and math.isfinite(largest):
            size = magnitude(value, largest)
            self.largest[where] = max(self.largest.get(where, 0.0), size)
            for running in self._inside:
                running[2] = max(running[2], size)
            self._half |= value.dtype == torch.float16
        if getattr(self, which) is not None:
            return
        if math.isfinite(largest):
            self._before[which] = (where, largest, site)
            self._held = None
            return
        made_by = self._made_by(value) if forward else ()
        found = self._held or First(where, site, depth, *self._before[which], *made_by)
        if forward and not math.isnan(largest) and float(value.detach().max()) < math.inf:
            self._held = found
        else:
            setattr(self, which, found)
            self._held = None

    def _made_by(self, value: Tensor) -> tuple[str, float]:
        """Path of the module that runs, and the largest magnitude of what it has seen and of what it holds."""
        if not self._inside:
            return "", math.inf
        path, module, seen = self._inside[-1]
        half = self._half or value.dtype == torch.float16
        return path, math.inf if half else max([seen, *map(self._size, [*module.parameters(), *module.buffers()])])

    @staticmethod
    def _size(value: object) -> float:
        """The largest magnitude, 0 of what has none; infinite where it is not finite, but for a mask of −inf."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.numel():
            return 0.0
        finite = value.detach()[value.detach() != -math.inf]
        size = magnitude(finite) if finite.numel() else 0.0
        return math.inf if math.isnan(size) else size


def tensors_in(output: object) -> list[Tensor]:
    """The tensors of an output: itself, or of a tuple, list, dict or dataclass, one level deep, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    elif is_dataclass(output) and not isinstance(output, type):
        output = [getattr(output, field.name) for field in fields(output)]
    return [part for part in output if isinstance(part, Tensor)] if isinstance(output, list | tuple) else []
