"""`pydoc`: predict the next character of Python's documentation. Nothing is downloaded.

The text is the help topics of the language reference (`help("for")`, `help("with")`, …), almost
half a million characters of prose and code. The rows are windows of the text, and the label of a
position is the next character.

Long topics repeat short topics: a fifth of the text is repeated, and 8 % of the end of the text
also occurs at the beginning. So the task contains each paragraph once. For every seed, the first
80 % of the text are training rows, the next 10 % validation rows and the last 10 % test rows.

Source: `pydoc_data.topics` of the running Python (Python Software Foundation, PSF licence).
The text changes slightly with each version of Python, and so do the results; the alphabet stays the
same.

Glossary: B windows of a batch, L positions of a window, which has L + 1 characters.
"""

from functools import cache

import torch
from torch import Tensor

from mambanorm.errors import unknown
from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.registry import Shape, register_task

# The line feed and the printable characters of ASCII; an id is an index of ALPHABET
ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))

TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "..."})
HELD_OUT = 0.1  # validation and test each have this share of the text

# Scale -> number of positions of a window
LENGTHS = {"smoke": 16, "quick": 128, "evening": 128, "lab": 256, "paper": 256}
SMOKE_CHARACTERS = 4_000  # gives 200 training rows


def load_text() -> str:
    """Return the help topics, in alphabetical order, as one text.

    Typographic quotes and dashes become ASCII characters; `?` replaces all other characters
    outside ASCII.
    """
    from pydoc_data.topics import topics  # imported here because the module is large

    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    return text.translate(TYPOGRAPHY).expandtabs().encode("ascii", "replace").decode()


def drop_repeats(text: str) -> str:
    """Return the text without repeated paragraphs, even if the repeats differ in white space."""
    paragraphs: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(paragraph for words, paragraph in paragraphs.items() if words)


def encode(text: str) -> Tensor:
    """Return the ids (n,) int64 of a text. Raises ValueError for a character not in ALPHABET."""
    ids = {character: i for i, character in enumerate(ALPHABET)}
    invalid = sorted(set(text) - ids.keys())
    if invalid:
        valid = ["the line feed", "ASCII's printable characters, space to ~"]
        raise unknown("character", invalid[0], valid)
    return torch.tensor([ids[character] for character in text], dtype=torch.int64)


def decode(ids: Tensor) -> str:
    """Return the text of ids (n,), the inverse of `encode`."""
    return "".join(ALPHABET[i] for i in ids.tolist())


def split_text(ids: Tensor) -> tuple[Tensor, ...]:
    """Return three parts of ids (n,): train (the first 80 %), validation (10 %), test (10 %)."""
    cuts = [round(len(ids) * (1 - share)) for share in (2 * HELD_OUT, HELD_OUT)]
    return torch.tensor_split(ids, cuts)


def cut_windows(ids: Tensor, length: int) -> Tensor:
    """Return the windows (n, L + 1) of the ids of a text, where L = `length`.

    Neighbouring windows overlap by one character, so each character but the first is predicted
    once. The characters after the last full window are left out. Raises ValueError if the text is
    too short for one window.
    """
    if length < 1 or len(ids) < length + 1:
        raise ValueError(
            f"length must be a whole number from 1 to {len(ids) - 1} for {len(ids)} characters, "
            f"got {length!r}"
        )
    return ids.unfold(0, length + 1, length)


def unigram_entropy(ids: Tensor) -> float:
    """Return H = −Σ_c p_c · log₂ p_c in bits per character; p_c is the frequency of character c.

    On this text, a model that knows only the frequencies p_c has the loss H.
    """
    counts = torch.bincount(ids).double()
    p = counts[counts > 0] / counts.sum()
    return float(-(p * p.log2()).sum())


# ----------------------------------------------------------------------------------------- the task


@cache
def _splits(scale: str) -> list[Split]:
    """Return the windows of train, val and test: ids (n, L), and the next ids as labels (n, L)."""
    ids = encode(drop_repeats(load_text()))
    if scale == "smoke":
        ids = ids[:SMOKE_CHARACTERS]
    rows = [cut_windows(part, LENGTHS[scale]) for part in split_text(ids)]
    return [Split(part[:, :-1].to(torch.uint8), part[:, 1:]) for part in rows]


def _shape(scale: str) -> Shape:
    return Shape(
        len(ALPHABET),
        LENGTHS[scale],
        vocab_size=len(ALPHABET),
        sizes=tuple(map(len, _splits(scale))),
        per_position=True,
    )


@register_task(
    "pydoc",
    title="Python's documentation, the next character (a language model)",
    source="Python Software Foundation, pydoc_data.topics of the Python that runs this, "
    "PSF licence",
    shape=_shape,
)
def load_pydoc(scale: str, seed: int) -> TaskData:
    """Return windows (n, L) of the text, L = 128 (smoke: 16; lab and paper: 256).

    At smoke, only the first 4,000 characters of the text are used. The label of a position is the
    next character. The seed has no effect.
    """
    return TaskData(*_splits(scale), n_classes=len(ALPHABET), vocab_size=len(ALPHABET))
