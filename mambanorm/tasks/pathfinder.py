"""Pathfinder, pixel by pixel: do the two discs of a picture lie on the same dashed snake? LRA's own pictures.

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena (LRA), arXiv:2011.04006; reader,
split and scaling as in state-spaces/s4 `src/dataloaders/lra.py`.

Glossary: window = the picture's edge in pixels; L = positions = edge², row after row.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import Sizes, data_folder, missing, pick
from mambanorm.tasks.images import as_sequences, block_mean, open_picture
from mambanorm.tasks.registry import register_task

WINDOWS = (32, 64, 128)
LRA = "curv_contour_length_14"  # the one of LRA's three folders that s4 reads
HOW = "Download lra_release.gz (LRA's repository has its address) and put this folder there"
LEAST = 198_000  # pictures of LRA's 200,000 that must be there

SETTINGS: dict[str, Sizes] = {
    "smoke": Sizes(64, 32, 32, reshuffle=True),
    **dict.fromkeys(("quick", "evening"), Sizes(8_000, 1_000, 2_000, reshuffle=True)),
    "lab": Sizes(32_000, 4_000, 4_000, reshuffle=False),
    # LRA exactly: 200,000 pictures, 80 % train, 10 % validation, 10 % test.
    "paper": Sizes(160_000, 20_000, 20_000, reshuffle=False),
}
EDGES = {"smoke": 16}
"""The edge to which a scale averages the pictures; the others take them as they are."""


def read_lra(root: Path) -> dict[Path, int]:
    """Picture's path → label of every row of `<root>/<LRA>/metadata/<batch>.npy`, which are plain text, in the order of
    the batches."""
    batches = sorted((root / LRA / "metadata").glob("*.npy"), key=lambda file: int(file.stem))
    rows = [line.split() for batch in batches for line in batch.read_text().splitlines()]
    return {root / LRA / row[0] / row[1]: int(row[3]) for row in rows}  # subpath, file name, n, label, …


@lru_cache(maxsize=2)
def _labels(root: Path) -> dict[Path, int]:
    if not (labels := read_lra(root)):
        raise missing(root.name, root / LRA, HOW)
    return labels


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Grey values (n, edge², 1) float32 in [0, 1], labels 1 = the discs lie on one snake.

    At smoke, quick and evening the seed decides which of LRA's pictures are train, val and test; at lab and paper it
    changes nothing. ValueError where the pictures are not there.
    """
    name, sizes = f"pathfinder{window}", SETTINGS[scale]
    labels = _labels(data_folder(name))
    n, counts = len(labels), (sizes.train, sizes.val, sizes.test)
    if scale == "paper":  # LRA's release may hold a few pictures less: split what is there by s4's fractions
        if n < LEAST:
            raise ValueError(f"{data_folder(name) / LRA} holds {n:,} pictures, LRA's release 200,000: bring all of it")
        counts = (int(0.8 * n), int(0.1 * n), n - int(0.8 * n) - int(0.1 * n))
    return TaskData(
        *(
            _split(labels, rows.tolist(), window, EDGES.get(scale, window))
            for rows in pick(n, counts, sizes.seed(seed), f"{name}'s pool")
        ),
        n_classes=2,
        in_features=1,
    )


def _split(labels: dict[Path, int], rows: list[int], window: int, edge: int) -> Split:
    """The pictures of these rows, decoded."""
    paths, pictures = list(labels), np.zeros((len(rows), window, window), np.uint8)
    for i, row in enumerate(tqdm(rows, desc="Pathfinder", unit=" pictures", delay=2)):
        pictures[i] = np.asarray(open_picture(paths[row], paths[row], "L", window))
    targets = torch.tensor([labels[paths[row]] for row in rows])
    return Split(as_sequences(block_mean(pictures, window // edge)), targets)


def shape(window: int, scale: str) -> Shape:
    return Shape(2, EDGES.get(scale, window) ** 2, in_features=1, **SETTINGS[scale].told((0, 0)))


for _window in WINDOWS:
    register_task(
        f"pathfinder{_window}",
        title=f"Pathfinder {_window}×{_window}: do two discs lie on one snake? Pixel by pixel",
        source="Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
        shape=partial(shape, _window),
    )(partial(load_pathfinder, _window))
