"""Whatever is killed, paused or full: no run is lost, torn, trained twice without need, or different from an unkilled one.

One seed here; more, one after another: MAMBANORM_CHAOS_SEEDS=20 python -m pytest tests/test_chaos.py -s
"""

import os
import re
import subprocess
import sys
import time

import pytest
import torch
from chaos.monkey import RUNS, SWEEP, Cluster, Disk, Trace, schedule, unleash

from mambanorm.settings import ROOT
from mambanorm.training.store import check_runs
from mambanorm.training.stored_run import read_run

SEEDS = int(os.environ.get("MAMBANORM_CHAOS_SEEDS", "1"))
MEASURED = ("wall_s", "tokens_per_s", "peak_memory_mb")  # what differs between two trainings of the same run

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    """The store of the same sweep without a monkey."""
    store = tmp_path_factory.mktemp("unkilled")
    command = [sys.executable, "-m", "mambanorm", *SWEEP, "--runs-dir", store, "--workers", "2"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=900)
    return store


def assert_same(store, unkilled):
    """Every run of the two stores: facts, curves, arrays and weights, bit for bit."""
    for folder in sorted(unkilled.iterdir()):
        one, other = read_run(store / folder.name), read_run(folder)
        assert {k: v for k, v in one.facts.items() if k not in MEASURED} == {
            k: v for k, v in other.facts.items() if k not in MEASURED
        }
        assert one.curves.equals(other.curves)
        for name in ("predictions", "diagnostics"):
            arrays, others = getattr(one, name), getattr(other, name)
            assert set(arrays) == set(others)
            assert all(value.tobytes() == others[key].tobytes() for key, value in arrays.items()), name
        assert set(one.checkpoint) == set(other.checkpoint)
        assert all(torch.equal(value, other.checkpoint[name]) for name, value in one.checkpoint.items())


def last_sweep(cluster):
    """When all workers are gone: trains what is missing, and tidies up."""
    cluster.close()
    cluster.start_client("--workers", "0")
    assert cluster.running["client"].wait(300) == 0


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_sweep_survives_the_monkey(seed, unkilled, tmp_path):
    began, trace, disk = time.monotonic(), Trace(tmp_path), Disk(tmp_path)
    cluster = Cluster(tmp_path, disk.store, trace)
    try:
        left = unleash(seed, cluster, disk)
        last_sweep(cluster)
        seconds = time.monotonic() - began
        names = sorted(path.name for path in disk.store.iterdir())
        assert names == sorted(path.name for path in unkilled.iterdir())
        assert list(check_runs(disk.store, progress=False).state) == ["whole"] * RUNS
        assert_same(disk.store, unkilled)
    finally:
        cluster.close()
        disk.close()
    assert trace.needless() == []
    assert not left, "the sweep was done before the monkey was"
    print(
        f"\nseed {seed}: {seconds:.0f} s on {disk.kind}, {len(schedule(seed))} acts, {len(trace.hit)} processes hit, "
        f"{trace.starts()} trainings of {RUNS} runs, sweeps ended: {', '.join(cluster.ends)}"
    )
