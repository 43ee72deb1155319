"""IMDB film reviews, character by character: positive or negative?

Source: Maas et al. (2011), Learning word vectors for sentiment analysis. Rules of state-spaces/s4:
characters as they are, at most l_max − 1 and then `<eos>`; the vocabulary holds what occurs at
least 15 times in train; test serves as validation. This last rule holds at paper only: the smaller
scales hold out a tenth of train.

Glossary: n reviews, L = characters of the longest, `<eos>` included; ids as in ListOps: 0 =
padding, 1 = unknown, 2 = `<eos>`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from mambanorm_study.tasks.base import Shape, Split, TaskData
from mambanorm_study.tasks.files import (
    ALL,
    SMALL,
    Sizes,
    check_labels,
    check_whole,
    data_folder,
    fetch,
    parquet_files,
    read_split,
)
from mambanorm_study.tasks.registry import register_task

SPECIALS = ("<pad>", "<unk>", "<eos>")
UNK, EOS = 1, 2
MIN_COUNT = 15
ROWS = (25_000, 25_000)  # of train and test; the 50,000 reviews without a label are left out
ADDRESS = "https://huggingface.co/datasets/stanfordnlp/imdb/resolve/e6281661ce1c48d982bc483cf8a173c1bbeb5d31/plain_text"
FILES = {
    "train-00000-of-00001.parquet": "sha256:db47d16b5c297cc0dd625e519c81319c24c9149e70e8496de5475f6fa928342c",
    "test-00000-of-00001.parquet": "sha256:b52e26e2f872d282ffac460bf9770b25ac6f102cda0e6ca7158df98c94e8b3da",
}


@dataclass(frozen=True)
class Scale:
    """Rows, and positions of a row with its `<eos>`; longer reviews are cut."""

    sizes: Sizes
    l_max: int
    held_out: float = 0.1  # share of train for validation; 0: test serves as validation


SETTINGS: dict[str, Scale] = {
    "smoke": Scale(SMALL["smoke"], l_max=64),
    "quick": Scale(SMALL["quick"], l_max=256),
    "evening": Scale(SMALL["evening"], l_max=256),
    "lab": Scale(ALL, l_max=1_024),
    # s4 exactly. Selecting by validation is then selecting on test, so results are a little too
    # good, as s4's are.
    "paper": Scale(ALL, l_max=4_096, held_out=0.0),
}


def vocabulary(texts: Iterable[str], min_count: int = MIN_COUNT) -> dict[str, int]:
    """Character -> id: the special tokens first, then characters by count, equal counts by code
    point."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    kept = sorted(
        (char for char, count in counts.items() if count >= min_count),
        key=lambda c: (-counts[c], c),
    )
    return {token: i for i, token in enumerate((*SPECIALS, *kept))}


def encode(texts: list[str], ids: dict[str, int], l_max: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (n, L) with `<eos>`, 0 = padding, and lengths (n,)."""
    table = np.full(0x110000, UNK, np.uint8 if len(ids) <= 256 else np.int32)  # by code point
    for char, i in ids.items():
        if char not in SPECIALS:
            table[ord(char)] = i
    lengths = np.array([min(len(text), l_max - 1) + 1 for text in texts], np.int64)
    inputs = np.zeros((len(texts), lengths.max(initial=1)), table.dtype)
    for i, text in enumerate(texts):
        codes = np.frombuffer(text[: l_max - 1].encode("utf-32-le", "surrogatepass"), "<u4")
        inputs[i, : len(codes)] = table[codes]
        inputs[i, len(codes)] = EOS
    return torch.from_numpy(inputs), torch.from_numpy(lengths)


def prepare(scale: str) -> None:
    """Downloads the two published files, whatever the scale; does nothing where your own files are
    there."""
    if not all(parquet_files(data_folder("imdb"), split, FILES) for split in ("train", "test")):
        for file, digest in FILES.items():
            fetch(f"{ADDRESS}/{file}", digest, data_folder("imdb"))


def _read(split: str) -> tuple[list[str], np.ndarray]:
    """Texts and labels of a split's files; ValueError with the row for a review without text or
    label."""
    texts, labels = read_split("imdb", split, ("text", "label"), ADDRESS, FILES).columns
    for row, text in enumerate(texts := texts.to_pylist(), 1):
        if not text:
            raise ValueError(
                f"imdb's {split}, row {row}: {text!r} is no review: needed is at least one character"
            )
    return texts, check_labels(np.asarray(labels), 2, f"imdb's {split}")


def shape(scale: str) -> Shape:
    """25,000 reviews of about 1,300 characters to train on and to test on."""
    settings = SETTINGS[scale]
    rows = settings.sizes.told(ROWS, settings.held_out)
    if not settings.held_out:
        rows["held_out"] = ROWS[1], ROWS[1]
    return Shape(2, settings.l_max, vocab_size=135, tokens=min(1_300, settings.l_max), **rows)


@register_task(
    "imdb",
    title="IMDB: is a film review positive? Character by character",
    source="Maas et al. (2011), Learning word vectors for sentiment analysis",
    prepare=prepare,
    shape=shape,
)
def load_imdb(scale: str, seed: int) -> TaskData:
    """Character ids (n, L), about 135 tokens at paper, 2 classes: 0 negative, 1 positive.

    The vocabulary is that of all of train cut to the scale's length, whatever rows the seed takes
    at smoke and quick.
    """
    settings, (train, train_labels), (test, test_labels) = (
        SETTINGS[scale],
        _read("train"),
        _read("test"),
    )
    counts = len(train), len(test)
    check_whole(data_folder("imdb"), counts, ROWS, scale)
    ids = vocabulary(text[: settings.l_max - 1] for text in train)
    splits = []
    for i, rows in enumerate(settings.sizes.pick_splits(counts, seed, "imdb", settings.held_out)):
        texts, labels = (train, train_labels) if i < 2 else (test, test_labels)
        inputs, lengths = encode([texts[row] for row in rows.tolist()], ids, settings.l_max)
        splits.append(Split(inputs, torch.from_numpy(labels[rows.numpy()]), lengths))
    if not settings.held_out:
        splits[1] = splits[2]
    return TaskData(*splits, n_classes=2, vocab_size=len(ids))
