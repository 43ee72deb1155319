"""`mambanorm train`, `sweep`, `compare`, `ask`, `plan` and `bench`: train runs, compare two arms,
answer a question, and measure what a run costs.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mambanorm_study.basics.settings import ROOT, STUDY_SCALE, WORK, default_scale
from mambanorm_study.basics.text import plural
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import may_train, print_arms, print_run, report_failed

if TYPE_CHECKING:
    from mambanorm_study.config import RunConfig


@arg.command(
    arg.option(
        "--arm",
        required=True,
        help=(
            'the norms, such as "RMSN>SSM>GN" or "RMSN>SSM>None+B:RMSN" (with quotes), '
            "or preset:VMamba"
        ),
    ),
    arg.option("--task", "--tasks", default="digits", help="the task (default: digits)"),
    arg.option(
        "--seed",
        "--seeds",
        type=arg.whole_number(0, 2**32 - 1),
        help="the seed (default: the seed of the preset)",
    ),
    arg.scale_option(),
    arg.RUNS_DIR,
    arg.SET,
    *arg.TRAINING,
    examples=(
        '--arm "RMSN>SSM>GN"',
        '--arm "LN>SSM>LN" --task listops --seed 3',
        """--arm preset:VMamba --set 'norm_options={"eps":1e-6}'""",
    ),
)
def train(options: argparse.Namespace) -> int:
    """Train one run, or print its results if it is stored already."""
    from mambanorm_study.runs import grid, store

    changes = grid.parse_changes(options.set)
    grid.check_task(options.task)
    if options.seed is not None:
        changes["seed"] = options.seed
    config = grid.base_config(options.task, options.scale, arm=options.arm, **changes)
    if not may_train([config], options):
        return 0
    stored = store.find_run(config, options.runs_dir)
    if stored is not None:
        print("Already stored, nothing to train:")
    elif _train(config, options):
        return 1
    print_run(stored or store.find_run(config, options.runs_dir))
    return 0


def _train(config: RunConfig, options: argparse.Namespace) -> int:
    """Train and store a run, and return the exit code.

    With --scheduler, a worker of the scheduler trains the run. Without --scheduler, this process
    trains the run and shows a progress bar. If another process is already training the run, wait
    for that process.
    """
    from tqdm.auto import tqdm

    from mambanorm_study.runs import store, sweep, worker

    if options.scheduler:
        return report_failed(sweep.sweep([config], **arg.sweep_options(options)))
    title = f"{config.arm} on {config.task}, seed {config.seed}"
    # the delay hides the progress bar of a very short run
    with tqdm(total=config.steps, desc=title, unit="step", delay=0.1) as bar:

        def show_step(step: int, _model: object, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(step - bar.n)  # a resumed run does not begin at step 1

        worker.train_and_store(config, store.check_store(options.runs_dir), on_step=show_step)
    return 0


# Values of the option --grid; tables/experiments.py defines the arms of each grid.
GRIDS = ("type", "position", "grid", "normvary")


@arg.command(
    arg.option(
        "--arms",
        type=arg.names,
        metavar="ARMS",
        help='arms, separated by commas: "RMSN>SSM>GN,preset:VMamba"',
    ),
    arg.option(
        "--grid", choices=GRIDS, help=f"the arms of one part of the study: {', '.join(GRIDS)}"
    ),
    *arg.selection_options(),
    arg.SET,
    *arg.TRAINING,
    examples=(
        '--arms "RMSN>SSM>None,RMSN>SSM>GN" --seeds 5',
        "--grid position --tasks digits,listops --dry-run",
        '--arms "None>SSM>None,preset:VMamba" --set n_layers=8 --set lr=1e-3',
    ),
)
def sweep(options: argparse.Namespace) -> int:
    """Train the missing runs of several arms and print mean ± sd of each arm."""
    from mambanorm_study.runs.grid import grid, parse_changes
    from mambanorm_study.tables import experiments

    if (options.arms is None) == (options.grid is None):
        raise ValueError("give either --arms or --grid; see mambanorm sweep --help")
    arms = options.arms or getattr(experiments, f"{options.grid.upper()}_ARMS")
    changes = parse_changes(options.set)
    tasks = options.tasks or ["digits"]
    configs = grid(arms, tasks, scale=options.scale, seeds=options.seeds, **changes)
    if not may_train(configs, options):
        return 0
    from mambanorm_study.runs.sweep import sweep  # imported here, because a dry run needs no Dask

    frame = sweep(configs, **arg.sweep_options(options))
    # a cell's runs differ from its arm's in settings that the frame has no columns for
    names = {
        config.run_id: str(arm)
        for arm in arms
        if ";" in str(arm)
        for config in grid([arm], tasks, scale=options.scale, seeds=options.seeds, **changes)
    }
    shown = [names.get(run_id, arm) for run_id, arm in zip(frame.run_id, frame.arm, strict=True)]
    print_arms(frame.assign(arm=shown))
    return report_failed(frame)


@arg.command(
    arg.option("arm", help='the arm to judge, such as "Peak>SSM>GN" (with quotes)'),
    arg.option(
        "--against",
        default="RMSN>SSM>None",
        metavar="ARM",
        help="the arm to compare with (default: RMSN>SSM>None)",
    ),
    *arg.selection_options(default_scale=STUDY_SCALE),
    *arg.TRAINING,
    examples=(
        '"None>SSM>GN" --tasks curves',
        '"LN>SSM>GN" --against "RMSN>SSM>GN" --tasks curves,glyphs_images --dry-run',
        '"RMSN>SSM>GN; n_layers=8" --against "RMSN>SSM>None; n_layers=8" --tasks curves',
        '"LN>SSM>None" --scale smoke --tasks digits --seeds 6',
    ),
)
def compare(options: argparse.Namespace) -> int:
    """Decide which of two arms, or arms with changed settings, is better, each at its best learning
    rate, by the rule of the verdicts.
    """
    from mambanorm_study.advice import which_arm
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.tables.experiments import RECORDED_TASKS

    scale = options.scale or STUDY_SCALE
    tasks = options.tasks or RECORDED_TASKS[:1]
    known = known_runs(scale, options.runs_dir)
    arms, needed = (options.arm, options.against), []
    for task in tasks:
        seeds = which_arm.comparison_seeds(options.against, task, scale, options.seeds)
        needed += which_arm.comparison_runs(*arms, task, seeds, scale, known)
    missing = [config for config in needed if config.run_id not in set(known.run_id)]
    if not may_train(missing, options):
        return 0
    table = which_arm.compare(
        *arms, tasks, seeds=options.seeds, scale=scale, **arg.sweep_options(options)
    )
    for row in table.itertuples():
        print(f"{row.task}: {row.said}")
    return 0


@arg.command(
    arg.option("file", metavar="FILE", help="a Python file with a Question, see notebook 16"),
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder in which the page is written (default: reports/questions)",
    ),
    arg.scale_option(STUDY_SCALE),
    arg.RUNS_DIR,
    *arg.TRAINING,
    examples=("my_question.py", "my_question.py --dry-run", "my_question.py --scale smoke"),
)
def ask(options: argparse.Namespace) -> int:
    """Answer a question of yours by the rule of the verdicts, and write a page about it."""
    from mambanorm_study.claims.question import ask, known_answers, questions_in
    from mambanorm_study.report.answer_page import save_answer

    scale = options.scale or STUDY_SCALE
    known = known_answers(scale, options.runs_dir)
    known_ids = set(known.get("run_id", ()))
    questions = questions_in(options.file)
    planned = [run for one in questions for run in one.needed(scale, known, is_plan=True)]
    missing = [run for run in planned if run.run_id not in known_ids]
    print(f"{len(planned) - len(missing)} of {plural(len(planned), 'run')} are known")
    if not may_train(missing, options):
        return 0
    for question in questions:
        answer = ask(question, scale=scale, **arg.sweep_options(options))
        print(answer)
        path = save_answer(answer, options.out or WORK / "reports" / "questions")
        print(f"The page is at {path}")
    return 0


@arg.command(
    arg.option(
        "--task",
        "--tasks",
        dest="tasks",
        type=arg.names,
        metavar="A,B",
        help="tasks (default: digits)",
    ),
    arg.option(
        "--arm",
        "--arms",
        dest="arms",
        type=arg.names,
        help=("arms, separated by commas (default: RMSN>SSM>None; on tasks of images, LN>SSM>LN)"),
    ),
    arg.scale_option(),
    arg.option(
        "--no-measure", dest="measure", action="store_false", help="do not time any training steps"
    ),
    arg.SET,
    examples=(
        "--task imdb --scale paper",
        '--task listops,cifar100 --arm "RMSN>SSM>GN" --scale paper --no-measure',
    ),
)
def plan(options: argparse.Namespace) -> int:
    """Print the cost of a run: parameters, tokens, FLOPs, memory, and hours on this machine."""
    from mambanorm_study.runs.grid import base_config, parse_changes
    from mambanorm_study.tables.plan import plan_table, table_text

    scale = options.scale or default_scale()
    changes = parse_changes(options.set)
    arms = [{"arm": arm} for arm in options.arms or []] or [{}]  # {} keeps the arm of the preset
    tasks = options.tasks or ["digits"]
    configs = [base_config(task, scale, **arm, **changes) for task in tasks for arm in arms]
    print(table_text(plan_table(configs, measured=options.measure)))
    return 0


@arg.command(
    arg.option(
        "--only",
        type=arg.names,
        metavar="A,B",
        help="only these sections: scan, step, norms, length, state, threads, mamba2, watch, runs",
    ),
    arg.option(
        "--repeats",
        type=arg.whole_number(1),
        default=11,
        metavar="N",
        help="number of times that each case is timed (default: 11)",
    ),
    arg.option(
        "--budget",
        type=float,
        default=25.0,
        metavar="S",
        help=(
            "seconds per case of another implementation; a slower case is timed less often or not "
            "at all (default: 25)"
        ),
    ),
    arg.option(
        "--full", action="store_true", help="time each case above the budget once, do not skip it"
    ),
    arg.option(
        "--threads",
        type=arg.whole_number(1),
        metavar="N",
        help="number of threads, at most the number of cores (default: 2)",
    ),
    arg.option(
        "--out",
        metavar="DIR",
        help="the folder to write the results to (default: benchmarks/results)",
    ),
    examples=(
        "",
        "--only step,length",
        "--only scan --repeats 5 --out /tmp/bench",
        "--full",
    ),
)
def bench(options: argparse.Namespace) -> int:
    """Measure the time of scan, step and norms on the CPU, and compare the times with a lower bound
    and with other implementations.
    """
    if not (ROOT / "benchmarks" / "run.py").is_file():
        raise ValueError(
            f"no benchmarks in {ROOT / 'benchmarks'}: bench needs a checkout of the project"
        )
    sys.path.insert(0, str(ROOT))  # the benchmarks are beside the package, not inside
    from benchmarks import run
    from benchmarks.timing import Limits

    limits = Limits(options.repeats, options.budget, full=options.full)
    return run.bench(options.only, limits, threads=options.threads, out_dir=options.out)
