"""The facts that stand above every table of results: command, date, machine, commit, versions."""

from __future__ import annotations

from datetime import datetime

from mambanorm_study.basics.settings import ROOT
from mambanorm_study.runs import machine

RESULTS = ROOT / "benchmarks" / "results"  # results are written here by default


def provenance(command: str) -> dict[str, str]:
    """Return the facts of a measurement made by `command`, now, on this machine."""
    return {
        "command": command,
        "date": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
        "machine": machine.machine(),
        "commit": machine.git_commit() or "unknown",
        "versions": machine.versions(),
    }
