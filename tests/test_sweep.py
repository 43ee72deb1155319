"""A sweep gives a row a config, whatever happens to workers, schedulers and other sweeps on the same store."""

import errno
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module

import dask
import psutil
import pytest
import torch
from dask.distributed import Client

import mambanorm as mn
from mambanorm.basics.settings import ROOT
from mambanorm.cli import main as cli
from mambanorm.kernels.warm import warm_up
from mambanorm.study import estimate
from mambanorm.training import cluster, leases
from mambanorm.training import worker as worker_module
from mambanorm.training.cluster import count_workers, local_cluster
from mambanorm.training.grid import base_config
from mambanorm.training.leases import LEASE, Held, Watch, lease, remove_dead
from mambanorm.training.store import find_run, load_runs
from mambanorm.training.sweep import sweep
from mambanorm.training.worker import run_one, train_one

sweeping = import_module("mambanorm.training.sweep")  # mn.sweep is the function


def look_often(monkeypatch):
    for module in (cluster, sweeping, worker_module):
        monkeypatch.setattr(module, "POLL_S", 0.1)


def smoke(**changes):
    return base_config("digits", "smoke", **changes)


def until(true, what, seconds=240):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


@contextmanager
def process(*arguments, **options):
    """A Python process with piped output; killed at the end."""
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) | options
    started = subprocess.Popen([sys.executable, *map(str, arguments)], **options)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def scheduler(folder):
    """A Dask scheduler in a process of its own, and its address."""
    file, options = (
        folder / "scheduler.json",
        ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"],
    )
    silent = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = ["-m", "distributed.cli.dask_scheduler", *options, "--scheduler-file", file]
    with process(*command, **silent) as started:
        until(file.exists, "the scheduler")
        until(lambda: file.read_text().endswith("}"), "the scheduler's address")
        yield started, json.loads(file.read_text())["address"]


@contextmanager
def worker(address, *options, **environment):
    """A Dask worker in a process of its own."""
    silent = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment)
    common = ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    with process("-m", "distributed.cli.dask_worker", address, *common, *options, **silent) as started:
        yield started


# how many threads


def test_the_last_missing_run_has_the_result_it_has_among_others(store, tmp_path):
    configs = [smoke(arm="None>SSM>BN", seed=seed) for seed in (0, 1)]
    before = torch.get_num_threads()
    with local_cluster(2, 1) as client:
        sweep(configs, client=client, progress=False, runs_dir=tmp_path / "both")
        there = find_run(configs[1], tmp_path / "both")
        for name, where in (("there", dict(client=client)), ("here", dict(workers=0))):
            frame = sweep(configs[1:], **where, progress=False, runs_dir=tmp_path / name)
            assert list(frame.threads) == [1]
            alone = find_run(configs[1], tmp_path / name)
            assert alone.curves.equals(there.curves)
            assert all(torch.equal(value, there.checkpoint[part]) for part, value in alone.checkpoint.items())
    assert torch.get_num_threads() == before


def test_kernels_are_compiled_and_runs_timed_whatever_the_caller_has_set():
    with torch.no_grad(), torch.device("meta"):
        warm_up()
        assert mn.plan(smoke())["hours"] > 0


def test_a_worker_has_the_threads_that_the_widest_run_asks_for(store):
    configs = [smoke(threads=3), smoke()]  # more than the machine may have
    frame = sweep(configs, workers=1, progress=False)
    assert list(frame.status) == ["ok", "ok"]
    assert list(frame.threads) == [3, 1]


