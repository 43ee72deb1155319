"""A sweep on a real scheduler and three workers, and a monkey that kills, pauses and fills the disk under it.

Disk        where the store lies: a small tmpfs where one may be mounted, else a folder on which writing is refused
Cluster     scheduler, workers and client, each a process of its own, started again when it has ended
schedule    seed → what the monkey does, and after how many stored runs: the same on a machine of any speed
unleash     lets the monkey loose, and waits for the sweep to end
Trace       what the processes have trained, and which trainings nobody can explain
"""

import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from chaos.process import FOLDER, SLOT, run

from mambanorm.basics.settings import ROOT
from mambanorm.training.store import LEASE, RESUME

PROCESS = Path(__file__).with_name("process.py")
ARMS = "RMSN>SSM>None,NormVary>SSM>BN,None>SSM>GN,BN>SSM>LN,LN>SSM>IN"
RUNS = 60
SWEEP = ["sweep", "--arms", ARMS, "--scale", "smoke", "--seeds", "12", "--set", "steps=10"]
WORKERS = 3
LOST_S = 8  # a worker that the scheduler has not heard of for so long is lost
PAUSE_S = LOST_S + 4  # a pause after which the scheduler has given its worker up
PATIENCE_S = 240  # without a run, or an end, for so long: it hangs
PAGE = 4096
NANNY = 0  # the worker that has one
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{LOST_S}s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}

SENTENCES = {
    "scheduler": r"mambanorm: the Dask scheduler at \S+ is gone\. \d+ of \d+ runs? are in the store \(.*\) and stay "
    r"there: start scheduler and workers anew, and the same sweep goes on from there",
    "no scheduler": r"mambanorm: no Dask scheduler answers at \S+: is it running, and is that its address\?",
    "disk": r"mambanorm: the disk of the run store is full\. \d+ of \d+ runs? are in the store \(.*\) and stay there: "
    r"free some space, and the same sweep goes on from there",
    "no store": r"mambanorm: .* cannot hold the run store: No space left on device\. Nothing was started; .*",
}
"""The only words with which a sweep may end before its time."""


def warm_server() -> BaseContext:
    """Where processes are forked from, started if it is not running; other tests keep their environment."""
    forks, before = multiprocessing.get_context("forkserver"), dict(os.environ)
    forks.set_forkserver_preload(["chaos.warm"])
    os.environ.update(ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return forks


BY_THE_WAY = r"training |no workers at \S+ yet: start some with `dask worker"
"""What a sweep says while it goes on."""


class Disk:
    """A disk that can be filled."""

    def __init__(self, folder: Path):
        self.folder, self.path, self.small = folder, folder / "disk", False
        self.path.mkdir()
        if shutil.which("mount") and os.name == "posix":
            mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "chaos", str(self.path)]
            self.small = subprocess.run(mount, capture_output=True).returncode == 0
        self.store = self.path / "runs"
        self.kind = "a tmpfs of 24 MB" if self.small else "a folder that refuses"

    def fill(self, free: int) -> None:
        """All but `free` bytes."""
        if not self.small:
            (self.folder / "full").touch()
            return
        try:
            with open(self.path / "filler", "wb", buffering=0) as filler:
                while filler.write(bytes(PAGE)):
                    pass
        except OSError:
            filled = (self.path / "filler").stat().st_size
            os.truncate(self.path / "filler", max(0, filled - free))

    def free(self) -> None:
        for place in (self.path / "filler", self.folder / "full"):
            place.unlink(missing_ok=True)

    def close(self) -> None:
        if self.small:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


