"""Level: is the mean of a sequence far from zero? A task that norms along the sequence must lose.

A row is noise around a level m, drawn evenly from −1…1; its mean is m exactly. It belongs to class 1 where |m| > ½,
half of all rows. Nothing but the mean tells the classes apart, and no straight line through it does. A norm that
subtracts each channel's mean over the sequence takes away what is asked for (notebook 03).

Source: ours, a made-up task for teaching.

Map: load_level(scale, seed) -> TaskData
"""

from __future__ import annotations

import torch

from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.registry import register_task

LENGTH, CLASSES = 32, 2
ROWS = {"smoke": (40, 20, 20)}
ALL_ROWS = (1_200, 300, 600)


def _shape(scale: str) -> Shape:
    train, val, test = ROWS.get(scale, ALL_ROWS)
    rows = dict(held_out=(val, test), train_rows=train)
    return Shape(CLASSES, LENGTH, in_features=1, **rows, reshuffled=True, fresh=True)


@register_task(
    "level", title="Level: is a sequence's mean far from zero?", source="ours, made up for notebook 03", shape=_shape
)
def load_level(scale: str, seed: int) -> TaskData:
    """1,200 / 300 / 600 rows (smoke: 40 / 20 / 20) that the seed draws: inputs (n, 32, 1) float32, labels 0 and 1."""
    sizes, draw = ROWS.get(scale, ALL_ROWS), torch.Generator().manual_seed(seed)
    level = 2 * torch.rand(sum(sizes), 1, generator=draw) - 1
    noise = torch.randn(sum(sizes), LENGTH, generator=draw)
    x = (level + noise - noise.mean(1, keepdim=True))[..., None]
    y = (level[:, 0].abs() > 0.5).long()
    parts = zip(x.split(sizes), y.split(sizes), strict=True)
    return TaskData(*(Split(*part) for part in parts), n_classes=CLASSES, in_features=1)
