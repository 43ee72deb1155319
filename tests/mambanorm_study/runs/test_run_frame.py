"""The run frame shows every intact run of a store and no damaged one; a config cannot change."""

import hashlib
import json
import pickle
import shutil
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields

import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm.loop import OPTIMIZERS, SCHEDULES
from mambanorm.norms import NORMS
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import base_config, grid
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.runs.result import MANIFEST, config_row, read_run
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import COLUMNS, load_runs, missing_runs, save_run
from mambanorm_study.tasks import TASKS
from tests.run_store import check_runs


@pytest.fixture(scope="module")
def result():
    return train(base_config("digits", "smoke"))


@pytest.fixture(scope="module")
def template(result, tmp_path_factory):
    """Runs of every kind, generated from one: other arms, tasks and seeds, of a regression,
    diverged.
    """
    store = tmp_path_factory.mktemp("template")
    source = save_run(result, store / "source")
    configs = grid(
        ["RMSN>SSM>GN", "RMSN>SSM>None+B:RMSN"],
        ["digits", "diabetes"],
        scale="smoke",
        seeds=range(3),
    )
    configs += grid(["LN>MHA>LN"], scale="smoke", seeds=range(2), norm_options={"eps": 1e-3})
    none = dict.fromkeys(
        ("best_val_accuracy", "first_nonfinite_step", "first_nonfinite_site", "test_loss", "rmse")
    )
    none |= dict.fromkeys(("mae", "chance_rmse", "best_val_loss", "chance_loss"))
    for i, config in enumerate(configs):
        facts = (
            json.loads((source / "result.json").read_text())
            | none
            | {"steps": config.steps, "wall_s": i / 7}
        )
        if config.task == "diabetes":
            facts |= {"rmse": 50.0 + i, "mae": 40.1, "chance_rmse": 75.0}
        if i % 5 == 1:
            site = {"first_nonfinite_step": 0, "first_nonfinite_site": "n1"}
            facts |= {"status": "diverged", "test_accuracy": facts["chance"]} | site
        _write(source, store / config.run_id, config, facts)
    shutil.rmtree(source.parent)
    return store


def _write(source, folder, config, facts):
    shutil.copytree(source, folder)
    (folder / "config.json").write_text(config.to_json())
    (folder / "result.json").write_text(json.dumps(facts))
    _seal(folder)


def _seal(folder):
    """A manifest for the files as they are now."""
    files = json.loads((folder / MANIFEST).read_text())["files"]
    for name in files:
        content = (folder / name).read_bytes()
        files[name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / MANIFEST).write_text(json.dumps({"files": files}))


@pytest.fixture
def runs(template, store):
    """A store with these runs."""
    return shutil.copytree(template, store)


def frame_of(store):
    """Return the run frame of a store, read run by run."""
    names = sorted(path.name for path in store.iterdir() if "." not in path.name)
    runs = [read_run(store / name) for name in names]
    rows = [{**config_row(run.config), **run.facts, "checked": True} for run in runs]
    return pd.DataFrame(rows).reindex(columns=COLUMNS)


def any_run(store, at=0):
    return sorted(path for path in store.iterdir() if "." not in path.name)[at]


# --------------------------------------------------------------------------------------------------
# the frame


def test_the_frame_has_a_row_for_each_run_with_the_values_that_were_stored(runs):
    frame = load_runs()
    assert set(frame.status) == {"ok", "diverged"}
    assert frame.rmse.isna().any()
    assert frame.rmse.notna().any()
    pd.testing.assert_frame_equal(frame, frame_of(runs))


def test_runs_asked_for_by_configs_come_in_their_order(runs):
    run_ids = sorted(path.name for path in runs.iterdir())
    configs, new = configs_of(runs, run_ids), base_config("digits", "smoke", seed=77)
    assert missing_runs([*configs, new]) == [new]
    assert load_runs(configs=[new, *configs[::-2]]).run_id.tolist() == run_ids[::-2]
    swept = study.sweep(configs[::-2], workers=0, progress=False)
    assert swept.run_id.tolist() == run_ids[::-2]


def configs_of(store, names):
    return [read_run(store / name).config for name in names]


def test_a_scale_gives_the_rows_of_this_scale(runs):
    assert len(load_runs(scale="smoke")) == len(frame_of(runs))
    assert load_runs(scale="quick").empty


