"""`insert_norm`: insert a norm into a trained model, with γ and β that change the model least.

In a mixer of another library the norm becomes a child (such as `…out_proj.norm_gated`) of the
module whose input or output is to be normalized, and a hook on this module calls the norm. All
other weights keep their names. So old checkpoints load with strict=False, and new checkpoints also
contain the norm. γ and β are fitted layer by layer in the order of execution, so that the norm of
each layer compensates for the changes that the norms of earlier layers make.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES, Arm
from mambanorm.block import Block, MambaBlock
from mambanorm.errors import unknown
from mambanorm.inside import preserve_state
from mambanorm.models.language import LanguageModel
from mambanorm.norms import check_causal, create_norm, registered_name
from mambanorm_clinic.calling import call_model, first_tensor
from mambanorm_clinic.mixers import SiteLocation, join, locations_in, mixers_of, version_of
from mambanorm_study.basics.text import plural
from mambanorm_study.models.mamba2 import Mamba2Block

KIT_SITES = ("n1", "n2", *MORE_SITES)


@dataclass(frozen=True)
class Slot:
    """A position in a model at which a norm can be inserted.

    path: the path that the norm will have in the model. create(width): returns a new norm for
    `width` channels. insert(module): inserts the norm or its placeholder at this position, and
    returns a function that removes it.
    """

    path: str
    create: Callable[[int], nn.Module]
    insert: Callable[[nn.Module], Callable[[], None]]


@dataclass(repr=False, eq=False)
class Surgery:
    """The norms that `insert_norm` inserted, and how much they change the model.

    site, norm: the name of the site and of the norm. norms: the new modules. layers: a DataFrame
    with one row per layer. Columns: where (the path of the norm); change (the relative change
    ‖after − before‖/‖before‖ at the site on the batch that γ and β were fitted to, when the norms
    of the earlier layers are already inserted). change: the relative change of the model's output
    on that batch. removals: functions that remove the norms (see `undo`).
    """

    site: str
    norm: str
    layers: pd.DataFrame
    change: float
    norms: list[nn.Module]
    removals: list[Callable[[], None]]

    def undo(self) -> None:
        """Remove the norms, which restores the original model. A second call does nothing."""
        while self.removals:
            self.removals.pop()()

    def __repr__(self) -> str:
        worst = self.layers.loc[self.layers.change.idxmax()]
        return (
            f"{self.norm} at {self.site} of {plural(len(self.layers), 'layer')}: the model's "
            f"output changes by {100 * self.change:.3g} %, the values at the site change most in "
            f"{worst['where']} ({100 * worst['change']:.3g} %)"
        )


def insert_norm(model: nn.Module, site: str, norm: str, batch: object, **options) -> Surgery:
    """Insert a norm at one site of every layer of a model, and fit γ and β on one batch.

    The model is changed in place. Returns a Surgery, which describes the change and can undo it. If
    an existing optimizer is to train the new weights, pass them to `optimizer.add_param_group`.

    site: in this kit's Mamba and Mamba-2 blocks, one of KIT_SITES (delta_after only in Mamba). In
    the Mamba, Falcon-Mamba and Jamba of transformers and the Mamba of mamba-ssm: n1 (the mixer's
    input), branch (the mixer's output), gated (out_proj's input), delta, B or C. In the Mamba-2 of
    the two libraries: n1, branch, gated or delta. At delta, also called "dt", the norm is applied
    to the values from which Δ is computed: in Mamba the R channels before dt_proj, in Mamba-2 one
    channel per head before bias and softplus. norm: a name in NORMS. batch: as for `diagnose`; the
    model runs on the batch twice, in its current mode. options: arguments of `create_norm`.

    Raises ValueError for a model of an unknown kind; for a site that is unknown, already has a norm
    or is computed in a fused kernel; for a non-causal norm in a language model; for values that are
    not finite on this batch; and for a module that PEFT has wrapped, because merge_and_unload()
    would drop the norm. If PEFT wraps a module after a norm was inserted there, PEFT's adapter
    bypasses the norm: leave the modules of `Surgery.layers` out of PEFT's `target_modules`.
    """
    name = registered_name(norm)
    site = "delta" if site == "dt" else site  # the tables of `diagnose` call this site dt
    blocks = _kit_blocks(model)
    mixers = mixers_of(model)
    free_sites = sites_for_norms(model)
    if not blocks and not mixers:
        raise ValueError(
            f"norms cannot be inserted into {type(model).__name__}, only into this kit's Mamba "
            "blocks, transformers' Mamba, Mamba-2, Falcon-Mamba and Jamba, and mamba-ssm's Mamba "
            "and Mamba-2"
        )
    if site not in free_sites:
        raise unknown(f"site without a norm in {type(model).__name__}", site, free_sites)
    if not blocks or any(isinstance(module, LanguageModel) for module in model.modules()):
        check_causal([name], "which a language model is to predict")
    make_slot = _slot_in_block if blocks else _slot_in_mixer
    slots = [make_slot(path, part, site, name, options) for path, part in blocks or mixers]
    with torch.random.fork_rng(), preserve_state(model), torch.no_grad():
        return _insert_fitted_norms(model, site, name, batch, slots)


def sites_for_norms(model: nn.Module) -> tuple[str, ...]:
    """Return the sites at which `insert_norm` can insert a norm into a model, () if there are none.

    Raises ValueError if `model` is not a torch.nn.Module.
    """
    mixers = [mixer for _, mixer in mixers_of(model)]
    blocks = [block for _, block in _kit_blocks(model)]
    if blocks:
        return tuple(
            site
            for site in KIT_SITES
            if all(
                site in block.site_widths and block.arm.sites.get(site, "None") == "None"
                for block in blocks
            )
        )
    scan_inputs = ("B", "C") if all(version_of(mixer) == 1 for mixer in mixers) else ()
    sites = ("n1", "delta", *scan_inputs, "gated", "branch") if mixers else ()
    names = {path.rpartition(".")[2] for mixer in mixers for path, _ in mixer.named_modules()}
    return tuple(site for site in sites if f"norm_{site}" not in names)


def _kit_blocks(model: nn.Module) -> list[tuple[str, Block]]:
    return [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, MambaBlock | Mamba2Block)
    ]


def _slot_in_block(path: str, block: Block, site: str, name: str, options: dict) -> Slot:
    return Slot(
        path=join(path, site if site in ("n1", "n2") else f"more.{site}"),
        create=lambda _: block.new_norm(site, name, options).to(block.A_log),
        insert=partial(_put_norm, block, site, name),
    )


def _put_norm(block: Block, site: str, name: str, norm: nn.Module) -> Callable[[], None]:
    """Insert a norm at a site of a block, and write the norm's name into the block's arm.

    The arm is the record of the norms in a block, such as RMSN>SSM>None. name: the registered name
    of the norm. Returns a function that removes the norm from the block and its name from the arm.
    """
    owner = block if site in ("n1", "n2") else block.more
    previous = owner._modules.get(site)

    def set_name_in_arm(new_name: str) -> None:
        sites = {**block.arm.sites, site: new_name}
        block.arm = Arm(sites.pop("n1"), sites.pop("n2"), sites)

    def remove() -> None:
        if previous is None:
            del owner._modules[site]
        else:
            owner.add_module(site, previous)
        set_name_in_arm("None")

    owner.add_module(site, norm)
    set_name_in_arm(name)
    return remove


def _slot_in_mixer(path: str, mixer: nn.Module, site: str, name: str, options: dict) -> Slot:
    locations = {location.site: location for location in locations_in(mixer)}
    locations |= {
        "n1": SiteLocation("n1", "in_proj", "input"),
        "branch": SiteLocation("branch", "out_proj"),
    }
    location = locations["dt" if site == "delta" else site]
    linear = getattr(mixer, location.module)
    if hasattr(linear, "merge") and hasattr(linear, "base_layer"):
        raise ValueError(
            f"{path}.{location.module} is wrapped by PEFT, whose merge_and_unload() would drop the "
            "norm: merge first, model = model.merge_and_unload(), then insert the norm"
        )
    child = f"norm_{site}"
    weight = next((w for w in linear.parameters() if w.is_floating_point()), mixer.A_log)
    return Slot(
        path=join(path, location.module, child),
        create=lambda width: create_norm(name, width, **options).to(weight),
        insert=partial(_attach, linear, child, location),
    )


def _attach(
    linear: nn.Module, child: str, location: SiteLocation, norm: nn.Module
) -> Callable[[], None]:
    """Make a norm a child of a linear layer, and apply the norm to the layer's input or output.

    child: the name of the child. location: tells whether the input or the output is normalized, and
    which of its channels. Returns a function that removes the norm. The hook looks up the norm in
    the layer that is being called, so that a deep copy of the model uses the copied norm.
    """
    start, stop = location.channels or (None, None)

    def normalize(module: nn.Module, value: Tensor) -> Tensor:
        normalized = getattr(module, child)(value[..., start:stop].contiguous())
        channels = range(value.shape[-1])[start:stop]
        parts = value[..., : channels.start], normalized, value[..., channels.stop :]
        return torch.cat(parts, dim=-1)

    linear.add_module(child, norm)
    if location.side == "input":
        hook = linear.register_forward_pre_hook(
            lambda module, args: (normalize(module, args[0]), *args[1:])
        )
    else:
        hook = linear.register_forward_hook(lambda module, _, output: normalize(module, output))

    def detach() -> None:
        hook.remove()
        del linear._modules[child]

    return detach


# -------------------------------------------------------------------------------------- calibration


class Fitting(nn.Module):
    """A placeholder that is inserted in place of a norm, to fit the norm.

    The first call stores its input as the target. The caller then sets the attribute `norm`. The
    next call fits γ and β of `norm`, so that the norm's output is close to the target.

    change: ‖after − before‖/‖before‖ at the site, NaN until the norm is fitted.
    """

    def __init__(self):
        super().__init__()
        self.target: Tensor | None = None
        self.norm: nn.Module | None = None
        self.change = math.nan

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return x if `norm` is not set yet, and the output of the fitted norm if it is set."""
        if self.target is None:
            self.target = x.clone()
        if self.norm is None:
            return x
        if math.isnan(self.change):
            _calibrate(self.norm, x, self.target)
            self.change = relative_change(self.norm(x), self.target)
        return self.norm(x)


