"""No damage enters the run store unnoticed, and nothing that is sound is moved or deleted."""

import errno
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from safetensors import SafetensorError

import mambanorm as mn
from benchmarks import store as store_benchmark
from mambanorm.basics import atomic as whole
from mambanorm.cli.main import main
from mambanorm.config import run_id_of
from mambanorm.study.experiments import deep_runs
from mambanorm.training import index as indexing
from mambanorm.training.grid import base_config
from mambanorm.training.index import Index
from mambanorm.training.run import train
from mambanorm.training.store import (
    check_runs,
    check_store,
    find_run,
    load_runs,
    remove_leftovers,
    resume_dir,
    runs_dir,
    save_run,
    stored_run,
)
from mambanorm.training.stored_run import MANIFEST, WRITTEN, DamagedRun

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


def edit_result(folder, **facts):
    path = folder / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts, indent=2))


def without_manifest(folder):
    (folder / MANIFEST).unlink()
    return folder


def state_of(folder):
    return check_runs(folder.parent, progress=False).set_index("run_id").state[folder.name]


# ---------------------------------------------------------------------------------------------------------------------
# damage


def test_a_manifest_names_every_other_file_with_its_checksum(folder):
    files = json.loads((folder / MANIFEST).read_text())["files"]
    assert set(files) == set(WRITTEN) == {path.name for path in folder.iterdir()} - {MANIFEST}
    assert all(facts["sha256"] == whole.sha256(folder / name) for name, facts in files.items())
    assert load_runs().checked.tolist() == [True]
    assert state_of(folder) == "whole"


@pytest.mark.parametrize("name", [*WRITTEN, MANIFEST])
def test_every_flipped_bit_is_found(name, folder):
    path, sound = folder / name, (folder / name).read_bytes()
    for at in np.linspace(0, len(sound) - 1, FLIPS).astype(int):
        flipped = bytearray(sound)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        assert state_of(folder) == "damaged", f"byte {at} of {name}"
    path.write_bytes(sound)
    assert state_of(folder) == "whole"


@pytest.mark.parametrize("name", [*WRITTEN, MANIFEST])
@pytest.mark.parametrize(
    "change", [lambda content: content[:-1], lambda content: content + b"\n0"], ids=["cut", "more"]
)
def test_a_file_of_another_length_is_found_without_reading_it(name, change, folder):
    (folder / name).write_bytes(change((folder / name).read_bytes()))
    with pytest.warns(UserWarning, match=f"the run .*{folder.name} is damaged: .* Move it away"):
        assert len(load_runs()) == 0


@pytest.mark.parametrize("name", ["curves.parquet", "predictions.npz", "diagnostics.npz", "checkpoint.safetensors"])
def test_an_array_is_checked_when_it_is_read(name, folder, result):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 4
    (folder / name).write_bytes(content)
    run = find_run(result.config)
    with pytest.raises(DamagedRun, match=f"{folder.name} is damaged: {name} was altered"):
        getattr(run, name.partition(".")[0])


