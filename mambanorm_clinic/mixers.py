"""Mamba mixers of other libraries: where their sites are, and whether A and Δ are sound.

A mixer is recognized by its parts. Mamba-1 (transformers' Mamba, Falcon-Mamba and Jamba; mamba-ssm)
has in_proj, x_proj, dt_proj and out_proj; Mamba-2 has in_proj, norm and out_proj. A part may be
wrapped or replaced (LoRA, quantization), so no width is read from its weight. transformers and
mamba-ssm read dt_proj.weight directly if it exists, past an adapter on it.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.block import DT_MAX, DT_MIN
from mambanorm.inside import blocks_of
from mambanorm_clinic.symptoms import FAILURE_SOURCE, NEGLIGIBLE, Symptom
from mambanorm_study.basics.text import plural

MAMBA_1 = {"in_proj", "x_proj", "dt_proj", "out_proj"}
MAMBA_2 = {"in_proj", "norm", "out_proj"}
# Jamba's norms after x_proj → their sites.
INNER_NORMS = {"dt_layernorm": "dt_norm", "b_layernorm": "B_norm", "c_layernorm": "C_norm"}
# −A below which no state forgets in reasonable time: at Δ = 0.1 half is left after 700 positions.
SLOW = 1e-2
# Factor by which Δ may lie outside DT_MIN…DT_MAX, because training moves it.
SLACK = 2.0

NEW_A_LOG = (
    "A_log anew: mambanorm.block.initial_A_log(E, N), which is log 1 … log N, in Mamba-2 the log "
    "of numbers drawn from 1…16; no weight decay for it"
)
NEW_DT_BIAS = (
    "the bias (dt_proj.bias or dt_bias) anew: mambanorm.block.init_dt_bias(bias); let an outer "
    "model.apply leave modules inside a Mamba block alone"
)
# Code for the reader: it puts the parameters for which `is_undecayed` is True into a group without
# weight decay.
UNDECAYED_GROUPS = (
    "spared = {n for n, p in model.named_parameters() if p.dim() < 2 or 'A_log' in n or "
    "n.endswith('bias') or getattr(p, '_no_weight_decay', False)}; "
    "optimizer = torch.optim.AdamW([dict(params=[p for n, p in model.named_parameters() "
    "if n not in spared]), dict(params=[p for n, p in model.named_parameters() if n in spared], "
    "weight_decay=0.0)])"
)


class Tap(NamedTuple):
    """Where a tensor can be read: the input or output of a module.

    module: its name. side: "input" or "output". index: of several tensors, which one. channels:
    first and last channel of the last axis, counted from the end if negative; None = all.
    """

    module: str
    side: str = "output"
    index: int = 0
    channels: tuple[int | None, int | None] | None = None


def mixers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the names and mixers of other libraries, by depth."""
    own_blocks = {block for _, block in blocks_of(model)}
    return [
        (path, module)
        for path, module in model.named_modules()
        if module not in own_blocks and version_of(module)
    ]


def version_of(module: nn.Module) -> int:
    """Return 1 for a mixer of Mamba-1, 2 for one of Mamba-2, 0 for any other module."""
    A_log = A_log_of(module)
    if A_log is None:
        return 0
    parts = set(module._modules)
    if parts >= MAMBA_1 and A_log.dim() == 2:
        return 1
    if parts >= MAMBA_2 and A_log.dim() == 1:
        return 2
    return 0


def taps_of(mixer: nn.Module) -> dict[str, Tap]:
    """Return site → where a mixer's tensors can be read."""
    if version_of(mixer) == 2:
        heads = len(mixer.A_log)
        return {
            "dt": Tap("in_proj", channels=(-heads, None)),
            "scan": Tap("norm", "input"),
            "z": Tap("norm", "input", index=1),
            "gated": Tap("out_proj", "input"),
        }
    E, N = mixer.A_log.shape
    taps = {
        "z": Tap("in_proj", channels=(E, None)),
        "conv": Tap("x_proj", "input"),
        "dt": Tap("x_proj", channels=(0, -2 * N)),
        "B": Tap("x_proj", channels=(-2 * N, -N)),
        "C": Tap("x_proj", channels=(-N, None)),
    }
    for part, site in INNER_NORMS.items():
        if part in mixer._modules:
            taps[site] = Tap(part)
    return taps | {"gated": Tap("out_proj", "input")}


