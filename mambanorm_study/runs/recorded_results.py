"""Recorded results: the run frame of a full study, carried by the repository, so that a lesson
starts at once; and what it tells of runs to come.

    data/results/<scale>.parquet    one row a run: the run frame with the summaries of
                                    study/summaries.py, and `config`, the JSON that trains the same
                                    row again; made by `mambanorm record`
    data/results/<scale>-inside.npz what the runs of §4.6 keep of their inside, for the figures of
    notebook 07
    data/results/SHA256SUMS         the checksum of each; a file that was changed since is refused

A run frame says where each row comes from: config hash (run_id), commit, versions, machine, wall
time. It holds no weights and no curves: whatever needs those has to train.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from pyarrow import ArrowInvalid

from mambanorm.arms import Arm
from mambanorm_study.basics.atomic import replacing, sha256, write_text
from mambanorm_study.basics.settings import KIT, SCALES, check_scale, check_source, default_scale
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import base_config, grid, is_test_seed, is_tuning_seed, unique
from mambanorm_study.runs.presets import LANGUAGE_TASKS

RESULTS = KIT / "data" / "results"


def recorded_path(scale: str | None = None) -> Path:
    """Where the recorded results of a scale lie (None = the environment's)."""
    return RESULTS / f"{default_scale() if scale is None else check_scale(scale)}.parquet"


def recorded(scale: str | None = None) -> pd.DataFrame:
    """The recorded run frame of a scale (None = the environment's). ValueError if there is none."""
    path = recorded_path(scale)
    if path.is_file():
        _check_sum(path)
        return read_results(path)
    there = ", ".join(name for name in SCALES if recorded_path(name).is_file()) or "none at all"
    raise ValueError(
        f"there are no recorded results of scale {path.stem!r} (recorded: {there}): "
        f'source="trained" trains, `mambanorm record --scale {path.stem}` records'
    )


def read_results(path: str | Path) -> pd.DataFrame:
    """The run frame that `write_recorded` wrote. ValueError for a file that is none."""
    try:
        return pd.read_parquet(path)
    except (ArrowInvalid, OSError) as error:
        hint = "fetch it again (`git checkout` for the kit's own), or record anew"
        raise ValueError(f"{path} cannot be read as a recorded frame ({error}): {hint}") from error


def recorded_ids(scales: Iterable[str]) -> set[str]:
    """The run ids that are recorded at these scales; none of a scale without recorded results."""
    return {
        name
        for scale in set(scales)
        if recorded_path(scale).is_file()
        for name in recorded(scale).run_id
    }


def recorded_runs(configs: Iterable[RunConfig]) -> pd.DataFrame:
    """The recorded rows of these configs, in their order. ValueError if one of them is not
    recorded."""
    configs = unique(configs)
    frames = [recorded(scale) for scale in dict.fromkeys(config.scale for config in configs)]
    frame = pd.concat(frames).set_index("run_id", drop=False)
    absent = [config for config in configs if config.run_id not in frame.index]
    if absent:
        first = absent[0]
        raise ValueError(
            f"{len(absent)} of {len(configs)} runs are not in the recorded results, the first: {first.arm} on "
            f'{first.task}, seed {first.seed}, lr {first.lr:g}. source="trained" trains them'
        )
    return frame.loc[[config.run_id for config in configs]].reset_index(drop=True)


def describe_recorded(frame: pd.DataFrame) -> str:
    """`Recorded results, not trained here: 1,234 runs, commit 06ed4cf, torch 2.13.0, …, 2 cores,
    1.2 h of training`."""
    hours = frame.wall_s.sum() / 3600
    said = [
        " and ".join(map(str, frame[name].dropna().unique()))
        for name in ("git_commit", "versions", "machine")
    ]
    return f"Recorded results, not trained here: {len(frame):,} runs, commit {', '.join(said)}, {hours:.1f} h of training"


def write_recorded(frame: pd.DataFrame, configs: Iterable[RunConfig], path: Path) -> None:
    """Writes the frame with the config of each row, whole or not at all; rows of other configs keep
    theirs."""
    by_id = {config.run_id: config.to_json() for config in configs}
    texts = frame.run_id.map(by_id)
    texts = texts.fillna(frame.config) if "config" in frame else texts
    with replacing(path) as temporary:
        frame.assign(config=texts).to_parquet(temporary, index=False, compression="zstd")
    _note_sum(path)


def _sums(path: Path) -> dict[str, str]:
    """File name → SHA-256 of data/results, as `sha256sum` writes them; other folders keep none."""
    path = path.with_name("SHA256SUMS")
    lines = path.read_text().splitlines() if path.is_file() else []
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}


