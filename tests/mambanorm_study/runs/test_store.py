"""No damage enters the run store unnoticed, and nothing that is sound is moved or deleted."""

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from importlib import import_module

import numpy as np
import pyarrow.parquet as pq
import pytest

import mambanorm_study as study
from mambanorm_study.basics import atomic as whole
from mambanorm_study.cli.main import main
from mambanorm_study.config import run_id_of
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.result import MANIFEST, RUN_FILES
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import (
    check_store,
    find_run,
    load_runs,
    resume_dir,
    save_run,
)
from mambanorm_study.runs.training_state import CHECKPOINT
from mambanorm_study.runs.worker import train_and_store
from tests.run_store import check_runs

FLIPS = 12  # bits a file, spread over it


@pytest.fixture(scope="module")
def result():
    return train(base_config("digits", "smoke", arm="RMSN>SSM>GN"))


@pytest.fixture(scope="module")
def written(result, tmp_path_factory):
    """A stored run to copy from."""
    return save_run(result, tmp_path_factory.mktemp("written"))


@pytest.fixture
def folder(written, store):
    store.mkdir()
    return shutil.copytree(written, store / written.name)


def wrong_with(folder):
    return check_runs(folder.parent)[folder.name]


# --------------------------------------------------------------------------------------------------
# damage


@pytest.mark.parametrize("name", [*RUN_FILES, MANIFEST])
def test_every_flipped_bit_is_found(name, folder):
    path, sound = folder / name, (folder / name).read_bytes()
    for at in np.linspace(0, len(sound) - 1, FLIPS).astype(int):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        assert "is damaged" in wrong_with(folder), f"byte {at} of {name}"
    path.write_bytes(sound)
    assert wrong_with(folder) == ""


DAMAGE = {
    "cut": lambda path, content: path.write_bytes(content[:-1]),
    "more": lambda path, content: path.write_bytes(content + b"\n0"),
    "a folder": lambda path, _: (path.unlink(), path.mkdir()),
    "nested": lambda path, _: path.write_text("[" * 200_000),
    "gone": lambda path, _: path.unlink(),
}


@pytest.mark.parametrize("name", [*RUN_FILES, MANIFEST])
def test_an_odd_file_is_damage_that_is_found_without_reading_it_and_stops_nothing(name, folder):
    content = (folder / name).read_bytes()
    for what, damage in DAMAGE.items():
        damage(folder / name, content)
        with pytest.warns(
            UserWarning,
            match=f"the run .*{folder.name} is damaged: .* renames the folder and trains the run again",
        ):
            assert len(load_runs()) == 0
        shutil.rmtree(folder / name) if what == "a folder" else None


def sealed(folder, **changes):
    """The folder with another config or other facts, and a manifest that says so, as a run that was
    written like this; under the name that its config has.
    """
    for name in ("config.json", "result.json"):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(
            json.dumps(values | {k: v for k, v in changes.items() if k in values})
        )
    files = {
        name: {"sha256": whole.sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in RUN_FILES
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}))
    return folder.rename(
        folder.with_name(run_id_of(json.loads((folder / "config.json").read_text())))
    )


def test_a_damaged_run_is_set_aside_and_never_deleted(folder, result):
    (folder / "result.json").write_text("{}")
    left = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.warns(UserWarning, match=folder.name):
        save_run(result)
    (aside,) = folder.parent.glob(f"{folder.name}.damaged-*")
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == left
    assert len(load_runs()) == 1


def test_a_copy_is_not_taken_for_the_real_run_and_one_of_another_schema_not_for_this_one(
    folder, result, monkeypatch
):
    shutil.copytree(folder, folder.with_name("copy"))
    with pytest.warns(
        UserWarning,
        match="copy is damaged: its config is that of run .*: it was edited or copied, or is of an older SCHEMA",
    ):
        assert load_runs().run_id.tolist() == [folder.name]
    monkeypatch.setattr("mambanorm_study.config.SCHEMA", 2**20)
    with pytest.warns(UserWarning, match="edited or copied, or is of an older SCHEMA"):
        assert find_run(folder.name) is None