class Trace:
    """The events that the processes wrote (chaos/process.py), and when the monkey hit which process or session (a nanny
    and its worker)."""

    def __init__(self, folder: Path):
        self.path, self.hit = folder / "trace", {}

    def events(self) -> list[tuple[str, str, int, int, float]]:
        """What, of which run or worker, by which process, in which session, when; in the order of the times."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        found = [(event, what, int(pid), int(sid), float(at)) for event, what, pid, sid, at in map(str.split, lines)]
        return sorted(found, key=lambda line: line[-1])

    def hits(self, pid: int | None) -> None:
        self.hit.setdefault(pid, time.monotonic())

    def worker(self, slot: int) -> int | None:
        """The process that trains for this worker."""
        pids = [pid for event, what, pid, *_ in self.events() if (event, what) == ("worker", str(slot))]
        return pids[-1] if pids else None

    def starts(self) -> int:
        return sum(event == "start" for event, *_ in self.events())

    def failed(self) -> int:
        """How many trained runs could not be stored."""
        last, found = {}, 0
        for event, run_id, pid, *_ in self.events():
            found += event == "failed" and last.get(run_id) == ("start", pid)
            last[run_id] = event, pid
        return found

    def needless(self) -> list[str]:
        """Trainings after the first for which there was no reason: neither was the process of the one before hit,
        nor did it fail on a full disk."""
        seen, found = {}, []
        for event, run_id, pid, sid, at in self.events():
            before = seen.get(run_id)
            if event in ("start", "failed", "stored"):
                if event == "start" and before and not self._explained(*before, at):
                    found.append(f"{run_id} is trained by {pid} after {before[0]} in {before[1]}")
                if not (before and before[0] == "stored"):
                    seen[run_id] = event, pid, sid
        return found

    def _explained(self, event: str, pid: int, sid: int, at: float) -> bool:
        return event == "failed" or (event == "start" and min(self.hit.get(name, at) for name in (pid, sid)) < at)


@dataclass
class Cluster:
    """Scheduler, workers and client. `keep` starts again what has ended."""

    folder: Path
    store: Path
    trace: Trace
    running: dict[str, BaseProcess] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)  # how clients ended: which sentence, or "killed", or "done"
    started: int = 0
    pids: set[int] = field(default_factory=set)

    def __post_init__(self):
        self.forks = warm_server()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def start(self, name: str, command: str, *arguments: object, slot: int | str = "") -> None:
        self.started += 1
        self.logs[name] = self.folder / f"{name}-{self.started}.log"
        environment = {FOLDER: str(self.folder), SLOT: str(slot)}
        options = command, [*map(str, arguments)], self.logs[name], environment
        self.running[name] = self.forks.Process(target=run, args=options)
        self.running[name].start()
        self.pids.add(self.running[name].pid)

    def start_scheduler(self) -> None:
        self.start("scheduler", "dask_scheduler", "--host", "127.0.0.1", "--port", self.port, "--no-dashboard")

    def start_worker(self, slot: int) -> None:
        options = ["--host", "127.0.0.1", "--nthreads", 1, "--no-dashboard", "--preload", PROCESS]
        options += ["--nanny" if slot == NANNY else "--no-nanny"]
        self.start(f"worker-{slot}", "dask_worker", self.address, *options, slot=slot)

    def start_client(self, *options: object) -> None:
        where = options or ("--scheduler", self.address)
        self.start("client", "mambanorm", *SWEEP, "--runs-dir", self.store, *where)

    def stored(self) -> int:
        return sum("." not in name for name in os.listdir(self.store)) if self.store.is_dir() else 0

    def keep(self) -> None:
        """Starts again what has ended, the scheduler only when the client has told that it is gone."""
        if self.ended("client"):
            self.ends.append(self.end_of_client())
            if self.ended("scheduler"):
                self.start_scheduler()
            if self.ends[-1] != "done":
                self.start_client()
        for slot in range(WORKERS):
            if self.ended(f"worker-{slot}"):
                self.start_worker(slot)

    def ended(self, name: str) -> bool:
        return self.running[name].exitcode is not None

    def end_of_client(self) -> str:
        """How it ended. AssertionError unless it was killed, is done, or says in one sentence why not."""
        code, said = self.running["client"].exitcode, self.logs["client"].read_text()
        if code in (0, -signal.SIGKILL):
            return "done" if code == 0 else "killed"
        lines = [line for line in re.split(r"[\r\n]+", said) if line.strip() and not re.match(BY_THE_WAY, line)]
        matching = [name for name, text in SENTENCES.items() if len(lines) == 1 and re.fullmatch(text, lines[0])]
        assert code == 1, said
        assert matching, said
        return matching[0]

    def send(self, pid: int | None, number: int) -> None:
        """A signal to a process of this test, and to no other that has its number by now."""
        with suppress(ProcessLookupError):
            if pid is not None and os.getsid(pid) in self.pids:
                os.kill(pid, number)

    def kill(self, pid: int | None) -> None:
        if pid is not None:
            self.trace.hits(pid)
            self.send(pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()


# ---------------------------------------------------------------------------------------------------------------------
# the monkey


@dataclass(frozen=True)
class Act:
    after: int  # as many runs are stored
    name: str
    slot: int  # of the worker
    share: float  # of a time or a size, from 0 to 1


def schedule(seed: int) -> list[Act]:
    """Each of ACTS once, killing a worker twice, in an order and at times that the seed decides."""
    chance = random.Random(seed)
    names = [*ACTS, "kill_worker"]
    chance.shuffle(names)
    times = sorted(chance.sample(range(1, RUNS * 3 // 4), len(names)))
    return [Act(after, name, chance.randrange(WORKERS), chance.random()) for after, name in zip(times, names)]


class Monkey:
    def __init__(self, cluster: Cluster, disk: Disk):
        self.cluster, self.disk, self.trace = cluster, disk, cluster.trace
        self.later: list[tuple[float, int]] = []  # when which paused process goes on

    def kill_worker(self, act: Act) -> None:
        self.cluster.kill(self.trace.worker(act.slot))

    def kill_nanny(self, act: Act) -> None:
        self.cluster.kill(self.cluster.running[f"worker-{NANNY}"].pid)

    def kill_in_writing(self, act: Act) -> None:
        """A worker that is writing a run, or up to 20 ms later: perhaps it renames it, or deletes its lease."""
        pid = self.seen(self.writer)
        time.sleep(act.share * 0.02)
        self.cluster.kill(pid)

    def kill_in_checkpoint(self, act: Act) -> None:
        pid = self.seen(self.saver)
        time.sleep(act.share * 0.005)
        self.cluster.kill(pid)

    def kill_client(self, act: Act) -> None:
        self.cluster.send(self.cluster.running["client"].pid, signal.SIGKILL)

    def kill_scheduler(self, act: Act) -> None:
        for slot in range(WORKERS):  # they end without their scheduler
            self.trace.hits(self.cluster.running[f"worker-{slot}"].pid)
        self.cluster.send(self.cluster.running["scheduler"].pid, signal.SIGKILL)
        self.until_the_client_ended()

    def pause_shortly(self, act: Act) -> None:
        self.pause(self.trace.worker(act.slot), act.share * 2)

    def pause_for_long(self, act: Act) -> None:
        """Until the scheduler has given it up; a worker in the middle of writing, where there is one."""
        pid = self.seen(self.writer) or self.trace.worker(act.slot)
        self.trace.hits(pid)
        self.pause(pid, PAUSE_S + act.share * 4)

    def pause(self, pid: int | None, seconds: float) -> None:
        self.cluster.send(pid, signal.SIGSTOP)
        self.later.append((time.monotonic() + seconds, pid))

    def fill_disk_shortly(self, act: Act) -> None:
        self.disk.fill(int(act.share * 16) * PAGE)
        time.sleep(act.share)
        self.disk.free()

    def fill_disk(self, act: Act) -> None:
        """Until the sweep has ended and has told why."""
        self.disk.fill(int(act.share * 4) * PAGE)
        self.until_the_client_ended()
        self.disk.free()

    def tick(self) -> None:
        for due, pid in list(self.later):
            if time.monotonic() >= due:
                self.cluster.send(pid, signal.SIGCONT)
                self.later.remove((due, pid))

    def until_the_client_ended(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.cluster.ended("client"):
            assert time.monotonic() < deadline, "the sweep hangs"
            self.tick()
            time.sleep(0.05)

    def seen(self, look) -> int | None:
        """The process that `look` catches in the act; None if the sweep ends before."""
        deadline, kept = time.monotonic() + PATIENCE_S, time.monotonic()
        while (pid := look()) is None:
            time.sleep(0.0005)
            if time.monotonic() - kept > 0.2:
                self.tick()
                self.cluster.keep()
                kept = time.monotonic()
            if self.cluster.ends[-1:] == ["done"]:
                return None
            assert time.monotonic() < deadline, "the sweep hangs"
        return pid

    def writer(self) -> int | None:
        for name in os.listdir(self.cluster.store):
            if name.startswith(".unfinished-"):
                return int(name.partition("@")[0].split("-")[-2])
        return None

    def saver(self) -> int | None:
        for file in self.cluster.store.glob(f"{RESUME}*/*"):
            with suppress(OSError, ValueError):  # its process is done with it, or only begins
                run_id = file.parent.name.removeprefix(RESUME)
                return json.loads((self.cluster.store / f"{LEASE}{run_id}").read_text())["pid"]
        return None


ACTS = [name for name in vars(Monkey) if name.startswith(("kill_", "pause_", "fill_"))]


def unleash(acts: list[Act], cluster: Cluster, disk: Disk) -> list[Act]:
    """The sweep and the monkey, until the sweep is done → the acts that came too late."""
    monkey, acts = Monkey(cluster, disk), list(acts)
    cluster.start_scheduler()
    for slot in range(WORKERS):
        cluster.start_worker(slot)
    cluster.start_client()
    last, since = -1, time.monotonic()
    while True:
        monkey.tick()
        cluster.keep()
        if cluster.ends[-1:] == ["done"]:
            return acts
        if (now := (cluster.stored(), len(cluster.ends))) != last:
            last, since = now, time.monotonic()
        assert time.monotonic() - since < PATIENCE_S, f"the sweep hangs after {now[0]} runs"
        if acts and now[0] >= acts[0].after:
            act = acts.pop(0)
            (cluster.folder / "acts").open("a").write(f"{time.monotonic():.2f} {now[0]} {act}\n")
            getattr(monkey, act.name)(act)
            since = time.monotonic()
        time.sleep(0.02)
