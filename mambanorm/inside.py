"""Record the inside of a running model: values at the sites of its blocks, and derived numbers.

    record_sites       values at each site of each block, while a `with` block is open
    token_norms        ‖y‖₂ of each token after each block: the data of the paper's Figure 9
    singular_values    singular values of a matrix, such as out_proj: the data of Figure 10

Recording does not change a model's results. The values at a site are (B, L, …); an image has
L = H·W positions. SITES (arms.py) lists the sites of a Mamba block.
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

# The sites of the paper's Figure 9: what a block adds to the residual stream ("branch", or
# "attention" and "feed_forward" in a Transformer block), and the sum ("residual").
OUTPUTS = ("branch", "attention", "feed_forward", "residual")


def blocks_of(model: nn.Module) -> list[tuple[str, ObservedBlock]]:
    """Return a list of (name, module), one pair per block of the model, in order of depth.

    Raises ValueError if `model` is not a torch module.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a model is a torch.nn.Module, got {shown(model)}")
    return [(name, part) for name, part in model.named_modules() if isinstance(part, ObservedBlock)]


@contextmanager
def observe_sites(
    model: nn.Module, on_site: Callable[[str, int, str, Tensor], None]
) -> Iterator[None]:
    """Call `on_site(block name, depth, site, value)` at every site, while the `with` block is open.

    Depth counts blocks from 1. The previous observers are restored when the `with` block ends.
    """
    previous = []
    for depth, (name, block) in enumerate(blocks_of(model), start=1):
        for path, part in block.named_modules(prefix=name):
            if hasattr(part, "observer"):  # the block itself or a norm with sites of its own
                previous.append((part, part.observer))
                part.observer = partial(on_site, path, depth)
    try:
        yield
    finally:
        for part, observer in previous:
            part.observer = observer


class SiteValue(NamedTuple):
    """A recorded value, with its block's name and depth, and its site."""

    block: str
    depth: int
    site: str
    value: Tensor


class Recorder:
    """The values that `record_sites` collected, in the order of computation."""

    def __init__(self, sites: Iterable[str]):
        self.sites = frozenset(sites)
        self.values: list[SiteValue] = []

    def add(self, block: str, depth: int, site: str, value: Tensor) -> None:
        """Append the value, as a SiteValue, to `values` if `site` is one of `sites`."""
        if site in self.sites:
            self.values.append(SiteValue(block, depth, site, value.detach()))

    def tensors(self, site: str) -> list[Tensor]:
        """Return the values at a site, one tensor per block, in order of depth."""
        return [entry.value for entry in self.values if entry.site == site]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per block and site: block, depth, site and the items of `describe`.

        `pandas.DataFrame(recorder.rows())` makes a table of these rows.
        """
        return [
            {"block": entry.block, "depth": entry.depth, "site": entry.site} | describe(entry.value)
            for entry in self.values
        ]

    def first_nonfinite(self) -> str | None:
        """Return block and site of the first non-finite value, such as `blocks.3.scan`, or None."""
        for entry in self.values:
            if not entry.value.isfinite().all():
                return f"{entry.block}.{entry.site}"
        return None


@contextmanager
def record_sites(model: nn.Module, sites: str | Iterable[str] | None = None) -> Iterator[Recorder]:
    """Record the values at the given sites of every block, while the `with` block is open.

    Yields the Recorder that collects the values. `sites` is one site, several sites, or None for
    all sites. The model must contain blocks of this kit, as all models of this kit do. Raises
    ValueError for a model without such blocks, and for a site that none of the model's blocks has.
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
    """Return a dict of statistics of a tensor's finite values, computed in float64.

    The keys are rms; max_abs; p999, the 99.9 % quantile of the magnitude; kurtosis, which is 3 for
    a normal distribution; and nonfinite, the fraction of the tensor's values that are not finite.
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
            if name in buffers:  # the buffers of a norm inserted meanwhile keep their values
                value.copy_(buffers[name])


@torch.no_grad()
def token_norms(
    model: nn.Module, x: Tensor, lengths: Tensor | None = None
) -> dict[str, np.ndarray]:
    """Return ‖y‖₂ of each valid token after each block, as in the paper's Figure 9.

    The result is a dict of three arrays, one element per token, block and site: depth (of the
    block, from 1), site (name) and l2 (‖y‖₂). y is the value at a site; the sites are those of
    OUTPUTS that the blocks have.

    x: the model's input, ids or values (B, L, …) or images (B, H, W, C). Choose the mode with
    `model.train()` or `model.eval()` before the call, because BN's output depends on the mode. The
    model's buffers are restored. A LanguageModel is called without `lengths`, because its norms are
    causal; the result never contains padding.

    Raises ValueError for a model without blocks of this kit and for lengths that do not fit x.
    """
    blocks = blocks_of(model)
    output_sites = [site for site in OUTPUTS if any(site in block.sites for _, block in blocks)]
    with record_sites(model, output_sites or None) as recorder, preserve_state(model):
        check_tensor("x", x, "with the model's inputs")
        check_lengths(lengths, x)
        model(x) if lengths is None or isinstance(model, LanguageModel) else model(x, lengths)
    columns: dict[str, list[np.ndarray]] = {"depth": [], "site": [], "l2": []}
    for entry in recorder.values:
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
    """Return the singular values of a matrix, largest first; all NaN if an entry is not finite."""
    weight = weight.detach().double().cpu()
    if not weight.isfinite().all():
        return np.full(min(weight.shape), np.nan)
    return torch.linalg.svdvals(weight).numpy()