def _note_sum(path: Path) -> None:
    if path.parent.resolve() == RESULTS.resolve():
        sums = _sums(path) | {path.name: sha256(path)}
        lines = [f"{digest}  {name}\n" for name, digest in sorted(sums.items())]
        write_text(path.with_name("SHA256SUMS"), "".join(lines))


def _check_sum(path: Path) -> None:
    """ValueError for a file that is not as it was recorded; one that is not noted was put there by
    its reader."""
    if (noted := _sums(path).get(path.name)) and noted != sha256(path):
        hint = "get it back with `git checkout`, or record anew"
        raise ValueError(
            f"{path} has been changed since it was recorded (its SHA256SUMS says so): {hint}"
        )


def recorded_inside(path: Path) -> dict[str, dict[str, np.ndarray]]:
    """Run id → arrays as of `StoredRun.diagnostics` of the runs of §4.6 that are recorded in the
    frame at `path`; {} where there are none. Singular values are kept of one seed, in float32."""
    found: dict[str, dict[str, np.ndarray]] = {}
    if (path := _inside(path)).is_file():
        _check_sum(path)
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                run_id, name = key.split("/")
                found.setdefault(run_id, {})[name] = file[key]
    return found


def _inside(path: Path) -> Path:
    return path.with_name(f"{path.stem}-inside.npz")


def write_inside(arrays: Mapping[str, Mapping[str, np.ndarray]], path: Path) -> None:
    """Writes what `recorded_inside` reads, whole or not at all; nothing for no run. `path`: that of
    the frame."""
    if not arrays:
        return
    flat = {
        f"{run_id}/{name}": value.astype(np.float32) if name.endswith("singular_values") else value
        for run_id, kept in arrays.items()
        for name, value in kept.items()
    }
    with replacing(_inside(path)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **flat)
    _note_sum(_inside(path))


# --------------------------------------------------------------------------------------------------
# what recorded runs tell of runs to come

SCORES = ("best_val_accuracy", "chance", "best_val_loss", "chance_loss")


def best_rate(validation: np.ndarray) -> np.ndarray:
    """(…,) the index of the rate with the best mean over its seeds, the smaller of equals; a rate
    that has fewer seeds than another is none to choose. validation: (…, rates, seeds), a diverged
    run with chance, NaN where there is no run."""
    there = np.isfinite(validation)
    runs = there.sum(axis=-1)
    mean = np.where(there, validation, 0.0).sum(axis=-1) / np.maximum(runs, 1)
    whole = runs == runs.max(axis=-1, keepdims=True)
    return np.where(whole, np.round(mean, 9), -np.inf).argmax(axis=-1)


@lru_cache(maxsize=8)
def _scores(path: Path, mtime_ns: int) -> pd.DataFrame:
    """What `own_rate` asks of a recorded frame, by run id: task, arm, lr, seed, and the score on
    validation: accuracy (chance if the run diverged), of language models minus the loss (minus that
    of chance)."""
    frame = pd.read_parquet(
        path, columns=["run_id", "task", "arm", "lr", "seed", "status", *SCORES]
    )
    ended = frame.status != "diverged"
    accuracy = frame.best_val_accuracy.where(ended, frame.chance)
    loss = frame.best_val_loss.where(ended, frame.chance_loss)
    frame["score"] = accuracy.where(~frame.task.isin(LANGUAGE_TASKS), -loss)
    return frame.drop_duplicates("run_id").set_index("run_id").sort_index()


