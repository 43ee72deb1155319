"""Looking into a model: how it is run on a batch, and what it tells while it runs. Hooks in, data out.

The sites are those of SITES (arms.py), of a Transformer those of TRANSFORMER_SITES (models/transformer.py); a
NormSelector shows its weights as "selector". A model of your own works too, if it is made of these blocks.

A batch is an input, a tuple or a list whose first part is the input and whose second the targets, or a dict of keyword
arguments in which the targets go by one of the names of TARGETS.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import SITES
from mambanorm.basics.checks import shown
from mambanorm.basics.errors import unknown
from mambanorm.block import Block
from mambanorm.models.transformer import TRANSFORMER_SITES, TransformerBlock
from mambanorm.norms import NormSelector

BLOCKS = Block | TransformerBlock
ALL_SITES = tuple(dict.fromkeys([*SITES, *TRANSFORMER_SITES, "selector"]))
TARGETS = ("labels", "label", "targets", "target", "y")


def blocks_of(model: nn.Module) -> list[tuple[str, BLOCKS]]:
    """Names and blocks in order of depth. ValueError for what is no torch module."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is a torch.nn.Module, got {shown(model)}")
    return [(name, module) for name, module in model.named_modules() if isinstance(module, BLOCKS)]


@contextmanager
def inspected(
    model: nn.Module,
    *,
    at: Callable[[str, int, str, Tensor], None] | None = None,
    entered: Callable[[str, nn.Module, list], None] | None = None,
    left: Callable[[str, nn.Module, object], None] | None = None,
) -> Iterator[None]:
    """While open, the model tells what it computes. All that looks into a model, here and in the clinic, looks by this.

    at(block, depth, site, value): each site of each block of this kit, and "selector" of each NormSelector in it, by
    the observer that blocks have; what observed before is back afterwards. entered(path, module, given): before any
    module runs, with its positional and keyword arguments; left(path, module, output): after it.
    """
    hooks, observed = [], []
    for path, module in model.named_modules():
        if entered is not None:
            hook = lambda module, args, named, path=path: entered(path, module, [*args, *named.values()])  # noqa: E731
            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if left is not None:
            hooks.append(module.register_forward_hook(lambda module, _args, out, path=path: left(path, module, out)))
    for depth, (name, block) in enumerate(blocks_of(model) if at is not None else (), start=1):
        for path, part in block.named_modules(prefix=name):
            if part is block or isinstance(part, NormSelector):
                observed.append((part, part.observer))
                part.observer = partial(at, path, depth)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, observer in observed:
            module.observer = observer


class Recorder:
    """What `record_sites` has seen: one entry for each block and site, in the order of computation."""

    def __init__(self, sites: Iterable[str]):
        self.sites = frozenset(sites)
        self.seen: list[tuple[str, int, str, Tensor]] = []

    def see(self, name: str, depth: int, site: str, value: Tensor) -> None:
        if site in self.sites:
            self.seen.append((name, depth, site, value.detach()))

    def tensors(self, site: str) -> list[Tensor]:
        """That site's tensors, by depth."""
        return [value for _, _, seen, value in self.seen if seen == site]

    def frame(self) -> pd.DataFrame:
        """One row a block and site: rms, max_abs, p999, kurtosis (normal = 3), nonfinite (fraction)."""
        return pd.DataFrame([dict(block=block, depth=d, site=site) | describe(x) for block, d, site, x in self.seen])

    def first_nonfinite(self) -> str | None:
        """`blocks.3.scan`: the first site in the order of computation that holds a non-finite value."""
        return next((f"{name}.{site}" for name, _, site, value in self.seen if not value.isfinite().all()), None)


@contextmanager
def record_sites(model: nn.Module, sites: str | Iterable[str] = ALL_SITES) -> Iterator[Recorder]:
    """Records the named site or sites of every block while open. Nothing else changes.

    Works with every model of the kit, called as it always is; values are (B, L, …), of an image L = H·W positions.
    Raises ValueError if the model has no Mamba, Mamba-2, VSS or Transformer block, and for a site that is unknown or
    that none of its blocks has.
    """
    sites = (sites,) if isinstance(sites, str) else tuple(sites)
    for site in sites:
        if site not in ALL_SITES:
            raise unknown("site", site, ALL_SITES)
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(
            f"{type(model).__name__} holds no MambaBlock, Mamba2Block, VSSBlock or TransformerBlock, so there is "
            "nothing to record: a Mamba language model of mamba-ssm or transformers becomes one of this kit by "
            "load_mamba_checkpoint(model.state_dict())"
        )
    kinds = (TRANSFORMER_SITES if isinstance(block, TransformerBlock) else SITES for _, block in blocks)
    there = {"selector"}.union(*kinds)
    if not there & {*sites}:
        raise unknown(f"site of {type(model).__name__}", ", ".join(sites), [s for s in ALL_SITES if s in there])
    recorder = Recorder(sites)
    with inspected(model, at=recorder.see):
        yield recorder


