"""The building blocks of the guide (source S4), with the norm as an argument: small enough to be read at one sitting.

Images are (B, C, H, W), sequences (B, L, D), as torch has them.
"""

import itertools
from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from mambanorm.basics.errors import unknown

GROUPS = 4
"""Groups of GN, four channels each here: S4 says 32, which needs far more channels to be more than InstanceNorm."""

NORMS_2D = {
    "None": lambda c: nn.Identity(),
    "BN": nn.BatchNorm2d,
    "IN": lambda c: nn.InstanceNorm2d(c, affine=True),
    "GN": lambda c: nn.GroupNorm(min(GROUPS, max(c // 2, 1)), c),
    "LN": lambda c: nn.GroupNorm(1, c),  # one statistic over C, H and W, which is LN as images have it
}
"""Of images (B, C, H, W)."""


class StepBatchNorm(nn.BatchNorm1d):
    """BatchNorm of sequences (B, L, D): one statistic a channel, over all rows and all steps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


NORMS_1D = {"None": lambda d: nn.Identity(), "BN": StepBatchNorm, "LN": nn.LayerNorm, "RMSN": nn.RMSNorm}
"""Of sequences (B, L, D)."""


def new_norm(norms: Mapping[str, Callable[[int], nn.Module]], name: str, channels: int) -> nn.Module:
    """A norm of NORMS_2D or NORMS_1D by its name. ValueError for another name."""
    if name not in norms:
        raise unknown("norm", name, norms)
    return norms[name](channels)


class ConvBlock(nn.Sequential):
    """Convolution 3×3 → norm → ReLU, (B, c_in, H, W) → (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, norm: str = "BN"):
        norm = new_norm(NORMS_2D, norm, c_out)
        super().__init__(nn.Conv2d(c_in, c_out, 3, padding=1), norm, nn.ReLU(inplace=True))


class TransformerLayer(nn.Module):
    """Attention and feed-forward, (B, L, D) → (B, L, D). place="pre": x + f(norm(x)); "post": norm(x + f(x))."""

    def __init__(self, d: int, n_heads: int = 4, norm: str = "LN", place: str = "pre"):
        super().__init__()
        if place not in ("pre", "post"):
            raise unknown("place", place, ("pre", "post"))
        self.place, self.n_heads = place, n_heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.norm1, self.norm2 = new_norm(NORMS_1D, norm, d), new_norm(NORMS_1D, norm, d)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, heads, L, D / heads)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, sublayer in ((self.norm1, self.attend), (self.norm2, self.ffn)):
            x = x + sublayer(norm(x)) if self.place == "pre" else norm(x + sublayer(x))
        return x


class ConvNet(nn.Sequential):
    """ConvBlocks, the mean over each quarter of the image, a linear head: (B, 1, H, W) → (B, n_classes).

    A mean over the whole image would be nearly the same for all images behind GN, which sets the means of groups.
    """

    def __init__(self, n_classes: int = 10, channels: int = 16, depth: int = 3, norm: str = "BN"):
        widths = [1] + [channels] * depth
        blocks = [ConvBlock(a, b, norm) for a, b in itertools.pairwise(widths)]
        super().__init__(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, n_classes))


class StyleNet(nn.Sequential):
    """ConvBlocks and a last convolution without norm: images (B, 1, H, W) → images (S4, style transfer)."""

    def __init__(self, channels: int = 16, depth: int = 2, norm: str = "IN"):
        blocks = [ConvBlock(a, b, norm) for a, b in itertools.pairwise([1] + [channels] * depth)]
        super().__init__(*blocks, nn.Conv2d(channels, 1, 3, padding=1))


class DenseNet(nn.Sequential):
    """Two hidden layers of linear features with a norm each, BN or GN: images (B, 1, 8, 8) → (B, 10).

    Behind a convolution BatchNorm at batch 2 has 2·H·W values a statistic. Here it has 2, and whatever goes in, what
    comes out in training is −1 and 1.
    """

    def __init__(self, width: int = 64, norm: str = "BN"):
        norms = {"BN": nn.BatchNorm1d, "GN": lambda features: nn.GroupNorm(GROUPS, features)}
        hidden = [layer for _ in range(2) for layer in (nn.Linear(64, width), new_norm(norms, norm, width), nn.ReLU())]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(width, 10))


class SequenceNet(nn.Module):
    """LSTMs whose outputs are normalized step by step, and a linear head on the last step: (B, L, d_in) → (B, n_out)
    (S4, RNN)."""

    def __init__(self, d_in: int, n_out: int, d: int = 32, n_layers: int = 2, norm: str = "LN"):
        super().__init__()
        self.lstms = nn.ModuleList(nn.LSTM(d_in if i == 0 else d, d, batch_first=True) for i in range(n_layers))
        self.norms = nn.ModuleList(new_norm(NORMS_1D, norm, d) for _ in range(n_layers))
        self.head = nn.Linear(d, n_out)

    def forward(self, x: Tensor) -> Tensor:
        for lstm, norm in zip(self.lstms, self.norms, strict=True):
            x = norm(lstm(x)[0])
        return self.head(x[:, -1])


class DepthNet(nn.Module):
    """A Transformer of TransformerLayers with a linear head on the mean: (B, L, d_in) → (B, n_classes)."""

    def __init__(self, d_in: int, length: int, n_classes: int = 10, d: int = 32, depth: int = 6, **layer):
        super().__init__()
        self.embed, self.place = nn.Linear(d_in, d), nn.Embedding(length, d)
        self.layers = nn.ModuleList(TransformerLayer(d, **layer) for _ in range(depth))
        # pre-norm leaves the stream as it is, so a last norm stands before the head
        last = layer.get("norm", "LN") if layer.get("place", "pre") == "pre" else "None"
        self.final, self.head = new_norm(NORMS_1D, last, d), nn.Linear(d, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x).mean(1))
