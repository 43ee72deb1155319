"""`mambanorm study`: trains what is missing, executes the notebooks and writes the report."""

from __future__ import annotations

import argparse

from mambanorm.basics.atomic import writable_folder
from mambanorm.basics.settings import STUDY_SCALE
from mambanorm.basics.text import plural
from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Parser
from mambanorm.cli.printing import confirm, print_dry_run

SUMMARY = "train what is missing, execute the notebooks and write the report"
EXAMPLES = [
    "",
    "--scale smoke --out /tmp/report",
    "--seeds 8 --dry-run",
    "--notebooks 03,05_combination --tasks digits",
]


def add(command: Parser) -> None:
    arg.add_common(command, usual=STUDY_SCALE)
    arg.add_training(command)
    command.add_argument("--source", type=arg.source, metavar="WHERE", help=arg.SOURCE_HELP)
    command.add_argument("--fresh", type=arg.fresh, metavar="N", help=arg.FRESH_HELP)
    names = "only these, by name or its beginning: 03,05_combination"
    command.add_argument("--notebooks", type=arg.names, metavar="NAMES", help=names)
    command.add_argument(
        "--out", type=arg.folder, metavar="DIR", help="where the report goes (default: reports/<scale>)"
    )


def run(options: argparse.Namespace) -> int:
    from mambanorm.report.notebooks import find_notebooks, study_runs

    arg.set_source(options)
    paths = find_notebooks(options.notebooks)
    names = [path.stem for path in paths] if options.notebooks else None
    plan = study_runs(options.scale, options.tasks, options.seeds, names)
    from mambanorm.report import study as report

    configs = [config for configs in plan.values() for config in configs]
    how = dict(runs_dir=options.runs_dir, draw=not options.dry_run)
    here = [config for own in plan.values() for config in report.trained_here(own, **how)]
    if options.dry_run:
        if options.out:
            writable_folder(options.out, "the report")
        read = len({config.run_id for config in configs} - {config.run_id for config in here})
        print(f"{plural(read, 'recorded run')} read") if read else None
        print_dry_run(here, options)
        print(f"Then {plural(len(paths), 'notebook')} executed: {', '.join(path.stem for path in paths)}")
        return 0
    confirm(here, options)
    asked = {name: getattr(options, name) for name in ("scale", "tasks", "seeds", "runs_dir", "scheduler", "notebooks")}
    return report.exit_code(report.run_study(**asked, out_dir=options.out, workers=options.workers))
