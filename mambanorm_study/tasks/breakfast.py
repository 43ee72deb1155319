"""Breakfast: which of ten activities does a video show? The inputs are features of the frames.

Source: Kuehne et al. (2014), The language of actions. Features and splits in the layout of MS-TCN
(Farha & Gall 2019, arXiv:1903.01945); the activities are numbered as in md-mohaiminul/ViS4mer.

    data/breakfast/features/<video>.npy     (2048, T) float32, 15 frames per second
    data/breakfast/splits/train.split1.bundle … test.split4.bundle     <video>.txt on each line

Glossary: T frames of a video, L positions of a row (one per frame that is used), F = 2048 features
of a frame.
"""

import random
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm_study.basics.atomic import replacing
from mambanorm_study.tasks.base import LazyInputs, Split, TaskData
from mambanorm_study.tasks.files import data_folder, missing_data_error, read_text
from mambanorm_study.tasks.registry import (
    FIXED_SEED,
    SMALL_SCALES,
    Shape,
    check_complete,
    register_task,
)

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
HELD_OUT = 0.1  # share of the people in train whose videos are the validation rows
# Number of the split -> number of videos in train and in test
VIDEOS = {1: (1_460, 252), 2: (1_261, 451), 3: (1_279, 433), 4: (1_136, 576)}
# Number of frames per video that are used. The paper does not state this number.
POSITIONS = {"smoke": 16, "quick": 64, "evening": 64, "lab": 256, "paper": 512}
SMOKE_VIDEOS = (32, 16, 16)  # largest number of videos of train, validation, test
HOW = (
    "Download data.zip of MS-TCN (https://github.com/yabufarha/ms-tcn, about 30 GB), and put "
    "its folders breakfast/features and breakfast/splits into the task's data folder"
)


# ---------------------------------------------------------------------------------- names and lists


def activity_class(video: str) -> int:
    """Return the class 0…9 of the video with this name: "P03_cam01_P03_cereals" -> 0."""
    return ACTIVITIES.index(video.rpartition("_")[2])


def person(video: str) -> str:
    """Return the person in the video with this name: "P03_cam01_P03_cereals" -> "P03"."""
    return video.partition("_")[0]


def read_bundle(path: Path) -> list[str]:
    """Return the video names in a list file of MS-TCN. Raise ValueError if the file is missing."""
    if not path.exists():
        raise missing_data_error("breakfast", path, HOW)
    return [line.removesuffix(".txt") for line in read_text(path).split()]


# ----------------------------------------------------------------------------------------- features


def read_frames(path: Path, positions: int) -> np.ndarray:
    """Return the features of L equally spaced frames of a video, (L, 2048) float32.

    The first and the last frame of the video are included; if the video has fewer than L frames,
    some frames are repeated. path: the file of the video, which holds features (2048, T).
    positions: L. Raises OSError if the file is missing, and ValueError if it is damaged, has
    another shape, or holds values that are not finite.
    """
    try:
        features = np.load(path, mmap_mode="r")
        if features.ndim != 2 or len(features) != FEATURES:
            raise ValueError(f"its shape is {features.shape}, needed is ({FEATURES}, frames)")
        columns = np.linspace(0, features.shape[1] - 1, positions).round().astype(int)
        selected = np.ascontiguousarray(features[:, columns].T, np.float32)
        if not np.isfinite(selected).all():
            raise ValueError("it holds values that are not finite")
    except (ValueError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be used ({error}): replace this file") from error
    return selected


def _cached_frames(videos: list[str], positions: int) -> list[Path]:
    """Return the paths of the cache files, one per video; files that are missing are written.

    A cache file holds L = `positions` frames of the video, (L, 2048). The features of all frames
    take about 16 MB per video, too much to read for every batch.
    """
    folder = data_folder("breakfast")
    cache = [folder / f"frames{positions}" / f"{video}.npy" for video in videos]
    for path in tqdm(cache, desc="Breakfast", unit=" videos", delay=2):
        if not path.exists():
            selected = read_frames(folder / "features" / path.name, positions)
            with replacing(path) as temporary, open(temporary, "wb") as file:
                np.save(file, selected)
    return cache


def _read_videos(files: list[Path], rows: torch.Tensor) -> torch.Tensor:
    """Return the frames (B, L, 2048) of the B videos whose indices in `files` are `rows` (B,)."""
    return torch.from_numpy(np.stack([np.load(files[row]) for row in rows.tolist()]))


# ---------------------------------------------------------------------------------------- the tasks


def held_out_people(videos: list[str], seed: int) -> set[str]:
    """Return the people whose videos are used for validation: a tenth of the people in `videos`.

    At least one person is returned. People are held out, not videos, because several cameras film
    the same breakfast.
    """
    people = sorted({person(video) for video in videos})
    return set(random.Random(seed).sample(people, max(1, round(HELD_OUT * len(people)))))


def load_breakfast(split: int, scale: str, seed: int) -> TaskData:
    """Return features (n, L, 2048) float32 and 10 classes.

    split: number of the published split, which has train and test. The videos of a tenth of the
    people in train are used for validation. At smoke, quick and evening, the seed decides which
    people these are; at smoke, the seed also decides which videos are used. At lab and paper, the
    seed has no effect.
    """
    folder = data_folder("breakfast") / "splits"
    train = read_bundle(folder / f"train.split{split}.bundle")
    test = read_bundle(folder / f"test.split{split}.bundle")
    check_complete(f"split {split} in {folder}", (len(train), len(test)), VIDEOS[split], scale)
    seed = seed if scale in SMALL_SCALES else FIXED_SEED
    people = held_out_people(train, seed)
    parts = [
        [video for video in train if person(video) not in people],
        [video for video in train if person(video) in people],
        test,
    ]
    if scale == "smoke":
        generator = random.Random(seed)
        parts = [
            generator.sample(part, min(limit, len(part)))
            for part, limit in zip(parts, SMOKE_VIDEOS, strict=True)
        ]
    splits = []
    for videos in parts:
        files = _cached_frames(videos, POSITIONS[scale])
        inputs = LazyInputs((len(videos), POSITIONS[scale], FEATURES), partial(_read_videos, files))
        splits.append(Split(inputs, torch.tensor([activity_class(video) for video in videos])))
    return TaskData(*splits, n_classes=len(ACTIVITIES), in_features=FEATURES)


def _shape(split: int, scale: str) -> Shape:
    n_train, n_test = VIDEOS[split]
    n_val = round(HELD_OUT * n_train)
    return Shape(
        len(ACTIVITIES),
        POSITIONS[scale],
        in_features=FEATURES,
        sizes=SMOKE_VIDEOS if scale == "smoke" else (n_train - n_val, n_val, n_test),
        reshuffled=scale in SMALL_SCALES,
    )


for _split in VIDEOS:
    register_task(
        "breakfast" if _split == 1 else f"breakfast_split{_split}",
        title=f"Breakfast, split {_split}: which of ten activities does a video show? "
        "Frame by frame",
        source="Kuehne et al. (2014), The language of actions; "
        "features of Farha & Gall (2019), arXiv:1903.01945",
        shape=partial(_shape, _split),
    )(partial(load_breakfast, _split))
