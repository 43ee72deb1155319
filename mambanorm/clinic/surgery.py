"""`insert_norm`: puts a norm into a trained model, with γ and β such that the model changes least; `undo` takes it out.

Where it can stand: before a mixer (n1), on its branch before the sum (branch), on what out_proj takes in (gated), on
the numbers that become Δ (delta, which `diagnose` calls dt), and in Mamba-1 on B and C, as Jamba has all three. In this
kit's own blocks: at any site of an arm where none stands, delta_after among them.

The norm becomes a child of the module whose input or output it takes (`…out_proj.norm_gated`), called by a hook. So
every other weight keeps its name: old checkpoints load with strict=False, new ones hold the norm.

Calibration: at each site x̂ is the norm of what arrives there, with γ = 1 and β = 0, and t what stood there before the
surgery. Least squares for every channel: γ = cov(x̂, t)/var(x̂), β = mean(t) − γ·mean(x̂); without β γ = Σx̂t/Σx̂².
Layers are fitted in the order of execution, so that each makes up for what those before it have changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.advice.given import first_tensor
from mambanorm.advice.model_check import as_it_was
from mambanorm.arms import MORE_SITES
from mambanorm.basics.checks import shown
from mambanorm.basics.errors import unknown
from mambanorm.basics.text import plural
from mambanorm.block import Block, MambaBlock
from mambanorm.clinic.passing import check_device, run
from mambanorm.clinic.sites import mixers_of, version_of
from mambanorm.diagnostics import left_as_found
from mambanorm.diagnostics.nonfinite import tensors_in
from mambanorm.models.language import LanguageModel
from mambanorm.models.mamba2 import Mamba2Block
from mambanorm.norms import NORMS, check_causal, create_norm, norm_name

OWN_BLOCKS = (MambaBlock, Mamba2Block)
OWN_SITES = ("n1", "n2", *MORE_SITES)
SAME = {"dt": "delta"}
"""What `diagnose` calls other than an arm does."""
TO_PREDICT = "which a language model is to predict"


@dataclass(frozen=True)
class Seat:
    """Where one norm goes: the module that gets it, whether it takes the module's input or its output, and channels."""

    path: str
    module: nn.Module
    side: str
    channels: tuple[int, int] | None
    width: int


class Surgery:
    """What was done. layers: one row a layer: where, the norm's path; change = ‖after − before‖/‖before‖ at its site,
    on the calibration batch, later layers seeing what earlier norms have changed. change: the same of the model's
    output. norms: the new modules.
    """

    def __init__(self, site: str, norm: str, paths: list[str], norms: list[nn.Module], undo: list[Callable[[], None]]):
        self.site, self.norm, self.norms, self._undo = site, norm, norms, undo
        self.layers = pd.DataFrame({"where": paths, "change": math.nan})
        self.change = math.nan

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

    site: of this kit's Mamba and Mamba-2 blocks one of OWN_SITES (delta_after of Mamba alone); of transformers' Mamba,
    Falcon-Mamba and Jamba, and mamba-ssm's, n1, delta, B, C, gated or branch; of Mamba-2 n1, delta, gated or branch.
    delta is what becomes Δ: R numbers before dt_proj in Mamba, one a head before bias and softplus in Mamba-2; "dt" is
    the same. norm: a name of NORMS; options go to `create_norm`. batch: as for `diagnose`, without a loss; the model is
    run on it in its own mode, three times. The new weights learn once an optimizer has them, which one made before does
    not: add_param_group. ValueError for a family that is not known, an unknown site, one where a norm stands already, a
    norm that is not causal in a language model, and a site that the model computes in a fused kernel.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    name, blocks = norm_name(norm), [m for m in model.modules() if isinstance(m, OWN_BLOCKS)]
    if name == "None":
        raise ValueError(f"'None' is no norm to insert: choose one of {', '.join(n for n in NORMS if n != 'None')}")
    if not blocks and not mixers_of(model):
        known = "this kit's Mamba blocks, transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and mamba-ssm's"
        raise ValueError(f"{type(model).__name__} is of no family that surgery knows: {known}")
    if not blocks or any(isinstance(module, LanguageModel) for module in model.modules()):
        check_causal([name], TO_PREDICT)
    check_device(model, batch)
    with as_it_was(), left_as_found(model), torch.no_grad():
        operate = _into_blocks if blocks else _into_mixers
        return operate(model, SAME.get(site, site), name, batch, options)


def sites_for_norms(model: nn.Module) -> tuple[str, ...]:
    """Sites at which `insert_norm` can put a norm into this model; none of a family that it does not know."""
    if blocks := [module for module in model.modules() if isinstance(module, OWN_BLOCKS)]:
        free = [{s for s in block.site_widths if block.arm.sites.get(s, "None") == "None"} for block in blocks]
        return tuple(site for site in OWN_SITES if all(site in some for some in free))
    return _sites_of(model) if mixers_of(model) else ()


