"""What the models are made of besides norms: which block, the ends around the blocks, positional
encoding, stochastic depth.

Positional encoding (§2.1), off unless it is asked for: what tells the positions of a sequence or an
image apart.

    x ← x + P        after the stem, before its norm; x (B, L, D) or (B, H, W, D)

A Mamba scans in order, so it can do without. The paper names the step but not the kind. Here P is
learned, a vector for each position, N(0, .02) at the start; at most as many positions as the table
has. A position is counted from the start of its row, or from the upper left pixel, whatever comes
after it: neither padding nor the size of the image changes it.

In stochastic depth a residual branch is left out at random, row by row.

Glossary: B rows, L positions, H and W rows and columns of an image, D channels. Source: Devlin et
al. 2019 and Dosovitskiy et al. 2021 (positions); Huang et al. 2016 (stochastic depth).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.checks import (
    REAL,
    check_beside,
    check_ids,
    check_lengths,
    check_size,
    check_tensor,
    shown,
)
from mambanorm.errors import unknown
from mambanorm.norms import create_norm, known_options

BLOCKS: dict[str, type[nn.Module]] = {"mamba": MambaBlock}
"""`model` of SequenceClassifier and LanguageModel → the class of its blocks. Other packages add to
it."""


def keeps_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a model's __init__: the arguments stay as `model.arguments`, so that a checkpoint
    can say how to make it again (pretrained.py)."""

    @wraps(init)
    def wrapped(self: nn.Module, *given: Any, **options: Any) -> None:
        init(self, *given, **options)
        self.arguments = dict(zip(list(signature(init).parameters)[1:], given)) | options

    return wrapped


def make_blocks(model: str, n: int, d_model: int, arm: Arm, **options: Any) -> nn.ModuleList:
    """n blocks of a model. An option that is None has the block's default. ValueError for an
    unknown model, TypeError for an option that its block does not have."""
    if model not in BLOCKS:
        raise unknown("model", model, BLOCKS)
    given = {name: value for name, value in options.items() if value is not None}
    return nn.ModuleList(BLOCKS[model](d_model, *arm, **given) for _ in range(n))


@torch.no_grad()
def start_branches(blocks: nn.ModuleList) -> None:
    """mamba-ssm's out_proj / √n_layers; other linear weights start as PyTorch has them."""
    for block in blocks:
        block.out_proj.weight /= math.sqrt(len(blocks))


def check_inputs(x: object, form: str) -> None:
    """Raises ValueError unless x holds real numbers, at least one, of a form such as "(B, L,
    3)"."""
    check_tensor("x", x, f"of real values {form}")
    last = int(form.rstrip(")").rpartition(" ")[2])
    if (
        x.dim() != form.count(",") + 1
        or x.shape[-1] != last
        or x.dtype not in REAL
        or not x.numel()
    ):
        raise ValueError(
            f"expected real values {form}, at least one, got {x.dtype} {tuple(x.shape)}"
        )


def weight_of(layer: nn.Module, model: nn.Module) -> Tensor:
    """Return the layer's weight, which tells the model's dtype and device; if a wrapper hides it,
    another parameter."""
    weight = getattr(layer, "weight", None)
    return (
        weight
        if isinstance(weight, Tensor)
        else next(p for p in model.parameters() if p.is_floating_point())
    )


class Classifier(nn.Module):
    """The parts that all classifiers share: the norm and the positions after the stem, the norm
    before the head.

    A subclass calls `_make_stem`, makes `blocks` and calls `_make_ends`; its stem reads one of the
    three kinds below.
    """

    vocab_size = in_features = in_channels = None
    patch, down_sample = 1, ()

    def _make_stem(
        self, d_model: int, inputs: dict[str, int | None], patch: int = 1, **sizes: int
    ) -> None:
        """inputs: of the three kinds those that the model can read. ValueError unless one of them
        is given, and for a size that is none."""
        given = {name: size for name, size in inputs.items() if size is not None}
        if len(given) != 1:
            told = ", ".join(f"{name}={size}" for name, size in inputs.items())
            raise ValueError(f"give exactly one of {', '.join(inputs)}, got {told}")
        for name, size in dict(d_model=d_model, patch=patch, **sizes, **given).items():
            check_size(name, size)
        ((kind, size),) = given.items()
        setattr(self, kind, size)
        self.patch = patch
        if kind == "vocab_size":
            self.stem = nn.Embedding(size, d_model)
        elif kind == "in_features":
            self.stem = nn.Linear(size, d_model)
        else:
            self.stem = nn.Conv2d(size, d_model, patch, stride=patch)

    def _make_ends(
        self,
        n_classes: int,
        widths: tuple[int, int],
        norms: tuple[str | None, str | None],
        norm_options: dict[str, Any],
        positional: str,
        positions: tuple[int, ...] | None,
    ) -> None:
        """widths and norms: after the stem and after the blocks."""
        self.head = nn.Linear(widths[1], n_classes)
        with torch.random.fork_rng(devices=[]):
            made = [
                create_norm(name, d, **known_options([name], norm_options))
                for name, d in zip(norms, widths)
            ]
        self.stem_norm, self.final_norm = made
        self.positional = encoding(positional, widths[0], 2 if self.in_channels else 1, positions)

    def _check(self, x: Tensor, lengths: Tensor | None) -> None:
        """ValueError for what the stem cannot read, and for lengths that are not x's."""
        if self.vocab_size is not None:
            check_ids(x, self.vocab_size)
        elif self.in_features is not None:
            check_inputs(x, f"(B, L, {self.in_features})")
        elif lengths is not None:
            raise ValueError("lengths are given: images have no padding, leave them out")
        else:
            check_inputs(x, f"(B, H, W, {self.in_channels})")
            cell, (H, W) = self.patch * 2 ** len(self.down_sample), x.shape[1:3]
            if H % cell or W % cell:
                halvings = f", halved {len(self.down_sample)} times" if self.down_sample else ""
                raise ValueError(
                    f"images of {H}×{W} pixels do not divide into patches of {self.patch}×{self.patch}{halvings}: "
                    f"height and width must be multiples of {cell}"
                )
        check_beside("x", x, weight_of(self.stem, self), "this model")
        check_lengths(lengths, x)