EDITS = {
    "a better accuracy": dict(test_accuracy=0.99),
    "above one": dict(test_accuracy=9.5),
    "below zero": dict(test_accuracy=-3),
    "no number": dict(test_accuracy=float("nan")),
    "no text": dict(machine="\ud800"),
    "a truth value": dict(test_accuracy=True),
    "a text": dict(test_accuracy="0.5"),
    "another arm": dict(arm="GN>SSM>GN"),
    "another seed": dict(seed=7),
    "an unknown key": dict(luck=1.0),
    "another status": dict(status="diverged"),
    "an unknown status": dict(status="fine"),
    "fewer steps": dict(steps=1),
    "half a step": dict(steps=1.5),
    "infinite time": dict(wall_s=float("inf")),
    "a chance above one": dict(chance=1.5),
    "no chance": dict(chance=None),
    "other threads": dict(threads=2),
    "a number as machine": dict(machine=3),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edited_result_is_no_result(edit, folder):
    edit_result(folder, **edit)
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged: result.json was altered"):
        assert len(load_runs()) == 0


@pytest.mark.parametrize("edit", [edit for name, edit in EDITS.items() if name != "a better accuracy"])
def test_without_a_manifest_an_impossible_result_is_no_result_either(edit, folder):
    edit_result(without_manifest(folder), **edit)
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged: (result.json|it was trained on 2 threads)"):
        assert len(load_runs()) == 0


def test_the_accuracy_is_that_of_the_predictions_where_they_are_read(folder, result):
    edit_result(without_manifest(folder), test_accuracy=0.99)
    with pytest.warns(UserWarning, match=r"claims an accuracy of 0\.99, its predictions give"):
        assert find_run(result.config) is None
    assert state_of(folder) == "damaged"


def make_folder(path):
    path.unlink()
    path.mkdir()


def make_loop(path):
    path.unlink()
    path.symlink_to(path.name)


ODD = {"folder": make_folder, "loop": make_loop, "deep": lambda path: path.write_text("[" * 200_000)}


@pytest.mark.parametrize("name", ["config.json", "result.json", MANIFEST])
@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_one_odd_file_is_damage_and_stops_nothing(make, name, folder):
    if make is ODD["deep"] and name != MANIFEST:
        without_manifest(folder)
    make(folder / name)
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged"):
        assert len(load_runs()) == 0


@pytest.mark.parametrize("name", ["curves.parquet", "checkpoint.safetensors"])
@pytest.mark.parametrize(
    "make", [make_folder, lambda path: path.write_bytes(path.read_bytes()[:20])], ids=["folder", "cut"]
)
def test_without_a_manifest_an_array_file_must_look_like_one(make, name, folder):
    make(without_manifest(folder) / name)
    with pytest.warns(UserWarning, match=f"{folder.name} is damaged: {name} is missing or damaged"):
        assert len(load_runs()) == 0


def test_a_run_of_a_norm_that_is_not_registered_here_is_not_damaged(folder):
    """Unless its config is not the one that its name stands for."""
    text = (without_manifest(folder) / "config.json").read_text().replace('"RMSN>SSM>GN"', '"Peak>SSM>GN"')
    (folder / "config.json").write_text(text)
    assert state_of(folder) == "damaged"
    folder = folder.rename(folder.with_name(run_id_of(json.loads(text))))
    assert state_of(folder) == "not registered"
    with pytest.warns(UserWarning, match="1 run uses the norm 'Peak', which is not registered here"):
        assert len(load_runs()) == 0


def test_a_run_that_links_to_nowhere_is_told_before_the_first_step(folder, result):
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent / "elsewhere" / folder.name)
    with pytest.raises(OSError, match="it is a link to a place that is not there"):
        mn.sweep([result.config], workers=0, progress=False)


def test_an_import_that_fails_damages_no_run(store, result, monkeypatch):
    folder = save_run(result)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"RMSN>SSM>GN"', '"Peak>SSM>GN"'))
    without_manifest(folder)
    folder.rename(store / run_id_of(json.loads(config.read_text())))
    monkeypatch.setenv("MAMBANORM_IMPORT", str(store / "no_such.py"))
    with pytest.raises(ValueError, match=r"no_such.py: No such file"):
        load_runs()


def test_a_run_of_an_earlier_version_loads_as_unchecked(folder, result):
    without_manifest(folder)
    assert load_runs().checked.tolist() == [False]
    assert find_run(result.config).curves.equals(result.curves)
    assert state_of(folder) == "unchecked"


def test_an_optional_file_may_be_deleted_from_a_checked_run(folder):
    (folder / "checkpoint.safetensors").unlink()
    assert state_of(folder) == "whole"
    assert len(load_runs()) == 1


