"""`mambanorm bench`: scan, step and norms beside a floor and beside their peers."""

from __future__ import annotations

import argparse
import sys

from mambanorm.cli import arguments as arg
from mambanorm.cli.arguments import Command, Parser
from mambanorm.cli.printing import say


def add_bench(command: Parser) -> None:
    sections = (
        "only these sections: scan, step, norms, length, state, threads, mamba2, watch, runs; "
        "with --device cuda: correctness, scan, step, runs"
    )
    command.add_argument("--only", type=arg.names, nargs="+", metavar="SECTION", help=sections)
    repeats = "times each case is timed (default: 11)"
    command.add_argument("--repeats", type=arg.positive, default=11, metavar="N", help=repeats)
    budget = "seconds a peer may take in one size; else it runs less often, or is skipped (default: 25)"
    command.add_argument("--budget", type=arg.seconds, default=25.0, metavar="S", help=budget)
    command.add_argument("--full", action="store_true", help="skip nothing: what is above the budget runs once")
    threads = "threads, at most the cores (default: 2)"
    command.add_argument("--threads", type=arg.positive, metavar="N", help=threads)
    command.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: correctness, scan, step and whole runs on a GPU, within nine minutes (benchmarks/gpu.py)",
    )
    command.add_argument(
        "--out", type=arg.folder, metavar="DIR", help="where the results go (default: benchmarks/results)"
    )


def bench(options: argparse.Namespace) -> int:
    from mambanorm.basics.settings import ROOT

    if not (ROOT / "benchmarks" / "run.py").is_file():
        raise ValueError(f"no benchmarks in {ROOT / 'benchmarks'}: bench runs from a checkout of the project")
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


COMMANDS = {
    "bench": Command(
        "measure scan, step and norms beside a floor and beside their peers",
        ["", "--only step,length", "--only scan --repeats 5 --out /tmp/bench", "--full", "--device cuda"],
        add_bench,
        bench,
    )
}
