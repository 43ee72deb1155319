"""Peak memory and time of one case, measured in a process of its own.

    python -m benchmarks.memory '{"kind": "step", "name": "ours", "batch": 32, "length": 256, …}'

The memory is the growth of the peak during one run. Weights, compiled kernels and one warm-up at a
tiny size come first and are not counted; gradients are.
"""

from __future__ import annotations

import json
import math
import sys

import torch

from benchmarks.cases import Case
from benchmarks.peers import prepare
from benchmarks.runs import seconds_of
from mambanorm.kernels.threads import set_threads
from mambanorm_study.runs.cluster import warm_up
from mambanorm_study.runs.machine import PeakMemory

TINY = 16  # positions of the warm-up


def peak_memory(case: Case) -> tuple[float | None, float]:
    """Return the growth of the peak of resident memory in MB (10⁶ bytes), and the run's seconds.
    The memory is None on systems whose high-water mark cannot be reset, which is all but Linux.
    """
    set_threads(case.threads)
    warm_up()
    bind = prepare(case)
    bind(max(2, case.threads), TINY)()  # enough rows for the kernels of several threads
    run = bind(case.batch, case.length)
    memory = PeakMemory(torch.device("cpu"))
    seconds = seconds_of(run)
    growth = memory.growth()
    return None if math.isnan(growth) else growth, seconds


if __name__ == "__main__":
    print(json.dumps(peak_memory(Case(**json.loads(sys.argv[1])))))
