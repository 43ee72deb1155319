"""Pathfinder, pixel by pixel: do the two discs of a picture lie on the same dashed snake?

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena (LRA), arXiv:2011.04006; reader,
split and scaling as in state-spaces/s4 `src/dataloaders/lra.py`. How a picture is drawn: `mambanorm/tasks/snakes.py`.

Glossary: window = the picture's edge in pixels; L = positions = edge², row after row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import Sizes, cache_file, data_folder, kept, pick
from mambanorm.tasks.images import as_sequences, block_mean, open_picture
from mambanorm.tasks.registry import register_task
from mambanorm.tasks.snakes import DRAWINGS, Drawing, draw

GENERATOR = 1  # part of the cache's name: raise it whenever the same settings would give other pictures
POOL_SEED = 0
LRA = "curv_contour_length_14"  # the one of LRA's three folders that s4 reads
LEAST = 198_000  # pictures of LRA's 200,000 that must be there


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
    # LRA exactly: 200,000 pictures, 80 % train, 10 % validation, 10 % test.
    "paper": Scale(Sizes(160_000, 20_000, 20_000, reshuffle=False), contour_length=14),
}


# ---------------------------------------------------------------------------------------------- LRA's folders


def read_lra(root: Path) -> dict[Path, int]:
    """Picture's path → label of every row of `<root>/<LRA>/metadata/<batch>.npy`, which are plain text, in the order of
    the batches."""
    batches = sorted((root / LRA / "metadata").glob("*.npy"), key=lambda file: int(file.stem))
    rows = [line.split() for batch in batches for line in batch.read_text().splitlines()]
    return {root / LRA / row[0] / row[1]: int(row[3]) for row in rows}  # subpath, file name, n, label, …


def _lra_pictures(root: Path, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Every picture of LRA's folder, decoded, and its label."""
    labels = read_lra(root)
    pictures = np.zeros((len(labels), window, window), np.uint8)
    for i, path in enumerate(tqdm(labels, desc=root.name, unit=" pictures", delay=2)):
        pictures[i] = np.asarray(open_picture(path, path, "L", window))
    return pictures, np.array(list(labels.values()))


# ---------------------------------------------------------------------------------------------- the pool


@lru_cache(maxsize=2)
def _pool(window: int, scale: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Every picture and label of a scale, shared by all seeds: LRA's own at paper where its folder is there."""
    if scale == "paper" and (folder / LRA).exists():
        return _lra_pictures(folder, window)
    drawing, rows = SETTINGS[scale].drawing(window), sum(SETTINGS[scale].rows)
    path = cache_file(folder, f"{scale}-seed{POOL_SEED}", [GENERATOR, POOL_SEED, [asdict(drawing), rows]])
    return tuple(kept(path, lambda: draw(rows, drawing, POOL_SEED)))


# ---------------------------------------------------------------------------------------------- the tasks


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Grey values (n, window², 1) float32 in [0, 1], labels 1 = the discs lie on one snake.

    At smoke and quick the seed decides which pictures of one pool are train, val and test; at lab and paper it changes
    nothing. At paper LRA's own pictures are used where `data/pathfinder<window>/curv_contour_length_14` is there.
    """
    settings, folder = SETTINGS[scale], data_folder(f"pathfinder{window}")
    pictures, labels = _pool(window, scale, folder)
    n, whole, counts = len(labels), sum(settings.rows), settings.rows
    if scale == "paper":  # LRA's release may hold a few pictures less: split what is there by s4's fractions
        if n < LEAST:
            raise ValueError(
                f"{folder / LRA} holds {n:,} pictures, LRA's release {whole:,}: bring all of its batches, or move the "
                "folder away to have the pictures drawn"
            )
        counts = [int(0.8 * n), int(0.1 * n), n - int(0.8 * n) - int(0.1 * n)]
    factor, splits = window // (settings.edge or window), []
    for rows in map(np.asarray, pick(n, counts, settings.sizes.seed(seed), f"pathfinder{window}'s pool")):
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
