"""The index of a store changes no row and hides no damage: it only spares reading what is as it
was."""

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields, replace
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm.loop import OPTIMIZERS, SCHEDULES
from mambanorm.norms import NORMS
from mambanorm_study.config import RunConfig, run_id_of
from mambanorm_study.runs import index as indexing
from mambanorm_study.runs.grid import base_config, grid
from mambanorm_study.runs.index import INDEX, Index
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.runs.result import MANIFEST, read_run
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import COLUMNS, check_runs, load_runs, missing_runs, save_run
from mambanorm_study.tasks import TASKS

store_module = import_module("mambanorm_study.runs.store")


@pytest.fixture(scope="module")
def result():
    return train(base_config("digits", "smoke"))


@pytest.fixture(scope="module")
def template(result, tmp_path_factory):
    """Runs of every kind, generated from one: other arms, tasks and seeds, of a regression,
    diverged."""
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
def runs(template, store, monkeypatch):
    """A store with these runs, in which a single new run is worth an index."""
    monkeypatch.setattr(indexing, "LEAST", 1)
    return shutil.copytree(template, store)


@pytest.fixture
def reads(monkeypatch):
    """The folders that are read, in order."""
    seen = []

    def reading(folder):
        seen.append(folder.name)
        return read_run(folder)

    for module in (indexing, store_module):
        monkeypatch.setattr(module, "read_run", reading)
    return seen


def unindexed(store, names=None):
    """The run frame as it was made before there was an index: a dict a run."""
    names = (
        sorted(path.name for path in store.iterdir() if "." not in path.name)
        if names is None
        else names
    )
    return pd.DataFrame([read_run(store / name).row() for name in names]).reindex(columns=COLUMNS)


def any_run(store, at=0):
    return sorted(path for path in store.iterdir() if "." not in path.name)[at]


# --------------------------------------------------------------------------------------------------
# the same frame, with fewer reads


def test_the_frame_is_the_same_with_an_index_and_without(runs, reads, monkeypatch):
    expected = unindexed(runs)
    assert set(expected.status) == {"ok", "diverged"}
    assert expected.rmse.isna().any()
    assert expected.rmse.notna().any()
    with monkeypatch.context() as usual:  # a small store has none
        usual.setattr(indexing, "LEAST", 64)
        pd.testing.assert_frame_equal(load_runs(), expected)
    assert not (runs / INDEX).exists()
    for look in ("first", "second"):
        reads.clear()
        pd.testing.assert_frame_equal(load_runs(), expected)
        assert len(reads) == (len(expected) if look == "first" else 0)
    assert INDEX.endswith(f"-{os.getuid()}")


def test_what_is_asked_by_configs_comes_in_their_order_and_is_not_read_again(runs, reads):
    configs, new = (
        configs_of(runs, sorted(path.name for path in runs.iterdir())),
        base_config("digits", "smoke", seed=77),
    )
    for look in ("first", "second"):  # looking for what is missing writes the index, too
        reads.clear()
        assert missing_runs([*configs, new]) == [new]
        assert len(reads) == (len(configs) + 1 if look == "first" else 1)
    reads.clear()
    asked = [config.run_id for config in configs[::-2]]
    assert load_runs(configs=configs[::-2]).run_id.tolist() == asked
    assert study.sweep(configs[::-2], workers=0, progress=False).run_id.tolist() == asked
    assert reads == []


@pytest.mark.parametrize("few", [True, False])
def test_rows_of_the_index_and_rows_just_read_have_the_types_of_one_frame(few, runs, reads):
    """Also where one half has no value in a column: numbers, texts and None stay what they are."""
    expected = unindexed(runs)
    for changed in (
        expected.run_id[expected.status == "diverged"].tolist(),
        expected.run_id[::3].tolist(),
    ):
        load_runs()
        for name in changed:
            os.utime(runs / name)
        reads.clear()
        pd.testing.assert_frame_equal(
            load_runs(configs=configs_of(runs, changed) if few else None),
            unindexed(runs, changed) if few else expected,
        )
        assert sorted(reads) == sorted(changed)


def configs_of(store, names):
    return [read_run(store / name).config for name in names]


def test_a_filter_gives_the_rows_that_have_one_of_the_values(runs):
    frame = unindexed(runs)
    seeds = [range(1, 3), np.array([1, 2]), frozenset({1, 2}), pd.Series([1, 2]), {1: "", 2: ""}]
    several = (
        {"task": "digits", "status": ["ok"]},
        {"arm": "no such"},
        *({"seed": given} for given in seeds),
    )
    for where in ({"status": "diverged"}, *several):
        expected = frame
        for name, value in where.items():
            expected = expected[
                expected[name].isin([value] if isinstance(value, str) else list(value))
            ]
        pd.testing.assert_frame_equal(load_runs(**where), expected.reset_index(drop=True))
    for none in (
        None,
        float("nan"),
        [None],
    ):  # in a column of numbers, of texts and of nothing at all
        for name in ("rmse", "first_nonfinite_site", "error"):
            assert (
                load_runs(**{name: none}).run_id.tolist()
                == frame.run_id[frame[name].isna()].tolist()
                != []
            )
        assert len(load_runs(task=none)) == 0
    assert len(load_runs(rmse=[None, *frame.rmse.dropna()])) == len(frame)