def test_as_many_workers_as_the_cores_hold_of_the_widest_run(monkeypatch):
    monkeypatch.setattr(cluster, "cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ten = [smoke(seed=seed) for seed in range(10)]
    assert count_workers(ten) == 8
    assert count_workers(ten[:3]) == 3
    assert count_workers(ten[:1]) == 0  # in this process
    assert count_workers([*ten, smoke(threads=3)]) == 2
    assert count_workers([*ten, smoke(threads=16)]) == 1
    assert count_workers([smoke(threads=4096)]) == 1  # this process has not so many, a worker of its own will
    assert count_workers(ten, 5) == 5


def test_too_many_threads_for_this_process_is_one_sentence(store):
    with pytest.warns(UserWarning, match="set NUMBA_NUM_THREADS=4096"):
        frame = sweep([smoke(threads=4096)], workers=0, progress=False)
    assert list(frame.status) == ["failed"]


def test_a_run_is_timed_with_its_own_threads(store, monkeypatch):
    plan = import_module("mambanorm.study.plan")
    seen = []
    monkeypatch.setattr(plan, "_median_s", lambda *_: seen.append(torch.get_num_threads()) or 1.0)
    before = torch.get_num_threads()
    assert cli.main(["plan", "--task", "digits", "--scale", "smoke"]) == 0
    estimate.estimate([smoke(steps=2)], 1)
    assert set(seen) == {1}
    with pytest.raises(ValueError, match="NUMBA_NUM_THREADS=4096"):
        mn.plan(smoke(threads=4096))
    estimate.estimate([smoke(threads=4096)], 1)  # with as many as there are: it is an estimate
    assert torch.get_num_threads() == before


def test_stored_times_count_for_runs_of_as_many_threads(store):
    sweep([smoke()], workers=0, progress=False)
    assert "1 like run" in estimate.dry_run([smoke(seed=1)], workers=0)
    assert "timed just now" in estimate.dry_run([smoke(seed=1, threads=2)], workers=0)


# one run that fails


def test_a_config_that_cannot_train_is_one_line_and_no_traceback(capfd, store):
    argv = ["sweep", "--arms", "GN>SSM>GN,GN>SSM>None", "--scale", "smoke", "--seeds", "2", "--workers", "0"]
    assert cli.main([*argv, "--set", 'norm_options={"groups": 3}']) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mambanorm:")]
    assert len(lines) == 4 + 1  # each, and how many
    assert all("do not divide" in line for line in lines)


def test_the_traceback_of_a_failing_run_is_shown_to_those_who_ask(capfd, store, monkeypatch):
    config = smoke(arm="GN>SSM>GN", norm_options={"groups": 3})
    store.mkdir()
    for asked in (False, True):
        monkeypatch.setenv("MAMBANORM_DEBUG", "1" if asked else "")
        assert "do not divide" in run_one(config.to_json(), str(store)).error
        assert ("Traceback" in capfd.readouterr().err) == asked


def test_an_unwritable_store_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "train", lambda *_, **__: pytest.fail("trained for nothing"))
    (tmp_path / "file").write_text("in the way")
    for place, error in ((tmp_path / "file", ValueError), (tmp_path / "file" / "below", OSError)):
        with pytest.raises(error, match="file"):
            sweep([smoke()], workers=0, progress=False, runs_dir=place)
        with pytest.raises(error, match="file"):
            train_one(smoke(), place)


def test_a_run_that_kills_every_worker_is_a_failed_row_and_one_line(store):
    script = """
import os
import dask
import mambanorm as mn
from mambanorm.tasks import TASKS

mn.register_task("deadly", title="kills every worker", source="a test")(lambda scale, seed: os._exit(1))

if __name__ == "__main__":
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        frame = mn.sweep([mn.base_config("digits", "smoke").but(task="deadly")], workers=1, progress=False)
    print(list(frame.status), frame.error[0])
"""
    path = store.parent / "deadly.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.stdout.startswith("['failed'] every worker process that trained it died"), done.stderr
    assert "distributed" not in done.stderr  # it is told once, as a warning


TWICE = """
import os
import sys
import dask
import mambanorm as mn
from mambanorm.tasks import TASKS

def die_twice(scale, seed):
    with open(sys.argv[1], "a") as deaths:
        deaths.write("x")
    if os.path.getsize(sys.argv[1]) <= 2:
        os._exit(1)
    return TASKS["digits"].load(scale, seed)

mn.register_task("unlucky", title="its worker dies twice", source="a test")(die_twice)

if __name__ == "__main__":
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        frame = mn.sweep([mn.base_config("digits", "smoke").but(task="unlucky")], workers=1, progress=False)
    print(list(frame.status))
"""


def test_a_run_that_dask_gives_up_is_tried_again(store, tmp_path):
    path, deaths = tmp_path / "twice.py", tmp_path / "deaths"
    path.write_text(TWICE)
    done = subprocess.run([sys.executable, path, deaths], capture_output=True, text=True, timeout=300)
    assert done.stdout == "['ok']\n", done.stderr
    assert deaths.read_text() == "xxx"


# a full disk


def full_disk(monkeypatch, times):
    """So often nothing can be written; the list that is returned has an entry for each."""
    write, refused = worker_module.save_run, []

    def refuse(*arguments):
        if len(refused) < times:
            refused.append(arguments)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(worker_module, "POLL_S", 0.01)
    monkeypatch.setattr(worker_module, "save_run", refuse)
    return refused


