"""`mambanorm study`, `verdicts`, `record` and `calibrate`: repeat the paper's study, judge the
claims, record results, and simulate how often verdicts are wrong.
"""

import argparse
import os
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.settings import (
    DEFAULT_MINUTES,
    STUDY_SCALE,
    check_source,
    default_scale,
)
from mambanorm_study.basics.text import number_text, plural
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import may_train, report_failed


@arg.command(
    *arg.selection_options(default_scale=f"MAMBANORM_SCALE, else {STUDY_SCALE}"),
    *arg.TRAINING,
    arg.option(
        "--source",
        type=check_source,
        metavar="WHERE",
        help=(
            "auto (recorded runs if there are any, else trained), recorded or trained "
            "(default: MAMBANORM_SOURCE, else auto)"
        ),
    ),
    arg.option(
        "--fresh",
        type=arg.fresh,
        metavar="N",
        help=(
            "number of new seeds on which each compared arm is trained, in addition to recorded "
            "runs (default: MAMBANORM_FRESH, else 1); all: one seed, however long it takes"
        ),
    ),
    arg.option(
        "--minutes",
        type=arg.minutes,
        metavar="M",
        help=(
            "time limit for training runs on new seeds, in minutes; time that earlier studies of "
            "the same runs have used counts. With this option all notebooks are executed (default: "
            f"{DEFAULT_MINUTES:g}, and notebooks that do not start in time are left to the next "
            "study)"
        ),
    ),
    arg.NOTEBOOKS,
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder to write the report to (default: reports/<scale>)",
    ),
    examples=(
        "",
        "--scale smoke --out /tmp/report",
        "--seeds 8 --dry-run",
        "--notebooks 03,05_combination --tasks digits",
        "--minutes 15",
    ),
)
def study(options: argparse.Namespace) -> int:
    """Train the missing runs, execute the notebooks and write the report."""
    from mambanorm_study.report.plan import plan_study

    # the notebooks read these environment variables
    if options.source is not None:
        os.environ["MAMBANORM_SOURCE"] = options.source
    minutes = DEFAULT_MINUTES if options.minutes is None else options.minutes
    if options.fresh == "all":
        minutes = None
    settings = (options.minutes, options.fresh, options.notebooks, options.tasks, options.seeds)
    is_default = settings == (None,) * 5 and check_source() == "auto"
    if options.fresh is not None:
        os.environ["MAMBANORM_FRESH"] = "1" if options.fresh == "all" else str(options.fresh)
    plan = plan_study(
        options.scale,
        options.tasks,
        options.seeds,
        runs_dir=options.runs_dir,
        notebooks=options.notebooks,
        draw=not options.dry_run,
    )
    if options.out:
        writable_folder(options.out, "the report")
    limited = minutes is not None and not options.dry_run
    if not may_train(plan.required if limited else plan.configs_to_train, options):
        if plan.optional and minutes is not None:
            n_runs = plural(len(plan.optional), "run")
            print(f"{n_runs} of these only as far as {number_text(minutes)} minutes allow")
        names = ", ".join(path.stem for path in plan.paths)
        n_read = len(set(plan.configs) - set(plan.configs_to_train))
        print(f"{plural(n_read, 'recorded run')} would be read")
        n_notebooks = plural(len(plan.paths), "notebook")
        print(f"{n_notebooks} would then be executed, unless up to date: {names}")
        return 0
    # imported here, because a dry run needs no Jupyter
    from mambanorm_study.report import study as report

    outcomes = report.run_study(
        plan,
        scheduler=options.scheduler,
        workers=options.workers,
        out_dir=options.out,
        minutes=minutes,
        all_notebooks=not is_default or plan.scale != STUDY_SCALE,
    )
    return int(any(outcome.problem for outcome in outcomes))


