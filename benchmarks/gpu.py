"""`python -m benchmarks.gpu`: what a GPU machine is worth for the study, in nine minutes and one command.

It needs no network and no installation: a checkout, and a Python with torch, triton, numpy, pandas, numba,
scikit-learn, safetensors and tqdm. `mambanorm bench --device cuda` is the same.

Four parts, in this order (benchmarks/gpu_parts.py); each case is a row, whether it worked or not:

    correctness   scan, convolution and blocks of them against float64 on the CPU: results and gradients
    scan          scan and convolution alone, beside the bytes they must move, mamba-ssm, transformers and torch
    step          a training step at the paper's settings; hours of a paper run
    runs          digits and mnist1d at `evening` to the end, then ListOps at `paper` for the time that is left

`gpu.partial.json` and `gpu.partial.md` are written anew, whole, after each row: what a machine that is taken away had
measured, is there. At the end they become `gpu.json` and `gpu.md`. A part that has used up its share of the time is
left, and what it left out is said.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import torch

from benchmarks.gpu_correctness import Wrong
from benchmarks.gpu_data import SCALE, drawing
from benchmarks.gpu_parts import PARTS
from benchmarks.gpu_setting import PAPER, TINY, Setting
from mambanorm.basics.atomic import writable_folder, write_text
from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import ROOT
from mambanorm.basics.text import plural, spell
from mambanorm.training import machine

RESULTS = ROOT / "benchmarks" / "results"
SECONDS = 530  # of the nine minutes; Python takes some seconds to start
SHARES = {"correctness": 0.2, "scan": 0.2, "step": 0.2, "runs": 1.0}
"""Of the time that is left when a part begins, the most that it may take."""


class TimeUp(BaseException):
    """A case has used up its time. No Exception: whoever catches those would swallow it."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="PART", help=f"only these parts: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"at most so long (default: {SECONDS})")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where gpu.json and gpu.md go")
    parser.add_argument("--device", default="cuda", help="cuda (default), or cpu for Triton's interpreter")
    parser.add_argument("--tiny", action="store_true", help="sizes to try the command itself; nothing is learned")
    options = parser.parse_args(argv)
    try:
        return bench_gpu(
            options.only, seconds=options.seconds, out_dir=options.out, device=options.device, tiny=options.tiny
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: what was measured is in the files called partial", file=sys.stderr)
        return 130


def bench_gpu(
    only: list[str] | None = None,
    *,
    seconds: float = SECONDS,
    out_dir: str | Path | None = None,
    device: str = "cuda",
    tiny: bool = False,
) -> int:
    """Measures the parts (None = all) and writes each row as it is found; 0, or 1 if something failed.

    Raises ValueError for an unknown part and for a device that is not there.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds must be a number above 0, got {seconds}")
    for name in only or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    chosen = [name for name in PARTS if only is None or name in only]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a peer may look for kernels to download
    end = time.monotonic() + seconds
    sizes = TINY if tiny else PAPER
    wanted = "runs" in chosen and ("listops", SCALE) in sizes.runs
    with _told_by_sigterm(), drawing(wanted) as take_rows:
        setting = Setting(machine.pick_device(device), sizes, take_rows)
        report = Report(writable_folder(Path(out_dir or RESULTS), "the results"), setting, chosen, seconds)
        for name in chosen:
            left = end - time.monotonic()
            if not (whole := measure(name, setting, report, time.monotonic() + SHARES[name] * left)):
                break
    report.finish(whole)
    print(f"\n{report.stem}.json, .md written to {report.folder}, after {spell(time.monotonic() - report.start)}")
    return int(any(row["status"] == "failed" for row in report.rows))


def measure(name: str, setting: Setting, report: Report, end: float) -> bool:
    """All cases of a part, one after the other, each within what is left for the part. False if one has broken the
    device: after a wrong access to memory nothing works on it until the process ends."""
    left_out = []
    for case, work in PARTS[name](setting, lambda: end - time.monotonic()):
        start = time.monotonic()
        if start >= end:
            left_out.append(case)
            continue
        report.add({"part": name, "case": case} | attempt(work, end - start) | {"took_s": time.monotonic() - start})
        if (broken := setting.broken()) is not None:
            report.add({"part": name, "case": "the device", "status": "failed", "note": f"broken by {case}: {broken}"})
            return False
    if left_out:
        note = f"no time was left: from {left_out[0]!r} to {left_out[-1]!r}"
        report.add({"part": name, "case": f"{plural(len(left_out), 'more case')}", "status": "skipped", "note": note})
    return True


def attempt(work: Callable[[], dict], seconds: float) -> dict:
    """What the work finds, with its status: ok, missing (a peer), skipped (too slow) or failed, and why."""
    try:
        with at_most(seconds):
            found = work()
        return {"status": "ok", "note": ""} | found
    except TimeUp:
        return {"status": "skipped", "note": f"not done within {seconds:.0f} s"}
    except ImportError as error:
        return {"status": "missing", "note": _line(error)}
    except Wrong as error:
        return {"status": "failed", "note": str(error)} | error.row
    except Exception as error:  # one case must not take the others with it
        return {"status": "failed", "note": f"{type(error).__name__}: {_line(error)}"}
    finally:
        with suppress(Exception):  # of a broken device, which must not hide what the case found
            torch.cuda.empty_cache()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises TimeUp inside once the time is over; a kernel or a compiler that runs just then comes to its end first."""

    def ring(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)  # and again, where somebody has swallowed it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _told_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was found is written already."""

    def end(*_: object) -> None:
        raise SystemExit(143)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Report:
    """The rows so far, and the two files that hold them."""

    def __init__(self, folder: Path, setting: Setting, parts: list[str], seconds: float):
        self.seconds = seconds
        self.folder, self.setting, self.rows, self.start = folder, setting, [], time.monotonic()
        what = "gpu" if setting.device.type == "cuda" else "interpreter"
        self.stem = "-".join([what, *(parts if parts != list(PARTS) else []), *["tiny"] * (setting.sizes is TINY)])
        self.parts = parts
        self.write()

    def add(self, row: dict) -> None:
        self.rows.append(row)
        self.write()
        shown = {key: value for key, value in row.items() if key not in ("part", "note", "took_s", "curve")}
        print(f"{row['part']:>12}  " + "  ".join(cell(value) for value in shown.values()), flush=True)
        if row["note"]:
            print(f"{'':>14}{row['note']}", flush=True)

    def write(self, ending: str = ".partial", complete: str = "no: cut off, or still under way") -> None:
        head = self.head(complete)
        write_text(self.folder / f"{self.stem}{ending}.json", json.dumps({"head": head, "rows": self.rows}, indent=1))
        write_text(self.folder / f"{self.stem}{ending}.md", markdown(head, self.rows))

    def finish(self, whole: bool) -> None:
        """The files get their names, and take the place of those of an earlier run."""
        skipped = sum(row["status"] == "skipped" for row in self.rows)
        out = f"no: {plural(skipped, 'row')} without a measurement for lack of time" if skipped else "yes"
        self.write("", out if whole else "no: the device broke")
        for kind in ("json", "md"):
            (self.folder / f"{self.stem}.partial.{kind}").unlink(missing_ok=True)

    def head(self, complete: str) -> dict:
        """What the numbers depend on, and whether all of them are there."""
        device, parts = self.setting.device.type, self.parts if self.parts != list(PARTS) else []
        given = ["--only"] * bool(parts) + parts + [f"--device {device}"] * (device != "cuda")
        given += ["--tiny"] * (self.setting.sizes is TINY) + [f"--seconds {self.seconds:g}"] * (self.seconds != SECONDS)
        triton = sys.modules.get("triton")
        return {
            "command": " ".join(["python -m benchmarks.gpu", *given]),
            "parts": ", ".join(self.parts),
            "complete": complete,
            "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
            "machine": machine.machine(),
            "device": self.setting.name,
            "commit": machine.git_commit() or "unknown",
            "versions": ", ".join([machine.versions(), f"triton {getattr(triton, '__version__', 'missing')}"]),
            "took": spell(time.monotonic() - self.start),
        }


MEANING = {
    "correctness": "error: ‖ours − float64‖ / ‖float64‖, in float32 the largest of result and gradients, in bfloat16 "
    "their root mean square, beside that of the readable twin in bfloat16.",
    "scan": "ms: median of the device's time with an empty cache. share_of_copy: the time that the fewest bytes would "
    "take at the speed of the first row, by the time that it took.",
    "step": "ms: median by the clock, with what Python does, as `mambanorm plan` times it; hours_of_a_run: all steps "
    "and evaluations, without reading the data; peak_mb: what the allocator reserves, weights included.",
    "runs": "loss: means over the first and the last hundredth of the steps that were done.",
}
"""What the numbers of each part mean, for the reader of the tables."""


def markdown(head: dict, rows: list[dict]) -> str:
    """Head and one table a part; the columns are what its rows have."""
    title = "# A GPU, measured" if "interpreter" not in head["device"] else "# No GPU: Triton's interpreter"
    lines = [title, "", *(f"- **{name}**: {value}" for name, value in head.items()), ""]
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        failed = sum(row["status"] == "failed" for row in mine)
        columns = [name for name in dict.fromkeys(key for row in mine for key in row) if name not in ("part", "curve")]
        columns.append(columns.pop(columns.index("note")))
        lines += [f"## {part}", "", f"{plural(len(mine), 'case')}, {failed} failed. {MEANING[part]}", ""]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(cell(row.get(name, '')) for name in columns)} |" for row in mine]
        lines.append("")
    return "\n".join(lines)


def cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _line(error: BaseException) -> str:
    """The first line of an error, which a compiler may follow with a page."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


if __name__ == "__main__":
    sys.exit(main())