@lru_cache(maxsize=512)
def _own_rate(
    path: Path, mtime_ns: int, scale: str, task: str, arm: str
) -> tuple[float, tuple[int, ...]] | None:
    frame = _scores(path, mtime_ns)
    mine = frame[(frame.task == task) & (frame.arm == arm)]
    if mine.empty:
        return None
    rates, seeds = (sorted(mine[name].unique().tolist()) for name in ("lr", "seed"))
    configs = [base_config(task, scale, arm=arm, lr=lr) for lr in rates]
    ids = np.array([[config.with_seed(seed).run_id for seed in seeds] for config in configs])
    scores = mine.score.reindex(ids.ravel()).to_numpy().reshape(ids.shape)
    tuning = np.array([is_tuning_seed(seed) for seed in seeds], bool)
    if not np.isfinite(scores[:, tuning]).any():
        return None
    best = best_rate(scores[:, tuning])
    run = [seed for seed, score in zip(seeds, scores[best], strict=True) if np.isfinite(score)]
    tested = tuple(seed for seed in run if is_test_seed(seed))
    return rates[best], tested or tuple(seed for seed in run if is_tuning_seed(seed))


def own_rate(task: str, arm: str, scale: str) -> tuple[float, tuple[int, ...]] | None:
    """Return the learning rate with the best mean validation on the recorded tuning seeds, and the
    recorded test seeds at that rate (or, without any, the tuning seeds). None if nothing is
    recorded.

    Only runs count that differ from the task's settings at this scale in arm, learning rate and
    seed alone; a rate with fewer seeds than another cannot be chosen."""
    path = recorded_path(scale)
    return _own_rate(path, path.stat().st_mtime_ns, scale, task, arm) if path.is_file() else None


def recorded_seeds(task: str, scale: str) -> tuple[int, ...]:
    """Return the seeds on which most arms of a task are recorded at a scale; () if none is."""
    path = recorded_path(scale)
    if not path.is_file():
        return ()
    frame = _scores(path, path.stat().st_mtime_ns)
    rates = [own_rate(task, arm, scale) for arm in frame.arm[frame.task == task].unique()]
    counted = Counter(seeds for _, seeds in filter(None, rates))
    return max(counted, key=lambda seeds: (counted[seeds], len(seeds)), default=())


def at_own_rates(
    arms: Sequence[Arm],
    tasks: Sequence[str],
    scale: str,
    seeds: int | Iterable[int] | None = None,
    source: str | None = None,
    *,
    whole: bool = False,
) -> list[RunConfig]:
    """Return `grid`; where runs of a task are recorded and are to be read (`source`, None = the
    environment's), each recorded arm at its own rate.

    `seeds=None` are then the seeds that all recorded arms share, else those of most arms of the
    task. Beside recorded arms those that are not recorded are left out; `whole` keeps them, to be
    trained on the same seeds.
    """
    if check_source(source) == "trained":
        return grid(arms, tasks, scale=scale, seeds=seeds)
    configs = []
    for task in tasks:
        rates = {str(arm): own_rate(task, str(arm), scale) for arm in arms}
        known = {arm: rate for arm, rate in rates.items() if rate}
        if seeds is None:
            shared = set.intersection(*(set(own) for _, own in known.values())) if known else ()
            here = (
                sorted(shared) or recorded_seeds(task, scale) or None
            )  # None: the scale's own number
        else:
            here = seeds
        runs = grid(arms if whole or not known else list(known), [task], scale=scale, seeds=here)
        configs += [c.but(lr=known[c.arm][0]) if c.arm in known else c for c in runs]
    return unique(configs)
