"""A sweep on a real scheduler and three workers, and a monkey that kills and pauses them.

Cluster     scheduler, workers and client, each a process, restarted when it has ended
Monkey      the acts, one method each
schedule    seed → the acts, and after how many stored runs: the same on a machine of any speed
unleash     runs the acts, and waits for the sweep to end
"""

import multiprocessing
import os
import random
import re
import signal
import socket
import time
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path

from mambanorm_study.basics.settings import ROOT
from mambanorm_study.runs.store import RESUME, UNFINISHED
from tests.chaos.process import FOLDER, SLOT, run

PROCESS = Path(__file__).with_name("process.py")
ARMS = "RMSN>SSM>None,NormVary>SSM>BN,None>SSM>GN,BN>SSM>LN,LN>SSM>IN"
RUNS = 60
SWEEP = ["sweep", "--arms", ARMS, "--scale", "smoke", "--seeds", "12", "--set", "steps=10"]
WORKERS = 3
LOST_S = 8  # a worker that the scheduler has not heard of for so long is lost
PAUSE_S = LOST_S + 4  # a pause after which the scheduler has given its worker up
PATIENCE_S = 240  # without a run, or an end, for so long: it hangs
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{LOST_S}s",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}
SENTENCES = {
    "scheduler": r"mambanorm: the Dask scheduler at \S+ is gone: start scheduler and workers anew, "
    r"and the same sweep trains the runs that are missing",
    "no scheduler": r"mambanorm: no Dask scheduler answers at \S+: is it running, .*\?",
}
"""The only words with which a sweep may end before its time."""
BY_THE_WAY = r"training |waiting for \d+ runs? that other processes train|no workers at \S+ yet: start some with `dask worker"
"""What a sweep says while it goes on."""


class Cluster:
    """Scheduler, workers and client; what they have trained; which of them were hit, and when."""

    def __init__(self, folder: Path):
        self.folder, self.store = folder, folder / "runs"
        self.running, self.logs, self.pids, self.hit = {}, {}, set(), {}
        self.ends = []  # how clients ended: which sentence, or "killed", or "done"
        self.forks = multiprocessing.get_context("forkserver")
        self.forks.set_forkserver_preload(["chaos.warm"])
        before = dict(os.environ)
        os.environ.update(ENVIRONMENT)
        forkserver.ensure_running()
        os.environ.clear()
        os.environ.update(before)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"

    def start(self, name: str, command: str, *arguments: object, slot: int | str = "") -> None:
        self.logs[name] = self.folder / f"{name}-{len(self.pids)}.log"
        environment = {FOLDER: str(self.folder), SLOT: str(slot)}
        options = command, [*map(str, arguments)], self.logs[name], environment
        self.running[name] = self.forks.Process(target=run, args=options)
        self.running[name].start()
        self.pids.add(self.running[name].pid)

    def start_scheduler(self) -> None:
        self.start(
            "scheduler",
            "dask_scheduler",
            "--host",
            "127.0.0.1",
            "--port",
            self.port,
            "--no-dashboard",
        )

    def start_worker(self, slot: int) -> None:
        options = [
            "--host",
            "127.0.0.1",
            "--nthreads",
            1,
            "--no-dashboard",
            "--no-nanny",
            "--preload",
            PROCESS,
        ]
        self.start(f"worker-{slot}", "dask_worker", self.address, *options, slot=slot)

    def start_client(self, *options: object) -> None:
        where = options or ("--scheduler", self.address)
        self.start("client", "mambanorm", *SWEEP, "--runs-dir", self.store, *where)

    def keep(self) -> None:
        """Starts again what has ended, the scheduler only when the client has told that it is
        gone.
        """
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
        """How it ended. AssertionError unless it was killed, is done, or says in one sentence why
        not.
        """
        code, said = self.running["client"].exitcode, self.logs["client"].read_text()
        if code in (0, -signal.SIGKILL):
            return "done" if code == 0 else "killed"
        lines = [
            line
            for line in re.split(r"[\r\n]+", said)
            if line.strip() and not re.match(BY_THE_WAY, line)
        ]
        matching = [
            name
            for name, text in SENTENCES.items()
            if len(lines) == 1 and re.fullmatch(text, lines[0])
        ]
        assert code == 1, said
        assert matching, said
        return matching[0]

    def send(self, pid: int | None, number: int) -> None:
        """A signal to a process of this test, and to no other that has its number by now."""
        with suppress(ProcessLookupError):
            if pid is not None and os.getsid(pid) in self.pids:
                os.kill(pid, number)

    def kill(self, pid: int | None) -> None:
        self.hit.setdefault(pid, time.monotonic())
        self.send(pid, signal.SIGKILL)

    def close(self) -> None:
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join()

    # what was done

    def stored(self) -> int:
        return sum("." not in name for name in os.listdir(self.store)) if self.store.is_dir() else 0

    def events(self) -> list[tuple[str, str, int, float]]:
        """What, of which run or worker, by which process, when (chaos/process.py); in the order of
        the times.
        """
        trace = self.folder / "trace"
        lines = trace.read_text().splitlines() if trace.exists() else []
        found = [
            (event, what, int(pid), float(at)) for event, what, pid, at in map(str.split, lines)
        ]
        return sorted(found, key=lambda line: line[-1])

    def last(self, event: str, what: object) -> int | None:
        """The process of which this was noted last: ("worker", slot) trains for a worker, ("start",
        run_id) a run.
        """
        pids = [pid for noted, of, pid, _ in self.events() if (noted, of) == (event, str(what))]
        return pids[-1] if pids else None

    def starts(self) -> int:
        return sum(event == "start" for event, *_ in self.events())

    def needless(self) -> list[str]:
        """Trainings after the first for which there was no reason: the process of the one before
        was not hit.
        """
        seen, found = {}, []
        for event, run_id, pid, at in self.events():
            before, by = seen.get(run_id, ("", None))
            if event == "start" and before and (before == "stored" or self.hit.get(by, at) >= at):
                found.append(f"{run_id} is trained by {pid} after {before} in {by}")
            if event in ("start", "stored") and before != "stored":
                seen[run_id] = event, pid
        return found


