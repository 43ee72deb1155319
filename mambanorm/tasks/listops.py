"""ListOps: nested lists of digits under MIN, MAX, MED (median) and SM (sum mod 10) as text; the label is its value.

    ( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )  ->  SM(8, 9, MAX(2, 5, MIN(3, 1))) = 2

Sources: Nangia & Bowman (2018), ListOps, arXiv:1804.06028. Tay et al. (2021), Long Range Arena (LRA), arXiv:2011.04006:
generator `lra_benchmarks/data/listops.py`. The notation itself is in `mambanorm/tasks/expressions.py`.
Ours differs from LRA in two ways: it is seeded, and the smaller scales have settings of their own (`SETTINGS`).

Map
    Settings, SETTINGS          what is drawn at each scale: the one table to change
    generate                    n distinct (source, label) pairs
    read_tsv                    LRA's own files
    folder, cache_path          where the rows are cached, as Parquet
    load_listops                the registered task: a pool of rows, cut into three splits

Glossary: source = the text with LRA's parentheses; token = an operator, a digit or the closing bracket (parentheses are
no tokens); length = number of tokens; ids = one byte a token, `<eos>` last.
"""

from __future__ import annotations

import hashlib
import json
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from tqdm.auto import tqdm

from mambanorm.basics.later import Later
from mambanorm.basics.settings import check_scale
from mambanorm.tasks.base import Shape, Split, TaskData
from mambanorm.tasks.expressions import (
    CLOSE,
    DIGITS,
    EOS,
    IDS,
    OPERATORS,
    VOCABULARY,
    decode,
    evaluate,
    parenthesise,
    tokenise,
)
from mambanorm.tasks.expressions import UNK as UNK  # the rest of the notation: `listops` has all of it
from mambanorm.tasks.expressions import WRITTEN as WRITTEN
from mambanorm.tasks.expressions import Tree as Tree
from mambanorm.tasks.expressions import encode as encode
from mambanorm.tasks.expressions import serialise as serialise
from mambanorm.tasks.files import cached_table, can_cache, check_whole, data_folder
from mambanorm.tasks.registry import register_task

pa = Later("pyarrow")

PATIENCE = 100_000  # draws in a row without a new expression before `generate` gives up (LRA's settings keep 1 in 12)
GENERATOR = 1  # part of the cache's name: raise it whenever the same settings would give other rows


@dataclass(frozen=True)
class Settings:
    """What is drawn: a node at depth d is an operator with probability `operator_probability[d - 1]`, else a digit.

    Kept are distinct expressions with longer_than < length < shorter_than. `reshuffle`: the run's seed decides which
    rows of the pool are train, val and test; otherwise the split is fixed, as LRA's files are.
    """

    train: int
    val: int
    test: int
    operator_probability: tuple[float, ...]  # depths 1, 2, …; below the last one there are only digits
    max_args: int
    longer_than: int
    shorter_than: int
    l_max: int  # positions of a row with its <eos>; longer ones are truncated
    reshuffle: bool
    min_args: int = 2
    seed: int = 0  # of the pool

    def __post_init__(self) -> None:
        if not 1 <= self.min_args <= self.max_args:
            raise ValueError(f"min_args={self.min_args}, max_args={self.max_args}: needed is 1 <= min_args <= max_args")
        if not all(0 <= p <= 1 for p in self.operator_probability):
            raise ValueError(f"operator_probability={self.operator_probability}: allowed are numbers from 0 to 1")
        if self.longer_than + 1 >= self.shorter_than:
            given = f"longer_than={self.longer_than}, shorter_than={self.shorter_than}"
            raise ValueError(f"{given}: no length lies strictly between the two")

    @property
    def rows(self) -> int:
        """Rows of the whole pool."""
        return self.train + self.val + self.test


