"""The scripts and commands of docs/clusters.md do what the page says, as far as that can be tried
on one machine.

SLURM is stood in for by an `sbatch` and a `scancel` that start and kill the job scripts here. Of
kubernetes.yaml the commands of scheduler, worker and sweep are run as they stand there, with the
environment that stands there.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from urllib.error import HTTPError
from urllib.request import urlopen

import dask
import pytest
import yaml

from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli import main as cli
from mambanorm_study.runs.cluster import worker_environment
from mambanorm_study.runs.store import load_runs

PAGE = (ROOT / "docs" / "clusters.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHELL = "".join(code for language, code in BLOCKS if language == "bash").replace("\\\n", " ")
COMMANDS = SHELL.splitlines()
needs_lo = pytest.mark.skipif(
    "lo" not in dict(map(reversed, socket.if_nameindex())), reason="needs the network lo"
)
needs_jobqueue = pytest.mark.skipif(
    find_spec("dask_jobqueue") is None, reason="needs dask-jobqueue"
)


def block(language):
    (code,) = [code for name, code in BLOCKS if name == language]
    return code


def until(true, what, seconds=240):
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)
    return found


@contextmanager
def process(*command, log, **options):
    """A process whose output goes to a file; killed at the end."""
    with open(log, "w") as file:
        started = subprocess.Popen(
            [*map(str, command)], stdout=file, stderr=subprocess.STDOUT, **options
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()


# the page


@pytest.mark.parametrize(
    "line", [line for line in COMMANDS if re.search(r"slurm\.py | -- mambanorm ", line)]
)
def test_commands_that_jobs_run_are_understood(line):
    """Those of a line of their own are tested with the README's."""
    words = shlex.split(line, comments=True)
    command = words[words.index("--") + 1 :] if "--" in words else words
    command = command[1:] if command[0] == "mambanorm" else command
    assert cli._parse(command).command == ("tasks" if "--prepare" in line else "sweep")


def test_every_command_that_trains_takes_a_scheduler():
    named = re.search(r"Every command that trains \((.*?)\)", PAGE)[1]
    for name in re.findall("`([a-z]+)`", named):
        given = (
            ["--arms", "LN>SSM>LN"]
            if name == "sweep"
            else ["--arm", "LN>SSM>LN"]
            if name == "train"
            else []
        )
        assert (
            cli._parse([name, *given, "--scheduler", "tls://10.0.0.1:8786"]).scheduler
            == "tls://10.0.0.1:8786"
        )


def test_the_environment_on_the_page_is_the_one_of_our_own_workers():
    exported = dict(
        pair.split("=")
        for line in COMMANDS
        if line.startswith("export ")
        for pair in line.split()[1:]
    )
    assert exported == {name: str(value) for name, value in worker_environment(1).items()}


def test_an_address_with_tls_and_no_key_is_one_line(capsys, store):
    none = dict.fromkeys(
        f"distributed.comm.tls.{name}" for name in ("ca-file", "client.cert", "client.key")
    )
    with dask.config.set(none):
        code = cli.main(
            ["sweep", "--arms", "LN>SSM>LN", "--scale", "smoke", "--scheduler", "tls://127.0.0.1:1"]
        )
    assert code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        "at tls://127.0.0.1:1: is it running, is that its address, and does it want a key (docs/clusters.md"
        in line
    )


# SLURM

SBATCH = """#!/usr/bin/env bash
jobs="$(dirname "$0")/jobs"
id=$((1000 + $(ls "$jobs" | grep -c sh$)))
cp "${@: -1}" "$jobs/$id.sh"
setsid bash "$jobs/$id.sh" >"$jobs/$id.log" 2>&1 </dev/null &
echo $! >"$jobs/$id.pid"
echo "Submitted batch job $id"
"""
SCANCEL = """#!/usr/bin/env bash
kill -- "-$(cat "$(dirname "$0")/jobs/$1.pid")"
"""


class Slurm:
    """A folder of commands that stand in for SLURM's, and the jobs that were started with them."""

    def __init__(self, folder):
        self.folder, self.jobs = folder, folder / "jobs"
        self.jobs.mkdir(parents=True)
        for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def scripts(self):
        return [path.read_text() for path in sorted(self.jobs.glob("*.sh"))]

    def groups(self):
        return [int(path.read_text()) for path in sorted(self.jobs.glob("*.pid"))]

    def kill(self):
        for group in self.groups():
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def log(self):
        return "\n".join(path.read_text() for path in sorted(self.jobs.glob("*.log")))


@pytest.fixture
def slurm(tmp_path):
    made = Slurm(tmp_path / "slurm")
    yield made
    made.kill()


