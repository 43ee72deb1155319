"""Run a command of mambanorm on SLURM; docs/clusters.md says how to use this script.

This process is Dask's scheduler. The workers run in SLURM's jobs.
"""

import argparse
import sys

import dask
from dask.distributed import Security
from dask.utils import parse_bytes
from dask_jobqueue import SLURMCluster

from mambanorm_study.cli.main import main as mambanorm
from mambanorm_study.runs.cluster import worker_environment

LEAVE_MINUTES = 5  # workers leave so long before the time limit, so that no run counts as lost


def read_options(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed and checked options; `job_memory` is the memory of a job in bytes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--jobs", type=int, default=4, help="most jobs at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes",
        type=int,
        default=240,
        help="time limit of a job, above 5 (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="runs that train at the same time in a job (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="cores of a run, as in --set threads=4 (default: %(default)s)",
    )
    parser.add_argument(
        "--memory",
        help="of one run; a job asks for --workers times as much (default: 4GB, 8GB with --gpu)",
    )
    parser.add_argument(
        "--gpu", action="store_true", help="ask for one GPU a job; several --workers share it"
    )
    parser.add_argument(
        "--interface", help="network that all nodes share, as `ip address` names it: ib0"
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        default=[],
        help="option for sbatch, as in --sbatch=--account=me; may be repeated",
    )
    parser.add_argument(
        "command", nargs="+", help="after --, the command: sweep, study, record, verdicts or train"
    )
    options = parser.parse_args(argv)
    lowest = {"jobs": 1, "minutes": LEAVE_MINUTES + 1, "workers": 1, "threads": 1}
    for name, least in lowest.items():
        value = getattr(options, name)
        if value < least:
            parser.error(f"--{name} {value}: at least {least}")
    options.memory = options.memory or ("8GB" if options.gpu else "4GB")
    try:
        options.job_memory = options.workers * parse_bytes(options.memory)
    except ValueError:
        options.job_memory = 0
    if options.job_memory <= 0:
        parser.error(f"--memory {options.memory}: a size such as 4GB or 500MB")
    return options


def start(options: argparse.Namespace) -> SLURMCluster:
    """Start the scheduler in this process. It asks SLURM for jobs while runs wait, and ends jobs
    that have none.
    """
    # Dask does not know how long a run takes: with a long estimate it asks for all jobs at once.
    dask.config.set({"distributed.scheduler.unknown-task-duration": "1h"})
    environment = worker_environment(options.threads)
    lifetime = f"{options.minutes - LEAVE_MINUTES}m"
    encrypted = dask.config.get("distributed.comm.require-encryption")
    cluster = SLURMCluster(
        job_name="mambanorm",
        cores=options.workers,  # Dask's threads: each worker gets one run at a time
        processes=options.workers,
        job_cpu=options.workers * options.threads,
        memory=f"{options.job_memory}B",
        walltime=str(options.minutes),
        interface=options.interface,
        # no limit by Dask, because SLURM limits the memory
        worker_extra_args=["--memory-limit", "0", "--no-dashboard", "--lifetime", lifetime],
        job_script_prologue=[f"export {name}={value}" for name, value in environment.items()],
        job_extra_directives=[*(["--gres=gpu:1"] if options.gpu else []), *options.sbatch],
        scheduler_options={"dashboard_address": "127.0.0.1:0"},
        security=Security() if encrypted else None,
    )
    cluster.adapt(minimum_jobs=0, maximum_jobs=options.jobs)
    return cluster


if __name__ == "__main__":
    options = read_options()
    with start(options) as cluster:
        sys.exit(mambanorm([*options.command, "--scheduler", cluster.scheduler_address]))