def test_a_trained_run_waits_for_space_on_a_full_disk(store, monkeypatch):
    refused, trained = full_disk(monkeypatch, 3), []
    monkeypatch.setattr(worker_module, "train", lambda c, **k: trained.append(c) or mn.train(c, **k))
    assert list(sweep([smoke()], workers=0, progress=False).status) == ["ok"]
    assert len(refused) == 3
    assert len(trained) == 1


def test_a_disk_that_stays_full_ends_the_sweep_in_one_sentence(store, monkeypatch, capsys):
    argv = ["sweep", "--arms", "RMSN>SSM>None,None>SSM>GN", "--scale", "smoke", "--seeds", "3", "--workers", "0"]
    sweep([smoke(arm="RMSN>SSM>None", seed=1)], workers=0, progress=False)
    refused, trained = full_disk(monkeypatch, 1000), []
    monkeypatch.setattr(worker_module, "FULL_S", 0.1)
    monkeypatch.setattr(worker_module, "train", lambda c, **k: trained.append(c) or mn.train(c, **k))
    capsys.readouterr()
    assert cli.main(argv) == 1
    ours = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mambanorm:")]
    assert ours == [
        f"mambanorm: the disk of the run store is full. 0 of 5 runs are in the store ({store}) and stay there: free "
        "some space, and the same sweep goes on from there"
    ]
    assert len(refused) > 1
    assert len(trained) == 1  # no other is trained for nothing
    assert len(load_runs()) == 1


# leases


def test_odd_leases_stop_no_sweep(store):
    store.mkdir()
    facts = dict(token="t", host="h", machine=leases.this_machine(), since=0.0)
    (store / ".lease-a").write_text(json.dumps(facts | dict(pid=-1)))
    (store / ".lease-b").mkdir()
    (store / ".lease-c").symlink_to(store / "nowhere")
    assert list(sweep([smoke()], workers=0, progress=False).status) == ["ok"]
    linked = smoke(seed=1)
    (store / f".lease-{linked.run_id}").symlink_to(store / "nowhere")
    with pytest.warns(UserWarning, match="is a link, and no lease: remove it"):
        assert list(sweep([linked], workers=0, progress=False).status) == ["failed"]


HOLD = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts the tests in its background ignores it
sys.path.append(sys.argv[3])
import leases  # alone: the package takes seconds
leases.BEAT_S = 0.1
if len(sys.argv) > 4:
    leases.this_machine = lambda: sys.argv[4]
