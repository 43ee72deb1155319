"""`python -m benchmarks.gpu`: whether the kernels for a GPU are right on this one, and how long
they and a step take.

It needs no network and no installation: a checkout, and a Python with torch, triton, numpy, pandas,
numba, scikit-learn, safetensors and tqdm. `mambanorm bench --device cuda` is the same.

Four parts; each case is a row, whether it worked or not:

    correctness   scan, convolution and blocks of them against float64 on the CPU: results and
    gradients scan          scan and convolution alone, beside the bytes they must move and
    mamba-ssm step          a training step at the paper's settings; hours of a paper run runs
    digits and mnist1d at `evening`

In float32 the error is judged by itself. In bfloat16, whose inputs alone are off by a part in 256,
it is judged by the readable twin's: the same block, or the plain scan or convolution, in bfloat16
on the same device. `gpu.json` and `gpu.md` are written anew after each row: what a machine that is
taken away had measured, is there.

Glossary: B rows, L positions, D or E channels, N state size, K taps; times in ms are medians of
several runs.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib import import_module
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm import Arm, MambaBlock, selective_scan
from mambanorm.errors import unknown
from mambanorm.operations.conv_gate import causal_conv
from mambanorm_study import Mamba2Block, base_config
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.basics.text import plural
from mambanorm_study.runs import machine
from mambanorm_study.runs.run import train
from mambanorm_study.tables.plan import plan, shape_of

SECONDS = 530  # of nine minutes: no case begins after them
ODD = (
    (1, 1, 3, 4),
    (2, 37, 40, 16),
    (3, 130, 24, 5),
    (2, 257, 96, 64),
)  # (B, L, D, N) of the correctness
TAPS = ((1, 1, 3, 4), (2, 37, 40, 4), (3, 301, 67, 3))  # (B, L, E, K)
TIMED = (
    (32, 2048, 256, 64),
    (64, 1024, 128, 16),
    (8, 8192, 256, 16),
)  # (B, L, D, N); the first is ListOps's at paper
COPIED = 2**30  # bytes of the copy that tells the memory's speed
CACHE, AHEAD_CYCLES = (
    2**28,
    2_000_000,
)  # bytes that are more than a GPU's cache holds; about a millisecond
ARMS = (
    "None>SSM>None", "RMSN>SSM>GN", "RMSN>SSM>RMSN+B:RMSN+C:RMSN+delta:RMSN", "RMSN>SSM>None+conv:LN+z:RMSN"
)  # fmt: skip
LIMIT = 1e-4  # of ‖ours − float64‖ / ‖float64‖, in float32
SLACK = 2.0  # in bfloat16 the error may be so many times that of the readable twin in bfloat16,
UNITS = 4  # or so many units in bfloat16's last place, 2⁻⁸: a block hands its parts on in bfloat16
Cases = Iterator[tuple[str, Callable[[], dict]]]


class Wrong(AssertionError):
    """An error above the limit; `row` has the numbers."""

    def __init__(self, row: dict):
        super().__init__(f"the error is {row['error']:.2g}, allowed is {row['allowed']:.2g}")
        self.row = row


# --------------------------------------------------------------------------------------------------
# the kernels


def scan_inputs(shape: tuple, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a block hands to the scan: u and delta (B, L, D), B and C (B, L, N), A (D, N), D and
    bias."""
    batch, length, channels, size = shape
    torch.manual_seed(0)
    widths = dict(u=channels, delta=channels, B=size, C=size)
    rows = {
        name: torch.randn(batch, length, width, device=device).to(dtype)
        for name, width in widths.items()
    }
    A = -torch.rand(channels, size, device=device) * size - 0.5
    D, bias = (torch.randn(channels, device=device) for _ in range(2))
    return {
        name: value.requires_grad_()
        for name, value in (rows | dict(A=A, D=D, delta_bias=bias - 2)).items()
    }


def scan(leaves: dict[str, Tensor], backend: str) -> Tensor:
    """(B, L, D), from and to channels last."""
    given = {k: v.transpose(1, 2) if v.dim() == 3 else v for k, v in leaves.items()}
    return selective_scan(**given, delta_softplus=True, backend=backend).transpose(1, 2)