def run_slurm(slurm, *options, command, log, **environment):
    """slurm.py on this machine's own network, with the options that the page gives it and some of
    its own.
    """
    words = [
        *page_words("slurm.py")[1:],
        "--interface",
        "lo",
        "--jobs",
        "2",
        *options,
        "--",
        *command,
    ]
    env = os.environ | {
        "PATH": f"{slurm.folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    if given := os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] += os.pathsep + given
    return process(sys.executable, *words, log=log, cwd=ROOT, env=env | environment)


def page_words(script, *, after=False):
    """The words of the page's command with this script, up to `--` or after it."""
    (line,) = [line for line in COMMANDS if script in line]
    words = shlex.split(line)
    return words[words.index("--") + 1 :] if after else words[: words.index("--")]


@needs_jobqueue
@needs_lo
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_slurms_jobs_train_the_sweep_of_the_page_and_one_that_is_killed_is_replaced(
    slurm, store, tmp_path
):
    """Under TLS, with the key and the configuration of the page; the jobs are given back."""
    for line in [line for line in COMMANDS if "dask.pem" in line]:
        line = line.replace("~/.config/dask/", "key.pem").replace(
            "rsa:4096", "rsa:2048"
        )  # a minute on a slow machine
        subprocess.run(line, shell=True, check=True, cwd=tmp_path, capture_output=True)
    assert (tmp_path / "key.pem").stat().st_mode & 0o077 == 0
    config = tmp_path / "config" / "mambanorm.yaml"
    config.parent.mkdir()
    config.write_text(
        block("yaml").replace("/home/me/.config/dask/dask.pem", str(tmp_path / "key.pem"))
    )
    page = [
        str(store) if word == "/shared/runs" else word
        for word in page_words("slurm.py", after=True)
    ]
    command = [*page, "--scale", "smoke", "--seeds", "1", "--set", "steps=60"]
    log = tmp_path / "log"
    options = ["--jobs", "1", "--threads", "2"]
    with run_slurm(
        slurm, *options, command=command, log=log, DASK_CONFIG=str(config.parent)
    ) as started:
        until(lambda: len(list(store.glob("*/result.json"))) > 0, "the first run", 400)
        slurm.kill()
        assert started.wait(500) == 0, log.read_text() + slurm.log()
    frame = load_runs(store)
    assert len(frame) > 5
    assert set(frame.status) == {"ok"}
    assert not list(store.glob(".lease-*"))
    until(lambda: not any(map(alive, slurm.groups())), "the jobs to end", 60)
    assert len(slurm.scripts()) > 1
    assert "tcp://" not in slurm.log()
    for script in slurm.scripts():
        assert "tls://127.0.0.1:" in script
        asked = set(re.findall("^#SBATCH (.*)$", script, re.MULTILINE))
        assert asked >= {
            "--gres=gpu:1",
            "--account=me",
            "--cpus-per-task=2",
            "-t 240",
            "--mem=8G",
            "-n 1",
        }
        exported = dict(re.findall("^export (.*)=(.*)$", script, re.MULTILINE))
        assert exported == {name: str(value) for name, value in worker_environment(2).items()}
        (worker,) = re.findall("^.* -m distributed.cli.dask_worker .*$", script, re.MULTILINE)
        words = shlex.split(worker)
        given = {
            name: words[len(words) - words[::-1].index(name)]
            for name in words
            if name.startswith("--")
        }
        assert (given["--nthreads"], given["--memory-limit"], given["--lifetime"]) == (
            "1",
            "0",
            "235m",
        )


def slurm_options(*words):
    spec = spec_from_file_location("slurm", ROOT / "docs" / "slurm.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.read_options([*words, "--", "sweep"])


@needs_jobqueue
def test_a_job_asks_for_the_memory_of_all_its_runs():
    (said,) = re.findall(
        r"`--memory (\d+GB)`: of one run, so `--workers (\d+)` asks for (\d+) GB", PAGE
    )
    assert slurm_options("--workers", said[1]).memory == said[0]
    assert slurm_options("--workers", said[1]).job_memory == int(said[2]) * 10**9
    assert slurm_options("--gpu").job_memory == 8 * 10**9
    assert slurm_options("--workers", "3", "--memory", "500MB").job_memory == 1.5 * 10**9
    assert slurm_options("--minutes", "6").minutes == 6


def alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# Kubernetes


MANIFEST, STORAGE = (
    list(yaml.safe_load_all((ROOT / "docs" / name).read_text()))
    for name in ("kubernetes.yaml", "kubernetes-storage.yaml")
)


def one(kind, manifest=MANIFEST):
    (found,) = [part for part in manifest if part["kind"] == kind]
    return found


CLUSTER = one("DaskCluster")["spec"]
PODS = {
    "scheduler": CLUSTER["scheduler"]["spec"],
    "worker": CLUSTER["worker"]["spec"],
    "sweep": one("Job")["spec"]["template"]["spec"],
}
SETTINGS = one("ConfigMap")["data"]


def container(name):
    (found,) = PODS[name]["containers"]
    return found


def test_parts_of_the_manifest_name_each_other():
    cluster, sweep = (
        one("DaskCluster")["metadata"]["name"],
        one("Job")["spec"]["template"]["metadata"]["labels"],
    )
    assert one("DaskAutoscaler")["spec"]["cluster"] == cluster
    assert (
        f"--scheduler=tcp://{cluster}-scheduler:8786" in container("sweep")["args"]
    )  # the operator's name for it
    assert {port["name"]: port["containerPort"] for port in container("scheduler")["ports"]} == {
        port["targetPort"]: port["port"] for port in CLUSTER["scheduler"]["service"]["ports"]
    }
    files, claim = (
        one("Pod", STORAGE)["spec"],
        one("PersistentVolumeClaim", STORAGE)["metadata"]["name"],
    )
    assert len({container(name)["image"] for name in PODS} | {files["containers"][0]["image"]}) == 1
    for pod in (
        PODS["worker"],
        PODS["sweep"],
        files,
    ):  # the volume is at one path for all, and of one user
        (volume,), (mount,) = pod["volumes"], pod["containers"][0]["volumeMounts"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim
        assert (mount["name"], mount["mountPath"]) == (volume["name"], "/shared")
        assert pod["securityContext"] == {"runAsUser": 1000, "fsGroup": 1000}
    ours = {name: str(value) for name, value in worker_environment(1).items()}
    assert ours.items() <= SETTINGS.items()
    assert {SETTINGS[f"MAMBANORM_{name}_DIR"].split("/")[1] for name in ("RUNS", "DATA")} == {
        "shared"
    }
    policy = one("NetworkPolicy")["spec"]  # only these pods reach Dask's port
    pods, operator = policy["ingress"]
    assert [source["podSelector"]["matchLabels"] for source in pods["from"]] == [
        policy["podSelector"]["matchLabels"],
        sweep,
    ]
    assert policy["podSelector"]["matchLabels"] == {"dask.org/cluster-name": cluster}
    assert [port["port"] for port in operator["ports"]] == [8787]


def test_the_manifests_commands_train_a_sweep(store, tmp_path):
    """Scheduler, worker and sweep as they stand there, on this machine: only addresses and folders
    differ, and the size of the sweep.
    """
    file, page = tmp_path / "scheduler.json", f"127.0.0.1:{free_port()}"
    here = ["--host", "127.0.0.1"]
    ports = ["--port", "0", "--dashboard-address", page, "--scheduler-file", str(file)]
    with start("scheduler", *here, *ports, folder=tmp_path):
        until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler")
        injected = {
            "DASK_WORKER_NAME": "worker-1",
            "DASK_SCHEDULER_ADDRESS": json.loads(file.read_text())["address"],
        }
        with start("worker", *here, folder=tmp_path, **injected):
            small = [
                "--scale=smoke",
                "--seeds=1",
                "--set=steps=4",
                f"--scheduler={injected['DASK_SCHEDULER_ADDRESS']}",
            ]
            with start("sweep", *small, folder=tmp_path) as sweep:
                assert sweep.wait(500) == 0, "\n".join(
                    path.read_text() for path in tmp_path.glob("*.log")
                )
        assert status(page, "health") == 200  # of the readiness probe
        assert status(page, "api/v1/adaptive_target") == 200  # of the operator
        assert {
            status(page, name)
            for name in ("info/main/workers.html", "json/identity.json", "status")
        } == {404}
    assert "worker-1" in (tmp_path / "worker.log").read_text()
    frame = load_runs(tmp_path / "shared" / "runs")
    assert len(frame) > 5
    assert set(frame.status) == {"ok"}


def start(name, *more, folder, **injected):
    """The command of a container with its environment; /shared is a folder here."""
    words = [
        injected.get(word[2:-1], word) if word.startswith("$(") else word
        for word in container(name)["args"]
    ]
    elsewhere = {
        "HOME",
        "NUMBA_CACHE_DIR",
    }  # kernels that are compiled already need not be compiled again
    given = {key: value for key, value in SETTINGS.items() if key not in elsewhere}
    given = {key: value.replace("/shared", str(folder / "shared")) for key, value in given.items()}
    module = "mambanorm_study" if words[0] == "mambanorm" else words[0]
    command = [sys.executable, "-m", module, *words[1:], *more]
    return process(
        *command, log=folder / f"{name}.log", env=os.environ | given | injected, cwd=ROOT
    )


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def status(place, name):
    try:
        with urlopen(f"http://{place}/{name}", timeout=30) as answer:
            return answer.status
    except HTTPError as error:
        return error.code
