"""The parts of models besides norms: blocks, stem, head, positional encoding, stochastic depth.

Positional encoding (§2.1 of the paper) is off by default, because Mamba's scan already depends on
the order:

    x ← x + P        after the stem, before the stem's norm; x (B, L, D) or (B, H, W, D)

The paper does not say which encoding it uses. Here P is learned: one vector per position,
initially drawn from a normal distribution with standard deviation 0.02. Positions count from the
start of a row, or from the upper left pixel, so neither padding nor the size of an image changes
the vector of a position.

Stochastic depth drops a residual branch at random, independently for each row.

Glossary: B rows, L positions, H and W rows and columns of an image, D channels.
Source: Devlin et al. 2019 and Dosovitskiy et al. 2021 (positions); Huang et al. 2016 (stochastic
depth).
"""

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
    check_ids,
    check_lengths,
    check_like_weight,
    check_size,
    check_tensor,
)
from mambanorm.errors import shown, unknown
from mambanorm.norms import create_norm, known_options

# Value of the argument `model` of SequenceClassifier and LanguageModel → class of the blocks. Other
# packages may add entries.
BLOCKS: dict[str, type[nn.Module]] = {"mamba": MambaBlock}

# Functions that are called with each new model, such as `connect` of mambanorm_study's adaLN.
AFTER_INIT: list[Callable[[nn.Module], object]] = []


def stores_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Decorate a model's __init__ to store its arguments as `model.arguments`.

    A checkpoint saves these arguments, so that the model can be built again. After __init__, the
    functions in AFTER_INIT are called with the model.
    """

    @wraps(init)
    def wrapped(self: nn.Module, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.arguments = {  # type: ignore[assignment]
            **dict(zip(list(signature(init).parameters)[1:], args)),
            **options,
        }
        for finish in AFTER_INIT:
            finish(self)

    return wrapped


def make_blocks(model: str, n: int, d_model: int, arm: Arm, **options: Any) -> nn.ModuleList:
    """Return n blocks of the type that BLOCKS lists for `model`.

    An option that is None keeps the block's default. Raises ValueError for an unknown model, and
    TypeError for an option that the block does not have.
    """
    if model not in BLOCKS:
        raise unknown("model", model, BLOCKS)
    options = {name: value for name, value in options.items() if value is not None}
    return nn.ModuleList(BLOCKS[model](d_model, *arm, **options) for _ in range(n))


@torch.no_grad()
def scale_out_proj(blocks: nn.ModuleList) -> None:
    """Divide the weight of each block's out_proj by √(number of blocks), as mamba-ssm does."""
    for block in blocks:
        block.get_parameter("out_proj.weight").div_(math.sqrt(len(blocks)))


def check_values_of(x: object, axes: str, last_size: int) -> None:
    """Raise ValueError unless x is a non-empty tensor of real numbers, (*axes, last_size).

    `axes` names the axes before the last one, as in "B, L".
    """
    form = f"({axes}, {last_size})"
    values = check_tensor("x", x, f"of real values {form}")
    is_shaped = values.dim() == axes.count(",") + 2 and values.shape[-1] == last_size
    if not is_shaped or values.dtype not in REAL or not values.numel():
        raise ValueError(
            f"expected real values {form}, at least one, got {values.dtype} {tuple(values.shape)}"
        )


def weight_of(layer: nn.Module, model: nn.Module) -> Tensor:
    """Return the layer's weight; if the layer has none, the model's first floating-point parameter.

    A wrapper may hide the layer's weight. The result serves to check an input's device and dtype.
    """
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor):
        return weight
    return next(p for p in model.parameters() if p.is_floating_point())


class Classifier(nn.Module):
    """Base of all classifiers: stem, positional encoding, the norms outside the blocks, and head.

    A subclass calls `_make_stem`, makes `blocks` and calls `_make_outer_parts`. The stem takes one
    of three kinds of input: token ids (vocab_size), real values (in_features) or images
    (in_channels).
    """

    vocab_size: int | None = None
    in_features: int | None = None
    in_channels: int | None = None
    stem: nn.Module
    # Only classifiers of images define these two methods.
    _image_stem: Callable[[int, int], nn.Module]
    _check_images: Callable[[Tensor], None]

    def _make_stem(self, d_model: int, inputs: dict[str, int | None], **sizes: int) -> None:
        """Make the stem. `inputs` maps vocab_size, in_features, … to a size or None.

        Raises ValueError unless exactly one of these sizes is given, and for a size that is not
        positive. `sizes` are other sizes to check.
        """
        given = {kind: size for kind, size in inputs.items() if size is not None}
        if len(given) != 1:
            values = ", ".join(f"{kind}={size}" for kind, size in inputs.items())
            raise ValueError(f"give exactly one of {', '.join(inputs)}, got {values}")
        for name, value in {"d_model": d_model, **sizes, **given}.items():
            check_size(name, value)
        ((kind, size),) = given.items()
        setattr(self, kind, size)
        if kind == "vocab_size":
            self.stem = nn.Embedding(size, d_model)
        elif kind == "in_features":
            self.stem = nn.Linear(size, d_model)
        else:
            self.stem = self._image_stem(size, d_model)

    def _make_outer_parts(
        self,
        n_classes: int,
        widths: tuple[int, int],
        norms: tuple[str | None, str | None],
        norm_options: dict[str, Any],
        positional: str,
        positions: tuple[int, ...] | None,
    ) -> None:
        """Make the head, the norms outside the blocks and the positional encoding.

        widths: numbers of channels, (after the stem, after the blocks). norms: names of the norms
        at these two positions.
        """
        self.head = nn.Linear(widths[1], n_classes)
        with torch.random.fork_rng(devices=[]):
            self.stem_norm, self.final_norm = (
                create_norm(name, d, **known_options([name], norm_options))
                for name, d in zip(norms, widths)
            )
        axes = 2 if self.in_channels else 1
        self.positional = positional_encoding(positional, widths[0], axes, positions)

    def _check(self, x: Tensor, lengths: Tensor | None) -> None:
        """Raise ValueError for an input that does not fit the stem, and for invalid lengths."""
        if self.vocab_size is not None:
            check_ids(x, self.vocab_size)
        elif self.in_features is not None:
            check_values_of(x, "B, L", self.in_features)
        elif lengths is not None:
            raise ValueError("images have no padding: leave out lengths")
        else:
            self._check_images(x)
        check_like_weight("x", x, weight_of(self.stem, self), "this model")
        check_lengths(lengths, x)