# --------------------------------------------------------------------------------------------------
# the folders are the truth


def test_an_added_and_a_removed_run_are_noticed(runs, reads, result):
    before = load_runs()
    shutil.rmtree(any_run(runs))
    reads.clear()
    pd.testing.assert_frame_equal(load_runs(), unindexed(runs))
    added = save_run(result)
    reads.clear()
    assert set(load_runs().run_id) == {*before.run_id[1:], added.name}
    assert reads == [added.name]


def test_a_run_that_is_trained_again_replaces_its_row(runs, reads, result):
    folder = save_run(result)
    load_runs()
    shutil.rmtree(folder)
    save_run(replace(result, wall_s=1234.5))
    reads.clear()
    assert 1234.5 in set(load_runs().wall_s)
    assert reads == [folder.name]


@pytest.mark.parametrize("name", ["result.json", "curves.parquet", "checkpoint.safetensors"])
def test_a_file_that_is_gone_is_noticed_and_one_that_was_altered_when_it_is_read(name, runs):
    folder = any_run(runs)
    assert folder.name in set(load_runs().run_id)
    _flip(folder / name)
    assert "is damaged" in check_runs()[folder.name]
    (folder / name).unlink()
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged: {name} is missing"):
        assert folder.name not in set(load_runs().run_id)


def test_a_damaged_run_warns_every_time_and_enters_no_index(runs):
    (any_run(runs) / "result.json").write_text("{}")
    for _ in range(3):
        with pytest.warns(
            UserWarning, match=f"{any_run(runs).name} is damaged: result.json was altered"
        ):
            assert any_run(runs).name not in set(load_runs().run_id)
    assert any_run(runs).name not in Index(runs, "many of them").kept


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
    """With an index, which must not show it, and without one."""
    monkeypatch.setitem(registry, "mine", registry[like])
    for config in grid(["RMSN>SSM>GN"], scale="smoke", seeds=2, **what):
        facts = json.loads((any_run(template) / "result.json").read_text()) | {
            "steps": config.steps
        }
        _write(any_run(template), runs / config.run_id, config, facts)
    n = len(load_runs())
    assert n == len(load_runs()) == len(unindexed(template)) + 2
    monkeypatch.delitem(registry, "mine")
    for _ in ("index", "none"):
        with pytest.warns(
            UserWarning, match=f"2 runs use the {field} 'mine', which is not registered here"
        ) as said:
            assert len(load_runs()) == n - 2
        assert len(said) == 1
        (runs / INDEX).unlink()


# --------------------------------------------------------------------------------------------------
# the file


def _flip(path):
    content = bytearray(path.read_bytes())
    content[-len(content) // 2] ^= 1
    path.write_bytes(content)


TAMPERED = {
    "lost": lambda store, _: (store / INDEX).unlink(),
    "torn": lambda store, _: (store / INDEX).write_bytes((store / INDEX).read_bytes()[:-100]),
    "without its checksum": lambda store, _: (store / INDEX).write_bytes(
        (store / INDEX).read_bytes()[65:]
    ),
    "of other code": lambda _, patch: patch.setattr(indexing, "SCHEMA", 2**20),
    "with a bit flipped": lambda store, _: _flip(store / INDEX),
}


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED)
def test_an_index_that_is_not_what_was_written_is_rebuilt(tamper, runs, reads, monkeypatch):
    expected = load_runs()
    tamper(runs, monkeypatch)
    reads.clear()
    pd.testing.assert_frame_equal(load_runs(), expected)
    assert len(reads) == len(expected)
    pd.testing.assert_frame_equal(load_runs(), expected)
    assert len(reads) == len(expected)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")]
)
def test_a_store_that_cannot_be_written_is_read_all_the_same(error, runs, monkeypatch):
    def refuse(*_):
        raise error

    with monkeypatch.context() as full:
        full.setattr(os, "replace", refuse)
        pd.testing.assert_frame_equal(load_runs(), unindexed(runs))
    assert not [path for path in runs.iterdir() if path.name.startswith(".")]
    (runs / INDEX).mkdir()  # nor does a folder in its place stop anything
    pd.testing.assert_frame_equal(load_runs(), unindexed(runs))
    assert [path.name for path in runs.iterdir() if path.name.startswith(".")] == [INDEX]


