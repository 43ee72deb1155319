"""A run that was killed goes on from its checkpoint, to the very same result."""

import signal
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
import torch

import mambanorm as mn
from mambanorm.loop import OPTIMIZERS
from mambanorm.training.checkpoint import Checkpoint
from mambanorm.training.grid import base_config
from mambanorm.training.run import train
from mambanorm.training.store import find_run, load_runs, resume_dir, save_run


class Killed(Exception):
    pass


def smoke(task="digits", arm="RMSN>SSM>None", **changes):
    return base_config(task, "smoke", arm=arm, steps=6, **changes)


def kill(config, at, folder):
    """Trains until step `at` is done but not saved."""

    def stop(step, *_):
        if step == at:
            raise Killed

    with pytest.raises(Killed):
        train(config, on_step=stop, checkpoint_dir=folder, checkpoint_every_s=0)


def go_on(config, folder, **options):
    """The result of the run that goes on, and the steps it did."""
    steps = []
    result = train(config, on_step=lambda step, *_: steps.append(step), checkpoint_dir=folder, **options)
    return result, steps


def assert_same(one, other):
    assert one.curves.equals(other.curves)
    for name in ("predictions", "diagnostics"):
        arrays, others = getattr(one, name), getattr(other, name)
        assert set(arrays) == set(others)
        for key, value in arrays.items():
            assert value.dtype == others[key].dtype, key
            assert np.array_equal(value, others[key], equal_nan=value.dtype.kind == "f"), key
    assert set(one.checkpoint) == set(other.checkpoint)
    assert all(torch.equal(value, other.checkpoint[name]) for name, value in one.checkpoint.items())
    for name in ("status", "test_accuracy", "best_val_accuracy", "best_step", "steps", "first_nonfinite_step"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("at", [2, 3, 6])
@pytest.mark.parametrize(
    ("task", "arm"),
    [("digits", "RMSN>SSM>None"), ("digits", "NormVary>SSM>BN"), ("listops", "BN>SSM>NormVary")],
)
def test_a_run_that_goes_on_gives_the_result_of_one_that_was_never_stopped(task, arm, at, tmp_path):
    config = smoke(task, arm)
    kill(config, at, tmp_path / "run")
    result, steps = go_on(config, tmp_path / "run", checkpoint_every_s=0)
    assert steps == list(range(at, 7))
    assert_same(result, train(config))


def test_a_run_may_be_killed_twice_and_after_its_last_step(tmp_path):
    config = smoke(arm="BN>SSM>GN")
    kill(config, 2, tmp_path / "run")
    kill(config, 5, tmp_path / "run")
    train(config, checkpoint_dir=tmp_path / "run", checkpoint_every_s=0)  # to the end, but never stored
    result, steps = go_on(config, tmp_path / "run")
    assert steps == []
    assert_same(result, train(config))


def test_a_run_that_goes_on_diverges_where_it_would_have(tmp_path):
    config = smoke(arm="None>SSM>None", lr=3.0, n_layers=4).but(steps=30, warmup_steps=29)
    never_stopped = train(config)
    at = never_stopped.first_nonfinite_step - 1
    assert at >= 2
    kill(config, at, tmp_path / "run")
    result, _ = go_on(config, tmp_path / "run")
    assert result.status == "diverged"
    assert_same(result, never_stopped)


def test_a_checkpoint_that_kept_no_outputs_goes_on_without_them(tmp_path, monkeypatch):
    """Versions before kept weights alone."""
    config, take = smoke(), Checkpoint._take
    with monkeypatch.context() as earlier:
        earlier.setattr(Checkpoint, "_take", lambda self: {k: v for k, v in take(self).items() if "outputs" not in k})
        kill(config, 4, tmp_path / "run")
    result, steps = go_on(config, tmp_path / "run")
    never_stopped = train(config)
    assert steps == [4, 5, 6]
    lost, kept = result.diagnostics["ring_outputs"], never_stopped.diagnostics["ring_outputs"]
    assert np.isnan(lost[:3]).all()
    assert np.array_equal(lost[3:], kept[3:])
    result.diagnostics["ring_outputs"] = kept
    assert_same(result, never_stopped)


def test_one_checkpoint_is_kept_and_none_before_its_time(tmp_path):
    kill(smoke(), 5, tmp_path / "often")
    assert [path.name for path in (tmp_path / "often").iterdir()] == ["step-4"]
    train(smoke(), checkpoint_dir=tmp_path / "seldom")
    assert not (tmp_path / "seldom").exists()


@pytest.mark.parametrize("name", ["state.safetensors", "curve.parquet", "progress.json"])
@pytest.mark.parametrize("keep", [0, 0.5])
def test_a_truncated_checkpoint_is_set_aside_and_the_run_starts_anew(name, keep, tmp_path):
    config, folder = smoke(), tmp_path / "run"
    kill(config, 4, folder)
    path = folder / "step-3" / name
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.warns(UserWarning, match=r"(?s)cannot go on from .*step-3.*run\.damaged-1"):
        result, steps = go_on(config, folder)
    assert steps == list(range(1, 7))
    assert (tmp_path / "run.damaged-1" / "step-3" / name).exists()
    assert_same(result, train(config))


def test_progress_that_is_no_number_is_set_aside(tmp_path):
    config, folder = smoke(), tmp_path / "run"
    kill(config, 4, folder)
    path = folder / "step-3" / "progress.json"
    path.write_text(path.read_text().replace('"tokens": ', '"tokens": "x", "was": '))
    with pytest.warns(UserWarning, match="its tokens is 'x', needed is a number; set aside"):
        result, steps = go_on(config, folder)
    assert steps[0] == 1
    assert_same(result, train(config))


def test_an_altered_weight_in_a_checkpoint_is_noticed(tmp_path):
    config, folder = smoke(), tmp_path / "run"
    kill(config, 4, folder)
    path = folder / "step-3" / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1  # still a sound file of the same tensors
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="checksums are not those it was written with; set aside"):
        result, steps = go_on(config, folder)
    assert steps[0] == 1
    assert_same(result, train(config))


