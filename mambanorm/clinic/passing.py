"""One pass through a model under hooks: its sites described, and the first value that is not finite.

    Pass            hooks while it is open; afterwards `rows`, `first` and `first_gradient`
    describe_fast   RMS, largest, p99.9, kurtosis, share of non-finite values and head-room of a tensor
    histogram       how many values there are of each size, in powers of two

Every module is watched, its input before its output, so that what is found first is first in the order of execution.
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

from mambanorm.clinic.sites import Place
from mambanorm.diagnostics import blocks_of
from mambanorm.diagnostics.recording import describe

SAMPLE = 2**20
"""p99.9, kurtosis and histograms are of at most so many values, evenly spaced; all else is of every value."""
EDGES = np.arange(-60, 61, 2)
"""Of the histograms, as powers of two: about 1e-18 to 1e18. What is smaller or larger counts at the ends."""
LARGEST = {"float16": torch.finfo(torch.float16).max, "bfloat16": torch.finfo(torch.bfloat16).max}


def sample(value: Tensor) -> Tensor:
    """At most SAMPLE values of a tensor, evenly spaced, in one row."""
    flat = value.detach().flatten()
    return flat[:: math.ceil(len(flat) / SAMPLE)] if len(flat) > SAMPLE else flat


def describe_fast(value: Tensor) -> dict[str, float]:
    """`diagnostics.recording.describe`, and room_float16 and room_bfloat16: how often the largest magnitude can double
    before it leaves the type (below 0: it has left it). Beyond SAMPLE values two of them are those of a sample."""
    facts = describe(sample(value))
    if value.numel() > SAMPLE:
        finite = value.detach()[value.detach().isfinite()]
        facts["nonfinite"] = 1 - finite.numel() / value.numel()
        if finite.numel():
            total = float(torch.linalg.vector_norm(finite, dtype=torch.float64))
            facts |= dict(rms=total / math.sqrt(finite.numel()), max_abs=float(finite.abs().max()))
    with np.errstate(divide="ignore"):
        largest = np.log2(facts["max_abs"])
    return facts | {f"room_{name}": float(np.log2(most) - largest) for name, most in LARGEST.items()}


def histogram(value: Tensor) -> np.ndarray:
    """Counts of |v| between the powers of two of EDGES; zeros and non-finite values are left out."""
    flat = sample(value).abs().double().cpu().numpy()
    powers = np.log2(flat[(flat > 0) & np.isfinite(flat)])
    return np.histogram(np.clip(powers, EDGES[0], EDGES[-1]), bins=EDGES)[0]


@dataclass(frozen=True)
class First:
    """The first non-finite value. where: path of the module, ":input" behind it for its input, or a site of one of this
    kit's blocks. site, depth: as in the table, "" and 0 for a tensor that is no site. before: what came just before it
    and was finite, "" if nothing did; before_max: its largest magnitude; before_site: the site that it is, or ""."""

    where: str
    site: str = ""
    depth: int = 0
    before: str = ""
    before_max: float = math.nan
    before_site: str = ""


class Pass:
    """Hooks on every module while `open` is entered.

    rows: one a place and call, in the order of execution, histograms among them. first: of the forward pass;
    first_gradient: of the backward pass; None if all is finite.
    """

    def __init__(self, places: Iterable[Place], own_sites: Iterable[str] | None = None):
        self.places: dict[tuple[str, str], list[Place]] = {}
        for place in places:
            self.places.setdefault((place.path, place.side), []).append(place)
        self.own_sites = own_sites  # of this kit's blocks; None = all
        self.rows: list[dict] = []
        self.first: First | None = None
        self.first_gradient: First | None = None
        self._before = {"first": ("", math.nan, ""), "first_gradient": ("", math.nan, "")}

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        hooks, blocks = [], blocks_of(model)
        before = [block.observer for _, block in blocks]
        for path, module in model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entered(path), with_kwargs=True))
            hooks.append(module.register_forward_hook(self._left(path)))
        for depth, (name, block) in enumerate(blocks, 1):
            block.observer = self._observer(name, depth)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for (_, block), observer in zip(blocks, before, strict=True):
                block.observer = observer

    def _entered(self, path: str):
        def hook(_module, args, kwargs):
            self._see_all(path, "input", [*args, *kwargs.values()])

        return hook

    def _left(self, path: str):
        def hook(_module, _args, output):
            self._see_all(path, "output", tensors_in(output))

        return hook

    def _observer(self, name: str, depth: int):
        def observe(site: str, value: Tensor) -> None:
            wanted = self.own_sites is None or site in self.own_sites
            place = Place(site, depth, name, f"{name}.{site}")
            self._see(place.path, value, [place] if wanted else [])

        return observe

    def _see_all(self, path: str, side: str, given: Iterable[object]) -> None:
        values = [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]
        where = path if side == "output" else f"{path}:input"
        for index, value in enumerate(values):
            self._see(where, value, [p for p in self.places.get((path, side), ()) if p.index == index])

    def _see(self, where: str, value: Tensor, places: list[Place]) -> None:
        self._judge("first", where, value, places)
        rows = [self._row(place, value) for place in places]
        self.rows += rows
        if value.requires_grad and torch.is_grad_enabled():

            def see_gradient(grad: Tensor) -> None:
                self._judge("first_gradient", where, grad, places)
                for place, row in zip(places, rows, strict=True):
                    part = part_of(grad, place)
                    facts = describe_fast(part)
                    row |= {f"grad_{name}": facts[name] for name in ("rms", "max_abs", "nonfinite")}
                    row["grad_histogram"] = histogram(part)

            value.register_hook(see_gradient)

    def _row(self, place: Place, value: Tensor) -> dict:
        part = part_of(value, place)
        none = dict(grad_rms=math.nan, grad_max_abs=math.nan, grad_nonfinite=math.nan)
        facts = dict(depth=place.depth, site=place.site, layer=place.layer, where=place.where)
        return facts | describe_fast(part) | none | {"histogram": histogram(part), "grad_histogram": None}

    def _judge(self, which: str, where: str, value: Tensor, places: list[Place]) -> None:
        if getattr(self, which) is not None or not value.numel():
            return
        largest = float(value.detach().abs().max())
        if math.isfinite(largest):
            self._before[which] = (where, largest, places[0].site if places else "")
            return
        bad = [place for place in places if not part_of(value, place).isfinite().all()]
        site, depth = (bad[0].site, bad[0].depth) if bad else ("", 0)
        setattr(self, which, First(where, site, depth, *self._before[which]))


def part_of(value: Tensor, place: Place) -> Tensor:
    """The channels of a place."""
    return value if place.channels is None else value[..., slice(*place.channels)]


def tensors_in(output: object) -> list[Tensor]:
    """The tensors of an output, of its tuples, lists, dicts and of what has attributes, one level deep, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    return [part for part in output if isinstance(part, Tensor)] if isinstance(output, list | tuple) else []
