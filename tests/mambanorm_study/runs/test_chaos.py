"""Whatever is killed or paused: no run is lost, torn, trained twice without need, or different from
what it is in a sweep that nobody disturbs.

Here one seed; more, one after another:

    MAMBANORM_CHAOS_SEEDS=20 python -m pytest -s tests/mambanorm_study/runs/test_chaos.py
"""

import os
from contextlib import contextmanager

import pytest
import torch

from mambanorm_study.runs.result import read_run
from tests.chaos.monkey import RUNS, Cluster, schedule, unleash
from tests.run_store import check_runs

SEEDS = int(os.environ.get("MAMBANORM_CHAOS_SEEDS", "1"))
MEASURED = ("wall_s", "tokens_per_s", "peak_memory_mb", "git_commit")
"""What differs between two trainings of the same run. The commit, if somebody commits while the
test runs."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


@contextmanager
def swept(folder, acts):
    """A cluster after the sweep with these acts of the monkey, and after one sweep more, which
    tidies up when all workers are gone.
    """
    cluster = Cluster(folder)
    try:
        unleash(acts, cluster)
        cluster.close()
        cluster.start_client("--workers", "0")
        cluster.running["client"].join(300)
        assert cluster.running["client"].exitcode == 0, cluster.logs["client"].read_text()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory):
    """The store of the same sweep without a monkey, in which every run is trained once."""
    with swept(tmp_path_factory.mktemp("unkilled"), []) as cluster:
        assert cluster.ends == ["done"]
        assert cluster.starts() == cluster.stored() == RUNS
        yield cluster.store


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
            assert all(value.tobytes() == others[key].tobytes() for key, value in arrays.items()), (
                name
            )
        assert set(one.checkpoint) == set(other.checkpoint)
        assert all(
            torch.equal(value, other.checkpoint[name]) for name, value in one.checkpoint.items()
        )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_sweep_survives_the_monkey(seed, unkilled, tmp_path):
    with swept(tmp_path, schedule(seed)) as cluster:
        assert sorted(os.listdir(cluster.store)) == sorted(os.listdir(unkilled))
        assert list(check_runs(cluster.store).values()) == [""] * RUNS
        assert_same(cluster.store, unkilled)
        assert cluster.needless() == []
    print(
        f"\nseed {seed}: {cluster.starts()} trainings of {RUNS} runs, sweeps ended: {', '.join(cluster.ends)}"
    )
