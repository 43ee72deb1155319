"""Train the runs of the recorded results, part by part, and write the results to data/results.

`mambanorm record` calls this module. claims/PROTOCOL.md states the plan. The results of a part are
written as soon as all runs of the part are trained. The run store keeps trained runs, so that a
stopped recording can be continued.
"""

import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.settings import CHECKOUT, KIT, STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims.claim import FURTHER_TEST_SEEDS, MAIN_TASK, TEST_SEEDS, pair
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, VERSION, Evidence, tasks_of
from mambanorm_study.claims.field import QUESTIONS
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS
from mambanorm_study.claims.plan import (
    PROTOCOL,
    VERDICT_SEEDS,
    arm_runs,
    check_test_seeds,
    tuned_arms,
    verdict_runs,
)
from mambanorm_study.claims.question import FIELD_RESULTS
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import recorded_results
from mambanorm_study.runs.grid import grid, unique
from mambanorm_study.runs.needed_runs import FindNeeded, known_runs, train_needed
from mambanorm_study.runs.store import find_run, load_runs
from mambanorm_study.tables import experiments, notebook_runs, summaries

DEEP_ARMS = tuple(
    pair(*norms.split())
    for norms in (
        "None None",
        "RMSN None",
        "None GN",
        "None BN",
        "RMSN BN",
        "LN BN",
        "LN LN",
        "GN GN",
    )
)
DEEP = dict(n_layers=8)
DEEP_TUNING, DEEP_SEEDS = tuple(range(40, 44)), tuple(range(52, 60))

# The arms of the paper's Table 1 are also tested on `curves` with these multiples of the task's 600
# training steps: 300, 1,200 and 2,400 steps.
STEPS, STEPS_SEEDS = (0.5, 2.0, 4.0), tuple(range(52, 58))

# Largest number of seeds of a part. Parts are small, because the results of a part are written only
# when the part is complete.
MAX_SEEDS_OF_PART = 3

# The arms of ListOps at scale lab, which are recorded seed by seed before everything else.
LAB_ARMS = tuple(
    pair(*norms.split()) for norms in ("RMSN None", "None GN", "NormVary GN", "LN LN", "None None")
)

RECORDED_COLUMNS = ("run_id", "scale", "config", "git_commit", "protocol", "protocol_commit")


@dataclass(frozen=True)
class Part:
    """A part of the recorded results, which is recorded as a whole or not at all.

    seeds: the seeds on which the part's arms are tested. find_needed: a function that takes the run
    frame of known runs (one row per run) and returns the configs of all runs of the part that can
    be planned already. Test runs can be planned only when their tuning runs are known.
    """

    name: str
    seeds: tuple[int, ...]
    find_needed: FindNeeded


@dataclass(frozen=True)
class PlannedArms:
    """Arms, such as RMSN>SSM>GN, that are tested on one task.

    name: name of the parts with the runs of these arms. seeds: test seeds. changes: a map from the
    fields of RunConfig that differ from the scale's preset to their values. tuning_seeds: seeds of
    the tuning runs, which choose the learning rates; () if no tuning runs are recorded with the
    test runs.
    """

    name: str
    task: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)
    tuning_seeds: tuple[int, ...] = ()

    def find_needed(
        self, scale: str, seeds: tuple[int, ...], known: pd.DataFrame
    ) -> list[RunConfig]:
        """Return the tuning runs and, if all tuning runs are known, also the test runs.

        seeds: test seeds. known: the run frame of known runs (one row per run).
        """
        configs = []
        for lr in experiments.lr_grid(self.task, scale) if self.tuning_seeds else ():
            settings = dict(self.changes, scale=scale, lr=lr)
            configs += grid(self.arms, [self.task], seeds=self.tuning_seeds, **settings)
        if {config.run_id for config in configs} <= set(known.get("run_id", ())):
            evidence = Evidence(known, scale, changes=self.changes)
            configs += arm_runs(self.arms, self.task, seeds, evidence)
        return configs


