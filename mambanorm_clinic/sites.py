"""The sites of a model, and a recorder of one pass through the model.

A site is a named tensor: the input or output of a module, or some of its channels. These sites are
known in models with mixers that mixers.py recognizes:

    x                       the block's input
    n1                      the output of the block's norm
    branch                  the mixer's output
    residual                the block's output
    conv                    x_proj's input
    dt B C                  parts of x_proj's output; Δ is computed from dt (R channels)
    dt_norm B_norm C_norm   the outputs of Jamba's norms of dt, B and C
    step_size               Δ, computed from dt, or in Jamba from dt_norm
    decay                   exp(ΔA) of each channel's state that forgets most slowly
    z                       the gate's half of in_proj's output
    scan                    in Mamba-2 the input of the gated norm
    gated                   out_proj's input

Blocks of this kit report the values at their SITES (arms.py) themselves; `decay` is computed from
the reported step_size.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath

import torch
from torch import Tensor, nn

from mambanorm.errors import unknown
from mambanorm.inside import blocks_of, describe, observe_sites
from mambanorm_clinic.calling import inspect_model, tensors_in
from mambanorm_clinic.mixers import (
    SiteLocation,
    decay,
    join,
    locations_in,
    mixers_of,
    parent_of,
    step_size,
)
from mambanorm_clinic.symptoms import NonFiniteValue

# Names of the norm before the mixer: "norm" in the Mambas of transformers and mamba-ssm, and
# "input_layernorm" in Jamba.
NORM_NAMES = ("norm", "input_layernorm")
FLOAT16_MAX = torch.finfo(torch.float16).max


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return the layers of a model, in order.

    The layers are this kit's blocks, if the model has any; or else the elements of the longest
    ModuleList or Sequential; or else the model's children.
    """
    if blocks_of(model):
        return [block for _, block in blocks_of(model)]
    lists = [part for part in model.modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    return list(max(lists, key=len, default=model).children())


def site_locations(model: nn.Module, sites: Mapping[str, str] | None = None) -> list[SiteLocation]:
    """Return a list of the locations of all sites in a model that are to be described.

    sites: maps the name of each site to a pattern of module paths (see `matching_locations`). None
    means the sites of all mixers that mixers.py recognizes, layer by layer. If the model has no
    such mixer and no block of this kit, None means the outputs of all modules without children; the
    name of such a site is the module's path with each number replaced by *. The blocks of this kit
    report their sites themselves, so the list does not contain these sites.
    """
    if sites is not None:
        return [
            location
            for site, path in sites.items()
            for location in matching_locations(model, site, path)
        ]
    locations = [
        location
        for depth, (path, mixer) in enumerate(mixers_of(model), 1)
        for location in _locations_of_mixer(model, depth, path, mixer)
    ]
    if locations or blocks_of(model):
        return locations
    leaves = [path for path, module in model.named_modules() if not list(module.children())]
    patterns = [_generalize(path) for path in leaves]
    return [
        SiteLocation(site, path, depth=1 + patterns[:i].count(site))
        for i, (site, path) in enumerate(zip(patterns, leaves, strict=True))
    ]


def matching_locations(model: nn.Module, site: str, pattern: str) -> list[SiteLocation]:
    """Return the locations of a site: the inputs or outputs of all modules that match a pattern.

    The locations are sorted by depth. site: the name of the site. pattern: a text such as
    "layers.*.mixer.out_proj:input". The part before the colon matches a module's whole path or the
    end of the path; `*` matches one name. After the colon comes input or output; without a colon
    the outputs are meant. Raises ValueError if no module matches.
    """
    path, _, side = pattern.partition(":")
    if side not in ("", "input", "output"):
        raise unknown(f"side in the pattern {pattern!r}", side, ("input", "output"))
    names = [name for name, _ in model.named_modules() if name]
    matches = [
        name
        for name in names
        if PurePosixPath(name.replace(".", "/")).match(path.replace(".", "/"))
    ]
    if not matches:
        raise unknown(f"module for site {site!r}", path, dict.fromkeys(map(_generalize, names)))
    return [
        SiteLocation(site, name, side or "output", depth=i) for i, name in enumerate(matches, 1)
    ]


def _generalize(path: str) -> str:
    """Return a path with each number replaced by *: `layers.*.mixer` for `layers.3.mixer`."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def _locations_of_mixer(
    model: nn.Module, depth: int, path: str, mixer: nn.Module
) -> Iterator[SiteLocation]:
    locations = {location.site: location for location in locations_in(mixer)}
    dt = locations.get("dt_norm", locations["dt"])
    delta_of = partial(step_size, mixer)
    for location in (
        *locations.values(),
        dt._replace(site="step_size", derive=delta_of),
        dt._replace(site="decay", derive=lambda value: decay(mixer, delta_of(value))),
        SiteLocation("branch", ""),
    ):
        yield location._replace(module=join(path, location.module), depth=depth)
    block_path = parent_of(path)
    block = model.get_submodule(block_path)
    norm = next((name for name in NORM_NAMES if name in block._modules), None)
    if path and norm:
        # mamba-ssm's block returns the branch and the residual stream, before their addition
        index = 1 if type(block).__module__.startswith("mamba_ssm") else 0
        yield SiteLocation("x", block_path, "input", depth=depth)
        yield SiteLocation("n1", join(block_path, norm), depth=depth)
        yield SiteLocation("residual", block_path, index=index, depth=depth)


# --------------------------------------------------------------------------------------------------
# one pass


@dataclass
class PassRecorder:
    """Records the tensors of one forward and backward pass, in the order of execution.

    While the context `recording` is open, the recorder inspects the inputs and outputs of all
    modules, and the values at all sites of this kit's blocks. Call `end_forward` between the
    forward and the backward pass.

    locations: the locations of the sites to describe in `rows`. kit_sites: True means that the
    sites of this kit's blocks are described, too. first, first_gradient: the first non-finite value
    of the forward pass and of the backward pass, None if all values are finite. largest: maps the
    path of each site to the largest magnitude of the site, and the path of each module to that of
    its output. rows: one dict per described site and call, with the columns of `PassRecord.table`
    except room_float16; grad_rms is NaN if the site is derived (see `SiteLocation.derive`). dtypes:
    the dtypes of all recorded tensors.

    Attention masks contain −inf. So if all non-finite values of a tensor are −inf, the tensor
    counts as the first non-finite one only if the next tensor or the loss is not finite either.
    """

    locations: Iterable[SiteLocation] = ()
    kit_sites: bool = False
    first: NonFiniteValue | None = None
    first_gradient: NonFiniteValue | None = None
    largest: dict[str, float] = field(default_factory=dict)
    rows: list[dict] = field(default_factory=list)
    dtypes: set[torch.dtype] = field(default_factory=set)

    def __post_init__(self) -> None:
        # path, largest magnitude and site of the last finite tensor, () before the first tensor
        self._previous: tuple = ()
        self._previous_gradient: tuple = ()
        # infinities that are either a mask or the first fault; the next tensor decides which
        self._candidate: NonFiniteValue | None = None
        # also False while Δ is computed, because that may call the module dt_proj
        self._is_recording = False

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[None]:
        """Record the tensors that the model computes while the context is open."""
        self._model = model
        self._is_recording = True
        with (
            observe_sites(model, self._on_site),
            inspect_model(
                model,
                on_input=lambda path, inputs: self._on_values(f"{path}:input", inputs),
                on_output=lambda path, _, __, output: self._on_values(path, output),
            ),
        ):
            yield

    def end_forward(self, loss: float) -> None:
        """Stop recording activations.

        This is needed because activation checkpointing computes the activations again in the
        backward pass. If the loss is not finite and `first` is None, `first` is set to the value
        that could have been a mask, if there is one (see the docstring of the class).
        """
        self._is_recording = False
        if self.first is None and not math.isfinite(loss):
            self.first = self._candidate

    def _on_site(self, name: str, depth: int, site: str, value: Tensor) -> None:
        location = SiteLocation(site, join(name, site), depth=depth)
        locations = [location] if self.kit_sites else []
        if self.kit_sites and site == "step_size":
            derive = partial(decay, self._model.get_submodule(name))
            locations.append(location._replace(site="decay", derive=derive))
        self._on_tensor(location, value, locations)

    def _on_values(self, path: str, values: object) -> None:
        tensors = [value for value in tensors_in(values) if value.is_floating_point()]
        for index, tensor in enumerate(tensors):
            locations = [p for p in self.locations if (p.path, p.index) == (path, index)]
            self._on_tensor(SiteLocation("", path), tensor, locations)

    def _on_tensor(self, whole: SiteLocation, value: Tensor, locations: list[SiteLocation]) -> None:
        """Record a tensor, and add one row to `rows` per site in the tensor.

        whole: the location of the whole tensor. locations: the sites that the tensor contains.
        """
        if not self._is_recording or not value.numel():
            return
        self._is_recording = False
        self.dtypes.add(value.dtype)
        largest = float(value.detach().abs().max())
        parts = [location for location in locations if location.derive is None]
        if not math.isfinite(largest):  # name the tensor after the site that is not finite
            parts = [location for location in parts if not location.value(value).isfinite().all()]
        tensor_location = parts[0] if parts else whole
        self._record_magnitude(tensor_location, value, largest)
        rows = [
            {
                "depth": location.depth,
                "site": location.site,
                "where": location.where,
                **describe(location.value(value)),
                "grad_rms": math.nan,
            }
            for location in locations
        ]
        self.rows += rows
        for row in rows:
            self.largest.setdefault(row["where"], row["max_abs"])
        # a hook on a leaf (a weight or an input) would outlive this pass
        if value.requires_grad and torch.is_grad_enabled() and not value.is_leaf:
            value.register_hook(partial(self._on_gradient, tensor_location, locations, rows))
        self._is_recording = True

    def _record_magnitude(self, location: SiteLocation, value: Tensor, largest: float) -> None:
        """Record the magnitude of a finite tensor, or a non-finite tensor if it is the first one.

        largest: the largest magnitude in the tensor `value`, NaN if it contains NaN.
        """
        where = location.path
        if math.isfinite(largest):
            if not where.endswith(":input"):  # an input is the output of another module, or a mask
                self.largest[where] = max(self.largest.get(where, 0.0), largest)
            self._previous = (where, largest, location.site)
            self._candidate = None
        elif self.first is None:
            self._candidate = self._candidate or NonFiniteValue(
                where,
                location.site,
                location.depth,
                *self._previous,
                nan=math.isnan(largest),
                half=value.dtype == torch.float16,
            )
            if math.isnan(largest) or float(value.detach().max()) == math.inf:
                self.first = self._candidate

    def _on_gradient(
        self,
        tensor_location: SiteLocation,
        locations: list[SiteLocation],
        rows: list[dict],
        grad: Tensor | None,
    ) -> None:
        if grad is None:  # a quantized layer passes no gradient to its output
            return
        largest = float(grad.abs().max())
        if self.first_gradient is None and not math.isfinite(largest):
            self.first_gradient = NonFiniteValue(
                tensor_location.path,
                tensor_location.site,
                tensor_location.depth,
                *self._previous_gradient,
                in_gradient=True,
            )
        self._previous_gradient = (tensor_location.path, largest, tensor_location.site)
        for location, row in zip(locations, rows, strict=True):
            if location.derive is None:
                row["grad_rms"] = describe(location.value(grad))["rms"]
