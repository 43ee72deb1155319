"""Which tensor of a model is which site, and the recorder of one pass through a model.

A site is the input or the output of a module. Tensors that a mixer (mixers.py) computes between its
modules are visible as far as a module takes them in:

    x n1 branch residual    the block's input, its norm's output, the mixer's output, the block's
                            output
    conv                    x_proj's input
    dt B C                  parts of x_proj's output; dt (R channels) is what becomes Δ. dt_norm,
                            B_norm, C_norm: after the norms that Jamba has there
    step_size decay         Δ, and exp(ΔA) of the state that forgets most slowly; both are computed
                            from dt, or from dt_norm
    z                       the gate's half of in_proj's output
    scan                    in Mamba-2 the input of its gated norm
    gated                   out_proj's input

This kit's own blocks report all of SITES (arms.py) themselves, and decay beside step_size; they
need no place here.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.errors import shown, unknown
from mambanorm.inside import blocks_of, describe
from mambanorm_clinic.calling import inspect_model, tensors_in
from mambanorm_clinic.mixers import Tap, decay, mixers_of, step_size, taps_of
from mambanorm_clinic.symptoms import NonFiniteValue

SIDES = ("input", "output")
# Names of the norm before the mixer: in transformers and mamba-ssm, and in Jamba.
NORM_NAMES = ("norm", "input_layernorm")
LARGEST = {name: torch.finfo(getattr(torch, name)).max for name in ("float16", "bfloat16")}
# The columns of PassRecorder.rows.
COLUMNS = (
    "depth", "site", "layer", "where", "rms", "max_abs", "p999", "kurtosis", "nonfinite",
    "room_float16", "room_bfloat16", "grad_rms", "grad_max_abs", "grad_nonfinite",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A tensor to describe.

    site: its name. depth: its layer's number from 1; layer: its path. tap: where the tensor is
    read. derive: computes the described tensor from the one that is read, None = as it is; it is
    then listed under the path `derived_path`.
    """

    site: str
    depth: int
    layer: str
    tap: Tap
    derive: Callable[[Tensor], Tensor] | None = None
    derived_path: str = ""

    @property
    def read_at(self) -> str:
        """Return the path at which the tensor is read: a module's, ":input" behind it for its
        input.
        """
        return self.tap.module if self.tap.side == "output" else f"{self.tap.module}:input"

    @property
    def where(self) -> str:
        """Return the path under which the tensor is listed."""
        return self.derived_path or self.read_at

    def value(self, tensor: Tensor) -> Tensor:
        """Return the described part of the tensor that was read."""
        part = tensor.detach()
        if self.tap.channels is not None:
            part = part[..., slice(*self.tap.channels)]
        return part if self.derive is None else self.derive(part)


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return names and layers by depth.

    These are this kit's blocks, the modules around a family's mixers, else the longest ModuleList
    or Sequential, else the model's children.
    """
    blocks = blocks_of(model)
    if blocks:
        return list(blocks)
    parents = dict.fromkeys(path.rpartition(".")[0] for path, _ in mixers_of(model))
    if any(parents):
        return [(path, model.get_submodule(path)) for path in parents if path]
    lists = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)
    ]
    path, longest = max(lists, key=lambda pair: len(pair[1]), default=("", model))
    return [(_join(path, name), layer) for name, layer in longest.named_children()]


def places_of(model: nn.Module, sites: Mapping[str, str] | None = None) -> list[Place]:
    """Return the places to describe, layer by layer.

    sites: site → pattern of module names (see `matching`); None = the places of the model's family.
    In a model of no known family they are the outputs of all modules without children, and a site's
    name is the module's path with * for each number. ValueError for a pattern that no module
    matches, with the nearest names.
    """
    if sites is not None:
        return [
            place for site, pattern in sites.items() for place in matching(model, site, pattern)
        ]
    places = [
        place
        for depth, (path, mixer) in enumerate(mixers_of(model), 1)
        for place in _places_of_mixer(model, depth, path, mixer)
    ]
    if places or blocks_of(model):
        return places
    return list(_places_of_leaves(model))


def matching(model: nn.Module, site: str, pattern: str) -> list[Place]:
    """Return the places of a pattern such as "layers.*.mixer.out_proj:input", by depth.

    `*` stands for one part of a path. The pattern matches a whole path or its end. After the colon
    stands input or output (the default).
    """
    if not isinstance(pattern, str):
        raise ValueError(
            f"the pattern of site {site!r} must be text such as 'layers.*.norm', "
            f"got {shown(pattern)}"
        )
    path, colon, side = pattern.partition(":")
    if colon and side not in SIDES:
        raise unknown(f"side in the pattern {pattern!r}", side, SIDES)
    rule = re.compile(r"(?:.*\.)?" + r"[^.]+".join(map(re.escape, path.split("*"))))
    names = [name for name, _ in model.named_modules() if name]
    matches = [name for name in names if rule.fullmatch(name)]
    if not matches:
        near = get_close_matches(path, [*names, *map(_generalize, names)], n=3, cutoff=0.3)
        nearest = ", ".join(dict.fromkeys(near or names[:3]))
        raise ValueError(
            f"no module of {type(model).__name__} matches {pattern!r} (site {site!r}); the nearest "
            f"are {nearest}; * stands for one part of a path"
        )
    return [
        Place(site, depth, name, Tap(name, side or "output"))
        for depth, name in enumerate(matches, 1)
    ]


def _generalize(path: str) -> str:
    """Return `layers.*.mixer` for `layers.3.mixer`."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _join(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _places_of_leaves(model: nn.Module) -> Iterator[Place]:
    depths: dict[str, int] = {}
    for path, module in model.named_modules():
        if not list(module.children()):
            site = _generalize(path)
            depths[site] = depths.get(site, 0) + 1
            yield Place(site, depths[site], path, Tap(path))


