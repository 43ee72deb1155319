"""Which tensor of a model is which site.

    places_of(model, sites)    the places to look at: from the model's family, or from patterns of module names
    layers_of(model)           its layers, by depth
    mixers_of(model)           its Mamba mixers of other houses, by depth

A Mamba mixer is known by what it is made of, whoever wrote it: Mamba-1 (transformers' Mamba, Falcon-Mamba and Jamba,
mamba-ssm's) has in_proj, x_proj, dt_proj and out_proj; Mamba-2 in_proj, norm and out_proj. A site is the input or the
output of a module. What a mixer computes between its modules shows as far as a module takes it in:

    x n1 branch residual    the block's input, its norm's output, the mixer's output, the block's output
    conv                    x_proj's input
    dt B C                  parts of x_proj's output; dt (R channels) is what becomes Δ. dt_norm, B_norm, C_norm: after
                            the norms that Jamba has there
    step_size decay         Δ, and exp(ΔA) of the state that forgets most slowly; both are made of dt, or dt_norm
    z                       the gate's half of in_proj's output
    scan                    of Mamba-2: what its gated norm takes in
    gated                   out_proj's input

This kit's own blocks show all of SITES (arms.py) by themselves, and decay beside step_size; they need no place here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import SITES
from mambanorm.basics.checks import shown
from mambanorm.basics.errors import unknown
from mambanorm.diagnostics import blocks_of
from mambanorm.models.transformer import TRANSFORMER_SITES, TransformerBlock

SIDES = ("input", "output")
MAMBA_1, MAMBA_2 = {"in_proj", "x_proj", "dt_proj", "out_proj"}, {"in_proj", "norm", "out_proj"}
NORM_NAMES = ("norm", "input_layernorm")
"""What the norm before the mixer is called in transformers and mamba-ssm, and in Jamba."""
INNER_NORMS = {"dt_layernorm": "dt_norm", "b_layernorm": "B_norm", "c_layernorm": "C_norm"}


@dataclass(frozen=True)
class Place:
    """A tensor: the input or output of the module at `path`, of several the one at `index`, of its last axis the
    `channels` (None = all); or, under a path of its own, what is `made` of these. depth counts the layers from 1."""

    site: str
    depth: int
    layer: str
    path: str
    side: str = "output"
    index: int = 0
    channels: tuple[int, int] | None = None
    made: Callable[[Tensor], Tensor] | None = None
    own_path: str = ""

    @property
    def seen_at(self) -> str:
        return self.path if self.side == "output" else f"{self.path}:input"

    @property
    def where(self) -> str:
        return self.own_path or self.seen_at


def mixers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and mixers by depth, of the families that are known by their parts; none of this kit's own blocks."""
    own = tuple(block for _, block in blocks_of(model))
    return [(path, module) for path, module in model.named_modules() if module not in own and version_of(module)]


def layers_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and layers by depth: this kit's blocks, the modules around a family's mixers, else the longest ModuleList
    or Sequential, else the model's children."""
    if blocks := blocks_of(model):
        return list(blocks)
    around = dict.fromkeys(path.rpartition(".")[0] for path, _ in mixers_of(model))
    if any(around):
        return [(path, model.get_submodule(path)) for path in around if path]
    lists = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential) and len(m)]
    path, longest = max(lists, key=lambda pair: len(pair[1]), default=("", model))
    return [(f"{path}.{name}".lstrip("."), layer) for name, layer in longest.named_children()]


def version_of(module: nn.Module) -> int:
    """1 for a mixer of Mamba-1, 2 for one of Mamba-2, 0 for another module."""
    parts = {name for name, _ in module.named_children()}
    if "A_log" not in module._parameters:
        return 0
    return 1 if parts >= MAMBA_1 else 2 if parts >= MAMBA_2 and module.A_log.dim() == 1 else 0


def places_of(model: nn.Module, sites: Mapping[str, str] | Iterable[str] | None = None) -> list[Place]:
    """The places to look at, layer by layer.

    sites: None = all of the family's; names of them; or a map of one's own, site → pattern of module names (see
    `matching`). A model of no known family is looked at after every module that has none inside; such a site is called
    by the module's path, its numbers as *.
    ValueError for an unknown site, for none, and for a pattern that no module matches, with the nearest.
    """
    if sites is not None and not sites:
        raise ValueError("sites names none: leave it out to look at all")
    if isinstance(sites, Mapping):
        return [place for site, pattern in sites.items() for place in matching(model, site, pattern)]
    found = [place for depth, pair in enumerate(mixers_of(model), 1) for place in _of_mixer(model, depth, *pair)]
    if not found and not blocks_of(model):
        found = list(_of_leaves(model))
    if sites is None:
        return found
    wanted = (sites,) if isinstance(sites, str) else tuple(sites)
    own = [TRANSFORMER_SITES if isinstance(block, TransformerBlock) else SITES for _, block in blocks_of(model)]
    known = list(dict.fromkeys([*(site for block in own for site in block), *(place.site for place in found)]))
    known += ["decay"] if "step_size" in known and "decay" not in known else []
    for site in wanted:
        if site not in known:
            raise unknown(f"site of {type(model).__name__}", site, known)
    return [place for place in found if place.site in wanted]