def test_an_indexed_run_that_was_deleted_keeps_no_other_from_the_index(runs, reads):
    """Nor does a look at some runs forget the others."""
    configs = configs_of(runs, load_runs().run_id)
    shutil.rmtree(runs / configs[0].run_id)
    os.utime(runs / configs[1].run_id)
    for look in ("first", "second"):
        reads.clear()
        assert missing_runs(configs) == configs[:1]
        assert (configs[1].run_id in reads) == (look == "first")
    os.utime(runs / configs[1].run_id)
    load_runs(configs=configs[1:2])
    names = [config.run_id for config in configs[1:]]
    assert Index(runs, "many of them").sound(names) == set(names)


# --------------------------------------------------------------------------------------------------
# what is known without reading, or without torch


def _module(load):
    return getattr(load, "func", load).__module__  # of a partial: that of its function


def test_the_names_that_are_known_without_torch_are_those_of_the_registries():
    assert {
        name for name, entry in TASKS.items() if _module(entry.load).startswith("mambanorm_study.")
    } == {*PAPER}


@pytest.mark.parametrize("options", [{}, {"groups": 2, "site": {"eps": 1e-3}}], ids=str)
def test_a_config_with_another_seed_is_the_one_made_with_it(options):
    first = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options=options)
    assert first.run_id  # a seed that comes later must not find this one
    for seed in (0, 7, 2**32 - 1):
        other, made = first.with_seed(seed), first.but(seed=seed)
        assert other == made
        assert other.run_id == made.run_id == run_id_of(json.loads(made.to_json()))
    for seed in (2**32, -1, 1.0, True, "1"):
        with pytest.raises(ValueError, match="a seed is a whole number"):
            first.with_seed(seed)


OPTIONS = {"groups": 2, "n1": {"eps": 1e-3, "of": [1, 2]}}


def test_the_options_of_a_config_are_its_own():
    given = deepcopy(OPTIONS)
    config = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options=given)
    given["n1"]["eps"] = given["n1"]["of"][0] = 5.0  # what the caller still holds is another dict
    copies = (
        pickle.loads(pickle.dumps(config)),
        deepcopy(config),
        RunConfig.from_json(config.to_json()),
    )
    made = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options=deepcopy(OPTIONS))
    kept = {"groups": 2, "n1": {"eps": 1e-3, "of": (1, 2)}}
    assert all(
        (one, one.run_id, one.norm_options) == (made, made.run_id, kept)
        for one in (config, *copies)
    )
    assert len({one.to_json() for one in (config, *copies)}) == 1
    assert RunConfig(norm_options=config.norm_options | {"eps": 5.0}).norm_options["eps"] == 5.0


@pytest.mark.parametrize("name", [field.name for field in fields(RunConfig)])
def test_no_field_of_a_config_changes_once_its_run_id_is_taken(name):
    """A run would be stored under the run_id of other options: `config.norm_options["groups"] = 8`
    was possible."""
    config = base_config(
        "digits", "smoke", arm="GN>SSM>GN", norm_options=OPTIONS, down_sample=(), betas=[0.9, 0.95]
    )
    copies = [
        config,
        deepcopy(config),
        pickle.loads(pickle.dumps(config)),
        config.with_seed(1),
        config.but(lr=1e-3),
    ]
    for one in copies:
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, 1)
        with_fixed_values(getattr(one, name))


def with_fixed_values(value):
    """Assert that a value is one that never changes, or a dict that refuses each way of changing
    it."""
    if not isinstance(value, dict):
        assert isinstance(value, str | int | float | tuple)
        return [with_fixed_values(part) for part in value] if isinstance(value, tuple) else None
    ways = [lambda: value.update(groups=8), value.clear, value.popitem, lambda: value.pop("groups")]
    ways += [lambda: value.setdefault("groups", 8), lambda: value.__setitem__("groups", 8)]
    ways += [lambda: value.__delitem__("groups"), lambda: value.__ior__({"groups": 8})]
    for change in ways:
        with pytest.raises(
            TypeError, match="cannot change, its run_id is made from them: use config.but"
        ):
            change()
    return [with_fixed_values(part) for part in value.values()]


WITHOUT_TORCH = """
import sys
from mambanorm_study.cli.main import main
assert main(sys.argv[1:]) == 0
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.mark.parametrize(
    "command",
    [
        ["runs"],
        ["runs", "--tasks", "digits"],
        ["sweep", "--arms", "RMSN>SSM>GN", "--seeds", "3", "--scale", "smoke"],
    ],
    ids=" ".join,
)
def test_a_command_that_only_looks_at_the_store_does_not_wait_for_torch(command, runs):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
