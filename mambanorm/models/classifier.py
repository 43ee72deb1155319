"""SequenceClassifier: stem → Mamba or Mamba-2 blocks → pooling → head. Norms outside the blocks are
off unless asked for (I6). What all classifiers share around their blocks is in parts.py."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import check_arm_options, common_options, options_of_blocks
from mambanorm.models.padding import to_the_front
from mambanorm.models.parts import (
    EMBEDDING_STD,
    Classifier,
    DropPath,
    drop_rates,
    keeps_arguments,
    make_blocks,
    start_branches,
)
from mambanorm.norms.masked_moments import valid_positions


class SequenceClassifier(Classifier):
    """Embedding or linear stem, n_layers blocks, mean over the valid positions, linear head.

    Exactly one of `vocab_size` (token ids (B, L)) and `in_features` (real values (B, L,
    in_features)) is given; `forward(x, lengths=None)` → logits (B, n_classes). `model`: whose
    blocks, "mamba" or "mamba2"; `block_options` are theirs (d_conv, expand, dt_rank or head_dim and
    n_groups, scan_backend). `stem_norm` and `final_norm` are "None" by default, so that the arm
    names all norms. `positional` "learned" adds a table after the stem, which needs to know the
    longest sequence, `positions=(L,)`. `drop_path`: how often the deepest block is left out in
    training (both in parts.py). Raises ValueError for an unknown norm or arm and for inputs of
    another kind.
    """

    @keeps_arguments
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
        inputs = dict(vocab_size=vocab_size, in_features=in_features)
        self._make_stem(d_model, inputs, n_classes=n_classes, n_layers=n_layers)
        arm = Arm.parse(arm)
        check_arm_options(arm, norm_options, (stem_norm, final_norm))
        inside, norm_options = options_of_blocks(arm, norm_options), common_options(norm_options)
        self.blocks = make_blocks(
            model, n_layers, d_model, arm, d_state=d_state, norm_options=inside, **block_options
        )
        self.drop_paths = nn.ModuleList(map(DropPath, drop_rates(drop_path, n_layers)))
        self._make_ends(
            n_classes,
            (d_model, d_model),
            (stem_norm, final_norm),
            norm_options,
            positional,
            positions,
        )
        # as mamba-ssm starts them; stem and head, which it does not have, keep PyTorch's biases
        # too: with a bias of zero, a norm over the channels would reduce a one-feature input to its
        # sign
        if vocab_size:
            nn.init.normal_(self.stem.weight, std=EMBEDDING_STD)
        start_branches(self.blocks)

    @property
    def arm(self) -> Arm:
        """What stands in the blocks now; surgery changes it."""
        return self.blocks[0].arm

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, n_classes). lengths (B,): each row's positions, followed by padding.
        attention_mask (B, L) in its place: 1 at valid positions, 0 at padding on either side of
        them."""
        if attention_mask is not None:
            if lengths is not None:
                raise ValueError(
                    "lengths and attention_mask are both given: one of them says where the padding is"
                )
            x, lengths, _ = to_the_front(x, attention_mask)
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
