"""`level`: is the mean of a sequence far from zero? Each seed draws new rows.

A row is noise around a level m, which is drawn uniformly from −1…1; the mean of the row is exactly
m. The class of the row is 1 if |m| > ½ (about half of all rows), and 0 if not. Only the mean
differs between the classes, so a norm that subtracts each channel's mean over the sequence must
fail (notebook 03).
"""

import torch

from mambanorm_study.tasks.base import TaskData, consecutive_splits
from mambanorm_study.tasks.registry import Shape, register_task

SMOKE_SIZES = (40, 20, 20)  # rows of train, validation and test at scale smoke
SIZES = (1_200, 300, 600)  # rows of train, validation and test at the other scales
LENGTH = 32


def _shape(scale: str) -> Shape:
    sizes = SMOKE_SIZES if scale == "smoke" else SIZES
    return Shape(2, LENGTH, in_features=1, sizes=sizes, reshuffled=True, new_rows=True)


@register_task(
    "level",
    title="Level: is a sequence's mean far from zero?",
    source="made up for notebook 03",
    shape=_shape,
)
def load_level(scale: str, seed: int) -> TaskData:
    """Return rows (n, 32, 1) float32 and labels 0 and 1.

    Train, validation and test have 1,200, 300 and 600 rows (smoke: 40, 20 and 20).
    """
    sizes = _shape(scale).sizes
    generator = torch.Generator().manual_seed(seed)
    level = 2 * torch.rand(sum(sizes), 1, generator=generator) - 1
    noise = torch.randn(sum(sizes), LENGTH, generator=generator)
    x = level + noise - noise.mean(1, keepdim=True)
    labels = (level[:, 0].abs() > 0.5).long()
    return TaskData(*consecutive_splits(x[..., None], labels, sizes), n_classes=2, in_features=1)