def _planned_arms() -> list[PlannedArms]:
    """Return the arms whose runs are recorded at STUDY_SCALE, in the order of recording."""
    curves, images, text = MAIN_TASK.values()
    arms_of_table_1 = tuple(map(str, experiments.POSITION_ARMS))
    budgets = [experiments.budget_changes("curves", STUDY_SCALE, share) for share in STEPS]
    steps = [
        PlannedArms(f"curves, {some['steps']:,} steps", curves, arms_of_table_1, STEPS_SEEDS, some)
        for some in budgets
    ]
    return [
        _all_tuned_arms(curves),
        _arms_of_h4_and_h8(curves),
        *steps,
        PlannedArms("curves, 8 blocks", curves, DEEP_ARMS, DEEP_SEEDS, DEEP, DEEP_TUNING),
        _all_tuned_arms(images),
        _all_tuned_arms(text),
        _arms_of_h4_and_h8(images),
        _arms_of_h4_and_h8(text),
        PlannedArms("listops", "listops", tuned_arms("listops"), TEST_SEEDS),
        PlannedArms("glyphs", "glyphs", tuned_arms("glyphs"), TEST_SEEDS),
        PlannedArms(
            "paths16",
            "paths16",
            tuned_arms("paths16"),
            TEST_SEEDS,
            tuning_seeds=NEW_TUNING_SEEDS,
        ),
    ]


def _all_tuned_arms(task: str) -> PlannedArms:
    return PlannedArms(f"{task}, every arm", task, tuned_arms(task), TEST_SEEDS)


def _arms_of_h4_and_h8(task: str) -> PlannedArms:
    arms = tuned_arms(task, with_further_seeds=True)
    return PlannedArms(f"{task}, the arms of H4 and H8 once more", task, arms, FURTHER_TEST_SEEDS)


def parts(
    scale: str,
    seeds: int | Iterable[int] | None = None,
    tasks: list[str] | None = None,
    *,
    questions: bool = False,
) -> list[Part]:
    """Return the parts of the results at a scale, in the order of recording.

    seeds: test seeds to use instead of the planned seeds. tasks: only parts with runs on these
    tasks are returned. questions: return the parts of the questions of notebook 16 instead.
    """
    if questions:
        if seeds is not None or tasks is not None or scale != STUDY_SCALE:
            raise ValueError(
                f"the questions are recorded at scale {STUDY_SCALE}, on their tasks and seeds: "
                "leave out --seeds and --tasks"
            )
        return _question_parts(scale)
    test_seeds = None if seeds is None else check_test_seeds(seeds)
    if scale != STUDY_SCALE:
        seeds = test_seeds or check_test_seeds(VERDICT_SEEDS)
        return _parts_of_other_scale(scale, seeds, tasks)
    all_parts = []
    for planned in _planned_arms():
        if tasks is None or planned.task in tasks:
            used_seeds = test_seeds or planned.seeds
            for start in range(0, len(used_seeds), MAX_SEEDS_OF_PART):
                part_seeds = used_seeds[start : start + MAX_SEEDS_OF_PART]
                find_needed = partial(planned.find_needed, scale, part_seeds)
                all_parts.append(Part(planned.name, part_seeds, find_needed))
    if tasks is None or experiments.inside_task(scale) in tasks:
        for claim in (CLAIMS | BEYOND).values():
            if claim.runs != "tuned":  # the claim's runs have fixed learning rates
                used_seeds = test_seeds or claim.seeds
                runs = experiments.fixed_runs(claim.runs, claim.arms, scale, used_seeds)
                all_parts.append(
                    Part(f"mnist1d, {claim.id}", used_seeds, lambda known, runs=runs: runs)
                )
    return all_parts


def _question_parts(scale: str) -> list[Part]:
    """Return the parts of the questions of notebook 16, in the order of recording."""
    return [
        Part(
            f"{question.id}, {question.task}",
            question.seeds[start : start + MAX_SEEDS_OF_PART],
            partial(
                question.needed, scale, seeds=question.seeds[start : start + MAX_SEEDS_OF_PART]
            ),
        )
        for question in QUESTIONS.values()
        for start in range(0, len(question.seeds), MAX_SEEDS_OF_PART)
    ]


