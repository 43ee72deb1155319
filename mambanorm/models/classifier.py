"""SequenceClassifier: stem → Mamba blocks → mean over positions → head.

By default there are no norms outside the blocks (I6 in docs/paper.md). The parts that all
classifiers share are in parts.py.
"""

from typing import Any

from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.models.padding import move_padding_to_end
from mambanorm.models.parts import (
    EMBEDDING_STD,
    Classifier,
    DropPath,
    drop_rates,
    make_blocks,
    scale_out_proj,
    stores_arguments,
)
from mambanorm.norm_options import check_arm_options, common_options, options_of_blocks
from mambanorm.norms.masked_moments import valid_positions


class SequenceClassifier(Classifier):
    """Embedding or linear stem, n_layers blocks, mean over the valid positions, linear head.

    Args:
        n_classes: number of classes.
        vocab_size, in_features: give exactly one of them: vocab_size for token ids (B, L),
            in_features for real values (B, L, in_features).
        arm: the norms of the blocks.
        stem_norm, final_norm: norms after the stem and before the mean. Both are "None" by default,
            so that the arm alone determines the norms.
        model: type of the blocks, "mamba" or another name in BLOCKS.
        norm_options: each norm gets the options that it accepts, see norm_options.py.
        positional, positions: positional="learned" adds a learned vector per position after the
            stem; positions=(L,) gives the largest number of positions.
        drop_path: probability of dropping the last block's branch in training (stochastic depth);
            the probability grows linearly from 0 at the first block.
        block_options: options of the blocks, such as d_conv, expand, dt_rank or scan_backend.

    Raises ValueError for an unknown norm or arm, and in `forward` for inputs that do not fit the
    stem.
    """

    blocks: Any  # nn.ModuleList
    drop_paths: Any

    @stores_arguments
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
        inputs = {"vocab_size": vocab_size, "in_features": in_features}
        self._make_stem(d_model, inputs, n_classes=n_classes, n_layers=n_layers)
        arm = Arm.parse(arm)
        check_arm_options(arm, norm_options, (stem_norm, final_norm))
        block_options |= {"norm_options": options_of_blocks(arm, norm_options), "d_state": d_state}
        self.blocks = make_blocks(model, n_layers, d_model, arm, **block_options)
        self.drop_paths = nn.ModuleList(map(DropPath, drop_rates(drop_path, n_layers)))
        norms, options = (stem_norm, final_norm), common_options(norm_options)
        self._make_outer_parts(n_classes, (d_model, d_model), norms, options, positional, positions)
        # Initial values are those of mamba-ssm. It has no linear stem and no classifier's head:
        # these two keep PyTorch's random biases, because with a bias of zero a norm over the
        # channels would reduce an input with one feature to its sign.
        if isinstance(self.stem, nn.Embedding):
            nn.init.normal_(self.stem.weight, std=EMBEDDING_STD)
        scale_out_proj(self.blocks)

    @property
    def arm(self) -> Arm:
        """The arm of the blocks, including norms that mambanorm_clinic's `insert_norm` added."""
        return self.blocks[0].arm

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return logits (B, n_classes).

        lengths (B,): number of valid positions of each row; the positions after them are padding.
        Instead of lengths, attention_mask (B, L) may be given: 1 at valid positions, 0 at padding,
        which may be before or after the valid positions.
        """
        if attention_mask is not None:
            if lengths is not None:
                raise ValueError(
                    "lengths and attention_mask are both given: "
                    "give only one of them, as either says where the padding is"
                )
            x, lengths, _ = move_padding_to_end(x, attention_mask)
        self._check(x, lengths)
        x = self.stem_norm(self.positional(self.stem(x)), lengths)  # (B, L, D)
        for block, drop_path in zip(self.blocks, self.drop_paths, strict=True):
            x = drop_path.drop_branch(block(x, lengths), x)
        return self.head(mean_pool(self.final_norm(x, lengths), lengths))


def mean_pool(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the mean over the valid positions, (B, L, D) → (B, D)."""
    if lengths is None:
        return x.mean(1)
    return x.masked_fill(~valid_positions(lengths, x.shape[1]), 0.0).sum(1) / lengths[:, None]