# --------------------------------------------------------------------------------------------------
# what changes in the store


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["result.json", "curves.parquet", "checkpoint.safetensors"])
def test_a_file_that_is_gone_is_noticed_and_one_that_was_altered_when_it_is_read(name, runs):
    folder = any_run(runs)
    assert folder.name in set(load_runs().run_id)
    _flip(folder / name)
    assert "is damaged" in check_runs(folder.parent)[folder.name]
    (folder / name).unlink()
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged: {name} is missing"):
        assert folder.name not in set(load_runs().run_id)


def test_a_damaged_run_warns_every_time(runs):
    (any_run(runs) / "result.json").write_text("{}")
    for _ in range(3):
        with pytest.warns(
            UserWarning, match=f"{any_run(runs).name} is damaged: result.json was altered"
        ):
            assert any_run(runs).name not in set(load_runs().run_id)


@pytest.mark.parametrize(
    ("field", "registry", "like", "what"),
    [
        ("optimizer", OPTIMIZERS, "adamw", dict(optimizer="mine")),
        ("schedule", SCHEDULES, "constant_warmup", dict(schedule="mine")),
        ("norm", NORMS, "RMSN", dict(final_norm="mine")),
    ],
)
def test_a_run_of_what_is_not_registered_here_is_not_damaged(
    field, registry, like, what, runs, template, monkeypatch
):
    monkeypatch.setitem(registry, "mine", registry[like])
    for config in grid(["RMSN>SSM>GN"], scale="smoke", seeds=2, **what):
        facts = json.loads((any_run(template) / "result.json").read_text()) | {
            "steps": config.steps
        }
        _write(any_run(template), runs / config.run_id, config, facts)
    n = len(load_runs())
    assert n == len(load_runs()) == len(frame_of(template)) + 2
    monkeypatch.delitem(registry, "mine")
    with pytest.warns(UserWarning, match=f"skipped: unknown {field} 'mine'"):
        assert len(load_runs()) == n - 2


# --------------------------------------------------------------------------------------------------
# what is known without reading, or without torch


def _module(load):
    return getattr(load, "func", load).__module__  # of a partial: that of its function


def test_the_names_that_are_known_without_torch_are_those_of_the_registries():
    assert {
        name for name, entry in TASKS.items() if _module(entry.load).startswith("mambanorm_study.")
    } == {*PAPER}


OPTIONS = {"groups": 2, "n1": {"eps": 1e-3}}


def test_the_options_of_a_config_are_its_own():
    given = deepcopy(OPTIONS)
    config = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options=given)
    given["n1"]["eps"] = 5.0  # what the caller still holds is another dict
    copies = (
        pickle.loads(pickle.dumps(config)),
        deepcopy(config),
        RunConfig.from_json(config.to_json()),
    )
    made = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options=deepcopy(OPTIONS))
    kept = {"groups": 2, "n1": {"eps": 1e-3}}
    assert all(
        (one, one.run_id, one.norm_options) == (made, made.run_id, kept)
        for one in (config, *copies)
    )
    assert len({one.to_json() for one in (config, *copies)}) == 1
    assert RunConfig(norm_options=config.norm_options | {"eps": 5.0}).norm_options["eps"] == 5.0


@pytest.mark.parametrize("name", [field.name for field in fields(RunConfig)])
def test_no_field_of_a_config_changes_once_its_run_id_is_taken(name):
    """A run would be stored under the run_id of other options: `config.norm_options["groups"] = 8`
    was possible.
    """
    config = base_config(
        "digits", "smoke", arm="GN>SSM>GN", norm_options=OPTIONS, down_sample=(), betas=[0.9, 0.95]
    )
    copies = [
        config,
        deepcopy(config),
        pickle.loads(pickle.dumps(config)),
        config.but(lr=1e-3),
    ]
    for one in copies:
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, 1)
        with_fixed_values(getattr(one, name))


def with_fixed_values(value):
    """Assert that a value is one that never changes, or a dict that refuses each way of changing
    it.
    """
    if not isinstance(value, dict):
        assert isinstance(value, str | int | float | tuple)
        return [with_fixed_values(part) for part in value] if isinstance(value, tuple) else None
    ways = [lambda: value.update(groups=8), value.clear, value.popitem, lambda: value.pop("groups")]
    ways += [lambda: value.setdefault("groups", 8), lambda: value.__setitem__("groups", 8)]
    ways += [lambda: value.__delitem__("groups"), lambda: value.__ior__({"groups": 8})]
    for change in ways:
        with pytest.raises(
            TypeError, match="cannot be changed, because its run_id .*: use config.but"
        ):
            change()
    return [with_fixed_values(part) for part in value.values()]
