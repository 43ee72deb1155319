"""ListOps: nested lists of digits under MIN, MAX, MED (median) and SM (sum mod 10), as text.

The label is the value of the expression:

    ( ( ( ( [SM 8 ) 9 ) ( ( ( ( [MAX 2 ) 5 ) ( ( ( [MIN 3 ) 1 ) ] ) ) ] ) ) ] )
    -> SM(8, 9, MAX(2, 5, MIN(3, 1))) = 2

Sources: Nangia & Bowman (2018), ListOps, arXiv:1804.06028. Tay et al. (2021), Long Range Arena
(LRA), arXiv:2011.04006: generator `lra_benchmarks/data/listops.py`; reader and vocabulary as in
state-spaces/s4 `src/dataloaders/lra.py`. Deviations from LRA: the generator is seeded, and only
the scale paper has LRA's settings (see SETTINGS).

Glossary: token = an operator, a digit or the closing bracket (parentheses are dropped); length =
number of tokens; ids = one byte for each token, without `<eos>`.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from mambanorm_study.tasks.base import Split, TaskData
from mambanorm_study.tasks.files import cache_file, cached_arrays, check_labels, data_folder
from mambanorm_study.tasks.registry import Shape, check_complete, register_task

# For an even number of arguments, MED is the mean of the middle two, truncated to a whole number,
# as in LRA.
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda args: int(median(args)),
    "[SM": lambda args: sum(args) % 10,
}
VOCABULARY = ("<pad>", "<unk>", "<eos>", *"0123456789", *OPERATORS, "X")
IDS = {token: i for i, token in enumerate(VOCABULARY)}
EOS, CLOSE = IDS["<eos>"], IDS["X"]
MIN_ARGS = 2
POOL_SEED = 0
GENERATOR_VERSION = 1  # in the cache file's name; raise it if the same settings give new rows


@dataclass(frozen=True)
class Settings:
    """Settings of a scale: which expressions are drawn, and how they are split.

    sizes: rows of train, val and test. operator_probability: for depth 1 (the root), 2, …, the
    probability that a node is an operator; deeper nodes are digits. max_args: largest number of
    arguments of an operator. Only distinct expressions with longer_than < length < shorter_than are
    used. l_max: largest number of positions of a row, including `<eos>`; longer rows are cut.
    reshuffle: if True, the run's seed decides which rows are train, val and test; otherwise the
    splits are fixed, as in LRA's files.
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
    # smoke is for tests: expressions have at most three levels.
    "smoke": Settings((64, 32, 32), operator_probability=(1.0, 0.4), max_args=4,
                      longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # quick: 5–40 tokens, 19 on average. With LRA's settings and such lengths, half the rows would
    # have a single operator and would not tell arms apart. At quick the root is always an operator,
    # and the probability of an operator falls with depth, so lists are nested.
    "quick": Settings((20_000, 1_000, 2_000), operator_probability=(1.0, 0.5, 0.2), max_args=5,
                      longer_than=4, shorter_than=41, l_max=41, reshuffle=True),
    # evening: 5–20 tokens, two or three levels. These rows are so short that runs of a minute leave
    # the accuracy plateau on which all arms stay at quick.
    "evening": Settings((20_000, 1_000, 2_000), operator_probability=(1.0, 0.4), max_args=4,
                        longer_than=4, shorter_than=21, l_max=21, reshuffle=True),
    # lab: LRA's grammar at 101–499 tokens, 299 on average. Rows have a third of LRA's length, and
    # there are half as many as in LRA, so that one GPU can train a grid of arms and seeds. The
    # splits are fixed, as in LRA.
    "lab": Settings((50_000, 2_000, 2_000), **LRA,
                    longer_than=100, shorter_than=500, l_max=500, reshuffle=False),
    # paper: exactly LRA's settings.
    "paper": Settings((96_000, 2_000, 2_000), **LRA,
                      longer_than=500, shorter_than=2_000, l_max=2_048, reshuffle=False),
}  # fmt: skip
MEAN_TOKENS = {"smoke": 11, "quick": 19, "evening": 11, "lab": 299, "paper": 1_038}


# ---------------------------------------------------------------------------------------- generator


