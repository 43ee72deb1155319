"""Recorded results: the run frame of a full study, which the repository carries.

    data/results/<scale>.parquet        a row for each run: the run frame with the summaries of
                                        tables/summaries.py, and `config`, the JSON that trains the
                                        row again; written by `mambanorm record`
    data/results/<scale>-inside.npz     diagnostics of the runs of §4.6, for notebook 07
    data/results/SHA256SUMS             checksums; a file that was changed since is refused

Each row states where it comes from: config hash (run_id), commit, versions, machine, wall time. The
frame holds no weights and no curves.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import ArrowInvalid

from mambanorm_study.basics.atomic import replacing, sha256, write_text
from mambanorm_study.basics.settings import KIT, SCALES, check_scale, default_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import unique

RESULTS = KIT / "data" / "results"


def recorded_path(scale: str | None = None) -> Path:
    """Return the path of a scale's recorded results (None = the environment's scale)."""
    return RESULTS / f"{default_scale() if scale is None else check_scale(scale)}.parquet"


def recorded(scale: str | None = None) -> pd.DataFrame:
    """Return the recorded run frame of a scale (None = the environment's scale).

    Raises ValueError if the scale has no recorded results.
    """
    path = recorded_path(scale)
    if path.is_file():
        _check_sum(path)
        return read_results(path)
    scales = ", ".join(name for name in SCALES if recorded_path(name).is_file()) or "none at all"
    raise ValueError(
        f"there are no recorded results of scale {path.stem!r} (recorded: {scales}): "
        f'source="trained" trains, `mambanorm record --scale {path.stem}` records'
    )


def read_results(path: str | Path) -> pd.DataFrame:
    """Return the run frame that `write_recorded` wrote. Raise ValueError for any other file."""
    try:
        return pd.read_parquet(path)
    except (ArrowInvalid, OSError) as error:
        hint = "fetch it again (`git checkout` for the kit's own), or record anew"
        raise ValueError(f"{path} cannot be read as a recorded frame ({error}): {hint}") from error


def recorded_ids(scales: Iterable[str]) -> set[str]:
    """Return the run ids that are recorded at these scales."""
    is_recorded = [scale for scale in set(scales) if recorded_path(scale).is_file()]
    return set().union(*(recorded(scale).run_id for scale in is_recorded))


def recorded_runs(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """Return the recorded rows of these configs, in their order.

    Raises ValueError if one of them is not recorded.
    """
    configs = unique(configs)
    frames = [recorded(scale) for scale in dict.fromkeys(config.scale for config in configs)]
    frame = pd.concat(frames).set_index("run_id", drop=False)
    missing = [config for config in configs if config.run_id not in frame.index]
    if missing:
        first = missing[0]
        raise ValueError(
            f"{len(missing)} of {len(configs)} runs are not in the recorded results, the first: "
            f"{first.arm} on {first.task}, seed {first.seed}, lr {first.lr:g}. "
            'source="trained" trains them'
        )
    return frame.loc[[config.run_id for config in configs]].reset_index(drop=True)


def describe_recorded(frame: pd.DataFrame) -> str:
    """Return `Recorded results, not trained here: 1,234 runs, commit 06ed4cf, torch 2.13.0, …`."""
    commits, versions, machines = (
        " and ".join(map(str, frame[name].dropna().unique()))
        for name in ("git_commit", "versions", "machine")
    )
    return (
        f"Recorded results, not trained here: {len(frame):,} runs, commit {commits}, {versions}, "
        f"{machines}, {frame.wall_s.sum() / 3600:.1f} h of training"
    )


def write_recorded(frame: pd.DataFrame, configs: Iterable[RunConfig], path: Path) -> None:
    """Write the frame with the config of each row, completely or not at all.

    Rows without a config in `configs` keep the config that they have.
    """
    texts = frame.run_id.map({config.run_id: config.to_json() for config in configs})
    if "config" in frame:
        texts = texts.fillna(frame.config)
    with replacing(path) as temporary:
        frame.assign(config=texts).to_parquet(temporary, index=False, compression="zstd")
    _note_sum(path)


def _sums(path: Path) -> dict[str, str]:
    """Return file name → SHA-256 from the file `SHA256SUMS` beside a path, {} if there is none."""
    sums_file = path.with_name("SHA256SUMS")
    lines = sums_file.read_text().splitlines() if sums_file.is_file() else []
    return {name: digest for digest, name in map(str.split, lines)}


def _note_sum(path: Path) -> None:
    """Enter the checksum of a file of data/results into its SHA256SUMS."""
    if path.parent.resolve() == RESULTS.resolve():
        sums = {**_sums(path), path.name: sha256(path)}
        lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
        write_text(path.with_name("SHA256SUMS"), "".join(lines))


def _check_sum(path: Path) -> None:
    """Raise ValueError if the file was changed since it was recorded.

    Files that SHA256SUMS does not list are accepted.
    """
    checksum = _sums(path).get(path.name)
    if checksum is not None and checksum != sha256(path):
        raise ValueError(
            f"{path} has been changed since it was recorded (its SHA256SUMS says so): "
            "get it back with `git checkout`, or record anew"
        )


def inside_path(path: Path) -> Path:
    """Return the path of the diagnostics that belong to the frame at `path`."""
    return path.with_name(f"{path.stem}-inside.npz")


def recorded_inside(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return run id → recorded diagnostics (as `StoredRun.diagnostics`) of the frame at `path`.

    Only the runs of §4.6 have some, and singular values are recorded for one seed, in float32.
    """
    path = inside_path(path)
    if not path.is_file():
        return {}
    _check_sum(path)
    diagnostics: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as file:
        for key, value in file.items():
            run_id, name = key.split("/")
            diagnostics.setdefault(run_id, {})[name] = value
    return diagnostics


def write_inside(diagnostics: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Write diagnostics for `recorded_inside`, completely or not at all; path: the frame's path."""
    if not diagnostics:
        return
    flat = {
        f"{run_id}/{name}": value.astype(np.float32) if "singular_values" in name else value
        for run_id, arrays in diagnostics.items()
        for name, value in arrays.items()
    }
    with replacing(inside_path(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **flat)
    _note_sum(inside_path(path))
