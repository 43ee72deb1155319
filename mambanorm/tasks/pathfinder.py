"""Pathfinder, pixel by pixel: do the two discs of a picture lie on the same dashed snake?

Sources: Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena (LRA), arXiv:2011.04006; reader,
split and scaling as in state-spaces/s4 `src/dataloaders/lra.py`. How a picture is drawn: `mambanorm/tasks/snakes.py`.

Map
    Scale, SETTINGS     rows, length of the snakes and size at each scale: the one table to change
    read_lra            LRA's own folders
    cache_path          where the pictures are cached, as Parquet
    load_pathfinder     the registered tasks: pathfinder32, pathfinder64, pathfinder128

Glossary: window = the picture's edge in pixels; L = positions = edge², row after row.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm.basics.later import Later
from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.files import Sizes, cached_table, data_folder, open_array, pick
from mambanorm.tasks.images import as_sequences, bad_picture, block_mean
from mambanorm.tasks.registry import register_task
from mambanorm.tasks.snakes import DRAWINGS, draw

pa, Image = Later("pyarrow"), Later("PIL.Image")

GENERATOR = 1  # part of the cache's name: raise it whenever the same settings would give other pictures
POOL_SEED = 0
LRA = "curv_contour_length_14"  # the one of LRA's three folders that s4 reads
BLACKLIST = {"pathfinder32/curv_baseline/imgs/0/sample_172.png"}  # an empty file in LRA's release
LEAST = 198_000  # pictures of LRA's 200,000 that must be there
COLUMNS = 11  # of LRA's metadata: subpath, file name, n, label, …
LABEL = 3


@dataclass(frozen=True)
class Scale:
    """What is drawn at a scale; `edge`: the picture is averaged down to edge × edge pixels, None = not at all."""

    sizes: Sizes
    contour_length: int
    edge: int | None = None


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


def read_lra(root: Path, level: str = LRA) -> list[tuple[Path, int]]:
    """(picture's path, label) of every row of `<root>/<level>/metadata/<batch>.npy`, in the order of the batches.

    The metadata are plain text, as LRA released them, or a numpy array of strings, as the generator writes them.
    ValueError with file, row and text for a row that has not 11 columns or no label 0 or 1, and for a missing picture;
    nothing is dropped but the one picture that is known to be empty.
    """
    batches = _batches(root, level)
    if not batches:
        raise ValueError(f"{root / level / 'metadata'} holds no <number>.npy: bring LRA's whole folder {level}")
    samples: dict[Path, int] = {}
    for batch in batches:
        rows = _metadata_rows(batch)
        if not rows:
            raise ValueError(f"{batch} has no rows: bring this file and its pictures again")
        for place, row in enumerate(rows, 1):
            columns, where = row.split(), f"{batch}, row {place} {row[:80]!r}"
            if len(columns) != COLUMNS:
                raise ValueError(f"{where}: {len(columns)} columns, needed are {COLUMNS}, separated by spaces")
            if columns[LABEL] not in ("0", "1"):
                raise ValueError(f"{where}: label {columns[LABEL]!r} in column {LABEL + 1} is neither 0 nor 1")
            picture = root / level / columns[0] / columns[1]
            if str(Path(root.name, level, columns[0], columns[1])) in BLACKLIST:
                continue
            if not picture.is_file():
                raise ValueError(f"{where}: its picture {picture} is missing")
            if picture in samples:
                raise ValueError(f"{where}: its picture stands in an earlier row, too")
            samples[picture] = int(columns[LABEL])
    return list(samples.items())


def _batches(root: Path, level: str) -> list[Path]:
    """The metadata files, by number; ValueError for one that is not named by a number."""
    files = list((root / level / "metadata").glob("*.npy"))
    if odd := [str(file) for file in files if not file.stem.isdigit()]:
        raise ValueError(f"{odd[0]}: metadata files are named by their batch's number, such as 0.npy")
    return sorted(files, key=lambda file: int(file.stem))


def _metadata_rows(path: Path) -> list[str]:
    """A metadata file's rows as text, whichever of the two forms it has."""
    content = path.read_bytes()
    try:
        if content.startswith(b"\x93NUMPY"):
            return [" ".join(row) for row in np.atleast_2d(open_array(path)).astype(str)]
        return content.decode().splitlines()
    except ValueError as error:  # UnicodeDecodeError is one
        raise ValueError(f"{path}: neither text nor a numpy array of strings ({error})") from error


def _lra_table(root: Path, window: int) -> pa.Table:
    """Every picture of LRA's folder, decoded."""
    samples = read_lra(root)
    pictures = np.zeros((len(samples), window, window), np.uint8)
    for i, (path, _) in enumerate(tqdm(samples, desc=root.name, unit=" pictures", delay=2)):
        try:
            with Image.open(path) as image:
                mode, grey = image.mode, np.asarray(image.convert("L"))
        except bad_picture() as error:
            raise ValueError(f"{path} is no picture that can be read ({error}): bring this file again") from error
        if grey.shape != (window, window):
            raise ValueError(f"{path} has {grey.shape[1]}×{grey.shape[0]} pixels, needed are {window}×{window}")
        if mode not in ("L", "RGB"):
            raise ValueError(f"{path} is a picture of mode {mode}, allowed are L (grey) and RGB")
        pictures[i] = grey
    return _as_table(pictures, np.array([label for _, label in samples]))


# ---------------------------------------------------------------------------------------------- pool and cache


def cache_path(window: int, scale: str) -> Path:
    """The Parquet file that holds a scale's pictures: columns `image` (binary, H·W bytes) and `label`."""
    drawing = replace(DRAWINGS[window], contour_length=SETTINGS[scale].contour_length)
    sizes = SETTINGS[scale].sizes
    key = [asdict(drawing), sizes.train + sizes.val + sizes.test]
    return _cache_path(window, f"{scale}-seed{POOL_SEED}", key)


def _cache_path(window: int, label: str, key: object) -> Path:
    text = json.dumps([GENERATOR, POOL_SEED, key], sort_keys=True)
    return data_folder(f"pathfinder{window}") / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.parquet"


def _as_table(pictures: np.ndarray, labels: np.ndarray) -> pa.Table:
    """Pictures (n, H, W) uint8 and labels (n,) as a table."""
    flat = pa.py_buffer(np.ascontiguousarray(pictures))
    image = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(pictures[0].size if len(pictures) else 1), len(pictures), [None, flat]
    )
    return pa.table({"image": image, "label": pa.array(labels, pa.int8())})


