"""What a store of many runs costs: generates one, then times loading it and every command that
looks at all of it.

    python -m benchmarks.store                      50,000 runs, in a temporary folder that is
    deleted at the end python -m benchmarks.store --runs 20000

The runs are generated: one real run of scale smoke, copied file by file, each copy with another
config, its own run_id and the checksums of its files. They are those of `mambanorm study`, of
`mambanorm verdicts` and, for the rest, of the grid of 36 arms on two tasks, at scale quick. So
every command finds all that it asks for, and trains nothing, and fewer runs than the study and the
verdicts ask for cannot be had. Their files are as small as a smoke run's, which makes no difference
here: only their sizes are looked at.

They are no results, though they look like some: their back end is "generated".

Times are those of a clock, and of all processors together (`cpu`): on a machine that others use
too, compare the second. What was read a moment ago is in the machine's memory; the first look after
its start waits for the disk.

Written into the folder of results: `store.json` (head, one row a measurement) and `store.md`, the
same as a table; of another number of runs than 50,000 as `store-<number>`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.claims import verdict_runs
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import machine
from mambanorm_study.runs.grid import base_config, grid, unique
from mambanorm_study.runs.result import MANIFEST
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import load_runs, save_run
from mambanorm_study.tables.experiments import GRID_ARMS
from mambanorm_study.tables.notebook_runs import notebook_runs

RESULTS = ROOT / "benchmarks" / "results"
SCALE, TASKS = "quick", ("digits", "listops")
RUNS, REPEATS = 50_000, 3


def configs_for(n: int) -> tuple[list[RunConfig], int]:
    """n configs: those of the study and of the verdicts, filled up from the grid; and its number of
    seeds."""
    asked = [config for configs in notebook_runs(SCALE).values() for config in configs]
    asked += verdict_runs(
        scale=SCALE, runs_dir="nowhere"
    )  # whatever is stored here: no run asks for further rates
    seeds = max(1, (n - len(unique(asked))) // (len(GRID_ARMS) * len(TASKS)))
    return unique([*asked, *grid(GRID_ARMS, TASKS, scale=SCALE, seeds=range(seeds))]), seeds


def generate(configs: list[RunConfig], store: Path) -> None:
    """A stored run for each config: copies of the files of one smoke run; config, result and
    manifest its own. The manifest is written last: a run that has none was not finished."""
    with tempfile.TemporaryDirectory() as folder:
        template = save_run(train(base_config("digits", "smoke")), folder)
        content = {path.name: path.read_bytes() for path in template.iterdir()}
    facts = json.loads(content["result.json"])
    files = json.loads(content.pop(MANIFEST))["files"]
    for config in configs:
        own = facts | {"steps": config.steps, "threads": config.threads, "backend": "generated"}
        content["config.json"] = config.to_json().encode()
        content["result.json"] = json.dumps(own, indent=2).encode()
        sums = {
            name: {"sha256": hashlib.sha256(content[name]).hexdigest(), "bytes": len(content[name])}
            for name in ("config.json", "result.json")
        }
        folder = store / config.run_id
        folder.mkdir(exist_ok=True)
        for name, one in content.items():
            (folder / name).write_bytes(one)
        (folder / MANIFEST).write_text(json.dumps({"files": files | sums}, indent=2))


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of all processors for this process and those that it started and
    waited for."""
    start, before = time.perf_counter(), os.times()
    work()
    return time.perf_counter() - start, sum(os.times()[:4]) - sum(before[:4])


