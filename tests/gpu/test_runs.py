"""Claims about runs on a GPU: they train, learn as on the CPU, go on after an interruption and share
the GPU.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import mambanorm as mn
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run, load_runs
from mambanorm_study.tasks import listops, load_task, pathfinder
from tests.mambanorm_study.runs.test_training_state import go_on, kill
from tests.mambanorm_study.tasks.test_datasets import forget, put_lra, whole_set


def smoke(device, task="digits", **changes):
    return base_config(task, "smoke", steps=6, device=device.type, **changes)


def scan_of(device):
    """Return the name of the scan that a run on the device takes."""
    return mn.scan_backend(torch.empty(0, device=device))


def assert_same_curves(ours, theirs):
    """Losses and gradient norms equal to three digits: a GPU may add in any order."""
    for name in ("train_loss", "grad_norm", "val_loss"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-3, err_msg=name)


# ------------------------------------------------------------------------------------- what is learnt


@pytest.mark.parametrize(
    ("task", "arm", "seeds"),
    [("curves", "None>SSM>GN", (60, 61, 62)), ("listops", "RMSN>SSM>None", (60,))],
)
def test_runs_reach_the_accuracy_of_the_recorded_runs_on_the_cpu(task, arm, seeds, device):
    """The mean accuracy of new seeds is in the 99.9 % prediction interval of the recorded runs.

    Recorded runs are taken because they are many (36 and 12), cost nothing and were trained by the
    same config. The interval is ±2.5 points for three runs of `curves` and ±4 for one run of
    `listops`. The tasks are learnt well above chance (93 and 53 % of ten classes), so a wrong
    gradient or a broken schedule leaves the interval; rounding does not.
    """
    if task == "curves":
        pytest.importorskip("mnist1d", reason="the package mnist1d, which draws the curves")
    config = base_config(task, "evening", arm=arm)
    frame = recorded("evening")
    known = frame.test_accuracy[frame.run_id.isin({config.but(seed=s).run_id for s in range(100)})]
    assert len(known) >= 12
    results = [train(config.but(seed=seed, device=device.type)) for seed in seeds]
    assert {(result.status, result.backend) for result in results} == {("ok", scan_of(device))}
    accuracy = np.mean([result.test_accuracy for result in results])
    width = (
        stats.t.ppf(0.9995, len(known) - 1) * known.std() * (1 / len(known) + 1 / len(seeds)) ** 0.5
    )
    assert accuracy == pytest.approx(known.mean(), abs=width)


# ---------------------------------------------------------------------------------------- interruption


@pytest.mark.parametrize(
    ("task", "arm", "at"), [("digits", "RMSN>SSM>GN", 3), ("listops", "BN>SSM>NormVary", 4)]
)
def test_an_interrupted_run_goes_on_to_the_result_of_one_that_was_not(
    task, arm, at, device, tmp_path
):
    config = smoke(device, task, arm=arm)
    kill(config, at, tmp_path)
    result, steps = go_on(config, tmp_path, checkpoint_every_s=0)
    assert steps == list(range(at, 7))
    assert result.status == "ok"
    assert_same_curves(result.curves, train(config).curves)


# ------------------------------------------------------------------------------- two workers, one GPU

WORKER = """
import sys
from mambanorm_study.runs.worker import run_one

outcome = run_one(*sys.argv[1:])
sys.exit(outcome.error or 0)
"""


def assert_trained_as_alone(configs, device):
    frame = load_runs(configs=configs)
    assert len(frame) == len(configs)
    assert set(frame.status) == {"ok"}
    assert set(frame.backend) == {scan_of(device)}
    for config in configs:
        assert_same_curves(find_run(config).curves, train(config).curves)


def test_two_processes_train_on_one_gpu_at_the_same_time(device, store):
    configs = [smoke(device, seed=seed) for seed in (0, 1)]
    store.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    options = dict(env=environment, stderr=subprocess.PIPE, text=True)
    command = [sys.executable, "-c", WORKER]
    processes = [
        subprocess.Popen([*command, config.to_json(), str(store)], **options) for config in configs
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors
    assert_trained_as_alone(configs, device)


def test_two_workers_of_a_sweep_share_one_gpu(device, store):
    pytest.importorskip("distributed", reason="the package distributed (Dask), which runs sweeps")
    pytest.importorskip("cryptography", reason="the package cryptography, which Dask's TLS needs")
    from mambanorm_study.runs.sweep import sweep

    configs = [smoke(device, seed=seed) for seed in range(4)]
    frame = sweep(configs, workers=2, progress=False)
    assert list(frame.status) == ["ok"] * 4, frame.error
    assert_trained_as_alone(configs[:2], device)


# ---------------------------------------------------------------------------------- the paper's scale


@pytest.fixture
def data(monkeypatch, tmp_path):
    """Use a new, empty data folder and empty caches."""
    monkeypatch.setenv("MAMBANORM_DATA_DIR", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def make_listops(data, monkeypatch):
    """Let the generator draw 128 expressions of the Long Range Arena's kind instead of 100,000."""
    settings = replace(listops.SETTINGS["paper"], sizes=(64, 32, 32))
    monkeypatch.setitem(listops.SETTINGS, "paper", settings)


def make_cifar(data, monkeypatch):
    whole_set(monkeypatch, data, "cifar10", 60)


def make_pathfinder(data, monkeypatch):
    put_lra(data / "pathfinder64", window=64)
    monkeypatch.setattr(pathfinder, "MIN_IMAGES", 60)


@pytest.mark.parametrize(
    ("task", "make_data", "classes", "length"),
    [
        ("listops", make_listops, 10, 1_500),
        ("cifar10", make_cifar, 10, 1_024),
        ("pathfinder64", make_pathfinder, 2, 4_096),
    ],
)
def test_the_papers_settings_train_for_three_steps(
    task, make_data, classes, length, device, data, monkeypatch
):
    """Models and batches are the paper's; the few rows are made here in the format of the files.

    On the CPU a batch has two rows.
    """
    make_data(data, monkeypatch)
    config = base_config(task, "paper", device=device.type).but(steps=3, eval_every=3)
    if device.type == "cpu":
        config = config.but(batch_size=2)
    assert load_task(task, "paper", config.seed).train.inputs.shape[1] >= length
    result = train(config)
    assert (result.status, result.steps, result.backend) == ("ok", 3, scan_of(device))
    # before it has learnt anything, a model is about as good as chance
    assert np.allclose(result.curves.train_loss, np.log(classes), rtol=0.5)
    assert np.isfinite(result.curves.grad_norm).all()


# -------------------------------------------------------------------------------------------- notebook


def test_a_notebook_runs_on_the_gpu(device, tmp_path):
    for package in ("papermill", "ipykernel"):
        pytest.importorskip(package, reason=f"the package {package}, which runs notebooks")
    from mambanorm_study.report.execute import run_notebook
    from mambanorm_study.report.notebooks import find_notebooks

    given = {"scale": "smoke", "runs_dir": str(tmp_path / "runs")}
    outcome = run_notebook(find_notebooks("00")[0], tmp_path / "out", given)
    assert not outcome.problem
    frame = load_runs(tmp_path / "runs")
    assert len(frame) >= 2
    assert set(frame.backend) == {scan_of(device)}
