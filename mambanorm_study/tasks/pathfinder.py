"""Pathfinder, pixel by pixel: do the two discs of an image lie on the same dashed curve?

The images were released by the Long Range Arena (LRA).

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), LRA, arXiv:2011.04006; reader,
split and scaling as in state-spaces/s4 `src/dataloaders/lra.py`.

Glossary: window = edge of a released image in pixels; edge = edge after averaging; L = positions =
edge², row after row.
"""

from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import check_labels, data_folder, missing_data_error
from mambanorm_study.tasks.images import as_sequences, average_blocks, open_image
from mambanorm_study.tasks.registry import Shape, SplitSizes, draw_rows, register_task

WINDOWS = (32, 64, 128)
LRA = "curv_contour_length_14"  # LRA has three such folders; s4 reads this one
HOW = f"Download lra_release.gz (address in LRA's repository) and put its {LRA} there"
MIN_IMAGES = 198_000  # LRA's release has 200,000 images or a few fewer

SETTINGS: dict[str, SplitSizes] = {
    "smoke": SplitSizes((64, 32, 32), reshuffle=True),
    "quick": SplitSizes((8_000, 1_000, 2_000), reshuffle=True),
    "evening": SplitSizes((8_000, 1_000, 2_000), reshuffle=True),
    "lab": SplitSizes((32_000, 4_000, 4_000), reshuffle=False),
    # Exactly LRA's sizes: 200,000 images, 80 % train, 10 % validation, 10 % test.
    "paper": SplitSizes((160_000, 20_000, 20_000), reshuffle=False),
}
# Scale -> edge to which images are averaged. At the other scales, images are not averaged.
EDGES = {"smoke": 16}


@lru_cache(maxsize=2)
def read_labels(root: Path) -> dict[Path, int]:
    """Return a map from image path to label, read from all `<root>/<LRA>/metadata/<batch>.npy`.

    These files are plain text in spite of their names. A line describes one image: its folder, its
    file name, a number, its label, and parameters of the generator. Raises ValueError if no file
    exists, or, with the path, if a file has other content.
    """
    labels: dict[Path, int] = {}
    metadata = root / LRA / "metadata"
    for file in sorted(metadata.glob("[0-9]*.npy"), key=lambda file: int(file.stem)):
        try:
            rows = [line.split() for line in file.read_text("utf-8").splitlines()]
            values = check_labels(np.array([int(row[3]) for row in rows]), 2, "its metadata")
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"{file} cannot be read ({error}), needed are rows of subpath, file name, number "
                "and label, as text: replace this file"
            ) from error
        for row, label in zip(rows, values, strict=True):
            labels[root / LRA / row[0] / row[1]] = int(label)
    if not labels:
        raise missing_data_error(root.name, root / LRA, HOW)
    return labels


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Return grey values (n, edge², 1) float32 in [0, 1] and labels.

    Label 1 means that both discs lie on the same curve, label 0 that they do not. The seed decides
    which of LRA's images are train, val and test, except at lab and paper. Raises ValueError if
    images are missing.
    """
    name, settings = f"pathfinder{window}", SETTINGS[scale]
    labels = read_labels(data_folder(name))
    n, sizes = len(labels), settings.sizes
    if scale == "paper":  # split by s4's fractions, because the release may lack a few images
        if n < MIN_IMAGES:
            raise ValueError(
                f"{data_folder(name) / LRA} holds {n:,} images, LRA's release has 200,000: "
                "provide all images"
            )
        sizes = int(0.8 * n), int(0.1 * n), n - int(0.8 * n) - int(0.1 * n)
    row_numbers = draw_rows(n, sizes, settings.split_seed(seed), f"{name}'s pool")
    splits = [
        _read_split(labels, rows.tolist(), window, EDGES.get(scale, window)) for rows in row_numbers
    ]
    return TaskData(*splits, n_classes=2, in_features=1)


def _read_split(labels: dict[Path, int], rows: list[int], window: int, edge: int) -> Split:
    paths, images = list(labels), np.zeros((len(rows), window, window), np.uint8)
    for i, row in enumerate(tqdm(rows, desc="Pathfinder", unit=" images", delay=2)):
        images[i] = open_image(paths[row], paths[row], "L", window)
    targets = torch.tensor([labels[paths[row]] for row in rows])
    return Split(as_sequences(average_blocks(images, window // edge)), targets)


def _shape(window: int, scale: str) -> Shape:
    settings = SETTINGS[scale]
    return Shape(
        2,
        EDGES.get(scale, window) ** 2,
        in_features=1,
        sizes=settings.sizes,
        reshuffled=settings.reshuffle,
    )


for _window in WINDOWS:
    register_task(
        f"pathfinder{_window}",
        title=f"Pathfinder {_window}×{_window}: do two discs lie on one snake? Pixel by pixel",
        source="Linsley et al. (2018), arXiv:1805.08315; "
        "Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
        shape=partial(_shape, _window),
    )(partial(load_pathfinder, _window))
