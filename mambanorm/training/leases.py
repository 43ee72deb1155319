"""Who trains a run: a lease in the store, so that any number of sweeps, on any number of machines, share one store.

    <store>/.lease-<run_id>    JSON: token, host, pid, machine, since; the file's modification time is its last beat

Only one process can create the file of a lease. The lease beats every BEAT_S seconds while its process trains, and is
removed when the run is stored or given up. It is stale, and may be taken over, once its process is dead (only the same
machine can know that), or once a waiting process has seen no beat for STALE_S seconds. The waiting process measures
this on its own clock: clocks of machines differ, and a laptop that slept has not lost its lease.

A process that was stopped for minutes may find its lease taken over. It trains to its end all the same: the run that is
stored first stays, and both have the same result.

Map
    lease           hold the lease of a run while it trains; raises Held with its Holder if another process has it
    Watch           what a waiting process has seen of the leases of others
    remove_dead     leases that dead processes of this machine left behind
"""

from __future__ import annotations

import atexit
import errno
import functools
import json
import os
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

LEASE = ".lease-"
BEAT_S, STALE_S = 20.0, 120.0


@dataclass(frozen=True)
class Holder:
    """Who has a lease: the process, a token that no other lease has, and the time of the last beat."""

    token: str
    host: str
    pid: int
    machine: str
    beat: int

    @property
    def dead(self) -> bool:
        """True if its process ran on this machine and has ended. Of a process of another machine nothing is known."""
        if self.machine != this_machine():
            return False
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Held(Exception):
    """Another process trains this run."""

    def __init__(self, holder: Holder):
        super().__init__(f"{holder} trains this run")
        self.holder = holder


@contextmanager
def lease(run_id: str, store: Path, stale: str = "") -> Iterator[None]:
    """Holds the lease of a run, and its beat, inside the `with`. `stale` is the token of one that may be taken over.

    Raises Held if another process has it, OSError if it cannot be written.
    """
    path = store / f"{LEASE}{run_id}"
    token, stop = _acquire(path, stale), threading.Event()
    HELD[path] = token
    threading.Thread(target=_beat, args=(path, token, stop), daemon=True, name=path.name).start()
    try:
        with _released_by_sigterm():
            yield
    finally:
        stop.set()
        _release(path, HELD.pop(path))


def _acquire(path: Path, stale: str) -> str:
    while True:
        token = uuid.uuid4().hex
        try:
            _create(path, token)
        except FileExistsError:
            holder = read(path)
            if holder is not None and not holder.dead and holder.token != stale:
                raise Held(holder) from None
            if path.is_symlink():
                raise OSError(errno.EEXIST, f"{path} is a link, and no lease: remove it") from None
            if holder is not None:  # else it has been released just now
                _remove(path, holder.token)
        else:
            return token


def _create(path: Path, token: str) -> None:
    facts = dict(token=token, host=socket.gethostname(), pid=os.getpid(), machine=this_machine(), since=time.time())
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)  # less the umask
    try:
        os.write(file, json.dumps(facts).encode())
    except OSError:  # a full disk, say
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)


def read(path: Path) -> Holder | None:
    """The holder of a lease, None if there is no such lease. A lease that cannot be read, because it is another user's
    or is being written, gets the number of its file as its token."""
    try:
        status, text = _look(path)
    except FileNotFoundError:
        return None
    try:
        facts = json.loads(text)
        if (pid := int(facts["pid"])) < 1:
            raise ValueError(pid)
        return Holder(facts["token"], facts["host"], pid, facts["machine"], status.st_mtime_ns)
    except (ValueError, KeyError, TypeError):
        return Holder(f"file-{status.st_ino}", "an unknown host", 0, "", status.st_mtime_ns)


def _look(path: Path) -> tuple[os.stat_result, str]:
    try:
        with open(path) as file:  # opening a file, unlike stat, asks the server of a network disk again
            return os.fstat(file.fileno()), file.read()
    except (PermissionError, IsADirectoryError):
        return path.stat(), ""


def _remove(path: Path, token: str) -> None:
    """Removes the stale lease with this token. Of several processes that try, only one succeeds in renaming it."""
    if (holder := read(path)) is None or holder.token != token:
        return
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        path.rename(aside)
        if (holder := read(aside)) is not None and holder.token != token and not path.exists():
            aside.rename(path)  # another process was faster: this is already its new lease
        aside.unlink(missing_ok=True)


def _release(path: Path, token: str) -> None:
    with suppress(OSError):
        if (holder := read(path)) is not None and holder.token == token:
            path.unlink(missing_ok=True)


def _beat(path: Path, token: str, stop: threading.Event) -> None:
    while not stop.wait(BEAT_S):
        with suppress(OSError):  # the next beat may come through
            if (holder := read(path)) is None or holder.token != token:
                return
            os.utime(path)  # on a network disk its server's time


class Watch:
    """Tells when another process's lease is free: it is gone, its process is dead, or it has not beaten for STALE_S
    seconds."""

    def __init__(self, store: Path):
        self.store = store
        self.seen: dict[str, tuple[int | None, float]] = {}  # token → its last beat, and when that was first seen

    def freed(self, run_id: str, holder: Holder) -> str | None:
        """None while the lease is held. Then the token that may be taken over, or "" if the lease is gone."""
        now, found = time.monotonic(), read(self.store / f"{LEASE}{run_id}")
        beat = found.beat if found is not None and found.token == holder.token else None
        last, since = self.seen.get(holder.token, (None, now))
        if beat != last or holder.token not in self.seen:
            self.seen[holder.token] = beat, now
        elif now - since > STALE_S:
            return holder.token
        if beat is None:
            return ""
        return holder.token if holder.dead else None


def remove_dead(store: Path) -> None:
    """Removes the leases that dead processes of this machine left behind."""
    for path in store.glob(f"{LEASE}*"):
        with suppress(OSError):  # another user's, in a store where each may remove only their own
            if (holder := read(path)) is not None and holder.dead:
                _remove(path, holder.token)


@functools.cache
def this_machine() -> str:
    """Where a process number is valid. On Linux: this start of the kernel, and the set of processes (PID namespace),
    because a container has its own. Elsewhere: the name of the host."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


# ------------------------------------------------------------------------------------------------ processes that end

HELD: dict[Path, str] = {}
"""The leases of this process, with their tokens."""


@atexit.register
def _release_all() -> None:
    """Releases every lease when Python exits: a worker that is told to stop does not wait for its run."""
    for path, token in list(HELD.items()):
        with suppress(OSError):
            if (holder := read(path)) is not None and holder.pid == os.getpid():  # not in a forked child
                _release(path, token)


@contextmanager
def _released_by_sigterm() -> Iterator[None]:
    """Releases the leases on SIGTERM, which would end the process at once. Does nothing where there is a handler."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _release_and_end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _release_and_end(number: int, _frame: FrameType | None) -> None:
    _release_all()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
