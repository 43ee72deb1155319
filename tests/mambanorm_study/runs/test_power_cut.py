"""The power is cut at every step of a write, on a real file system: nothing that counted is lost,
nothing is torn.

The store lies on an ext4 in a file, mounted through a loop device. The cut is ext4's own way to go
down at once: what had not reached the disk is lost, as with a laptop whose battery ends. Mounted
again, the disk shows what is left. Each test does the same work again and again and is cut one call
later every time, until the work gets to its end, behind which it is cut as well. Where no such disk
may be mounted (not Linux, not root, a container), they are skipped, and the order of the calls is
still tested (test_store.py).
"""

import os
import shutil
import struct
import subprocess
import sys
import warnings

import pytest

from mambanorm_study.basics import atomic
from mambanorm_study.basics.atomic import sync_to_disk
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import resume_dir, save_run
from mambanorm_study.runs.training_state import CHECKPOINT, Checkpoint
from tests.run_store import check_runs

fcntl = pytest.importorskip("fcntl", reason="Windows has no such disk")
CALLS = (
    "fsync",
    "rename",
    "replace",
    "mkdir",
    "unlink",
    "rmdir",
)  # before each of them the power may be cut
SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125  # _IOR('X', 125, __u32), of ext4, xfs and f2fs
NO_LOG_FLUSH = struct.pack("I", 2)
HARSH = "loop,data=writeback,noauto_da_alloc,commit=300"  # nothing reaches the disk because ext4 was kind


class PowerCut(BaseException):
    """Ends the work as a power cut does: no `except Exception` catches it."""


class Disk:
    """A small ext4 in a file. OSError where it cannot be made, mounted or cut."""

    def __init__(self, folder):
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        with open(self.image, "wb") as image:
            image.truncate(32 << 20)
        _run("mkfs.ext4", "-q", "-F", self.image)
        self._mount()
        try:
            self.cut()
        except OSError:
            self.close()
            raise

    def _mount(self):
        _run("mount", "-t", "ext4", "-o", HARSH, self.image, self.path)

    def cut(self):
        """The power goes and comes back."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, SHUTDOWN, NO_LOG_FLUSH)
        finally:
            os.close(handle)
        _run("umount", self.path)
        self._mount()

    def close(self):
        _run("umount", "-l", self.path)


def _run(*command):
    """OSError for a command that fails or is missing."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.returncode, f"{command[0]}: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    if sys.platform != "linux" or os.geteuid():
        pytest.skip("only root mounts a disk, and only Linux has this one")
    try:
        disk = Disk(tmp_path_factory.mktemp("power"))
    except OSError as error:
        pytest.skip(f"no disk can be mounted and cut here: {error}")
    yield disk
    disk.close()


@pytest.fixture(scope="module")
def results():
    return [train(base_config("digits", "smoke", seed=seed, steps=3)) for seed in range(2)]


def cut_everywhere(disk, work, check):
    """Does the work once for each of its calls, on an empty folder, cut before that call, and then
    once to its end. `work` gets the folder and a list, to which it adds what it was told is done;
    `check` gets both after the cut.

    Returns how often the power was cut.
    """
    for at in range(500):
        folder = disk.path / f"{at}"
        folder.mkdir()
        sync_to_disk(disk.path)
        done, whole = [], False
        with pytest.MonkeyPatch.context() as patch:
            _stop_before(patch, at)
            try:
                work(folder, done)
                whole = True
            except PowerCut:
                pass
        disk.cut()
        try:
            check(folder, done)
        finally:
            shutil.rmtree(folder)
        if whole:
            return at + 1
    raise AssertionError("the work has no end")


def _stop_before(patch, at):
    """Raises PowerCut in place of the call number `at`, and of all that come after: the machine is
    dead.
    """
    count = iter(range(10**6))

    def stopping(call):
        def made(*args, **options):
            if next(count) >= at:
                raise PowerCut
            return call(*args, **options)

        return made

    for name in CALLS:
        patch.setattr(os, name, stopping(getattr(os, name)))


# --------------------------------------------------------------------------------------------------
# what is written, and what must be left of it


PAGES = ("old " * 3000, "new " * 5000)


def write_file(folder, done):
    for text in PAGES:
        atomic.write_text(folder / "deep" / "page.html", text)
        done.append(text)


def file_is_whole(folder, done):
    """The last text that was written, or the next one; none only before the first."""
    path = folder / "deep" / "page.html"
    assert (path.read_text() if path.exists() else None) in [None, *PAGES][len(done) :]


def store_runs(results):
    """Each run has left a checkpoint, which goes when it is stored."""

    def work(folder, done):
        for result in results:
            atomic.write_text(
                resume_dir(result.config, folder / "runs") / CHECKPOINT, "of this run"
            )
            done.append(f"begun {result.config.run_id}")
            save_run(result, folder / "runs")
            done.append(result.config.run_id)

    return work


def runs_are_whole(folder, done):
    """The stored ones are there, of those that were begun at least the checkpoint, and what is
    there is whole.
    """
    store = folder / "runs"
    there = check_runs(store) if store.is_dir() else {}
    assert set(there.values()) <= {""}
    begun = {path.parent.name for path in folder.glob(f"runs/.resume-*/{CHECKPOINT}")}
    assert there.keys() >= {name for name in done if " " not in name}
    for name in (name.removeprefix("begun ") for name in done if " " in name):
        assert name in there or f".resume-{name}" in begun


def keep_checkpoints(folder, done):
    """A run that writes a checkpoint after each step."""
    save = Checkpoint._save

    def saving(self):
        save(self)
        done.append(len(self.state.curve))

    config = base_config("digits", "smoke", steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "_save", saving)
        train(config, checkpoint_dir=resume_dir(config, folder / "runs"), checkpoint_every_s=0)


def run_goes_on(folder, done):
    """From the last checkpoint that was written, or a later one; it is read without a warning."""
    config, steps = base_config("digits", "smoke", steps=2), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(
            config,
            on_step=lambda step, *_: steps.append(step),
            checkpoint_dir=resume_dir(config, folder / "runs"),
        )
    assert min(steps, default=3) > max(done, default=0)


SCENES = {
    "a file": (lambda _: write_file, file_is_whole),
    "runs": (store_runs, runs_are_whole),
    "checkpoints": (lambda _: keep_checkpoints, run_goes_on),
}


@pytest.mark.parametrize("scene", SCENES)
def test_a_power_cut_tears_nothing_and_loses_nothing_that_counted(scene, disk, results):
    work, check = SCENES[scene]
    assert cut_everywhere(disk, work(results), check) > len(CALLS)


@pytest.mark.parametrize("scene", SCENES)
def test_without_waiting_for_the_disk_the_same_cuts_lose_something(
    scene, disk, results, monkeypatch
):
    """So the tests above can fail."""
    monkeypatch.setattr(atomic, "sync_to_disk", lambda path: None)
    work, check = SCENES[scene]
    with pytest.raises((AssertionError, UserWarning)):
        cut_everywhere(disk, work(results), check)