class Monkey:
    """One method an act, of a worker's slot; `share`, from 0 to 1: of a time."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.later = []  # when which paused process goes on

    def kill_worker(self, slot: int, share: float) -> None:
        self.cluster.kill(self.cluster.last("worker", slot))

    def kill_in_writing(self, slot: int, share: float) -> None:
        """A worker that is writing a run, or up to 20 ms later: perhaps it renames it, or deletes
        its lease.
        """
        pid = self.seen(self.writer)
        time.sleep(share * 0.02)
        self.cluster.kill(pid)

    def kill_in_checkpoint(self, slot: int, share: float) -> None:
        pid = self.seen(self.saver)
        time.sleep(share * 0.005)
        self.cluster.kill(pid)

    def kill_client(self, slot: int, share: float) -> None:
        self.cluster.send(self.cluster.running["client"].pid, signal.SIGKILL)

    def kill_scheduler(self, slot: int, share: float) -> None:
        for worker in range(WORKERS):  # they end without their scheduler
            self.cluster.hit.setdefault(
                self.cluster.running[f"worker-{worker}"].pid, time.monotonic()
            )
        self.cluster.send(self.cluster.running["scheduler"].pid, signal.SIGKILL)
        self.seen(lambda: self.cluster.ended("client") or None, keep=False)

    def pause_shortly(self, slot: int, share: float) -> None:
        self.pause(self.cluster.last("worker", slot), share * 2)

    def pause_for_long(self, slot: int, share: float) -> None:
        """Until the scheduler has given it up; a worker in the middle of writing, where there is
        one.
        """
        pid = self.seen(self.writer) or self.cluster.last("worker", slot)
        self.cluster.hit.setdefault(pid, time.monotonic())
        self.pause(pid, PAUSE_S + share * 4)

    def pause(self, pid: int | None, seconds: float) -> None:
        self.cluster.send(pid, signal.SIGSTOP)
        self.later.append((time.monotonic() + seconds, pid))

    def tick(self, keep: bool = True) -> None:
        """Lets go on what was paused long enough, and starts again what has ended."""
        for due, pid in list(self.later):
            if time.monotonic() >= due:
                self.cluster.send(pid, signal.SIGCONT)
                self.later.remove((due, pid))
        if keep:
            self.cluster.keep()

    def seen(self, look, keep: bool = True):
        """What `look` catches in the act; None if the sweep ends before."""
        deadline, kept = time.monotonic() + PATIENCE_S, time.monotonic()
        while (found := look()) is None and self.cluster.ends[-1:] != ["done"]:
            time.sleep(0.0005)
            if time.monotonic() - kept > 0.2:
                self.tick(keep)
                kept = time.monotonic()
            assert time.monotonic() < deadline, "the sweep hangs"
        return found

    def writer(self) -> int | None:
        for name in os.listdir(self.cluster.store):
            if name.startswith(UNFINISHED):
                return self.cluster.last("start", name.removeprefix(UNFINISHED).partition("-")[0])
        return None

    def saver(self) -> int | None:
        for file in self.cluster.store.glob(f"{RESUME}*/*"):
            return self.cluster.last("start", file.parent.name.removeprefix(RESUME))
        return None


ACTS = [name for name in vars(Monkey) if name.startswith(("kill_", "pause_"))]


def schedule(seed: int) -> list[tuple[int, str, int, float]]:
    """Each of ACTS once, killing a worker twice, in an order, at times (runs stored so far), to a
    worker and with a share that the seed decides.
    """
    chance = random.Random(seed)
    names = [*ACTS, "kill_worker"]
    chance.shuffle(names)
    times = sorted(chance.sample(range(1, RUNS * 3 // 4), len(names)))
    return [
        (after, name, chance.randrange(WORKERS), chance.random())
        for after, name in zip(times, names)
    ]


def unleash(acts: list[tuple[int, str, int, float]], cluster: Cluster) -> None:
    """The sweep and the monkey, until the sweep is done."""
    monkey, acts = Monkey(cluster), list(acts)
    cluster.start_scheduler()
    for slot in range(WORKERS):
        cluster.start_worker(slot)
    cluster.start_client()
    last, since = -1, time.monotonic()
    while cluster.ends[-1:] != ["done"]:
        if (now := (cluster.stored(), len(cluster.ends))) != last:
            last, since = now, time.monotonic()
        assert time.monotonic() - since < PATIENCE_S, f"the sweep hangs after {now[0]} runs"
        if acts and now[0] >= acts[0][0]:
            _, name, slot, share = acts.pop(0)
            getattr(monkey, name)(slot, share)
            since = time.monotonic()
        time.sleep(0.02)
        monkey.tick()
    assert not acts, "the sweep was done before the monkey was"
