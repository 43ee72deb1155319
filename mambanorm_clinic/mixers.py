"""Mamba mixers of other libraries: recognize them, find their sites, and find faults of A and Δ.

A mixer is the module that contains the scan of a layer. It is recognized by its submodules. A
Mamba-1 mixer (in transformers' Mamba, Falcon-Mamba and Jamba, and in mamba-ssm) has in_proj,
x_proj, dt_proj and out_proj; a Mamba-2 mixer has in_proj, norm and out_proj. LoRA or quantization
may wrap or replace a submodule, so widths are read from A_log, not from the submodules' weights.
transformers and mamba-ssm read dt_proj.weight directly if that weight exists, which bypasses an
adapter on dt_proj.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.block import DT_MAX, DT_MIN
from mambanorm.inside import blocks_of
from mambanorm_clinic.symptoms import BIAS_SOURCE, NEGLIGIBLE, SMALL_A_SOURCE, Symptom
from mambanorm_study.basics.text import plural

MAMBA_1 = {"in_proj", "x_proj", "dt_proj", "out_proj"}
MAMBA_2 = {"in_proj", "norm", "out_proj"}
# Jamba's norms after x_proj → the names of the sites at the norms' outputs.
INNER_NORMS = {"dt_layernorm": "dt_norm", "b_layernorm": "B_norm", "c_layernorm": "C_norm"}
# Training changes Δ, so every Δ between DT_MIN / DT_TOLERANCE and DT_MAX · DT_TOLERANCE counts as
# usual.
DT_TOLERANCE = 2.0

NEW_A_LOG = (
    "initialize A_log again: in Mamba with mambanorm.block.initial_A_log(E, N), which is log 1 … "
    "log N, in Mamba-2 with the log of random numbers from 1…16; weight decay of A_log pulls A "
    "back to −1, and did no clear harm in small models (notebook 16, Q1). There a floor under |A| "
    "had no effect: in 1,200 steps the smallest |A| fell from 1 to 0.2, and no run failed (Q3)"
)
NEW_DT_BIAS = (
    "initialize the bias (dt_proj.bias or dt_bias) again: mambanorm.block.init_dt_bias(bias); if "
    "you call model.apply to initialize weights, skip the modules inside a Mamba block. On rows of "
    "40 positions a bias of zero did no clear harm; in large language models users report harm"
)


class SiteLocation(NamedTuple):
    """The location of a site (a named tensor) in a model.

    A site is the input or output of a module, or some channels of this tensor, or is computed from
    these channels. site: the site's name. module: the module's path. side: "input" or "output" of
    the module. index: the position of the tensor, from 0, if the module takes or returns several
    tensors. channels: (start, stop) of the channels (last axis) that are used, None for all
    channels. depth: the number of the layer, from 1. derive: a function that computes the site from
    the used channels (for Δ and exp(ΔA)); None means that these channels are the site.
    """

    site: str
    module: str
    side: str = "output"
    index: int = 0
    channels: tuple[int | None, int | None] | None = None
    depth: int = 0
    derive: Callable[[Tensor], Tensor] | None = None

    @property
    def path(self) -> str:
        """Return the module's path, followed by ":input" if the site is the module's input."""
        return self.module if self.side == "output" else f"{self.module}:input"

    @property
    def where(self) -> str:
        """Return the path under which tables list the site.

        This is `path` or, if `derive` is not None, the path of the mixer followed by the site's
        name.
        """
        return self.path if self.derive is None else join(parent_of(self.module), self.site)

    def value(self, tensor: Tensor) -> Tensor:
        """Return the value of the site, detached. tensor: the input or output of the module."""
        part = tensor.detach()
        if self.channels is not None:
            part = part[..., slice(*self.channels)]
        return part if self.derive is None else self.derive(part)


def join(*names: str) -> str:
    """Return the names joined by dots, leaving out empty names."""
    return ".".join(filter(None, names))


def parent_of(path: str) -> str:
    """Return the path of a module's parent, which is the path without the last name."""
    return path.rpartition(".")[0]


