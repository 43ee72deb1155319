"""`insert_norm`: put a norm into a trained model, with γ and β such that the model changes least.

The norm becomes a child of the module whose input or output it takes (`…out_proj.norm_gated`) and
is called by a hook. So all other weights keep their names: old checkpoints load with strict=False,
new ones hold the norm. Layers are fitted in the order of execution, so that each one compensates
for the changes of those before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES, Arm, further_norms
from mambanorm.block import Block, MambaBlock
from mambanorm.errors import shown, unknown
from mambanorm.inside import preserve_state
from mambanorm.models.language import LanguageModel
from mambanorm.norms import NORMS, check_causal, create_norm, norm_name
from mambanorm_clinic.calling import first_real_tensor, preserve_random_state, try_model
from mambanorm_clinic.mixers import Tap, mixers_of, taps_of, version_of
from mambanorm_study.basics.text import plural
from mambanorm_study.models.mamba2 import Mamba2Block

OWN_BLOCKS = (MambaBlock, Mamba2Block)
OWN_SITES = ("n1", "n2", *MORE_SITES)
SUPPORTED = (
    "this kit's Mamba blocks, transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and mamba-ssm's"
)


@dataclass(frozen=True)
class Slot:
    """Where one norm goes.

    path: of the new norm in the model. create(width): returns a new norm. insert(module): puts a
    module there and returns a function that removes it.
    """

    path: str
    create: Callable[[int], nn.Module]
    insert: Callable[[nn.Module], Callable[[], None]]


class Surgery:
    """The norms that were inserted, and how much they change the model.

    layers: one row a layer: where, the norm's path; change = ‖after − before‖/‖before‖ at its site
    on the calibration batch, while later layers see the changes of earlier norms. change: the same
    for the model's output. norms: the new modules.
    """

    def __init__(self, site: str, norm: str, slots: list[Slot], norms: list[nn.Module]):
        self.site, self.norm, self.norms = site, norm, norms
        paths = [slot.path for slot in slots]
        self.layers = pd.DataFrame({"where": paths, "change": math.nan})
        self.change = math.nan
        self._removals = [slot.insert(module) for slot, module in zip(slots, norms, strict=True)]

    def undo(self) -> None:
        """Remove the norms; the model is as it was before. A second call does nothing."""
        while self._removals:
            self._removals.pop()()

    def __repr__(self) -> str:
        worst = self.layers.loc[self.layers.change.idxmax()]
        return (
            f"{self.norm} at {self.site} of {plural(len(self.layers), 'layer')}: the model's "
            f"output changes by {100 * self.change:.3g} %, the site most in {worst['where']} "
            f"({100 * worst['change']:.3g} %)"
        )


def insert_norm(model: nn.Module, site: str, norm: str, batch: object, **options) -> Surgery:
    """Insert a norm at a site of every layer of a model, in place, calibrated on one batch.

    site: in this kit's Mamba and Mamba-2 blocks one of OWN_SITES (delta_after in Mamba alone); in
    transformers' Mamba, Falcon-Mamba and Jamba, and mamba-ssm's, n1 (before a mixer), branch
    (before the sum), gated (out_proj's input), delta, B or C; in Mamba-2 n1, delta, gated or
    branch. delta is what becomes Δ: R numbers before dt_proj in Mamba, one a head before bias and
    softplus in Mamba-2; "dt" is the same. norm: a name of NORMS; options go to `create_norm`.
    batch: as for `diagnose`, without a loss; the model is run on it in its own mode, twice. The new
    weights learn once an optimizer has them; add them to an existing one by add_param_group.

    Raises ValueError for an unknown family or site, a site that has a norm already or is computed
    in a fused kernel, a norm that is not causal in a language model, values at a site that are not
    finite on this batch, and a module that PEFT has wrapped, because merge_and_unload() would drop
    the norm. Adapters that PEFT puts later on a module that carries a norm (its path is in
    `layers`) are added outside the norm: leave it out of `target_modules`.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {shown(model)}")
    name, blocks = norm_name(norm), _own_blocks(model)
    if name == "None":
        norms = ", ".join(n for n in NORMS if n != "None")
        raise ValueError(f"'None' is no norm to insert: choose one of {norms}")
    if not blocks and not mixers_of(model):
        raise ValueError(f"{type(model).__name__} is of no family that surgery knows: {SUPPORTED}")
    if not blocks or any(isinstance(module, LanguageModel) for module in model.modules()):
        check_causal([name], "which a language model is to predict")
    site = "delta" if site == "dt" else site  # `diagnose` calls it dt, an arm delta
    slots_of = _slots_in_blocks if blocks else _slots_in_mixers
    with preserve_random_state(), preserve_state(model), torch.no_grad():
        return _operate(model, site, name, batch, slots_of(model, site, name, options))


def sites_for_norms(model: nn.Module) -> tuple[str, ...]:
    """Return the sites at which `insert_norm` can put a norm into this model; () for a family that
    it does not know.
    """
    blocks = _own_blocks(model)
    if not blocks:
        return _sites_of_mixers(model) if mixers_of(model) else ()
    return tuple(
        site
        for site in OWN_SITES
        if all(site in block.site_widths and not _norm_at(block, site) for _, block in blocks)
    )


def _own_blocks(model: nn.Module) -> list[tuple[str, Block]]:
    return [(path, part) for path, part in model.named_modules() if isinstance(part, OWN_BLOCKS)]


def _norm_at(block: Block, site: str) -> str:
    name = block.arm.sites.get(site, "None")
    return "" if name == "None" else name


def _slots_in_blocks(model: nn.Module, site: str, name: str, options: dict) -> list[Slot]:
    blocks = _own_blocks(model)
    known = [each for each in OWN_SITES if all(each in block.site_widths for _, block in blocks)]
    if site not in known:
        raise unknown("site for a norm in this kit's blocks", site, known)
    for path, block in blocks:
        present = _norm_at(block, site)
        if present:
            raise ValueError(
                f"{site} of {path} has a norm already, {present}: choose another of "
                f"{', '.join(known)}"
            )

    def create(block: Block, _width: int) -> nn.Module:
        return block.new_norm(site, name, options).to(block.A_log.device, block.A_log.dtype)

    def insert(block: Block, module: nn.Module) -> Callable[[], None]:
        before = put_norm(block, site, "None" if isinstance(module, Probe) else name, module)
        return lambda: put_norm(block, site, "None", before)

    child = site if site in ("n1", "n2") else f"more.{site}"
    return [
        Slot(f"{path}.{child}".lstrip("."), partial(create, block), partial(insert, block))
        for path, block in blocks
    ]


def _slots_in_mixers(model: nn.Module, site: str, name: str, options: dict) -> list[Slot]:
    known = _sites_of_mixers(model)
    if site not in known:
        raise unknown(f"site for a norm in {type(model).__name__}", site, known)
    slots = [_slot_in_mixer(path, mixer, site, name, options) for path, mixer in mixers_of(model)]
    modules = dict(model.named_modules())
    for slot in slots:
        if slot.path in modules:
            raise ValueError(f"{site} has a norm already, {slot.path}: undo that surgery first")
    return slots


def _sites_of_mixers(model: nn.Module) -> tuple[str, ...]:
    if all(version_of(mixer) == 1 for _, mixer in mixers_of(model)):
        return ("n1", "delta", "B", "C", "gated", "branch")
    return ("n1", "delta", "gated", "branch")


def _slot_in_mixer(path: str, mixer: nn.Module, site: str, name: str, options: dict) -> Slot:
    taps = {
        "n1": Tap("in_proj", "input"),
        "branch": Tap("out_proj"),
        **taps_of(mixer),
    }
    tap = taps["dt" if site == "delta" else site]
    linear = getattr(mixer, tap.module)
    if hasattr(linear, "merge") and hasattr(linear, "base_layer"):
        raise ValueError(
            f"{path}.{tap.module} is wrapped by PEFT, whose merge_and_unload() would drop the "
            "norm: merge first, model = model.merge_and_unload(), then insert the norm"
        )
    floats = (weight for weight in linear.parameters() if weight.is_floating_point())
    weight = next(floats, mixer.A_log)

    def create(width: int) -> nn.Module:
        return create_norm(name, width, **options).to(weight.device, weight.dtype)

    child = f"norm_{site}"
    return Slot(f"{path}.{tap.module}.{child}", create, partial(_attach, linear, child, tap))


def _attach(linear: nn.Module, child: str, tap: Tap, norm: nn.Module) -> Callable[[], None]:
    """Attach a norm to some channels of a module's input or output; return what detaches it.

    The hook finds the norm through the module that it is called with, so that a deep copy of the
    model uses its own norm.
    """
    channels = slice(*(tap.channels or (None, None)))

    def normalize(module: nn.Module, value: Tensor) -> Tensor:
        part = getattr(module, child)(value[..., channels].contiguous())
        if part.shape == value.shape:
            return part
        first, last, _ = channels.indices(value.shape[-1])
        return torch.cat([value[..., :first], part, value[..., last:]], dim=-1)

    def before(module: nn.Module, args: tuple) -> tuple:
        return normalize(module, args[0]), *args[1:]

    def after(module: nn.Module, _args: tuple, output: Tensor) -> Tensor:
        return normalize(module, output)

    linear.add_module(child, norm)
    if tap.side == "input":
        hook = linear.register_forward_pre_hook(before)
    else:
        hook = linear.register_forward_hook(after)

    def detach() -> None:
        hook.remove()
        del linear._modules[child]

    return detach


# -------------------------------------------------------------------------------------- calibration


class Probe(nn.Module):
    """Takes a norm's place and keeps its first input; a block may run twice."""

    value: Tensor | None = None

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return x."""
        if self.value is None:
            self.value = x.clone()
        return x


def _operate(model: nn.Module, site: str, name: str, batch: object, slots: list[Slot]) -> Surgery:
    """Keep the values at each slot in a first pass, and fit the norms in a second one.

    Whatever is raised, the norms are removed before.
    """
    probes = [Probe() for _ in slots]
    probing = Surgery(site, name, slots, probes)
    try:
        before = _output(model, batch)
    finally:
        probing.undo()
    for slot, probe in zip(slots, probes, strict=True):
        where = slot.path.rpartition(".")[0].removesuffix(".more")
        _check_values(site, where, probe.value)
    _check_finite("the model's output", before)
    norms = [slot.create(probe.value.shape[-1]) for slot, probe in zip(slots, probes, strict=True)]
    surgery = Surgery(site, name, slots, norms)
    hooks = [
        norm.register_forward_hook(_fit_hook(surgery, i, probe.value))
        for i, (norm, probe) in enumerate(zip(norms, probes, strict=True))
    ]
    try:
        after = _output(model, batch)
        _check_finite("the model's output behind the new norms", after)
        surgery.change = relative_change(after, before)
    except BaseException:
        surgery.undo()
        raise
    finally:
        for hook in hooks:
            hook.remove()
    return surgery


def _check_values(site: str, where: str, value: Tensor | None) -> None:
    if value is None:
        raise ValueError(
            f"{where} is not called: the model computes it in a fused kernel, which no norm can "
            "enter"
        )
    _check_finite(f"{site} at {where}", value)


def _check_finite(what: str, value: Tensor) -> None:
    rows = value.isfinite()
    if value.dim() > 1:
        rows = rows.flatten(1).all(1)
    rows = rows.flatten()
    if not rows.all():
        raise ValueError(
            f"{what} is not finite in {int((~rows).sum())} of {plural(len(rows), 'row')} of this "
            "batch, so γ and β cannot be fitted, and the model is left as it was: give rows and "
            "weights for which it is finite; clinic.diagnose says where it begins"
        )


def _output(model: nn.Module, batch: object) -> Tensor:
    output = try_model(model, batch)
    tensor = first_real_tensor(output)
    if tensor is None:
        raise ValueError(
            f"the model puts out {type(output).__name__}, in which no tensor was found"
        )
    return tensor.detach().double()


def _fit_hook(surgery: Surgery, i: int, target: Tensor) -> Callable:
    """Return a forward hook that fits a new norm to its target at its first call.

    The norm then returns its fitted output, and the change at its site is noted.
    """

    def fit(norm: nn.Module, args: tuple, _output: Tensor) -> Tensor | None:
        if not math.isnan(surgery.layers.loc[i, "change"]):
            return None
        surgery.layers.loc[i, "change"] = 0.0  # so that the next call does not fit again
        _calibrate(norm, args[0], target)
        fitted = norm(*args)
        surgery.layers.loc[i, "change"] = relative_change(fitted, target)
        return fitted

    return fit


def _calibrate(norm: nn.Module, x: Tensor, target: Tensor) -> None:
    """Fit γ and β to the target by least squares for every channel, in float64.

    With x̂ the norm of x where γ = 1 and β = 0, and t the target: γ = cov(x̂, t)/var(x̂) and β =
    mean(t) − γ·mean(x̂); for a norm without β γ = Σx̂t/Σx̂². Running statistics become those of this
    batch.
    """
    if getattr(norm, "running_mean", None) is not None:
        rows = x.double().flatten(0, 1)
        norm.running_mean.copy_(rows.mean(0))
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
    """Return above / below, and 1 where both are 0: a channel that is always 0 keeps γ = 1."""
    tiny = torch.finfo(below.dtype).tiny
    return torch.where(below > 0, above / below.clamp(min=tiny), torch.ones_like(above))


def relative_change(after: Tensor, before: Tensor) -> float:
    """Return ‖after − before‖ / ‖before‖."""
    before = before.double()
    return float((after.double() - before).norm() / before.norm().clamp(min=1e-300))


def put_norm(block: Block, site: str, name: str, norm: nn.Module | None) -> nn.Module | None:
    """Put a norm at a site of a block and its name into the block's arm. Return the previous one.

    At a further site, None removes the norm.
    """
    if site in ("n1", "n2"):
        previous: nn.Module | None = getattr(block, site)
        setattr(block, site, norm)
        norms = {**block.arm.sites, site: name}
        block.arm = Arm(norms["n1"], norms["n2"], block.arm.more)
        return previous
    previous = dict(block.more).get(site)
    if norm is not None:
        block.more[site] = norm
    elif previous is not None:
        del block.more[site]
    more = further_norms({**dict(block.arm.more), site: name})
    block.arm = block.arm._replace(more=more)
    return previous