def _places_of_mixer(model: nn.Module, depth: int, path: str, mixer: nn.Module) -> Iterator[Place]:
    parent = path.rpartition(".")[0]
    block = model.get_submodule(parent)
    norm = next((name for name in NORM_NAMES if name in block._modules), "") if path else ""
    layer = parent if norm else path
    taps = {
        site: tap._replace(module=_join(path, tap.module)) for site, tap in taps_of(mixer).items()
    }
    for site, tap in taps.items():
        yield Place(site, depth, layer, tap)
    dt = taps.get("dt_norm", taps["dt"])
    delta_of = partial(step_size, mixer)
    yield Place("step_size", depth, layer, dt, delta_of, _join(path, "step_size"))
    yield Place(
        "decay", depth, layer, dt, lambda value: decay(mixer, delta_of(value)), _join(path, "decay")
    )
    yield Place("branch", depth, layer, Tap(path))
    if norm:
        # mamba-ssm's block returns its branch and, apart, the stream before the branch is added
        index = 1 if type(block).__module__.startswith("mamba_ssm") else 0
        yield Place("x", depth, layer, Tap(parent, "input"))
        yield Place("n1", depth, layer, Tap(_join(parent, norm)))
        yield Place("residual", depth, layer, Tap(parent, index=index))


# --------------------------------------------------------------------------------------------------
# one pass


class Seen(NamedTuple):
    """A tensor that a pass has computed: its path, largest magnitude and site."""

    where: str = ""
    largest: float = math.nan
    site: str = ""


