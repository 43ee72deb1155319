"""Python's own documentation as text to predict character by character: every CPython carries it, so no download.

The help topics of the language reference (`help("for")`, `help("with")`, …), near half a million characters of prose
and code. It is no registered task, because a position has no class. `LanguageModel` and `train_language_model` use it.

Source: `pydoc_data.topics` of the Python that runs this (Python Software Foundation, PSF licence). The text changes a
little with every version of Python, and the numbers with it; the alphabet stays the same.

Map
    load_text           the text
    encode, decode      text -> ids -> text
    split               ids -> train and validation, by position
    batches, windows    training: windows at random places, decided by a seed; validation: one after the other
    unigram_entropy     the loss of a model that knows only how common each character is

Glossary: B = windows in a batch, L = positions to predict in a window; windows have L + 1, the targets one further on.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mambanorm.errors import unknown

ALPHABET = "\n" + "".join(map(chr, range(ord(" "), ord("~") + 1)))
"""Character i has id i: the line feed and what ASCII can print."""

TYPOGRAPHY = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "—": "-", "…": "..."})
HELD_OUT = 0.1  # the end of the text, for validation


def load_text() -> str:
    """The help topics in alphabetical order, in the characters of ALPHABET; a character beyond them becomes `?`."""
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python comes without its help topics (pydoc_data): install your system's full Python, "
            "or encode a text of your own"
        ) from None
    text = "\n\n".join(topics[name].strip() for name in sorted(topics)).translate(TYPOGRAPHY).expandtabs()
    return text.encode("ascii", "replace").decode()


def encode(text: str) -> Tensor:
    """Text → ids (n,) int64. ValueError for a character outside ALPHABET."""
    places = {character: i for i, character in enumerate(ALPHABET)}
    for character in text:
        if character not in places:
            raise unknown("character", character, ["the line feed", "ASCII's printable characters, space to ~"])
    return torch.tensor([places[character] for character in text], dtype=torch.int64)


def decode(ids: Tensor) -> str:
    """Ids (n,) → text, the inverse of `encode`. ValueError for an id that is no place in ALPHABET."""
    found = ids.tolist()
    if found and not 0 <= min(found) <= max(found) < len(ALPHABET):
        raise ValueError(f"ids must lie in 0..{len(ALPHABET) - 1}, got {min(found)}..{max(found)}")
    return "".join(ALPHABET[i] for i in found)


def split(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Train, the first 90 % of the text, and validation, the rest: no window lies in both."""
    cut = round(len(ids) * (1 - HELD_OUT))
    return ids[:cut], ids[cut:]


def batches(ids: Tensor, *, steps: int, batch_size: int, length: int, seed: int) -> Iterator[Tensor]:
    """`steps` batches of windows (B, L + 1) at random places that the seed decides. ValueError for too short a text."""
    places = windows(ids, length, stride=1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield places[torch.randint(len(places), (batch_size,), generator=generator)]


def windows(ids: Tensor, length: int, *, stride: int | None = None) -> Tensor:
    """Windows (n, L + 1) from the start on, by default such that each position is predicted once.

    What no longer fills a window is left out. ValueError for a text that does not fill one.
    """
    if length < 1 or len(ids) < length + 1:
        longest = len(ids) - 1
        raise ValueError(f"length must be a whole number from 1 to {longest} for {len(ids)} characters, got {length!r}")
    return ids.unfold(0, length + 1, stride or length)


def unigram_entropy(ids: Tensor) -> float:
    """H = −Σ_c p_c · log₂ p_c in bits a character, p_c the share of c in the text: a model should get below it."""
    counts = torch.bincount(ids).double()
    p = counts[counts > 0] / counts.sum()
    return float(-(p * p.log2()).sum())