def test_a_run_of_a_norm_that_is_not_registered_here_is_not_damaged(folder, monkeypatch):
    """Nor is it by an import that fails."""
    folder = sealed(folder, arm="Peak>SSM>GN")
    assert "unknown norm 'Peak'" in wrong_with(folder)
    with pytest.warns(UserWarning, match="skipped: unknown norm 'Peak'"):
        assert len(load_runs()) == 0
    monkeypatch.setenv("MAMBANORM_IMPORT", str(folder.parent / "no_such.py"))
    with pytest.raises(ValueError, match=r"no_such.py: FileNotFoundError"):
        load_runs()
    monkeypatch.delenv("MAMBANORM_IMPORT")
    sealed(folder, arm="RMSN>SSM>GN", task="\x1b[31mred")
    with pytest.warns(UserWarning, match="task must be the name of a task") as said:
        assert len(load_runs()) == 0
    assert all(str(one.message).isprintable() for one in said)


def test_the_curves_have_no_column_that_is_an_index(folder):
    schema = pq.read_schema(folder / "curves.parquet")
    assert schema.pandas_metadata["index_columns"] == []


def test_a_missing_file_is_named(folder):
    (folder / "config.json").unlink()
    assert "is damaged: config.json is missing or is not a file" in wrong_with(folder)


def test_a_result_that_json_cannot_hold_is_not_written(store, result):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_run(replace(result, versions={"torch": float("nan")}))
    assert not list(store.iterdir())


def test_another_store_than_the_default_one_gets_all_files_of_a_run(store, tmp_path):
    config, other = base_config("digits", "smoke", arm="LN>SSM>None", steps=2), tmp_path / "other"
    other.mkdir()
    remains = resume_dir(config, other)
    remains.mkdir()
    train_and_store(config, other, checkpoint_every_s=0)
    assert find_run(config, other) is not None
    assert not remains.exists()
    assert not store.exists()


# --------------------------------------------------------------------------------------------------
# other users


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_the_umask_decides_who_may_read_a_run(mask, store, result):
    before = os.umask(mask)
    try:
        folder = save_run(result)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        [*RUN_FILES, MANIFEST], 0o666 & ~mask
    )
    assert folder.stat().st_mode & 0o777 == 0o777 & ~mask


def test_what_cannot_be_read_stays_where_it_is(folder, result, monkeypatch):
    from pathlib import Path

    read = Path.read_bytes

    def refuse(path):
        if path.parent == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match=folder.name):
        save_run(result)
    with pytest.warns(UserWarning, match=f"skipped: .*Permission denied.*{folder.name}"):
        assert len(load_runs()) == 0
    monkeypatch.undo()
    assert wrong_with(folder) == ""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


# --------------------------------------------------------------------------------------------------
# disks


def test_a_store_that_cannot_be_written_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(
            OSError, match=r"cannot hold the run store: .* give a folder that you can write to"
        ):
            check_store(path)
    assert (tmp_path / "file").read_text() == "mine"
    assert check_store(tmp_path / "new") == (tmp_path / "new").resolve()
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ["study", "--scale", "smoke", "--notebooks", "00", "--out"],
        ["record", "--scale", "smoke", "--out"],
        ["sweep", "--arms", "None>SSM>None", "--scale", "smoke", "--workers", "0", "--runs-dir"],
        ["train", "--arm", "None>SSM>None", "--scale", "smoke", "--runs-dir"],
        [
            "verdicts",
            "--scale",
            "smoke",
            "--claims",
            "H1s",
            "--seeds",
            "1",
            "--workers",
            "0",
            "--runs-dir",
        ],
    ],
    ids=lambda command: command[0],
)
def test_a_bad_place_is_told_before_the_first_step(command, store, tmp_path, capsys, monkeypatch):
    def no_step(*_, **__):
        raise AssertionError("a run was started")

    monkeypatch.setattr(import_module("mambanorm_study.runs.run"), "build_model", no_step)
    (tmp_path / "file").write_text("mine")
    assert main([*command, str(tmp_path / "file" / "below")]) in (1, 2)
    said = capsys.readouterr().err
    assert "below" in said or "file" in said
    assert len(said.splitlines()) == 1, said
    assert (tmp_path / "file").read_text() == "mine"


def test_what_a_kill_left_of_a_stored_run_is_removed_by_a_sweep_with_nothing_to_train(
    folder, result, written
):
    store, damaged = folder.parent, shutil.copytree(written, folder.with_name("d" * 16))
    (damaged / "result.json").unlink()  # somebody may be training it anew
    for name in (folder.name, damaged.name, "a" * 16):
        (store / f".unfinished-{name}-0123abcd").mkdir()
        (store / f".resume-{name}").mkdir()
        (store / f".lease-{name}").touch()
    study.sweep([result.config], progress=False)
    assert {path.name.split("-")[1] for path in store.glob(".*")} == {damaged.name, "a" * 16}
    assert len(list(store.glob(".*"))) == 6
    assert wrong_with(folder) == ""


