"""Python's own documentation as text to predict character by character: every CPython carries it,
so no download.

The help topics of the language reference (`help("for")`, `help("with")`, …), near half a million
characters of prose and code.

- `pydoc`, the task: windows of the text as rows, each position labelled with the next character; a
  language model learns it in the study's own loop. Long topics repeat short ones: a fifth of the
  text is a repetition, and 8 % of its end stands in its beginning too. So the task has each
  paragraph once. Its first 80 % train, the next 10 % are validation, the last 10 % test: the same
  for every seed.

Source: `pydoc_data.topics` of the Python that runs this (Python Software Foundation, PSF licence).
The text changes a little with every version of Python, and the numbers with it; the alphabet stays
the same.

Glossary: B = windows in a batch, L = positions to predict in a window; windows have L + 1, the
targets one further on.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from mambanorm.errors import unknown
from mambanorm_study.tasks.base import Shape, Split, TaskData
from mambanorm_study.tasks.registry import register_task

ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""Character i has id i: the line feed and what ASCII can print."""

TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "..."})
HELD_OUT = 0.1  # of the text, for validation, and as much for test

LENGTHS = {"smoke": 16, "quick": 128, "evening": 128, "lab": 256, "paper": 256}
"""Positions of a row of the task."""
SMOKE_CHARACTERS = 4_000  # 200 rows to train on


def load_text() -> str:
    """The help topics in alphabetical order, in the characters of ALPHABET; a character beyond them
    becomes `?`."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python comes without its help topics (pydoc_data): install your system's full Python, "
            "or encode a text of your own"
        ) from None
    text = (
        "\n\n".join(topics[name].strip() for name in sorted(topics))
        .translate(TYPOGRAPHY)
        .expandtabs()
    )
    return text.encode("ascii", "replace").decode()


def distinct(text: str) -> str:
    """The text with every paragraph once, where it stands first; how it is indented makes no
    difference."""
    first: dict[str, str] = {}
    for paragraph in text.split("\n\n"):
        first.setdefault(" ".join(paragraph.split()), paragraph)
    return "\n\n".join(paragraph for words, paragraph in first.items() if words)


def encode(text: str) -> Tensor:
    """Text → ids (n,) int64. ValueError for a character outside ALPHABET."""
    places = {character: i for i, character in enumerate(ALPHABET)}
    for character in text:
        if character not in places:
            raise unknown(
                "character",
                character,
                ["the line feed", "ASCII's printable characters, space to ~"],
            )
    return torch.tensor([places[character] for character in text], dtype=torch.int64)


def decode(ids: Tensor) -> str:
    """Ids (n,) → text, the inverse of `encode`."""
    return "".join(ALPHABET[i] for i in ids.tolist())


def three_parts(ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Train, the first 80 % of the text, then validation and test, 10 % each."""
    cuts = [round(len(ids) * (1 - share)) for share in (2 * HELD_OUT, HELD_OUT)]
    return ids[: cuts[0]], ids[cuts[0] : cuts[1]], ids[cuts[1] :]


def windows(ids: Tensor, length: int) -> Tensor:
    """Windows (n, L + 1) from the start on, such that each position is predicted once.

    What no longer fills a window is left out. ValueError for a text that does not fill one.
    """
    if length < 1 or len(ids) < length + 1:
        longest = len(ids) - 1
        raise ValueError(
            f"length must be a whole number from 1 to {longest} for {len(ids)} characters, got {length!r}"
        )
    return ids.unfold(0, length + 1, length)


def unigram_entropy(ids: Tensor) -> float:
    """H = −Σ_c p_c · log₂ p_c in bits a character, p_c the share of c in the text: a model should
    get below it."""
    counts = torch.bincount(ids).double()
    p = counts[counts > 0] / counts.sum()
    return float(-(p * p.log2()).sum())


# --------------------------------------------------------------------------------------------------
# the task


@cache
def _splits(scale: str) -> tuple[Split, Split, Split]:
    """The windows of each part, each position predicted once: ids (n, L) and the ids one further
    on."""
    ids = encode(distinct(load_text()))
    parts = three_parts(ids[:SMOKE_CHARACTERS] if scale == "smoke" else ids)
    found = (windows(part, LENGTHS[scale]) for part in parts)
    return tuple(Split(rows[:, :-1].to(torch.uint8), rows[:, 1:]) for rows in found)


def _shape(scale: str) -> Shape:
    train, *held_out = map(len, _splits(scale))
    size = len(ALPHABET)
    rows = dict(held_out=tuple(held_out), train_rows=train)
    return Shape(size, LENGTHS[scale], vocab_size=size, per_position=True, **rows)


@register_task(
    "pydoc",
    title="Python's documentation, the next character (a language model)",
    source="Python Software Foundation, pydoc_data.topics of the Python that runs this, PSF licence",
    shape=_shape,
)
def load_pydoc(scale: str, seed: int) -> TaskData:
    """Windows of 128 characters (smoke: 16 of the first 4,000 characters; lab and paper: 256) and,
    at each of their positions, the next character. The seed decides nothing."""
    return TaskData(*_splits(scale), n_classes=len(ALPHABET), vocab_size=len(ALPHABET))
