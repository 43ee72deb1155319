"""One pass through a model under hooks: its sites described, and the first value that is not finite.

Pass            hooks while it is open; afterwards `rows`, `first` and `first_gradient` (diagnostics/nonfinite.py)
run             a model on a batch, and what it says where it refuses it; check_device before
eagerly         hooks do not run in what torch.compile has compiled: without it
describe_fast   RMS, largest, p99.9, kurtosis, share of non-finite values and head-room of a tensor
histogram       how many values there are of each size, in powers of two
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.advice.given import call
from mambanorm.basics.checks import shown
from mambanorm.clinic.sites import Place, decay_place
from mambanorm.diagnostics.nonfinite import First, Search
from mambanorm.diagnostics.recording import describe

SAMPLE = 2**20
"""p99.9 and histograms are of at most so many values, evenly spaced; all else is of every value."""
EDGES = np.arange(-60, 61, 2)
"""Of the histograms, as powers of two: about 1e-18 to 1e18. What is smaller or larger counts at the ends."""
FLOAT32_SQUARE = math.sqrt(torch.finfo(torch.float32).max)
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


class Pass(Search):
    """A Search that describes the places that it is given, and the sites of this kit's blocks.

    rows: one a place and call, in the order of execution, histograms among them; what is made of a tensor
    (Place.made) has no gradient.
    """

    def __init__(self, places: Iterable[Place], own_sites: Iterable[str] | None = None):
        super().__init__()
        self.places: dict[str, list[Place]] = {}
        for place in places:
            self.places.setdefault(place.seen_at, []).append(place)
        self.own_sites = own_sites  # of this kit's blocks; None = all
        self.rows: list[dict] = []

    @property
    def huge(self) -> First | None:
        """The first value whose square leaves float32."""
        where = next((where for where, size in self.largest.items() if size > FLOAT32_SQUARE), None)
        row = next((row for row in self.rows if row["where"] == where), dict(site="", depth=0))
        return None if where is None else First(where, row["site"], row["depth"])

    def _observer(self, name: str, depth: int, block: nn.Module):
        def observe(site: str, value: Tensor) -> None:
            own = [Place(site, depth, name, f"{name}.{site}".lstrip("."))]
            if site == "step_size":
                own.append(decay_place(depth, name, own[0].path, block))
            wanted = [place for place in own if self.own_sites is None or place.site in self.own_sites]
            self._look(own[0].path, value, wanted, site, depth)

        return observe

    def _see_all(self, path: str, side: str, given: Iterable[object]) -> None:
        values = [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]
        where = path if side == "output" else f"{path}:input"
        for index, value in enumerate(values):
            self._look(where, value, [place for place in self.places.get(where, ()) if place.index == index])

    def _look(self, where: str, value: Tensor, places: list[Place], site: str = "", depth: int = 0) -> None:
        """Judges a tensor and describes its places; it is named after the first of them that is not finite."""
        if not self._forward:
            return
        finite, seen = bool(value.detach().isfinite().all()), [place for place in places if place.made is None]
        told = [place for place in seen if finite or not part_of(value, place).isfinite().all()]
        self._see(where, value, *((told[0].site, told[0].depth) if told else (site, depth)))
        rows = [self._row(place, value) for place in places]
        self.rows += rows
        for place, row in zip(places, rows, strict=True):
            self.largest.setdefault(place.where, row["max_abs"])

        def see_gradient(grad: Tensor) -> None:
            for place, row in zip(places, rows, strict=True):
                if place.made is None:
                    part = part_of(grad, place)
                    facts = describe_fast(part)
                    row |= {f"grad_{name}": facts[name] for name in ("rms", "max_abs", "nonfinite")}
                    row["grad_histogram"] = histogram(part)

        self._see_gradient(value, see_gradient)

    def _row(self, place: Place, value: Tensor) -> dict:
        part = part_of(value, place)
        none = dict(grad_rms=math.nan, grad_max_abs=math.nan, grad_nonfinite=math.nan)
        facts = dict(depth=place.depth, site=place.site, layer=place.layer, where=place.where)
        return facts | describe_fast(part) | none | {"histogram": histogram(part), "grad_histogram": None}


def part_of(value: Tensor, place: Place) -> Tensor:
    """The channels of a place, or what is made of them."""
    part = value.detach() if place.channels is None else value.detach()[..., slice(*place.channels)]
    return part if place.made is None else place.made(part)