@dataclass
class PassRecorder:
    """Describes the tensors of one forward and backward pass, in the order of execution.

    It inspects the input and the output of every module, and every site of this kit's blocks, while
    `recording` is open. Call `end_forward` between the forward and the backward pass.

    places: what is described. own_sites: describe the sites of this kit's blocks, too. first,
    first_gradient: the first non-finite value of the forward and of the backward pass, None if all
    are finite. largest: where → the largest magnitude at a site or in the output of a module. rows:
    one a place and call; a derived tensor (Place.derive) has no gradient.

    Masks are written with −inf. So a tensor whose non-finite values are all −inf counts as the
    first only if the next tensor, or the loss, is not finite either.
    """

    places: Iterable[Place] = ()
    own_sites: bool = False
    first: NonFiniteValue | None = None
    first_gradient: NonFiniteValue | None = None
    largest: dict[str, float] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._places_at: dict[str, list[Place]] = {}
        for place in self.places:
            self._places_at.setdefault(place.read_at, []).append(place)
        self._previous = self._previous_gradient = Seen()
        self._candidate: NonFiniteValue | None = None  # a mask, or the first non-finite value
        self._in_forward, self._deriving = True, False
        self._gradient_hooks: list = []

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Inspect what the model computes, while open."""
        self._model = model
        try:
            with inspect_model(
                model,
                on_site=self._on_site,
                on_input=lambda path, _, inputs: self._on_values(f"{path}:input", inputs),
                on_output=lambda path, _, output: self._on_values(path, output),
            ):
                yield
        finally:
            for hook in self._gradient_hooks:  # a weight that went in as a tensor would keep it
                hook.remove()

    def end_forward(self, loss: float) -> None:
        """Stop describing tensors, because a checkpointed layer computes its values again on the
        way back.
        """
        self._in_forward = False
        if self.first is None and not math.isfinite(loss):
            self.first = self._candidate

    def _on_site(self, name: str, depth: int, site: str, value: Tensor) -> None:
        path = _join(name, site)
        places = []
        if self.own_sites:
            places.append(Place(site, depth, name, Tap(path)))
            if site == "step_size":
                derive = partial(decay, self._model.get_submodule(name))
                derived_path = _join(name, "decay")
                places.append(Place("decay", depth, name, Tap(path), derive, derived_path))
        self._on_tensor(path, value, places, site, depth)

    def _on_values(self, where: str, values: object) -> None:
        tensors = [value for value in tensors_in(values) if value.is_floating_point()]
        for index, tensor in enumerate(tensors):
            places = [p for p in self._places_at.get(where, ()) if p.tap.index == index]
            self._on_tensor(where, tensor, places)

    def _on_tensor(
        self, where: str, value: Tensor, places: list[Place], site: str = "", depth: int = 0
    ) -> None:
        if not self._in_forward or self._deriving or not value.numel():
            return
        largest = float(value.detach().abs().max())
        for place in places:  # the tensor is named after the first place that is not finite
            whole = math.isfinite(largest)
            if place.derive is None and (whole or not place.value(value).isfinite().all()):
                site, depth = place.site, place.depth
                break
        self._judge(where, value, largest, site, depth)
        self._deriving = True  # calling dt_proj to derive Δ is no step of the model
        rows = [self._row(place, value) for place in places]
        self._deriving = False
        self.rows += rows
        for row in rows:
            self.largest.setdefault(row["where"], row["max_abs"])
        if value.requires_grad and torch.is_grad_enabled():
            hook = partial(self._on_gradient, Seen(where, site=site), depth, places, rows)
            self._gradient_hooks.append(value.register_hook(hook))

    def _judge(self, where: str, value: Tensor, largest: float, site: str, depth: int) -> None:
        """Note the largest magnitude, and whether the tensor holds the first non-finite value."""
        if math.isfinite(largest):
            if not where.endswith(":input"):  # inputs are outputs of other modules, or masks
                self.largest[where] = max(self.largest.get(where, 0.0), largest)
            self._previous, self._candidate = Seen(where, largest, site), None
        elif self.first is None:
            first = self._candidate or NonFiniteValue(
                where,
                site,
                depth,
                *self._previous,
                nan=math.isnan(largest),
                half=value.dtype == torch.float16,
            )
            is_mask = not math.isnan(largest) and float(value.detach().max()) < math.inf
            if is_mask:
                self._candidate = first
            else:
                self.first, self._candidate = first, None

    def _on_gradient(
        self, tensor: Seen, depth: int, places: list[Place], rows: list[dict], grad: Tensor | None
    ) -> None:
        if grad is None:  # as of the output of a quantized layer
            return
        largest = float(grad.abs().max())
        if self.first_gradient is None and not math.isfinite(largest):
            self.first_gradient = NonFiniteValue(
                tensor.where, tensor.site, depth, *self._previous_gradient
            )
        self._previous_gradient = Seen(tensor.where, largest, tensor.site)
        for place, row in zip(places, rows, strict=True):
            if place.derive is None:
                facts = describe(place.value(grad))
                for name in ("rms", "max_abs", "nonfinite"):
                    row[f"grad_{name}"] = facts[name]

    def _row(self, place: Place, value: Tensor) -> dict:
        facts = describe(place.value(value))
        row = {
            "depth": place.depth, "site": place.site, "layer": place.layer, "where": place.where,
            **facts, "grad_rms": math.nan,
        }  # fmt: skip
        with np.errstate(divide="ignore"):
            for name, limit in LARGEST.items():
                row[f"room_{name}"] = float(np.log2(limit) - np.log2(facts["max_abs"]))
        return row
