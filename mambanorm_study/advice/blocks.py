"""Small versions of the models in the guide *Normalization Techniques* (`references("S4")`).

The norm is an argument of each model. Images are (B, C, H, W), as in torch. Sequences are
(B, L, D).
"""

from torch import Tensor, nn

from mambanorm.norms import create_norm

# The number of groups of GN. The feature maps in ConvNet have 16 channels, so each group has four.
# The guide says 32 groups, but on 32 channels GN with 32 groups would be InstanceNorm.
GROUPS = 4

# Map from the name of a norm to a function that takes the number of channels and returns the norm:
# a module for images (B, C, H, W).
NORMS_2D = {
    "None": lambda c: nn.Identity(),
    "BN": nn.BatchNorm2d,
    "IN": lambda c: nn.InstanceNorm2d(c, affine=True),
    "GN": lambda c: nn.GroupNorm(min(GROUPS, max(c // 2, 1)), c),
    "LN": lambda c: nn.GroupNorm(1, c),  # LayerNorm over C, H and W of an image
}


class ConvBlock(nn.Sequential):
    """A convolution 3×3, a norm and ReLU: (B, c_in, H, W) → (B, c_out, H, W)."""

    def __init__(self, c_in: int, c_out: int, norm: str = "BN"):
        super().__init__(
            nn.Conv2d(c_in, c_out, 3, padding=1), NORMS_2D[norm](c_out), nn.ReLU(inplace=True)
        )


class ConvNet(nn.Sequential):
    """Three ConvBlocks, the mean over each quarter of the image, and a linear head.

    (B, 1, H, W) → (B, 10). The mean is not taken over the whole image: GN fixes the mean of each
    group of channels over the image, so the result would be nearly the same for all images.
    """

    def __init__(self, norm: str = "BN"):
        blocks = ConvBlock(1, 16, norm), ConvBlock(16, 16, norm), ConvBlock(16, 16, norm)
        super().__init__(*blocks, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))


class StyleNet(nn.Sequential):
    """A model for style transfer, as in the guide: two ConvBlocks and a convolution without a norm.

    (B, 1, H, W) → (B, 1, H, W).
    """

    def __init__(self, norm: str = "IN"):
        blocks = ConvBlock(1, 16, norm), ConvBlock(16, 16, norm)
        super().__init__(*blocks, nn.Conv2d(16, 1, 3, padding=1))


class DenseNet(nn.Sequential):
    """Two hidden linear layers, each with a norm (BN or GN), and a linear head.

    Images (B, 1, 8, 8) → (B, 10). In a batch of two images, BatchNorm computes each statistic from
    2·H·W values after a convolution, but from two values after a linear layer. So in training the
    two values become −1 and 1, whatever the inputs are.
    """

    def __init__(self, norm: str = "BN"):
        norms = {"BN": nn.BatchNorm1d, "GN": lambda features: nn.GroupNorm(GROUPS, features)}
        first = nn.Linear(64, 64), norms[norm](64), nn.ReLU()
        second = nn.Linear(64, 64), norms[norm](64), nn.ReLU()
        super().__init__(nn.Flatten(), *first, *second, nn.Linear(64, 10))


class SequenceNet(nn.Module):
    """An LSTM, a norm on the LSTM's outputs, and a linear head on the last step.

    (B, L, d_in) → (B, n_out), as in the guide's section RNN. d: the number of hidden units of the
    LSTM.
    """

    def __init__(self, d_in: int, n_out: int, d: int = 24, norm: str = "LN"):
        super().__init__()
        self.lstm = nn.LSTM(d_in, d, batch_first=True)
        self.norm = create_norm(norm, d)
        self.head = nn.Linear(d, n_out)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(x)[0])[:, -1])
