"""Check a run store completely, for tests."""

from pathlib import Path

from mambanorm.errors import NotRegistered
from mambanorm_study.runs.result import ARRAYS, DamagedRun, read_run


def check_runs(store: Path) -> dict[str, str]:
    """Read every file of every run. Return run_id → error message, "" if the run is intact."""
    problems = {}
    for folder in store.glob("*"):
        if "." in folder.name or not folder.is_dir():
            continue
        try:
            run = read_run(folder)
            for name in ARRAYS:
                getattr(run, name)
            problems[folder.name] = ""
        except (DamagedRun, NotRegistered, OSError) as error:
            problems[folder.name] = str(error)
    return problems
