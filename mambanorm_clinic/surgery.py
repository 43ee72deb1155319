"""`insert_norm`: puts a norm into a trained model, with γ and β such that the model changes least;
`undo` takes it out.

The norm becomes a child of the module whose input or output it takes (`…out_proj.norm_gated`),
called by a hook. So every other weight keeps its name: old checkpoints load with strict=False, new
ones hold the norm. Layers are fitted in the order of execution, so that each makes up for what
those before it have changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES
from mambanorm.block import Block, MambaBlock
from mambanorm.checks import shown
from mambanorm.errors import unknown
from mambanorm.inside import preserve_state
from mambanorm.models.language import TO_PREDICT, LanguageModel
from mambanorm.norms import NORMS, check_causal, create_norm, norm_name
from mambanorm_clinic.calling import first_tensor, preserve_random_state, run
from mambanorm_clinic.mixers import mixers_of, parts_of, version_of
from mambanorm_study.basics.text import plural
from mambanorm_study.models.mamba2 import Mamba2Block

OWN_BLOCKS = (MambaBlock, Mamba2Block)
OWN_SITES = ("n1", "n2", *MORE_SITES)
SAME = {"dt": "delta"}
"""What `diagnose` calls other than an arm does."""


@dataclass(frozen=True)
class Seat:
    """Where one norm goes. path: of the new norm in the model; new(width): a fresh one;
    put(module): seats it there and returns what takes it out."""

    path: str
    new: Callable[[int], nn.Module]
    put: Callable[[nn.Module], Callable[[], None]]


class Surgery:
    """What was done. layers: one row a layer: where, the norm's path; change = ‖after −
    before‖/‖before‖ at its site, on the calibration batch, later layers seeing what earlier norms
    have changed. change: the same of the model's output. norms: the new modules.
    """

    def __init__(self, site: str, norm: str, paths: list[str], norms: list[nn.Module]):
        self.site, self.norm, self.norms, self._undo = site, norm, norms, []
        self.layers = pd.DataFrame({"where": paths, "change": math.nan})
        self.change = math.nan

    def seat(self, seats: list[Seat], modules: list[nn.Module]) -> None:
        """Puts the modules into their seats."""
        self._undo = [seat.put(module) for seat, module in zip(seats, modules, strict=True)]

    def undo(self) -> None:
        """Takes the norms out; the model is as it was before. A second call does nothing."""
        while self._undo:
            self._undo.pop()()

    def __repr__(self) -> str:
        worst = self.layers.loc[self.layers.change.idxmax()]
        return (
            f"{self.norm} at {self.site} of {plural(len(self.layers), 'layer')}: the model's output changes by "
            f"{100 * self.change:.3g} %, the site most in {worst['where']} ({100 * worst['change']:.3g} %)"
        )


def insert_norm(model: nn.Module, site: str, norm: str, batch: object, **options) -> Surgery:
    """Puts a norm at a site of every layer of a model, in place, calibrated on one batch.

    site: of this kit's Mamba and Mamba-2 blocks one of OWN_SITES (delta_after of Mamba alone); of
    transformers' Mamba, Falcon-Mamba and Jamba, and mamba-ssm's, n1 (before a mixer), branch
    (before the sum), gated (what out_proj takes in), delta, B or C; of Mamba-2 n1, delta, gated or
    branch. delta is what becomes Δ: R numbers before dt_proj in Mamba, one a head before bias and
    softplus in Mamba-2; "dt" is the same. norm: a name of NORMS; options go to `create_norm`.
    batch: as for `diagnose`, without a loss; the model is run on it in its own mode, twice. The new
    weights learn once an optimizer has them; one made before gets them by add_param_group.

    ValueError for an unknown family or site, a site where a norm stands already or that is computed
    in a fused kernel, a norm that is not causal in a language model, values at a site that are not
    finite on this batch, and a module that PEFT has wrapped, with which merge_and_unload() would
    drop the norm. Adapters that PEFT puts later on a module that carries a norm (its path is in
    `layers`) are added outside the norm: leave it out of `target_modules`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    name, blocks = norm_name(norm), [m for m in model.modules() if isinstance(m, OWN_BLOCKS)]
    if name == "None":
        raise ValueError(
            f"'None' is no norm to insert: choose one of {', '.join(n for n in NORMS if n != 'None')}"
        )
    if not blocks and not mixers_of(model):
        known = "this kit's Mamba blocks, transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and mamba-ssm's"
        raise ValueError(f"{type(model).__name__} is of no family that surgery knows: {known}")
    if not blocks or any(isinstance(module, LanguageModel) for module in model.modules()):
        check_causal([name], TO_PREDICT)
    with preserve_random_state(), preserve_state(model), torch.no_grad():
        find = _seats_in_blocks if blocks else _seats_in_mixers
        return _operate(
            model,
            SAME.get(site, site),
            name,
            batch,
            find(model, SAME.get(site, site), name, options),
        )


