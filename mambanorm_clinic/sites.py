"""Which tensor of a model is which site, and one pass through a model that looks at them.

A site is the input or the output of a module. What a mixer (mixers.py) computes between its modules
shows as far as a module takes it in:

    x n1 branch residual    the block's input, its norm's output, the mixer's output, the block's
                            output
    conv                    x_proj's input
    dt B C                  parts of x_proj's output; dt (R channels) is what becomes Δ. dt_norm,
                            B_norm, C_norm: after the norms that Jamba has there
    step_size decay         Δ, and exp(ΔA) of the state that forgets most slowly; both are made of
                            dt, or dt_norm
    z                       the gate's half of in_proj's output
    scan                    of Mamba-2: what its gated norm takes in
    gated                   out_proj's input

This kit's own blocks show all of SITES (arms.py) by themselves, and decay beside step_size; they
need no place here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.errors import shown, unknown
from mambanorm.inside import blocks_of, describe
from mambanorm_clinic.calling import inspected, tensors_in
from mambanorm_clinic.findings import First
from mambanorm_clinic.mixers import decay, mixers_of, parts_of, step_size

SIDES = ("input", "output")
NORM_NAMES = ("norm", "input_layernorm")
"""Of the norm before the mixer, in transformers and mamba-ssm, and in Jamba."""
LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in ("float16", "bfloat16")}
COLUMNS = ("depth", "site", "layer", "where", "rms", "max_abs", "p999", "kurtosis", "nonfinite", "room_float16",
           "room_bfloat16", "grad_rms", "grad_max_abs", "grad_nonfinite")  # fmt: skip
"""Of Pass.rows."""


@dataclass(frozen=True)
class Place:
    """A tensor: the input or output of the module at `path`, of several the one at `index`, of its
    last axis the `channels` (None = all); or, under a path of its own, what is `made` of these.
    depth counts the layers from 1."""

    site: str
    depth: int
    layer: str
    path: str
    side: str = "output"
    index: int = 0
    channels: tuple[int | None, int | None] | None = None
    made: Callable[[Tensor], Tensor] | None = None
    own_path: str = ""

    @property
    def seen_at(self) -> str:
        return self.path if self.side == "output" else f"{self.path}:input"

    @property
    def where(self) -> str:
        return self.own_path or self.seen_at


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and layers by depth: this kit's blocks, the modules around a family's mixers, else the
    longest ModuleList or Sequential, else the model's children."""
    if blocks := blocks_of(model):
        return list(blocks)
    around = dict.fromkeys(path.rpartition(".")[0] for path, _ in mixers_of(model))
    if any(around):
        return [(path, model.get_submodule(path)) for path in around if path]
    lists = [
        (path, m)
        for path, m in model.named_modules()
        if isinstance(m, nn.ModuleList | nn.Sequential) and len(m)
    ]
    path, longest = max(lists, key=lambda pair: len(pair[1]), default=("", model))
    return [(f"{path}.{name}".lstrip("."), layer) for name, layer in longest.named_children()]


def places_of(model: nn.Module, sites: Mapping[str, str] | None = None) -> list[Place]:
    """The places to look at, layer by layer: those of the family, or of a map site → pattern of
    module names (see `matching`). A model of no known family is looked at after every module that
    has none inside; such a site is called by the module's path, its numbers as *. ValueError for a
    pattern that no module matches, with the nearest."""
    if sites is not None:
        return [
            place for site, pattern in sites.items() for place in matching(model, site, pattern)
        ]
    found = [
        place
        for depth, pair in enumerate(mixers_of(model), 1)
        for place in _of_mixer(model, depth, *pair)
    ]
    return found if found or blocks_of(model) else list(_of_leaves(model))