# ------------------------------------------------------------------------------ positional encoding

POSITIONAL = ("none", "learned")
# Initial standard deviation of token embeddings, as in mamba-ssm, and of learned positions.
EMBEDDING_STD = 0.02


def positional_encoding(
    kind: str, d: int, axes: int, positions: tuple[int, ...] | None = None
) -> nn.Module:
    """Return a module that adds a positional encoding to its input.

    kind: "none" (the module is the identity) or "learned" (LearnedPositions). The module's input is
    (B, L, d) for axes = 1, (B, H, W, d) for axes = 2. positions: the size of a learned table, (L,)
    or (H, W); None for "none". torch's random state does not change. Raises ValueError for an
    unknown kind, and for positions that are missing, not needed, or not `axes` positive numbers.
    """
    if kind not in POSITIONAL:
        raise unknown("positional", kind, POSITIONAL)
    if kind == "none":
        if positions is not None:
            raise ValueError(
                f"positions={positions!r} are for positional='learned' only, got {kind!r}: "
                "leave out positions"
            )
        return nn.Identity()
    if not isinstance(positions, tuple | list) or len(positions) != axes:
        form = "(L,), the longest sequence" if axes == 1 else "(H, W), the largest image in patches"
        raise ValueError(f"positional='learned' needs positions={form}, got {shown(positions)}")
    for size in positions:
        check_size("each of the positions", size)
    # all other initial weights are the same with and without the table
    with torch.random.fork_rng(devices=[]):
        return LearnedPositions(d, tuple(positions))


class LearnedPositions(nn.Module):
    """Adds a learned table, one vector per position, to x (B, L, d) or (B, H, W, d).

    Raises ValueError if x has more positions than the table.
    """

    def __init__(self, d: int, positions: tuple[int, ...]):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*positions, d))
        nn.init.normal_(self.weight, std=EMBEDDING_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the table, cut to the positions of x: the first rows (and columns)."""
        given, largest = tuple(x.shape[1:-1]), tuple(self.weight.shape[:-1])
        if any(n > most for n, most in zip(given, largest, strict=True)):
            n_given, n_largest = ("×".join(map(str, sizes)) for sizes in (given, largest))
            raise ValueError(
                f"the input has {n_given} positions, but the model's table has {n_largest}: "
                "make the model with more positions"
            )
        return x + self.weight[tuple(slice(n) for n in given)].to(x.dtype)


# --------------------------------------------------------------------------------- stochastic depth


def check_drop_path(rate: object) -> None:
    """Raise ValueError unless the rate is a number from 0 to below 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(f"drop_path must be a number from 0 to below 1, got {rate!r}")


def drop_rates(rate: float, n_layers: int) -> list[float]:
    """Return one rate per block, growing linearly from 0 at the first to `rate` at the last block.

    A single block gets `rate`.
    """
    check_drop_path(rate)
    return [rate * (i / (n_layers - 1) if n_layers > 1 else 1.0) for i in range(n_layers)]


class DropPath(nn.Module):
    """Stochastic depth: training sets each row of a branch (B, …) to 0 with probability `rate`.

    The other rows are multiplied by 1/(1 − rate), so the expected value of the result is the branch
    itself.
    """

    def __init__(self, rate: float = 0.0):
        super().__init__()
        check_drop_path(rate)
        self.rate = float(rate)

    def forward(self, branch: Tensor) -> Tensor:
        """Return the branch; in training mode, rows are dropped at random."""
        if not self.training or self.rate == 0.0:
            return branch
        mask = branch.new_empty(len(branch), *[1] * (branch.dim() - 1)).bernoulli_(1 - self.rate)
        return branch * (mask / (1 - self.rate))

    def drop_branch(self, y: Tensor, x: Tensor) -> Tensor:
        """Return x + forward(y − x), for the output y = x + branch of a block with input x."""
        return x + self(y - x) if self.training and self.rate else y