def _as_arrays(table: pa.Table, window: int) -> tuple[np.ndarray, np.ndarray]:
    """`_as_table` undone."""
    chunks = [
        np.frombuffer(chunk.buffers()[1], np.uint8)[chunk.offset * window**2 :][: len(chunk) * window**2]
        for chunk in table["image"].chunks
    ]
    return np.concatenate(chunks).reshape(-1, window, window), table["label"].to_numpy().astype(np.int64)


def _drawn(window: int, scale: str) -> pa.Table:
    sizes = SETTINGS[scale].sizes
    drawing = replace(DRAWINGS[window], contour_length=SETTINGS[scale].contour_length)
    return _as_table(*draw(sizes.train + sizes.val + sizes.test, drawing, POOL_SEED))


@lru_cache(maxsize=2)
def _pool(window: int, scale: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Every picture and label of a scale, shared by all seeds; `folder` only tells one MAMBANORM_DATA_DIR from another.

    LRA's own pictures are taken at paper where its folder is there.
    """
    sizes = SETTINGS[scale].sizes
    path, rows = cache_path(window, scale), sizes.train + sizes.val + sizes.test
    make = partial(_drawn, window, scale)
    if scale == "paper" and (folder / LRA).exists():
        stamp = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in _batches(folder, LRA)]
        path, rows, make = _cache_path(window, LRA, stamp), None, partial(_lra_table, folder, window)
    return _as_arrays(cached_table(path, ("image", "label"), rows, make), window)


# ---------------------------------------------------------------------------------------------- the tasks


def load_pathfinder(window: int, scale: str, seed: int) -> TaskData:
    """Grey values (n, window², 1) float32 in [0, 1], labels 1 = the discs lie on one snake.

    At smoke and quick the seed decides which pictures of one pool are train, val and test; at lab and paper it changes
    nothing. At paper LRA's own pictures are used where `data/pathfinder<window>/curv_contour_length_14` is there.
    """
    settings = SETTINGS[scale]
    pictures, labels = _pool(window, scale, data_folder(f"pathfinder{window}"))
    sizes = settings.sizes
    counts = [sizes.train, sizes.val, sizes.test]
    whole = sum(counts)
    if scale == "paper":  # LRA's release may hold a few pictures less: split what is there by s4's fractions
        if len(labels) < LEAST:
            raise ValueError(
                f"{data_folder(f'pathfinder{window}') / LRA} holds {len(labels):,} pictures, LRA's release {whole:,}: "
                "bring all of its batches, or move the folder away to have the pictures drawn"
            )
        if (lack := whole - len(labels)) > 1:  # the one that is known to be empty
            warnings.warn(
                f"pathfinder{window}: {lack:,} of the {whole:,} pictures of LRA's release are not there", stacklevel=2
            )
        counts = [int(0.8 * len(labels)), int(0.1 * len(labels))]
        counts.append(len(labels) - sum(counts))
    parts = pick(len(labels), counts, sizes.seed(seed), f"pathfinder{window}'s pool")
    factor = window // (settings.edge or window)
    splits = []
    for rows in map(np.asarray, parts):
        splits.append(Split(as_sequences(block_mean(pictures[rows], factor)), torch.from_numpy(labels[rows])))
    return TaskData(*splits, n_classes=2, in_features=1)


def shape(window: int, scale: str) -> Shape:
    settings = SETTINGS[scale]
    held_out = settings.sizes.val, settings.sizes.test
    return Shape(
        2,
        (settings.edge or window) ** 2,
        in_features=1,
        held_out=held_out,
        train_rows=settings.sizes.train or 0,
        reshuffled=settings.sizes.reshuffle,
    )


for _window in DRAWINGS:
    register_task(
        f"pathfinder{_window}",
        title=f"Pathfinder {_window}×{_window}: do two discs lie on one snake? Pixel by pixel",
        source="Linsley et al. (2018), arXiv:1805.08315; Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
        shape=partial(shape, _window),
    )(partial(load_pathfinder, _window))
