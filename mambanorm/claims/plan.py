"""Which runs the verdicts need: training them, and recording them in data/results.

An arm is tuned once, at three learning rates on the tuning seeds; its rate is then fixed and tested on the test seeds.
The runs of a claim therefore come in two rounds: the tuning runs of the arms that have no rate, then the test runs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.settings import CHECKOUT, KIT, check_scale, default_scale
from mambanorm.basics.text import plural
from mambanorm.claims.claim import Claim, pair
from mambanorm.claims.evidence import (
    NEW_TUNING_SEEDS,
    VERSION,
    Evidence,
    fixed_runs,
    kind_of,
    tasks_of,
)
from mambanorm.claims.hypotheses import BEYOND, CLAIMS, find_claim
from mambanorm.config import RunConfig
from mambanorm.runs.grid import (
    FIRST_TEST_SEED,
    LAST_TEST_SEED,
    check_names,
    check_seeds,
    check_task,
    grid,
    unique,
)
from mambanorm.runs.presets import TABLES
from mambanorm.runs.recorded_results import (
    read_results,
    recorded,
    recorded_inside,
    recorded_path,
    write_inside,
    write_recorded,
)
from mambanorm.runs.store import load_runs, stored_run
from mambanorm.study.experiments import (
    POSITION_ARMS,
    STUDY_TASKS,
    at_budget,
    failing_runs,
    growth_runs,
    inside_task,
    lr_grid,
    model_of,
    study,
)
from mambanorm.study.summaries import with_summaries

PROTOCOL = Path(__file__).with_name("PROTOCOL.md")

TRAINED_TASKS = ("curves", "listops", "glyphs", "glyphs_images", "pydoc")
"""The tasks of the verdicts at the default scale, "evening"."""

VERDICT_TASKS = ("digits", "digits_images")
"""The tasks of the verdicts at the other scales, unless others are given."""

VERDICT_SEEDS = 8
"""How many test seeds a verdict has at the other scales, and a comparison of two arms."""

MOST_SEEDS_OF_PART = 8

TEST_SEEDS, FURTHER_TEST_SEEDS, STEPS_SEEDS = tuple(range(52, 64)), tuple(range(64, 76)), tuple(range(52, 58))
DEEP_TUNING, DEEP_SEEDS = tuple(range(40, 44)), tuple(range(52, 60))
FIXED_SEEDS = {
    **dict.fromkeys(("H9s", "H16s"), tuple(range(40, 80))),
    **dict.fromkeys(("H10s", "H11s", "H12s", "E1s"), tuple(range(40, 60))),
    **dict.fromkeys(("H13s", "E2s"), tuple(range(40, 48))),
}
"""The seeds of the claims with fixed learning rates, on `mnist1d`. Version 11 recorded and read these runs."""

ONLY = {"listops": ("H8s",), "glyphs": ("H1s", "H2s")}
"""The claims that are asked on a task where not every claim about its kind is."""

OFTENER = ("H4", "H8")
"""The claims whose arms have twice as many test seeds on curves, images and text."""

DEEP_ARMS = tuple(
    pair(*norms.split())
    for norms in ("None None", "RMSN None", "None GN", "None BN", "RMSN BN", "LN BN", "LN LN", "GN GN")
)
DEEP = dict(n_layers=8)
STEPS = (0.5, 2.0, 4.0)
"""Shares of the steps of `curves` at which the arms of Table 1 are tested once more: 300, 1,200 and 2,400 steps."""

RECORDED_COLUMNS = ("run_id", "scale", "config", "git_commit", "protocol", "protocol_commit")

Ask = Callable[[pd.DataFrame], list[RunConfig]]
"""A function from the runs that are known to the runs that are needed."""


# ------------------------------------------------------------------------------------------------------ what is needed


def claims_on(task: str, scale: str) -> list[Claim]:
    """Return the claims with tuned arms that are asked on a task."""
    known = [claim for claim in (CLAIMS | BEYOND).values() if claim.runs == "tuned" and claim.kind == kind_of(task)]
    only = ONLY.get(task) if scale == "evening" else None
    return [claim for claim in known if only is None or claim.id in only]


def planned_seeds(claim: str | Claim, scale: str) -> tuple[int, ...]:
    """Return the test seeds that are planned for the verdict on a claim."""
    claim = find_claim(claim)
    if scale != "evening":
        return tuple(range(FIRST_TEST_SEED, FIRST_TEST_SEED + VERDICT_SEEDS))
    more = FURTHER_TEST_SEEDS if claim.id[:-1] in OFTENER else ()
    return FIXED_SEEDS.get(claim.id, TEST_SEEDS + more)


def check_test_seeds(seeds: int | Iterable[int], claim: Claim | None = None) -> tuple[int, ...]:
    """Return test seeds: 8 → 52…59, a list as it is. ValueError for seeds that tune; claims with fixed learning rates
    take any seed below 100."""
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = [FIRST_TEST_SEED + i for i in check_seeds(seeds, "smoke")]
    seeds = tuple(check_seeds(seeds, "smoke"))
    first = FIRST_TEST_SEED if claim is None or claim.runs == "tuned" else 0
    if wrong := [seed for seed in seeds if not first <= seed <= LAST_TEST_SEED]:
        raise ValueError(
            f"test seeds are {first} to {LAST_TEST_SEED}, got {', '.join(map(str, wrong))}: lower seeds and those from "
            "100 on choose learning rates. A plain number, such as 8, takes the first test seeds, 52 to 59"
        )
    return seeds


def arm_runs(
    arms: Iterable[str],
    task: str,
    seeds: Iterable[int],
    evidence: Evidence,
    tuning: tuple[int, ...] = NEW_TUNING_SEEDS,
) -> list[RunConfig]:
    """Return the runs of these arms on a task that are needed next: the tuning runs of an arm that the kit did not
    tune, and the test runs of an arm that has a learning rate. `evidence`: the runs that are known."""
    configs, how = [], dict(scale=evidence.scale, **dict(evidence.changes))
    for arm in arms:
        rate = evidence.rate(arm, task)
        if rate is None or evidence.tuned_anew(arm, task):
            for lr in lr_grid(task, evidence.scale, model_of([arm])):
                configs += grid([arm], [task], seeds=tuning, lr=lr, **how)
        if rate is not None:
            configs += grid([arm], [task], seeds=seeds, lr=rate, **how)
    return configs


def needed(
    claim_id: str | Claim,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    frame: pd.DataFrame | None = None,
    changes: Mapping[str, Any] | None = None,
) -> list[RunConfig]:
    """Return the runs that the verdict on a claim needs next, on these tasks (None: the planned ones).

    frame: the runs that are known. An arm that it does not tune yet needs its tuning runs first: train, then ask again.
    changes: fields in which the runs differ from those of the scale, such as dict(n_layers=8). ValueError for an
    unknown claim and for seeds that are no test seeds.
    """
    claim, scale = find_claim(claim_id), default_scale() if scale is None else check_scale(scale)
    seeds = planned_seeds(claim, scale) if seeds is None else check_test_seeds(seeds, claim)
    tasks = tasks_of(claim, _planned_tasks(claim, scale) if tasks is None else check_names("tasks", tasks), scale)
    if claim.runs != "tuned":
        return unique(fixed_runs(claim, scale, seeds)) if tasks else []
    evidence = Evidence(frame, scale, changes=changes)
    return [config for task in tasks for config in arm_runs(claim.arms, check_task(task), seeds, evidence)]


def _planned_tasks(claim: Claim, scale: str) -> list[str]:
    if claim.runs != "tuned":
        return [inside_task(scale)]
    if scale != "evening":
        return list(VERDICT_TASKS)
    return [task for task in TRAINED_TASKS if claim in claims_on(task, scale)]


# ---------------------------------------------------------------------------------------------------------- training


def known_runs(scale: str, runs_dir: str | Path | None = None, *frames: pd.DataFrame | None) -> pd.DataFrame:
    """Return the runs of a store, then those of further frames that it lacks, then those that the kit records."""
    kit = recorded(scale) if recorded_path(scale).is_file() else None
    found = [frame for frame in (load_runs(runs_dir, scale=scale), *frames, kit) if frame is not None and len(frame)]
    return pd.concat(found, ignore_index=True).drop_duplicates("run_id") if found else load_runs(runs_dir, scale=scale)


class Trained(NamedTuple):
    known: pd.DataFrame  # the runs that are known now
    failed: pd.DataFrame  # the rows of runs that could not be trained
    asked: list[RunConfig]  # all runs that were needed


def train_asked(
    ask: Ask, scale: str, runs_dir: str | Path | None, *frames: pd.DataFrame | None, **engine: Any
) -> Trained:
    """Train what `ask` needs and no frame has, round by round, until it needs nothing more.

    `engine`: sweep's scheduler, workers, client, progress. ValueError if nothing is needed at all.
    """
    asked: list[RunConfig] = []
    failed: list[pd.DataFrame] = []
    while True:
        known = known_runs(scale, runs_dir, *frames)
        before, asked = {config.run_id for config in asked}, unique([*asked, *ask(known)])
        if not asked:
            raise ValueError("there is nothing to train: none of these claims is about these tasks (`mambanorm tasks`)")
        missing = [c for c in asked if c.run_id not in before and c.run_id not in set(known.run_id)]
        if not missing:
            return Trained(known, pd.concat(failed) if failed else known.iloc[:0], asked)
        from mambanorm.runs.sweep import sweep  # here, because listing the runs needs neither torch nor Dask

        rows = sweep(missing, runs_dir=runs_dir, **engine)
        failed.append(rows[rows.status == "failed"])


def verdict_runs(
    claims: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    frame: pd.DataFrame | None = None,
) -> list[RunConfig]:
    """Return the runs that the verdicts on these claims need next (None: all claims of the study's sources)."""
    scale = default_scale() if scale is None else scale
    frame = known_runs(scale, runs_dir) if frame is None else frame
    names = CLAIMS if claims is None else check_names("claims", claims)
    return unique(config for name in names for config in needed(name, seeds, tasks, scale, frame))


def train_verdicts(
    claims: Iterable[str] | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    scale: str | None = None,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train what the claims lack. Returns all known runs of the scale with their summaries, and the failed ones."""
    scale = default_scale() if scale is None else scale
    ask = partial(_ask_verdicts, claims, seeds, tasks, scale)
    known, failed, _ = train_asked(ask, scale, runs_dir, **engine)
    own = load_runs(runs_dir, scale=scale)
    again = claims is None or not {"H15v", "H16s"}.isdisjoint(claims)
    summed = with_summaries(own, runs_dir, again=again)
    others = known[~known.run_id.isin(own.run_id)]
    return pd.concat([frame for frame in (summed, others) if len(frame)], ignore_index=True), failed


def _ask_verdicts(claims: Any, seeds: Any, tasks: Any, scale: str, frame: pd.DataFrame) -> list[RunConfig]:
    return verdict_runs(claims, seeds=seeds, tasks=tasks, scale=scale, frame=frame)


# --------------------------------------------------------------------------------------------------------- recording


@dataclass(frozen=True)
class Part:
    """A part of the recorded results, which is whole or not there."""

    name: str
    seeds: tuple[int, ...]
    ask: Ask


def parts(
    scale: str | None = None, seeds: int | Iterable[int] | None = None, tasks: str | Iterable[str] | None = None
) -> list[Part]:
    """Return the parts of a scale in the order in which they are recorded, of all tasks or of some.

    seeds: other test seeds than the planned ones.
    """
    scale = default_scale() if scale is None else check_scale(scale)
    own = None if seeds is None else check_test_seeds(seeds)
    tasks = None if tasks is None else check_names("tasks", tasks)
    if scale != "evening":
        return _other_scale(scale, own, tasks)
    found = []

    def add(name: str, task: str, arms: Iterable[str], planned: tuple[int, ...], **how: Any) -> None:
        """Add the part; one of twelve seeds in halves, so that a recording that ends early has whole parts."""
        arms, used = tuple(arms), own or planned
        if tasks is not None and task not in tasks:
            return
        for some in np.array_split(used, -(-len(used) // MOST_SEEDS_OF_PART)):
            some = tuple(some.tolist())
            found.append(Part(name, some, partial(_arms_of_part, arms, task, some, scale, **how)))

    kinds = {"curves": "curves", "glyphs_images": "images of letters and digits", "pydoc": "text"}
    for task, name in kinds.items():
        add(f"{name}, every arm", task, tuned_arms(task), TEST_SEEDS)
    add("curves, 8 blocks", "curves", DEEP_ARMS, DEEP_SEEDS, changes=DEEP, tuning=DEEP_TUNING)
    for task, name in kinds.items():
        add(f"{name}, the arms of H4 and H8 once more", task, tuned_arms(task, OFTENER), FURTHER_TEST_SEEDS)
    add("ListOps", "listops", tuned_arms("listops"), TEST_SEEDS)
    for share in STEPS:
        changes = at_budget("curves", scale, share)
        add(f"curves, {changes['steps']:,} steps", "curves", map(str, POSITION_ARMS), STEPS_SEEDS, changes=changes)
    add("letters and digits as sequences", "glyphs", tuned_arms("glyphs"), TEST_SEEDS)
    if tasks is None or inside_task(scale) in tasks:
        for name, planned in FIXED_SEEDS.items():
            used = own or planned
            found.append(Part(f"mnist1d, {name}", used, partial(_fixed_of_part, name, used, scale)))
    return found


def tuned_arms(task: str, only: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the arms of the claims on a task, of all or of some."""
    claims = [claim for claim in claims_on(task, "evening") if not only or claim.id[:-1] in only]
    return tuple(dict.fromkeys(arm for claim in claims for arm in claim.arms))


def _arms_of_part(
    arms: tuple[str, ...],
    task: str,
    seeds: tuple[int, ...],
    scale: str,
    frame: pd.DataFrame,
    changes: Mapping[str, Any] | None = None,
    tuning: tuple[int, ...] = (),
) -> list[RunConfig]:
    tuned = [
        config
        for lr in (lr_grid(task, scale) if tuning else ())
        for config in grid(arms, [task], scale=scale, seeds=tuning, lr=lr, **changes or {})
    ]
    if {config.run_id for config in tuned} <= set(frame.run_id):
        tuned += arm_runs(arms, task, seeds, Evidence(frame, scale, changes=changes))
    return tuned


def _fixed_of_part(claim: str, seeds: tuple[int, ...], scale: str, frame: pd.DataFrame) -> list[RunConfig]:
    return fixed_runs(find_claim(claim), scale, seeds)


def _other_scale(scale: str, seeds: tuple[int, ...] | None, tasks: list[str] | None) -> list[Part]:
    """Each task's claims, then the runs of the notebooks."""
    tasks, found = list(STUDY_TASKS) if tasks is None else tasks, []
    used = seeds or tuple(range(FIRST_TEST_SEED, FIRST_TEST_SEED + VERDICT_SEEDS))
    for task in tasks:
        claims = [claim for claim in CLAIMS.values() if tasks_of(claim, [task], scale)]
        if task not in TABLES and claims:
            ids = [claim.id for claim in claims]
            found.append(Part(f"verdicts, {task}", used, partial(_ask_verdicts, ids, used, [task], scale)))
    runs = [config for runs in study(scale, tasks, source="trained").values() for config in runs]
    return [*found, Part("the notebooks", used, lambda frame: unique(runs))]


def manifest(
    frame: pd.DataFrame,
    scale: str | None = None,
    seeds: int | Iterable[int] | None = None,
    tasks: str | Iterable[str] | None = None,
) -> pd.DataFrame:
    """Return how many runs each part needs, and how many of them the frame has."""
    has, rows = set(frame.run_id) if len(frame) else set(), []
    for part in parts(scale, seeds, tasks):
        ids = [config.run_id for config in unique(part.ask(frame))]
        rows.append((part.name, f"{part.seeds[0]}–{part.seeds[-1]}", len(ids), sum(name in has for name in ids)))
    return pd.DataFrame(rows, columns=["part", "seeds", "needed", "there"])


def commit_in_force() -> str:
    """Return the commit that last changed PROTOCOL.md; with ", changed since" if it was edited since; "unknown" without git."""
    git = ["git", "-C", str(PROTOCOL.parent)]
    try:
        log = subprocess.run([*git, "log", "-1", "--format=%h", "--", PROTOCOL.name], capture_output=True, text=True)
        dirty = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", PROTOCOL.name], capture_output=True)
    except OSError:
        return "unknown"
    commit = log.stdout.strip()
    return f"{commit}, changed since" if commit and dirty.returncode else commit or "unknown"


def recorded_before(scale: str, path: Path | None = None) -> pd.DataFrame | None:
    """Return the rows that the file holds already; None = there is no file yet.

    ValueError for a file that is no recorded frame of the scale, which recording would spoil, and OSError for a folder
    that cannot be written to.
    """
    path = (recorded_path(scale) if path is None else path).resolve()
    if not CHECKOUT and KIT in path.parents:
        raise ValueError("the kit's results are recorded in a checkout of the project: name another file with --out")
    writable_folder(path.parent, "the recorded results")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a file: name another one with --out")
    if not path.is_file():
        return None
    frame = read_results(path)
    lacks = [f"the column {name}" for name in RECORDED_COLUMNS if name not in frame]
    if lacks or set(frame.scale) - {scale} or not frame.protocol.between(2, VERSION).all():
        what = f"lacks {lacks[0]}" if lacks else "holds runs of another scale or protocol"
        raise ValueError(f"{path} {what}: move it away, or record into another file with --out")
    return frame


def record_results(
    scale: str | None = None,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: Iterable[str] | None = None,
    runs_dir: str | Path | None = None,
    path: str | Path | None = None,
    **engine: Any,
) -> Path:
    """Train the parts one after the other and write the recorded results of a scale; return their path.

    The file is written anew after each part; called again, recording goes on. Runs that the file or the kit has are not
    trained again. Each new row names the version of the protocol and its commit. `engine`: sweep's scheduler, workers,
    client, progress. RuntimeError if a run could not be trained: its part is not recorded. The file is checked as in
    `recorded_before` before anything is trained.
    """
    scale, commit = default_scale() if scale is None else scale, commit_in_force()
    path = (recorded_path(scale) if path is None else Path(path)).resolve()
    before, asked = recorded_before(scale, path), parts(scale, seeds, tasks)
    for number, part in enumerate(asked, start=1):
        print(f"part {number} of {len(asked)}: {part.name}, seeds {part.seeds[0]} to {part.seeds[-1]}")
        trained = train_asked(part.ask, scale, runs_dir, before, **engine)
        if failed := len(trained.failed):
            raise RuntimeError(f"{plural(failed, 'run')} could not be trained: {part.name!r} is not recorded")
        before = _write(trained.asked, before, commit, path, runs_dir)
    return path


def _write(
    configs: list[RunConfig], before: pd.DataFrame | None, commit: str, path: Path, runs_dir: str | Path | None
) -> pd.DataFrame | None:
    """Add the stored runs among these configs to the file, and return its rows; rows that it has keep what they say."""
    has = set() if before is None else set(before.run_id)
    kit = set(recorded(configs[0].scale).run_id) if recorded_path(configs[0].scale).is_file() else set()
    configs = [config for config in configs if config.run_id not in has | kit]
    rows = load_runs(runs_dir, configs=configs) if configs else pd.DataFrame()
    if rows.empty:
        return before
    rows = with_summaries(rows, runs_dir, again=True).assign(protocol=VERSION, protocol_commit=commit)
    frame = rows if before is None else pd.concat([before, rows], ignore_index=True)
    write_recorded(frame, configs, path)
    write_inside(recorded_inside(path) | _inside(configs, runs_dir), path)
    return read_results(path)


def _inside(configs: list[RunConfig], runs_dir: str | Path | None) -> dict[str, dict[str, np.ndarray]]:
    """Return what the runs of Figures 9 and 10 keep of their inside; singular values, which are many, of one seed."""
    scale, seeds = configs[0].scale, sorted({config.seed for config in configs})
    drawn = {config.run_id for config in (*growth_runs(scale, seeds=seeds), *failing_runs(scale, seeds))}
    found = {}
    for config in configs:
        run = stored_run(config.run_id, runs_dir) if config.run_id in drawn else None
        if run is not None and (run.path / "diagnostics.npz").is_file():
            found[config.run_id] = {
                name: values
                for name, values in run.diagnostics.items()
                if config.seed == seeds[0] or not name.endswith("singular_values")
            }
    return found