@torch.no_grad()
def step_size(mixer: nn.Module, dt: Tensor) -> Tensor:
    """Return Δ as a mixer of another library computes it from dt.

    The mixer multiplies by dt_proj's weight, or calls a dt_proj that has none.
    """
    if version_of(mixer) == 2:
        return F.softplus(dt + mixer.dt_bias)
    weight = getattr(mixer.dt_proj, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return F.softplus(mixer.dt_proj(dt))
    bias = delta_bias_of(mixer)
    if bias is not None:
        bias = bias.to(dt.dtype)
    return F.softplus(F.linear(dt, weight.to(dt.dtype), bias))


def decay(mixer: nn.Module, delta: Tensor) -> Tensor:
    """Return exp(ΔA) of the state that forgets most slowly, in Δ's shape (…, L, channels).

    At least float32. Only one of the N states is in memory. An image block's Δ holds its four
    directions one after the other.
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
# the parameters


def A_log_of(module: nn.Module) -> Tensor | None:
    """Return log(−A) of a mixer or of one of this kit's blocks, None for another module.

    A wrapper that hands on the attributes of the wrapped module has no A_log of its own.
    """
    parametrized = module._modules.get("parametrizations", {})
    for name in ("A_log", "A_logs"):
        if name in parametrized or module._parameters.get(name) is not None:
            return getattr(module, name)
        if module._buffers.get(name) is not None:
            return getattr(module, name)
    return None


def delta_bias_of(module: nn.Module) -> Tensor | None:
    """Return Δ's bias, also of a wrapped or quantized dt_proj; None if there is none."""
    biases = [getattr(module, name, None) for name in ("dt_bias", "dt_projs_bias")]
    if "dt_proj" in module._modules:
        for part in module.dt_proj.modules():
            bias = getattr(part, "bias", None)
            biases.append(bias() if callable(bias) else bias)  # a quantized layer has a method
    return next((bias for bias in biases if isinstance(bias, Tensor)), None)


@torch.no_grad()
def parameter_symptoms(model: nn.Module) -> list[Symptom]:
    """Return the faults of A_log and of Δ's bias, each with the first layer that has it.

    Parameters that are not finite are left to other rules.
    """
    by_parameter: dict[str, list[Symptom]] = {}
    for path, module in model.named_modules():
        A_log, bias = A_log_of(module), delta_bias_of(module)
        if A_log is None or not A_log.numel():
            continue
        if all(value.isfinite().all() for value in (A_log, bias) if value is not None):
            for symptom in _faults_of_layer(path, A_log, bias):
                by_parameter.setdefault(symptom.parameter, []).append(symptom)
    return [
        replace(layers[0], message=f"{layers[0].message} (in {plural(len(layers), 'layer')})")
        for layers in by_parameter.values()
    ]


def _faults_of_layer(path: str, A_log: Tensor, bias: Tensor | None) -> Iterator[Symptom]:
    delta = torch.tensor([DT_MAX]) if bias is None else F.softplus(bias.double()).flatten()
    low, high = float(delta.min()), float(delta.max())
    fault_of_A = partial(
        Symptom, where=path, advice=NEW_A_LOG, source=FAILURE_SOURCE, parameter="A"
    )
    fastest = float(A_log.double().exp().max())
    if fastest * max(DT_MAX, high) < NEGLIGIBLE:  # at a small Δ any state lasts
        yield fault_of_A(
            severity="serious",
            message=f"exp(ΔA) is 1 in every state (−A is at most {fastest:.2g}): the scan sums up "
            "its input and never forgets",
        )
    elif fastest < SLOW:
        message = f"−A is at most {fastest:.2g}, so that hardly any state ever forgets"
        yield fault_of_A(severity="warning", message=message)
    elif A_log.dim() > 1 and A_log.shape[-1] > 1 and bool((A_log == A_log[..., :1]).all()):
        yield fault_of_A(
            severity="warning",
            message=f"A_log is the same in all {A_log.shape[-1]} states of each channel, which "
            "forget at one rate",
        )
    value = f"lies between {low:.3g} and {high:.3g}"
    if len(delta) > 1 and high - low <= 1e-6 * high:
        value = f"is {low:.3g} in every channel"
    elif ((delta > DT_MIN / SLACK) & (delta < DT_MAX * SLACK)).any():
        return
    message = f"Δ from its bias {value}, where {DT_MIN}…{DT_MAX} and different channels are usual"
    yield Symptom("warning", path, message, NEW_DT_BIAS, FAILURE_SOURCE, "delta")


def is_undecayed(name: str, weight: Tensor) -> bool:
    """Return True if weight decay should leave a parameter alone: A_log, D, norms and biases."""
    by_name = "A_log" in name or name.endswith("bias")
    return weight.dim() < 2 or by_name or getattr(weight, "_no_weight_decay", False)


def decay_symptoms(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Symptom]:
    """Return a symptom if weight decay acts on parameters that it should leave alone."""
    decay_by_id = {
        id(weight): group["weight_decay"]
        for group in optimizer.param_groups
        if group.get("weight_decay")
        for weight in group["params"]
    }
    decayed = {
        name: decay_by_id[id(weight)]
        for name, weight in model.named_parameters()
        if weight.requires_grad and id(weight) in decay_by_id and is_undecayed(name, weight)
    }
    if not decayed:
        return []
    first, amount = next(iter(decayed.items()))
    message = (
        f"weight decay ({amount:g}) acts on {plural(len(decayed), 'parameter')} among A_log, D, "
        f"norms and biases, {first} the first: it pulls rates, steps and scales towards 0"
    )
    return [Symptom("warning", first, message, UNDECAYED_GROUPS, "mamba-ssm's _no_weight_decay")]
