"""What one case takes in memory: the growth of the peak during one run, in a process of its own;
and how long it took.

    python -m benchmarks.memory '{"kind": "step", "name": "ours", "batch": 32, "length": 256,
    "width": 64}'

Weights, compiled kernels and one warm-up at a tiny size come first and are not counted; gradients
are.
"""

from __future__ import annotations

import json
import math
import sys
import time

import psutil
import torch

from benchmarks.cases import Case
from benchmarks.peers import prepare
from mambanorm.kernels.threads import set_threads
from mambanorm_study.runs.cluster import warm_up
from mambanorm_study.runs.machine import PeakMemory

TINY = 16  # positions of the warm-up


def weigh(case: Case) -> tuple[float, float]:
    """Growth of resident memory during one run of a case, at its highest, in MB (10⁶ bytes), and
    the run's seconds."""
    set_threads(case.threads)
    warm_up()
    bind = prepare(case)
    bind(max(2, case.threads), TINY)()  # rows enough for the kernels of several threads
    run = bind(case.batch, case.length)
    memory, before = PeakMemory(torch.device("cpu")), lifetime_peak()
    start = time.perf_counter()
    run()
    seconds, grown = time.perf_counter() - start, memory.growth()
    return (lifetime_peak() - before) / 1e6 if math.isnan(grown) else grown, seconds


def lifetime_peak() -> int:
    """The highest resident memory of this process ever, in bytes, where the kernel's mark cannot be
    set back."""
    info = psutil.Process().memory_info()
    if hasattr(info, "peak_wset"):  # Windows
        return info.peak_wset
    import resource

    mark = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return mark if sys.platform == "darwin" else 1024 * mark


if __name__ == "__main__":
    print(json.dumps(weigh(Case(**json.loads(sys.argv[1])))))