def norm_of(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """‖value‖₂ as a tensor, which waits for nothing; of half precision in float32."""
    narrow = value.dtype in (torch.float16, torch.bfloat16)
    return torch.linalg.vector_norm(value, dtype=dtype or (torch.float32 if narrow else None))


def describe(value: Tensor) -> dict[str, float]:
    """rms, max_abs, p999 (the 99.9 % quantile of the magnitude) and kurtosis (of normal values 3) of the finite values,
    in float64, and nonfinite, the share of the others."""
    flat = value.detach().flatten()
    finite = flat[flat.isfinite()].double()
    nonfinite = 1 - len(finite) / max(len(flat), 1)
    if not len(finite):
        return dict.fromkeys(("rms", "max_abs", "p999", "kurtosis"), math.nan) | dict(nonfinite=nonfinite)
    squares = (finite - finite.mean()).square()
    var = float(squares.mean())
    return dict(
        rms=float(finite.square().mean().sqrt()),
        max_abs=float(finite.abs().max()),
        p999=float(np.quantile(finite.abs().cpu().numpy(), 0.999)),
        kurtosis=float(squares.square().mean()) / var**2 if var > 0 else math.nan,
        nonfinite=nonfinite,
    )


# ---------------------------------------------------------------------------------------------------------------------
# any model on a batch, without a trace


def tensors_in(value: object) -> Iterator[Tensor]:
    """The tensors of a value: itself, or of a tuple, list, dict or dataclass, in order and whatever the depth."""
    if isinstance(value, Tensor):
        yield value
        return
    parts = value if isinstance(value, tuple | list) else ()
    if isinstance(value, dict):
        parts = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in fields(value)]
    for part in parts:
        yield from tensors_in(part)


def first_tensor(value: object, *, real: bool = False) -> Tensor | None:
    """The first tensor of a value; real: the first of real numbers, if there is one."""
    found = list(tensors_in(value))
    wanted = [tensor for tensor in found if tensor.is_floating_point()] if real else []
    return next(iter([*wanted, *found]), None)


def split(batch: object) -> tuple[object, object]:
    """Input and targets of a batch; None for targets that it has not."""
    if isinstance(batch, dict):
        named = next((name for name in TARGETS if name in batch), None)
        return {name: part for name, part in batch.items() if name != named}, batch.get(named)
    if isinstance(batch, tuple | list):
        return batch[0], batch[1] if len(batch) > 1 else None
    return batch, None


def check_targets(batch: object) -> None:
    """ValueError where a loss is given and the batch has no targets for it."""
    if split(batch)[1] is None:
        ways = f"(input, targets), or a dict with one of {', '.join(TARGETS)}"
        raise ValueError(f"loss needs targets, and the batch has none: give {ways}")


def call(model: nn.Module, batch: object) -> object:
    """model(input): a dict is handed over as keyword arguments, without its targets."""
    given, _ = split(batch)
    return model(**given) if isinstance(given, dict) else model(given)


def run(model: nn.Module, batch: object, *, with_targets: bool = False) -> object:
    """The model's output for a batch; a dict goes in with its targets if asked. ValueError if the model refuses it."""
    try:
        with eagerly():
            return model(**batch) if with_targets and isinstance(batch, dict) else call(model, batch)
    except Exception as error:  # whatever the model's code raises
        given = ", ".join(f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in tensors_in(batch)) or shown(batch)
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{type(model).__name__} refuses this batch ({given}): {why}") from error


def eagerly() -> AbstractContextManager:
    """While open, compiled models run as they are written, for hooks do not run in what torch.compile has compiled."""
    compiles = "torch._dynamo" in sys.modules  # importing it takes seconds
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


@contextmanager
def as_it_was() -> Iterator[None]:
    """Random states of torch, NumPy and Python as they were, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Restores the model's mode and the buffers that it has, whatever happens inside."""
    training = {module: module.training for module in model.modules()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for name, value in model.named_buffers():
            if name in buffers:  # a norm that was put in meanwhile brings its own
                value.copy_(buffers[name])


record = record_sites
"""The older name; the command `record` is another thing: it records results."""
