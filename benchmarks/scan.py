"""How fast is the CPU scan, and what memory does it take: ours, the reference loop and mambapy's parallel scan.

    python benchmarks/scan.py --json out.json

The three run in one process, in alternation, so that a busy machine slows all of them alike. One repeat is a forward
pass and a forward plus backward pass with gradients of every input, without gate, bias and softplus: mambapy's function
has none. Extra memory is what the autograd graph and the buffers hold beyond inputs, results and gradients, in percent
of a float32 tensor of B·L·D·N; for ours the plan of the kernel, for the others the tensors kept for the backward pass.

Glossary: B batch, L length, D channels, N state size.
Source of the peer: alxndrTL/mamba.py, `mambapy/mamba.py`, `MambaBlock.selective_scan`.
"""

import argparse
import json
import math
import statistics
import time
from pathlib import Path

import torch

from mambanorm.ssm import selective_scan, set_threads, warm_up
from mambanorm.ssm.cpu import Plan, scan_threads

try:
    from mambapy.pscan import pscan
except ImportError:
    pscan = None

SHAPES = [(16, 256, 128, 16), (8, 1024, 128, 16)]  # (B, L, D, N)


def example(batch, length, channels, size):
    """Inputs as a Mamba layer makes them, channels last: u, delta (B, L, D), A (D, N), B, C (B, L, N), D (D,)."""
    torch.manual_seed(0)
    u, B, C = (torch.randn(batch, length, n) for n in (channels, size, size))
    delta = torch.rand(batch, length, channels) * 0.1
    A = -torch.arange(1.0, size + 1).repeat(channels, 1)
    return [x.requires_grad_() for x in (u, delta, A, B, C, torch.ones(channels))]


def through(backend):
    """`selective_scan` with one back end, taking and returning (B, L, D)."""

    def scan(u, delta, A, B, C, D):
        rows = (x.transpose(1, 2) for x in (u, delta))
        return selective_scan(*rows, A, B.transpose(1, 2), C.transpose(1, 2), D, backend=backend).transpose(1, 2)

    return scan


def mambapy_scan(u, delta, A, B, C, D):
    """The scan as mambapy's model writes it."""
    deltaA = torch.exp(delta.unsqueeze(-1) * A)  # (B, L, D, N)
    BX = delta.unsqueeze(-1) * B.unsqueeze(2) * u.unsqueeze(-1)
    hs = pscan(deltaA, BX)
    return (hs @ C.unsqueeze(-1)).squeeze(3) + D * u


def kept_bytes(scan, inputs):
    """Bytes of the distinct tensors that the graph keeps for the backward pass, the inputs left out."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = scan(*inputs)
    for tensor in (*inputs, out):
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def clock(scan, inputs, direction):
    """Seconds of (forward without a graph, forward plus backward)."""
    start = time.perf_counter()
    with torch.no_grad():
        scan(*inputs)
    middle = time.perf_counter()
    torch.autograd.grad(scan(*inputs), inputs, direction)
    return middle - start, time.perf_counter() - middle


def measure(shape, repeats, reference_repeats):
    """One row per implementation: medians, quartiles, ratio to ours, extra memory; None where one is missing."""
    inputs = example(*shape)
    direction = torch.randn(shape[:3])
    scans = {"cpu": through("cpu"), "mambapy": mambapy_scan if pscan else None, "reference": through("reference")}
    times = {name: [] for name in scans}
    for repeat in range(-1, repeats):  # the first round warms up and is not counted
        for name, scan in scans.items():
            if scan is None or (name == "reference" and repeat >= reference_repeats):
                continue
            seconds = clock(scan, inputs, direction)
            if repeat >= 0:
                times[name].append(seconds)
    rows = [summary(name, shape, times[name]) for name in scans]
    batch, length, channels, size = shape
    for row in rows:
        if row["both_ms"] is None:
            continue
        row["ratio"] = row["both_ms"] / rows[0]["both_ms"]
        extra = Plan(batch, length, channels, size, threads=scan_threads()).extra_bytes
        if row["scan"] != "cpu":
            extra = kept_bytes(scans[row["scan"]], inputs)
        row["extra_percent"] = 100 * extra / (4 * math.prod(shape))
    return rows


def summary(name, shape, times):
    row = {"scan": name, "shape": list(shape), "repeats": len(times)}
    for key, values in zip(("forward", "both"), zip(*times, strict=True) if times else (None, None), strict=True):
        ms = None if values is None else [1e3 * value for value in values]
        row[f"{key}_ms"] = None if ms is None else statistics.median(ms)
        row[f"{key}_range_ms"] = None if ms is None else [min(ms), max(ms)]
    return row


def cell(median, extremes):
    return f"{median:.2f} ({extremes[0]:.2f}–{extremes[1]:.2f})"


def show(rows):
    print(f"\n(B, L, D, N) = {tuple(rows[0]['shape'])}")
    print(f"{'scan':<10} {'forward ms':>24} {'forward + backward ms':>28} {'ratio':>7} {'extra memory':>13}")
    for row in rows:
        if row["both_ms"] is None:
            print(f"{row['scan']:<10} missing")
            continue
        cells = [cell(row[f"{key}_ms"], row[f"{key}_range_ms"]) for key in ("forward", "both")]
        print(f"{row['scan']:<10} {cells[0]:>24} {cells[1]:>28} {row['ratio']:>6.1f}× {row['extra_percent']:>11.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--reference-repeats", type=int, default=3, help="the loop is slow, fewer are enough")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch_threads, scan_count = set_threads(options.threads)
    warm_up()
    print(f"torch {torch.__version__}, {torch_threads} threads (scan: {scan_count}); medians (lowest–highest)")
    rows = []
    for shape in SHAPES:
        rows += measure(shape, options.repeats, options.reference_repeats)
        show(rows[-3:])
    if options.json:
        options.json.write_text(json.dumps({"threads": torch_threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
