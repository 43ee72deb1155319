"""`mambanorm train`, `sweep`, `compare`, `card`, `plan` and `bench`: one run with a live line, the
runs of several arms, which of two is better, all about a norm, what a run costs, and the speed of
this machine."""

from __future__ import annotations

import argparse
import gc
import sys
from typing import TYPE_CHECKING

from mambanorm_study.basics.settings import STUDY_SCALE, check_scale
from mambanorm_study.cli import arguments as arg
from mambanorm_study.cli.arguments import Parser
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


def add_train(command: Parser) -> None:
    arm_help = (
        'the norms, written "RMSN>SSM>GN" or "RMSN>SSM>None+B:RMSN" (with quotes), or preset:VMamba'
    )
    command.add_argument("--arm", required=True, help=arm_help)
    command.add_argument("--task", "--tasks", default="digits", help="the task (default: digits)")
    command.add_argument(
        "--seed", "--seeds", type=arg.whole(0, 2**32 - 1), help="the seed (default: the preset's)"
    )
    arg.add_common(command, several=False)
    arg.add_set(command)
    arg.add_training(command)


@arg.command(
    add_train,
    '--arm "RMSN>SSM>GN"',
    '--arm "LN>SSM>LN" --task listops --seed 3',
    """--arm preset:VMamba --set 'norm_options={"eps":1e-6}'""",
)
def train(options: argparse.Namespace) -> int:
    """Train one run, or show it if the store has it."""
    from mambanorm_study.runs.grid import base_config, check_task
    from mambanorm_study.runs.store import find_run

    changes = arg.parse_changes(options.set)
    check_task(options.task)
    seed = {} if options.seed is None else {"seed": options.seed}
    asked = base_config(options.task, options.scale, arm=options.arm, **seed, **changes)
    if options.dry_run:
        print_dry_run([asked], options)
        return 0
    stored = find_run(asked, options.runs_dir)
    if stored is not None:
        print("In the store already, nothing to train:")
    else:
        confirm([asked], options)
        if (error := _train(asked, options)) is not None:
            say(f"this run could not be trained: {error}")
            return 1
    print_run(stored or find_run(asked, options.runs_dir))
    return 0


def _train(config: RunConfig, options: argparse.Namespace) -> str | None:
    """Trains and stores a run, here with a live line or where the scheduler says; returns the
    reason if it fails."""
    from filelock import Timeout
    from tqdm.auto import tqdm

    from mambanorm_study.runs.store import check_store
    from mambanorm_study.runs.sweep import sweep
    from mambanorm_study.runs.worker import train_and_store

    if options.scheduler:
        frame = sweep([config], scheduler=options.scheduler, runs_dir=options.runs_dir)
        return None if frame["status"].iloc[0] != "failed" else frame["error"].iloc[0]
    named = f"{config.arm} on {config.task}, seed {config.seed}"
    with tqdm(
        total=config.steps, desc=named, unit="step", delay=0.1
    ) as bar:  # none before the first step

        def show(step: int, _model: object, loss: float) -> None:
            bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(step - bar.n)  # a run that continues does not begin at step 1

        store = check_store(options.runs_dir)
        try:
            train_and_store(config, store, wait=False, on_step=show)
        except Timeout:
            tqdm.write("another process trains this run: waiting for it", file=sys.stderr)
            train_and_store(config, store, on_step=show)
    return None


def add_sweep(command: Parser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--arms",
        type=arg.names,
        metavar="ARMS",
        help='arms, separated by commas: "RMSN>SSM>GN,preset:VMamba"',
    )
    which.add_argument(
        "--grid", help="the arms of a part of the study: type, position, grid or normvary"
    )
    arg.add_common(command)
    arg.add_set(command)
    arg.add_training(command)


