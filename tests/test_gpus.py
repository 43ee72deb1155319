"""Runs are dealt out to GPUs by dask-cuda, one a GPU. No GPU is needed here: the device's calls are stood in for, and
LocalCUDACluster by a LocalCluster that deals as it does."""

import os
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from dask.distributed import LocalCluster

from mambanorm.runs import cluster
from mambanorm.runs.cluster import count_workers, gpus_for, local_cluster
from mambanorm.runs.grid import base_config


def smoke(**changes):
    return base_config("digits", "smoke", **changes)


ASKED = {}  # by the last DealtCluster


class DealtCluster(LocalCluster):
    """What dask-cuda's LocalCUDACluster does with GPUs: one worker for each, which sees its own first."""

    def __init__(self, CUDA_VISIBLE_DEVICES, device_memory_limit, **options):
        ASKED.update(gpus=CUDA_VISIBLE_DEVICES, device_memory_limit=device_memory_limit, **options)
        super().__init__(n_workers=0, **options)
        for i, name in enumerate(CUDA_VISIBLE_DEVICES):
            (spec,) = super().new_worker_spec().values()
            seen = ",".join(CUDA_VISIBLE_DEVICES[i:] + CUDA_VISIBLE_DEVICES[:i])
            self.worker_spec[name] = {**spec, "options": spec["options"] | {"env": {"CUDA_VISIBLE_DEVICES": seen}}}
        self.sync(self._correct_state)


@pytest.fixture
def machine(monkeypatch):
    """Makes a machine of so many GPUs and cores, with dask-cuda or without."""

    def make(count, cores=64, names=None, dask_cuda=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(cluster, "cores", lambda: cores)
        monkeypatch.setattr(cluster, "find_spec", lambda name: name if dask_cuda else None)
        for name in cluster.worker_environment(1):  # what is set outside would hold for the workers too
            monkeypatch.delenv(name, raising=False)
        if names is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
        stand_in = ModuleType("dask_cuda")
        stand_in.LocalCUDACluster = DealtCluster
        monkeypatch.setitem(sys.modules, "dask_cuda", stand_in if dask_cuda else None)

    return make


def visible():
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["NUMBA_NUM_THREADS"]


def test_gpus_are_those_that_cuda_shows(machine):
    machine(3)
    assert gpus_for([smoke()]) == ["0", "1", "2"]
    assert gpus_for([smoke(device="cpu")]) == []
    machine(2, names="5, GPU-8f,7")  # torch stops at a name that it does not know
    assert gpus_for([smoke(device="cuda")]) == ["5", "GPU-8f"]
    machine(0)
    assert gpus_for([smoke()]) == []


def test_without_dask_cuda_one_gpu_is_used_and_a_warning_says_what_to_install(machine):
    machine(4, dask_cuda=False)
    with pytest.warns(UserWarning, match="of 4 GPUs only the first is used: `pip install dask-cuda`"):
        assert gpus_for([smoke()]) == ["0"]
    with pytest.warns(UserWarning, match="only the first"):
        assert count_workers([smoke(), smoke(seed=1)]) == 0


def test_one_run_a_gpu_trains_at_a_time_unless_more_are_asked_for(machine):
    ten = [smoke(seed=seed) for seed in range(10)]
    machine(4, cores=16)
    assert count_workers(ten) == count_workers(ten[:4]) == 4
    assert count_workers(ten[:3]) == 3
    assert count_workers(ten, 8) == 8
    assert count_workers([config.but(device="cuda:1") for config in ten]) == 0  # the user has chosen
    assert count_workers([config.but(device="cpu") for config in ten]) == 10
    machine(1, cores=16)
    assert count_workers(ten) == 0  # in this process
    assert count_workers(ten, 5) == 5
    assert count_workers(ten, 0) == 0


def test_workers_are_dealt_out_evenly_and_reached_from_this_machine_alone(machine):
    machine(2, names="3,7")
    with local_cluster(3, 2, gpus_for([smoke()])) as client:
        seen = sorted(client.run(visible).values())
        hosts = {address.split(":")[1] for address in client.nthreads()}
    assert seen == [("3,7", "2")] * 2 + [("7,3", "2")]
    assert hosts == {"//127.0.0.1"}
    assert ASKED["gpus"] == ["3", "7"]
    assert (ASKED["memory_limit"], ASKED["device_memory_limit"], ASKED["threads_per_worker"]) == (0, 0, 1)
    assert (ASKED["host"], ASKED["dashboard_address"]) == ("127.0.0.1", None)


@pytest.mark.skipif(find_spec("dask_cuda") is None, reason="needs dask-cuda, which pins a Dask of its own")
def test_dask_cudas_own_class_takes_our_options_and_our_copies_of_its_workers(monkeypatch):
    monkeypatch.setenv("DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC", "1")  # its own switch: no call of a device
    with local_cluster(3, 1, ["3", "7"]) as client:
        assert sorted(client.run(visible).values()) == [("3,7", "1")] * 2 + [("7,3", "1")]