def _parts_of_other_scale(
    scale: str, seeds: tuple[int, ...], tasks: list[str] | None
) -> list[Part]:
    """Return the parts of a scale other than STUDY_SCALE.

    There is one part for each task, with the runs for the claims about the task, and two last parts
    with the runs for the notebooks and their extra runs (`notebook_runs.extra_runs`). At scale lab,
    the first parts are LAB_ARMS on ListOps, one part per seed.
    """
    extra_runs = [
        config
        for config in notebook_runs.extra_runs(scale)
        if tasks is None or config.task in tasks
    ]
    all_parts, tasks = [], tasks or list(experiments.STUDY_TASKS)
    if scale == "lab" and "listops" in tasks:
        for seed in seeds:
            runs = grid(LAB_ARMS, ["listops"], seeds=[seed], scale=scale)
            all_parts.append(Part("listops, five arms", (seed,), lambda known, runs=runs: runs))
    for task in tasks:
        claims = [name for name, claim in CLAIMS.items() if tasks_of(claim, [task], scale)]
        if claims:
            find_needed = partial(verdict_runs, claims, seeds=seeds, tasks=[task], scale=scale)
            all_parts.append(Part(f"verdicts, {task}", seeds, find_needed))
    by_notebook = notebook_runs.notebook_runs(scale, tasks, source="trained")
    runs = unique(config for configs in by_notebook.values() for config in configs)
    return [
        *all_parts,
        Part("the notebooks", seeds, lambda known: runs),
        Part("extra runs of the notebooks", seeds, lambda known: extra_runs),
    ]


def manifest(
    frame: pd.DataFrame,
    scale: str,
    seeds: int | Iterable[int] | None = None,
    tasks: list[str] | None = None,
    *,
    questions: bool = False,
) -> pd.DataFrame:
    """Return a table with one row per part of the recorded results at a scale.

    Columns: part (its name), seeds (text with the first and the last seed), needed (number of runs
    of the part that can be planned already) and recorded (how many of the needed runs are in
    `frame`). frame: the run frame of known runs. seeds, tasks, questions: as in `parts`.
    """
    recorded_ids = set(frame.get("run_id", ()))
    rows = []
    for part in parts(scale, seeds, tasks, questions=questions):
        ids = {config.run_id for config in part.find_needed(frame)}
        rows.append(
            (
                part.name,
                f"{part.seeds[0]}–{part.seeds[-1]}",
                len(ids),
                len(ids & recorded_ids),
            )
        )
    return pd.DataFrame(rows, columns=["part", "seeds", "needed", "recorded"])


def protocol_commit() -> str:
    """Return the short hash of the commit that last changed PROTOCOL.md; "unknown" without git.

    ", changed since" is appended if PROTOCOL.md has been edited after this commit.
    """
    run = partial(subprocess.run, capture_output=True, text=True, cwd=PROTOCOL.parent)
    try:
        commit = run(["git", "log", "-1", "--format=%h", "--", PROTOCOL.name]).stdout.strip()
        edits = run(["git", "status", "--porcelain", "--", PROTOCOL.name]).stdout
    except OSError:  # git is not installed
        return "unknown"
    return f"{commit or 'unknown'}{', changed since' if edits else ''}"


def recorded_frame(scale: str, path: Path) -> pd.DataFrame | None:
    """Return the run frame that was recorded in the file `path`, or None if there is no file yet.

    Raises ValueError if the file is not a run frame recorded at this scale, because recording would
    overwrite the file. Raises OSError if the folder of the file cannot be written to.
    """
    if not CHECKOUT and KIT in path.resolve().parents:
        raise ValueError(
            "the kit's results are recorded in a checkout of the project: "
            "name another file with --out"
        )
    writable_folder(path.parent, "the recorded results")
    if not path.exists():
        return None
    frame = recorded_results.read_results(path)
    lacks_columns = not set(RECORDED_COLUMNS) <= set(frame)
    if lacks_columns or set(frame.scale) - {scale} or not frame.protocol.between(2, VERSION).all():
        raise ValueError(
            f"{path} is no frame that was recorded at scale {scale} under protocol 2 to {VERSION}: "
            "move it away, or record into another file with --out"
        )
    return frame