def matching(model: nn.Module, site: str, pattern: str) -> list[Place]:
    """The places of a pattern such as "layers.*.mixer.out_proj:input", by depth.

    `*` stands for one part of a path. The pattern is that of a whole path or of its end. After the
    colon stands input or output; without it, output.
    """
    if not isinstance(pattern, str):
        raise ValueError(
            f"the pattern of site {site!r} must be text such as 'layers.*.norm', got {shown(pattern)}"
        )
    path, colon, side = pattern.partition(":")
    if colon and side not in SIDES:
        raise unknown(f"side in the pattern {pattern!r}", side, SIDES)
    rule = re.compile(r"(?:.*\.)?" + r"[^.]+".join(map(re.escape, path.split("*"))))
    names = [name for name, _ in model.named_modules() if name]
    found = [name for name in names if rule.fullmatch(name)]
    if not found:
        near = (
            get_close_matches(path, [*names, *map(_general, names)], n=3, cutoff=0.3) or names[:3]
        )
        told = f"no module of {type(model).__name__} matches {pattern!r} (site {site!r}); the nearest are "
        raise ValueError(f"{told}{', '.join(dict.fromkeys(near))}; * stands for one part of a path")
    return [Place(site, depth, name, name, side or "output") for depth, name in enumerate(found, 1)]