with leases.lease(sys.argv[2], Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(store, config, *machine):
    """Another process that holds the lease of a run."""
    store.mkdir(exist_ok=True)
    with process("-c", HOLD, store, config.run_id, ROOT / "mambanorm" / "training", *machine) as started:
        assert started.stdout.readline() == "held\n"
        yield started


def test_a_run_is_trained_by_one_process_at_a_time(store):
    config = smoke()
    with holder(store, config) as other:
        outcome = run_one(config.to_json(), str(store))
        assert (outcome.holder.pid, outcome.holder.host) == (other.pid, socket.gethostname())
        assert outcome.error is None
        with pytest.raises(Held, match=f"process {other.pid} on"), lease(config.run_id, store):
            pass
    assert len(load_runs()) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_is_told_to_stop_gives_its_lease_back(store, number):
    with holder(store, smoke()) as other:
        os.kill(other.pid, number)
        assert other.wait(60) == -number
        assert list(store.iterdir()) == []


def test_a_dead_process_holds_no_lease(store):
    configs = [smoke(), smoke(seed=1)]
    for config in configs:
        with holder(store, config) as other:
            other.kill()
            other.wait()
    assert len(list(store.glob(f"{LEASE}*"))) == 2
    assert run_one(configs[0].to_json(), str(store)).path
    remove_dead(store)
    assert [path.name for path in store.iterdir()] == [configs[0].run_id]


@pytest.mark.parametrize(
    ("error", "dead"), [(psutil.NoSuchProcess(1), True), (psutil.AccessDenied(1), False)], ids=["gone", "hidden"]
)
def test_of_the_holder_of_a_lease_only_what_is_known_to_be_dead_is(monkeypatch, error, dead):
    def refuse(_):
        raise error

    here = leases.Holder("token", "h", os.getpid(), leases.this_machine(), 0)
    assert not here.dead
    monkeypatch.setattr(psutil, "Process", refuse)
    assert here.dead == dead
    assert not leases.Holder("token", "h", os.getpid(), "another machine", 0).dead


def test_a_lease_is_stale_only_when_it_no_longer_beats(store, monkeypatch):
    monkeypatch.setattr(leases, "STALE_S", 1.0)
    config = smoke()
    path = store / f"{LEASE}{config.run_id}"
    with holder(store, config) as other:
        watch, found = Watch(store), leases.read(path)
        os.utime(path, (0, 0))  # however old it looks
        for _ in range(30):
            assert watch.freed(config.run_id, found) is None
            time.sleep(0.1)
        other.send_signal(signal.SIGSTOP)
        until(lambda: watch.freed(config.run_id, found), "the lease to be stale")
        assert run_one(config.to_json(), str(store)).holder  # nobody takes it without having watched it
        assert run_one(config.to_json(), str(store), found.token).path


@pytest.mark.parametrize("scheduled", [False, True])
def test_a_run_of_another_machine_that_died_is_trained_here_at_last(store, monkeypatch, scheduled):
    monkeypatch.setattr(leases, "STALE_S", 0.5)
    look_often(monkeypatch)
    first, second = smoke(), smoke(seed=1)
    with holder(store, first, "another machine") as other:
        other.kill()
    remove_dead(store)
    assert (store / f"{LEASE}{first.run_id}").exists()  # for all that is known here it may live
    order = []
    monkeypatch.setattr(worker_module, "train", lambda c, **k: order.append(c.run_id) or mn.train(c, **k))
    if scheduled:
        frame = sweep([first, second], workers=0, progress=False)
        assert list(frame.status) == ["ok", "ok"]
        assert order == [second.run_id, first.run_id]  # what others train is waited for last
    else:
        train_one(first)
        assert find_run(first) is not None
    assert not list(store.glob(".*"))


def test_what_another_process_stores_meanwhile_is_not_trained_again(store, monkeypatch):
    config, started = smoke(), []
    look_often(monkeypatch)
    with lease(config.run_id, store_made(store)), ThreadPoolExecutor() as pool:
        monkeypatch.setattr(worker_module, "train", lambda *_, **__: pytest.fail("it is trained elsewhere"))
        both = [pool.submit(sweep, [config], workers=0, progress=False), pool.submit(train_one, config)]
        until(lambda: all(task.running() for task in both), "both to start", 60)
        mn.save_run(mn.train(config, on_step=lambda *_: started.append(1)))
    assert list(both[0].result().status) == ["ok"]
    assert both[1].result() is None


def store_made(store):
    store.mkdir(parents=True, exist_ok=True)
    return store


TWO = """
import os, sys, time
from pathlib import Path
import mambanorm as mn
from mambanorm.training.sweep import sweep

module, folder = sys.modules["mambanorm.training.worker"], Path(os.environ["TRAINED_LOG"]).parent
train = module.train

def counted(config, **options):
    with open(os.environ["TRAINED_LOG"], "a") as log:
        log.write(config.run_id + "\\n")
    return train(config, **options)

module.train = counted  # in the workers too, which import this file

if __name__ == "__main__":
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.01)
    configs = mn.grid(["RMSN>SSM>None", "None>SSM>GN", "LN>SSM>LN"], ["digits"], scale="smoke", seeds=2)
    print(list(sweep(configs, workers=int(sys.argv[1])).status))
"""


def test_two_sweeps_share_a_store_and_train_each_run_once(store, tmp_path):
    script, log = tmp_path / "two.py", tmp_path / "trained"
    script.write_text(TWO)
    environment = os.environ | {"TRAINED_LOG": str(log)}
    with process(script, 0, env=environment) as one, process(script, 1, env=environment) as other:
        for started in (one, other):
            out, err = started.communicate(timeout=300)
            assert out == f"{['ok'] * 6}\n", err
    trained = log.read_text().split()
    assert len(trained) == len(set(trained)) == 6
    assert not list(store.glob(".*"))


def test_a_lease_goes_with_its_run_even_if_the_run_fails(store):
    store.mkdir()
    assert run_one(smoke(arm="GN>SSM>GN", norm_options={"groups": 3}).to_json(), str(store)).error
    assert list(store.iterdir()) == []


def test_a_lease_that_cannot_be_read_is_somebody_elses(store, monkeypatch):
    monkeypatch.setattr(leases, "STALE_S", 0.2)
    config = smoke()
    path = store_made(store) / f"{LEASE}{config.run_id}"
    path.write_text("{")  # being written
    found = run_one(config.to_json(), str(store)).holder
    watch = Watch(store)
    until(lambda: watch.freed(config.run_id, found), "the lease to be stale")
    assert run_one(config.to_json(), str(store), found.token).path


def taken_over(path):
    """The file of a lease as the process that took it over wrote it; its text."""
    text = json.dumps(dict(token="theirs", host="h", pid=1, machine="another machine", since=0.0))
    path.write_text(text)
    return text


@pytest.mark.parametrize("lose", [taken_over, os.remove], ids=["taken over", "gone"])
def test_a_process_that_lost_its_lease_beats_no_more_and_leaves_the_new_holders_alone(store, monkeypatch, lose):
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    path = store_made(store) / f"{LEASE}a"
    with lease("a", store):
        (beating,) = [thread for thread in threading.enumerate() if thread.name == path.name]
        for _ in range(2):
            os.utime(path, (0, 0))
            until(lambda: path.stat().st_mtime > 0, "a beat of its own", 10)
        text = lose(path)
        until(lambda: not beating.is_alive(), "the end of the beats", 10)
    assert (path.read_text() if path.exists() else None) == text


def test_a_lease_is_taken_away_only_from_the_holder_that_is_meant(store, monkeypatch):
    path, moved = store_made(store) / f"{LEASE}a", []
    rename = type(path).rename
    monkeypatch.setattr(type(path), "rename", lambda one, to: moved.append(one) or rename(one, to))
    leases._remove(path, "stale")
    text = taken_over(path)
    leases._remove(path, "stale")
    assert moved == []  # not even for a moment: meanwhile another could take it
    assert path.read_text() == text
    leases._remove(path, "theirs")
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("again", [False, True])
def test_a_lease_that_another_process_took_at_the_same_moment_is_put_back(store, monkeypatch, again):
    """Between the look at a stale lease and its renaming another may take it, and then a third may take the name."""
    path = store_made(store) / f"{LEASE}a"
    text, stale, real = taken_over(path), leases.Holder("stale", "h", 1, "", 0), leases.read
    first = iter([stale])

    def seen(one):
        if again and one != path:
            path.write_text("a third")
        return next(first, None) or real(one)

    monkeypatch.setattr(leases, "read", seen)
    leases._remove(path, "stale")
    assert [one.name for one in store.iterdir()] == [path.name]
    assert path.read_text() == ("a third" if again else text)


# a cluster of our own


def test_a_local_cluster_can_be_reached_from_this_process_alone_and_serves_no_page():
    with local_cluster(1, 1) as client:
        with pytest.raises(ssl.SSLError, match="(?i)certificate"):  # another user of this machine has no key
            talk(client.scheduler.address)
        me = psutil.Process()
        mine = [me, *me.children(recursive=True)]
        places = {c.laddr for p in mine for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
        assert len(places) >= 4  # scheduler, nanny, worker, and what would serve the pages
        assert {place.ip for place in places} == {"127.0.0.1"}
        pages = {page(place, name) for place in places for name in ("info", "metrics", "json/identity.json", "status")}
    assert pages <= {None, "404"}
    assert "404" in pages


def talk(address):
    """What a Dask server says first, to somebody who takes every certificate and has none."""
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    host, port = address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port)), 30) as connection, stranger.wrap_socket(connection) as wrapped:
        return wrapped.recv(1)