def record_results(
    scale: str,
    *,
    seeds: int | Iterable[int] | None = None,
    tasks: list[str] | None = None,
    runs_dir: str | Path | None = None,
    path: Path | None = None,
    minutes: float | None = None,
    questions: bool = False,
    **sweep_options: Any,
) -> Path:
    """Train and record the parts of the recording one after the other.

    Return the path of the results' file.

    path: the file; by default data/results/<scale>.parquet. It is written after each part, and a
    second call continues with the next part. Runs that are in the file or in the kit's recorded
    results are not trained again. Each new row has the version of the protocol and the commit that
    last changed the protocol. seeds, tasks, questions: as in `parts`; the runs of questions are
    recorded in data/results/field.parquet. minutes: stop before a part that is expected to end
    later, by the time per run so far; the first part that trains is always recorded. sweep_options:
    scheduler, workers, client and progress, as in `sweep`.

    Raises RuntimeError if a run could not be trained; the part of this run is then not recorded.
    Raises ValueError and OSError as `recorded_frame` does, before anything is trained.
    """
    commit = protocol_commit()
    path = path or (FIELD_RESULTS if questions else recorded_results.recorded_path(scale))
    to_record = parts(scale, seeds, tasks, questions=questions)
    start, n_trained = time.monotonic(), 0
    for number, part in enumerate(to_record, start=1):
        if minutes is not None:
            known = known_runs(scale, runs_dir, recorded_frame(scale, path))
            needed_ids = {config.run_id for config in part.find_needed(known)}
            n_missing = len(needed_ids - set(known.run_id))
            seconds = time.monotonic() - start
            # the first part that trains has no time per run yet
            if n_trained and seconds * (1 + n_missing / n_trained) > 60 * minutes and n_missing:
                n_parts = plural(len(to_record) - number + 1, "part")
                print(f"no time for another part: {n_parts} left for the next call")
                break
            n_trained += n_missing
        print(
            f"part {number} of {len(to_record)}: {part.name}, "
            f"seeds {part.seeds[0]} to {part.seeds[-1]}"
        )
        trained = train_needed(
            part.find_needed, scale, runs_dir, recorded_frame(scale, path), **sweep_options
        )
        if len(trained.failed):
            raise RuntimeError(
                f"{plural(len(trained.failed), 'run')} could not be trained: part {part.name!r} is "
                "not recorded"
            )
        _add_runs(trained.needed, commit, path, runs_dir)
    return path


def _add_runs(
    configs: list[RunConfig], commit: str, path: Path, runs_dir: str | Path | None
) -> None:
    """Add the stored runs of `configs` to the file `path`, with their diagnostics.

    Runs that are already in the file or in the kit's recorded results are left out. commit: see
    `protocol_commit`.
    """
    scale = configs[0].scale
    frame = recorded_frame(scale, path)  # read again: another process may have written it
    recorded_ids = recorded_results.recorded_ids([scale])
    if frame is not None:
        recorded_ids.update(frame.run_id)
    configs = [config for config in configs if config.run_id not in recorded_ids]
    if not configs:
        return
    rows = summaries.with_summaries(
        load_runs(runs_dir, configs=configs), runs_dir, rerun_models=True
    )
    rows = rows.assign(protocol=VERSION, protocol_commit=commit)
    if frame is not None:
        rows = pd.concat([frame, rows], ignore_index=True)
    # write diagnostics first, because a later call skips every run that has a row
    diagnostics = recorded_results.read_diagnostics(path) | _shown_diagnostics(configs, runs_dir)
    recorded_results.write_diagnostics(diagnostics, path)
    recorded_results.write_recorded(rows, configs, path)


def _shown_diagnostics(
    configs: list[RunConfig], runs_dir: str | Path | None
) -> dict[str, dict[str, np.ndarray]]:
    """Return the diagnostics of those runs that our versions of the paper's Figures 9 and 10 show.

    The result is a map from run_id to a map from the name of a diagnostic to its array. Arrays of
    singular values are large, so only the runs with the smallest seed keep such arrays.
    """
    scale, seeds = configs[0].scale, sorted({config.seed for config in configs})
    shown_runs = experiments.growth_runs(scale, seeds=seeds) + experiments.failing_runs(
        scale, seeds
    )
    shown_ids = {config.run_id for config in shown_runs}
    diagnostics = {}
    for config in configs:
        run = find_run(config, runs_dir) if config.run_id in shown_ids else None
        if run is not None and (run.path / "diagnostics.npz").is_file():
            diagnostics[config.run_id] = {
                name: values
                for name, values in run.diagnostics.items()
                if config.seed == seeds[0] or not name.endswith("singular_values")
            }
    return diagnostics
