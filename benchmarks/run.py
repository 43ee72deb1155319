"""`mambanorm bench`: measures section by section, prints each table when it is finished, and writes
all of them at the end.

The results are `cpu.json` (head, targets, one row a case), `cpu.md` (the same as tables) and two
pictures. The results of some sections only are named after them (`cpu-step.json`), so they never
overwrite those of a whole measurement.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pandas as pd
import torch

from benchmarks.cases import SECTIONS, Sizes, groups
from benchmarks.pictures import fig_scaling, fig_speed
from benchmarks.provenance import RESULTS, provenance
from benchmarks.table import as_text, check_targets, heading, report, table, target_table
from benchmarks.timing import Limits, Row, measure
from mambanorm.errors import shown
from mambanorm.kernels.threads import set_threads
from mambanorm_study.basics.atomic import writable_folder, write_bytes, write_text
from mambanorm_study.basics.text import plural, spell
from mambanorm_study.runs import machine
from mambanorm_study.runs.cluster import warm_up

PEER_PACKAGES = ("mambapy", "transformers")
THREADS = 2  # the targets hold for two threads


def bench(
    only: Iterable[str] | None = None,
    limits: Limits | None = None,
    *,
    threads: int | None = None,
    out_dir: str | Path | None = None,
    sizes: Sizes | None = None,
) -> int:
    """Measure the sections (None = all) and write the results. Return 0, or 1 if a peer failed.

    A peer that is missing or skipped is no failure. `threads=None` means two, or one on a machine
    with one core. Raises ValueError for an unknown section, and for more threads than cores.
    """
    limits, start, cores = limits or Limits(), time.monotonic(), machine.cores()
    if threads is not None and threads > cores:
        have = f"this machine has {plural(cores, 'core')}"
        raise ValueError(f"--threads {shown(threads)}: {have}, give at most as many")
    threads, threads_before = threads or min(THREADS, cores), torch.get_num_threads()
    wanted = groups(only, sizes or Sizes(), threads)
    folder, measured = writable_folder(out_dir or RESULTS, "the results"), []
    try:
        warm_up()
        for group in wanted:
            rows = measure(group, limits)
            measured.append(rows)
            print(f"\n{heading(rows)}\n{as_text(table(rows))}", flush=True)
    finally:
        set_threads(threads_before)
    sections = list(dict.fromkeys(group.section for group in wanted))
    stem = "cpu" if sections == list(SECTIONS) else "-".join(["cpu", *sections])
    head = head_of(sections, limits, threads)
    head["took"] = spell(time.monotonic() - start)
    write(folder / stem, head, measured)
    return int(any(row.status == "failed" for rows in measured for row in rows))


def head_of(sections: list[str], limits: Limits, threads: int) -> dict:
    """Return the facts that the numbers depend on."""
    command = "mambanorm bench"
    if sections != list(SECTIONS):
        command += f" --only {','.join(sections)}"
    command += f" --repeats {limits.repeats} --budget {limits.budget:g} --threads {threads}"
    if limits.full:
        command += " --full"
    head = {**provenance(command), "threads": threads}
    head["versions"] = ", ".join([head["versions"], *map(peer_version, PEER_PACKAGES)])
    return head


def peer_version(package: str) -> str:
    """Return a package with its version, or with "missing"."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} missing"


def write(path: Path, head: dict, measured: list[list[Row]]) -> None:
    """Write the results as `path`.json, .md and pictures, and print where they are."""
    rows = [row for group_rows in measured for row in group_rows]
    results = check_targets(rows)
    if results:
        print(f"\n{as_text(target_table(results))}")
    caption = f"{head['machine']} · {head['threads']} threads · {head['date']}"
    frame = pd.DataFrame(map(asdict, rows))
    timed, pictures = set(frame.section[frame.median_ms.notna()]), {}
    if "step" in timed:
        pictures["speed"] = fig_speed(frame, caption)
    if "length" in timed:
        pictures["scaling"] = fig_scaling(frame, caption)
    for name, fig in pictures.items():
        write_bytes(path.with_name(f"{path.name}-{name}.png"), fig._repr_png_())
    content = {"head": head, "targets": list(map(asdict, results)), "rows": list(map(asdict, rows))}
    write_text(path.with_suffix(".json"), json.dumps(content, indent=1) + "\n")
    names = [f"{path.name}-{name}.png" for name in pictures]
    write_text(path.with_suffix(".md"), report(head, measured, names))
    print(f"\n{path}.json, .md{', .png' if pictures else ''} written, after {head['took']}")