def test_a_killed_save_leaves_what_the_next_sweep_removes(store, result):
    script = """
import os, sys
import mambanorm as mn
import mambanorm_study as study
from mambanorm_study.runs import store
store._write = lambda result, folder: os.kill(os.getpid(), 9)
store.save_run(study.train(study.RunConfig.from_json(sys.argv[1])), sys.argv[2])
"""
    arguments = [sys.executable, "-c", script, result.config.to_json(), str(store)]
    assert subprocess.run(arguments, timeout=300).returncode == -9
    assert len(list(store.glob(".unfinished-*"))) == 1
    study.sweep([result.config], workers=0, progress=False)
    assert [path.name for path in store.iterdir()] == [result.config.run_id]


# --------------------------------------------------------------------------------------------------
# a power cut: what has its name is on the disk


@pytest.fixture
def calls(monkeypatch):
    """fsync, rename and replace in the order in which they are called, with the path that is synced
    or renamed.
    """
    seen = []

    def noting(name, call, path_of):
        def noted(*args, **kwargs):
            seen.append((name, path_of(args)))
            return call(*args, **kwargs)

        return noted

    monkeypatch.setattr(
        os,
        "fsync",
        noting("fsync", os.fsync, lambda args: os.path.realpath(f"/proc/self/fd/{args[0]}")),
    )
    for name in ("rename", "replace"):
        monkeypatch.setattr(
            os, name, noting(name, getattr(os, name), lambda args: os.fspath(args[0]))
        )
    return seen


needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/fd"), reason="reads what a handle is open on in /proc"
)


@needs_proc
def test_a_file_takes_its_name_after_it_has_reached_the_disk_and_before_its_folder_is_synced(
    tmp_path, calls
):
    whole.write_text(tmp_path / "one.txt", "whole")
    (first, temporary), (then, renamed), (last, synced) = calls
    assert (first, then, last) == ("fsync", "replace", "fsync")
    assert temporary == renamed
    assert synced == str(tmp_path)


def test_a_pipe_and_a_link_are_written_to_and_never_replaced(tmp_path):
    pipe, target, link = (tmp_path / name for name in ("pipe", "target.txt", "link.txt"))
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        whole.write_text(pipe, "whole")
        assert reader.communicate(timeout=60)[0] == b"whole"
    assert pipe.is_fifo()
    link.symlink_to("target.txt")
    for text in ("new", "again"):
        whole.write_text(link, text)
        assert (link.is_symlink(), target.read_text()) == (True, text)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.txt", "pipe", "target.txt"]


@needs_proc
def test_a_run_takes_its_name_after_all_of_it_has_reached_the_disk(store, result, calls):
    final = save_run(result, store)
    (at,) = [
        i for i, (name, path) in enumerate(calls) if name == "rename" and ".unfinished-" in path
    ]
    before = {os.path.relpath(path, calls[at][1]) for name, path in calls[:at] if name == "fsync"}
    assert before >= {".", *(path.name for path in final.iterdir())}
    assert ("fsync", str(store)) in calls[at:]


@needs_proc
def test_a_new_folder_is_synced_into_each_new_one_above_it(tmp_path, calls):
    whole.make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(calls) == [
        ("fsync", str(path)) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")
    ]
    whole.make_folder(tmp_path / "a" / "b" / "c")
    assert len(calls) == 3
    check_store(tmp_path / "runs")
    assert ("fsync", str(tmp_path)) in calls[3:]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EACCES])
def test_a_disk_that_syncs_no_folder_holds_runs_and_checkpoints(number, store, result, monkeypatch):
    """As shared disks of virtual machines, and a folder that its user may write to but not list."""
    fsync = os.fsync

    def refusing(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refusing)
    check_store()
    train(result.config, checkpoint_dir=resume_dir(result.config), checkpoint_every_s=0)
    assert (resume_dir(result.config) / CHECKPOINT).is_file()
    assert wrong_with(save_run(result)) == ""


def test_a_disk_that_fails_to_sync_leaves_what_was_there(folder, result, monkeypatch):
    (folder / "result.json").write_text("{}")

    def failing(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(OSError, match="No space"):
        save_run(result)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
