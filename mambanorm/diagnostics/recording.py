"""Looking into a model: hooks in, data out.

    inspected(model)        while it is open, every module and every site of every block tells what it computes
    record_sites(model)     every site of every block while it is open: a frame, or tensors
    left_as_found(model)    restores a model's mode and buffers
    blocks_of(model)        the Mamba, Mamba-2, VSS and Transformer blocks of any model, by depth

The sites are those of SITES (arms.py), of a Transformer those of TRANSFORMER_SITES (models/transformer.py); a
NormSelector shows its weights as "selector". A model of your own works too, if it is made of these blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import SITES
from mambanorm.basics.checks import check_lengths, shown
from mambanorm.basics.errors import unknown
from mambanorm.block import Block
from mambanorm.models.transformer import TRANSFORMER_SITES, TransformerBlock
from mambanorm.norms import NormSelector

BLOCKS = Block | TransformerBlock
ALL_SITES = tuple(dict.fromkeys([*SITES, *TRANSFORMER_SITES, "selector"]))


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
            hook = partial(_hand_on, entered, path)
            hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))
        if left is not None:
            hooks.append(module.register_forward_hook(lambda module, _args, out, path=path: left(path, module, out)))
    if at is not None:
        for depth, pair in enumerate(blocks_of(model), start=1):
            for name, module in _observed(*pair):
                observed.append((module, module.observer))
                module.observer = partial(at, name, depth)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module, observer in observed:
            module.observer = observer


def _hand_on(entered: Callable, path: str, module: nn.Module, args: tuple, kwargs: dict) -> None:
    entered(path, module, [*args, *kwargs.values()])


def _observed(name: str, block: BLOCKS) -> list[tuple[str, nn.Module]]:
    """A block and the NormSelectors in it, each with its name."""
    inside = [(path, part) for path, part in block.named_modules() if isinstance(part, NormSelector)]
    return [(name, block), *((f"{name}.{path}", part) for path, part in inside)]


def _sites_of(block: BLOCKS) -> tuple[str, ...]:
    return (*(TRANSFORMER_SITES if isinstance(block, TransformerBlock) else SITES), "selector")


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

    def frame(self, lengths: Tensor | None = None) -> pd.DataFrame:
        """One row a block and site: rms, max_abs, p999, kurtosis (normal = 3), nonfinite (fraction).

        With `lengths` the padding is left out. The first four describe the finite values. ValueError for lengths that
        do not fit what was recorded.
        """
        rows = []
        for name, depth, site, value in self.seen:
            facts = describe(without_padding(value, lengths))
            rows.append({"block": name, "depth": depth, "site": site, **facts})
        return pd.DataFrame(rows)

    def first_nonfinite(self) -> str | None:
        """`blocks.3.scan`: the first site in the order of computation that holds a non-finite value."""
        return next((f"{name}.{site}" for name, _, site, value in self.seen if not value.isfinite().all()), None)


def without_padding(value: Tensor, lengths: Tensor | None) -> Tensor:
    """The valid positions of a value (B, L, …), row after row; all of it without lengths. ValueError for lengths that
    do not fit."""
    check_lengths(lengths, value)
    return value if lengths is None else torch.cat([row[:n] for row, n in zip(value, lengths, strict=True)])


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
    there = {site for _, block in blocks for site in _sites_of(block)}
    if not there & {*sites}:
        raise unknown(f"site of {type(model).__name__}", ", ".join(sites), [s for s in ALL_SITES if s in there])
    recorder = Recorder(sites)
    with inspected(model, at=recorder.see):
        yield recorder


def describe(value: Tensor) -> dict[str, float]:
    """RMS, largest magnitude, 99.9 % quantile of the magnitude, kurtosis and share of non-finite values."""
    flat = value.detach().double().flatten().cpu().numpy()
    finite = flat[np.isfinite(flat)]
    nonfinite = 1.0 - finite.size / max(flat.size, 1)
    if not finite.size:
        return dict(rms=np.nan, max_abs=np.nan, p999=np.nan, kurtosis=np.nan, nonfinite=nonfinite)
    size, squares = (
        np.abs(finite),
        np.square(finite - finite.mean()),
    )  # products: a power of 4 takes twenty times as long
    var = squares.mean()
    return dict(
        rms=float(np.sqrt(np.mean(np.square(finite)))),
        max_abs=float(size.max()),
        p999=float(np.quantile(size, 0.999)),
        kurtosis=float(np.mean(squares * squares) / var**2) if var > 0 else np.nan,
        nonfinite=nonfinite,
    )


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
