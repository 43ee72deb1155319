"""A Transformer with any registered norm, built from the text of source S2 (docs/sources.md).

S2 calls this model TransformerWithAutoNorm (its §IV.B). A block maps x to y:

    h = N1(x + DropPath(MHA(x)))            norm_position "after" the residual sum (post-norm),
    y = N2(h + DropPath(SE(FF(h))))         as in S2 and in Vaswani et al. 2017

    h = x + DropPath(MHA(N1(x)))            norm_position "before" the branch (pre-norm)
    y = h + DropPath(SE(FF(N2(h))))

S2 says only that the NormSelector is "after the multi-head attention and feed-forward network
layers". We read this as post-norm, after the residual sum. S2 does not say where SE belongs; here
SE scales the channels of the feed-forward branch.

Glossary: B rows, L positions, D = d_model, H heads, MHA attention, FF feed-forward (D → expand·D →
D), SE squeeze and excitation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import ObservedBlock
from mambanorm.checks import check_size
from mambanorm.errors import unknown
from mambanorm.models.classifier import mean_pool
from mambanorm.models.parts import EMBEDDING_STD, DropPath, drop_rates, stores_arguments
from mambanorm.norms import check_options, create_norm, known_options
from mambanorm.norms.masked_moments import blank_padding, valid_positions
from mambanorm_study.models.attention_arms import AttentionArm
from mambanorm_study.models.registry import register_model
from mambanorm_study.models.vision import ImageReader
from mambanorm_study.norms.autonorm import separate_random_numbers

NORM_POSITIONS = ("after", "before")
# The sites whose values a block passes to its observer, in the order of a post-norm block
TRANSFORMER_SITES = ("x", "attention", "n1", "feed_forward", "n2", "residual")


def check_heads(d_model: int, n_heads: int) -> None:
    """Raise ValueError unless n_heads divides d_model."""
    if d_model % n_heads:
        valid = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        raise ValueError(
            f"n_heads={n_heads} does not divide d_model={d_model}: valid n_heads are {valid}"
        )


class Attention(nn.Module):
    """Multi-head self-attention among the valid positions, (B, L, D) → (B, L, D).

    Raises ValueError unless n_heads divides d_model.
    """

    def __init__(self, d_model: int, n_heads: int):
        super().__init__()
        check_size("n_heads", n_heads)
        check_heads(d_model, n_heads)
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        B, L, D = x.shape
        heads = self.qkv(x).view(B, L, 3, self.n_heads, D // self.n_heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # (B, H, L, D/H)
        mask = None if lengths is None else valid_positions(lengths, L).view(B, 1, 1, L)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(B, L, D))


class SqueezeExcite(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): scale the channels, (B, L, D) → (B, L, D).

    Returns x·sigmoid(MLP(mean of x over the valid positions)).
    """

    def __init__(self, d_model: int):
        super().__init__()
        hidden = max(4, d_model // 4)
        self.excite = nn.Sequential(
            nn.Linear(d_model, hidden), nn.ReLU(), nn.Linear(hidden, d_model), nn.Sigmoid()
        )

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return x * self.excite(mean_pool(x, lengths))[:, None]


class TransformerBlock(ObservedBlock):
    """A Transformer block, residuals included: x (B, L, D) → (B, L, D).

    n1, n2: names of the norms at the attention and at the feed-forward part, see NORMS; each norm
    gets those of the `norm_options` that it accepts. norm_position: "after" the residual sum
    (post-norm) or "before" the branch (pre-norm). Raises ValueError for an unknown norm or
    norm_position, and for an invalid size.
    """

    sites = TRANSFORMER_SITES

    def __init__(
        self,
        d_model: int,
        n1: str | None = "LN",
        n2: str | None = "LN",
        *,
        n_heads: int = 4,
        expand: int = 2,
        norm_position: str = "after",
        drop_path: float = 0.0,
        squeeze_excite: bool = False,
        norm_options: dict[str, Any] | None = None,
    ):
        super().__init__()
        if norm_position not in NORM_POSITIONS:
            raise unknown("norm_position", norm_position, NORM_POSITIONS)
        check_size("expand", expand)
        check_options((n1, n2), norm_options)
        self.d_model, self.norm_position = d_model, norm_position
        self.attention = Attention(d_model, n_heads)
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, expand * d_model), nn.GELU(), nn.Linear(expand * d_model, d_model)
        )
        self.drop_path = DropPath(drop_path)
        # with the same seed, all arms share the initial weights of the layers that are not norms
        with torch.random.fork_rng(devices=[]):
            # otherwise the next block would draw the same random numbers as SqueezeExcite
            with separate_random_numbers():
                self.squeeze = SqueezeExcite(d_model) if squeeze_excite else None
            self.n1 = create_norm(n1, d_model, **known_options([n1], norm_options))
            self.n2 = create_norm(n2, d_model, **known_options([n2], norm_options))

    @property
    def out_proj(self) -> nn.Linear:
        """The output projection of the attention; diagnostics compute its singular values."""
        return self.attention.out_proj

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = self._observe("x", x)
        x = self._branch("attention", self.attention, "n1", x, lengths)
        x = self._branch("feed_forward", self._feed_forward, "n2", x, lengths)
        return self._observe("residual", x)

    def _branch(
        self, name: str, function: Callable, site: str, x: Tensor, lengths: Tensor | None
    ) -> Tensor:
        """Return x after one branch and its norm.

        The result is norm(x + DropPath(f(x))) if `norm_position` is "after", and
        x + DropPath(f(norm(x))) if it is "before". f: `function`. norm: the norm at `site`. name:
        the observer's name for the output of f.
        """
        norm = getattr(self, site)
        if self.norm_position == "after":
            y = self._observe(name, function(x, lengths))
            return self._observe(site, norm(x + self.drop_path(y), lengths))
        h = self._observe(site, norm(x, lengths))
        return x + self.drop_path(self._observe(name, function(h, lengths)))

    def _feed_forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        y = self.feed_forward(x)
        return y if self.squeeze is None else self.squeeze(y, lengths)

    def _observe(self, site: str, value: Tensor) -> Tensor:
        if self.observer is not None:
            self.observer(site, value)
        return value