# ------------------------------------------------------------------------------------------------ this kit's own blocks


def _into_blocks(model: nn.Module, site: str, name: str, batch: object, options: dict) -> Surgery:
    blocks = [(path, block) for path, block in model.named_modules() if isinstance(block, OWN_BLOCKS)]
    known = [name for name in OWN_SITES if all(name in block.site_widths for _, block in blocks)]
    if site not in known:
        raise unknown("site for a norm in this kit's blocks", site, known)
    if taken := next((pair for pair in blocks if pair[1].arm.sites.get(site, "None") != "None"), None):
        standing = taken[1].arm.sites[site]
        raise ValueError(f"{site} of {taken[0]} has a norm already, {standing}: choose another of {', '.join(known)}")
    norms = [block.new_norm(site, name, options).to(block.A_log.device, block.A_log.dtype) for _, block in blocks]
    before, targets = _unnormed(model, batch, site, [block for _, block in blocks])
    undo = [_set_norm(block, site, name, norm) for (_, block), norm in zip(blocks, norms, strict=True)]
    place = site if site in ("n1", "n2") else f"more.{site}"
    paths = [f"{path}.{place}".lstrip(".") for path, _ in blocks]
    return _calibrated(model, batch, Surgery(site, name, paths, norms, undo), before, targets)


class Keeping(nn.Module):
    """Stands in a norm's place and keeps what comes there first, of a block that runs twice."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.kept = x.clone() if self.kept is None else self.kept
        return x


def _unnormed(model: nn.Module, batch: object, site: str, blocks: list[Block]) -> tuple[Tensor, list[Tensor]]:
    """The model's output before the surgery, and what stands at the site of each block."""
    keeping = [Keeping() for _ in blocks]
    undo = [_set_norm(block, site, "None", module) for block, module in zip(blocks, keeping, strict=True)]
    try:
        return _output(model, batch), [module.kept for module in keeping]
    finally:
        for put_back in undo:
            put_back()


def _set_norm(block: Block, site: str, name: str, norm: nn.Module) -> Callable[[], None]:
    """Puts a norm into a block and returns what puts the old one back."""
    before = block.put_norm(site, name, norm)
    return lambda: block.put_norm(site, "None", before)


# ------------------------------------------------------------------------------------------------------- other families


def _into_mixers(model: nn.Module, site: str, name: str, batch: object, options: dict) -> Surgery:
    known = _sites_of(model)
    if site not in known:
        raise unknown(f"site for a norm in {type(model).__name__}", site, known)
    seats = [_seat(path, mixer, site) for path, mixer in mixers_of(model)]
    child = f"norm_{site}"
    if taken := next((seat.path for seat in seats if child in seat.module._modules), None):
        raise ValueError(f"{site} has a norm already, {taken}.{child}: undo that surgery first")
    norms = [_new(name, seat.width, next(seat.module.parameters()), options) for seat in seats]
    before, targets = _clean(model, batch, seats)
    undo = [_hang(seat, child, norm) for seat, norm in zip(seats, norms, strict=True)]
    paths = [f"{seat.path}.{child}" for seat in seats]
    return _calibrated(model, batch, Surgery(site, name, paths, norms, undo), before, targets)


def _sites_of(model: nn.Module) -> tuple[str, ...]:
    every = all(version_of(mixer) == 1 for _, mixer in mixers_of(model))
    return ("n1", "delta", "B", "C", "gated", "branch") if every else ("n1", "delta", "gated", "branch")


def _seat(path: str, mixer: nn.Module, site: str) -> Seat:
    """The module and side of a site, of one mixer."""
    if site in ("n1", "gated"):
        part = "in_proj" if site == "n1" else "out_proj"
        linear = getattr(mixer, part)
        return Seat(f"{path}.{part}", linear, "input", None, linear.weight.shape[1])
    if site == "branch":
        return Seat(f"{path}.out_proj", mixer.out_proj, "output", None, mixer.out_proj.weight.shape[0])
    if version_of(mixer) == 2:
        wide, heads = mixer.in_proj.weight.shape[0], len(mixer.A_log)
        return Seat(f"{path}.in_proj", mixer.in_proj, "output", (wide - heads, wide), heads)
    R, N = mixer.dt_proj.weight.shape[-1], mixer.A_log.shape[-1]
    first, last = {"delta": (0, R), "B": (R, R + N), "C": (R + N, R + 2 * N)}[site]
    return Seat(f"{path}.x_proj", mixer.x_proj, "output", (first, last), last - first)


