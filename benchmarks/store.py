"""Time a store of many runs: generate one, then load it and run every command that reads all of it.

    python -m benchmarks.store                 # 50,000 runs in a temporary folder
    python -m benchmarks.store --runs 20000

The runs are copies of one real run of scale smoke, each with another config, its run_id and the
checksums of its files. Their configs are those of `mambanorm study`, of `mambanorm verdicts` and,
to fill up, of the grid of 36 arms on two tasks, at scale quick. So every command finds all runs
that it needs and trains nothing; a store cannot be smaller than study and verdicts. The files are
as small as a smoke run's, which makes no difference, because these commands read their sizes only.
The copies are no results: their back end is "generated".

Times are wall time, and processor time of all processes (`cpu`): on a busy machine compare the
second. The files are in the machine's cache; the first load after a start waits for the disk.

The results are `store.json` (head, one row a measurement) and `store.md`, or `store-<number>` for
another number of runs than 50,000.
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
from pathlib import Path

from benchmarks.provenance import RESULTS, provenance
from benchmarks.table import as_markdown
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.claims import CLAIMS, verdict_runs
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import machine
from mambanorm_study.runs.grid import base_config, grid, unique
from mambanorm_study.runs.result import MANIFEST
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import load_runs, save_run
from mambanorm_study.tables.experiments import GRID_ARMS
from mambanorm_study.tables.notebook_runs import notebook_runs

SCALE, TASKS = "quick", ("digits", "listops")
RUNS, REPEATS = 50_000, 3


def configs_for(n: int) -> tuple[list[RunConfig], int]:
    """Return about n configs, those of the study and of the verdicts first, and the number of seeds
    of the grid that fills up.
    """
    configs = [config for configs in notebook_runs(SCALE).values() for config in configs]
    configs += verdict_runs(CLAIMS, load_runs("nowhere"), scale=SCALE)  # as if no run were stored
    seeds = max(1, (n - len(unique(configs))) // (len(GRID_ARMS) * len(TASKS)))
    return unique([*configs, *grid(GRID_ARMS, TASKS, scale=SCALE, seeds=range(seeds))]), seeds


def generate(configs: list[RunConfig], store: Path) -> None:
    """Write a run for each config: the files of one smoke run with another config, result and
    manifest. The manifest is written last: a run without one is unfinished.
    """
    with tempfile.TemporaryDirectory() as folder:
        template = save_run(train(base_config("digits", "smoke")), folder)
        content = {path.name: path.read_bytes() for path in template.iterdir()}
    facts = json.loads(content["result.json"])
    files = json.loads(content.pop(MANIFEST))["files"]
    for config in configs:
        result = {**facts, "steps": config.steps, "threads": config.threads, "backend": "generated"}
        content["config.json"] = config.to_json().encode()
        content["result.json"] = json.dumps(result, indent=2).encode()
        for name in ("config.json", "result.json"):
            checksum = hashlib.sha256(content[name]).hexdigest()
            files[name] = {"sha256": checksum, "bytes": len(content[name])}
        folder = store / config.run_id
        folder.mkdir(exist_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
        (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=2))


def seconds_of(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall time and processor time in seconds, of this process and its finished children."""
    start, before = time.perf_counter(), os.times()
    work()
    return time.perf_counter() - start, sum(os.times()[:4]) - sum(before[:4])


def command(store: Path, *arguments: str) -> Callable[[], None]:
    """Return a function that runs a mambanorm command in a new process. It raises RuntimeError if
    the command fails or trains.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MAMBANORM_SCALE": SCALE,
        "MAMBANORM_RUNS_DIR": str(store),
        "MAMBANORM_FRESH": "0",  # else the study trains a fresh seed
    }

    def call() -> None:
        words = [sys.executable, "-m", "mambanorm_study", *arguments]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode or "Training takes" in done.stdout:
            output = f"{done.stdout[-500:]}{done.stderr[-500:]}"
            raise RuntimeError(f"mambanorm {' '.join(arguments)}: {output}")

    return call


def measure(store: Path, seeds: int) -> list[dict]:
    """Return one row a measurement: what was timed, and the times of every repeat."""
    rows = []

    def add(what: str, call: Callable[[], object], repeats: int = REPEATS) -> None:
        wall, cpu = zip(*(seconds_of(call) for _ in range(repeats)), strict=True)
        medians = {"median_s": statistics.median(wall), "cpu_s": statistics.median(cpu)}
        rows.append({"what": what, **medians, "times_s": wall})
        print(f"{what:<46} {medians['median_s']:7.2f} s, cpu {medians['cpu_s']:.2f} s", flush=True)

    some_result = next(store.glob("[!.]*")) / "result.json"

    def load_after_a_change() -> None:
        some_result.write_bytes(some_result.read_bytes())  # same content, new modification time
        load_runs(store)

    add("load_runs()", lambda: load_runs(store))
    add("load_runs(), one run changed", load_after_a_change)
    sweep = ("sweep", "--grid", "grid", "--tasks", ",".join(TASKS), "--seeds", f"0-{seeds - 1}")
    for words in (("runs",), ("study", "--dry-run"), ("verdicts", "--dry-run"), sweep):
        add(f"mambanorm {' '.join(words)}", command(store, *words))
    with tempfile.TemporaryDirectory() as empty:
        add("mambanorm runs, of an empty store", command(Path(empty), "runs"))
    return rows


def report(head: dict, rows: list[dict]) -> str:
    """Return a page with the head and the rows as a table."""
    facts = "\n".join(f"- {name}: {value}" for name, value in head.items() if name != "runs")
    lines = [["what", "median", "fastest", "cpu"]]
    for row in rows:
        seconds = row["median_s"], min(row["times_s"]), row["cpu_s"]
        lines.append([f"`{row['what']}`", *(f"{value:.2f} s" for value in seconds)])
    return f"# A store of {head['runs']:,} runs\n\n{facts}\n\n{as_markdown(lines)}\n"


def main() -> None:
    """Generate the store, measure it and write the results."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.store", description=__doc__.splitlines()[0]
    )
    runs_help = "about how many runs to generate (default: %(default)s)"
    parser.add_argument("--runs", type=int, default=RUNS, help=runs_help)
    options = parser.parse_args()
    out = writable_folder(RESULTS, "the results")
    configs, seeds = configs_for(options.runs)
    with tempfile.TemporaryDirectory(prefix="mambanorm-store-") as folder:
        print(f"generating {len(configs):,} runs in {folder}", flush=True)
        generate(configs, Path(folder))
        rows = measure(Path(folder), seeds)
    head = {"runs": len(configs), **provenance(f"python -m benchmarks.store --runs {options.runs}")}
    if hasattr(os, "getloadavg"):
        head["load"] = f"{os.getloadavg()[1]:.1f} processes at a time on {machine.cores()} cores"
    stem = "store" if options.runs == RUNS else f"store-{len(configs)}"
    write_text(out / f"{stem}.json", json.dumps({"head": head, "rows": rows}, indent=1) + "\n")
    write_text(out / f"{stem}.md", report(head, rows))
    print(f"{out / stem}.md and .json written")


if __name__ == "__main__":
    main()
