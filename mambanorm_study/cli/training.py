"""`mambanorm train`, `sweep`, `compare`, `plan` and `bench`: train runs, compare two arms, and
measure what a run costs.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mambanorm_study.basics.settings import ROOT, STUDY_SCALE
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.printing import (
    confirm,
    print_arms,
    print_dry_run,
    print_run,
    report_failed,
    say,
)

if TYPE_CHECKING:
    from mambanorm_study.config import RunConfig


@arg.command(
    arg.option(
        "--arm",
        required=True,
        help=(
            'the norms, written "RMSN>SSM>GN" or "RMSN>SSM>None+B:RMSN" (with quotes), '
            "or preset:VMamba"
        ),
    ),
    arg.option("--task", "--tasks", default="digits", help="the task (default: digits)"),
    arg.option(
        "--seed",
        "--seeds",
        type=arg.whole(0, 2**32 - 1),
        help="the seed (default: the preset's)",
    ),
    arg.scale(),
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
    """Train one run, or show it if the store has it."""
    from mambanorm_study.runs.grid import base_config, check_task
    from mambanorm_study.runs.store import find_run

    changes = arg.parse_changes(options.set)
    check_task(options.task)
    if options.seed is not None:
        changes["seed"] = options.seed
    config = base_config(options.task, options.scale, arm=options.arm, **changes)
    if options.dry_run:
        print_dry_run([config], options)
        return 0
    stored = find_run(config, options.runs_dir)
    if stored is not None:
        print("In the store already, nothing to train:")
    else:
        confirm([config], options)
        error = _train(config, options)
        if error is not None:
            say(f"this run could not be trained: {error}")
            return 1
        stored = find_run(config, options.runs_dir)
    print_run(stored)
    return 0


def _train(config: RunConfig, options: argparse.Namespace) -> str | None:
    """Train and store a run, in this process with a progress bar or at the scheduler; return the
    error of a run that failed.
    """
    from filelock import Timeout
    from tqdm.auto import tqdm

    from mambanorm_study.runs.store import check_store
    from mambanorm_study.runs.sweep import sweep
    from mambanorm_study.runs.worker import train_and_store

    if options.scheduler:
        frame = sweep([config], scheduler=options.scheduler, runs_dir=options.runs_dir)
        row = frame.iloc[0]
        return row.error if row.status == "failed" else None
    title = f"{config.arm} on {config.task}, seed {config.seed}"
    # with a delay: a run that ends at once shows no bar
    with tqdm(total=config.steps, desc=title, unit="step", delay=0.1) as bar:

        def show(step: int, _model: object, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(step - bar.n)  # a resumed run does not begin at step 1

        store = check_store(options.runs_dir)
        try:
            train_and_store(config, store, wait=False, on_step=show)
        except Timeout:
            tqdm.write("another process trains this run: waiting for it", file=sys.stderr)
            train_and_store(config, store, on_step=show)
    return None


# The values of --grid; tables/experiments.py has the arms of each.
GRIDS = ("type", "position", "grid", "normvary")


@arg.command(
    arg.option(
        "--arms",
        type=arg.names,
        metavar="ARMS",
        help='arms, separated by commas: "RMSN>SSM>GN,preset:VMamba"',
    ),
    arg.option("--grid", help=f"the arms of a part of the study: {', '.join(GRIDS)}"),
    *arg.which_runs(),
    arg.SET,
    *arg.TRAINING,
    examples=(
        '--arms "RMSN>SSM>None,RMSN>SSM>GN" --seeds 5',
        "--grid position --tasks digits,listops --dry-run",
        '--arms "None>SSM>None,preset:VMamba" --set n_layers=8 --set lr=1e-3',
    ),
)
def sweep(options: argparse.Namespace) -> int:
    """Train the missing runs of several arms and print mean ± sd of each."""
    from mambanorm_study.runs.grid import grid

    arms = _arms_of_sweep(options)
    changes = arg.parse_changes(options.set)
    tasks = arg.check_tasks(options.tasks or ["digits"])
    configs = grid(arms, tasks, scale=options.scale, seeds=options.seeds, **changes)
    if options.dry_run:
        print_dry_run(configs, options)
        return 0
    from mambanorm_study.runs.store import load_runs, tidy

    frame = load_runs(options.runs_dir, configs=configs)
    if len(frame) < len(configs):
        confirm(configs, options)
        # here, because torch and Dask are not needed if all runs are stored
        from mambanorm_study.runs.sweep import sweep

        frame = sweep(configs, **arg.engine(options))
    else:
        tidy(options.runs_dir)
    print_arms(frame)
    arms = list(dict.fromkeys(config.arm for config in configs))
    if len(arms) > 1:
        tasks = ",".join(dict.fromkeys(config.task for config in configs))
        print(
            "Which is better, each at its own learning rate: "
            f'mambanorm compare "{arms[1]}" --against "{arms[0]}" '
            f"--scale {configs[0].scale} --tasks {tasks}"
        )
    return report_failed(frame)


def _arms_of_sweep(options: argparse.Namespace) -> list:
    """Return the arms of --arms or --grid. ValueError unless exactly one of them is given."""
    from mambanorm.errors import unknown
    from mambanorm_study.tables import experiments

    if (options.arms is None) == (options.grid is None):
        raise ValueError("give either --arms or --grid; see mambanorm sweep --help")
    if options.arms is not None:
        return options.arms
    if options.grid not in GRIDS:
        raise unknown("grid", options.grid, GRIDS)
    return getattr(experiments, f"{options.grid.upper()}_ARMS")


@arg.command(
    arg.option("arm", help='the arm in question, such as "Peak>SSM>GN" (with quotes)'),
    arg.option(
        "--against",
        default="RMSN>SSM>None",
        metavar="ARM",
        help="the other arm (default: RMSN>SSM>None)",
    ),
    *arg.which_runs(default_scale=STUDY_SCALE),
    *arg.TRAINING,
    examples=(
        '"None>SSM>GN" --tasks curves',
        '"LN>SSM>GN" --against "RMSN>SSM>GN" --tasks curves,glyphs_images --dry-run',
        '"LN>SSM>None" --scale smoke --tasks digits --seeds 6',
    ),
)
def compare(options: argparse.Namespace) -> int:
    """Say which of two arms is better, each at its own learning rate, by the rule of the
    verdicts.
    """
    from mambanorm_study.advice import which_arm
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.tables.experiments import RECORDED_TASKS

    scale = options.scale or STUDY_SCALE
    tasks = arg.check_tasks(options.tasks or RECORDED_TASKS[:1])
    known = known_runs(scale, options.runs_dir)
    arms, needed = (options.arm, options.against), []
    for task in tasks:
        seeds = which_arm.duel_seeds(options.against, task, scale, options.seeds)
        needed += which_arm.duel_runs(*arms, task, seeds, scale, known)
    missing = [config for config in needed if config.run_id not in set(known.run_id)]
    if options.dry_run:
        print_dry_run(missing, options)
        return 0
    confirm(missing, options)
    table = which_arm.compare(*arms, tasks, seeds=options.seeds, scale=scale, **arg.engine(options))
    for row in table.itertuples():
        print(f"{row.task}: {row.said}")
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
        help=(
            "arms, separated by commas (default: the original, RMSN>SSM>None, for images LN>SSM>LN)"
        ),
    ),
    arg.scale(),
    arg.option(
        "--seeds",
        type=arg.seeds,
        metavar="N",
        help="seeds for each arm (default: the scale's)",
    ),
    arg.option(
        "--no-measure", dest="measure", action="store_false", help="count only, time nothing"
    ),
    arg.SET,
    examples=(
        "--task imdb --scale paper",
        '--task listops,cifar100 --arm "RMSN>SSM>GN" --scale paper --no-measure',
    ),
)
def plan(options: argparse.Namespace) -> int:
    """Say what a run costs: parameters, tokens, FLOPs, memory, and hours from a few steps timed
    now.
    """
    from mambanorm_study.basics.text import digits, plural
    from mambanorm_study.runs.grid import base_config, check_seeds
    from mambanorm_study.runs.machine import machine
    from mambanorm_study.tables.plan import plan_table, shape_of, table_text

    changes = arg.parse_changes(options.set)
    scale = arg.chosen_scale(options)
    n_seeds = len(check_seeds(options.seeds, scale))
    arms = [{"arm": arm} for arm in options.arms or []] or [{}]  # {} = the arm of the preset
    tasks = options.tasks or ["digits"]
    configs = [base_config(task, scale, **arm, **changes) for task in tasks for arm in arms]
    for config in configs:
        shape_of(config)  # an unknown task is refused before the steps of another one are timed
    table = plan_table(configs, measured=options.measure)
    print(table_text(table))
    n_runs = plural(len(configs) * n_seeds, "run")
    runs = f"{n_runs} ({plural(n_seeds, 'seed')} each) at scale {scale}"
    if options.measure:
        hours = digits(n_seeds * table["hours"].sum())
        print(f"{runs}: {hours} hours, one after another, on {machine()}")
    else:
        print(f"{runs}, not timed")
    return 0


@arg.command(
    arg.option(
        "--only",
        type=arg.names,
        nargs="+",
        metavar="SECTION",
        help=(
            "only these sections: scan, step, norms, length, state, threads, mamba2, watch, runs; "
            "with --device cuda: correctness, scan, step, runs"
        ),
    ),
    arg.option(
        "--repeats",
        type=arg.whole(1),
        default=11,
        metavar="N",
        help="how often each case is timed (default: 11)",
    ),
    arg.option(
        "--budget",
        type=float,
        default=25.0,
        metavar="S",
        help=(
            "seconds another implementation may take; a slower one runs less often or not at all "
            "(default: 25)"
        ),
    ),
    arg.option(
        "--full", action="store_true", help="skip nothing: what is above the budget runs once"
    ),
    arg.option(
        "--threads",
        type=arg.whole(1),
        metavar="N",
        help="threads, at most the cores (default: 2)",
    ),
    arg.option(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help=(
            "cuda: correctness, scan, step and whole runs on a GPU, in about nine minutes "
            "(benchmarks/gpu.py)"
        ),
    ),
    arg.out("where the results go (default: benchmarks/results)"),
    examples=(
        "",
        "--only step,length",
        "--only scan --repeats 5 --out /tmp/bench",
        "--full",
        "--device cuda",
    ),
)
def bench(options: argparse.Namespace) -> int:
    """Measure scan, step and norms beside a lower bound and beside other implementations."""
    if not (ROOT / "benchmarks" / "run.py").is_file():
        raise ValueError(
            f"no benchmarks in {ROOT / 'benchmarks'}: bench runs from a checkout of the project"
        )
    if str(ROOT) not in sys.path:  # the benchmarks are beside the package, not in it
        sys.path.insert(0, str(ROOT))
    only = [name for part in options.only for name in part] if options.only else None
    if options.device == "cuda":
        from benchmarks.gpu import bench_gpu

        return bench_gpu(only, out_dir=options.out)
    from benchmarks import run
    from benchmarks.timing import Limits

    limits = Limits(options.repeats, options.budget, full=options.full)
    try:
        return run.bench(only, limits, threads=options.threads, out_dir=options.out)
    except KeyboardInterrupt:
        say("interrupted: nothing was written")
        return 130
