"""IMDB film reviews, character by character: positive or negative?

Source: Maas et al. (2011), Learning word vectors for sentiment analysis. Preprocessing as in
state-spaces/s4: characters as they are, at most l_max − 1, then `<eos>`; the vocabulary contains
the characters that occur at least 15 times in train. At paper the test part also serves as
validation, as in s4; the smaller scales hold out a tenth of train instead.

Glossary: n reviews, L = characters of the longest, `<eos>` included; ids as in ListOps: 0 =
padding, 1 = unknown, 2 = `<eos>`.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain

import numpy as np
import torch

from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import check_labels, data_folder, fetch, read_columns
from mambanorm_study.tasks.registry import (
    SCALE_SIZES,
    Shape,
    check_complete,
    register_task,
)

SPECIALS = ("<pad>", "<unk>", "<eos>")
UNK, EOS = 1, 2
MIN_COUNT = 15
MEAN_LENGTH = 1_300  # characters of a review
ROWS = (25_000, 25_000)  # of train and test, without the 50,000 reviews that have no label
ADDRESS = (
    "https://huggingface.co/datasets/stanfordnlp/imdb/resolve/"
    "e6281661ce1c48d982bc483cf8a173c1bbeb5d31/plain_text"
)
FILES = {
    "train-00000-of-00001.parquet": (
        "sha256:db47d16b5c297cc0dd625e519c81319c24c9149e70e8496de5475f6fa928342c"
    ),
    "test-00000-of-00001.parquet": (
        "sha256:b52e26e2f872d282ffac460bf9770b25ac6f102cda0e6ca7158df98c94e8b3da"
    ),
}
# Positions of a row with its `<eos>`; longer reviews are cut
L_MAX = {"smoke": 64, "quick": 256, "evening": 256, "lab": 1_024, "paper": 4_096}
# Validation's share of train. At paper a model is selected on the test rows, as in s4, so its
# results are slightly too good.
HELD_OUT = {"smoke": 0.1, "quick": 0.1, "evening": 0.1, "lab": 0.1, "paper": 0.0}


def vocabulary(texts: Iterable[str]) -> dict[str, int]:
    """Return character -> id: special tokens, then characters by count and code point."""
    counts = Counter(chain.from_iterable(texts))
    frequent = [char for char, count in counts.items() if count >= MIN_COUNT]
    frequent.sort(key=lambda char: (-counts[char], char))
    return {token: i for i, token in enumerate((*SPECIALS, *frequent))}


def encode(texts: list[str], ids: dict[str, int], l_max: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids (n, L) with `<eos>` and 0 for padding, and lengths (n,)."""
    id_of = np.full(0x110000, UNK, np.uint8 if len(ids) <= 256 else np.int32)  # by code point
    for char, i in ids.items():
        if char not in SPECIALS:
            id_of[ord(char)] = i
    lengths = np.array([min(len(text), l_max - 1) + 1 for text in texts], np.int64)
    inputs = np.zeros((len(texts), lengths.max(initial=1)), id_of.dtype)
    for i, text in enumerate(texts):
        codes = np.frombuffer(text[: l_max - 1].encode("utf-32-le", "surrogatepass"), "<u4")
        inputs[i, : len(codes)] = id_of[codes]
        inputs[i, len(codes)] = EOS
    return torch.from_numpy(inputs), torch.from_numpy(lengths)


def _shape(scale: str) -> Shape:
    sizes = SCALE_SIZES[scale]
    train, val, test = sizes.counts(ROWS, HELD_OUT[scale])
    return Shape(
        2,
        L_MAX[scale],
        vocab_size=135,
        tokens=min(MEAN_LENGTH, L_MAX[scale]),
        sizes=(train, val or test, test),
        reshuffled=sizes.reshuffle,
    )


@register_task(
    "imdb",
    title="IMDB: is a film review positive? Character by character",
    source="Maas et al. (2011), Learning word vectors for sentiment analysis",
    prepare=partial(fetch, "imdb", ADDRESS, FILES),
    shape=_shape,
)
def load_imdb(scale: str, seed: int) -> TaskData:
    """Return character ids (n, L), about 135 tokens at paper, and classes: 1 = positive.

    The vocabulary is that of the whole train part, cut to the scale's length, whatever rows the
    seed selects.
    """
    parts = {
        split: read_columns("imdb", split, ("text", "label"), ADDRESS, FILES)
        for split in ("train", "test")
    }
    n = len(parts["train"][0]), len(parts["test"][0])
    check_complete(data_folder("imdb"), n, ROWS, scale)
    l_max = L_MAX[scale]
    ids = vocabulary(text[: l_max - 1] for text in parts["train"][0].to_pylist())
    splits = []
    row_numbers = SCALE_SIZES[scale].draw_splits(n, seed, "imdb", HELD_OUT[scale])
    for part, rows in zip(("train", "train", "test"), row_numbers, strict=True):
        texts, labels = parts[part]
        labels = check_labels(np.asarray(labels), 2, f"imdb's {part}")
        inputs, lengths = encode(texts.take(rows.numpy()).to_pylist(), ids, l_max)
        splits.append(Split(inputs, torch.from_numpy(labels[rows.numpy()]), lengths))
    train, val, test = splits
    return TaskData(train, val if len(val) else test, test, n_classes=2, vocab_size=len(ids))
