"""The rows of ListOps at `paper`, drawn in a process of their own while the GPU is measured: minutes of one core, which
would else be most of the time that is left for the run. A machine without pyarrow keeps no cache of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import load_file, save_file

from mambanorm.basics.settings import ROOT
from mambanorm.tasks import Split, listops

SCALE = "paper"


@contextmanager
def drawing(wanted: bool) -> Iterator[Callable[[], None]]:
    """Draws the rows beside what is done inside; calling what it yields waits for them and hands them to the task."""
    if not wanted:
        yield lambda: None
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.safetensors"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.gpu_data", str(path)], cwd=ROOT)
        try:
            yield lambda: _take(process, path)
        finally:
            process.kill()
            process.wait()


def _take(process: subprocess.Popen, path: Path) -> None:
    if process.wait():
        raise ChildProcessError(f"the process that draws ListOps ended with {process.returncode}")
    settings, drawn = listops.SETTINGS[SCALE], Split(**load_file(path))
    made, pool = (drawn, (settings.train, settings.val, settings.test)), listops._pool
    listops._pool = lambda scale, folder: made if scale == SCALE else pool(scale, folder)


def main(path: str) -> None:
    pool, _ = listops._pool(SCALE, listops.folder())
    save_file({"inputs": pool.inputs, "labels": pool.labels, "lengths": pool.lengths}, path)


if __name__ == "__main__":
    main(sys.argv[1])
