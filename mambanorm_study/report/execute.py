"""Executing notebooks headless: papermill with parameters, two kernels at a time, each with its
share of the cores.

A notebook needs one cell tagged `parameters` with scale, seeds, tasks, runs_dir and scheduler. A
failing notebook never stops the others: its outcome says which cell failed and with what.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import nbformat
import papermill as pm
import psutil
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import run_sync
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import papermill_io
from tqdm.auto import tqdm

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import CHECKOUT, KERNEL, KIT, ROOT, WORK
from mambanorm_study.report.notebooks import NotebookOutcome, read_outcome
from mambanorm_study.runs import machine

AT_ONCE = 2  # kernels; more would only share the cores of a laptop
logging.getLogger("papermill").addHandler(
    logging.NullHandler()
)  # what it would print is in the outcome


def execute(
    paths: Sequence[Path],
    out_dir: Path,
    parameters: dict,
    progress: bool = True,
    each: Callable[[NotebookOutcome], None] = lambda outcome: None,
) -> list[NotebookOutcome]:
    """Executes notebooks, at most AT_ONCE at a time with the cores split among them; outcomes in
    their order. `each` is called with every outcome as it comes."""
    if not paths:
        return []
    cores = machine.cores()
    at_once = max(1, min(AT_ONCE, cores, len(paths)))
    kernels, pool = Kernels(max(1, cores // at_once)), ThreadPoolExecutor(at_once)
    outcomes = {}
    layout = "{desc} |{bar}| {n_fmt}/{total_fmt}, {elapsed}{postfix}"
    with tqdm(total=len(paths), desc="notebooks", bar_format=layout, disable=not progress) as bar:
        futures = {
            pool.submit(_run_safely, path, out_dir, parameters, kernels): path for path in paths
        }
        try:
            for future in as_completed(futures):
                outcome = outcomes[futures[future]] = future.result()
                if progress or not outcome.ok:
                    bar.write(str(outcome))
                bar.update()
                each(outcome)
        finally:  # on an interrupt no kernel is left behind, and no thread waits for one
            pool.shutdown(wait=False, cancel_futures=True)
            kernels.stop()
            pool.shutdown()
            # papermill's threads can leave the whole process in their working directory
            papermill_io.get_handler("local").cwd(None)
    return [outcomes[path] for path in paths]


def _run_safely(path: Path, out_dir: Path, parameters: dict, kernels: Kernels) -> NotebookOutcome:
    try:
        return run_notebook(path, out_dir, parameters, kernels=kernels)
    except Exception as error:  # not even started: a damaged file, a parameter it does not know
        return NotebookOutcome(path.stem, title=path.stem, error=f"{type(error).__name__}: {error}")


def run_notebook(
    path: str | Path,
    out_dir: str | Path,
    parameters: dict | None = None,
    *,
    kernels: Kernels | None = None,
) -> NotebookOutcome:
    """Executes one notebook with parameters into `out_dir/<name>.ipynb` and `.html`; a failing cell
    is an outcome."""
    path, out_dir = Path(path).resolve(), Path(out_dir).resolve()
    nbformat.read(path, as_version=4)
    out_dir.mkdir(parents=True, exist_ok=True)
    unfinished, final = out_dir / f".unfinished-{path.name}", out_dir / path.name
    crash, kernels = "", kernels or Kernels()
    try:
        # beside its notebook, as in JupyterLab; but nothing is written beside those of an installed
        # wheel
        with kernels.start(path.parent if CHECKOUT or KIT not in path.parents else WORK) as kernel:
            # papermill formats its paths: braces in a folder's name must be doubled
            names = [str(name).replace("{", "{{").replace("}", "}}") for name in (path, unfinished)]
            options = dict(kernel_name="python3", language="python", progress_bar=False)
            pm.execute_notebook(*names, parameters=parameters, km=kernel, **options)
    except PapermillExecutionError:
        pass  # the notebook holds the error, see read_outcome
    except Exception as error:  # the kernel died or never came up
        crash = f"{type(error).__name__}: {error}"
    if kernels.stopped:  # what an earlier study has made of this notebook stays
        unfinished.unlink(missing_ok=True)
        raise InterruptedError(f"{path.name} was interrupted")
    if not unfinished.exists():
        return NotebookOutcome(path.stem, title=path.stem, error=crash)
    nb = nbformat.read(unfinished, as_version=4)
    nb.metadata.papermill |= {"input_path": path.name, "output_path": path.name, "crash": crash}
    write_text(final, nbformat.writes(nb))
    unfinished.unlink()
    outcome = read_outcome(final)
    from mambanorm_study.report.notebook_page import (
        to_html,  # nbconvert takes a second to import; by now a kernel has run
    )

    write_text(final.with_suffix(".html"), to_html(nb, outcome.title))
    return replace(outcome, html=final.with_suffix(".html"))


class Kernel(AsyncKernelManager):
    """A kernel that remembers its client, and closes it: nbclient does not if it was given the
    kernel."""

    def client(self, **options):
        self.last_client = super().client(**options)
        return self.last_client

    def close(self) -> None:
        if hasattr(self, "last_client"):
            self.last_client.stop_channels()
        run_sync(self._async_shutdown_kernel)(now=True)


class Kernels:
    """Starts kernels of this very Python with a share of the cores, and can stop all of them at
    once."""

    def __init__(self, threads: int | None = None):
        self.threads, self.running, self.stopped = threads, set(), False
        self.lock = threading.Lock()

    @contextmanager
    def start(self, folder: Path) -> Iterator[Kernel]:
        """A running kernel whose working directory is `folder`; it is shut down when done."""
        with tempfile.TemporaryDirectory(prefix="mambanorm-") as private:
            # sockets in a private folder: kernels started side by side would pick the same TCP
            # ports
            sockets = (
                dict(transport="ipc", ip=f"{private}/k")
                if os.name == "posix" and len(private) < 90
                else {}
            )
            kernel = Kernel(
                kernel_name="python3", connection_file=f"{private}/kernel.json", **sockets
            )
            # a user's own "python3" kernel may be another Python, without this package
            kernel.kernel_spec.argv[0] = sys.executable
            with self.lock:
                if self.stopped:
                    raise RuntimeError("interrupted")
                run_sync(kernel._async_start_kernel)(env=self._environment(), cwd=str(folder))
                self.running.add(kernel)
            try:
                yield kernel
            finally:
                with self.lock:
                    self.running.discard(kernel)
                kernel.close()

    def _environment(self) -> dict[str, str]:
        env = dict(os.environ)
        env.pop("MPLBACKEND", None)  # a backend chosen for scripts would swallow the figures
        if CHECKOUT:  # which need not be installed
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        env[KERNEL] = "1"
        if self.threads:
            names = (
                "OMP_NUM_THREADS",
                "MKL_NUM_THREADS",
                "OPENBLAS_NUM_THREADS",
                "NUMBA_NUM_THREADS",
            )
            env |= dict.fromkeys(names, str(self.threads))
        return env

    def stop(self) -> None:
        """Kills what runs, with the processes it started; its notebook then ends with an error."""
        with self.lock:
            self.stopped = True
            for kernel in self.running:
                try:
                    process = psutil.Process(kernel.provisioner.pid)
                    for one in (*process.children(recursive=True), process):
                        one.kill()
                except psutil.NoSuchProcess:
                    continue
