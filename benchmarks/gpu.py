"""Check the Triton kernels on this GPU and time them: `python -m benchmarks.gpu`.

The command needs no network and no installation: a checkout, and a Python with torch, triton,
numpy, pandas, numba, scikit-learn, safetensors and tqdm. mamba-ssm and causal-conv1d are timed if
they can be imported.

Six parts, one row a case:

    correctness   scan, convolution and blocks against float64 on the CPU: results and gradients
    scan          scan and convolution alone, beside mamba-ssm, causal-conv1d and torch
    block         training steps of four blocks beside mamba-ssm's block
    graph         training steps of small models with and without CUDA graphs
    step          a training step at the paper's settings; hours of a paper run
    runs          whole runs of digits and mnist1d at scale evening

First, processes beside each other run every case once, which compiles the kernels. The rows of the
part `correctness` come from them. Then the cases of the other parts are timed one after the other,
alone on the GPU.

`gpu.json` and `gpu.md` are written anew after each row, so a machine that is taken away loses only
the case under way.

gpu_errors.py holds the first part, gpu_blocks.py the part `block`, gpu_graph.py the part `graph`,
gpu_times.py the others; gpu_workers.py starts the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_blocks import block_times
from benchmarks.gpu_errors import correctness
from benchmarks.gpu_graph import graph_times
from benchmarks.gpu_times import kernel_times, run_times, step_times
from benchmarks.gpu_workers import NO_TIME, Cases, Setting, attempt, run_in_parallel
from benchmarks.provenance import RESULTS, provenance
from benchmarks.table import as_markdown
from mambanorm.errors import unknown
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.text import plural
from mambanorm_study.runs.machine import pick_device

SECONDS = 170  # of three minutes
COMPILE_SHARE = 0.6  # of the time; so much is left for the timed parts


@dataclass(frozen=True)
class Part:
    """One part of the measurement: its cases, what its numbers mean, and whether they are times."""

    cases: Callable[[Setting], Cases]
    meaning: str
    is_timed: bool = True


PARTS = {
    "correctness": Part(
        correctness,
        "`error` is ‖ours − float64‖ / ‖float64‖, where float64 is plain torch on the CPU: in "
        "float32 the largest error of the output and all gradients, in bfloat16 their root mean "
        "square. `twin_error` is the root mean square of plain torch in bfloat16.",
        is_timed=False,
    ),
    "scan": Part(
        kernel_times,
        "`ms` is the GPU's time for one forward and backward pass, with an empty cache. "
        "`of_mamba_ssm` and `of_causal_conv1d` are this time divided by that package's (below 1 is "
        "faster), `memory_mb` is the peak beyond the inputs, and `share_of_copy` is the time of a "
        "copy of the fewest bytes that must move (`mb_moved`), divided by `ms`.",
    ),
    "block": Part(
        block_times,
        "A training step of four blocks (B, L, d_model, N) with AdamW. `ms` is the GPU's time, "
        "`of_mamba_ssm` is `ms` divided by that of mamba-ssm's block (below 1 is faster), "
        "`wall_ms` is the time on the clock, Python included, and `memory_mb` is the peak beyond "
        "the weights. The first row gives the relative difference between our block and "
        "mamba-ssm's with the same weights.",
    ),
    "graph": Part(
        graph_times,
        "A training step of a small model on the clock: `ms` without and `graph_ms` with CUDA "
        "graphs. `graph_of_ordinary` is the second divided by the first: below 1 is faster. The "
        "batches are random.",
    ),
    "step": Part(
        step_times,
        "A training step at the paper's settings with the scan that `auto` takes, as "
        "`mambanorm plan` measures it: `ms` is the time on the clock, Python included. "
        "`hours_of_a_run` counts all steps and evaluations, without reading the data.",
    ),
    "runs": Part(
        run_times,
        "Whole runs: `seconds` counts training and evaluations.",
    ),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help=f"only these parts: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="start no case after so many seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS,
        help="folder of gpu.json and gpu.md (default: benchmarks/results)",
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda (default), or cpu for Triton's interpreter"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="use tiny sizes, to try the command itself"
    )
    options = parser.parse_args(argv)
    try:
        return bench_gpu(
            options.only,
            seconds=options.seconds,
            out_dir=options.out,
            device=options.device,
            tiny=options.tiny,
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def bench_gpu(
    only: list[str] | None = None,
    *,
    seconds: float = SECONDS,
    out_dir: str | Path | None = None,
    device: str = "cuda",
    tiny: bool = False,
) -> int:
    """Measure the parts (None = all) and write the results after each row. Return 0, or 1 if a
    case failed.

    Raises ValueError for an unknown part and for a device that the machine does not have.
    """
    start = time.monotonic()
    for name in only or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a peer may look for kernels to download
    names = [name for name in PARTS if only is None or name in only]
    torch_device = pick_device(device)
    words = ["gpu" if torch_device.type == "cuda" else "interpreter", *(names if only else [])]
    stem = "-".join([*words, "tiny"] if tiny else words)
    path, rows = writable_folder(out_dir or RESULTS, "the results") / stem, []
    setting = Setting(torch_device, tiny=True, seconds=0) if tiny else Setting(torch_device)
    for row in measure(names, setting, start, seconds):
        rows.append(row)
        print("  ".join(map(cell, row.values())), flush=True)
        write_results(path, rows, "no: cut off, or still under way")
    skipped = sum(row["status"] == "skipped" for row in rows)
    complete = f"no: {plural(skipped, 'case')} left out for lack of time" if skipped else "yes"
    write_results(path, rows, complete)
    print(f"\n{path}.json and .md written after {time.monotonic() - start:.0f} s")
    return int(any(row["status"] == "failed" for row in rows))


def measure(names: list[str], setting: Setting, start: float, seconds: float) -> Iterator[dict]:
    """Yield the rows of the parts, first those that are not timed.

    A timed case that crashed while kernels were compiled is not tried again, because it would end
    this process, too.
    """
    cases = {(name, case): work for name in names for case, work in PARTS[name].cases(setting)}
    done = set()
    in_workers = {  # in the interpreter there is nothing to compile
        name for name in names if setting.device.type == "cuda" or not PARTS[name].is_timed
    }
    tasks = {key: (PARTS[key[0]].cases, key[1]) for key in cases if key[0] in in_workers}
    for key, outcome in run_in_parallel(tasks, setting, start + COMPILE_SHARE * seconds):
        if outcome.is_fatal or not PARTS[key[0]].is_timed:
            done.add(key)
            yield row_of(key, outcome.columns)
    print(f"compiled after {time.monotonic() - start:.0f} s", flush=True)
    for key, work in cases.items():
        if key not in done:
            is_late = time.monotonic() - start > seconds
            yield row_of(key, NO_TIME if is_late else attempt(work))


def row_of(key: tuple[str, str], columns: dict) -> dict:
    """Return the row of a case; `key` is its part and its name."""
    part, case = key
    return {"part": part, "case": case, **columns}


def write_results(path: Path, rows: list[dict], complete: str) -> None:
    """Write head and rows as `path`.json and `path`.md."""
    head = {"complete": complete, **provenance("python -m benchmarks.gpu")}
    for name in ("triton", "mamba_ssm", "causal_conv1d"):
        head["versions"] += f", {name} {installed_version(name)}"
    write_text(path.with_suffix(".json"), json.dumps({"head": head, "rows": rows}, indent=1))
    write_text(path.with_suffix(".md"), markdown(head, rows))


def installed_version(name: str) -> str:
    """Return the version of an imported package, or "missing"."""
    return getattr(sys.modules.get(name), "__version__", "missing")


def markdown(head: dict, rows: list[dict]) -> str:
    """Return a page with the head and one table a part, in the order of PARTS."""
    sections = ["# A GPU, measured"]
    sections.append("\n".join(f"- **{name}**: {value}" for name, value in head.items()))
    for name, part in PARTS.items():
        part_rows = [row for row in rows if row["part"] == name]
        if part_rows:
            failed = sum(row["status"] == "failed" for row in part_rows)
            counts = f"{plural(len(part_rows), 'case')}, {failed} failed."
            sections += [f"## {name}", f"{part.meaning} {counts}", table(part_rows)]
    return "\n\n".join(sections) + "\n"


def table(rows: list[dict]) -> str:
    """Return the rows of a part as a Markdown table without empty columns; `note` and `took_s` are
    the last columns.
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in ("note", "took_s"))
    columns = [
        name
        for name in [*names, "took_s", "note"]
        if name != "part" and any(row.get(name, "") != "" for row in rows)
    ]
    return as_markdown([columns, *([cell(row.get(name, "")) for name in columns] for row in rows)])


def cell(value: object) -> str:
    """Return a value as it stands in a table: floats with four digits, text without `|`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