def sites_for_norms(model: nn.Module) -> tuple[str, ...]:
    """Sites at which `insert_norm` can put a norm into this model; none of a family that it does
    not know."""
    if blocks := [module for module in model.modules() if isinstance(module, OWN_BLOCKS)]:
        free = [
            {s for s in block.site_widths if block.arm.sites.get(s, "None") == "None"}
            for block in blocks
        ]
        return tuple(site for site in OWN_SITES if all(site in some for some in free))
    return _sites_of(model) if mixers_of(model) else ()


def _seats_in_blocks(model: nn.Module, site: str, name: str, options: dict) -> list[Seat]:
    """Of this kit's own blocks."""
    blocks = [
        (path, block) for path, block in model.named_modules() if isinstance(block, OWN_BLOCKS)
    ]
    known = [name for name in OWN_SITES if all(name in block.site_widths for _, block in blocks)]
    if site not in known:
        raise unknown("site for a norm in this kit's blocks", site, known)
    for path, block in blocks:
        if (standing := block.arm.sites.get(site, "None")) != "None":
            raise ValueError(
                f"{site} of {path} has a norm already, {standing}: choose another of {', '.join(known)}"
            )

    def new(block: Block, _width: int) -> nn.Module:
        return block.new_norm(site, name, options).to(block.A_log.device, block.A_log.dtype)

    def put(block: Block, module: nn.Module) -> Callable[[], None]:
        before = block.put_norm(site, "None" if isinstance(module, Keeping) else name, module)
        return lambda: block.put_norm(site, "None", before)

    place = site if site in ("n1", "n2") else f"more.{site}"
    return [
        Seat(f"{path}.{place}".lstrip("."), partial(new, block), partial(put, block))
        for path, block in blocks
    ]


def _seats_in_mixers(model: nn.Module, site: str, name: str, options: dict) -> list[Seat]:
    """Of other families."""
    known = _sites_of(model)
    if site not in known:
        raise unknown(f"site for a norm in {type(model).__name__}", site, known)
    seats = [_seat_in_mixer(path, mixer, site, name, options) for path, mixer in mixers_of(model)]
    modules = dict(model.named_modules())
    if taken := next((seat.path for seat in seats if seat.path in modules), None):
        raise ValueError(f"{site} has a norm already, {taken}: undo that surgery first")
    return seats


def _sites_of(model: nn.Module) -> tuple[str, ...]:
    every = all(version_of(mixer) == 1 for _, mixer in mixers_of(model))
    return (
        ("n1", "delta", "B", "C", "gated", "branch")
        if every
        else ("n1", "delta", "gated", "branch")
    )


def _seat_in_mixer(path: str, mixer: nn.Module, site: str, name: str, options: dict) -> Seat:
    """A norm on the input or the output of one of a mixer's modules, or on some of its channels."""
    parts = {
        "n1": ("in_proj", "input", 0, None),
        "branch": ("out_proj", "output", 0, None),
    } | parts_of(mixer)
    part, side, _, channels = parts["dt" if site == "delta" else site]
    linear, child = getattr(mixer, part), f"norm_{site}"
    if hasattr(linear, "merge") and hasattr(linear, "base_layer"):
        why = f"{path}.{part} is wrapped by PEFT, whose merge_and_unload() would drop the norm"
        raise ValueError(
            f"{why}: merge first, model = model.merge_and_unload(), then insert the norm"
        )
    like = next(
        (weight for weight in linear.parameters() if weight.is_floating_point()), mixer.A_log
    )
    return Seat(
        f"{path}.{part}.{child}",
        lambda width: create_norm(name, width, **options).to(like.device, like.dtype),
        lambda norm: _hang(linear, child, side, slice(*(channels or (None, None))), norm),
    )


def _hang(
    linear: nn.Module, child: str, side: str, channels: slice, norm: nn.Module
) -> Callable[[], None]:
    """Hangs a norm on some channels of a module's input or output; returns what takes it off.

    The hook finds the norm through the module it is called with, so that a deep copy of the model
    uses its own.
    """

    def normed(module: nn.Module, value: Tensor) -> Tensor:
        inside = getattr(module, child)(value[..., channels].contiguous())
        if inside.shape == value.shape:
            return inside
        first, last, _ = channels.indices(value.shape[-1])
        return torch.cat([value[..., :first], inside, value[..., last:]], dim=-1)

    linear.add_module(child, norm)
    if side == "input":
        hook = linear.register_forward_pre_hook(
            lambda module, args: (normed(module, args[0]), *args[1:])
        )
    else:
        hook = linear.register_forward_hook(lambda module, _args, output: normed(module, output))

    def off() -> None:
        hook.remove()
        del linear._modules[child]

    return off