class TransformerClassifier(ImageReader):
    """Stem, n_layers Transformer blocks, mean over the valid positions, linear head.

    Give exactly one of `vocab_size` for token ids (B, L), `in_features` for real values
    (B, L, in_features), and `in_channels` for images (B, H, W, in_channels), which are cut into
    patches of `patch`×`patch` pixels. `forward(x, lengths=None)` returns logits (B, n_classes). For
    regression, n_classes is the number of targets, and the logits are the predicted values.

    `arm`: `"N1>MHA>N2"` or a name in NAMED_VARIANTS. `drop_path`, `positional` and `positions`: as
    in SequenceClassifier. Raises ValueError for an unknown norm, arm or norm_position, if n_heads
    does not divide d_model, and for inputs of another kind (ids, values or images) than chosen.
    """

    @stores_arguments
    def __init__(
        self,
        n_classes: int,
        *,
        vocab_size: int | None = None,
        in_features: int | None = None,
        in_channels: int | None = None,
        patch: int = 1,
        d_model: int,
        n_layers: int,
        arm: str | Arm = "AutoNorm",
        n_heads: int = 4,
        expand: int = 2,
        norm_position: str = "after",
        drop_path: float = 0.0,
        squeeze_excite: bool = False,
        stem_norm: str | None = "None",
        final_norm: str | None = "None",
        norm_options: dict[str, Any] | None = None,
        positional: str = "none",
        positions: tuple[int, ...] | None = None,
    ):
        super().__init__()
        inputs = dict(vocab_size=vocab_size, in_features=in_features, in_channels=in_channels)
        self.patch = patch
        self._make_stem(d_model, inputs, patch=patch, n_classes=n_classes, n_layers=n_layers)
        if vocab_size is not None:
            nn.init.normal_(self.stem.weight, std=EMBEDDING_STD)
        self.arm = Arm.parse(arm)
        options = _options_of_arm(self.arm, norm_options)
        check_options((stem_norm, final_norm, *self.arm.norms), options)
        self.blocks = nn.ModuleList(
            TransformerBlock(
                d_model,
                self.arm.n1,
                self.arm.n2,
                n_heads=n_heads,
                expand=expand,
                norm_position=norm_position,
                drop_path=drop_rate,
                squeeze_excite=squeeze_excite,
                norm_options=known_options(self.arm.norms, options),
            )
            for drop_rate in drop_rates(drop_path, n_layers)
        )
        self._make_outer_parts(
            n_classes, (d_model, d_model), (stem_norm, final_norm), options, positional, positions
        )

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self._check(x, lengths)
        if self.in_channels is None:
            x = self.positional(self.stem(x))
        else:
            x = self.stem(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            x = self.positional(x).flatten(1, 2)
        x = self.stem_norm(blank_padding(x, lengths), lengths)  # the inputs' padding may be NaN
        for block in self.blocks:
            x = block(x, lengths)
        return self.head(mean_pool(self.final_norm(x, lengths), lengths))


def _options_of_arm(arm: Arm, norm_options: dict[str, Any] | None) -> dict[str, Any]:
    """Return the options of a named arm together with `norm_options`.

    Raises ValueError for an arm of a Mamba, and for an option that contradicts the named arm.
    """
    if not isinstance(arm, AttentionArm):
        raise ValueError(f"arm {arm} is for a Mamba: for a Transformer write {arm.n1}>MHA>{arm.n2}")
    given = norm_options or {}
    for name, value in arm.options.items():
        if given.get(name, value) != value:
            raise ValueError(
                f"arm {arm} sets {name}={value!r}, but norm_options has {name}={given[name]!r}: to "
                f"choose {name}, write the arm as {arm.n1}>MHA>{arm.n2}"
            )
    return {**arm.options, **given}


register_model(
    "transformer",
    TransformerBlock,
    mixer="MHA",
    check=lambda config: check_heads(config.d_model, config.n_heads),
    classifier=TransformerClassifier,
)