@arg.command(
    add_sweep,
    '--arms "RMSN>SSM>None,RMSN>SSM>GN" --seeds 5',
    "--grid position --tasks digits,listops --dry-run",
    '--arms "None>SSM>None,preset:VMamba" --set n_layers=8 --set lr=1e-3',
)
def sweep(options: argparse.Namespace) -> int:
    """Train the missing runs of several arms and print mean ± sd of each."""
    from mambanorm.errors import unknown
    from mambanorm_study.runs.grid import grid
    from mambanorm_study.tables import experiments

    grids = {
        name: getattr(experiments, f"{name.upper()}_ARMS")
        for name in ("type", "position", "grid", "normvary")
    }
    if options.grid is not None and options.grid not in grids:
        raise unknown("grid", options.grid, grids)
    changes = arg.parse_changes(options.set)
    arms = grids[options.grid] if options.grid else options.arms
    tasks = arg.check_tasks(options.tasks or ["digits"])
    configs = grid(arms, tasks, scale=options.scale, seeds=options.seeds, **changes)
    gc.freeze()  # 50,000 configs are no garbage: going through them again and again took half a second
    try:
        return _sweep(configs, options)
    finally:
        gc.unfreeze()


def _sweep(configs: list[RunConfig], options: argparse.Namespace) -> int:
    if options.dry_run:
        print_dry_run(configs, options)
        return 0
    from mambanorm_study.runs.store import load_runs, tidy

    frame = load_runs(options.runs_dir, configs=configs)
    if len(frame) < len(configs):
        confirm(configs, options)
        from mambanorm_study.runs.sweep import (
            sweep,
        )  # here: where all is stored, nothing waits for torch and Dask

        frame = sweep(
            configs, scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir
        )
    else:
        tidy(options.runs_dir)
    print_arms(frame)
    arms = list(dict.fromkeys(config.arm for config in configs))
    if len(arms) > 1:
        where = f"--scale {configs[0].scale} --tasks {','.join(dict.fromkeys(config.task for config in configs))}"
        print(
            f'Which is better, each at its own rate: mambanorm compare "{arms[1]}" --against "{arms[0]}" {where}'
        )
    return report_failed(frame)


def add_compare(command: Parser) -> None:
    command.add_argument("arm", help='the arm in question, such as "Peak>SSM>GN" (with quotes)')
    command.add_argument(
        "--against",
        default="RMSN>SSM>None",
        metavar="ARM",
        help="other arm (default: RMSN>SSM>None)",
    )
    arg.add_common(command, usual=STUDY_SCALE)
    arg.add_training(command)


@arg.command(
    add_compare,
    '"None>SSM>GN" --tasks curves',
    '"LN>SSM>GN" --against "RMSN>SSM>GN" --tasks curves,glyphs_images --dry-run',
    '"LN>SSM>None" --scale smoke --tasks digits --seeds 6',
)
def compare(options: argparse.Namespace) -> int:
    """Say which of two arms is better, each at its own learning rate, by the rule of the
    verdicts."""
    from mambanorm_study.advice.which_arm import compare as answer_of
    from mambanorm_study.advice.which_arm import duel_runs, duel_seeds
    from mambanorm_study.runs.needed_runs import known_runs
    from mambanorm_study.tables.experiments import RECORDED_TASKS

    scale = options.scale or STUDY_SCALE
    tasks = arg.check_tasks(options.tasks or RECORDED_TASKS[:1])
    known, lacking = known_runs(scale, options.runs_dir), []
    for task in tasks:
        seeds = duel_seeds(options.against, task, scale, options.seeds)
        lacking += duel_runs(options.arm, options.against, task, seeds, scale, known)
    if options.dry_run:
        print_dry_run(lacking, options)
        return 0
    confirm(lacking, options)
    engine = dict(scheduler=options.scheduler, workers=options.workers, runs_dir=options.runs_dir)
    found = answer_of(
        options.arm, options.against, tasks, seeds=options.seeds, scale=scale, **engine
    )
    print("\n".join(f"{row.task}: {row.said}" for row in found.itertuples()))
    return 0


