"""ListOps: nested lists of digits under MIN, MAX, MED (median) and SM (sum mod 10) as text; the
label is its value.

    ( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )  ->  SM(8, 9, MAX(2,
    5, MIN(3, 1))) = 2

Sources: Nangia & Bowman (2018), ListOps, arXiv:1804.06028. Tay et al. (2021), Long Range Arena
(LRA), arXiv:2011.04006: generator `lra_benchmarks/data/listops.py`; reader and vocabulary as in
state-spaces/s4 `src/dataloaders/lra.py`. Ours differs from LRA in two ways: it is seeded, and the
smaller scales have settings of their own (`SETTINGS`).

Glossary: source = the text; token = an operator, a digit or the closing bracket, but no
parenthesis; length = number of tokens; ids = one byte a token, `<eos>` last.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm_study.tasks.base import Shape, Split, TaskData
from mambanorm_study.tasks.files import cache_file, check_whole, data_folder, kept, read_text
from mambanorm_study.tasks.registry import register_task

# LRA's MED truncates the mean of the middle two; for digits that is a floor division.
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda args: (sorted(args)[(len(args) - 1) // 2] + sorted(args)[len(args) // 2]) // 2,
    "[SM": lambda args: sum(args) % 10,
}
DIGITS = tuple("0123456789")
VOCABULARY = ("<pad>", "<unk>", "<eos>", *DIGITS, *OPERATORS, "X")
IDS = {token: i for i, token in enumerate(VOCABULARY)}
EOS, CLOSE = IDS["<eos>"], IDS["X"]
Rows = list[tuple[bytes, int]]  # ids without `<eos>`, label
GENERATOR = 1  # part of the cache's name: raise it whenever the same settings would give other rows


@dataclass(frozen=True)
class Settings:
    """What is drawn: a node at depth d is an operator with probability `operator_probability[d -
    1]`, else a digit.

    Kept are distinct expressions with longer_than < length < shorter_than. `reshuffle`: the run's
    seed decides which rows of the pool are train, val and test; otherwise the split is fixed, as
    LRA's files are.
    """

    train: int
    val: int
    test: int
    operator_probability: tuple[
        float, ...
    ]  # depths 1, 2, …; below the last one there are only digits
    max_args: int
    longer_than: int
    shorter_than: int
    l_max: int  # positions of a row with its <eos>; longer ones are truncated
    reshuffle: bool
    min_args: int = 2
    seed: int = 0  # of the pool

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.train, self.val, self.test


LRA = {
    "operator_probability": (0.25,) * 9,
    "max_args": 10,
}  # max_depth 10: nodes at depth 10 are digits
FALLING = (1.0, 0.5, 0.2)  # depth 4 at most
SETTINGS: dict[str, Settings] = {
    # For tests: three levels at most, moments to make.
    "smoke": Settings(train=64, val=32, test=32, operator_probability=(1.0, 0.4), max_args=4,
                      longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # 5–40 tokens, 19 on average. With LRA's generator cut to such lengths, half the rows are single
    # operators, which separate no arms. Here the root is always an operator and the probability
    # falls with depth: lists are nested.
    "quick": Settings(train=20_000, val=1_000, test=2_000, operator_probability=FALLING, max_args=5,
                      longer_than=4, shorter_than=41, l_max=41, reshuffle=True),
    # 5–20 tokens, two or three levels: short enough to leave, in a minute a run, the plateau that
    # quick's arms share.
    "evening": Settings(train=20_000, val=1_000, test=2_000, operator_probability=(1.0, 0.4), max_args=4,
                        longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # LRA's own grammar at 101–499 tokens, 299 on average: a third of LRA's length and half of its
    # rows, so that a grid of arms and seeds fits one GPU while the nesting stays LRA's. The splits
    # are fixed, as with LRA.
    "lab": Settings(train=50_000, val=2_000, test=2_000, **LRA,
                    longer_than=100, shorter_than=500, l_max=500, reshuffle=False),
    # LRA exactly.
    "paper": Settings(train=96_000, val=2_000, test=2_000, **LRA,
                      longer_than=500, shorter_than=2_000, l_max=2_048, reshuffle=False),
}  # fmt: skip
TOKENS = {
    "smoke": 11,
    "quick": 19,
    "evening": 11,
    "lab": 299,
    "paper": 1_038,
}  # of an expression, on average


# ----------------------------------------------------------------------------------------- notation


def evaluate(source: str) -> int:
    """The value 0…9 of an expression, its tokens separated by white space; parentheses say nothing
    and are passed over.

    ValueError for malformed text, with the token (counted from 1, parentheses included) that does
    not belong there.
    """
    stack: list[tuple[str, list[int]]] = [
        ("", [])
    ]  # text may be nested deeper than Python allows recursion
    for place, token in enumerate(source.split(), 1):
        if token in OPERATORS:
            stack.append((token, []))
        elif token == "]" and len(stack) > 1 and stack[-1][1]:
            name, args = stack.pop()
            stack[-1][1].append(OPERATORS[name](args))
        elif token in DIGITS:
            stack[-1][1].append(int(token))
        elif token not in ("(", ")"):
            raise ValueError(f"token {place} {token!r} does not belong there")
    (_, values), *waiting = stack
    if waiting or len(values) != 1:
        raise ValueError(
            f"{len(values)} expressions, needed is one, and {len(waiting)} operators wait for their ']'"
        )
    return values[0]


def tokenise(source: str) -> list[str]:
    """The s4 reader's tokens: parentheses dropped, `]` written as `X`. Nothing is checked: see
    `evaluate`."""
    return source.replace("]", "X").replace("(", "").replace(")", "").split()


def decode(ids) -> str:
    """The tokens of a row of ids as text, without `<pad>` and `<eos>`; `evaluate` reads it."""
    return " ".join(
        "]" if i == CLOSE else VOCABULARY[i] for i in map(int, ids) if i not in (0, EOS)
    )


# ---------------------------------------------------------------------------------------- generator


def draw(n: int, settings: Settings, seed: int = 0) -> Iterator[tuple[bytes, int]]:
    """n distinct expressions as (ids without `<eos>`, value), the same for the same seed on any
    machine: compact enough to remember a hundred thousand. A progress bar appears when it takes
    longer than two seconds."""
    # random.random() is the one generator whose sequence Python promises to keep from version to
    # version.
    number, seen = random.Random(seed).random, set()
    with tqdm(total=n, desc="ListOps", unit=" rows", delay=2, mininterval=1) as bar:
        while len(seen) < n:
            found = _expression(number, settings)
            if found is not None and found[0] not in seen:
                seen.add(found[0])
                bar.update()
                yield found


def _expression(number: Callable[[], float], settings: Settings) -> tuple[bytes, int] | None:
    """One expression as (ids, value), or None where its length is out of bounds."""
    ids: list[int] = []
    try:
        value = _grow(number, settings, 0, ids)
    except _TooLong:
        return None
    return (bytes(ids), value) if settings.longer_than < len(ids) < settings.shorter_than else None


class _TooLong(Exception):
    """The expression being grown cannot be kept any more; stopping early changes nothing about
    those that are."""


def _grow(number: Callable[[], float], settings: Settings, depth: int, ids: list[int]) -> int:
    """Append a random expression's ids and return its value; `depth` counts from 0."""
    if (
        depth >= len(settings.operator_probability)
        or number() >= settings.operator_probability[depth]
    ):
        digit = int(number() * 10)
        ids.append(IDS["0"] + digit)
        return digit
    if len(ids) >= settings.shorter_than:
        raise _TooLong
    count = settings.min_args + int(number() * (settings.max_args - settings.min_args + 1))
    which = int(number() * len(OPERATORS))
    ids.append(IDS["[MIN"] + which)
    args = [_grow(number, settings, depth + 1, ids) for _ in range(count)]
    ids.append(CLOSE)
    return tuple(OPERATORS.values())[which](args)


