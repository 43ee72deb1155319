"""IMDB: is a film review positive or negative? A review is read character by character.

Source: Maas et al. (2011), Learning word vectors for sentiment analysis. Preprocessing as in
state-spaces/s4: a row has the first l_max − 1 characters of a review, unchanged, then `<eos>`; the
vocabulary contains the characters that occur at least 15 times in train. At scale paper the test
part is also the validation part, as in s4; at the other scales a tenth of train is held out.

Glossary: n reviews; L = positions of the longest row, including `<eos>`; ids 0 = padding, 1 =
unknown character, 2 = `<eos>`, as in ListOps.
"""

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain

import torch
from torch.nn.utils.rnn import pad_sequence

from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import data_folder, fetch, read_part
from mambanorm_study.tasks.registry import SCALE_SIZES, Shape, check_complete, register_task

SPECIALS = ("<pad>", "<unk>", "<eos>")
UNK, EOS = 1, 2
MIN_COUNT = 15
MEAN_LENGTH = 1_300  # mean number of characters of a review
ROWS = (25_000, 25_000)  # train, test; the 50,000 reviews without a label are not used
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
# Largest number of positions of a row, including `<eos>`; longer reviews are cut
L_MAX = {"smoke": 64, "quick": 256, "evening": 256, "lab": 1_024, "paper": 4_096}
# Scale -> share of train for validation. At paper the test rows are also the validation rows, as in
# s4, so the test accuracy is slightly too high.
HELD_OUT = {"smoke": 0.1, "quick": 0.1, "evening": 0.1, "lab": 0.1, "paper": 0.0}


def build_vocabulary(texts: Iterable[str]) -> dict[str, int]:
    """Return a map from token to id.

    Tokens are the special tokens, and the characters that occur 15 times or more in `texts`. The
    special tokens come first, then the characters, from the most to the least frequent. Equally
    frequent characters are in the order of their code points.
    """
    counts = Counter(chain.from_iterable(texts))
    frequent = [char for char, count in counts.items() if count >= MIN_COUNT]
    frequent.sort(key=lambda char: (-counts[char], char))
    return {token: i for i, token in enumerate((*SPECIALS, *frequent))}


def encode(texts: list[str], ids: dict[str, int], l_max: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the token ids (n, L) and the lengths (n,) of n texts.

    ids: a map from token to id. A row has the first l_max − 1 characters of a text, then `<eos>`,
    then zeros as padding. The lengths include `<eos>`.
    """
    dtype = torch.uint8 if len(ids) <= 256 else torch.int32
    rows = []
    for text in texts:
        row = [ids.get(char, UNK) for char in text[: l_max - 1]]
        rows.append(torch.tensor([*row, EOS], dtype=dtype))
    return pad_sequence(rows, batch_first=True), torch.tensor([len(row) for row in rows])


def _shape(scale: str) -> Shape:
    sizes = SCALE_SIZES[scale]
    train, val, test = sizes.row_counts(ROWS, HELD_OUT[scale])
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
    """Return character ids (n, L) and classes, where 1 means positive and 0 negative.

    The vocabulary (about 135 tokens at paper) is built from all reviews of the train part, each cut
    to the scale's length, so the vocabulary does not depend on the seed.
    """
    parts = {
        part: read_part("imdb", part, ("text", "label"), 2, ADDRESS, FILES)
        for part in ("train", "test")
    }
    n = len(parts["train"][0]), len(parts["test"][0])
    check_complete(data_folder("imdb"), n, ROWS, scale)
    l_max = L_MAX[scale]
    ids = build_vocabulary(text[: l_max - 1] for text in parts["train"][0].to_pylist())
    splits = []
    row_numbers = SCALE_SIZES[scale].draw_splits(n, seed, "imdb", HELD_OUT[scale])
    for part, rows in zip(("train", "train", "test"), row_numbers, strict=True):
        if len(rows):  # at paper, validation has no rows, and splits[1] is test
            texts, labels = parts[part]
            inputs, lengths = encode(texts.take(rows.numpy()).to_pylist(), ids, l_max)
            splits.append(Split(inputs, torch.from_numpy(labels)[rows], lengths))
    return TaskData(splits[0], splits[1], splits[-1], n_classes=2, vocab_size=len(ids))
