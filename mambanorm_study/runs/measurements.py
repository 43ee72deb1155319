"""Measures small trainings that have no config and stores the measurements in the run store.

The measurements are files `<store>/<folder>/<name>-<seed>-<digest>.parquet`. The folder's name
starts with a dot, so that the run store ignores the folder. The caller makes the digest from the
code that measures (`digest_of`), so a measurement is repeated when this code has changed.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.basics.atomic import replacing
from mambanorm_study.runs.store import runs_dir as store_dir


def load_or_measure(
    folder: str,
    name: str,
    measure: Callable[[int], Iterable[dict]],
    seeds: Sequence[int],
    digest: str,
    runs_dir: str | Path | None = None,
) -> pd.DataFrame:
    """Return the rows of `measure(seed)` for each seed, as a DataFrame with a column seed.

    The rows of a seed are stored under `folder`, `name`, seed and `digest`; stored rows are read,
    not measured again. Measures on one thread, which is fastest for small models and makes the
    numbers independent of the number of cores.
    """
    frames = []
    for seed in seeds:
        path = store_dir(runs_dir) / folder / f"{name}-{seed}-{digest}.parquet"
        if not path.is_file():
            with torch.random.fork_rng(devices=[]), exactly_threads(1):
                torch.manual_seed(seed)
                rows = pd.DataFrame(measure(seed)).assign(seed=seed)
            with replacing(path) as temporary:
                rows.to_parquet(temporary, index=False)
        frames.append(pd.read_parquet(path))
    return pd.concat(frames, ignore_index=True)


def digest_of(*sources: Path | str) -> str:
    """Return ten hex digits of a hash of torch's version and `sources`: texts or file Paths."""
    texts = [source if isinstance(source, str) else source.read_text() for source in sources]
    return hashlib.sha256("\0".join([torch.__version__, *texts]).encode()).hexdigest()[:10]
