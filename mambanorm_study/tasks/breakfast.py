"""Breakfast: which of ten breakfasts does somebody in a video prepare? Read from precomputed
features, frame by frame.

Source: Kuehne et al. (2014), The language of actions. Features and splits in the layout of MS-TCN
(Farha & Gall 2019, arXiv:1903.01945); numbers of the activities as in md-mohaiminul/ViS4mer.

    data/breakfast/features/<video>.npy     (2048, T) float32, 15 frames a second
                   splits/train.split1.bundle … test.split4.bundle     a line a video: <video>.txt

Glossary: T = frames of a video; L = positions kept of it; F = 2048 features.
"""

from __future__ import annotations

import math
import random
import shutil
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from tqdm.auto import tqdm

from mambanorm.errors import brief
from mambanorm_study.basics.atomic import replacing
from mambanorm_study.tasks.base import Lazy, Shape, Split, TaskData
from mambanorm_study.tasks.files import (
    AGAIN,
    FIXED_SEED,
    SMALL,
    cache_file,
    check_whole,
    data_folder,
    missing,
    read_text,
)
from mambanorm_study.tasks.registry import register_task

ACTIVITIES = (
    "cereals",
    "coffee",
    "tea",
    "pancake",
    "friedegg",
    "scrambledegg",
    "sandwich",
    "juice",
    "milk",
    "salat",
)
FEATURES = 2048
HELD_OUT = 0.1  # of train's people, at least one, for validation
VIDEOS = {
    1: (1_460, 252),
    2: (1_261, 451),
    3: (1_279, 433),
    4: (1_136, 576),
}  # split -> of train and test
LARGE = 2e8  # a cache of so many bytes is announced
HOW = (
    "Download data.zip of MS-TCN (https://github.com/yabufarha/ms-tcn, about 30 GB), and put breakfast/features "
    "and splits there"
)


@dataclass(frozen=True)
class Scale:
    """Frames kept of a video, equally far apart, and the most videos of train, validation and test
    (None = all)."""

    positions: int
    most: tuple[int, int, int] | None = None


SETTINGS: dict[str, Scale] = {
    "smoke": Scale(16, most=(32, 16, 16)),
    "quick": Scale(64),
    "evening": Scale(64),
    "lab": Scale(256),
    "paper": Scale(512),  # the paper names no length
}


# ---------------------------------------------------------------------------------- names and lists


def activity(video: str) -> int:
    """Class 0…9 of a video by the end of its name: P03_cam01_P03_cereals -> 0."""
    return ACTIVITIES.index(video.rpartition("_")[2])


def person(video: str) -> str:
    """P03_cam01_P03_cereals -> P03."""
    return video.partition("_")[0]


def read_bundle(path: Path) -> list[str]:
    """Return the videos of a split's bundle, a line each. ValueError, with the file's name, for
    other names."""
    videos = [line.removesuffix(".txt") for line in read_text(path).split()]
    if strange := [video for video in videos if video.rpartition("_")[2] not in ACTIVITIES]:
        raise ValueError(
            f"{path}: {brief(strange[0])} ends in none of {', '.join(ACTIVITIES)}: {AGAIN}"
        )
    return videos


# ----------------------------------------------------------------------------------------- features


