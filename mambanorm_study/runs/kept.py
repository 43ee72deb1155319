"""Small trainings that are no runs of a config: what they measured, kept in the run store.

    kept      rows by seed, from the store or measured now: on one thread, with torch's seed set
    digest    of files, functions and settings: rows are kept under it, so that what is changed is
    measured anew

They lie in a folder with a dot, which the run store passes by.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.basics.atomic import replacing
from mambanorm_study.runs.store import runs_dir as store_dir


def kept(
    folder: str,
    name: str,
    one_seed: Callable[[int], Iterable[dict]],
    seeds: Sequence[int],
    digest: str,
    runs_dir=None,
) -> pd.DataFrame:
    """The rows of `one_seed(seed)` for each seed, with the column seed; what the store holds is
    read.

    One thread is the quickest for models as small as these, and gives the same numbers on any
    number of cores.
    """
    frames = []
    for seed in seeds:
        path = _path(folder, name, seed, digest, runs_dir)
        if not path.is_file():
            with torch.random.fork_rng(devices=[]), exactly_threads(1):
                torch.manual_seed(seed)
                rows = pd.DataFrame(one_seed(seed)).assign(seed=seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                rows.to_parquet(temporary, index=False)
        frames.append(pd.read_parquet(path))
    return pd.concat(frames, ignore_index=True)


def digest(*made_by: object) -> str:
    """Of what measures, and of torch's version: of a file or a function its text, of a setting its
    value."""
    texts = [torch.__version__, *map(_text, made_by)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]


def _text(part: object) -> str:
    return (
        part.read_text()
        if isinstance(part, Path)
        else inspect.getsource(part)
        if callable(part)
        else repr(part)
    )


def _path(folder: str, name: str, seed: int, digest: str, runs_dir) -> Path:
    return store_dir(runs_dir) / folder / f"{name}-{seed}-{digest}.parquet"