def conv_inputs(shape: tuple, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """u (B, L, E) as a block hands it over, the first half of a wider tensor; weight (E, 1, K) and
    bias (E,)."""
    batch, length, channels, taps = shape
    torch.manual_seed(0)
    both = torch.randn(batch, length, 2 * channels, device=device).to(dtype)
    weight, bias = (
        torch.randn(channels, 1, taps, device=device),
        torch.randn(channels, device=device),
    )
    leaves = {"u": both[..., :channels], "weight": weight, "bias": bias}
    return {name: value.detach().requires_grad_() for name, value in leaves.items()}


def conv(leaves: dict[str, Tensor], backend: str) -> Tensor:
    """SiLU of the causal convolution, (B, L, E): by Triton, by torch's own convolution, or plain
    ("reference")."""
    u, weight, bias = leaves["u"], leaves["weight"], leaves["bias"]
    if backend == "triton":
        from mambanorm.kernels.conv_triton import conv_silu_triton  # here: only where Triton is

        return conv_silu_triton(u, weight, bias)
    if backend == "torch":
        weight, bias, taps = weight.to(u), bias.to(u), weight.shape[-1]
        y = F.conv1d(u.transpose(1, 2), weight, bias, groups=u.shape[2], padding=taps - 1)[
            ..., : u.shape[1]
        ]
        return F.silu(y).transpose(1, 2)
    return F.silu(causal_conv(u, weight, bias))


def bytes_moved(shape: tuple, size: int) -> int:
    """The fewest bytes of a scan and its backward pass: each input read once, each result written
    once; then inputs and dout read, and du, dΔ, dB, dC written."""
    batch, length, channels, states = shape
    row, steps = batch * length * channels * size, batch * length * states * size
    return (3 * row + 2 * steps) + (5 * row + 4 * steps)


# --------------------------------------------------------------------------------------------------
# the parts: each yields (case, work) pairs; `work()` measures one case and returns the columns of
# its row


def correctness(device: torch.device, tiny: bool) -> Cases:
    """Scan and convolution at odd sizes; blocks, with norms at both places and inside."""
    for function, inputs, shapes in ((scan, scan_inputs, ODD), (conv, conv_inputs, TAPS)):
        for shape in shapes[:1] if tiny else shapes:
            for dtype in (torch.float32, torch.bfloat16):
                leaves = functools.partial(inputs, shape, device, dtype)
                yield (
                    f"{function.__name__} {shape}, {_short(dtype)}",
                    functools.partial(_kernel_error, function, leaves),
                )
    width, shape = (8, (2, 5)) if tiny else (40, (2, 37))
    blocks = [(MambaBlock, {}, arm) for arm in ARMS] + [
        (Mamba2Block, dict(head_dim=width // 2), "RMSN>SSM>None")
    ]
    for kind, own, arm in blocks:
        for dtype in (torch.float32, torch.bfloat16):
            block = functools.partial(kind, width, *Arm.parse(arm), **own)
            work = functools.partial(_block_error, block, torch.randn(*shape, width), device, dtype)
            yield f"{kind.__name__} {arm}, {_short(dtype)}", work


def errors_of(
    out: Tensor, leaves: list[Tensor], other: Tensor, others: list[Tensor]
) -> list[float]:
    """‖a − b‖ / ‖b‖ of the result and of each gradient along one random direction; b in float64 on
    the CPU."""
    direction = torch.randn(
        other.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    pairs = [(out, other)]
    ours = torch.autograd.grad(out, leaves, direction.to(out), allow_unused=True)
    theirs = torch.autograd.grad(other, others, direction, allow_unused=True)
    pairs += [
        pair
        for pair in zip(ours, theirs, strict=True)
        if pair[1] is not None and pair[1].norm() > 0
    ]
    return [
        float((a.detach().cpu().double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs
    ]


def _kernel_error(function: Callable[..., Tensor], inputs: Callable[[], dict[str, Tensor]]) -> dict:
    """`function(leaves, backend)` by "triton" against its "reference" in float64."""
    leaves = inputs()

    def errors(backend: str) -> list[float]:
        twin = {
            name: value.detach().cpu().double().requires_grad_() for name, value in leaves.items()
        }
        exact = function(twin, "reference")
        return errors_of(
            function(leaves, backend), list(leaves.values()), exact, list(twin.values())
        )

    return judged(
        errors("triton"), None if leaves["u"].dtype == torch.float32 else errors("reference")
    )


def _block_error(
    made: Callable[..., nn.Module], x: Tensor, device: torch.device, precision: torch.dtype
) -> dict:
    """A block as it trains, its parameters in float32; bfloat16 by autocast."""
    torch.manual_seed(0)
    exact = made(scan_backend="reference")

    def errors(backend: str) -> list[float]:
        model, twin = copy.deepcopy(exact).to(device), copy.deepcopy(exact).double()
        model.scan_backend = backend
        leaf, other = x.to(device).requires_grad_(), x.double().requires_grad_()
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16):
            out = model(leaf)
        return errors_of(out, [leaf, *model.parameters()], twin(other), [other, *twin.parameters()])

    return judged(errors("triton"), None if precision == torch.float32 else errors("reference"))


def judged(errors: list[float], twin: list[float] | None = None) -> dict:
    """The row of a case. Without a twin, in float32, the largest error counts; with one, in
    bfloat16, the root of the mean square of all of them, because a single one of a few dozen
    numbers is chance. Raises Wrong above the limit."""
    if twin is None:
        row = {
            "error": max(errors, key=lambda e: math.inf if math.isnan(e) else e),
            "allowed": LIMIT,
        }
    else:
        own, others = (math.sqrt(statistics.fmean(e**2 for e in some)) for some in (errors, twin))
        row = {"error": own, "allowed": max(SLACK * others, UNITS * 2.0**-8), "twin_error": others}
    if not row["error"] <= row["allowed"]:  # NaN is above every limit
        raise Wrong(row)
    return row


def scan_part(device: torch.device, tiny: bool) -> Cases:
    """First the copy that all shares are of; then each size with its backward pass, beside its
    peers."""
    speed: dict[str, float] = {}
    copied = 2**16 if tiny else COPIED

    def copying() -> dict:
        source = torch.randn(copied // 4, device=device)
        found = timed(device, lambda: source.clone())
        speed["bytes_per_ms"] = 2 * copied / found["ms"]
        return found | {"gb_per_s": speed["bytes_per_ms"] / 1e6}

    def row(function: Callable, inputs: Callable, name: str, least: int) -> dict:
        if name == "mamba_ssm":
            import_module("mamba_ssm.ops.selective_scan_interface")  # missing: said so
        leaves = inputs()
        direction = torch.randn_like(leaves["u"])
        found = timed(
            device,
            lambda: torch.autograd.grad(function(leaves, name), list(leaves.values()), direction),
        )
        share = least / found["ms"] / speed["bytes_per_ms"] if speed else ""
        return found | {"mb_moved": least / 1e6, "share_of_copy": share}

    yield "copy", copying
    for shape in ((1, 8, 4, 4),) if tiny else TIMED:
        for dtype in (torch.bfloat16, torch.float32):
            for name in ("triton", "mamba_ssm"):
                inputs = functools.partial(scan_inputs, shape, device, dtype)
                work = functools.partial(
                    row, scan, inputs, name, bytes_moved(shape, dtype.itemsize)
                )
                yield f"scan by {name} {shape}, {_short(dtype)}", work
        size = (
            *shape[:3],
            4,
        )  # u is read and the result written; then u and its gradient are read and du written
        for name in ("triton", "torch"):
            inputs = functools.partial(conv_inputs, size, device, torch.bfloat16)
            yield (
                f"convolution by {name} {size}, bfloat16",
                functools.partial(row, conv, inputs, name, 5 * 2 * math.prod(shape[:3])),
            )


def step(device: torch.device, tiny: bool) -> Cases:
    """A step of the paper's runs, on random data of their shape."""
    for task in ("listops",) if tiny else ("listops", "cifar10", "pathfinder64"):
        for precision in ("bf16", "float32"):
            config = base_config(
                task, "smoke" if tiny else "paper", precision=precision, device=device.type
            )
            yield f"{task}, {precision}", functools.partial(_step_row, config)


def _step_row(config) -> dict:
    found, tokens = plan(config), config.batch_size * shape_of(config).length
    per_step = found["seconds_per_step"]
    return {
        "ms": 1e3 * per_step,
        "tokens_per_s": tokens / per_step,
        "hours_of_a_run": found["hours"],
    }


def runs(device: torch.device, tiny: bool) -> Cases:
    """Whole runs."""
    for task in ("digits",) if tiny else ("digits", "mnist1d"):
        config = base_config(task, "smoke" if tiny else "evening", device=device.type)
        yield task, functools.partial(_run_row, config)


def _run_row(config) -> dict:
    start, result = time.perf_counter(), train(config)
    took = time.perf_counter() - start
    return {
        "seconds": took,
        "steps": config.steps,
        "test_accuracy": result.test_accuracy,
        "chance": result.chance,
    }


PARTS: dict[str, Callable[[torch.device, bool], Cases]] = {
    "correctness": correctness,
    "scan": scan_part,
    "step": step,
    "runs": runs,
}
MEANING = {
    "correctness": "error: ‖ours − float64‖ / ‖float64‖, in float32 the largest of result and gradients, in bfloat16 "
    "their root mean square, beside that of the readable twin in bfloat16.",
    "scan": "ms: median of the device's time with an empty cache, forward and backward. share_of_copy: the time that "
    "the fewest bytes would take at the speed of the first row, by the time that it took.",
    "step": "ms: median by the clock, with what Python does, as `mambanorm plan` times it; hours_of_a_run: all steps "
    "and evaluations, without reading the data.",
    "runs": "seconds: training, evaluations included.",
}
"""What the numbers of each part mean, for the reader of the tables."""


def timed(device: torch.device, run: Callable[[], object], seconds: float = 1.0) -> dict:
    """Median and quartiles in ms of as many runs as fit, at least three, after three that warm up:
    of a GPU's time alone, its cache emptied and the host a millisecond ahead."""
    cuda = device.type == "cuda"

    def once() -> float:
        if not cuda:
            start = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - start)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.empty(CACHE, dtype=torch.uint8, device=device).zero_()
        torch.cuda._sleep(AHEAD_CYCLES)
        start.record()
        run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    for _ in range(3):
        taken = once()
    times = [once() for _ in range(min(max(3, int(1e3 * seconds / max(taken, 1e-3))), 200))]
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"ms": middle, "low_ms": low, "high_ms": high, "repeats": len(times)}


# --------------------------------------------------------------------------------------------------
# the command


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help=f"only these parts: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"no case begins later (default: {SECONDS})"
    )
    parser.add_argument(
        "--out", type=Path, help="where gpu.json and gpu.md go (default: benchmarks/results)"
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda (default), or cpu for Triton's interpreter"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="sizes to try the command itself; nothing is learned"
    )
    given = parser.parse_args(argv)
    try:
        return bench_gpu(
            given.only,
            seconds=given.seconds,
            out_dir=given.out,
            device=given.device,
            tiny=given.tiny,
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
    """Measures the parts (None = all) and writes each row as it is found; 0, or 1 if something
    failed.

    Raises ValueError for an unknown part and for a device that is not there.
    """
    for name in only or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a peer may look for kernels to download
    parts, start = [name for name in PARTS if only is None or name in only], time.monotonic()
    place = machine.pick_device(device)
    what = [
        "gpu" if place.type == "cuda" else "interpreter",
        *(parts if only else []),
        *["tiny"] * tiny,
    ]
    path, rows = (
        writable_folder(Path(out_dir or ROOT / "benchmarks" / "results"), "the results")
        / "-".join(what),
        [],
    )
    for name in parts:
        for case, work in PARTS[name](place, tiny):
            began = time.monotonic()
            found = (
                attempt(work)
                if began - start < seconds
                else {"status": "skipped", "note": "no time was left"}
            )
            row = {"part": name, "case": case} | found | {"took_s": time.monotonic() - began}
            rows.append(row)
            print("  ".join(cell(value) for value in row.values()), flush=True)
            _write(path, place, rows, "no: cut off, or still under way")
    skipped = sum(row["status"] == "skipped" for row in rows)
    _write(
        path,
        place,
        rows,
        f"no: {plural(skipped, 'case')} left out for lack of time" if skipped else "yes",
    )
    print(f"\n{path}.json and .md written")
    return int(any(row["status"] == "failed" for row in rows))


def attempt(work: Callable[[], dict]) -> dict:
    """What the work finds, with its status: ok, missing (a peer) or failed, and why."""
    try:
        return {"status": "ok", "note": ""} | work()
    except Wrong as error:
        return {"status": "failed", "note": str(error)} | error.row
    except Exception as error:  # one case must not take the others with it
        line = next(iter(str(error).strip().splitlines()), "")[
            :300
        ]  # a compiler may follow it with a page
        status = "missing" if isinstance(error, ImportError) else "failed"
        return {
            "status": status,
            "note": line if status == "missing" else f"{type(error).__name__}: {line}",
        }


def _write(path: Path, device: torch.device, rows: list[dict], complete: str) -> None:
    triton = sys.modules.get("triton")
    on_gpu = device.type == "cuda"
    head = {
        "complete": complete,
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "machine": machine.machine(),
        "device": torch.cuda.get_device_name(device)
        if on_gpu
        else "no GPU: the CPU, Triton's interpreter",
        "commit": machine.git_commit() or "unknown",
        "versions": ", ".join(
            [machine.versions(), f"triton {getattr(triton, '__version__', 'missing')}"]
        ),
    }
    write_text(path.with_suffix(".json"), json.dumps({"head": head, "rows": rows}, indent=1))
    write_text(path.with_suffix(".md"), markdown(head, rows))


def markdown(head: dict, rows: list[dict]) -> str:
    """Head and one table a part; the columns are what its rows have."""
    lines = [
        "# A GPU, measured",
        "",
        *(f"- **{name}**: {value}" for name, value in head.items()),
        "",
    ]
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        failed = sum(row["status"] == "failed" for row in mine)
        columns = [
            name for name in dict.fromkeys(key for row in mine for key in row) if name != "part"
        ]
        lines += [
            f"## {part}",
            "",
            f"{plural(len(mine), 'case')}, {failed} failed. {MEANING[part]}",
            "",
        ]
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(cell(row.get(name, '')) for name in columns)} |" for row in mine]
        lines.append("")
    return "\n".join(lines)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cell(value: object) -> str:
    return (
        f"{value:.4g}"
        if isinstance(value, float)
        else str(value).replace("|", "\\|").replace("\n", " ")
    )


if __name__ == "__main__":
    sys.exit(main())
