"""One pass through a model under hooks: its sites described, and the first value that is not finite.

    Pass            hooks while it is open; afterwards `rows`, `first` and `first_gradient`
    run             a model on a batch, and what it says where it refuses it; check_device before
    eagerly         hooks do not run in what torch.compile has compiled: without it
    describe_fast   RMS, largest, p99.9, kurtosis, share of non-finite values and head-room of a tensor
    histogram       how many values there are of each size, in powers of two

Every module is watched, its input before its output, so that what is found first is first in the order of execution.
Nothing is kept but numbers; gradients are seen by hooks on the tensors, which leave modules as they are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.advice.given import call
from mambanorm.basics.checks import shown
from mambanorm.clinic.sites import Place
from mambanorm.diagnostics import blocks_of
from mambanorm.diagnostics.recording import describe

SAMPLE = 2**20
"""p99.9 and histograms are of at most so many values, evenly spaced; all else is of every value."""
EDGES = np.arange(-60, 61, 2)
"""Of the histograms, as powers of two: about 1e-18 to 1e18. What is smaller or larger counts at the ends."""
LARGEST = {"float16": torch.finfo(torch.float16).max, "bfloat16": torch.finfo(torch.bfloat16).max}


def eagerly() -> AbstractContextManager:
    """While open, compiled models run as they are written."""
    compiles = "torch._dynamo" in sys.modules  # importing it takes seconds
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def check_device(model: nn.Module, batch: object) -> None:
    """ValueError where a tensor of the batch is on another device than the model's first weight."""
    weight = next(model.parameters(), None)
    for part in _parts(batch):
        if weight is not None and part.device != weight.device:
            to = f"move the batch by .to({str(weight.device)!r})"
            raise ValueError(f"the model is on {weight.device} and its batch on {part.device}: {to}")


def _parts(batch: object) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict | list | tuple):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _parts(part)


def run(model: nn.Module, batch: object, *, with_targets: bool = False) -> object:
    """The model's output for a batch; a dict goes in with its targets if asked. ValueError if the model refuses it."""
    try:
        with eagerly():
            return model(**batch) if with_targets and isinstance(batch, dict) else call(model, batch)
    except Exception as error:  # whatever the model's code raises
        given = ", ".join(f"{part.dtype} {tuple(part.shape)}" for part in _parts(batch)) or shown(batch)
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{type(model).__name__} refuses this batch ({given}): {why}") from error


def sample(value: Tensor) -> Tensor:
    """At most SAMPLE values of a tensor, evenly spaced, in one row."""
    flat = value.detach().flatten()
    step = max(math.ceil(len(flat) / SAMPLE), 1)
    while math.gcd(step, len(flat)) > 1:  # with a factor in common it would meet the same channels again and again
        step += 1
    return flat[::step]


def describe_fast(value: Tensor) -> dict[str, float]:
    """`diagnostics.recording.describe`, and room_float16 and room_bfloat16: how often the largest magnitude can double
    before it leaves the type (below 0: it has left it). All but `nonfinite` are of the finite values."""
    facts = describe(sample(value))
    if value.numel() > SAMPLE:
        finite = value.detach()[value.detach().isfinite()]
        facts["nonfinite"] = 1 - finite.numel() / value.numel()
        if finite.numel():
            total = float(torch.linalg.vector_norm(finite, dtype=torch.float64))
            facts |= dict(rms=total / math.sqrt(finite.numel()), max_abs=float(finite.abs().max()))
            facts["kurtosis"] = kurtosis(finite)  # one channel of a thousand is what it is about: no sample would do
    with np.errstate(divide="ignore"):
        largest = np.log2(facts["max_abs"])
    return facts | {f"room_{name}": float(np.log2(most) - largest) for name, most in LARGEST.items()}


def kurtosis(finite: Tensor) -> float:
    """E[(x − μ)⁴]/Var², of normal values 3. Scaled first, so that no power leaves float32; NaN for equal values."""
    wide = finite if finite.dtype == torch.float64 else finite.float()
    scaled = wide / wide.abs().max().clamp(min=torch.finfo(wide.dtype).tiny)
    squares = (scaled - scaled.mean()).square_()
    variance = float(squares.mean())
    return float(squares.square_().mean()) / variance**2 if variance > 0 else math.nan


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
    first_gradient: of the backward pass; None if all is finite. Before the backward pass `end_forward` is to be called.

    −inf alone is how masks are written. So a tensor whose non-finite values are all −inf counts as the first only where
    what is seen next is not finite either, or the loss is not.
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
        self._held: First | None = None  # a mask, or the first
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
            block.observer = self._observer(name, depth)
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
            place = Place(site, depth, name, f"{name}.{site}".lstrip("."))
            self._see(place.path, value, [place] if wanted else [])

        return observe

    def _see_all(self, path: str, side: str, given: Iterable[object]) -> None:
        values = [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]
        where = path if side == "output" else f"{path}:input"
        for index, value in enumerate(values):
            self._see(where, value, [p for p in self.places.get((path, side), ()) if p.index == index])

    def _see(self, where: str, value: Tensor, places: list[Place]) -> None:
        if not self._forward:
            return
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

            self._on_tensors.append(value.register_hook(see_gradient))

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
            self._held = None
            return
        bad = [place for place in places if not part_of(value, place).isfinite().all()]
        site, depth = (bad[0].site, bad[0].depth) if bad else ("", 0)
        found = self._held or First(where, site, depth, *self._before[which])
        if which == "first" and not math.isnan(largest) and float(value.detach().max()) < math.inf:
            self._held = found
        else:
            setattr(self, which, found)
            self._held = None


def part_of(value: Tensor, place: Place) -> Tensor:
    """The channels of a place."""
    return value if place.channels is None else value[..., slice(*place.channels)]


def tensors_in(output: object) -> list[Tensor]:
    """The tensors of an output: itself, or of a tuple, list, dict or dataclass, one level deep, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, dict):
        output = list(output.values())
    elif is_dataclass(output) and not isinstance(output, type):
        output = [getattr(output, field.name) for field in fields(output)]
    return [part for part in output if isinstance(part, Tensor)] if isinstance(output, list | tuple) else []