def draw_expressions(n: int, settings: Settings, seed: int = POOL_SEED) -> dict[bytes, int]:
    """Return n distinct random expressions as a map from the ids to the value of the expression.

    The same arguments give the same expressions on all machines.
    """
    # random.random() is the only generator whose sequence Python guarantees across versions
    uniform = random.Random(seed).random
    values: dict[bytes, int] = {}
    with tqdm(total=n, desc="ListOps", unit=" rows", delay=2, mininterval=1) as bar:
        while len(values) < n:
            ids = bytearray()
            with suppress(_TooLong):
                value = _append_expression(uniform, settings, 0, ids)
                if settings.longer_than < len(ids) < settings.shorter_than:
                    values[bytes(ids)] = value
            bar.update(len(values) - bar.n)
    return values


class _TooLong(Exception):
    """Raised when an expression becomes longer than the settings allow."""


def _append_expression(
    uniform: Callable[[], float], settings: Settings, depth: int, ids: bytearray
) -> int:
    """Append the ids of a random expression to `ids`, and return the value of the expression.

    uniform: returns a random number in [0, 1). depth: depth of the expression, 0 for the root.
    """
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
    args = [_append_expression(uniform, settings, depth + 1, ids) for _ in range(n_args)]
    ids.append(CLOSE)
    return OPERATORS[operator](args)


# ----------------------------------------------------------------------------------------- the pool


def read_lra(path: Path) -> list[tuple[bytes, int]]:
    """Return a list of pairs (ids, value), one per row of a file of LRA.

    The file has the columns `Source` (an expression) and `Target` (the value of the expression).
    Raises ValueError, with the path, if the file has another format, an unknown token, or a target
    that is not a digit.
    """
    try:
        table = pd.read_csv(path, sep="\t")
        values = check_labels(table["Target"].to_numpy(), 10, "its data").tolist()
        sources = table["Source"].str.replace("]", "X").str.replace("[()]", "", regex=True)
        ids = [bytes(IDS[token] for token in source.split()) for source in sources]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is not a file of LRA ({error}): replace this file") from error
    return list(zip(ids, values, strict=True))


@lru_cache(maxsize=2)
def _load_pool(scale: str, folder: Path) -> Split:
    """Return all rows of a scale as one Split.

    If the splits are fixed (lab and paper), the rows of train come first, then those of val, then
    those of test. folder: the folder with LRA's files and the cache.
    """
    settings = SETTINGS[scale]
    files = [folder / f"basic_{split}.tsv" for split in ("train", "val", "test")]
    if scale == "paper" and any(file.exists() for file in files):
        parts = [read_lra(file) for file in files]
        check_complete(folder, tuple(map(len, parts)), settings.sizes, scale)
        arrays = _pad_rows([row for part in parts for row in part], settings.l_max)
    else:
        key = [GENERATOR_VERSION, VOCABULARY, asdict(settings)]
        arrays = cached_arrays(
            cache_file(folder, f"{scale}-seed{POOL_SEED}", key),
            lambda: _pad_rows(
                list(draw_expressions(sum(settings.sizes), settings).items()), settings.l_max
            ),
        )
    return Split(*map(torch.from_numpy, arrays))


def _pad_rows(rows: list[tuple[bytes, int]], l_max: int) -> list[np.ndarray]:
    """Return the padded ids (n, L), the labels (n,) and the lengths (n,) of n rows.

    rows: pairs (ids, label). A padded row has at most l_max − 1 ids, then `<eos>`, then zeros. The
    lengths include `<eos>`.
    """
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
        tokens=MEAN_TOKENS[scale] + 1,  # + 1 for <eos>
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

    The seed decides which rows of the scale are train, val and test, except at lab and paper, where
    the splits are fixed. At paper, LRA's files are used if they are in `data/listops`.
    """
    pool = _load_pool(scale, data_folder("listops"))
    settings = SETTINGS[scale]
    order = np.arange(len(pool))
    if settings.reshuffle:  # random.random() gives the same numbers in every version of Python
        uniform = random.Random(seed).random
        order = np.argsort([uniform() for _ in order], kind="stable")
    splits = [
        Split(pool.inputs[rows], pool.labels[rows], pool.lengths[rows])
        for rows in torch.from_numpy(order).split(settings.sizes)
    ]
    return TaskData(*splits, n_classes=10, vocab_size=len(VOCABULARY))
