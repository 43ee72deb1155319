"""ListOps: nested lists of digits under MIN, MAX, MED (median) and SM (sum mod 10), as text.

The label is the value of the expression:

    ( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )
    -> SM(8, 9, MAX(2, 5, MIN(3, 1))) = 2

Sources: Nangia & Bowman (2018), ListOps, arXiv:1804.06028. Tay et al. (2021), Long Range Arena
(LRA), arXiv:2011.04006: generator `lra_benchmarks/data/listops.py`; reader and vocabulary as in
state-spaces/s4 `src/dataloaders/lra.py`. Deviations from LRA: the generator is seeded, and the
smaller scales have their own `SETTINGS`.

Glossary: source = the text; token = an operator, a digit or the closing bracket, but no
parenthesis; length = number of tokens; ids = one byte a token, `<eos>` last.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import cache_file, cached_arrays, data_folder, read_text
from mambanorm_study.tasks.registry import register_task
from mambanorm_study.tasks.shape import Shape
from mambanorm_study.tasks.split_sizes import check_complete

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
MIN_ARGS = 2
POOL_SEED = 0
GENERATOR = 1  # part of the cache's name: raise it if the same settings would give other rows


@dataclass(frozen=True)
class Settings:
    """How the expressions of a scale are drawn.

    sizes: rows of train, val and test. operator_probability: of a node at depth 1, 2, …; all other
    nodes are digits. Distinct expressions with longer_than < length < shorter_than are used. l_max:
    positions of a row with its `<eos>`; longer rows are cut. reshuffle: the run's seed decides
    which rows of the pool are train, val and test; otherwise the split is fixed, as in LRA's files.
    """

    sizes: tuple[int, int, int]
    operator_probability: tuple[float, ...]
    max_args: int
    longer_than: int
    shorter_than: int
    l_max: int
    reshuffle: bool


LRA = {"operator_probability": (0.25,) * 9, "max_args": 10}  # nodes at depth 10 are digits
SETTINGS: dict[str, Settings] = {
    # For tests: at most three levels.
    "smoke": Settings((64, 32, 32), operator_probability=(1.0, 0.4), max_args=4,
                      longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # 5–40 tokens, 19 on average. With LRA's generator cut to such lengths, half the rows are single
    # operators, which separate no arms. Here the root is always an operator and the probability
    # falls with depth, so lists are nested.
    "quick": Settings((20_000, 1_000, 2_000), operator_probability=(1.0, 0.5, 0.2), max_args=5,
                      longer_than=4, shorter_than=41, l_max=41, reshuffle=True),
    # 5–20 tokens, two or three levels: short enough that a run of a minute leaves the plateau that
    # the arms share at quick.
    "evening": Settings((20_000, 1_000, 2_000), operator_probability=(1.0, 0.4), max_args=4,
                        longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # LRA's own grammar at 101–499 tokens, 299 on average: a third of LRA's length and half of its
    # rows, so that a grid of arms and seeds fits one GPU. The splits are fixed, as with LRA.
    "lab": Settings((50_000, 2_000, 2_000), **LRA,
                    longer_than=100, shorter_than=500, l_max=500, reshuffle=False),
    # LRA exactly.
    "paper": Settings((96_000, 2_000, 2_000), **LRA,
                      longer_than=500, shorter_than=2_000, l_max=2_048, reshuffle=False),
}  # fmt: skip
MEAN_TOKENS = {"smoke": 11, "quick": 19, "evening": 11, "lab": 299, "paper": 1_038}


# ----------------------------------------------------------------------------------------- notation


def evaluate(source: str) -> int:
    """Return the value 0…9 of an expression of tokens separated by white space.

    Parentheses are ignored. Raises ValueError for malformed text, with the first wrong token
    (counted from 1, parentheses included).
    """
    stack: list[tuple[str, list[int]]] = [("", [])]  # no recursion: nesting may be very deep
    for position, token in enumerate(source.split(), 1):
        if token in OPERATORS:
            stack.append((token, []))
        elif token == "]" and len(stack) > 1 and stack[-1][1]:
            operator, args = stack.pop()
            stack[-1][1].append(OPERATORS[operator](args))
        elif token in DIGITS:
            stack[-1][1].append(int(token))
        elif token not in ("(", ")"):
            raise ValueError(f"token {position} {token!r} does not belong there")
    values, n_open = stack[0][1], len(stack) - 1
    if n_open or len(values) != 1:
        raise ValueError(
            f"{len(values)} expressions, needed is one, and {n_open} operators wait for their ']'"
        )
    return values[0]


def tokenise(source: str) -> list[str]:
    """Return the tokens of the s4 reader: no parentheses, and `X` for `]`. Checks nothing."""
    return source.replace("]", "X").replace("(", "").replace(")", "").split()


# ---------------------------------------------------------------------------------------- generator


def draw(n: int, settings: Settings, seed: int = POOL_SEED) -> Iterator[tuple[bytes, int]]:
    """Yield n distinct expressions as (ids without `<eos>`, value), the same on any machine."""
    # random.random() is the only generator whose sequence Python guarantees across versions
    uniform, seen = random.Random(seed).random, set()
    with tqdm(total=n, desc="ListOps", unit=" rows", delay=2, mininterval=1) as bar:
        while len(seen) < n:
            expression = _expression(uniform, settings)
            if expression is not None and expression[0] not in seen:
                seen.add(expression[0])
                bar.update()
                yield expression


def _expression(uniform: Callable[[], float], settings: Settings) -> tuple[bytes, int] | None:
    """Return a random expression as (ids, value), or None if its length is out of bounds."""
    ids: list[int] = []
    try:
        value = _grow(uniform, settings, 0, ids)
    except _TooLong:
        return None
    return (bytes(ids), value) if settings.longer_than < len(ids) < settings.shorter_than else None


class _TooLong(Exception):
    """The expression being drawn is already longer than the settings allow."""


def _grow(uniform: Callable[[], float], settings: Settings, depth: int, ids: list[int]) -> int:
    """Append a random expression's ids and return its value; `depth` counts from 0."""
    probabilities = settings.operator_probability
    if depth >= len(probabilities) or uniform() >= probabilities[depth]:
        digit = int(uniform() * 10)
        ids.append(IDS["0"] + digit)
        return digit
    if len(ids) >= settings.shorter_than:
        raise _TooLong
    n_args = MIN_ARGS + int(uniform() * (settings.max_args - MIN_ARGS + 1))
    operator = list(OPERATORS)[int(uniform() * len(OPERATORS))]
    ids.append(IDS[operator])
    args = [_grow(uniform, settings, depth + 1, ids) for _ in range(n_args)]
    ids.append(CLOSE)
    return OPERATORS[operator](args)