@arg.command(
    arg.option(
        "--claims",
        type=arg.names,
        metavar="IDS",
        help="only these claims: H1s,H3s (default: all)",
    ),
    *arg.selection_options(arg.TEST_SEEDS_HELP),
    *arg.TRAINING,
    examples=(
        "--seeds 8 --tasks digits",
        "--seeds 3 --dry-run",
        "--claims H1s,H3s --tasks digits,listops",
        "--claims H1s --seeds 60-67",
    ),
)
def verdicts(options: argparse.Namespace) -> int:
    """Train the missing runs of the claims and print a verdict for each claim."""
    from mambanorm_study import claims
    from mambanorm_study.claims import pages, plan
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.tables.scores import select_test_seeds

    ids = [claims.find_claim(name).id for name in options.claims or claims.CLAIMS]
    scale = options.scale or default_scale()
    selection = dict(seeds=options.seeds, tasks=options.tasks, scale=scale)
    known = known_runs(scale, options.runs_dir)
    needed = claims.verdict_runs(ids, known, **selection)
    missing = [config for config in needed if config.run_id not in set(known.run_id)]
    if not may_train(missing, options):
        return 0
    trained = claims.train_verdicts(ids, **selection, **arg.sweep_options(options))
    frame = trained.known
    if options.seeds is not None:
        frame = select_test_seeds(frame, plan.check_test_seeds(options.seeds))
    print(f"Protocol {claims.VERSION}, scale {scale}; the rule in words: {plan.PROTOCOL}\n")
    for verdict in claims.verdicts(frame, ids, scale=scale, tasks=options.tasks):
        print(pages.describe(verdict))
    return report_failed(trained.failed)


@arg.command(
    arg.option(
        "--out",
        metavar="FILE",
        help="the file to write (default: data/results/<scale>.parquet)",
    ),
    arg.option(
        "--minutes",
        type=arg.minutes,
        metavar="M",
        help="stop before a part that is expected to end later; parts are recorded as a whole",
    ),
    arg.option(
        "--questions",
        action="store_true",
        help="the runs of the questions of notebook 16 (default file: data/results/field.parquet)",
    ),
    *arg.selection_options(arg.TEST_SEEDS_HELP),
    *arg.TRAINING,
    examples=(
        "--scale quick --seeds 8",
        "--scale smoke --seeds 1 --out smoke.parquet",
        "--scale lab --tasks listops --minutes 8",
    ),
)
def record(options: argparse.Namespace) -> int:
    """Train all runs that the study and the verdicts need, and record them in one file."""
    from mambanorm_study.claims.question import FIELD_RESULTS
    from mambanorm_study.cli import recording
    from mambanorm_study.runs import grid, needed_runs, recorded_results

    scale = options.scale or default_scale()
    selection = dict(seeds=options.seeds, tasks=options.tasks, questions=options.questions)
    default_path = recorded_results.recorded_path(scale)
    path = Path(options.out or (FIELD_RESULTS if options.questions else default_path)).resolve()
    parts = recording.parts(scale, **selection)
    known = needed_runs.known_runs(scale, options.runs_dir, recording.recorded_frame(scale, path))
    needed = grid.unique(config for part in parts for config in part.find_needed(known))
    missing = [config for config in needed if config.run_id not in set(known.run_id)]
    if options.dry_run:
        print(recording.manifest(known, scale, **selection).to_string(index=False))
    if not may_train(missing, options):
        return 0
    limits = dict(path=path, minutes=options.minutes)
    recording.record_results(scale, **selection, **limits, **arg.sweep_options(options))
    print(f"{path}: {recorded_results.describe_recorded(recorded_results.read_results(path))}")
    return 0


@arg.command(
    arg.option(
        "--studies",
        type=arg.whole_number(1),
        default=1_000,
        metavar="N",
        help="number of simulated studies per case (default: 1000)",
    ),
    examples=("--studies 200", "--studies 10000 > CALIBRATION.md"),
)
def calibrate(options: argparse.Namespace) -> int:
    """Simulate studies and print how often the verdicts are wrong, and how often they find an
    effect.
    """
    from mambanorm_study.claims import calibration

    print(calibration.calibration_text(calibration.calibrate(options.studies)), end="")
    return 0
