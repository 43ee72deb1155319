"""The inside of a running model: values at the sites of its blocks, L2 norms, singular values.

    record_sites       the values at each site of each block, while a `with` block is open
    token_norms        ‖y‖₂ of each token after each block: the data of the paper's Figure 9
    singular_values    of a matrix, such as a block's out_proj: the data of Figure 10

Nothing here changes what a model computes. Values are (B, L, …); an image has L = H·W positions.
The sites of a Mamba block are listed in SITES (arms.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mambanorm.block import ObservedBlock
from mambanorm.checks import check_lengths, check_tensor
from mambanorm.errors import shown, unknown
from mambanorm.models.language import LanguageModel

# The sites of Figure 9: what a block adds to the residual stream (a Transformer block adds twice),
# and the sum.
OUTPUTS = ("branch", "attention", "feed_forward", "residual")


def blocks_of(model: nn.Module) -> list[tuple[str, ObservedBlock]]:
    """Return the name and the module of each block, in order of depth.

    Raises ValueError if `model` is no torch module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is a torch.nn.Module, got {shown(model)}")
    return [(name, part) for name, part in model.named_modules() if isinstance(part, ObservedBlock)]


@contextmanager
def observe_sites(
    model: nn.Module, on_site: Callable[[str, int, str, Tensor], None]
) -> Iterator[None]:
    """Call `on_site(block name, depth, site, value)` at every site of every block, while open.

    Depth counts blocks from 1. Restores earlier observers when it closes.
    """
    previous = []
    for depth, (name, block) in enumerate(blocks_of(model), start=1):
        for path, part in block.named_modules(prefix=name):
            if hasattr(part, "observer"):  # the block, and a norm inside it that has sites
                previous.append((part, part.observer))
                part.observer = partial(on_site, path, depth)
    try:
        yield
    finally:
        for part, observer in previous:
            part.observer = observer


class SiteValue(NamedTuple):
    """The value at one site of one block."""

    block: str
    depth: int
    site: str
    value: Tensor


class Recorder:
    """The values that `record_sites` collected, in the order of computation."""

    def __init__(self, sites: Iterable[str]):
        self.sites = frozenset(sites)
        self.seen: list[SiteValue] = []

    def add(self, block: str, depth: int, site: str, value: Tensor) -> None:
        """Append the value if its site is to be recorded."""
        if site in self.sites:
            self.seen.append(SiteValue(block, depth, site, value.detach()))

    def tensors(self, site: str) -> list[Tensor]:
        """Return the values at a site, one tensor per block, in order of depth."""
        return [entry.value for entry in self.seen if entry.site == site]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per block and site: block, depth, site and `describe(value)`.

        `pandas.DataFrame(recorder.rows())` makes a table of them.
        """
        return [
            {"block": entry.block, "depth": entry.depth, "site": entry.site} | describe(entry.value)
            for entry in self.seen
        ]

    def first_nonfinite(self) -> str | None:
        """Return the first site that holds a non-finite value, as `blocks.3.scan`, or None."""
        for entry in self.seen:
            if not entry.value.isfinite().all():
                return f"{entry.block}.{entry.site}"
        return None


@contextmanager
def record_sites(model: nn.Module, sites: str | Iterable[str] | None = None) -> Iterator[Recorder]:
    """Record the values at the named sites of every block while open; None records all sites.

    Works with every model of this kit and with models of yours that are made of its blocks.
    Raises ValueError if the model has no such block, and for a site that none of its blocks has.
    """
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(
            f"{type(model).__name__} holds none of this kit's blocks (MambaBlock, for example), "
            "so there is nothing to record: load the weights of a mamba-ssm or transformers model "
            "into a LanguageModel first"
        )
    parts = [part for _, block in blocks for part in block.modules()]
    known = list(dict.fromkeys(site for part in parts for site in getattr(part, "sites", ())))
    chosen = known if sites is None else [sites] if isinstance(sites, str) else list(sites)
    for site in chosen:
        if site not in known:
            raise unknown(f"site of {type(model).__name__}", site, known)
    recorder = Recorder(chosen)
    with observe_sites(model, recorder.add):
        yield recorder


def describe(value: Tensor) -> dict[str, float]:
    """Return statistics of a tensor's finite values, in float64.

    rms, max_abs, p999 (the 99.9 % quantile of the magnitude), kurtosis (3 for normal values); and
    nonfinite, the fraction of values that are not finite.
    """
    flat = value.detach().flatten()
    finite = flat[flat.isfinite()].double()
    nonfinite = 1 - len(finite) / max(len(flat), 1)
    if not len(finite):
        nan = math.nan
        return dict(rms=nan, max_abs=nan, p999=nan, kurtosis=nan, nonfinite=nonfinite)
    squares = (finite - finite.mean()).square()
    var = float(squares.mean())
    return dict(
        rms=float(finite.square().mean().sqrt()),
        max_abs=float(finite.abs().max()),
        p999=float(np.quantile(finite.abs().cpu().numpy(), 0.999)),
        kurtosis=float(squares.square().mean()) / var**2 if var > 0 else math.nan,
        nonfinite=nonfinite,
    )


@contextmanager
def preserve_state(model: nn.Module) -> Iterator[None]:
    """Restore the model's training mode and its buffers when the `with` block ends."""
    training = {module: module.training for module in model.modules()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for name, value in model.named_buffers():
            if name in buffers:  # a norm inserted meanwhile has new buffers, which stay
                value.copy_(buffers[name])


@torch.no_grad()
def token_norms(
    model: nn.Module, x: Tensor, lengths: Tensor | None = None
) -> dict[str, np.ndarray]:
    """Return ‖y‖₂ of each valid token by depth (Figure 9): columns depth, site and l2.

    x: the model's input, ids or values (B, L, …) or images (B, H, W, C). Sites: the members
    of OUTPUTS that the blocks have. Call `.train()` or `.eval()` before, because BN differs between
    the two. The model's buffers are restored. A LanguageModel is called without `lengths`, because
    its norms are causal; padding is left out of the result in any case.

    Raises ValueError for a model without blocks and for lengths that do not fit x.
    """
    blocks = blocks_of(model)
    wanted = [site for site in OUTPUTS if any(site in block.sites for _, block in blocks)]
    with record_sites(model, wanted or None) as recorder, preserve_state(model):
        check_tensor("x", x, "of the model's inputs")
        check_lengths(lengths, x)
        model(x) if lengths is None or isinstance(model, LanguageModel) else model(x, lengths)
    columns: dict[str, list[np.ndarray]] = {"depth": [], "site": [], "l2": []}
    for entry in recorder.seen:
        l2 = entry.value.double().norm(dim=-1)
        if lengths is None:
            l2 = l2.flatten()
        else:
            l2 = torch.cat([row[:n] for row, n in zip(l2, lengths, strict=True)])
        columns["depth"].append(np.full(len(l2), entry.depth))
        columns["site"].append(np.full(len(l2), entry.site, dtype=object))
        columns["l2"].append(l2.cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def singular_values(weight: Tensor) -> np.ndarray:
    """Return the singular values of a matrix, largest first; NaN if the weight is not finite."""
    weight = weight.detach().double().cpu()
    if not weight.isfinite().all():
        return np.full(min(weight.shape), np.nan)
    return torch.linalg.svdvals(weight).numpy()
