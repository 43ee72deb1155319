"""Stores the measurements of small trainings that are not runs of a config, in the run store.

They are files `<store>/<folder>/<name>-<seed>-<digest>.parquet`. The folder's name starts with a
dot, so the run store ignores it. The digest is made from the code that measures, so a measurement
whose code has changed is made again.
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
    """Return the rows of `measure(seed)` for each seed, with a column seed. Stored rows are read.

    Measures on one thread, the fastest for small models, so the numbers do not depend on the cores.
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


def digest_of(*files: Path) -> str:
    """Return a digest of torch's version and the files' texts."""
    texts = [torch.__version__, *(file.read_text() for file in files)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]
