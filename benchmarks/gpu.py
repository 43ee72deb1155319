"""Check the Triton kernels on this GPU and time them: `python -m benchmarks.gpu`.

The command needs no network and no installation: a checkout, and a Python with torch, triton,
numpy, pandas, numba, scikit-learn, safetensors and tqdm.

Four parts, one row a case:

    correctness   scan, convolution and blocks against float64 on the CPU: results and gradients
    scan          scan and convolution alone, beside the bytes they must move and beside mamba-ssm
    step          a training step at the paper's settings; hours of a paper run
    runs          whole runs of digits and mnist1d at scale evening

`gpu.json` and `gpu.md` are written anew after each row, so a machine that is taken away loses only
the case under way.

gpu_errors.py holds the first part, gpu_times.py the others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.gpu_errors import Cases, ErrorTooLarge, correctness
from benchmarks.gpu_times import kernel_times, run_times, step_times
from benchmarks.provenance import RESULTS, provenance
from benchmarks.table import as_markdown
from mambanorm.errors import unknown
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.text import plural
from mambanorm_study.runs.machine import pick_device

SECONDS = 530  # of nine minutes


@dataclass(frozen=True)
class Part:
    """One part of the measurement: its cases, and what its numbers mean."""

    cases: Callable[[torch.device, bool], Cases]
    meaning: str


PARTS = {
    "correctness": Part(
        correctness,
        "error: ‖ours − float64‖ / ‖float64‖. In float32 it is the largest error of result and "
        "gradients, in bfloat16 their root mean square; twin_error is the readable twin's.",
    ),
    "scan": Part(
        kernel_times,
        "ms: median of the device's time with an empty cache, forward and backward. "
        "share_of_copy: the time that the fewest bytes take at the copy's speed, over ms.",
    ),
    "step": Part(
        step_times,
        "ms: median of the wall time, Python included, as `mambanorm plan` measures it. "
        "hours_of_a_run: all steps and evaluations, without reading the data.",
    ),
    "runs": Part(run_times, "seconds: training, evaluations included."),
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
    for name in only or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a peer may look for kernels to download
    names, start = [name for name in PARTS if only is None or name in only], time.monotonic()
    torch_device = pick_device(device)
    words = ["gpu" if torch_device.type == "cuda" else "interpreter", *(names if only else [])]
    stem = "-".join([*words, "tiny"] if tiny else words)
    path, rows = writable_folder(out_dir or RESULTS, "the results") / stem, []
    for name in names:
        for case, work in PARTS[name].cases(torch_device, tiny):
            begin = time.monotonic()
            if begin - start < seconds:
                columns = attempt(work)
            else:
                columns = {"status": "skipped", "note": "no time was left"}
            row = {"part": name, "case": case, **columns, "took_s": time.monotonic() - begin}
            rows.append(row)
            print("  ".join(map(cell, row.values())), flush=True)
            write_results(path, rows, "no: cut off, or still under way")
    skipped = sum(row["status"] == "skipped" for row in rows)
    complete = f"no: {plural(skipped, 'case')} left out for lack of time" if skipped else "yes"
    write_results(path, rows, complete)
    print(f"\n{path}.json and .md written")
    return int(any(row["status"] == "failed" for row in rows))


def attempt(work: Callable[[], dict]) -> dict:
    """Return the columns of `work()`, and status (ok, missing or failed) and note."""
    try:
        return {"status": "ok", "note": "", **work()}
    except ErrorTooLarge as error:
        return {"status": "failed", "note": str(error), **error.row}
    except ImportError as error:  # a peer
        return {"status": "missing", "note": first_line(error)}
    except Exception as error:  # the remaining cases must still run
        return {"status": "failed", "note": f"{type(error).__name__}: {first_line(error)}"}


def first_line(error: Exception) -> str:
    """Return the first line of an error's text: a compiler adds a page."""
    return str(error).strip().partition("\n")[0][:300]


def write_results(path: Path, rows: list[dict], complete: str) -> None:
    """Write head and rows as `path`.json and `path`.md."""
    head = {"complete": complete, **provenance("python -m benchmarks.gpu")}
    triton = sys.modules.get("triton")
    head["versions"] += f", triton {getattr(triton, '__version__', 'missing')}"
    write_text(path.with_suffix(".json"), json.dumps({"head": head, "rows": rows}, indent=1))
    write_text(path.with_suffix(".md"), markdown(head, rows))


def markdown(head: dict, rows: list[dict]) -> str:
    """Return a page with the head and one table a part."""
    sections = ["# A GPU, measured"]
    sections.append("\n".join(f"- **{name}**: {value}" for name, value in head.items()))
    for part in dict.fromkeys(row["part"] for row in rows):
        part_rows = [row for row in rows if row["part"] == part]
        failed = sum(row["status"] == "failed" for row in part_rows)
        columns = list(dict.fromkeys(name for row in part_rows for name in row if name != "part"))
        cells = [[cell(row.get(name, "")) for name in columns] for row in part_rows]
        sections.append(f"## {part}")
        counts = f"{plural(len(part_rows), 'case')}, {failed} failed."
        sections.append(f"{counts} {PARTS[part].meaning}")
        sections.append(as_markdown([columns, *cells]))
    return "\n\n".join(sections) + "\n"


def cell(value: object) -> str:
    """Return a value as it stands in a table: floats with four digits, text without `|`."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
