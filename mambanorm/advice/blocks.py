"""The building blocks of the guide (source S4), with the norm as an argument: small enough to be read at one sitting.

Images are (B, C, H, W), sequences (B, L, D), as torch has them.

    norm_2d, norm_1d          a norm by its name, for images or for sequences
    ConvBlock                 convolution → norm → ReLU            (S4, CNN)
    StyleConvBlock            the same with InstanceNorm           (S4, style transfer)
    NormalizedLSTM            LSTM → norm of each step's output    (S4, RNN)
    StackedNormalizedLSTM     several of them                      (S4, RNN)
    TransformerLayer          pre- or post-norm, LN or RMSN        (S4, Transformer)
    Generator, Discriminator  of a GAN for images of 8×8           (S4, GAN)
    ConvNet, StyleNet, SequenceNet, DepthNet   the models of the experiments, made of them
"""

from __future__ import annotations

import itertools

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


def norm_2d(name: str, channels: int) -> nn.Module:
    """A norm of images (B, C, H, W): None, BN, IN, GN or LN (over C·H·W). ValueError for another name."""
    if name not in NORMS_2D:
        raise unknown("norm of images", name, NORMS_2D)
    return NORMS_2D[name](channels)


class StepBatchNorm(nn.BatchNorm1d):
    """BatchNorm of sequences (B, L, D): one statistic a channel, over all rows and all steps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


NORMS_1D = {"None": lambda d: nn.Identity(), "BN": StepBatchNorm, "LN": nn.LayerNorm, "RMSN": nn.RMSNorm}


def norm_1d(name: str, channels: int) -> nn.Module:
    """A norm of sequences (B, L, D): None, BN, LN or RMSN. ValueError for another name."""
    if name not in NORMS_1D:
        raise unknown("norm of sequences", name, NORMS_1D)
    return NORMS_1D[name](channels)


class ConvBlock(nn.Sequential):
    """Convolution 3×3 → norm → ReLU, (B, c_in, H, W) → (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, norm: str = "BN"):
        super().__init__(nn.Conv2d(c_in, c_out, 3, padding=1), norm_2d(norm, c_out), nn.ReLU(inplace=True))


class StyleConvBlock(ConvBlock):
    """The block for style transfer: each image is normalized by its own statistics."""

    def __init__(self, c_in: int, c_out: int, norm: str = "IN"):
        super().__init__(c_in, c_out, norm)


class NormalizedLSTM(nn.Module):
    """LSTM whose outputs are normalized step by step, (B, L, d_in) → (B, L, d) and the last (h, c)."""

    def __init__(self, d_in: int, d: int, norm: str = "LN"):
        super().__init__()
        self.lstm = nn.LSTM(d_in, d, batch_first=True)
        self.norm = norm_1d(norm, d)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.lstm(x)
        return self.norm(y), state


class StackedNormalizedLSTM(nn.Module):
    """`n_layers` normalized LSTMs, (B, L, d_in) → (B, L, d)."""

    def __init__(self, d_in: int, d: int, n_layers: int, norm: str = "LN"):
        super().__init__()
        widths = [d_in] + [d] * n_layers
        self.layers = nn.ModuleList(NormalizedLSTM(a, b, norm) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


class TransformerLayer(nn.Module):
    """Attention and feed-forward, (B, L, D) → (B, L, D). place="pre": x + f(norm(x)); "post": norm(x + f(x))."""

    def __init__(self, d: int, n_heads: int = 4, norm: str = "LN", place: str = "pre"):
        super().__init__()
        if place not in ("pre", "post"):
            raise unknown("place", place, ("pre", "post"))
        self.place, self.n_heads = place, n_heads
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.ffn = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))
        self.norm1, self.norm2 = norm_1d(norm, d), norm_1d(norm, d)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v)  # (B, heads, L, D / heads)
        return self.out(mixed.transpose(1, 2).flatten(-2))

    def forward(self, x: Tensor) -> Tensor:
        for norm, sublayer in ((self.norm1, self.attend), (self.norm2, self.ffn)):
            x = x + sublayer(norm(x)) if self.place == "pre" else norm(x + sublayer(x))
        return x


class Generator(nn.Module):
    """Noise (B, noise) → images (B, 1, 8, 8) in [−1, 1]."""

    def __init__(self, noise: int = 16, channels: int = 32, norm: str = "None"):
        super().__init__()
        self.noise, self.channels = noise, channels
        self.start = nn.Linear(noise, channels * 4 * 4)
        self.blocks = nn.Sequential(
            norm_2d(norm, channels), nn.ReLU(), nn.Upsample(scale_factor=2), ConvBlock(channels, channels, norm)
        )
        self.paint = nn.Conv2d(channels, 1, 3, padding=1)  # no norm on the output

    def forward(self, z: Tensor) -> Tensor:
        return self.paint(self.blocks(self.start(z).view(-1, self.channels, 4, 4))).tanh()


class Discriminator(nn.Module):
    """Images (B, 1, 8, 8) → one score a row (B,), above 0 for real."""

    def __init__(self, channels: int = 32, norm: str = "None"):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
            nn.Conv2d(channels, channels, 4, stride=2, padding=1), norm_2d(norm, channels), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(channels * 2 * 2, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).squeeze(-1)


class ConvNet(nn.Sequential):
    """ConvBlocks, the mean over each quarter of the image, a linear head: (B, 1, H, W) → (B, n_classes).

    A mean over the whole image would be nearly the same for all images behind GN, which sets the means of groups.
    """

    def __init__(self, n_classes: int = 10, channels: int = 16, depth: int = 3, norm: str = "BN"):
        widths = [1] + [channels] * depth
        blocks = [ConvBlock(a, b, norm) for a, b in itertools.pairwise(widths)]
        super().__init__(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, n_classes))


class StyleNet(nn.Sequential):
    """StyleConvBlocks and a last convolution without norm: images (B, 1, H, W) → images."""

    def __init__(self, channels: int = 16, depth: int = 2, norm: str = "IN"):
        widths = [1] + [channels] * depth
        blocks = [StyleConvBlock(a, b, norm) for a, b in itertools.pairwise(widths)]
        super().__init__(*blocks, nn.Conv2d(channels, 1, 3, padding=1))


class SequenceNet(nn.Module):
    """A StackedNormalizedLSTM and a linear head on its last step: (B, L, d_in) → (B, n_out)."""

    def __init__(self, d_in: int, n_out: int, d: int = 32, n_layers: int = 2, norm: str = "LN"):
        super().__init__()
        self.lstm, self.head = StackedNormalizedLSTM(d_in, d, n_layers, norm), nn.Linear(d, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[:, -1])


class DepthNet(nn.Module):
    """A Transformer of TransformerLayers with a linear head on the mean: (B, L, d_in) → (B, n_classes)."""

    def __init__(self, d_in: int, length: int, n_classes: int = 10, d: int = 32, depth: int = 6, **layer):
        super().__init__()
        self.embed, self.place = nn.Linear(d_in, d), nn.Embedding(length, d)
        self.layers = nn.ModuleList(TransformerLayer(d, **layer) for _ in range(depth))
        # pre-norm leaves the stream as it is, so a last norm stands before the head
        self.final = norm_1d(layer.get("norm", "LN"), d) if layer.get("place", "pre") == "pre" else nn.Identity()
        self.head = nn.Linear(d, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.place.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.final(x).mean(1))
