"""A sweep gives a row a config, whatever happens to workers, schedulers and other sweeps on the
same store.
"""

import errno
import fcntl
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module

import dask
import psutil
import pytest
import torch
from dask.distributed import Client
from filelock import Timeout

import mambanorm_study as study
from mambanorm.kernels.warm import warm_up
from mambanorm_study.cli import main as cli
from mambanorm_study.runs import cluster, worker as worker_module
from mambanorm_study.runs.cluster import count_workers, local_cluster, worker_environment
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.store import LEASE, find_run, load_runs, missing_runs, save_run
from mambanorm_study.runs.sweep import sweep
from mambanorm_study.runs.worker import Outcome, lease, run_one, train_and_store

sweeping = import_module("mambanorm_study.runs.sweep")  # study.sweep is the function


@pytest.fixture
def look_often(monkeypatch):
    monkeypatch.setattr(worker_module, "POLL_S", 0.1)


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
    file = folder / "scheduler.json"
    options = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    silent = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with process(
        "-m", "distributed.cli.dask_scheduler", *options, "--scheduler-file", file, **silent
    ) as started:
        until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler")
        yield started, json.loads(file.read_text())["address"]


@contextmanager
def worker(address, *options, **environment):
    """A Dask worker in a process of its own."""
    silent = dict(
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
    )
    common = ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    with process(
        "-m", "distributed.cli.dask_worker", address, *common, *options, **silent
    ) as started:
        yield started


# how many threads


def test_a_sweep_on_workers_of_its_own_trains_what_is_missing_and_gives_the_frame_in_order(
    store, monkeypatch
):
    """Each run on the threads that it asks for, more than the machine may have, and this process as
    it was.
    """
    for name in worker_environment(1):  # what is set outside would hold for the worker too
        monkeypatch.delenv(name, raising=False)
    configs = [
        smoke(threads=3),
        smoke(),
        smoke(arm="None>SSM>None", lr=1e6, steps=30, warmup_steps=0, n_layers=4),
    ]
    save_run(train(configs[1]))
    before = (store / configs[1].run_id / "result.json").read_bytes()
    environment = dict(os.environ)
    frame = sweep(configs, workers=1, progress=False)
    assert list(frame.run_id) == [c.run_id for c in configs]
    assert list(frame.status) == ["ok", "ok", "diverged"]
    assert list(frame.threads) == [3, 1, 1]
    assert (store / configs[1].run_id / "result.json").read_bytes() == before
    assert missing_runs(configs) == []
    assert dict(os.environ) == environment


@pytest.fixture(scope="module")
def two_workers():
    with local_cluster(2, 1) as client:
        yield client


def test_the_last_missing_run_has_the_result_it_has_among_others(two_workers, tmp_path):
    configs = [smoke(arm="None>SSM>BN", seed=seed) for seed in (0, 1)]
    before = torch.get_num_threads()
    sweep(configs, client=two_workers, progress=False, runs_dir=tmp_path / "both")
    there = find_run(configs[1], tmp_path / "both")
    for name, where in (("there", dict(client=two_workers)), ("here", dict(workers=0))):
        frame = sweep(configs[1:], **where, progress=False, runs_dir=tmp_path / name)
        assert list(frame.threads) == [1]
        alone = find_run(configs[1], tmp_path / name)
        assert alone.curves.equals(there.curves)
        assert all(
            torch.equal(value, there.checkpoint[part]) for part, value in alone.checkpoint.items()
        )
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("on_workers", [False, True])
def test_a_run_that_would_end_too_late_is_left_out_and_the_next_sweep_trains_it(
    on_workers, two_workers, store
):
    configs = [smoke(steps=2, seed=seed) for seed in range(4)]
    expected = dict(zip([c.run_id for c in configs], (1.0, 9e9, 1.0, 1.0)))
    where = dict(client=two_workers) if on_workers else dict(workers=0)
    where |= dict(runs_dir=store, progress=False)
    frame = sweep(configs, **where, expected=expected, seconds=600)
    assert list(frame.seed) == [0, 2, 3]
    assert set(frame.status) == {"ok"}
    assert missing_runs(configs, store) == [configs[1]]
    assert sweep(configs[1:2], **where, seconds=0).empty
    assert list(sweep(configs, **where).seed) == [0, 1, 2, 3]


def test_kernels_are_compiled_and_runs_timed_whatever_the_caller_has_set():
    with torch.no_grad(), torch.device("meta"):
        warm_up()
        assert study.plan(smoke())["hours"] > 0