LRA = {"operator_probability": (0.25,) * 9, "max_args": 10}  # max_depth 10: nodes at depth 10 are digits
FALLING = (1.0, 0.5, 0.2)  # depth 4 at most
SETTINGS: dict[str, Settings] = {
    # For tests: three levels at most, moments to make.
    "smoke": Settings(train=64, val=32, test=32, operator_probability=(1.0, 0.4), max_args=4,
                      longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # 5–40 tokens, 19 on average. With LRA's generator cut to such lengths, half the rows are single operators, which
    # separate no arms. Here the root is always an operator and the probability falls with depth: lists are nested.
    "quick": Settings(train=20_000, val=1_000, test=2_000, operator_probability=FALLING, max_args=5,
                      longer_than=4, shorter_than=41, l_max=41, reshuffle=True),
    # 5–20 tokens, two or three levels: short enough to leave, in a minute a run, the plateau that quick's arms share.
    "evening": Settings(train=20_000, val=1_000, test=2_000, operator_probability=(1.0, 0.4), max_args=4,
                        longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # LRA's own grammar at 101–499 tokens, 299 on average: a third of LRA's length and half of its rows, so that a grid
    # of arms and seeds fits one GPU while the nesting stays LRA's. The splits are fixed, as with LRA.
    "lab": Settings(train=50_000, val=2_000, test=2_000, **LRA,
                    longer_than=100, shorter_than=500, l_max=500, reshuffle=False),
    # LRA exactly.
    "paper": Settings(train=96_000, val=2_000, test=2_000, **LRA,
                      longer_than=500, shorter_than=2_000, l_max=2_048, reshuffle=False),
}  # fmt: skip
TOKENS = {"smoke": 11, "quick": 19, "evening": 11, "lab": 299, "paper": 1_038}  # of an expression, on average


# ---------------------------------------------------------------------------------------------- generator


def generate(n: int, settings: Settings, seed: int = 0) -> Iterator[tuple[str, int]]:
    """n distinct expressions as (source, label), the same for the same seed on any machine.

    ValueError where the settings do not hold n distinct expressions (none new in 100,000 draws). A progress bar appears
    when it takes longer than two seconds.
    """
    for ids, label in _draw(n, settings, seed):
        yield parenthesise(decode(ids).split()), label


def _draw(n: int, settings: Settings, seed: int) -> Iterator[tuple[bytes, int]]:
    """n distinct expressions as (ids without `<eos>`, label): compact enough to remember a hundred thousand."""
    # random.random() is the one generator whose sequence Python promises to keep from version to version.
    draw, seen, misses = random.Random(seed).random, set(), 0
    with tqdm(total=n, desc="ListOps", unit=" rows", delay=2, mininterval=1) as bar:
        while len(seen) < n:
            found = _expression(draw, settings)
            if found is None or found[0] in seen:
                misses += 1
                if misses >= PATIENCE:
                    raise ValueError(
                        f"only {len(seen)} of {n} distinct expressions found: ask for fewer or widen {settings}"
                    )
                continue
            misses = 0
            seen.add(found[0])
            bar.update()
            yield found


def _expression(draw: Callable[[], float], settings: Settings) -> tuple[bytes, int] | None:
    """One expression as (ids, value), or None where its length is out of bounds."""
    ids: list[int] = []
    try:
        value = _grow(draw, settings, 0, ids)
    except _TooLong:
        return None
    return (bytes(ids), value) if settings.longer_than < len(ids) < settings.shorter_than else None


class _TooLong(Exception):
    """The expression being grown cannot be kept any more; stopping early changes nothing about those that are."""


def _grow(draw: Callable[[], float], settings: Settings, depth: int, ids: list[int]) -> int:
    """Append a random expression's ids and return its value; `depth` counts from 0."""
    if depth >= len(settings.operator_probability) or draw() >= settings.operator_probability[depth]:
        digit = int(draw() * 10)
        ids.append(IDS["0"] + digit)
        return digit
    if len(ids) >= settings.shorter_than:
        raise _TooLong
    count = settings.min_args + int(draw() * (settings.max_args - settings.min_args + 1))
    which = int(draw() * len(OPERATORS))
    ids.append(IDS["[MIN"] + which)
    args = [_grow(draw, settings, depth + 1, ids) for _ in range(count)]
    ids.append(CLOSE)
    return tuple(OPERATORS.values())[which](args)


# ---------------------------------------------------------------------------------------------- LRA's files


def read_tsv(path: str | Path) -> list[tuple[str, int]]:
    """(source, label) of every row of one of LRA's files: tab separated, header `Source<TAB>Target`.

    Nothing is dropped or repaired: ValueError with file, row (the header is row 1) and text for a row that has not two
    columns, whose source is malformed, or whose target is not the source's value; also for a file without rows.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error})") from error
    if lines[0].split("\t") != ["Source", "Target"]:
        raise ValueError(f"{path}, row 1 {_short(lines[0])!r}: needed is the header 'Source<TAB>Target'")
    if len(lines) == 1:
        raise ValueError(f"{path}: no rows below the header")
    return [_tsv_row(path, place, line) for place, line in enumerate(lines[1:], 2)]


def _tsv_row(path: str | Path, place: int, line: str) -> tuple[str, int]:
    """One row taken apart and checked."""
    columns, where = line.split("\t"), f"{path}, row {place} {_short(line)!r}"
    if len(columns) != 2:
        raise ValueError(f"{where}: {len(columns)} columns; needed are two, Source and Target, separated by a tab")
    source, target = columns
    if target not in DIGITS:
        raise ValueError(f"{where}: target {_short(target)!r} is no digit 0 to 9")
    try:
        value = evaluate(source)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if value != int(target):
        raise ValueError(f"{where}: target {target}, but the source's value is {value}")
    return source, value


def _short(text: str, width: int = 80) -> str:
    """Both ends of the text: a row of LRA has up to 12,000 characters, and the target stands last."""
    return text if len(text) <= width else f"{text[: width // 2]} … {text[-width // 2 :]}"


def _lra_files() -> list[Path]:
    """LRA's three files where they are, [] where none is; ValueError where only some are."""
    files = [folder() / f"basic_{split}.tsv" for split in ("train", "val", "test")]
    missing = [str(file) for file in files if not file.exists()]
    if missing and len(missing) < 3:
        raise ValueError(f"LRA's ListOps is incomplete: {', '.join(missing)} missing; bring all three files or none")
    return [] if missing else files


# ---------------------------------------------------------------------------------------------- pool and cache


def folder() -> Path:
    """Where ListOps is cached: `data/listops` of the project, or of the folder in MAMBANORM_DATA_DIR."""
    return data_folder("listops")


def _cache_path(label: str, key: object) -> Path:
    """A name that changes with everything the rows depend on, so that a stale cache is never read."""
    text = json.dumps([GENERATOR, VOCABULARY, key], sort_keys=True)
    return folder() / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.parquet"


def cache_path(scale: str) -> Path:
    """The Parquet file that holds a scale's generated pool: columns `ids` (binary) and `label`."""
    return _cache_path(f"{scale}-seed{SETTINGS[scale].seed}", asdict(SETTINGS[scale]))


Rows = list[tuple[bytes, int]]  # ids without `<eos>`, label


def _cached(path: Path, n: int | None, make: Callable[[], Rows]) -> Rows:
    """The rows of the file at `path`; made, and written there, where it is missing or damaged."""
    if not can_cache():
        return make()

    def table() -> pa.Table:
        ids, labels = zip(*make(), strict=True)
        return pa.table({"ids": pa.array(ids, pa.binary()), "label": pa.array(labels, pa.int8())})

    found = cached_table(path, ("ids", "label"), n, table)
    return list(zip(found["ids"].to_pylist(), found["label"].to_pylist(), strict=True))


@lru_cache(maxsize=2)
def _pool(scale: str, data_folder: Path) -> tuple[Split, tuple[int, int, int]]:
    """Every row of a scale in one Split, and the sizes of train, val and test; shared by all seeds.

    `data_folder` is only there to tell one MAMBANORM_DATA_DIR from another.
    """
    settings, files = SETTINGS[scale], _lra_files() if scale == "paper" else []
    if files:
        return _lra_pool(files, settings)
    rows = _cached(cache_path(scale), settings.rows, lambda: list(_draw(settings.rows, settings, settings.seed)))
    return _padded(rows, settings.l_max), (settings.train, settings.val, settings.test)


def _lra_pool(files: list[Path], settings: Settings) -> tuple[Split, tuple[int, int, int]]:
    """LRA's own rows; each file is checked once, and its ids are cached under its name, size and time of change."""
    parts = []
    for file in files:
        stamp = [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns]
        parts.append(_cached(_cache_path(file.stem, stamp), None, lambda file=file: _ids_of(file)))
    check_whole(files[0].parent, tuple(map(len, parts)), (settings.train, settings.val, settings.test), "paper")
    rows = [row for part in parts for row in part]
    repeated = len(rows) - len({ids for ids, _ in rows})
    if repeated:
        warnings.warn(
            f"{files[0].parent}: {repeated} rows of LRA's files repeat another row, maybe of another split",
            stacklevel=2,
        )
    return _padded(rows, settings.l_max), tuple(map(len, parts))


def _ids_of(file: Path) -> Rows:
    """A TSV file's rows as (ids without `<eos>`, label), not truncated."""
    return [(bytes(IDS[token] for token in tokenise(source)), label) for source, label in read_tsv(file)]


def _padded(rows: Rows, l_max: int) -> Split:
    """(n, L) ids with `<eos>`, 0 = padding; L is the longest row's length."""
    ended = [ids[: l_max - 1] + bytes([EOS]) for ids, _ in rows]
    lengths = np.array([len(ids) for ids in ended], dtype=np.int64)
    inputs = np.zeros((len(rows), lengths.max()), dtype=np.uint8)
    for i, ids in enumerate(ended):
        inputs[i, : len(ids)] = np.frombuffer(ids, dtype=np.uint8)
    labels = torch.tensor([label for _, label in rows], dtype=torch.int64)
    return Split(torch.from_numpy(inputs), labels, torch.from_numpy(lengths))


# ---------------------------------------------------------------------------------------------- the task


def shape(scale: str) -> Shape:
    """`TOKENS` and their `<eos>`; nothing is generated for it."""
    settings = SETTINGS[scale]
    sizes = dict(tokens=TOKENS[scale] + 1, held_out=(settings.val, settings.test), train_rows=settings.train)
    sizes |= dict(reshuffled=settings.reshuffle)
    return Shape(10, settings.shorter_than, vocab_size=len(VOCABULARY), **sizes)


@register_task(
    "listops",
    title="ListOps: nested MIN, MAX, MED and SM of digits",
    source="Nangia & Bowman (2018), arXiv:1804.06028; Tay et al. (2021), Long Range Arena, arXiv:2011.04006",
    shape=shape,
)
def load_listops(scale: str, seed: int) -> TaskData:
    """Token ids (n, L), 18 tokens, 10 classes; no expression stands in two splits.

    At smoke and quick the seed decides which rows of one pool are train, val and test; at lab and paper it changes
    nothing. At paper LRA's own files are used if all three are in `folder()`. Unknown scale: ValueError.
    """
    check_scale(scale)
    pool, sizes = _pool(scale, folder())
    order = _shuffled(len(pool), seed) if SETTINGS[scale].reshuffle else None
    splits, start = [], 0
    for size in sizes:
        rows = slice(start, start + size)  # a slice is a view: at paper scale the pool has 200 MB
        start += size
        rows = rows if order is None else order[rows]
        splits.append(Split(pool.inputs[rows], pool.labels[rows], pool.lengths[rows]))
    return TaskData(*splits, n_classes=10, vocab_size=len(VOCABULARY))


def _shuffled(n: int, seed: int) -> torch.Tensor:
    """0…n−1 in an order that depends on the seed alone, whatever the versions of the libraries."""
    draw = random.Random(seed).random
    return torch.from_numpy(np.argsort([draw() for _ in range(n)], kind="stable"))
