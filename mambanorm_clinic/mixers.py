"""Mamba mixers, whoever wrote them: where their sites are, and what their own parameters say.

A mixer is known by its parts: Mamba-1 (transformers' Mamba, Falcon-Mamba and Jamba, mamba-ssm's)
has in_proj, x_proj, dt_proj and out_proj; Mamba-2 in_proj, norm and out_proj. A part may be wrapped
or replaced (LoRA, quantization), so no width is read off its weight. transformers and mamba-ssm
read dt_proj.weight where there is one, past an adapter on it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.block import DT_MAX, DT_MIN
from mambanorm.inside import blocks_of
from mambanorm_clinic.findings import FAILURES, NOTHING, Symptom
from mambanorm_study.basics.text import plural

MAMBA_1, MAMBA_2 = {"in_proj", "x_proj", "dt_proj", "out_proj"}, {"in_proj", "norm", "out_proj"}
INNER_NORMS = {"dt_layernorm": "dt_norm", "b_layernorm": "B_norm", "c_layernorm": "C_norm"}
GROUPS = (
    "spared = {n for n, p in model.named_parameters() if p.dim() < 2 or 'A_log' in n or n.endswith('bias') "
    "or getattr(p, '_no_weight_decay', False)}; "
    "optimizer = torch.optim.AdamW([dict(params=[p for n, p in model.named_parameters() if n not in spared]), "
    "dict(params=[p for n, p in model.named_parameters() if n in spared], weight_decay=0.0)])"
)
"""The parameter groups that leave these alone."""
SLOW = 1e-2
"""−A below which no state forgets in reasonable time: at Δ = 0.1 a state is halved after 700
positions or more."""
SLACK = 2.0
"""How far beyond DT_MIN…DT_MAX Δ may lie: training moves it."""


def mixers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and mixers by depth, of the families that are known by their parts; none of this kit's
    own blocks."""
    own = tuple(block for _, block in blocks_of(model))
    return [
        (path, module)
        for path, module in model.named_modules()
        if module not in own and version_of(module)
    ]


def version_of(module: nn.Module) -> int:
    """1 for a mixer of Mamba-1, 2 for one of Mamba-2, 0 for another module."""
    if (A_log := A_log_of(module)) is None:
        return 0
    parts = set(module._modules)
    return (
        1
        if parts >= MAMBA_1 and A_log.dim() == 2
        else 2
        if parts >= MAMBA_2 and A_log.dim() == 1
        else 0
    )


def parts_of(
    mixer: nn.Module,
) -> dict[str, tuple[str, str, int, tuple[int | None, int | None] | None]]:
    """Site → module of the mixer, side, index and channels (None = all), counted from the end where
    they are last."""
    gated = {"gated": ("out_proj", "input", 0, None)}
    if version_of(mixer) == 2:
        dt = {"dt": ("in_proj", "output", 0, (-len(mixer.A_log), None))}
        return dt | {"scan": ("norm", "input", 0, None), "z": ("norm", "input", 1, None)} | gated
    E, N = mixer.A_log.shape
    found = {"z": ("in_proj", "output", 0, (E, None)), "conv": ("x_proj", "input", 0, None)}
    for site, channels in {"dt": (0, -2 * N), "B": (-2 * N, -N), "C": (-N, None)}.items():
        found[site] = ("x_proj", "output", 0, channels)
    found |= {
        site: (part, "output", 0, None)
        for part, site in INNER_NORMS.items()
        if part in mixer._modules
    }
    return found | gated