def mixers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a list of (path, module) of the Mamba mixers of other libraries, in order of depth."""
    kit_blocks = {block for _, block in blocks_of(model)}
    return [
        (path, module)
        for path, module in model.named_modules()
        if module not in kit_blocks and version_of(module)
    ]


def version_of(module: nn.Module) -> int:
    """Return 1 for a Mamba-1 mixer, 2 for a Mamba-2 mixer, 0 for any other module."""
    A_log = A_log_of(module)
    dims = 0 if A_log is None else A_log.dim()
    parts = set(module._modules)
    if dims == 2 and parts >= MAMBA_1:
        return 1
    return 2 if dims == 1 and parts >= MAMBA_2 else 0


def locations_in(mixer: nn.Module) -> list[SiteLocation]:
    """Return the location of each site inside a mixer. Module paths are relative to the mixer."""
    gated = SiteLocation("gated", "out_proj", "input")
    if version_of(mixer) == 2:
        return [
            # dt has one channel per head
            SiteLocation("dt", "in_proj", channels=(-len(mixer.A_log), None)),
            SiteLocation("scan", "norm", "input"),
            SiteLocation("z", "norm", "input", index=1),
            gated,
        ]
    E, N = mixer.A_log.shape
    return [
        SiteLocation("z", "in_proj", channels=(E, None)),
        SiteLocation("conv", "x_proj", "input"),
        SiteLocation("dt", "x_proj", channels=(0, -2 * N)),
        SiteLocation("B", "x_proj", channels=(-2 * N, -N)),
        SiteLocation("C", "x_proj", channels=(-N, None)),
        *(SiteLocation(site, part) for part, site in INNER_NORMS.items() if part in mixer._modules),
        gated,
    ]


@torch.no_grad()
def step_size(mixer: nn.Module, dt: Tensor) -> Tensor:
    """Return the step size Δ, computed in the same way as in the mixer.

    dt: the value at the mixer's site "dt". A Mamba-1 mixer multiplies dt by dt_proj's weight, or
    calls dt_proj if this weight is quantized.
    """
    if version_of(mixer) == 2:
        return F.softplus(dt + mixer.dt_bias)
    weight = getattr(mixer.dt_proj, "weight", None)
    bias = delta_bias_of(mixer)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return F.softplus(mixer.dt_proj(dt))
    bias = None if bias is None else bias.to(dt.dtype)
    return F.softplus(F.linear(dt, weight.to(dt.dtype), bias))


def decay(mixer: nn.Module, delta: Tensor) -> Tensor:
    """Return exp(ΔA) of each channel's slowest state, in the shape of Δ (…, L, channels).

    The slowest of a channel's N states is the one that forgets least. Only the slowest states are
    computed, to save memory. The result is in float32, or in float64 if Δ is. In a block for images
    the four directions follow each other along the first axis of Δ, and A_log has one row per
    direction and channel.
    """
    A_log = A_log_of(mixer).detach()
    dtype = torch.promote_types(delta.dtype, torch.float32)
    slowest = A_log.to(dtype).exp()
    if slowest.dim() > 1:
        slowest = slowest.amin(-1)
    slowest = slowest.view(-1, 1, 1, delta.shape[-1])  # (directions, 1, 1, channels)
    directions = delta.detach().to(dtype).unflatten(0, (len(slowest), -1))
    return torch.exp(-directions * slowest).flatten(0, 1)


# --------------------------------------------------------------------------------------------------
# the parameters of mixers


def A_log_of(module: nn.Module) -> Tensor | None:
    """Return the parameter log(−A) of a mixer or of a block of this kit, None for other modules.

    The parameter is not read as an attribute, because a wrapper may forward the attributes of the
    module that it wraps.
    """
    return module._parameters.get("A_log", module._parameters.get("A_logs"))


def delta_bias_of(module: nn.Module) -> Tensor | None:
    """Return the bias of Δ, None if the module has no such bias or if a quantized dt_proj hides it.

    module: a mixer or a block of this kit.
    """
    dt_proj = module._modules.get("dt_proj")
    names = (module, "dt_bias"), (module, "dt_projs_bias"), (dt_proj, "bias")
    biases = [getattr(owner, name, None) for owner, name in names]
    return next((bias for bias in biases if isinstance(bias, Tensor)), None)


@torch.no_grad()
def parameter_symptoms(model: nn.Module) -> dict[str, Symptom]:
    """Return a map with at most two keys: "A" for a fault of A_log, "delta" for one of Δ's bias.

    The value of a key is a Symptom, which names the first layer with the fault and the number of
    layers with the fault. A key is missing if no layer has the fault. Layers in which A_log or the
    bias is not finite are skipped, because rules.py reports non-finite parameters.
    """
    faults = defaultdict(list)
    for path, module in model.named_modules():
        A_log, bias = A_log_of(module), delta_bias_of(module)
        if A_log is None or not all(x.isfinite().all() for x in (A_log, bias) if x is not None):
            continue
        delta = torch.tensor([DT_MAX]) if bias is None else F.softplus(bias.double()).flatten()
        low, high = float(delta.min()), float(delta.max())
        fastest = float(A_log.double().exp().max())
        # Δ counts as at least DT_MAX, because with a smaller Δ even a healthy state forgets slowly
        if fastest * max(DT_MAX, high) < NEGLIGIBLE:
            message = (
                f"exp(ΔA) is 1 in every state (−A is at most {fastest:.2g}), so that the scan only "
                "sums up its input and forgets nothing"
            )
            faults["A"].append(Symptom("serious", path, message, NEW_A_LOG, SMALL_A_SOURCE))
        is_constant = len(delta) > 1 and high - low <= 1e-6 * high
        if (
            is_constant
            or not ((delta > DT_MIN / DT_TOLERANCE) & (delta < DT_MAX * DT_TOLERANCE)).any()
        ):
            message = (
                f"softplus of the bias of Δ lies in {low:.3g}…{high:.3g}; usual are values in "
                f"{DT_MIN}…{DT_MAX} that differ from channel to channel"
            )
            faults["delta"].append(Symptom("warning", path, message, NEW_DT_BIAS, BIAS_SOURCE))
    return {
        parameter: replace(
            layers[0], message=f"{layers[0].message} (in {plural(len(layers), 'layer')})"
        )
        for parameter, layers in faults.items()
    }