def test_a_diverged_run_is_whole_too(store):
    config = base_config("digits", "smoke", arm="None>SSM>None", lr=1e6, steps=30, warmup_steps=0, n_layers=4)
    assert state_of(save_run(train(config))) == "whole"
    assert load_runs().status.tolist() == ["diverged"]


def test_the_command_line_checks_a_store_and_names_what_is_damaged(folder, capsys):
    assert main(["runs", "--check"]) == 0
    assert "1 whole" in capsys.readouterr().out
    content = bytearray((folder / "checkpoint.safetensors").read_bytes())
    content[-7] ^= 1
    (folder / "checkpoint.safetensors").write_bytes(content)
    assert main(["runs", "--check"]) == 1
    said = capsys.readouterr().out
    assert f"{folder.name}  damaged: checkpoint.safetensors was altered" in said
    assert "1 run in" in said
    assert "1 damaged" in said


def test_a_verdict_on_damaged_diagnostics_names_the_run(store):
    config, *_ = deep_runs("smoke")
    folder = save_run(train(config))
    (folder / "diagnostics.npz").write_bytes((folder / "diagnostics.npz").read_bytes()[::-1])
    with pytest.raises(DamagedRun, match=f"{folder.name} is damaged: diagnostics.npz was altered"):
        mn.with_summaries(load_runs())


# ---------------------------------------------------------------------------------------------------------------------
# other users


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_the_umask_decides_who_may_read_a_run(mask, store, result):
    before = os.umask(mask)
    try:
        folder = save_run(result)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == dict.fromkeys(
        [*WRITTEN, MANIFEST], 0o666 & ~mask
    )
    assert folder.stat().st_mode & 0o777 == 0o777 & ~mask


AS_NOBODY = """
import os, sys, warnings
import mambanorm as mn
from mambanorm.training.store import find_run, load_runs, save_run
config = mn.RunConfig.from_json(sys.argv[1])
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    print(len(load_runs(sys.argv[2])), *[str(w.message) for w in said])
try:
    find_run(config, sys.argv[2])
except PermissionError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_what_another_user_may_not_read_is_not_damaged(folder, result):
    folder.chmod(0o700)
    for parent in (folder.parent, *folder.parent.parents):
        if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o005)
    arguments = [sys.executable, "-c", AS_NOBODY, result.config.to_json(), str(folder.parent)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded, found = done.stdout.splitlines()
    assert loaded.startswith("0 skipped: the run")
    assert all("is there, but cannot be read" in said and "is damaged" not in said for said in (loaded, found))


def test_what_cannot_be_read_stays_where_it_is(folder, result, monkeypatch):
    from pathlib import Path

    read = Path.read_bytes

    def refuse(path):
        if path.parent == folder:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(PermissionError, match="is there, but cannot be read: Permission denied"):
        save_run(result)
    monkeypatch.undo()
    assert state_of(folder) == "whole"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


# ---------------------------------------------------------------------------------------------------------------------
# disks


def test_a_store_that_cannot_be_written_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"the run store .*file is a file: needed is a folder"):
        check_store(tmp_path / "file")
    with pytest.raises(OSError, match=r"cannot hold the run store: .* give a folder that you can write to"):
        check_store(tmp_path / "file" / "below")
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
        ["verdicts", "--scale", "smoke", "--claims", "H1s", "--seeds", "1", "--workers", "0", "--runs-dir"],
    ],
    ids=lambda command: command[0],
)
def test_a_bad_place_is_told_before_the_first_step(command, store, tmp_path, capsys, monkeypatch):
    def no_step(*_, **__):
        raise AssertionError("a run was started")

    monkeypatch.setattr(import_module("mambanorm.training.run"), "build_model", no_step)
    (tmp_path / "file").write_text("mine")
    assert main([*command, str(tmp_path / "file" / "below")]) in (1, 2)
    said = capsys.readouterr().err
    assert "below" in said or "file" in said
    assert len(said.splitlines()) == 1, said
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_path_is_no_store():
    with pytest.raises(ValueError, match="the run store '' names no folder"):
        runs_dir("")


def test_a_disk_that_fills_up_under_the_weights_is_an_oserror(store, result, monkeypatch):
    def full_disk(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full_disk)
    with pytest.raises(OSError, match=r"checkpoint.safetensors cannot be written: .*No space left") as raised:
        save_run(result)
    assert whole.is_full(raised.value)
    assert list(store.iterdir()) == []


def test_what_a_kill_left_is_removed_and_what_lives_is_not(folder, result):
    store, here = folder.parent, socket.gethostname()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {
        "dead": f".unfinished-{'a' * 16}-{ended.pid}-0123abcd@{here}",
        "alive": f".unfinished-{'a' * 16}-{os.getpid()}-0123abcd@{here}",
        "elsewhere": f".unfinished-{'a' * 16}-1-0123abcd@another",
        "old": f".unfinished-{'b' * 16}-1-0123abcd@another",
        "older version": ".unfinished-abc123",
        "stored": f".resume-{folder.name}",
        "under way": f".resume-{'c' * 16}",
    }
    for name in names.values():
        (store / name).mkdir()
    for what in ("old", "older version"):
        os.utime(store / names[what], (time.time() - 2 * 86_400,) * 2)
    remove_leftovers()
    left = {what for what, name in names.items() if (store / name).exists()}
    assert left == {"alive", "elsewhere", "under way"}
    assert state_of(folder) == "whole"


def test_a_sweep_with_nothing_to_train_tidies_up_too(folder, result):
    store = folder.parent
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".unfinished-{'a' * 16}-{ended.pid}-0123abcd@{socket.gethostname()}", f".resume-{folder.name}"):
        (store / name).mkdir()
    (store / ".writable-0123").touch()  # the probe of a process that was killed at once
    mn.sweep([result.config], progress=False)
    assert [path.name for path in store.iterdir()] == [folder.name]


def test_a_killed_save_leaves_what_the_next_sweep_removes(store, result):
    script = """
