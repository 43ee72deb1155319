"""One pass through a model: its sites described, and the first value that is not finite.

    Pass                 looks while it is open; afterwards `rows`, `first`, `first_gradient` and `largest`
    First                where it was, what came before, and told: the sentences that diagnose and check_model both say
    describe_fast        RMS, largest, p99.9, kurtosis, share of non-finite values and head-room of a tensor
    histogram            how many values there are of each size, in powers of two

Nothing is kept but numbers; gradients are seen by hooks on the tensors, which leave modules as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.clinic.sites import Place, decay_place
from mambanorm.diagnostics.recording import describe, inspected, sample, tensors_in

SMALL = 80.0
"""Largest magnitude of inputs and weights at which nothing is taken to overflow: e⁸⁹ leaves float32."""
NO_OVERFLOW = "log or sqrt of a number below 0, 0/0 or a division by 0"
BACKWARD = "a lower rate, clip_grad_norm_, or a larger eps in the norm whose backward pass comes just before"
"""What to try where only gradients are not finite."""
MASKED = 1e3
"""Magnitudes above which values may be a mask's."""
EDGES = np.arange(-60, 61, 2)
"""Of the histograms, as powers of two: about 1e-18 to 1e18. What is smaller or larger counts at the ends."""
FLOAT32_SQUARE = math.sqrt(torch.finfo(torch.float32).max)
COLUMNS = ("depth", "site", "layer", "where", "rms", "max_abs", "p999", "kurtosis", "nonfinite", "room_float16",
           "room_bfloat16", "grad_rms", "grad_max_abs", "grad_nonfinite", "histogram", "grad_histogram")  # fmt: skip
"""Of Pass.rows."""
LARGEST = {"float16": torch.finfo(torch.float16).max, "bfloat16": torch.finfo(torch.bfloat16).max}


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
    def told(self) -> str:
        found = f"the first non-finite value of the forward pass is {named(self.site, self.depth, self.where)}"
        if self.before:
            before = named("", 0, self.before)
            found += f"; just before it {before} is finite, its largest magnitude {self.before_max:.3g}"
        return found

    @property
    def told_backward(self) -> str:
        """`told` of a first_gradient."""
        at = named(self.site, self.depth, self.where)
        found = f"the forward pass is finite; of the backward pass the gradient of {at} is the first that is not"
        if self.before:
            found += f", behind that of {named('', 0, self.before)} (largest {self.before_max:.3g})"
        return found

    @property
    def look_at(self) -> str:
        """What to look at where no norm would help: at the data, or at code that makes it of small values; else ""."""
        if self.where == ":input":
            return "look at the data: the model's input is not finite"
        if not self.before or self.reach > SMALL:
            return ""
        small = f"no value or weight there is above {self.reach:.3g}, too small for an overflow"
        return f"look for {NO_OVERFLOW} in the code of {self.inside or 'the model'}: {small}; clamp the argument or " \
               "add an eps"  # fmt: skip


def named(site: str, depth: int, where: str) -> str:
    """A place in words: `scan of layer 3 (blocks.2.scan)`, or its path alone."""
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where