# ---------------------------------------------------------------------------------------------- LRA


def read_tsv(path: Path) -> list[tuple[str, int]]:
    """Return (source, label) of each row of one of LRA's files, with header `Source<TAB>Target`.

    Raises ValueError, with file, row (the header is row 1) and text, for a row whose source is
    malformed or whose target is not the value of its source, and for a file without rows.
    """
    header, *lines = read_text(path).splitlines() or [""]
    if header.split("\t") != ["Source", "Target"] or not lines:
        raise ValueError(
            f"{path}: needed are the header 'Source<TAB>Target' and rows below it, "
            f"it has {header[:80]!r}"
        )
    rows = []
    for number, line in enumerate(lines, 2):
        source, _, target = line.partition("\t")
        try:
            value = evaluate(source)
            if str(value) != target:
                raise ValueError(f"target {target!r}, but the source's value is {value}")
        except ValueError as error:  # a row of LRA has up to 12,000 characters
            raise ValueError(f"{path}, row {number} {line[:80]!r}: {error}") from error
        rows.append((source, value))
    return rows


def _lra_rows(folder: Path) -> list[tuple[bytes, int]]:
    """Return the rows of LRA's three files, or [] if there are none."""
    files = [folder / f"basic_{split}.tsv" for split in ("train", "val", "test")]
    absent = [str(file) for file in files if not file.exists()]
    if len(absent) == len(files):
        return []
    if absent:
        raise ValueError(
            f"LRA's ListOps is incomplete: {', '.join(absent)} missing; "
            "provide all three files or none"
        )
    parts = [read_tsv(file) for file in files]
    check_complete(folder, tuple(map(len, parts)), SETTINGS["paper"].sizes, "paper")
    rows = [row for part in parts for row in part]
    return [(bytes(IDS[token] for token in tokenise(source)), label) for source, label in rows]


# ----------------------------------------------------------------------------------------- the pool


@lru_cache(maxsize=2)
def _pool(scale: str, folder: Path) -> Split:
    """Return all rows of a scale: train first, then val and test."""
    settings = SETTINGS[scale]
    rows = _lra_rows(folder) if scale == "paper" else []
    if rows:
        arrays = _padded(rows, settings.l_max)
    else:
        key = [GENERATOR, VOCABULARY, asdict(settings)]
        n = sum(settings.sizes)
        arrays = cached_arrays(
            cache_file(folder, f"{scale}-seed{POOL_SEED}", key),
            lambda: _padded(list(draw(n, settings)), settings.l_max),
        )
    return Split(*map(torch.from_numpy, arrays))


def _padded(rows: list[tuple[bytes, int]], l_max: int) -> list[np.ndarray]:
    """Return ids (n, L) with `<eos>` and 0 for padding, labels (n,) and lengths (n,)."""
    ids = [torch.tensor([*ids[: l_max - 1], EOS], dtype=torch.uint8) for ids, _ in rows]
    labels = np.array([label for _, label in rows], np.int64)
    return [pad_sequence(ids, batch_first=True).numpy(), labels, np.array([len(x) for x in ids])]


# ----------------------------------------------------------------------------------------- the task


def _shape(scale: str) -> Shape:
    settings = SETTINGS[scale]
    return Shape(
        10,
        settings.shorter_than,
        vocab_size=len(VOCABULARY),
        tokens=MEAN_TOKENS[scale] + 1,  # with <eos>
        sizes=settings.sizes,
        reshuffled=settings.reshuffle,
    )


@register_task(
    "listops",
    title="ListOps: nested MIN, MAX, MED and SM of digits",
    source="Nangia & Bowman (2018), arXiv:1804.06028; "
    "Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
    shape=_shape,
)
def load_listops(scale: str, seed: int) -> TaskData:
    """Return token ids (n, L) and 10 classes; no expression is in two splits.

    The seed decides which rows of one pool are train, val and test, except at lab and paper. At
    paper LRA's own files are used if all three are in `data/listops`.
    """
    pool = _pool(scale, data_folder("listops"))
    settings = SETTINGS[scale]
    order = _shuffled(len(pool), seed) if settings.reshuffle else torch.arange(len(pool))
    splits = [
        Split(pool.inputs[rows], pool.labels[rows], pool.lengths[rows])
        for rows in order.split(settings.sizes)
    ]
    return TaskData(*splits, n_classes=10, vocab_size=len(VOCABULARY))


def _shuffled(n: int, seed: int) -> torch.Tensor:
    """Return 0…n−1 in an order that depends on the seed alone, not on library versions."""
    uniform = random.Random(seed).random
    return torch.from_numpy(np.argsort([uniform() for _ in range(n)], kind="stable"))