@torch.no_grad()
def step_size(mixer: nn.Module, dt: Tensor) -> Tensor:
    """Return Δ as a mixer of another library computes it: by dt_proj's weight, or by calling a
    dt_proj without one."""
    if version_of(mixer) == 2:
        return F.softplus(dt + mixer.dt_bias)
    weight = getattr(mixer.dt_proj, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return F.softplus(mixer.dt_proj(dt))
    bias = delta_bias_of(mixer)
    return F.softplus(
        F.linear(dt, weight.to(dt.dtype), None if bias is None else bias.to(dt.dtype))
    )


def decay(mixer: nn.Module, delta: Tensor) -> Tensor:
    """exp(ΔA) of the state that forgets most slowly, in Δ's shape (…, L, channels): of N states
    never more than one stands in memory. In float32 at least. Of an image block Δ holds its four
    directions one after the other."""
    A_log = A_log_of(mixer)
    wide = torch.promote_types(delta.dtype, torch.float32)
    slowest = A_log.detach().to(wide).exp()
    slowest = (slowest.amin(-1) if slowest.dim() > 1 else slowest).view(-1, 1, 1, delta.shape[-1])
    groups = delta.detach().to(wide).unflatten(0, (len(slowest), -1))
    return torch.exp(-groups * slowest).flatten(0, 1)


# --------------------------------------------------------------------------------------------------
# the parameters


def A_log_of(module: nn.Module) -> Tensor | None:
    """Return log(−A) of a mixer or of one of this kit's blocks; None for another module, also for
    one that hands on the attributes of what it wraps."""
    own = {
        **module._parameters,
        **module._buffers,
        **dict(module._modules.get("parametrizations", {})),
    }
    return next(
        (getattr(module, name) for name in ("A_log", "A_logs") if own.get(name) is not None), None
    )


def delta_bias_of(module: nn.Module) -> Tensor | None:
    """Return Δ's bias, also that of a wrapped or quantized dt_proj; None if there is none."""
    biases = [getattr(module, name, None) for name in ("dt_bias", "dt_projs_bias")]
    for part in module.dt_proj.modules() if "dt_proj" in module._modules else ():
        bias = getattr(part, "bias", None)
        biases.append(bias() if callable(bias) else bias)  # a quantized layer has a method
    return next((value for value in biases if isinstance(value, Tensor)), None)


@torch.no_grad()
def suspicious(model: nn.Module) -> list[Symptom]:
    """Return what is wrong with A_log and Δ's bias in a model whose values are finite: one symptom
    a fault, with its first layer. Layers with parameters that are not finite are left to other
    rules."""
    faults: dict[str, list[tuple[str, str]]] = {}
    for path, module in model.named_modules():
        A_log, bias = A_log_of(module), delta_bias_of(module)
        if (
            A_log is None
            or not A_log.numel()
            or not all(value.isfinite().all() for value in (A_log, bias) if value is not None)
        ):
            continue
        delta = torch.tensor([DT_MAX]) if bias is None else F.softplus(bias.double()).flatten()
        for fault, found in (
            ("A", _fault_of_A(A_log, max(DT_MAX, float(delta.max())))),
            ("Δ", _fault_of_delta(delta)),
        ):
            if found:
                faults.setdefault(fault, []).append((path, found))
    return [_symptom(fault, layers) for fault, layers in faults.items()]


def _fault_of_A(A_log: Tensor, delta: float) -> str:
    """Return what is wrong with A, "" if nothing is. delta: a large Δ; at a small one any state
    lasts."""
    fastest = float(A_log.double().exp().max())
    if fastest * delta < NOTHING:
        return f"exp(ΔA) is 1 in every state (−A is at most {fastest:.2g}): the scan sums up its input and never forgets"
    if fastest < SLOW:
        return f"−A is at most {fastest:.2g}, so that hardly any state ever forgets"
    if A_log.dim() > 1 and A_log.shape[-1] > 1 and bool((A_log == A_log[..., :1]).all()):
        return f"A_log is the same in all {A_log.shape[-1]} states of each channel, which forget at one rate"
    return ""


def _fault_of_delta(delta: Tensor) -> str:
    """Return what is wrong with Δ, "" if nothing is. delta: softplus of the bias, all channels or
    heads."""
    low, high = float(delta.min()), float(delta.max())
    if len(delta) > 1 and high - low <= 1e-6 * high:
        return f"Δ from its bias is {low:.3g} in every channel"
    inside = (delta > DT_MIN / SLACK) & (delta < DT_MAX * SLACK)
    return "" if inside.any() else f"Δ from its bias lies between {low:.3g} and {high:.3g}"


def _symptom(fault: str, layers: list[tuple[str, str]]) -> Symptom:
    where, found = layers[0]
    if fault == "A":
        mend = "A_log anew: mambanorm.block.initial_A_log(E, N), which is log 1 … log N, in Mamba-2 the log of numbers "
        mend += "drawn from 1…16; no weight decay for it"
    else:
        found += f", where {DT_MIN}…{DT_MAX} and different channels are usual"
        mend = "the bias (dt_proj.bias or dt_bias) anew: mambanorm.block.init_dt_bias(bias); let an outer model.apply "
        mend += "leave modules inside a Mamba block alone"
    severity = "serious" if "never" in found else "warning"
    return Symptom(severity, where, f"{found} (in {plural(len(layers), 'layer')})", mend, FAILURES)


def undecayed(name: str, weight: Tensor) -> bool:
    """Return True if weight decay should leave a parameter alone: A_log, D, the weights of norms,
    and biases."""
    return (
        weight.dim() < 2
        or "A_log" in name
        or name.endswith("bias")
        or getattr(weight, "_no_weight_decay", False)
    )


def decayed(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Symptom]:
    """Return a symptom if weight decay acts on parameters that it should leave alone, else an empty
    list."""
    groups = [group for group in optimizer.param_groups if group.get("weight_decay")]
    in_decay = {id(weight): group["weight_decay"] for group in groups for weight in group["params"]}
    names = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and id(p) in in_decay and undecayed(name, p)
    ]
    if not names:
        return []
    amount = in_decay[id(model.get_parameter(names[0]))]
    found = f"weight decay ({amount:g}) acts on {plural(len(names), 'parameter')} among A_log, D, norms and biases, "
    found += f"{names[0]} the first: it pulls rates, steps and scales towards 0"
    return [Symptom("warning", names[0], found, GROUPS, "mamba-ssm's _no_weight_decay")]