def add_plan(command: Parser) -> None:
    command.add_argument(
        "--task",
        "--tasks",
        dest="tasks",
        type=arg.names,
        metavar="A,B",
        help="tasks (default: digits)",
    )
    arms = "arms, separated by commas (default: the original, RMSN>SSM>None, for images LN>SSM>LN)"
    command.add_argument("--arm", "--arms", dest="arms", type=arg.names, help=arms)
    command.add_argument("--scale", type=check_scale, help=arg.scale_help())
    command.add_argument(
        "--seeds", type=arg.seeds, metavar="N", help="seeds an arm (default: the scale's)"
    )
    command.add_argument(
        "--no-measure", dest="measure", action="store_false", help="count only, time nothing"
    )
    arg.add_set(command)


@arg.command(
    add_plan,
    "--task imdb --scale paper",
    '--task listops,cifar100 --arm "RMSN>SSM>GN" --scale paper --no-measure',
)
def plan(options: argparse.Namespace) -> int:
    """Say what a run costs: parameters, tokens, FLOPs, memory, and hours from a few steps timed
    now."""
    from mambanorm_study.runs.grid import base_config, check_seeds

    changes = arg.parse_changes(options.set)
    scale = arg.chosen_scale(options)
    seeds = len(check_seeds(options.seeds, scale))

    from mambanorm_study.basics.text import digits, plural
    from mambanorm_study.runs.machine import machine
    from mambanorm_study.tables.plan import plan_table, shape_of, table_text

    arms = [{"arm": arm} for arm in options.arms or []] or [{}]  # none asked: the preset's own
    tasks = options.tasks or ["digits"]
    configs = [base_config(task, scale, **arm, **changes) for task in tasks for arm in arms]
    for asked in configs:
        shape_of(asked)  # finds an unknown task before the others take any time
    table = plan_table(configs, measured=options.measure)
    print(table_text(table))
    runs = f"{plural(len(configs) * seeds, 'run')} ({plural(seeds, 'seed')} each) at scale {scale}"
    if not options.measure:
        print(f"{runs}, not timed")
        return 0
    print(
        f"{runs}: {digits(seeds * table['hours'].sum())} hours, one after another, on {machine()}"
    )
    return 0


def add_bench(command: Parser) -> None:
    sections = (
        "only these sections: scan, step, norms, length, state, threads, mamba2, watch, runs; "
    )
    sections += "with --device cuda: correctness, scan, step, runs"
    command.add_argument("--only", type=arg.names, nargs="+", metavar="SECTION", help=sections)
    repeats = "times each case is timed (default: 11)"
    command.add_argument("--repeats", type=arg.whole(1), default=11, metavar="N", help=repeats)
    budget = "seconds another implementation may take; a slower one runs less often or not at all (default: 25)"
    command.add_argument("--budget", type=float, default=25.0, metavar="S", help=budget)
    command.add_argument(
        "--full", action="store_true", help="skip nothing: what is above the budget runs once"
    )
    threads = "threads, at most the cores (default: 2)"
    command.add_argument("--threads", type=arg.whole(1), metavar="N", help=threads)
    command.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: correctness, scan, step and whole runs on a GPU, in about nine minutes (benchmarks/gpu.py)",
    )
    command.add_argument(
        "--out",
        type=arg.folder,
        metavar="DIR",
        help="where the results go (default: benchmarks/results)",
    )


@arg.command(
    add_bench,
    "",
    "--only step,length",
    "--only scan --repeats 5 --out /tmp/bench",
    "--full",
    "--device cuda",
)
def bench(options: argparse.Namespace) -> int:
    """Measure scan, step and norms beside a lower bound and beside other implementations."""
    from mambanorm_study.basics.settings import ROOT

    if not (ROOT / "benchmarks" / "run.py").is_file():
        raise ValueError(
            f"no benchmarks in {ROOT / 'benchmarks'}: bench runs from a checkout of the project"
        )
    if str(ROOT) not in sys.path:  # the benchmarks stand beside the package, not in it
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