def command(store: Path, *arguments: str) -> Callable[[], object]:
    """A command of the shell, in a process of its own; RuntimeError if it fails."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MAMBANORM_SCALE": SCALE,
        "MAMBANORM_RUNS_DIR": str(store),
    }
    environment |= {"MAMBANORM_FRESH": "0"}  # else the study asks for a seed that nobody has

    def call() -> None:
        done = subprocess.run(
            [sys.executable, "-m", "mambanorm_study", *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode or "Training takes" in done.stdout:
            raise RuntimeError(
                f"mambanorm {' '.join(arguments)}: {done.stdout[-500:]}{done.stderr[-500:]}"
            )

    return call


def measure(store: Path, seeds: int, repeats: int) -> list[dict]:
    """One row a measurement: what, and the time of every repeat."""
    rows = []

    def add(what: str, work: Callable[[], object], repeats: int = repeats) -> None:
        times, cpu = zip(*(seconds_of(work) for _ in range(repeats)), strict=True)
        medians = {"median_s": statistics.median(times), "cpu_s": statistics.median(cpu)}
        rows.append({"what": what, **medians, "times_s": times})
        print("{:<46} {median_s:7.2f} s, cpu {cpu_s:.2f} s".format(what, **medians), flush=True)

    def load(**where: object) -> Callable[[], object]:
        return lambda: load_runs(store, **where)

    some_run = next(store.glob("[!.]*")) / "result.json"

    def one_more() -> None:
        """A run that has been written anew since the last look: other times of its files, the same
        content."""
        some_run.write_bytes(some_run.read_bytes())
        load_runs(store)

    add("load_runs()", load())
    add(f"load_runs(task={TASKS[0]!r})", load(task=TASKS[0]))
    add("load_runs(), one run changed", one_more)
    sweep = ("sweep", "--grid", "grid", "--tasks", ",".join(TASKS), "--seeds", f"0-{seeds - 1}")
    for words in (("runs",), ("study", "--dry-run"), ("verdicts", "--dry-run"), sweep):
        add(f"mambanorm {' '.join(words)}", command(store, *words))
    with tempfile.TemporaryDirectory() as empty:
        add("mambanorm runs, of an empty store", command(Path(empty), "runs"))
    return rows


def load() -> str:
    """How busy the machine is with this and with other work."""
    running = f"{os.getloadavg()[1]:.1f}" if hasattr(os, "getloadavg") else "unknown how many"
    return f"{running} processes at a time on {machine.cores()} cores"


def report(head: dict, rows: list[dict]) -> str:
    """The rows as a Markdown table, under what they depend on."""
    lines = [f"# A store of {head['runs']:,} runs", ""]
    lines += [f"- {name}: {value}" for name, value in head.items() if name != "runs"]
    lines += ["", "| what | median | fastest | cpu |", "|---|---:|---:|---:|"]
    for row in rows:
        seconds = row["median_s"], min(row["times_s"]), row["cpu_s"]
        lines.append(f"| `{row['what']}` | {' | '.join(f'{value:.2f} s' for value in seconds)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store", description=__doc__.split("\n")[0]
    )
    parser.add_argument(
        "--runs",
        type=int,
        default=RUNS,
        help=f"about how many runs to generate (default: {RUNS:,})",
    )
    parser.add_argument(
        "--repeats", type=int, default=REPEATS, help=f"times each is timed (default: {REPEATS})"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the results go")
    options = parser.parse_args()
    out = writable_folder(options.out, "the results")
    configs, seeds = configs_for(options.runs)
    with tempfile.TemporaryDirectory(prefix="mambanorm-store-") as folder:
        print(f"generating {len(configs):,} runs in {folder}", flush=True)
        generate(configs, Path(folder))
        rows = measure(Path(folder), seeds, options.repeats)
    head = {
        "runs": len(configs),
        "command": f"python -m benchmarks.store --runs {options.runs} --repeats {options.repeats}",
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "machine": machine.machine(),
        "load": load(),
        "commit": machine.git_commit() or "unknown",
        "versions": machine.versions(),
    }
    stem = "store" if options.runs == RUNS else f"store-{len(configs)}"
    write_text(out / f"{stem}.json", json.dumps({"head": head, "rows": rows}, indent=1) + "\n")
    write_text(out / f"{stem}.md", report(head, rows))
    print(f"{out / stem}.md and .json written")


if __name__ == "__main__":
    main()