# ---------------------------------------------------------------------------------------------- LRA


def read_tsv(path: Path) -> list[tuple[str, int]]:
    """(source, label) of every row of one of LRA's files: tab separated, header
    `Source<TAB>Target`.

    Nothing is dropped or repaired: ValueError with file, row (the header is row 1) and text for a
    row that has not two columns, whose source is malformed, or whose target is not the source's
    value; also for a file without rows.
    """
    header, *lines = read_text(path).splitlines() or [""]
    if header.split("\t") != ["Source", "Target"] or not lines:
        raise ValueError(
            f"{path}: needed are the header 'Source<TAB>Target' and rows below it, it has {header[:80]!r}"
        )
    rows = []
    for place, line in enumerate(lines, 2):
        source, _, target = line.partition("\t")
        try:
            if str(value := evaluate(source)) != target:
                raise ValueError(f"target {target!r}, but the source's value is {value}")
        except ValueError as error:  # a row of LRA has up to 12,000 characters
            raise ValueError(f"{path}, row {place} {line[:80]!r}: {error}") from error
        rows.append((source, value))
    return rows


def _lra_rows(folder: Path) -> Rows:
    """The rows of LRA's three files, [] where none is there; ValueError where only some are, or
    where rows lack."""
    files = [folder / f"basic_{split}.tsv" for split in ("train", "val", "test")]
    absent = [str(file) for file in files if not file.exists()]
    if len(absent) == 3:
        return []
    if absent:
        raise ValueError(
            f"LRA's ListOps is incomplete: {', '.join(absent)} missing; bring all three files or none"
        )
    parts = [read_tsv(file) for file in files]
    check_whole(folder, tuple(map(len, parts)), SETTINGS["paper"].sizes, "paper")
    return [
        (bytes(IDS[token] for token in tokenise(source)), label)
        for part in parts
        for source, label in part
    ]


