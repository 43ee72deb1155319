"""Pathfinder, pixel by pixel: do the two discs of a picture lie on the same dashed snake?

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena (LRA), arXiv:2011.04006; split and
scaling as in state-spaces/s4 `src/dataloaders/lra.py`. How a picture is drawn: `mambanorm/tasks/snakes.py`.

Map
    Scale, SETTINGS     rows, length of the snakes and size at each scale: the one table to change
    cache_path          where the pictures are cached
    load_pathfinder     the registered tasks: pathfinder32, pathfinder64, pathfinder128

Glossary: window = the picture's edge in pixels; L = positions = edge², row after row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch

from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import Sizes, cache_file, cached, data_folder, pick
from mambanorm.tasks.images import as_sequences, block_mean
from mambanorm.tasks.registry import register_task
from mambanorm.tasks.snakes import DRAWINGS, Drawing, draw

GENERATOR = 1  # part of the cache's name: raise it whenever the same settings would give other pictures
POOL_SEED = 0


@dataclass(frozen=True)
class Scale:
    """What is drawn at a scale; `edge`: the picture is averaged down to edge × edge pixels, None = not at all."""

    sizes: Sizes
    contour_length: int
    edge: int | None = None

    @property
    def rows(self) -> list[int]:
        """Of train, validation and test."""
        return [self.sizes.train, self.sizes.val, self.sizes.test]

    def drawing(self, window: int) -> Drawing:
        return replace(DRAWINGS[window], contour_length=self.contour_length)


SETTINGS: dict[str, Scale] = {
    # For tests: nothing can be learned from a picture of 16×16.
    "smoke": Scale(Sizes(64, 32, 32, reshuffle=True), contour_length=14, edge=16),
    # Snakes of six dashes, the easiest of the published sets, so that there is something to learn in minutes.
    "quick": Scale(Sizes(8_000, 1_000, 2_000, reshuffle=True), contour_length=6),
    "evening": Scale(Sizes(8_000, 1_000, 2_000, reshuffle=True), contour_length=6),
    # LRA's snakes, a fifth of its rows.
    "lab": Scale(Sizes(32_000, 4_000, 4_000, reshuffle=False), contour_length=14),
    # LRA's numbers: 200,000 pictures, 80 % train, 10 % validation, 10 % test.
    "paper": Scale(Sizes(160_000, 20_000, 20_000, reshuffle=False), contour_length=14),
}


def cache_path(window: int, scale: str) -> Path:
    """The file that holds a scale's pictures (n, H, W) and labels (n,)."""
    key = [GENERATOR, asdict(SETTINGS[scale].drawing(window)), sum(SETTINGS[scale].rows)]
    return cache_file(data_folder(f"pathfinder{window}"), f"{scale}-seed{POOL_SEED}", key)


@lru_cache(maxsize=2)
def _pool(window: int, scale: str, path: Path) -> list[np.ndarray]:
    """Every picture and label of a scale, shared by all seeds. `path`: where they are cached."""
    settings = SETTINGS[scale]
    return cached(path, lambda: draw(sum(settings.rows), settings.drawing(window), POOL_SEED))


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Grey values (n, window², 1) float32 in [0, 1], labels 1 = the discs lie on one snake.

    At smoke and quick the seed decides which pictures of one pool are train, val and test; at lab and paper it changes
    nothing.
    """
    settings = SETTINGS[scale]
    pictures, labels = _pool(window, scale, cache_path(window, scale))
    factor, splits = window // (settings.edge or window), []
    picked = pick(len(labels), settings.rows, settings.sizes.seed(seed), f"pathfinder{window}'s pool")
    for rows in map(np.asarray, picked):
        splits.append(Split(as_sequences(block_mean(pictures[rows], factor)), torch.from_numpy(labels[rows])))
    return TaskData(*splits, n_classes=2, in_features=1)


def shape(window: int, scale: str) -> Shape:
    settings = SETTINGS[scale]
    return Shape(2, (settings.edge or window) ** 2, in_features=1, **settings.sizes.told((0, 0)))


for _window in DRAWINGS:
    register_task(
        f"pathfinder{_window}",
        title=f"Pathfinder {_window}×{_window}: do two discs lie on one snake? Pixel by pixel",
        source="Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
        shape=partial(shape, _window),
    )(partial(load_pathfinder, _window))