# --------------------------------------------------------------------------------------------------
# positional encoding

POSITIONAL = ("none", "learned")
EMBEDDING_STD = 0.02  # of token embeddings, as mamba-ssm starts them, and of learned positions


def encoding(kind: str, d: int, axes: int, positions: tuple[int, ...] | None = None) -> nn.Module:
    """What adds the encoding to (B, L, d), axes = 1, or (B, H, W, d), axes = 2; the identity for
    "none".

    `positions`: (L,) or (H, W) of a learned table, else None. The caller's random state is left
    alone. ValueError for an unknown kind, and for positions that are missing, of another form or
    not needed.
    """
    if kind not in POSITIONAL:
        raise unknown("positional", kind, POSITIONAL)
    if kind == "none":
        if positions is not None:
            raise ValueError(
                f"positions={positions!r} are of positional='learned' only, got {kind!r}: leave them out"
            )
        return nn.Identity()
    if not isinstance(positions, tuple | list) or len(positions) != axes:
        form = "(L,), the longest sequence" if axes == 1 else "(H, W), the largest image in patches"
        raise ValueError(f"positional='learned' needs positions={form}, got {shown(positions)}")
    for size in positions:
        check_size("each of the positions", size)
    with torch.random.fork_rng(
        devices=[]
    ):  # as for a norm: all other weights start as they do without it
        return Learned(d, tuple(positions))


class Learned(nn.Module):
    """x (B, …, d) + a learned table (…, d), as many of its positions as x has. ValueError where x
    has more."""

    def __init__(self, d: int, positions: tuple[int, ...]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*positions, d))
        nn.init.normal_(self.weight, std=EMBEDDING_STD)

    def forward(self, x: Tensor) -> Tensor:
        given, known = tuple(x.shape[1:-1]), tuple(self.weight.shape[:-1])
        if any(n > most for n, most in zip(given, known, strict=True)):
            given, known = ("×".join(map(str, sizes)) for sizes in (given, known))
            raise ValueError(f"{given} positions, learned are {known}: make the model with more")
        return x + self.weight[tuple(slice(n) for n in given)].to(x.dtype)


# --------------------------------------------------------------------------------------------------
# stochastic depth


def check_drop_path(rate: object) -> None:
    """ValueError unless it is a rate from 0 to below 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"drop_path must be a number from 0 to below 1, got {rate!r}")


def drop_rates(rate: float, n_layers: int) -> list[float]:
    """Of each block: from 0 at the first to the whole rate at the last. A single block has all of
    it."""
    check_drop_path(rate)
    return [rate * (i / (n_layers - 1) if n_layers > 1 else 1.0) for i in range(n_layers)]


class DropPath(nn.Module):
    """In training a branch (B, …) is zero for a share `rate` of the rows, and larger by 1/(1 −
    rate) for the others, so that its expectation is the branch. The draws are torch's."""

    def __init__(self, rate: float = 0.0):
        super().__init__()
        check_drop_path(rate)
        self.rate = float(rate)

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        kept = branch.new_empty(len(branch), *[1] * (branch.dim() - 1)).bernoulli_(1 - self.rate)
        return branch * (kept / (1 - self.rate))

    def around(self, y: Tensor, x: Tensor) -> Tensor:
        """The same for a block that adds its residual itself, y = x + branch."""
        return x + self(y - x) if self.training and self.rate else y