def _insert_fitted_norms(
    model: nn.Module, site: str, name: str, batch: object, slots: list[Slot]
) -> Surgery:
    """Insert one norm into each slot and return the Surgery.

    A first pass records the values at the site without norms. A second pass fits each norm, so that
    its output is close to these values.
    """
    fittings = [Fitting() for _ in slots]
    before = _output_with(model, batch, slots, fittings)
    for slot, fitting in zip(slots, fittings, strict=True):
        where = slot.path.rpartition(".")[0].removesuffix(".more")
        if fitting.target is None:
            raise ValueError(
                f"{where} is not called: the model computes it in a fused kernel, into which no "
                "norm can be inserted"
            )
        _check_finite(f"{site} at {where}", fitting.target)
        fitting.norm = slot.create(fitting.target.shape[-1])
    _check_finite("the model's output", before)
    after = _output_with(model, batch, slots, fittings)
    layers = pd.DataFrame(
        {
            "where": [slot.path for slot in slots],
            "change": [fitting.change for fitting in fittings],
        }
    )
    norms = [fitting.norm for fitting in fittings]
    removals = [slot.insert(norm) for slot, norm in zip(slots, norms, strict=True)]
    return Surgery(site, name, layers, relative_change(after, before), norms, removals)


def _output_with(
    model: nn.Module, batch: object, slots: list[Slot], modules: list[nn.Module]
) -> Tensor:
    """Insert each module into its slot, run the model, and remove the modules.

    Returns the first floating-point tensor of the model's output, in float64.
    """
    removals = [slot.insert(module) for slot, module in zip(slots, modules, strict=True)]
    try:
        output = first_tensor(call_model(model, batch), skip_integers=True)
    finally:
        for remove in removals:
            remove()
    return output.detach().double()


