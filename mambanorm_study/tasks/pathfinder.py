"""Pathfinder, pixel by pixel: do the two discs of a picture lie on the same dashed snake? LRA's own
pictures.

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena (LRA),
arXiv:2011.04006; reader, split and scaling as in state-spaces/s4 `src/dataloaders/lra.py`; metadata
also as drewlinsley/pathfinder writes them.

Glossary: window = the picture's edge in pixels; L = positions = edge², row after row.
"""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from tqdm.auto import tqdm

from mambanorm_study.tasks.base import Shape, Split, TaskData
from mambanorm_study.tasks.files import (
    AGAIN,
    Sizes,
    check_labels,
    data_folder,
    missing,
    pick,
    read_text,
)
from mambanorm_study.tasks.images import as_sequences, block_mean, open_picture
from mambanorm_study.tasks.registry import register_task

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
    """Return picture's path → label of every row of `<root>/<LRA>/metadata/<batch>.npy`, in the
    order of the batches.

    ValueError with the file's name for one that is not the metadata of a batch: it has rows of
    subpath, file name, number, label and what else the generator noted.
    """
    labels: dict[Path, int] = {}
    for file in sorted((root / LRA / "metadata").glob("*.npy"), key=_batch):
        try:
            rows = _rows(file)
            found = check_labels(np.array([int(row[3]) for row in rows]), 2, "its metadata")
            labels |= {
                root / LRA / row[0] / row[1]: int(label)
                for row, label in zip(rows, found, strict=True)
            }
        except (ValueError, IndexError, TypeError, EOFError) as error:
            needed = (
                "rows of subpath, file name, number and label, as text or as an array of strings"
            )
            raise ValueError(
                f"{file} cannot be read ({error}), needed are {needed}: {AGAIN}"
            ) from error
    return labels


def _batch(file: Path) -> int:
    """Return the number of a batch, whose metadata are in `<number>.npy`."""
    if (
        not file.stem.isdecimal()
    ):  # such as combined.npy of the generator's combine_metadata.py: the same rows again
        raise ValueError(
            f"{file} is not the metadata of one batch, <number>.npy: move it out of {file.parent}"
        )
    return int(file.stem)


def _rows(file: Path) -> list[list[str]]:
    """Return the rows of a batch: LRA's release has plain text in its .npy files, the generator
    writes an array."""
    with open(file, "rb") as content:
        binary = content.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX
    if binary:  # of bytes where Python 2 wrote it
        return np.load(file, allow_pickle=False).astype(str).tolist()
    return [line.split() for line in read_text(file).splitlines()]


@lru_cache(maxsize=2)
def _labels(root: Path) -> dict[Path, int]:
    if not (labels := read_lra(root)):
        raise missing(root.name, root / LRA, HOW)
    return labels


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Grey values (n, edge², 1) float32 in [0, 1], labels 1 = the discs lie on one snake.

    At smoke, quick and evening the seed decides which of LRA's pictures are train, val and test; at
    lab and paper it changes nothing. ValueError where the pictures are not there.
    """
    name, sizes = f"pathfinder{window}", SETTINGS[scale]
    labels = _labels(data_folder(name))
    n, counts = len(labels), (sizes.train, sizes.val, sizes.test)
    if (
        scale == "paper"
    ):  # LRA's release may hold a few pictures less: split what is there by s4's fractions
        if n < LEAST:
            raise ValueError(
                f"{data_folder(name) / LRA} holds {n:,} pictures, LRA's release 200,000: bring all of it"
            )
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
