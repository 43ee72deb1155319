"""Reads and writes recorded results: the run frame of a full study, stored in the repository.

    data/results/<scale>.parquet        one row per run: the run frame with the summaries of
                                        tables/summaries.py, and `config`, the run's config as
                                        JSON; written by `mambanorm record`
    data/results/field.parquet          the same for the questions of notebook 16, at scale evening
    data/results/<scale>-inside.npz     diagnostics of the runs for the paper's §4.6 (notebook 07)
    data/results/SHA256SUMS             checksums; a file with another checksum is refused

Each row states the origin of its run: config hash (run_id), commit, versions, machine, wall time.
The run frame holds no weights and no learning curves.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pyarrow import ArrowInvalid

from mambanorm.arms import Arm
from mambanorm_study.basics.atomic import replacing, sha256, write_text
from mambanorm_study.basics.settings import KIT, SCALES, check_scale, check_source, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import (
    check_seeds,
    grid,
    is_test_seed,
    is_tuning_seed,
    setting_id,
    unique,
)
from mambanorm_study.runs.presets import LANGUAGE_TASKS

RESULTS = KIT / "data" / "results"


def recorded_path(scale: str | None = None) -> Path:
    """Return the path of a scale's recorded results. None means `default_scale()`."""
    return RESULTS / f"{default_scale() if scale is None else check_scale(scale)}.parquet"


def recorded(scale: str | None = None) -> pd.DataFrame:
    """Return the recorded run frame (one row per run) of a scale; None means `default_scale()`.

    Raises ValueError if the scale has no recorded results.
    """
    path = recorded_path(scale)
    if path.is_file():
        return read_recorded(path)
    scales = ", ".join(name for name in SCALES if recorded_path(name).is_file()) or "none at all"
    raise ValueError(
        f"there are no recorded results of scale {path.stem!r} (recorded: {scales}): "
        f'source="trained" trains the runs, `mambanorm record --scale {path.stem}` records them'
    )


def read_recorded(path: Path) -> pd.DataFrame:
    """Return the run frame of a file in data/results. Raise ValueError if the file was changed."""
    _verify_checksum(path)
    return read_results(path)


def read_results(path: str | Path) -> pd.DataFrame:
    """Return the run frame that `write_recorded` wrote. Raise ValueError for an unreadable file."""
    try:
        return pd.read_parquet(path)
    except (ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as a recorded frame ({error}): "
            "fetch the file again (`git checkout` for this repository's file), or record again"
        ) from error


def recorded_ids(scales: Iterable[str]) -> set[str]:
    """Return the run_ids of the runs that are recorded at these scales."""
    recorded_scales = [scale for scale in set(scales) if recorded_path(scale).is_file()]
    return set().union(*(recorded(scale).run_id for scale in recorded_scales))