def page(place, name):
    """The status of an HTTP request; None where TLS is spoken."""
    with socket.create_connection(place, 30) as connection:
        connection.sendall(f"GET /{name} HTTP/1.0\r\n\r\n".encode())
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            return None
        return answer.split()[1].decode() if answer.startswith(b"HTTP/") else None


# a scheduler somewhere


ELSEWHERE = """
from importlib import import_module
from pathlib import Path

def dask_setup(_worker):
    worker = import_module("mambanorm.training.worker")
    save_run = worker.save_run
    worker.save_run = lambda result, store: save_run(result, Path(store).with_name("elsewhere"))
"""


def test_runs_that_a_worker_stored_elsewhere_are_failed_rows_and_exit_code_1(store, tmp_path, capsys):
    preload = tmp_path / "elsewhere.py"
    preload.write_text(ELSEWHERE)
    argv = ["--scale", "smoke", "--set", "steps=2"]
    sweeps = ["sweep", "--arms", "RMSN>SSM>None,None>SSM>GN,LN>SSM>LN", "--seeds", "2", *argv]
    with scheduler(tmp_path) as (_, address), worker(address, "--preload", preload):
        # none sees the store
        assert cli.main([*sweeps, "--scheduler", address]) == 1
        said = capsys.readouterr()
        assert "6 of 6 runs could not be trained" in said.err
        assert "holds no runs" not in said.err + said.out
        assert cli.main(["train", "--arm", "GN>SSM>LN", *argv, "--scheduler", address]) == 1
        assert "worker tcp://127.0.0.1:" in capsys.readouterr().err
        # one of two does not
        configs = [smoke(seed=seed) for seed in range(8)]
        with worker(address), Client(address) as client:
            client.wait_for_workers(2)
            with pytest.warns(UserWarning, match="do both see one store"):
                frame = sweep(configs, client=client, progress=False)
    assert list(frame.run_id) == [config.run_id for config in configs]
    assert set(frame.status) == {"ok", "failed"}
    lost = frame[frame.status == "failed"].iloc[0]
    assert "worker tcp://127.0.0.1:" in lost.error
    assert f"on {socket.gethostname()} stored this run at {store.with_name('elsewhere') / lost.run_id}" in lost.error