def matching(model: nn.Module, site: str, pattern: str) -> list[Place]:
    """The places of a pattern such as "layers.*.mixer.out_proj:input", by depth.

    `*` stands for one part of a path. The pattern is that of a whole path or of its end. After the colon stands
    input or output; without it, output.
    """
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern of site {site!r} must be text such as 'layers.*.norm', got {shown(pattern)}")
    path, colon, side = pattern.partition(":")
    if colon and side not in SIDES:
        raise unknown(f"side in the pattern {pattern!r}", side, SIDES)
    rule = re.compile(r"(?:.*\.)?" + r"[^.]+".join(map(re.escape, path.split("*"))))
    names = [name for name, _ in model.named_modules() if name]
    found = [name for name in names if rule.fullmatch(name)]
    if not found:
        near = get_close_matches(path, [*names, *map(_general, names)], n=3, cutoff=0.3) or names[:3]
        raise ValueError(
            f"no module of {type(model).__name__} matches {pattern!r} (site {site!r}); the nearest are "
            f"{', '.join(dict.fromkeys(near))}; * stands for one part of a path"
        )
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
    yield place("decay", inside(part), *rest, lambda dt: decay(mixer, step_size(mixer, dt)), inside("decay"))
    yield place("branch", path)
    if norm:  # mamba-ssm's block hands on its branch and, apart, the stream that it has not yet been added to
        index = 1 if type(block).__module__.startswith("mamba_ssm") else 0
        yield place("x", layer, "input")
        yield place("n1", f"{layer}.{norm}".lstrip("."))
        yield place("residual", layer, "output", index)


def parts_of(mixer: nn.Module) -> dict[str, tuple[str, str, int, tuple[int, int] | None]]:
    """Site → module of the mixer, side, index and channels."""
    gated = {"gated": ("out_proj", "input", 0, None)}
    if version_of(mixer) == 2:
        wide, heads = mixer.in_proj.weight.shape[0], len(mixer.A_log)
        dt = {"dt": ("in_proj", "output", 0, (wide - heads, wide))}
        return dt | {"scan": ("norm", "input", 0, None), "z": ("norm", "input", 1, None)} | gated
    (E, N), R = mixer.A_log.shape, mixer.dt_proj.weight.shape[-1]
    found = {"z": ("in_proj", "output", 0, (E, 2 * E)), "conv": ("x_proj", "input", 0, None)}
    for site, channels in {"dt": (0, R), "B": (R, R + N), "C": (R + N, R + 2 * N)}.items():
        found[site] = ("x_proj", "output", 0, channels)
    found |= {site: (part, "output", 0, None) for part, site in INNER_NORMS.items() if part in mixer._modules}
    return found | gated


def step_size(mixer: nn.Module, dt: Tensor) -> Tensor:
    """Δ as a mixer of another house makes it of dt."""
    if version_of(mixer) == 2:
        return F.softplus(dt + mixer.dt_bias.detach())
    weight, bias = mixer.dt_proj.weight.detach(), mixer.dt_proj.bias.detach()
    return F.softplus(F.linear(dt, weight.to(dt.dtype), bias.to(dt.dtype)))


def decay_place(depth: int, layer: str, path: str, block: nn.Module) -> Place:
    """The decay of one of this kit's own blocks, beside its step_size at `path`."""
    own = f"{layer}.decay".lstrip(".")
    return Place("decay", depth, layer, path, made=lambda delta: decay(block, delta), own_path=own)


def decay(mixer: nn.Module, delta: Tensor) -> Tensor:
    """exp(ΔA) of the state that forgets most slowly, in Δ's shape (…, L, channels): of N states never more than one
    stands in memory. In float32 at least. Of an image block Δ holds its four directions one after the other."""
    A_log = mixer.A_logs if "A_logs" in mixer._parameters else mixer.A_log
    wide = torch.promote_types(delta.dtype, torch.float32)
    slowest = A_log.detach().to(wide).exp()
    slowest = (slowest.amin(-1) if slowest.dim() > 1 else slowest).view(-1, 1, 1, delta.shape[-1])
    groups = delta.detach().to(wide).unflatten(0, (len(slowest), -1))
    return torch.exp(-groups * slowest).flatten(0, 1)