def frames(path: Path, positions: int) -> np.ndarray:
    """(L, 2048) float32: `positions` of a video's frames, equally spaced from the first to the
    last.

    The file is mapped, not read whole. A video shorter than L repeats frames. ValueError where the
    file is damaged, is not (2048, T), or holds numbers that are not finite.
    """
    try:
        features = np.load(path, mmap_mode="r")
        if features.ndim != 2 or len(features) != FEATURES:
            raise ValueError(f"it holds {features.shape}, needed is ({FEATURES}, frames)")
        picked = np.linspace(0, features.shape[1] - 1, positions).round().astype(int)
        kept = np.ascontiguousarray(features[:, picked].T, np.float32)
        if not np.isfinite(kept).all():
            raise ValueError("it holds numbers that are not finite")
    except (ValueError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be used ({error}): {AGAIN}") from error
    return kept


def _features(folder: Path, videos: list[str], positions: int) -> torch.Tensor:
    """(n, L, 2048) of all videos, in a mapped file that is made once: reading every video anew
    would take minutes."""
    path, shape = (
        cache_file(folder, f"frames{positions}", videos, "npy"),
        (len(videos), positions, FEATURES),
    )
    if not path.exists():
        files = [folder / "features" / f"{video}.npy" for video in videos]
        if lack := [file for file in files if not file.exists()]:
            raise missing(
                "breakfast", f"{lack[0]} ({len(lack):,} of {len(files):,} files are not there)", HOW
            )
        _announce(path, 4 * math.prod(shape))
        with replacing(path) as temporary:
            kept = open_memmap(temporary, "w+", np.float32, shape)
            for i, file in enumerate(tqdm(files, desc="Breakfast", unit=" videos", delay=2)):
                kept[i] = frames(file, positions)
            kept.flush()
            del kept
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _announce(path: Path, size: int) -> None:
    """Warn of a large cache before it is written. OSError where the disk has no room for so many
    bytes."""
    free = shutil.disk_usage(path.parent).free
    how = "a smaller scale keeps fewer frames, and MAMBANORM_DATA_DIR puts data and cache on another disk"
    if size > free:  # a mapped file that finds the disk full ends the process
        raise OSError(
            f"{path} needs {size / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB left: {how}"
        )
    if size > LARGE:
        warnings.warn(f"{size / 1e9:.1f} GB will be written to {path}, once: {how}", stacklevel=2)


# ---------------------------------------------------------------------------------------- the tasks


def held_out_people(videos: list[str], seed: int) -> set[str]:
    """A tenth of the people, at least one: several cameras film one breakfast, so videos alone are
    not independent."""
    people = sorted({person(video) for video in videos})
    if len(people) < 2:
        raise ValueError(f"train has videos of {people} only: validation needs another person's")
    return set(random.Random(seed).sample(people, max(1, round(HELD_OUT * len(people)))))


def load_breakfast(split: int, scale: str, seed: int) -> TaskData:
    """Features (n, L, 2048) float32, 10 classes. Test is the bundle's; validation is a tenth of
    train's people.

    The seed decides who is held out, and at smoke which videos are taken; at lab and paper it
    changes nothing.
    """
    folder, settings = data_folder("breakfast"), SETTINGS[scale]
    bundles = {
        part: folder / "splits" / f"{part}.split{split}.bundle" for part in ("train", "test")
    }
    for bundle in bundles.values():
        if not bundle.exists():
            raise missing("breakfast", bundle, HOW)
    train, test = map(read_bundle, bundles.values())
    if both := sorted({*train} & {*test}):
        raise ValueError(
            f"video {both[0]} is in both parts of split {split} in {folder / 'splits'}: bring these anew"
        )
    check_whole(
        f"split {split} in {folder / 'splits'}", (len(train), len(test)), VIDEOS[split], scale
    )
    seed = seed if scale in SMALL else FIXED_SEED
    out = held_out_people(train, seed)
    splits = [
        [v for v in train if person(v) not in out],
        [v for v in train if person(v) in out],
        test,
    ]
    if settings.most:
        draw = random.Random(seed)
        splits = [
            draw.sample(part, min(most, len(part)))
            for part, most in zip(splits, settings.most, strict=True)
        ]
    videos = sorted(
        video for part in splits for video in part
    )  # so that every seed finds the same file
    kept, place = (
        _features(folder, videos, settings.positions),
        {video: i for i, video in enumerate(videos)},
    )
    parts = []
    for part in splits:
        at = torch.tensor([place[video] for video in part])
        inputs = Lazy((len(part), *kept.shape[1:]), lambda rows, at=at: kept[at[rows]])
        parts.append(Split(inputs, torch.tensor([activity(video) for video in part])))
    return TaskData(*parts, n_classes=len(ACTIVITIES), in_features=FEATURES)


def shape(split: int, scale: str) -> Shape:
    """1,712 videos; about a tenth of train's is held out with its people."""
    settings, (train, test) = SETTINGS[scale], VIDEOS[split]
    held_out = settings.most[1:] if settings.most else (round(HELD_OUT * train), test)
    rows = settings.most[0] if settings.most else train - held_out[0]
    told = dict(held_out=held_out, train_rows=rows, reshuffled=scale in SMALL)
    return Shape(len(ACTIVITIES), settings.positions, in_features=FEATURES, **told)


for _split in VIDEOS:
    register_task(
        "breakfast" if _split == 1 else f"breakfast_split{_split}",
        title=f"Breakfast, split {_split}: which of ten activities does a video show? Frame by frame",
        source="Kuehne et al. (2014), The language of actions; features of Farha & Gall (2019), arXiv:1903.01945",
        shape=partial(shape, _split),
    )(partial(load_breakfast, _split))