def _general(path: str) -> str:
    """`layers.3.mixer` → `layers.*.mixer`."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _of_leaves(model: nn.Module) -> Iterator[Place]:
    depths: dict[str, int] = {}
    for path, module in model.named_modules():
        if not list(module.children()):
            site = _general(path)
            depths[site] = depths.get(site, 0) + 1
            yield Place(site, depths[site], path, path)


def _of_mixer(model: nn.Module, depth: int, path: str, mixer: nn.Module) -> Iterator[Place]:
    """The sites of one layer."""
    layer = path.rpartition(".")[0]
    block = model.get_submodule(layer)
    norm = next((name for name in NORM_NAMES if name in block._modules), None) if path else None

    def place(site: str, part: str, *rest) -> Place:
        return Place(site, depth, layer if norm else path, part, *rest)

    def inside(part: str) -> str:
        return f"{path}.{part}".lstrip(".")

    parts = parts_of(mixer)
    for site, (part, *rest) in parts.items():
        yield place(site, inside(part), *rest)
    part, *rest = parts.get("dt_norm", parts["dt"])
    yield place("step_size", inside(part), *rest, partial(step_size, mixer), inside("step_size"))
    yield place(
        "decay", inside(part), *rest, lambda dt: decay(mixer, step_size(mixer, dt)), inside("decay")
    )
    yield place("branch", path)
    if norm:  # mamba-ssm's block hands on its branch and, apart, the stream that it has not yet been added to
        index = 1 if type(block).__module__.startswith("mamba_ssm") else 0
        yield place("x", layer, "input")
        yield place("n1", f"{layer}.{norm}".lstrip("."))
        yield place("residual", layer, "output", index)


# --------------------------------------------------------------------------------------------------
# the pass


class Pass:
    """Looks at the input and the output of every module, and at every site of this kit's blocks, in
    the order of execution, while `open` is entered. Before the backward pass `end_forward` is to be
    called.

    first: of the forward pass; first_gradient: of the backward pass; None if all is finite.
    largest: where → the largest magnitude that a site or the output of a module has had there.
    rows: one a place and call; what is made of a tensor (Place.made) has no gradient. places: what
    is described; own: the sites of this kit's blocks as well.

    −inf alone is how masks are written. So a tensor whose non-finite values are all −inf counts as
    the first only where what is seen next is not finite either, or the loss is not.
    """

    def __init__(self, places: Iterable[Place] = (), own: bool = False):
        self.first: First | None = None
        self.first_gradient: First | None = None
        self.largest: dict[str, float] = {}
        self.rows: list[dict] = []
        self.own = own
        self.places: dict[str, list[Place]] = {}
        for place in places:
            self.places.setdefault(place.seen_at, []).append(place)
        self._before = self._gradient_before = ("", math.nan, "")
        self._held: First | None = None  # a mask, or the first
        self._forward, self._describing = True, False
        self._on_tensors: list = []

    @contextmanager
    def open(self, model: nn.Module) -> Iterator[None]:
        self.model = model
        entered = lambda path, _module, given: self._see_all(f"{path}:input", given)
        left = lambda path, _module, output: self._see_all(path, output)
        try:
            with inspected(model, at=self._at, entered=entered, left=left):
                yield
        finally:
            for hook in self._on_tensors:  # a weight that went in as a tensor would keep its hook
                hook.remove()

    def end_forward(self, loss: float) -> None:
        """What runs from here on is not seen: a checkpointed layer computes its values again on the
        way back."""
        self._forward = False
        if self.first is None and not math.isfinite(loss):
            self.first = self._held

    def _at(self, name: str, depth: int, site: str, value: Tensor) -> None:
        path = f"{name}.{site}".lstrip(".")
        own = [Place(site, depth, name, path)] if self.own else []
        if site == "step_size" and self.own:
            made = partial(decay, self.model.get_submodule(name))
            own.append(
                Place("decay", depth, name, path, made=made, own_path=f"{name}.decay".lstrip("."))
            )
        self._look(path, value, own, site, depth)

    def _see_all(self, where: str, given: object) -> None:
        for index, value in enumerate(
            value for value in tensors_in(given) if value.is_floating_point()
        ):
            self._look(
                where,
                value,
                [place for place in self.places.get(where, ()) if place.index == index],
            )

    def _look(
        self, where: str, value: Tensor, places: list[Place], site: str = "", depth: int = 0
    ) -> None:
        """Judges a tensor and describes its places; it is named after the first of them that is not
        finite."""
        if not self._forward or self._describing or not value.numel():
            return
        size = float(value.detach().abs().max())
        for place in places:
            if place.made is None and (
                math.isfinite(size) or not part_of(value, place).isfinite().all()
            ):
                site, depth = place.site, place.depth
                break
        self._judge(where, value, size, site, depth)
        self._describing = True  # a dt_proj that is called to make Δ of dt is no step of the model
        rows = [(place, self._row(place, value)) for place in places]
        self._describing = False
        self.rows += [row for _, row in rows]
        for place, row in rows:
            self.largest.setdefault(place.where, row["max_abs"])

        def see_gradient(grad: Tensor | None) -> None:
            if grad is None:  # of what a quantized layer puts out
                return
            largest = float(grad.abs().max())
            if self.first_gradient is None and not math.isfinite(largest):
                self.first_gradient = First(where, site, depth, *self._gradient_before)
            self._gradient_before = where, largest, site
            for place, row in rows:
                if place.made is None:
                    facts = describe(part_of(grad, place))
                    row |= {f"grad_{name}": facts[name] for name in ("rms", "max_abs", "nonfinite")}

        if value.requires_grad and torch.is_grad_enabled():
            self._on_tensors.append(value.register_hook(see_gradient))

    def _judge(self, where: str, value: Tensor, largest: float, site: str, depth: int) -> None:
        if math.isfinite(largest):
            if not where.endswith(
                ":input"
            ):  # of what goes in most comes out of another, and the rest may be a mask
                self.largest[where] = max(self.largest.get(where, 0.0), largest)
            self._before, self._held = (where, largest, site), None
        elif self.first is None:
            kind = dict(nan=math.isnan(largest), half=value.dtype == torch.float16)
            found = self._held or First(where, site, depth, *self._before, **kind)
            mask = not math.isnan(largest) and float(value.detach().max()) < math.inf
            self.first, self._held = (None, found) if mask else (found, None)

    def _row(self, place: Place, value: Tensor) -> dict:
        facts = dict(depth=place.depth, site=place.site, layer=place.layer, where=place.where)
        facts |= describe(part_of(value, place))
        with np.errstate(divide="ignore"):
            facts |= {
                f"room_{name}": float(np.log2(top) - np.log2(facts["max_abs"]))
                for name, top in LARGEST.items()
            }
        return facts | {"grad_rms": math.nan}


def part_of(value: Tensor, place: Place) -> Tensor:
    """The channels of a place, or what is made of them."""
    part = value.detach() if place.channels is None else value.detach()[..., slice(*place.channels)]
    return part if place.made is None else place.made(part)