class Pass:
    """Looks at the input and the output of every module, and at every site of this kit's blocks, in the order of
    execution, while `open` is entered. Before the backward pass `end_forward` is to be called.

    first: of the forward pass; first_gradient: of the backward pass; None if all is finite. largest: where → the
    largest magnitude that a finite tensor has had there. rows: one a place and call, histograms among them; what is
    made of a tensor (Place.made) has no gradient. places: what is described, of this kit's blocks own_sites (None =
    all).

    −inf alone is how masks are written. So a tensor whose non-finite values are all −inf counts as the first only where
    what is seen next is not finite either, or the loss is not.
    """

    def __init__(self, places: Iterable[Place] = (), own_sites: Iterable[str] | None = ()):
        self.first: First | None = None
        self.first_gradient: First | None = None
        self.largest: dict[str, float] = {}
        self.rows: list[dict] = []
        self.own_sites = own_sites
        self.places: dict[str, list[Place]] = {}
        for place in places:
            self.places.setdefault(place.seen_at, []).append(place)
        self._before = self._gradient_before = ("", math.nan, "")
        self._held: First | None = None  # a mask, or the first
        self._inside: list[list] = []  # the modules that run, innermost last: path, module, largest magnitude seen
        self._half, self._forward = False, True
        self._on_tensors: list = []

    @property
    def huge(self) -> First | None:
        """The first value whose square leaves float32."""
        where = next((where for where, size in self.largest.items() if size > FLOAT32_SQUARE), None)
        row = next((row for row in self.rows if row["where"] == where), dict(site="", depth=0))
        return None if where is None else First(where, row["site"], row["depth"])

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        self.model = model
        try:
            with inspected(model, at=self._at, entered=self._entered, left=self._left):
                yield
        finally:
            for hook in self._on_tensors:  # a weight that went in as a tensor would keep its hook
                hook.remove()

    def end_forward(self, loss: float) -> None:
        """What runs from here on is not seen: a checkpointed layer computes its values again on the way back."""
        self._forward = False
        if self.first is None and not math.isfinite(loss):
            self.first = self._held

    def _entered(self, path: str, module: nn.Module, given: list) -> None:
        self._see_all(f"{path}:input", given)
        self._inside.append([path, module, self.largest.get(f"{path}:input", 0.0)])

    def _left(self, path: str, _module: nn.Module, output: object) -> None:
        self._see_all(path, output)
        while self._inside and self._inside.pop()[0] != path:  # one that has raised has not left
            pass

    def _at(self, name: str, depth: int, site: str, value: Tensor) -> None:
        own = [Place(site, depth, name, f"{name}.{site}".lstrip("."))]
        if site == "step_size":
            own.append(decay_place(depth, name, own[0].path, self.model.get_submodule(name)))
        wanted = [place for place in own if self.own_sites is None or place.site in self.own_sites]
        self._look(own[0].path, value, wanted, site, depth)

    def _see_all(self, where: str, given: object) -> None:
        values = [value for value in tensors_in(given) if value.is_floating_point()]
        for index, value in enumerate(values):
            self._look(where, value, [place for place in self.places.get(where, ()) if place.index == index])

    def _look(self, where: str, value: Tensor, places: list[Place], site: str = "", depth: int = 0) -> None:
        """Judges a tensor and describes its places; it is named after the first of them that is not finite."""
        if not self._forward or not value.numel():
            return
        largest = float(value.detach().abs().max())
        for place in places:
            if place.made is None and (math.isfinite(largest) or not part_of(value, place).isfinite().all()):
                site, depth = place.site, place.depth
                break
        self._judge(where, value, largest, site, depth)
        rows = [(place, self._row(place, value)) for place in places]
        self.rows += [row for _, row in rows]
        for place, row in rows:
            self.largest.setdefault(place.where, row["max_abs"])

        def see_gradient(grad: Tensor) -> None:
            self._judge_gradient(where, grad, site, depth)
            for place, row in rows:
                if place.made is None:
                    facts = describe(part := part_of(grad, place))
                    row |= {f"grad_{name}": facts[name] for name in ("rms", "max_abs", "nonfinite")}
                    row["grad_histogram"] = histogram(part)

        if value.requires_grad and torch.is_grad_enabled():
            self._on_tensors.append(value.register_hook(see_gradient))

    def _judge(self, where: str, value: Tensor, largest: float, site: str, depth: int) -> None:
        if math.isfinite(largest):
            size = magnitude(value, largest)
            self.largest[where] = max(self.largest.get(where, 0.0), size)
            for running in self._inside:
                running[2] = max(running[2], size)
            self._half |= value.dtype == torch.float16
            self._before, self._held = (where, largest, site), None
        elif self.first is None:
            found = self._held or First(where, site, depth, *self._before, *self._made_by(value))
            mask = not math.isnan(largest) and float(value.detach().max()) < math.inf
            self.first, self._held = (None, found) if mask else (found, None)

    def _judge_gradient(self, where: str, grad: Tensor, site: str, depth: int) -> None:
        if self.first_gradient is None and grad.numel():
            largest = float(grad.abs().max())
            if not math.isfinite(largest):
                self.first_gradient = First(where, site, depth, *self._gradient_before)
            self._gradient_before = where, largest, site

    def _made_by(self, value: Tensor) -> tuple[str, float]:
        """Path of the module that runs, and the largest magnitude of what it has seen and of what it holds."""
        if not self._inside:
            return "", math.inf
        path, module, seen = self._inside[-1]
        if self._half or value.dtype == torch.float16:
            return path, math.inf
        own = [held for held in [*module.parameters(), *module.buffers()] if held.is_floating_point()]
        sizes = [magnitude(held) for held in (held.detach()[held.detach() != -math.inf] for held in own) if len(held)]
        return path, max([seen, *(math.inf if math.isnan(size) else size for size in sizes)])

    def _row(self, place: Place, value: Tensor) -> dict:
        part = part_of(value, place)
        facts = dict(depth=place.depth, site=place.site, layer=place.layer, where=place.where) | describe(part)
        with np.errstate(divide="ignore"):
            largest = np.log2(facts["max_abs"])
        facts |= {f"room_{name}": float(np.log2(most) - largest) for name, most in LARGEST.items()}
        facts |= dict(grad_rms=math.nan, grad_max_abs=math.nan, grad_nonfinite=math.nan)
        return facts | {"histogram": histogram(part), "grad_histogram": None}


def part_of(value: Tensor, place: Place) -> Tensor:
    """The channels of a place, or what is made of them."""
    part = value.detach() if place.channels is None else value.detach()[..., slice(*place.channels)]
    return part if place.made is None else place.made(part)


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


def histogram(value: Tensor) -> np.ndarray:
    """Counts of |v| between the powers of two of EDGES; zeros and non-finite values are left out."""
    flat = sample(value).abs().double().cpu().numpy()
    powers = np.log2(flat[(flat > 0) & np.isfinite(flat)])
    return np.histogram(np.clip(powers, EDGES[0], EDGES[-1]), bins=EDGES)[0]
