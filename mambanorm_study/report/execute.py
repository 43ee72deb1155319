"""Execute notebooks with papermill in two kernels at a time, which share the machine's cores.

A notebook needs one cell with the tag `parameters` that sets scale, seeds, tasks, runs_dir and
scheduler. If a notebook fails, its outcome names the cell and the error, and the other notebooks
are still executed.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import nbformat
import papermill as pm
import psutil
from jupyter_client.manager import AsyncKernelManager
from papermill.exceptions import PapermillExecutionError
from tqdm.auto import tqdm
from traitlets import Int, Unicode
from traitlets.config import Config

from mambanorm_study.basics.atomic import write_bytes, write_text
from mambanorm_study.basics.settings import CHECKOUT, KERNEL, KIT, ROOT, STORED_ONLY, WORK
from mambanorm_study.basics.text import spell
from mambanorm_study.report.notebooks import NotebookOutcome, earlier_outcome, read_outcome
from mambanorm_study.runs import machine

MAX_KERNELS = 2  # kernels that run at a time; more would not be faster on a laptop
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Seconds after which the progress bar is drawn anew, in a terminal and in a log file.
TERMINAL_REFRESH_S, LOG_REFRESH_S = 1.0, 60.0
# Silence papermill's log of an error, because the outcome has the error.
logging.getLogger("papermill").addHandler(logging.NullHandler())


def execute(
    paths: Sequence[Path], out_dir: Path, parameters: dict, seconds: float | None = None
) -> list[NotebookOutcome]:
    """Execute notebooks, at most MAX_KERNELS at a time, write them into `out_dir`, and return their
    outcomes in the order of `paths`.

    The notebooks read the fresh runs in the store and train no further ones; a few train small runs
    of another kind, such as solutions of exercises. An interrupt leaves unfinished notebooks' files
    in `out_dir` unchanged. seconds: after so many seconds no further notebook is started; None
    means no limit. A notebook that is not started keeps its file in `out_dir` or is copied there as
    it is published.
    """
    last_start = math.inf if seconds is None else time.monotonic() + seconds
    cores = machine.cores()
    at_once = max(1, min(MAX_KERNELS, cores, len(paths)))
    pool, starts, outcomes = ThreadPoolExecutor(at_once), {}, {}

    def run(path: Path) -> nbformat.NotebookNode | None:
        if time.monotonic() > last_start:
            return None
        starts[path] = time.monotonic()
        return _execute(path, parameters, cores // at_once, STORED_ONLY)

    futures = {pool.submit(run, path): path for path in paths}
    unfinished = set(futures)
    bar_format = "{desc} |{bar}| {n_fmt}/{total_fmt}, {elapsed}{postfix}"
    refresh_s = TERMINAL_REFRESH_S if sys.stderr.isatty() else LOG_REFRESH_S
    try:
        with tqdm(desc="notebooks", total=len(paths), bar_format=bar_format) as bar:
            while unfinished:
                ended, unfinished = wait(unfinished, refresh_s, return_when=FIRST_COMPLETED)
                for future in ended:
                    path = futures[future]
                    executed = future.result()
                    write = _skip if executed is None else partial(_write, executed)
                    outcomes[path] = write(path, out_dir)
                    tqdm.write(str(outcomes[path]))
                running = {p.stem: start for p, start in starts.items() if p not in outcomes}
                now = time.monotonic()
                bar.set_postfix_str(
                    ", ".join(f"{name} for {spell(now - start)}" for name, start in running.items())
                )
                bar.update(len(ended))
    finally:  # after an interrupt no kernel may keep running, and no thread may wait for one
        pool.shutdown(wait=False, cancel_futures=True)
        while any(future.running() for future in futures):
            _kill_child_processes()
            time.sleep(0.1)
    return [outcomes[path] for path in paths]


def _kill_child_processes() -> None:
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            child.kill()


def run_notebook(path: Path, out_dir: Path, parameters: dict | None = None) -> NotebookOutcome:
    """Execute one notebook with parameters, write it into `out_dir`, and return its outcome."""
    return _write(_execute(path, parameters), path, out_dir)


def _skip(source: Path, out_dir: Path) -> NotebookOutcome:
    """Copy a notebook that is not executed, unless an earlier study has executed it."""
    path = out_dir / source.name
    outcome = earlier_outcome(path)
    if outcome is None:
        write_bytes(path, source.read_bytes())
        outcome = read_outcome(path)
    return replace(outcome, skipped=True)


def _write(nb: nbformat.NotebookNode, source: Path, out_dir: Path) -> NotebookOutcome:
    path = out_dir / source.name
    write_text(path, nbformat.writes(nb))
    return read_outcome(path)


def _execute(
    path: Path, parameters: dict | None, threads: int = 0, mode: str = "1"
) -> nbformat.NotebookNode:
    """Return the executed notebook. If a cell failed, `metadata.papermill.error` has the error, and
    the cells after this cell are not executed.

    threads: the number of threads of the kernel; 0 means the number in the environment variables.
    mode: the value of the environment variable KERNEL in the notebook's kernel.
    """
    # run in the notebook's folder, as JupyterLab does, but write no files into an installed package
    working_dir = path.resolve().parent if CHECKOUT or KIT not in path.resolve().parents else WORK
    with tempfile.TemporaryDirectory(prefix="mambanorm-") as temp_dir:
        out = Path(temp_dir) / path.name
        # papermill calls str.format on its paths: braces in a folder's name must be doubled
        in_and_out = [
            str(name).replace("{", "{{").replace("}", "}}") for name in (path.resolve(), out)
        ]
        kernel, error = {"threads": threads, "mode": mode}, ""
        if os.name == "posix" and len(temp_dir) < 90:
            # sockets instead of TCP, because kernels that start at the same time may choose the
            # same port; the path of a socket may have about 100 characters
            kernel |= {"transport": "ipc", "ip": f"{temp_dir}/k"}
        try:
            pm.execute_notebook(
                *in_and_out,
                parameters=parameters,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                kernel_manager_class=Kernel,
                config=Config(Kernel=kernel),
                resources={"metadata": {"path": str(working_dir)}},
            )
        except PapermillExecutionError as failed:
            error = f"cell [{failed.exec_count}]: {failed.ename}: {failed.evalue[:600]}"
        except Exception as failed:  # the kernel died or did not start, or the file is damaged
            error = f"{type(failed).__name__}: {failed}"
        nb = nbformat.read(out, as_version=4) if out.exists() else nbformat.v4.new_notebook()
    execution = nb.metadata.setdefault("papermill", {})
    # file names without folders, because the report may be published
    execution.update(input_path=path.name, output_path=path.name, error=error)
    return nb


class Kernel(AsyncKernelManager):
    """A kernel manager that starts the kernel with the Python of this process."""

    threads = Int(0, help="0 means the number in the environment variables").tag(config=True)
    mode = Unicode("1", help="the value of the environment variable KERNEL").tag(config=True)

    async def start_kernel(self, **options: Any) -> None:
        """Start the kernel with the environment variables that a notebook of the study needs."""
        env = dict(os.environ)
        env.pop("MPLBACKEND", None)  # with a backend for scripts, cells would show no figures
        env[KERNEL] = self.mode
        if CHECKOUT:  # the package in the checkout may not be installed
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        if self.threads:
            env.update(dict.fromkeys(THREAD_VARIABLES, str(self.threads)))
        # the user's kernel "python3" may be a Python without this package
        self.kernel_spec.argv[0] = sys.executable
        await self._async_start_kernel(env=env, **options)
