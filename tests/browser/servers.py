"""Servers that the browser talks to, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mambanorm.basics.settings import ROOT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(*command: str, ready: str, seconds: float = 120, cwd: Path = ROOT) -> Iterator[str]:
    """Runs a Python module as a server and gives its first line that holds `ready`; ended as Ctrl-C does."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield _line(process, ready, time.monotonic() + seconds)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()


def _line(process: subprocess.Popen, ready: str, until: float) -> str:
    said = []
    for line in process.stdout:
        said.append(line)
        if ready in line:
            return line
        if time.monotonic() > until:
            break
    raise AssertionError(f"no line with {ready!r}: {''.join(said)[-2000:]}")