def test_a_checkpoint_that_is_replaced_while_it_is_read_is_not_damaged(tmp_path, monkeypatch):
    """By a process that was paused, lost its lease, and woke up."""
    config, folder, read = smoke(), tmp_path / "run", Checkpoint._read
    kill(config, 3, folder)

    def read_late(self, path):
        if path.name == "step-2":
            monkeypatch.setattr(Checkpoint, "_read", read)
            kill(config, 5, folder)
        return read(self, path)

    monkeypatch.setattr(Checkpoint, "_read", read_late)
    result, steps = go_on(config, folder)
    assert steps == [5, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert_same(result, train(config))


def test_the_checkpoint_of_another_run_is_set_aside(tmp_path):
    kill(smoke(seed=1), 4, tmp_path / "run")
    with pytest.warns(UserWarning, match=f"it belongs to run {smoke(seed=1).run_id}"):
        result, steps = go_on(smoke(), tmp_path / "run")
    assert steps[0] == 1
    assert_same(result, train(smoke()))


def test_a_half_written_checkpoint_is_no_checkpoint(tmp_path):
    config, folder = smoke(), tmp_path / "run"
    kill(config, 4, folder)
    (folder / "step-3").rename(folder / ".unfinished-abc")
    _, steps = go_on(config, folder, checkpoint_every_s=0)
    assert steps[0] == 1
    assert [path.name for path in folder.iterdir()] == ["step-6"]


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_run(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="no checkpoint at step 1"):
        result, _ = go_on(smoke(), tmp_path / "run", checkpoint_every_s=0)
    assert_same(result, train(smoke()))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_with_an_optimizer_of_ones_own_goes_on_too(tmp_path, monkeypatch, momentum):
    """Plain SGD keeps nothing from step to step, or None."""
    sgd = lambda groups, config: torch.optim.SGD(groups, lr=config.lr, momentum=momentum)  # noqa: E731
    monkeypatch.setitem(OPTIMIZERS, "sgd", sgd)
    config = smoke(optimizer="sgd")
    kill(config, 4, tmp_path)
    result, steps = go_on(config, tmp_path)
    assert steps == [4, 5, 6]
    assert_same(result, train(config))


def test_a_negative_interval_is_refused(tmp_path):
    with pytest.raises(ValueError, match="checkpoint_every_s must be .* from 0 up, got -1"):
        train(smoke(), checkpoint_dir=tmp_path, checkpoint_every_s=-1)


def test_a_sweep_goes_on_from_a_checkpoint_and_deletes_it_when_the_run_is_stored(store, monkeypatch):
    config, steps = smoke(arm="RMSN>SSM>BN"), []
    kill(config, 4, resume_dir(config))

    def watched(config, **options):
        return train(config, on_step=lambda step, *_: steps.append(step), **options)

    monkeypatch.setattr(import_module("mambanorm.training.worker"), "train", watched)
    assert len(load_runs()) == 0  # what is under way is no run yet
    frame = mn.sweep([config], workers=0, progress=False)
    assert list(frame.status) == ["ok"]
    assert steps == [4, 5, 6]
    assert [path.name for path in store.iterdir()] == [config.run_id]
    assert find_run(config).curves.equals(train(config).curves)


def test_storing_one_run_leaves_the_checkpoints_of_others_alone(store):
    kill(smoke(seed=1), 3, resume_dir(smoke(seed=1)))
    save_run(train(smoke()))
    assert resume_dir(smoke(seed=1)).exists()


def test_a_run_killed_by_the_system_goes_on(tmp_path):
    """SIGKILL from within, between a step and its checkpoint: nothing of Python's gets to tidy up."""
    config, folder = smoke("listops", "NormVary>SSM>BN"), tmp_path / "run"
    script = """
import os, signal, sys
from mambanorm import RunConfig, train

def die(step, *_):
    if step == 4:
        os.kill(os.getpid(), signal.SIGKILL)

train(RunConfig.from_json(sys.argv[1]), on_step=die, checkpoint_dir=sys.argv[2], checkpoint_every_s=0)
"""
    arguments = [sys.executable, "-c", script, config.to_json(), str(folder)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    result, steps = go_on(config, folder)
    assert steps == [4, 5, 6]
    assert_same(result, train(config))