def _hang(seat: Seat, child: str, norm: nn.Module) -> Callable[[], None]:
    """Hangs a norm on a module's input or output; returns what takes it off.

    The hook finds the norm through the module it is called with, so that a deep copy of the model uses its own.
    """

    def normed(module: nn.Module, value: Tensor) -> Tensor:
        if seat.channels is None:
            return getattr(module, child)(value)
        first, last = seat.channels
        inside = getattr(module, child)(value[..., first:last].contiguous())
        return torch.cat([value[..., :first], inside, value[..., last:]], dim=-1)

    seat.module.add_module(child, norm)
    if seat.side == "input":
        hook = seat.module.register_forward_pre_hook(lambda module, args: (normed(module, args[0]), *args[1:]))
    else:
        hook = seat.module.register_forward_hook(lambda module, _args, output: normed(module, output))

    def off() -> None:
        hook.remove()
        del seat.module._modules[child]

    return off


# ---------------------------------------------------------------------------------------------------------- calibration


def _new(name: str, width: int, like: Tensor, options: dict) -> nn.Module:
    """A fresh norm beside the weights of its seat."""
    return create_norm(name, width, **options).to(like.device, like.dtype)


def _clean(model: nn.Module, batch: object, seats: list[Seat]) -> tuple[Tensor, list[Tensor]]:
    """The model's output before the surgery, and what stands at each seat. ValueError for a seat that does not run."""
    targets: dict[int, Tensor] = {}
    hooks = []
    for i, seat in enumerate(seats):

        def note(value: Tensor, i=i, seat=seat) -> None:
            part = value if seat.channels is None else value[..., slice(*seat.channels)]
            targets.setdefault(i, part.detach().clone())

        if seat.side == "input":
            hooks.append(seat.module.register_forward_pre_hook(lambda _m, args, note=note: note(args[0])))
        else:
            hooks.append(seat.module.register_forward_hook(lambda _m, _args, output, note=note: note(output)))
    try:
        output = _output(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    silent = next((seat.path for i, seat in enumerate(seats) if i not in targets), None)
    if silent is not None:
        raise ValueError(f"{silent} is not called: the model computes it in a fused kernel, which no norm can enter")
    if (shape := targets[0].shape) and len(shape) != 3:
        raise ValueError(f"{seats[0].path} takes {tuple(shape)}; a norm needs (B, L, D) there")
    return output, [targets[i] for i in range(len(seats))]


def _output(model: nn.Module, batch: object) -> Tensor:
    given = run(model, batch)
    found = next((t for t in tensors_in(given) if t.is_floating_point()), first_tensor(given))
    if found is None:
        raise ValueError(f"the model puts out {type(given).__name__}, in which no tensor was found")
    return found.detach().double()


def _fitting(norm: nn.Module, target: Tensor) -> Callable:
    """A hook that fits a fresh norm to its target at its first call, and lets it give the fitted output."""
    done = False

    def fit(_norm, args, output) -> Tensor | None:
        nonlocal done
        if done:
            return None
        done = True
        _calibrate(norm, args[0], target)
        return norm(*args)

    return fit


def _calibrate(norm: nn.Module, x: Tensor, target: Tensor) -> None:
    """γ and β by least squares, channel by channel, in float64; running statistics become those of this batch."""
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
        scale, shift = ratio((normed * t).sum(0), normed.square().sum(0)), None
    else:
        centred = normed - normed.mean(0)
        scale = ratio((centred * (t - t.mean(0))).sum(0), centred.square().sum(0))
        shift = t.mean(0) - scale * normed.mean(0)
        beta.copy_(shift)
    gamma.copy_(scale)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """above / below, 1 where both are 0: a channel that is always 0 keeps γ = 1."""
    return torch.where(below > 0, above / below.clamp(min=torch.finfo(below.dtype).tiny), torch.ones_like(above))


def _calibrated(model: nn.Module, batch: object, done: Surgery, before: Tensor, targets: list[Tensor]) -> Surgery:
    """One pass that fits the norms, and one that sees what has changed; whatever goes wrong, the norms come out."""
    try:
        with _hooked(done.norms, lambda i, norm: _fitting(norm, targets[i])):
            run(model, batch)
        seen: dict[int, float] = {}
        with _hooked(done.norms, lambda i, _norm: _noting(seen, i, targets[i])):
            done.change = change(_output(model, batch), before)
        done.layers["change"] = [seen[i] for i in range(len(done.norms))]
    except BaseException:
        done.undo()
        raise
    return done


@contextmanager
def _hooked(norms: list[nn.Module], make: Callable) -> Iterator[None]:
    hooks = [norm.register_forward_hook(make(i, norm)) for i, norm in enumerate(norms)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _noting(seen: dict[int, float], i: int, target: Tensor) -> Callable:
    def note(_norm, _args, output: Tensor) -> None:
        seen.setdefault(i, change(output, target))

    return note


def change(after: Tensor, before: Tensor) -> float:
    """‖after − before‖ / ‖before‖."""
    before = before.double()
    return float((after.double() - before).norm() / before.norm().clamp(min=1e-300))
