"""The stem of models that read images (B, H, W, C): patches of p×p pixels become positions."""

from torch import Tensor, nn

from mambanorm.checks import check_size
from mambanorm.models.parts import Classifier, check_values_of


class ImageReader(Classifier):
    """Base of classifiers of images. patch: p. down_sample: the blocks after which the image is
    halved.
    """

    patch = 1
    down_sample: tuple[int, ...] = ()

    def _image_stem(self, channels: int, d_model: int) -> nn.Module:
        check_size("patch", self.patch)
        return nn.Conv2d(channels, d_model, self.patch, stride=self.patch)

    def _check_images(self, x: Tensor) -> None:
        """Raise ValueError for values that are no images, and for sizes that do not divide into
        patches.
        """
        check_values_of(x, "B, H, W", self.in_channels)
        cell, (H, W) = self.patch * 2 ** len(self.down_sample), x.shape[1:3]
        if H % cell or W % cell:
            halvings = f", halved {len(self.down_sample)} times" if self.down_sample else ""
            raise ValueError(
                f"images of {H}×{W} pixels do not divide into patches of "
                f"{self.patch}×{self.patch}{halvings}: "
                f"height and width must be multiples of {cell}"
            )
