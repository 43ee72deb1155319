"""`mambanorm study`, `verdicts`, `record` and `calibrate`: the paper's study anew, its claims
judged, results recorded, and how often the verdicts' rule is wrong."""

from __future__ import annotations

import argparse
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder
from mambanorm_study.basics.settings import STUDY_SCALE, check_fresh, check_source
from mambanorm_study.basics.text import plural
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.arguments import Parser
from mambanorm_study.cli.printing import confirm, print_dry_run, report_failed


def add_study(command: Parser) -> None:
    arg.add_common(command, usual=f"MAMBANORM_SCALE, else {STUDY_SCALE}")
    arg.add_training(command)
    command.add_argument("--source", type=check_source, metavar="WHERE", help=arg.SOURCE_HELP)
    command.add_argument("--fresh", type=check_fresh, metavar="N", help=arg.FRESH_HELP)
    command.add_argument("--notebooks", type=arg.names, metavar="NAMES", help=arg.NOTEBOOKS_HELP)
    command.add_argument(
        "--out",
        type=arg.folder,
        metavar="DIR",
        help="where the report goes (default: reports/<scale>)",
    )


@arg.command(
    add_study,
    "",
    "--scale smoke --out /tmp/report",
    "--seeds 8 --dry-run",
    "--notebooks 03,05_combination --tasks digits",
)
def study(options: argparse.Namespace) -> int:
    """Train what is missing, execute the notebooks and write the report."""
    from mambanorm_study.report.notebooks import find_notebooks, study_runs
    from mambanorm_study.tables.replication import trained_here

    arg.set_source(options)
    paths = find_notebooks(options.notebooks)
    names = [path.stem for path in paths] if options.notebooks else None
    plan = study_runs(options.scale, options.tasks, options.seeds, names)
    configs = [config for configs in plan.values() for config in configs]
    how = dict(runs_dir=options.runs_dir, draw=not options.dry_run)
    here = [config for own in plan.values() for config in trained_here(own, **how)]
    if options.dry_run:
        if options.out:
            writable_folder(options.out, "the report")
        read = len({config.run_id for config in configs} - {config.run_id for config in here})
        print(f"{plural(read, 'recorded run')} read") if read else None
        print_dry_run(here, options)
        print(
            f"Then {plural(len(paths), 'notebook')} executed: {', '.join(path.stem for path in paths)}"
        )
        return 0
    confirm(here, options)
    from mambanorm_study.report import (
        study as report,
    )  # here: what a study would train is said without Jupyter

    asked = {
        name: getattr(options, name)
        for name in ("scale", "tasks", "seeds", "runs_dir", "scheduler", "notebooks")
    }
    return report.exit_code(report.run_study(**asked, out_dir=options.out, workers=options.workers))


def add_verdicts(command: Parser) -> None:
    command.add_argument(
        "--claims", type=arg.names, metavar="IDS", help="only these claims: H1s,H3s (default: all)"
    )
    arg.add_common(command, seeds_help=arg.JUDGED_SEEDS_HELP)
    arg.add_training(command)


@arg.command(
    add_verdicts,
    "--seeds 8 --tasks digits",
    "--seeds 3 --dry-run",
    "--claims H1s,H3s --tasks digits,listops",
    "--claims H1s --seeds 60-67",
)
def verdicts(options: argparse.Namespace) -> int:
    """Train the runs that the claims lack and print a verdict for each claim."""
    from mambanorm_study import claims
    from mambanorm_study.claims import pages
    from mambanorm_study.claims.plan import PROTOCOL, check_test_seeds
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.tables.scores import of_test_seeds

    ids = [claims.find_claim(name).id for name in options.claims or claims.CLAIMS]
    scale = arg.chosen_scale(options)
    asked = dict(
        seeds=options.seeds,
        tasks=arg.check_tasks(options.tasks) if options.tasks else None,
        scale=scale,
    )
    known = known_runs(scale, options.runs_dir)
    configs = claims.verdict_runs(ids, known, **asked)
    to_train = [config for config in configs if config.run_id not in set(known.run_id)]
    if options.dry_run:
        print_dry_run(to_train, options)
        return 0
    confirm(to_train, options)
    engine = dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    trained = claims.train_verdicts(ids, **asked, **engine)
    frame = trained.known
    if options.seeds is not None:
        frame = of_test_seeds(frame, check_test_seeds(options.seeds))
    judged = claims.verdicts(frame, ids, scale=scale, tasks=asked["tasks"])
    print(f"Protocol {claims.VERSION}, scale {scale}; the rule in words: {PROTOCOL}\n")
    print("\n".join(map(pages.describe, judged)))
    return report_failed(trained.failed)


def add_record(command: Parser) -> None:
    command.add_argument(
        "--out",
        type=arg.file,
        metavar="FILE",
        help="where the frame goes (default: data/results/<scale>.parquet)",
    )
    arg.add_common(command, seeds_help=arg.JUDGED_SEEDS_HELP)
    arg.add_training(command)


@arg.command(add_record, "--scale quick --seeds 8", "--scale smoke --seeds 1 --out smoke.parquet")
def record(options: argparse.Namespace) -> int:
    """Train all that the study and the verdicts need and record the run frame."""
    from mambanorm_study.cli import recording
    from mambanorm_study.runs.grid import unique
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.runs.recorded_results import describe_recorded, read_results

    scale = arg.chosen_scale(options)
    tasks = arg.check_tasks(options.tasks) if options.tasks else None
    before = recording.recorded_before(scale, options.out and Path(options.out))
    known = known_runs(scale, options.runs_dir, before)
    to_train = [c for part in recording.parts(scale, options.seeds, tasks) for c in part.ask(known)]
    to_train = [config for config in unique(to_train) if config.run_id not in set(known.run_id)]
    if options.dry_run:
        print(recording.manifest(known, scale, options.seeds, tasks).to_string(index=False))
        print_dry_run(to_train, options)
        return 0
    confirm(to_train, options)
    engine = dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    path = recording.record_results(
        scale, seeds=options.seeds, tasks=tasks, path=options.out, **engine
    )
    print(f"{path}: {describe_recorded(read_results(path))}")
    return 0


def add_calibrate(command: Parser) -> None:
    command.add_argument(
        "--studies", type=arg.whole(1), default=1_000, metavar="N", help="per case (default: 1000)"
    )
    command.add_argument("--record", action="store_true", help="write the repository's table anew")


@arg.command(add_calibrate, "--studies 200", "--studies 10000 --record")
def calibrate(options: argparse.Namespace) -> int:
    """Simulate studies and print how often the verdicts are wrong, and how often they find an
    effect."""
    from mambanorm_study.basics.atomic import write_text
    from mambanorm_study.basics.settings import CHECKOUT
    from mambanorm_study.claims import calibration

    if options.record and not CHECKOUT:
        raise ValueError(
            "--record writes CALIBRATION.md of the project's repository: it needs a checkout"
        )
    text = calibration.calibration_text(calibration.calibrate(options.studies))
    print(text)
    if options.record:
        write_text(calibration.RECORDED, text)
    return 0
