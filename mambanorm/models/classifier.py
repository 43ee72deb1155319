"""Classifier, what all classifiers share around their blocks; SequenceClassifier: stem → Mamba or Mamba-2 blocks →
pooling → head. Norms outside the blocks are off unless asked for (I6)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.basics.checks import check_beside, check_ids, check_lengths, check_size
from mambanorm.block import check_arm_options, common_options, options_of_blocks
from mambanorm.models.parts import EMBEDDING_STD, DropPath, check_inputs, drop_rates, make_blocks, start_branches
from mambanorm.models.parts import positional as encoding
from mambanorm.norms import create_norm, known_options
from mambanorm.norms.masked_moments import valid_positions


class Classifier(nn.Module):
    """The parts that all classifiers share: the norm and the positions after the stem, the norm before the head.

    A subclass makes `stem` and `blocks`, then calls `_make_ends`; what its stem reads is one of the three below.
    """

    vocab_size = in_features = in_channels = None
    patch, down_sample = 1, ()

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
            made = [create_norm(name, d, **known_options([name], norm_options)) for name, d in zip(norms, widths)]
        self.stem_norm, self.final_norm = made
        scale = EMBEDDING_STD if self.vocab_size else 1.0  # about as large as what it is added to
        self.positional = encoding(positional, widths[0], 2 if self.in_channels else 1, positions, scale)

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
        check_beside("x", x, self.stem.weight, "this model")
        check_lengths(lengths, x)


class SequenceClassifier(Classifier):
    """Embedding or linear stem, n_layers blocks, mean over the valid positions, linear head.

    Exactly one of `vocab_size` (token ids (B, L)) and `in_features` (real values (B, L, in_features)) is given;
    `forward(x, lengths=None)` → logits (B, n_classes). `model`: whose blocks, "mamba" or "mamba2"; `block_options`
    are theirs (d_conv, expand, dt_rank or head_dim and n_groups, scan_backend). `stem_norm` and `final_norm` are "None"
    by default, so that the arm names all norms. `positional` adds "sinusoidal" or "learned" positions after the stem; a
    learned table needs to know the longest sequence, `positions=(L,)`. `drop_path`: how often the deepest block is left
    out in training (both in parts.py). Raises ValueError for an unknown norm or arm and for inputs of another kind.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        vocab_size: int | None = None,
        in_features: int | None = None,
        d_model: int,
        n_layers: int,
        arm: str | Arm = "RMSN>SSM>None",
        stem_norm: str | None = "None",
        final_norm: str | None = "None",
        model: str = "mamba",
        d_state: int = 16,
        norm_options: dict[str, Any] | None = None,
        positional: str = "none",
        positions: tuple[int] | None = None,
        drop_path: float = 0.0,
        **block_options: Any,
    ):
        super().__init__()
        if (vocab_size is None) == (in_features is None):
            raise ValueError(
                "give either vocab_size (token ids) or in_features (real values), "
                f"got vocab_size={vocab_size}, in_features={in_features}"
            )
        stem = dict(vocab_size=vocab_size) if in_features is None else dict(in_features=in_features)
        for name, size in dict(n_classes=n_classes, n_layers=n_layers, d_model=d_model, **stem).items():
            check_size(name, size)
        arm = Arm.parse(arm)
        self.vocab_size, self.in_features = vocab_size, in_features
        self.stem = nn.Embedding(vocab_size, d_model) if vocab_size else nn.Linear(in_features, d_model)
        check_arm_options(arm, norm_options, (stem_norm, final_norm))
        inside, norm_options = options_of_blocks(arm, norm_options), common_options(norm_options)
        self.blocks = make_blocks(model, n_layers, d_model, arm, d_state=d_state, norm_options=inside, **block_options)
        self.drop_paths = nn.ModuleList(map(DropPath, drop_rates(drop_path, n_layers)))
        self._make_ends(n_classes, (d_model, d_model), (stem_norm, final_norm), norm_options, positional, positions)
        # as mamba-ssm starts them; stem and head, which it does not have, keep PyTorch's biases too: with a bias of
        # zero, a norm over the channels would reduce a one-feature input to its sign
        if vocab_size:
            nn.init.normal_(self.stem.weight, std=EMBEDDING_STD)
        start_branches(self.blocks)

    @property
    def arm(self) -> Arm:
        """What stands in the blocks now; surgery changes it."""
        return self.blocks[0].arm

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self._check(x, lengths)
        x = self.stem_norm(self.positional(self.stem(x)), lengths)  # (B, L, D)
        for block, drop_path in zip(self.blocks, self.drop_paths, strict=True):
            x = drop_path.around(block(x, lengths), x)
        return self.head(mean_pool(self.final_norm(x, lengths), lengths))


def mean_pool(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Mean over the valid positions, (B, L, D) → (B, D)."""
    if lengths is None:
        return x.mean(1)
    return x.masked_fill(~valid_positions(lengths, x.shape[1]), 0.0).sum(1) / lengths[:, None]