def test_as_many_workers_as_the_cores_hold_of_the_widest_run(monkeypatch):
    monkeypatch.setattr(cluster, "cores", lambda: 8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    quick = partial(base_config, "digits", "quick")
    ten = [quick(seed=seed) for seed in range(10)]
    assert count_workers(ten) == 8
    assert count_workers(ten[:3]) == 3
    assert count_workers(ten[:1]) == 0  # in this process
    assert (
        count_workers([smoke(seed=seed) for seed in range(10)]) == 0
    )  # over before a worker has started
    assert count_workers([*ten, quick(threads=3)]) == 2
    assert count_workers([*ten, quick(threads=16)]) == 1
    assert (
        count_workers([quick(threads=4096)]) == 1
    )  # this process has not so many, a worker of its own will
    assert count_workers(ten, 5) == 5
    with pytest.raises(ValueError, match="workers must be"):
        count_workers(ten, -1)
    monkeypatch.setattr(
        torch.cuda, "is_available", lambda: True
    )  # several runs share a GPU only if one asks for it
    assert count_workers(ten) == 0
    assert count_workers(ten, 5) == 5
    assert count_workers([config.but(device="cpu") for config in ten]) == 8


def test_a_run_is_timed_with_its_own_threads(store, monkeypatch):
    plan = import_module("mambanorm_study.tables.plan")
    seen = []
    saved_bytes = plan.saved_bytes
    monkeypatch.setattr(
        plan,
        "saved_bytes",
        lambda *work: seen.append(torch.get_num_threads()) or saved_bytes(*work),
    )
    before = torch.get_num_threads()
    assert cli.main(["plan", "--task", "digits", "--scale", "smoke"]) == 0
    plan.training_seconds([smoke(steps=2)])
    assert set(seen) == {1}
    with pytest.raises(ValueError, match="NUMBA_NUM_THREADS=4096"):
        study.plan(smoke(threads=4096))
    plan.training_seconds([smoke(threads=4096)])  # timed with all threads of this process
    assert torch.get_num_threads() == before


# runs that fail, and workers that die


def test_configs_that_cannot_train_are_failed_rows_and_a_line_each_without_a_traceback(
    capfd, store
):
    bad = smoke(arm="GN>SSM>None", norm_options={"groups": 3})
    with pytest.warns(UserWarning, match="do not divide"):
        frame = sweep([bad, smoke(threads=4096), smoke()], workers=0, progress=False)
    assert list(frame.status) == ["failed", "failed", "ok"]
    assert "groups may be one of" in frame.error[0]
    assert "set NUMBA_NUM_THREADS=4096" in frame.error[1]
    assert missing_runs([bad]) == [bad]
    capfd.readouterr()
    argv = [
        "sweep",
        "--arms",
        "GN>SSM>GN,GN>SSM>None",
        "--scale",
        "smoke",
        "--seeds",
        "2",
        "--workers",
        "0",
    ]
    assert cli.main([*argv, "--set", 'norm_options={"groups": 3}']) == 1
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("mambanorm:")]
    assert len(lines) == 4 + 1  # each, and how many
    assert all("do not divide" in line for line in lines)


def test_the_traceback_of_a_failing_run_is_shown_to_those_who_ask(capfd, store, monkeypatch):
    config = smoke(arm="GN>SSM>GN", norm_options={"groups": 3})
    store.mkdir()
    for asked in (False, True):
        monkeypatch.setenv("MAMBANORM_DEBUG", "1" if asked else "")
        assert run_one(config.to_json(), str(store)).error.endswith("one of [1, 2, 4, 8]")
        assert ("Traceback" in capfd.readouterr().err) == asked
    monkeypatch.setattr(worker_module, "train", lambda *_, **__: {}["a mistake in the code"])
    assert "KeyError: 'a mistake in the code'" in run_one(smoke().to_json(), str(store)).error
    assert list(store.iterdir()) == []  # its lease is gone with it


def test_what_makes_no_sense_is_told_before_anything_is_trained(store, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "train", lambda *_, **__: pytest.fail("trained for nothing"))
    (tmp_path / "file").write_text("in the way")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            sweep([smoke()], workers=0, progress=False, runs_dir=path)
    with pytest.raises(ValueError, match="unknown task"):
        sweep([smoke(), base_config("digots", "smoke")], progress=False)
    assert not store.exists()
    with pytest.raises(ValueError, match="workers must be"):
        sweep([smoke()], workers=-1, progress=False)


