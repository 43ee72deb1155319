"""`mambanorm bench`: measures section by section, prints each table as it is finished, writes them
all at the end.

Written into the folder of results, whole or not at all: `cpu.json` (head, verdicts on the targets,
one row a case), `cpu.md` (the same as tables) and two pictures. A run of some sections only is
named after them (`cpu-step.json`), so that it never takes the place of a whole one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch

from benchmarks.cases import SECTIONS, Sizes, groups
from benchmarks.pictures import fig_scaling, fig_speed
from benchmarks.table import as_text, groups_of, report, table, target_table, verdicts
from benchmarks.timing import Limits, measure
from mambanorm.errors import shown
from mambanorm.kernels.threads import set_threads
from mambanorm_study.basics.atomic import writable_folder, write_bytes, write_text
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.runs import machine
from mambanorm_study.runs.cluster import warm_up

RESULTS = ROOT / "benchmarks" / "results"
PEER_PACKAGES = ("mambapy", "transformers")
THREADS = 2  # what the targets are about


def bench(
    only: Iterable[str] | None = None,
    limits: Limits | None = None,
    *,
    threads: int | None = None,
    out_dir: str | Path | None = None,
    sizes: Sizes | None = None,
) -> int:
    """Measures the sections (None = all) and writes the results; 0, or 1 if a peer failed.

    A peer that is missing or skipped is shown as that and is no failure. `threads`: None = THREADS,
    or one core. Raises ValueError for an unknown section, and for more threads than there are
    cores.
    """
    limits, start, cores = limits or Limits(), time.monotonic(), machine.cores()
    if threads is not None and threads > cores:
        raise ValueError(
            f"--threads {shown(threads)}: this machine has {plural(cores, 'core')}, give at most as many"
        )
    threads, before = threads or min(THREADS, cores), torch.get_num_threads()
    asked = groups(only, sizes or Sizes(), threads)
    sections = list(dict.fromkeys(group.section for group in asked))
    rows, out_dir = [], writable_folder(out_dir or RESULTS, "the results")
    try:
        warm_up()
        for group in asked:
            measured = measure(group, limits)
            rows += measured
            for heading, some in groups_of(measured):
                print(f"\n{heading}\n{as_text(table(some))}", flush=True)
    finally:
        set_threads(before)
    facts = head(sections, limits, threads, time.monotonic() - start)
    stem = "cpu" if sections == list(SECTIONS) else "-".join(["cpu", *sections])
    write(out_dir, stem, facts, rows)
    return int(any(row["status"] == "failed" for row in rows))


def head(sections: list[str], limits: Limits, threads: int, wall_s: float) -> dict:
    """What the numbers depend on: how they were made, when, on what, of which code."""
    command = [
        "mambanorm bench",
        *(["--only", ",".join(sections)] if sections != list(SECTIONS) else []),
    ]
    command += ["--repeats", limits.repeats, "--budget", f"{limits.budget:g}", "--threads", threads]
    command += ["--full"] * limits.full
    facts = made(" ".join(map(str, command)))
    facts["versions"] = ", ".join([facts["versions"], *map(peer_version, PEER_PACKAGES)])
    return facts | {"threads": threads, "took": spell(wall_s)}


def made(command: str) -> dict:
    """By which command, when, on what machine, of which code numbers were made."""
    return {
        "command": command,
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "machine": machine.machine(),
        "commit": machine.git_commit() or "unknown",
        "versions": machine.versions(),
    }


def peer_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} missing"


def write(folder: Path, stem: str, facts: dict, rows: list[dict]) -> None:
    """The results as JSON, Markdown and pictures; tells where they are."""
    found = verdicts(rows)
    if found:
        print(f"\n{as_text(target_table(found))}")
    pictures = draw(
        rows, caption=f"{facts['machine']} · {facts['threads']} threads · {facts['date']}"
    )
    for name, fig in pictures.items():
        write_bytes(folder / f"{stem}-{name}.png", fig._repr_png_())
    write_text(
        folder / f"{stem}.json",
        json.dumps({"head": facts, "targets": found, "rows": rows}, indent=1) + "\n",
    )
    write_text(
        folder / f"{stem}.md", report(facts, rows, [f"{stem}-{name}.png" for name in pictures])
    )
    print(
        f"\n{folder / stem}.json, .md{', .png' if pictures else ''} written, after {facts['took']}"
    )


def draw(rows: list[dict], caption: str) -> dict:
    """The pictures that these rows give: name → figure."""
    frame = pd.DataFrame(rows)
    timed = set(frame.section[frame.median_ms.notna()])
    makers = {"speed": ("step", fig_speed), "scaling": ("length", fig_scaling)}
    return {
        name: make(frame, caption) for name, (section, make) in makers.items() if section in timed
    }