def test_a_worker_with_too_few_threads_is_named(store, tmp_path):
    named = r"set NUMBA_NUM_THREADS=2 .*\(worker tcp://127.0.0.1:\d+ on "
    with (
        scheduler(tmp_path) as (_, address),
        worker(address, NUMBA_NUM_THREADS="1"),
        pytest.warns(UserWarning, match=named),
    ):
        frame = sweep([smoke(threads=2), smoke()], scheduler=address, progress=False)
    assert list(frame.status) == ["failed", "ok"]


def test_a_scheduler_without_workers_is_told_and_the_sweep_goes_on_when_they_come(store, tmp_path, capsys, monkeypatch):
    look_often(monkeypatch)
    monkeypatch.setattr(cluster, "REMIND_S", 0.2)
    said = []
    monkeypatch.setattr(sweeping.tqdm, "write", lambda text, **_: said.append(text))
    with scheduler(tmp_path) as (_, address), ThreadPoolExecutor() as pool:
        waiting = pool.submit(sweep, [smoke()], scheduler=address, progress=False)
        until(lambda: len(said) > 2, "a word about workers")
        with worker(address):
            assert list(waiting.result(240).status) == ["ok"]
    assert set(said) == {f"no workers at {address} yet: start some with `dask worker {address} --nthreads 1`"}


def test_a_scheduler_that_dies_is_one_line_that_says_how_to_go_on(store, tmp_path):
    command = ["-m", "mambanorm", "sweep", "--arms", "RMSN>SSM>None,None>SSM>GN", "--scale", "smoke", "--seeds", "40"]
    with (
        scheduler(tmp_path) as (dying, address),
        worker(address),
        process(*command, "--scheduler", address) as started,
    ):
        until(lambda: len(load_runs()) > 1, "the first runs")
        dying.kill()
        _, err = started.communicate(timeout=240)
        assert started.returncode == 1
    ours = [line for line in err.splitlines() if "training" not in line and line.strip()]
    assert len(ours) == 1, err
    assert ours[0].startswith(f"mambanorm: the Dask scheduler at {address} is gone. ")
    assert "of 80 runs are in the store" in ours[0]
    assert "the same sweep goes on from there" in ours[0]
    assert "Traceback" not in err


def test_a_scheduler_that_freezes_ends_the_sweep(store, tmp_path, monkeypatch):
    look_often(monkeypatch)
    monkeypatch.setattr(cluster, "REMIND_S", 0.5)
    monkeypatch.setattr(cluster, "ANSWER_S", 2.0)
    with scheduler(tmp_path) as (frozen, address), ThreadPoolExecutor() as pool:
        waiting = pool.submit(sweep, [smoke()], scheduler=address, progress=False)
        with Client(address, set_as_default=False) as other:
            count = lambda dask_scheduler: len(dask_scheduler.tasks)  # noqa: E731
            until(lambda: other.run_on_scheduler(count), "the run to arrive")
        frozen.send_signal(signal.SIGSTOP)
        with pytest.raises(ConnectionError, match="is gone. 0 of 1 run are in the store"):
            waiting.result(240)


def test_a_scheduler_that_does_not_answer_is_one_line(capsys, store):
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        code = cli.main(["sweep", "--arms", "LN>SSM>LN", "--scale", "smoke", "--scheduler", "tcp://127.0.0.1:1"])
    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "mambanorm: no Dask scheduler answers at tcp://127.0.0.1:1: is it running, and is that its address?"
    ]
