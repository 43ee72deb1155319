"""Measures small trainings that have no config, and stores the measurements.

    data/results/measured.parquet   recorded: one row per name, seed and digest, with the measured
                                    rows as JSON
    <store>/<folder>/<name>-<seed>-<digest>-<version of torch>.parquet
                                    measured on this machine

The caller makes the digest from the code that measures (`digest_of`), so a measurement is repeated
when this code has changed. A measurement on this machine is also repeated when torch has another
version. The folder's name starts with a dot, so that the run store ignores the folder.
`python -m mambanorm_study.runs.measurements STORE` records the measurements in a store.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import pandas as pd
import torch

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.basics.atomic import replacing
from mambanorm_study.basics.settings import check_source
from mambanorm_study.runs.machine import git_commit, machine, versions
from mambanorm_study.runs.recorded_results import RESULTS
from mambanorm_study.runs.store import runs_dir as store_dir

RECORDED = RESULTS / "measured.parquet"
KEY = ["folder", "name", "seed", "digest"]


def load_or_measure(
    folder: str,
    name: str,
    measure: Callable[[int], Iterable[dict]],
    seeds: Sequence[int],
    digest: str,
    runs_dir: str | Path | None = None,
) -> pd.DataFrame:
    """Return the rows of `measure(seed)` for each seed, as a DataFrame with a column seed.

    Rows that are recorded or stored under `folder`, `name`, seed and `digest` are read, not
    measured again; with the source "trained", recorded rows are not read. Measures on one thread,
    which is fastest for small models and makes the numbers independent of the number of cores.
    """
    recorded = {} if check_source() == "trained" else _recorded_rows()
    frames = []
    for seed in seeds:
        if (folder, name, seed, digest) in recorded:
            frames.append(pd.DataFrame(json.loads(recorded[folder, name, seed, digest])))
            continue
        file_name = f"{name}-{seed}-{digest}-{torch.__version__}.parquet"
        path = store_dir(runs_dir) / folder / file_name
        if not path.is_file():
            with torch.random.fork_rng(devices=[]), exactly_threads(1):
                torch.manual_seed(seed)
                rows = pd.DataFrame(measure(seed)).assign(seed=seed)
            with replacing(path) as temporary:
                rows.to_parquet(temporary, index=False)
        frames.append(pd.read_parquet(path))
    return pd.concat(frames, ignore_index=True)


@lru_cache(maxsize=1)
def _recorded_rows() -> dict[tuple, str]:
    """Return a map from (folder, name, seed, digest) to the recorded rows as JSON."""
    return pd.read_parquet(RECORDED).set_index(KEY).rows.to_dict() if RECORDED.is_file() else {}


def digest_of(*sources: Path | str) -> str:
    """Return ten hex digits of a hash of sources, which are texts or Paths of Python files.

    In a file, docstrings, empty lines and comments on lines of their own do not count.
    """
    texts = [source if isinstance(source, str) else _code(source) for source in sources]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]


def _code(path: Path) -> str:
    """Return the lines of a Python file without docstrings, comment lines and empty lines."""
    text = path.read_text("utf-8")
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            dropped.update(range(node.lineno, node.end_lineno + 1))
    return "\n".join(
        line
        for number, line in enumerate(text.splitlines(), 1)
        if number not in dropped and line.strip() and not line.lstrip().startswith("#")
    )


def record(store: Path, path: Path = RECORDED) -> None:
    """Write all measurements in a store to the file of recorded measurements."""
    origin = {"versions": versions(), "machine": machine(), "git_commit": git_commit()}
    rows = []
    for file in sorted(store.glob(f".*/*-*-*-{torch.__version__}.parquet")):
        name, seed, digest, _ = file.stem.rsplit("-", 3)
        measured = json.dumps(pd.read_parquet(file).to_dict("records"), default=list)
        rows.append(
            {"folder": file.parent.name, "name": name, "seed": int(seed), "digest": digest}
            | {"rows": measured, **origin}
        )
    with replacing(path) as temporary:
        pd.DataFrame(rows).to_parquet(temporary, index=False, compression="zstd")


if __name__ == "__main__":
    record(Path(sys.argv[1]))