def recorded_runs(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """Return the rows of the recorded run frames for these configs, in the order of the configs.

    Raises ValueError if a run is not recorded.
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
    """Return one line on the origin of recorded runs.

    An example is `Recorded results, not trained here: 1,234 runs, commit 06ed4cf, …`. Of more than
    two commits only the number is given; the columns git_commit, versions and machine of the frame
    have all of them.
    """
    commits = [str(commit)[:7] for commit in frame.git_commit.dropna().unique()]
    torch_versions = frame.versions.dropna().str.extract(r"torch ([^,]+)")[0].dropna().unique()
    origin = "commit " + " and ".join(commits) if len(commits) <= 2 else f"{len(commits)} commits"
    return (
        f"Recorded results, not trained here: {plural(len(frame), 'run')}, {origin}, torch "
        f"{' and '.join(torch_versions)}, {frame.wall_s.sum() / 3600:.1f} h of training"
    )


def write_recorded(frame: pd.DataFrame, configs: Iterable[RunConfig], path: Path) -> None:
    """Write a run frame to `path`, completely or not at all, with each run's config as JSON.

    The JSON is written to the column config; a row whose run is not among `configs` keeps the value
    that the column already has.
    """
    texts = frame.run_id.map({config.run_id: config.to_json() for config in configs})
    if "config" in frame:
        texts = texts.fillna(frame.config)
    with replacing(path) as temporary:
        frame.assign(config=texts).to_parquet(temporary, index=False, compression="zstd")
    _record_checksum(path)


def _recorded_checksums(path: Path) -> dict[str, str]:
    """Return a map from file name to SHA-256, read from the file SHA256SUMS beside `path`.

    The map is empty if there is no such file.
    """
    sums_file = path.with_name("SHA256SUMS")
    lines = sums_file.read_text().splitlines() if sums_file.is_file() else []
    return {name: digest for digest, name in map(str.split, lines)}


def _record_checksum(path: Path) -> None:
    """Write the checksum of a file in data/results to SHA256SUMS; ignore files in other folders."""
    if path.parent.resolve() == RESULTS.resolve():
        sums = {**_recorded_checksums(path), path.name: sha256(path)}
        lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
        write_text(path.with_name("SHA256SUMS"), "".join(lines))


def _verify_checksum(path: Path) -> None:
    """Raise ValueError if the file at `path` was changed since it was recorded.

    A file that SHA256SUMS does not list is accepted.
    """
    checksum = _recorded_checksums(path).get(path.name)
    if checksum is not None and checksum != sha256(path):
        raise ValueError(
            f"{path} has been changed since it was recorded (SHA256SUMS has another checksum): "
            "restore the file with `git checkout`, or record again"
        )


def diagnostics_path(path: Path) -> Path:
    """Return the path of the diagnostics that belong to the run frame at `path`."""
    return path.with_name(f"{path.stem}-inside.npz")


def read_diagnostics(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return a map from run_id to the diagnostics recorded with the run frame at `path`.

    The diagnostics of a run are named arrays, as in `StoredRun.diagnostics`. Only the runs for the
    paper's §4.6 have recorded diagnostics. Singular values are recorded for one seed, in float32.
    """
    path = diagnostics_path(path)
    if not path.is_file():
        return {}
    _verify_checksum(path)
    diagnostics: dict[str, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as file:
        for key, value in file.items():
            run_id, name = key.split("/")
            diagnostics.setdefault(run_id, {})[name] = value
    return diagnostics


def write_diagnostics(diagnostics: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Write the diagnostics that belong to the run frame at `path`, completely or not at all.

    diagnostics: a map from run_id to named arrays; if it is empty, nothing is written.
    """
    if not diagnostics:
        return
    flat = {
        f"{run_id}/{name}": value.astype(np.float32) if "singular_values" in name else value
        for run_id, arrays in diagnostics.items()
        for name, value in arrays.items()
    }
    with replacing(diagnostics_path(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **flat)
    _record_checksum(diagnostics_path(path))


# --------------------------------------------------------------------------------------------------
# the learning rate that is chosen for an arm by recorded tuning runs, and the arm's recorded seeds


class RecordedLR(NamedTuple):
    """The learning rate chosen for an arm on a task, and the seeds recorded at this rate.

    seeds: the recorded test seeds, or the recorded tuning seeds if no test seed is recorded.
    """

    lr: float
    seeds: tuple[int, ...]


def recorded_lr(task: str, arm: str, scale: str) -> RecordedLR | None:
    """Return an arm's learning rate with the best mean validation score, and the recorded seeds.

    The mean is over the recorded tuning seeds. Only runs with the task's settings at this scale
    count; arm, learning rate and seed may differ from these settings. Returns None if no tuning run
    of the arm is recorded.
    """
    return recorded_choices(task, scale).get(arm)


def recorded_choices(task: str, scale: str) -> dict[str, RecordedLR]:
    """Return a map from each arm with recorded tuning runs on a task to its `RecordedLR`."""
    path = recorded_path(scale)
    return _choose_lrs(path, path.stat().st_mtime_ns, task) if path.is_file() else {}


# Cached, because computing the run_ids takes some tenths of a second. Since mtime_ns is an
# argument, a changed file is read again.
@lru_cache(maxsize=64)
def _choose_lrs(path: Path, mtime_ns: int, task: str) -> dict[str, RecordedLR]:
    rows = pd.read_parquet(path, filters=[("task", "==", task)]).drop_duplicates("run_id")
    # the score of a diverged run is chance
    rows["score"] = rows.best_val_accuracy.where(rows.status != "diverged", rows.chance)
    if task in LANGUAGE_TASKS:
        rows["score"] = -rows.best_val_loss.where(rows.status != "diverged", rows.chance_loss)
    choices = {}
    for arm, runs in rows.dropna(subset="score").groupby("arm", sort=False):
        run_ids = [
            setting_id(task, path.stem, arm, float(lr), int(seed))
            for lr, seed in zip(runs.lr, runs.seed, strict=True)
        ]
        runs = runs[runs.run_id == run_ids]
        tuning = runs[runs.seed.map(is_tuning_seed)]
        if len(tuning):
            lr = best_lr(tuning)
            seeds = sorted(runs.seed[runs.lr == lr].tolist())
            test_seeds = [seed for seed in seeds if is_test_seed(seed)]
            choices[arm] = RecordedLR(lr, tuple(test_seeds or filter(is_tuning_seed, seeds)))
    return choices


def best_lr(rows: pd.DataFrame) -> float:
    """Return the learning rate with the highest mean score; of equally good rates, the smallest.

    rows: one row per run, with columns lr and score. Only the rates that have the largest number of
    runs count.
    """
    scores = rows.groupby("lr").score.agg(["mean", "count"])
    complete = scores[scores["count"] == scores["count"].max()]
    return float(complete["mean"].round(9).idxmax())


def grid_at_recorded_lr(
    arms: Sequence[Arm],
    tasks: Sequence[str],
    scale: str,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
    *,
    keep_unrecorded: bool = False,
) -> list[RunConfig]:
    """Return the configs of `grid`, with each recorded arm at its recorded learning rate.

    seeds: None means all recorded seeds of each arm, so that an accuracy, or a difference of two
    arms, is the same wherever it is shown. An arm without recorded runs gets the most common list
    of seeds on the task. If no seed is recorded for all recorded ones of `arms`, every arm gets it.
    source: "trained" gives the configs of `grid` unchanged; None means the environment variable
    `MAMBANORM_SOURCE`, or "auto" if it is not set.
    keep_unrecorded: False leaves out the arms that are not recorded on a task; if none of `arms` is
    recorded on the task, all of them stay.
    """
    if check_source(source) == "trained":
        return grid(arms, tasks, scale=scale, seeds=seeds)
    given_seeds = None if seeds is None else check_seeds(seeds, scale)
    configs = []
    for task in tasks:
        recorded_arms = recorded_choices(task, scale)
        choices = {name: recorded_arms[name] for name in map(str, arms) if name in recorded_arms}
        task_arms = arms if keep_unrecorded or not choices else list(choices)
        counts = Counter(choice.seeds for choice in recorded_arms.values())
        most_common = max(counts, key=lambda seeds: (counts[seeds], len(seeds)), default=None)
        seed_sets = [set(choice.seeds) for choice in choices.values()] or [set()]
        share_seeds = bool(set.intersection(*seed_sets))
        for arm in task_arms:
            choice = choices.get(str(arm))
            arm_seeds = choice.seeds if choice and share_seeds else most_common
            if given_seeds is not None:
                arm_seeds = given_seeds
            for config in grid([arm], [task], scale=scale, seeds=arm_seeds):
                configs.append(config.but(lr=choice.lr) if choice else config)
    return unique(configs)
