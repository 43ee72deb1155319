"""A run that was killed goes on from its checkpoint, to the very same result."""

from importlib import import_module

import numpy as np
import pytest
import torch

import mambanorm_study as study
from mambanorm.loop import OPTIMIZERS
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import find_run, load_runs, resume_dir, save_run
from mambanorm_study.runs.training_state import CHECKPOINT

run_module = import_module("mambanorm_study.runs.run")


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
    result = train(
        config, on_step=lambda step, *_: steps.append(step), checkpoint_dir=folder, **options
    )
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
    for name in (
        "status",
        "test_accuracy",
        "best_val_accuracy",
        "best_step",
        "steps",
        "first_nonfinite_step",
    ):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize(
    ("task", "arm", "at"),
    [
        ("digits", "RMSN>SSM>None", 2),
        ("digits", "NormVary>SSM>BN", 3),
        ("listops", "BN>SSM>NormVary", 6),
    ],
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
    train(
        config, checkpoint_dir=tmp_path / "run", checkpoint_every_s=0
    )  # to the end, but never stored
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


def test_one_checkpoint_is_kept_and_none_before_its_time(tmp_path):
    kill(smoke(), 5, tmp_path / "often")
    assert [path.name for path in (tmp_path / "often").iterdir()] == [CHECKPOINT]
    train(smoke(), checkpoint_dir=tmp_path / "seldom")
    assert not (tmp_path / "seldom").exists()


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1  # still a sound file of the same tensors
    path.write_bytes(content)


def close(path):
    path.unlink()
    path.mkdir()  # as unreadable as another user's


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), cut, flip, close])
def test_from_a_checkpoint_that_is_not_what_was_written_no_run_goes_on(damage, tmp_path):
    config = smoke()
    kill(config, 4, tmp_path)
    damage(tmp_path / CHECKPOINT)
    with pytest.warns(
        UserWarning, match=r"cannot continue from .*checkpoint, the run starts anew: "
    ):
        result, steps = go_on(config, tmp_path)
    assert steps == list(range(1, 7))
    assert_same(result, train(config))


def test_the_checkpoint_of_another_run_or_of_other_code_is_not_this_ones(tmp_path, monkeypatch):
    kill(smoke(seed=1), 4, tmp_path)
    with pytest.warns(UserWarning, match=f"the file belongs to run {smoke(seed=1).run_id}"):
        result, steps = go_on(smoke(), tmp_path, checkpoint_every_s=0)
    assert steps[0] == 1
    assert_same(result, train(smoke()))
    build = run_module.build_model
    monkeypatch.setattr(
        run_module, "build_model", lambda config, data: build(config.but(d_state=8), data)
    )
    with pytest.warns(UserWarning, match="the file was written by other code or for another model"):
        assert go_on(smoke(), tmp_path)[1][0] == 1


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_run(tmp_path):
    (tmp_path / "run").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="no checkpoint at step 1"):
        result, _ = go_on(smoke(), tmp_path / "run", checkpoint_every_s=0)
    assert_same(result, train(smoke()))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_with_an_optimizer_of_ones_own_goes_on_too(tmp_path, monkeypatch, momentum):
    """Plain SGD keeps nothing from step to step, or None."""
    sgd = lambda groups, lr, betas: torch.optim.SGD(groups, lr=lr, momentum=momentum)
    monkeypatch.setitem(OPTIMIZERS, "sgd", sgd)
    config = smoke(optimizer="sgd")
    kill(config, 4, tmp_path)
    result, steps = go_on(config, tmp_path)
    assert steps == [4, 5, 6]
    assert_same(result, train(config))


def test_a_sweep_goes_on_from_a_checkpoint_and_deletes_it_when_the_run_is_stored(
    store, monkeypatch
):
    config, steps = smoke(arm="RMSN>SSM>BN"), []
    kill(config, 4, resume_dir(config))

    def watched(config, **options):
        return train(config, on_step=lambda step, *_: steps.append(step), **options)

    monkeypatch.setattr(import_module("mambanorm_study.runs.worker"), "train", watched)
    assert len(load_runs()) == 0  # what is under way is no run yet
    frame = study.sweep([config], workers=0, progress=False)
    assert list(frame.status) == ["ok"]
    assert steps == [4, 5, 6]
    assert [path.name for path in store.iterdir()] == [config.run_id]
    assert find_run(config).curves.equals(train(config).curves)


def test_storing_one_run_leaves_the_checkpoints_of_others_alone(store):
    kill(smoke(seed=1), 3, resume_dir(smoke(seed=1)))
    save_run(train(smoke()))
    assert resume_dir(smoke(seed=1)).exists()
