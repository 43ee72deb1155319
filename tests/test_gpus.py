"""Runs are dealt out to GPUs by dask-cuda, and as many share one as were measured to fit. No GPU is needed here: the
device's calls are stood in for, and LocalCUDACluster by a LocalCluster that deals as it does."""

import os
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch
from dask.distributed import LocalCluster

from mambanorm.training import cluster, gpus
from mambanorm.training.cluster import count_workers, local_cluster, open_engine
from mambanorm.training.gpus import Peak, fits, gpus_for, largest, runs_a_gpu
from mambanorm.training.grid import base_config, grid
from mambanorm.training.sweep import sweep

GB = 10**9


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
        monkeypatch.setattr(gpus, "find_spec", lambda name: name if dask_cuda else None)
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


# the arithmetic


def test_as_many_fit_as_nine_tenths_of_the_free_memory_hold():
    assert fits(80 * GB, 10 * GB, 64) == 7
    assert fits(100 * GB, 10 * GB, 64) == 9
    assert fits(100 * GB, 10 * GB + 1, 64) == 8
    assert fits(80 * GB, 10 * GB, 4) == 4  # no more than the cores hold
    assert fits(80 * GB, 200 * GB, 4) == 1  # it may yet train alone
    assert fits(80 * GB, 0, 4) == 1  # nothing was measured


def test_the_largest_runs_of_every_task_are_tried_once_an_arm_in_a_few_steps():
    todo = [
        *grid(["RMSN>SSM>None", "None>SSM>GN"], ["digits"], scale="smoke", seeds=3, d_model=64),
        *grid(["LN>SSM>LN"], ["digits"], scale="smoke", seeds=3, d_model=32),
        base_config("mnist1d", "smoke", patience=3, teacher="0" * 16),
    ]
    tried = largest(todo)
    assert [(config.task, config.arm, config.d_model) for config in tried] == [
        ("digits", "RMSN>SSM>None", 64),
        ("digits", "None>SSM>GN", 64),
        ("mnist1d", "RMSN>SSM>None", base_config("mnist1d", "smoke").d_model),
    ]
    assert {(config.steps, config.teacher) for config in tried} == {(gpus.STEPS, "")}
    few, many = smoke(n_layers=4, micro_batch=1), smoke(n_layers=4, micro_batch=7)
    assert [config.micro_batch for config in largest([few, many])] == [7]  # the rows of one forward pass count


# what there is


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
        assert count_workers([smoke()]) == 0


# how many


@pytest.fixture
def measured(monkeypatch):
    """Says that so many runs fit on a GPU, and keeps what was asked."""

    def make(number):
        asked = []
        monkeypatch.setattr(cluster, "local_cluster", lambda *_: nullcontext())
        monkeypatch.setattr(cluster, "runs_a_gpu", lambda _, todo, most: asked.append(most) or min(number, most))
        return asked

    return make


def test_as_many_workers_as_were_measured_to_fit_on_the_gpus(machine, measured):
    ten = [smoke(seed=seed) for seed in range(10)]
    asked = measured(3)
    machine(2, cores=16)
    assert count_workers(ten) == 6
    assert count_workers([*ten, smoke(threads=4)]) == 4
    assert asked == [8, 2]  # of 16 cores' workers, and of 4
    machine(1, cores=16)
    assert count_workers(ten) == 3
    assert count_workers(ten, 5) == 5
    assert count_workers(ten, 0) == 0


def test_nothing_is_measured_where_there_is_no_choice(machine, measured):
    asked = measured(9)
    ten = [smoke(seed=seed) for seed in range(10)]
    machine(1)
    assert count_workers(ten[:1]) == 0
    assert count_workers([config.but(device="cuda:1") for config in ten]) == 0  # the user has chosen
    assert count_workers([config.but(device="cpu") for config in ten]) == 10
    machine(4)
    assert count_workers(ten[:4]) == 4
    machine(4, cores=4)
    assert count_workers(ten) == 4
    machine(1, cores=1)
    assert count_workers(ten) == 0  # in this process, as ever
    assert asked == []


def test_runs_that_fill_a_gpu_train_in_this_process(machine, measured, store):
    machine(1)
    measured(1)
    with open_engine(None, None, "auto", [smoke(), smoke(seed=1)], store) as engine:
        assert isinstance(engine, cluster.Here)


# the trial


@pytest.fixture
def looking(tmp_path, monkeypatch):
    """A GPU of 80 GB, of which a worker that tries runs takes 12, 3 of them for what is not a tensor."""
    monkeypatch.setattr(gpus, "PATIENCE_S", 0.0)
    tried = tmp_path / "tried"

    def free():
        return [(68 if tried.exists() else 80) * GB, 60 * GB]

    def try_runs(configs, imports):
        tried.write_text("\n".join(configs))
        return Peak(most=14 * GB, now=9 * GB)

    monkeypatch.setattr(gpus, "free_bytes", free)
    monkeypatch.setattr(gpus, "try_runs", try_runs)
    return tried


def test_the_whole_process_is_counted_and_the_fullest_gpu_decides(looking):
    with local_cluster(2, 1) as client:
        assert runs_a_gpu(client, [smoke(), smoke(seed=1)], 16) == 3  # 0.9 · 60 / (12 + 14 − 9)
    assert looking.read_text() == largest([smoke()])[0].to_json()


def test_a_trial_that_kills_its_process_is_a_warning_and_one_run_a_gpu(looking, monkeypatch):
    monkeypatch.setattr(gpus, "try_runs", lambda *_: os._exit(1))
    with local_cluster(2, 1) as client, pytest.warns(UserWarning, match="could not be measured .*died.*--workers N"):
        assert runs_a_gpu(client, [smoke()], 16) == 1


def test_a_trial_trains_and_leaves_out_what_cannot_be_trained(monkeypatch):
    done = []
    monkeypatch.setattr(gpus, "train", lambda config: done.append(config.arm) or 1 / (config.arm != "LN>SSM>LN"))
    configs = [smoke(arm=arm).to_json() for arm in ("LN>SSM>LN", "None>SSM>GN")]
    marks = iter([7, 5, 4])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: next(marks))
    assert gpus.try_runs(configs, {}) == Peak(7, 0)  # each run has a mark of its own
    assert done == ["LN>SSM>LN", "None>SSM>GN"]
    monkeypatch.setattr(gpus, "PATIENCE_S", -1.0)
    gpus.try_runs(configs, {})
    assert len(done) == 3  # the first in any case
    monkeypatch.undo()  # what follows trains, and takes nothing of a GPU
    assert gpus.try_runs([config.to_json() for config in largest([smoke()])], {}) == Peak(0, 0)


# the workers


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


def test_a_sweep_over_two_gpus_stores_every_run(machine, store):
    machine(2, cores=2)
    ASKED.clear()
    frame = sweep([smoke(seed=seed, steps=2) for seed in range(3)], progress=False)
    assert list(frame.status) == ["ok"] * 3
    assert ASKED["gpus"] == ["0", "1"]


@pytest.mark.skipif(find_spec("dask_cuda") is None, reason="needs dask-cuda, which pins a Dask of its own")
def test_dask_cudas_own_class_takes_our_options_and_our_copies_of_its_workers(monkeypatch):
    monkeypatch.setenv("DASK_CUDA_TEST_DISABLE_DEVICE_SPECIFIC", "1")  # its own switch: no call of a device
    with local_cluster(3, 1, ["3", "7"]) as client:
        assert sorted(client.run(visible).values()) == [("3,7", "1")] * 2 + [("7,3", "1")]