DYING = """
import os, pathlib, sys
import dask.distributed  # with its configuration, which is changed below
import mambanorm as mn
import mambanorm_study as study
from mambanorm_study.tasks import TASKS

@study.register_task("suicide", title="kills its first worker", source="a test")
def load(scale, seed):
    mark = pathlib.Path(sys.argv[1])
    if not mark.exists():
        mark.write_text("died once")
        os._exit(1)
    return TASKS["digits"].load(scale, seed)

study.register_task("deadly", title="kills every worker", source="a test")(lambda scale, seed: os._exit(1))

if __name__ == "__main__":
    for task, allowed in (("suicide", 3), ("deadly", 0)):
        with dask.config.set({"distributed.scheduler.allowed-failures": allowed}):
            frame = study.sweep([study.base_config("digits", "smoke").but(task=task)], workers=1, progress=False)
        print(list(frame.status), frame.error[0])
"""


def test_a_dying_worker_costs_nothing_but_time_and_a_run_that_kills_every_worker_is_a_failed_row(
    store, tmp_path
):
    path, mark = tmp_path / "dying.py", tmp_path / "mark"
    path.write_text(DYING)
    done = subprocess.run([sys.executable, path, mark], capture_output=True, text=True, timeout=300)
    assert mark.exists(), done.stderr
    once, always = done.stdout.splitlines()
    assert once.startswith("['ok']"), done.stderr
    assert always.startswith("['failed'] Attempted to run task"), done.stderr
    assert " - distributed" not in done.stderr  # a warning, without lines of Dask's log


def test_a_script_that_sweeps_while_its_workers_import_it_is_told_what_to_do(store):
    path = store.parent / "unguarded.py"
    path.write_text(
        "import mambanorm as mn\nimport mambanorm_study as study\nstudy.sweep([study.base_config('digits', 'smoke')], workers=1, progress=False)\n"
    )
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert (
        'put the code that the script runs under `if __name__ == "__main__":`'
        in done.stderr.splitlines()[-1]
    )
    assert "bootstrapping phase" not in done.stderr  # what each worker would say


def test_a_full_disk_ends_the_sweep_in_one_sentence(store, monkeypatch, capsys):
    argv = [
        "sweep",
        "--arms",
        "RMSN>SSM>None,None>SSM>GN",
        "--scale",
        "smoke",
        "--seeds",
        "3",
        "--workers",
        "0",
    ]
    sweep([smoke(arm="RMSN>SSM>None", seed=1)], workers=0, progress=False)

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    trained = []
    monkeypatch.setattr(worker_module, "save_run", full_disk)
    monkeypatch.setattr(
        worker_module, "train", lambda c, **k: trained.append(c) or study.train(c, **k)
    )
    capsys.readouterr()
    assert cli.main(argv) == 1
    ours = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mambanorm:")]
    assert ours == [
        f"mambanorm: the disk of the run store {store} is full: free some space, "
        "and the same sweep trains the runs that are missing"
    ]
    assert len(trained) == 1  # no other is trained for nothing
    assert len(load_runs()) == 1


# leases