import os, sys
import mambanorm as mn
from mambanorm.training import store
store._write = lambda result, folder: os.kill(os.getpid(), 9)
store.save_run(mn.train(mn.RunConfig.from_json(sys.argv[1])), sys.argv[2])
"""
    arguments = [sys.executable, "-c", script, result.config.to_json(), str(store)]
    assert subprocess.run(arguments, timeout=300).returncode == -9
    assert len(list(store.glob(".unfinished-*"))) == 1
    mn.sweep([result.config], workers=0, progress=False)
    assert [path.name for path in store.iterdir()] == [result.config.run_id]


def test_a_checkpoint_of_another_user_is_left_alone(store, result, monkeypatch):
    from pathlib import Path

    folder = resume_dir(result.config)
    train(result.config, checkpoint_dir=folder, checkpoint_every_s=0)
    read = Path.read_text

    def refuse(path, *options, **more):
        if path.name == "progress.json":
            raise PermissionError(13, "Permission denied")
        return read(path, *options, **more)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.warns(UserWarning, match="the run starts anew: Permission denied"):
        train(result.config, checkpoint_dir=folder)
    assert folder.exists()
    assert stored_run(result.config.run_id) is None


# ---------------------------------------------------------------------------------------------------------------------
# a power cut: what has its name is on the disk


@pytest.fixture
def calls(monkeypatch):
    """fsync, rename and replace in the order in which they are called, with the path that is synced or renamed."""
    seen = []

    def noting(name, call, path_of):
        def noted(*args, **kwargs):
            seen.append((name, path_of(args)))
            return call(*args, **kwargs)

        return noted

    monkeypatch.setattr(
        os, "fsync", noting("fsync", os.fsync, lambda args: os.path.realpath(f"/proc/self/fd/{args[0]}"))
    )
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, noting(name, getattr(os, name), lambda args: os.fspath(args[0])))
    return seen


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads what a handle is open on in /proc")


@needs_proc
def test_a_file_takes_its_name_after_it_has_reached_the_disk_and_before_its_folder_is_synced(tmp_path, calls):
    whole.write_text(tmp_path / "one.txt", "whole")
    (first, temporary), (then, renamed), (last, synced) = calls
    assert (first, then, last) == ("fsync", "replace", "fsync")
    assert temporary == renamed
    assert synced == str(tmp_path)


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))  # as /dev/full
    except PermissionError:
        pytest.skip("only root makes devices")


def test_a_device_a_pipe_and_a_link_are_written_to_and_never_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    full, pipe, target, link = (tmp_path / name for name in ("full", "pipe", "target.txt", "link.txt"))
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        whole.write_text(pipe, "whole")
        assert reader.communicate(timeout=60)[0] == b"whole"
    assert pipe.is_fifo()

    for target_is_there in (False, True):
        link.unlink(missing_ok=True)
        link.symlink_to("target.txt")
        whole.write_text(link, f"whole {target_is_there}")
        assert (link.is_symlink(), target.read_text()) == (True, f"whole {target_is_there}")

    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        with pytest.raises(OSError, match="socket cannot be written: it is neither a file nor a pipe"):
            whole.write_text(tmp_path / "socket", "whole")

    make_device(full)
    with pytest.raises(OSError, match="full cannot be written: "):
        whole.write_text(full, "whole")
    assert full.is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "link.txt", "pipe", "socket", "target.txt"]


@needs_proc
def test_a_run_takes_its_name_after_all_of_it_has_reached_the_disk(store, result, calls):
    final = save_run(result, store)
    (at,) = [i for i, (name, path) in enumerate(calls) if name == "rename" and ".unfinished-" in path]
    before = {os.path.relpath(path, calls[at][1]) for name, path in calls[:at] if name == "fsync"}
    assert before >= {".", *(path.name for path in final.iterdir())}
    assert ("fsync", str(store)) in calls[at:]


@needs_proc
def test_a_new_folder_is_synced_into_each_new_one_above_it(tmp_path, calls):
    whole.make_folder(tmp_path / "a" / "b" / "c")
    assert sorted(calls) == [("fsync", str(path)) for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    whole.make_folder(tmp_path / "a" / "b" / "c")
    assert len(calls) == 3


@pytest.mark.parametrize("makes", [check_store, lambda store: save_run(mn.train(base_config(steps=1)), store)])
def test_a_new_store_is_synced_into_its_folder(makes, tmp_path, calls):
    makes(tmp_path / "runs")
    assert ("fsync", str(tmp_path)) in calls


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
    assert len(list(resume_dir(result.config).glob("step-*"))) == 1
    assert state_of(save_run(result)) == "whole"


def test_a_disk_that_fails_to_sync_leaves_what_was_there(folder, result, monkeypatch):
    (folder / "result.json").write_text("{}")

    def failing(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.warns(UserWarning, match="is damaged"), pytest.raises(OSError, match="No space"):
        save_run(result)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_store_that_cannot_be_listed_is_tidied_as_far_as_it_can_be(store, monkeypatch):
    store.mkdir()

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    remove_leftovers()


@pytest.mark.parametrize("forged", [{"machine": "\x1b[31mred"}, {"git_commit": "a\nmambanorm: all is well"}])
def test_a_fact_that_a_terminal_would_obey_is_damage(forged, folder):
    edit_result(without_manifest(folder), **forged)
    with pytest.warns(UserWarning, match="is damaged: result.json has") as said:
        assert len(load_runs()) == 0
    assert all(str(one.message).isprintable() for one in said)


@pytest.mark.parametrize("task", ["<script>alert(1)</script>", "\x1b[31mred", "../../x"])
def test_a_task_that_is_no_word_is_damage(task, folder):
    values = json.loads((folder / "config.json").read_text()) | {"task": task}
    (without_manifest(folder) / "config.json").write_text(json.dumps(values))
    folder.rename(folder.with_name(run_id_of(values)))
    with pytest.warns(UserWarning, match="task must be the name of one") as said:
        assert len(load_runs()) == 0
    assert all(str(one.message).isprintable() for one in said)


def test_a_result_that_could_not_be_read_again_is_not_stored(store, result):
    with pytest.raises(ValueError, match="result.json has machine = "):
        save_run(replace(result, machine="\ud800"))
    assert list(store.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------------------
# the index (tests/test_index.py)


def test_a_look_at_some_runs_keeps_the_others_in_the_index(store, monkeypatch):
    monkeypatch.setattr(indexing, "LEAST", 1)
    monkeypatch.setattr(indexing, "SETTLED_S", 0.0)
    configs = [base_config(steps=1, seed=seed) for seed in range(3)]
    for config in configs[:2]:
        save_run(train(config))
    load_runs()
    save_run(train(configs[2]))
    assert load_runs(configs=configs[2:]).seed.tolist() == [2]
    names = [config.run_id for config in configs]
    assert Index(store, names).sound(names) == set(names)


# ---------------------------------------------------------------------------------------------------------------------
# the benchmark of a store


@pytest.fixture
def few(monkeypatch, tmp_path):
    """A benchmark of three runs that takes no time. Its results are written below tmp_path."""
    configs = [base_config("digits", "smoke", seed=seed) for seed in range(3)]
    monkeypatch.setattr(store_benchmark, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(store_benchmark, "configs_for", lambda n: (configs, 1))
    monkeypatch.setattr(store_benchmark, "measure", lambda *_: [])
    return configs


def test_generated_runs_say_so_and_are_kept_apart_from_results(few, store, tmp_path, capsys):
    for n, expected in ((3, "generating 3 runs"), (1, "generating 0 runs")):
        assert store_benchmark.main(["--store", str(store), "--runs", str(n)]) == 0
        said = capsys.readouterr().out
        assert expected in said
        assert ("--runs 1 is too few" in said) == (n == 1)
    assert load_runs().backend.tolist() == ["generated"] * 3
    assert check_runs(progress=False).state.tolist() == ["whole"] * 3
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == ["store-3.json", "store-3.md"]


def test_no_run_is_generated_in_a_store_of_results(few, folder, capsys):
    before = sorted(folder.parent.rglob("*"))
    assert store_benchmark.main(["--store", str(folder.parent)]) == 2
    assert "holds what was not generated here" in capsys.readouterr().err
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--store", "FILE"], "it is a file"),
        (["--out", "FILE"], "it is a file"),
        (["--before", "MISSING"], "cannot be read: No such file"),
        (["--before", "FILE"], "is not a store.json of this benchmark"),
        (["--repeats", "0"], "--repeats must be a whole number of at least 1, got 0"),
        (["--runs", "-5"], "--runs must be a whole number of at least 1, got -5"),
    ],
)
def test_a_wrong_option_of_the_benchmark_is_told_before_a_run_is_generated(options, said, few, tmp_path, capsys):
    (tmp_path / "FILE").write_text("[]")
    options = [str(tmp_path / word) if word.isupper() else word for word in options]
    assert store_benchmark.main(options) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["FILE"]


def test_a_benchmark_that_is_stopped_says_so_in_a_line_and_goes_on_later(few, store, capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_benchmark, "measure", stop)
        assert store_benchmark.main(["--store", str(store)]) == 130
    assert capsys.readouterr().err.strip() == "stopped: no result was written"
    (store / few[0].run_id / MANIFEST).unlink()  # as if it had been stopped within a run
    assert store_benchmark.main(["--store", str(store)]) == 0
    assert "generating 1 runs" in capsys.readouterr().out
    assert load_runs().checked.tolist() == [True] * 3