def _check_finite(description: str, value: Tensor) -> None:
    if not value.isfinite().all():
        raise ValueError(
            f"{description} is not finite on this batch, so γ and β cannot be fitted, and the "
            "model was not changed: use a batch and weights for which all values are finite; "
            "clinic.diagnose finds the first value that is not finite"
        )


def _calibrate(norm: nn.Module, x: Tensor, target: Tensor) -> None:
    """Set γ and β of a norm so that its output for x is closest to the target.

    Let x̂ be the norm's output for x with γ = 1 and β = 0, and t the target. The least-squares
    solution for each channel, in float64, is γ = cov(x̂, t) / var(x̂) and β = mean(t) − γ·mean(x̂).
    For a norm without β the solution is γ = Σx̂t / Σx̂². The norm's running statistics, if any, are
    set to the statistics of x.
    """
    if getattr(norm, "running_mean", None) is not None:
        rows = x.double().flatten(0, 1)
        norm.running_mean.copy_(rows.mean(0))
        norm.running_var.copy_(rows.var(0))
    gamma, beta = norm.scale_and_shift()
    if gamma is None:
        return
    normed = norm(x).double().flatten(0, 1)
    t = target.double().flatten(0, 1)
    mean, target_mean = (0.0, 0.0) if beta is None else (normed.mean(0), t.mean(0))
    covariance = ((normed - mean) * (t - target_mean)).sum(0)
    variance = (normed - mean).square().sum(0)
    scale = (covariance / variance).nan_to_num(nan=1.0)  # a channel that is always 0 keeps γ = 1
    gamma.copy_(scale)
    if beta is not None:
        beta.copy_(target_mean - scale * mean)


def relative_change(after: Tensor, before: Tensor) -> float:
    """Return ‖after − before‖ / ‖before‖, with L2 norms over all elements."""
    before = before.double()
    return float((after.double() - before).norm() / before.norm().clamp(min=1e-300))