HOLD = """
import sys, time, filelock
with filelock.FileLock(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def held(store, config):
    """By another process, to which this file alone tells that the run is its own."""
    store.mkdir(exist_ok=True, parents=True)
    with process("-c", HOLD, store / f"{LEASE}{config.run_id}") as started:
        assert started.stdout.readline() == "held\n"
        yield started


def test_a_run_is_trained_by_one_process_at_a_time_and_a_dead_one_holds_nothing(store):
    config = smoke()
    with held(store, config) as other:
        assert run_one(config.to_json(), str(store)) == Outcome(held=True)
        with pytest.raises(Timeout), lease(config.run_id, store):
            pass
        assert len(load_runs()) == 0
        other.kill()
        other.wait()
        assert (store / f"{LEASE}{config.run_id}").exists()
        outcome = run_one(config.to_json(), str(store))
        assert outcome.seconds > 0
        assert outcome._replace(seconds=0.0) == Outcome()
    assert [path.name for path in store.iterdir()] == [config.run_id]


def test_a_run_whose_process_died_is_trained_here_at_last(store, monkeypatch, look_often):
    first, second = smoke(), smoke(seed=1)
    order = []
    monkeypatch.setattr(
        worker_module, "train", lambda c, **k: order.append(c.run_id) or study.train(c, **k)
    )
    with held(store, first) as other, ThreadPoolExecutor() as pool:
        waiting = pool.submit(sweep, [first, second], workers=0, progress=False)
        until(lambda: find_run(second) is not None, "the other run", 60)
        time.sleep(1.5)  # it waits without an end
        assert not waiting.done()
        other.kill()
        assert list(waiting.result(60).status) == ["ok", "ok"]
    assert order == [second.run_id, first.run_id]  # what others train is waited for last
    assert not list(store.glob(".*"))


def test_what_another_process_stores_meanwhile_is_not_trained_again(store, monkeypatch, look_often):
    config = smoke()
    with held(store, config) as other, ThreadPoolExecutor() as pool:
        monkeypatch.setattr(
            worker_module, "train", lambda *_, **__: pytest.fail("it is trained elsewhere")
        )
        both = [
            pool.submit(sweep, [config], workers=0, progress=False),
            pool.submit(train_and_store, config, store),
        ]
        until(lambda: all(task.running() for task in both), "both to start", 60)
        study.save_run(study.train(config))
        other.kill()  # its lease ends with it
        assert list(both[0].result(60).status) == ["ok"]
        assert both[1].result(60) == 0  # seconds: it was not trained


@pytest.fixture
def path(store):
    store.mkdir(parents=True)
    return store / f"{LEASE}a"


def test_every_user_of_a_store_may_lock_a_lease_and_a_disk_without_locks_goes_without(
    path, monkeypatch
):
    before = os.umask(0o077)
    try:
        with lease("a", path.parent):
            assert path.stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lease("a", path.parent), lease("a", path.parent):
        pass


# a cluster of our own


def test_a_local_cluster_can_be_reached_from_this_process_alone_and_serves_no_page(two_workers):
    with pytest.raises(
        ssl.SSLError, match="(?i)certificate"
    ):  # another user of this machine has no key
        talk(two_workers.scheduler.address)
    me = psutil.Process()
    mine = [me, *me.children(recursive=True)]
    places = {c.laddr for p in mine for c in p.net_connections() if c.status == psutil.CONN_LISTEN}
    assert len(places) >= 4  # scheduler, nanny, worker, and what would serve the pages
    assert {place.ip for place in places} == {"127.0.0.1"}
    pages = {
        page(place, name)
        for place in places
        for name in ("info", "metrics", "json/identity.json", "status")
    }
    assert pages <= {None, "404"}
    assert "404" in pages


def talk(address):
    """What a Dask server says first, to somebody who takes every certificate and has none."""
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    host, port = address.removeprefix("tls://").split(":")
    with (
        socket.create_connection((host, int(port)), 30) as connection,
        stranger.wrap_socket(connection) as wrapped,
    ):
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
    worker = import_module("mambanorm_study.runs.worker")
    save_run = worker.save_run
    worker.save_run = lambda result, store: save_run(result, Path(store).with_name("elsewhere"))
"""


def test_runs_that_a_worker_stored_elsewhere_are_failed_rows_and_exit_code_1(
    store, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sweeping, "NETWORK_DISK_DELAY_S", 1.0)
    preload = tmp_path / "elsewhere.py"
    preload.write_text(ELSEWHERE)
    asked = ["--scale", "smoke", "--set", "steps=2"]
    with scheduler(tmp_path) as (_, address), worker(address, "--preload", preload):
        argv = [
            "sweep",
            "--arms",
            "RMSN>SSM>None,None>SSM>GN",
            "--seeds",
            "2",
            *asked,
            "--scheduler",
            address,
        ]
        assert cli.main(argv) == 1
        said = capsys.readouterr().err
        assert "4 of 4 runs could not be trained" in said
        assert (
            "the run is not in the store after its training: do all workers see one store?" in said
        )


def test_a_sweep_waits_for_workers_and_says_of_one_that_has_too_few_threads(store, tmp_path, capfd):
    with scheduler(tmp_path) as (_, address), ThreadPoolExecutor() as pool:
        waiting = pool.submit(sweep, [smoke(threads=2), smoke()], scheduler=address, progress=False)
        said = f"no workers at {address} yet: start some with `dask worker {address} --nthreads 1`"
        until(lambda: said in capfd.readouterr().err, "a word about workers")
        with (
            worker(address, NUMBA_NUM_THREADS="1"),
            pytest.warns(UserWarning, match="set NUMBA_NUM_THREADS=2"),
        ):
            assert list(waiting.result(240).status) == ["failed", "ok"]


def test_a_scheduler_that_dies_ends_the_sweep(store, tmp_path):
    with scheduler(tmp_path) as (started, address), ThreadPoolExecutor() as pool:
        waiting = pool.submit(sweep, [smoke()], scheduler=address, progress=False)
        with Client(address, set_as_default=False) as other:
            count = lambda dask_scheduler: len(dask_scheduler.tasks)
            until(lambda: other.run_on_scheduler(count), "the run to arrive")
        started.kill()
        with pytest.raises(ConnectionError, match="is gone: start scheduler and workers anew"):
            waiting.result(240)


def test_a_scheduler_that_does_not_answer_is_one_line(capsys, store):
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        code = cli.main(
            ["sweep", "--arms", "LN>SSM>LN", "--scale", "smoke", "--scheduler", "tcp://127.0.0.1:1"]
        )
    assert code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "mambanorm: no Dask scheduler answers at tcp://127.0.0.1:1: is it running, is that its "
    )