# -------------------------------------------------------------------------------------- calibration


class Keeping(nn.Module):
    """Stands in a norm's place and keeps what comes there first, of a block that runs twice."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.kept = x.clone() if self.kept is None else self.kept
        return x


def _operate(model: nn.Module, site: str, name: str, batch: object, seats: list[Seat]) -> Surgery:
    """One pass that keeps what stands at each seat, and one that fits the norms; whatever goes
    wrong, they come out."""
    keeping, paths = [Keeping() for _ in seats], [seat.path for seat in seats]
    looking = Surgery(site, name, paths, keeping)
    looking.seat(seats, keeping)
    try:
        before = _output(model, batch)
    finally:
        looking.undo()
    wheres = [path.rpartition(".")[0].removesuffix(".more") for path in paths]
    values = [
        _checked(site, where, module.kept) for where, module in zip(wheres, keeping, strict=True)
    ]
    _check_finite("the model's output", before)
    norms = [seat.new(value.shape[-1]) for seat, value in zip(seats, values, strict=True)]
    done = Surgery(site, name, paths, norms)
    done.seat(seats, norms)
    hooks = [
        norm.register_forward_hook(_fitting(done, i, value))
        for i, (norm, value) in enumerate(zip(norms, values))
    ]
    try:
        after = _output(model, batch)
        _check_finite("the model's output behind the new norms", after)
        done.change = change(after, before)
    except BaseException:
        done.undo()
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return done


def _checked(site: str, where: str, value: Tensor | None) -> Tensor:
    """Return the values at a site. ValueError if a norm cannot be fitted to them."""
    if value is None:
        raise ValueError(
            f"{where} is not called: the model computes it in a fused kernel, which no norm can enter"
        )
    if value.dim() != 3:
        raise ValueError(f"{where} takes {tuple(value.shape)}; a norm needs (B, L, D) there")
    _check_finite(f"{site} at {where}", value)
    return value


def _check_finite(what: str, value: Tensor) -> None:
    rows = ~value.isfinite().flatten(1).all(1) if value.dim() > 1 else ~value.isfinite().flatten()
    if rows.any():
        why = (
            f"{what} is not finite in {int(rows.sum())} of {plural(len(rows), 'row')} of this batch"
        )
        what = "give rows and weights for which it is finite; clinic.diagnose says where it begins"
        raise ValueError(
            f"{why}, so γ and β cannot be fitted, and the model is left as it was: {what}"
        )


def _output(model: nn.Module, batch: object) -> Tensor:
    given = run(model, batch)
    if (found := first_tensor(given, real=True)) is None:
        raise ValueError(f"the model puts out {type(given).__name__}, in which no tensor was found")
    return found.detach().double()


def _fitting(done: Surgery, i: int, target: Tensor) -> Callable:
    """A hook that fits a fresh norm to its target at its first call, lets it give the fitted
    output, and notes what that changes at its site."""

    def fit(norm: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        if not math.isnan(done.layers.loc[i, "change"]):
            return None
        done.layers.loc[i, "change"] = 0.0  # from here on it is fitted, and calls itself
        _calibrate(norm, args[0], target)
        fitted = norm(*args)
        done.layers.loc[i, "change"] = change(fitted, target)
        return fitted

    return fit


def _calibrate(norm: nn.Module, x: Tensor, target: Tensor) -> None:
    """Least squares for every channel, in float64: with x̂ the norm of what arrives, where γ = 1
    and β = 0, and t what stood there before, γ = cov(x̂, t)/var(x̂), β = mean(t) − γ·mean(x̂);
    without β γ = Σx̂t/Σx̂². Running statistics become those of this batch."""
    if (mean := getattr(norm, "running_mean", None)) is not None:
        rows = x.double().flatten(0, 1)
        mean.copy_(rows.mean(0))
        norm.running_var.copy_(rows.var(0))
    gamma, beta = norm.scale_and_shift()
    if gamma is None:
        return
    normed = norm.forward(x).double().flatten(0, 1)  # γ = 1, β = 0 so far
    t = target.double().flatten(0, 1)
    if beta is None:
        gamma.copy_(_ratio((normed * t).sum(0), normed.square().sum(0)))
        return
    centred = normed - normed.mean(0)
    scale = _ratio((centred * (t - t.mean(0))).sum(0), centred.square().sum(0))
    gamma.copy_(scale)
    beta.copy_(t.mean(0) - scale * normed.mean(0))


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, 1 where both are 0: a channel that is always 0 keeps γ = 1."""
    return torch.where(
        below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), torch.ones_like(above)
    )


def change(after: Tensor, before: Tensor) -> float:
    """‖after − before‖ / ‖before‖."""
    before = before.double()
    return float((after.double() - before).norm() / before.norm().clamp(min=1e-300))
