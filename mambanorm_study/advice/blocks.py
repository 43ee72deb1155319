"""The building blocks of the guide (source S4), with the norm as an argument.

Images are (B, C, H, W), sequences (B, L, D), as in torch.
"""

import itertools

from torch import Tensor, nn

from mambanorm.norms import create_norm

# Groups of GN, of four channels each. S4 says 32, which equals InstanceNorm up to 32 channels.
GROUPS = 4

# Name of a norm → channels → norm of images (B, C, H, W).
NORMS_2D = {
    "None": lambda c: nn.Identity(),
    "BN": nn.BatchNorm2d,
    "IN": lambda c: nn.InstanceNorm2d(c, affine=True),
    "GN": lambda c: nn.GroupNorm(min(GROUPS, max(c // 2, 1)), c),
    "LN": lambda c: nn.GroupNorm(1, c),  # one statistic over C, H and W: LayerNorm of images
}


class ConvBlock(nn.Sequential):
    """Convolution 3×3 → norm → ReLU, (B, c_in, H, W) → (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, norm: str = "BN"):
        super().__init__(
            nn.Conv2d(c_in, c_out, 3, padding=1), NORMS_2D[norm](c_out), nn.ReLU(inplace=True)
        )


class ConvNet(nn.Sequential):
    """ConvBlocks, the mean over each quarter of the image, and a linear head: (B, 1, H, W) → (B,
    n_classes).

    After GN, which sets the means of groups, a mean over the whole image would be nearly the same
    for all images.
    """

    def __init__(self, n_classes: int = 10, channels: int = 16, depth: int = 3, norm: str = "BN"):
        widths = [1] + [channels] * depth
        blocks = [ConvBlock(a, b, norm) for a, b in itertools.pairwise(widths)]
        super().__init__(
            *blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, n_classes)
        )


class StyleNet(nn.Sequential):
    """ConvBlocks and a last convolution without a norm: (B, 1, H, W) → (B, 1, H, W) (S4, style
    transfer).
    """

    def __init__(self, channels: int = 16, depth: int = 2, norm: str = "IN"):
        blocks = [ConvBlock(a, b, norm) for a, b in itertools.pairwise([1] + [channels] * depth)]
        super().__init__(*blocks, nn.Conv2d(channels, 1, 3, padding=1))


class DenseNet(nn.Sequential):
    """Two hidden linear layers with a norm each, BN or GN, and a linear head: images (B, 1, 8, 8) →
    (B, 10).

    At batch 2, BatchNorm computes each statistic from 2·H·W values after a convolution, and from 2
    values here: in training its outputs are −1 and 1, whatever the inputs are.
    """

    def __init__(self, width: int = 64, norm: str = "BN"):
        norms = {"BN": nn.BatchNorm1d, "GN": lambda features: nn.GroupNorm(GROUPS, features)}
        hidden = [
            layer
            for _ in range(2)
            for layer in (nn.Linear(64, width), norms[norm](width), nn.ReLU())
        ]
        super().__init__(nn.Flatten(), *hidden, nn.Linear(width, 10))


class SequenceNet(nn.Module):
    """LSTMs with a norm on their outputs, and a linear head on the last step: (B, L, d_in) → (B,
    n_out) (S4, RNN).
    """

    def __init__(self, d_in: int, n_out: int, d: int = 32, n_layers: int = 2, norm: str = "LN"):
        super().__init__()
        self.lstms = nn.ModuleList(
            nn.LSTM(d_in if i == 0 else d, d, batch_first=True) for i in range(n_layers)
        )
        self.norms = nn.ModuleList(create_norm(norm, d) for _ in range(n_layers))
        self.head = nn.Linear(d, n_out)

    def forward(self, x: Tensor) -> Tensor:
        for lstm, norm in zip(self.lstms, self.norms, strict=True):
            x = norm(lstm(x)[0])
        return self.head(x[:, -1])