# ----------------------------------------------------------------------------------------- the pool


@lru_cache(maxsize=2)
def _pool(scale: str, folder: Path) -> Split:
    """Every row of a scale, train first, then val and test; shared by all seeds."""
    settings = SETTINGS[scale]
    if scale == "paper" and (rows := _lra_rows(folder)):
        arrays = _padded(rows, settings.l_max)
    else:
        path = cache_file(
            folder, f"{scale}-seed{settings.seed}", [GENERATOR, VOCABULARY, asdict(settings)]
        )
        arrays = kept(
            path,
            lambda: _padded(
                list(draw(sum(settings.sizes), settings, settings.seed)), settings.l_max
            ),
        )
    return Split(*map(torch.from_numpy, arrays))


def _padded(rows: Rows, l_max: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n, L) ids with `<eos>`, 0 = padding, L the longest row's length; labels (n,) and lengths
    (n,)."""
    ended = [ids[: l_max - 1] + bytes([EOS]) for ids, _ in rows]
    lengths = np.array([len(ids) for ids in ended], dtype=np.int64)
    inputs = np.zeros((len(rows), lengths.max()), dtype=np.uint8)
    for i, ids in enumerate(ended):
        inputs[i, : len(ids)] = np.frombuffer(ids, dtype=np.uint8)
    return inputs, np.array([label for _, label in rows], np.int64), lengths


# ----------------------------------------------------------------------------------------- the task


def shape(scale: str) -> Shape:
    """`TOKENS` and their `<eos>`; nothing is generated for it."""
    settings = SETTINGS[scale]
    sizes = dict(tokens=TOKENS[scale] + 1, held_out=settings.sizes[1:], train_rows=settings.train)
    return Shape(
        10,
        settings.shorter_than,
        vocab_size=len(VOCABULARY),
        **sizes,
        reshuffled=settings.reshuffle,
    )


@register_task(
    "listops",
    title="ListOps: nested MIN, MAX, MED and SM of digits",
    source="Nangia & Bowman (2018), arXiv:1804.06028; Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
    shape=shape,
)
def load_listops(scale: str, seed: int) -> TaskData:
    """Token ids (n, L), 18 tokens, 10 classes; no expression stands in two splits.

    At smoke and quick the seed decides which rows of one pool are train, val and test; at lab and
    paper it changes nothing. At paper LRA's own files are used if all three are in `data/listops`.
    """
    pool = _pool(scale, data_folder("listops"))
    order = _shuffled(len(pool), seed) if SETTINGS[scale].reshuffle else None
    splits, start = [], 0
    for size in SETTINGS[scale].sizes:
        rows = slice(start, start + size)  # a slice is a view: at paper scale the pool has 200 MB
        start += size
        rows = rows if order is None else order[rows]
        splits.append(Split(pool.inputs[rows], pool.labels[rows], pool.lengths[rows]))
    return TaskData(*splits, n_classes=10, vocab_size=len(VOCABULARY))


def _shuffled(n: int, seed: int) -> torch.Tensor:
    """0…n−1 in an order that depends on the seed alone, whatever the versions of the libraries."""
    number = random.Random(seed).random
    return torch.from_numpy(np.argsort([number() for _ in range(n)], kind="stable"))
