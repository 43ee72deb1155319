"""Execute notebooks with papermill, two kernels at a time, which share the cores of the machine.

A notebook needs one cell tagged `parameters` with scale, seeds, tasks, runs_dir and scheduler. A
notebook that fails does not stop the others: its outcome names the cell and the error.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
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
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# papermill logs what the outcome says
logging.getLogger("papermill").addHandler(logging.NullHandler())


def execute(paths: Sequence[Path], out_dir: Path, parameters: dict) -> list[NotebookOutcome]:
    """Execute notebooks, at most AT_ONCE at a time, and return their outcomes in the order
    given.
    """
    if not paths:
        return []
    cores = machine.cores()
    at_once = max(1, min(AT_ONCE, cores, len(paths)))
    kernels, pool = Kernels(max(1, cores // at_once)), ThreadPoolExecutor(at_once)
    futures = [pool.submit(_run_safely, path, out_dir, parameters, kernels) for path in paths]
    layout = "{desc} |{bar}| {n_fmt}/{total_fmt}, {elapsed}{postfix}"
    try:
        with tqdm(total=len(paths), desc="notebooks", bar_format=layout) as bar:
            for future in as_completed(futures):
                bar.write(str(future.result()))
                bar.update()
    finally:  # after an interrupt no kernel may keep running, and no thread may wait for one
        pool.shutdown(wait=False, cancel_futures=True)
        kernels.stop()
        pool.shutdown()
        # papermill's threads can leave the whole process in their working directory
        papermill_io.get_handler("local").cwd(None)
    return [future.result() for future in futures]


def _run_safely(path: Path, out_dir: Path, parameters: dict, kernels: Kernels) -> NotebookOutcome:
    try:
        return run_notebook(path, out_dir, parameters, kernels=kernels)
    except Exception as error:  # before the start: a damaged file, an unknown parameter
        return NotebookOutcome(path.stem, title=path.stem, error=f"{type(error).__name__}: {error}")


def run_notebook(
    path: str | Path,
    out_dir: str | Path,
    parameters: dict | None = None,
    *,
    kernels: Kernels | None = None,
) -> NotebookOutcome:
    """Execute one notebook with parameters, write `<name>.ipynb` and `<name>.html` into `out_dir`,
    and return its outcome, also if a cell fails.

    InterruptedError if `kernels` were stopped; the files of an earlier execution then stay.
    """
    path, out_dir = Path(path).resolve(), Path(out_dir).resolve()
    nbformat.read(path, as_version=4)  # refuses a damaged file before a kernel is started
    out_dir.mkdir(parents=True, exist_ok=True)
    unfinished, final = out_dir / f".unfinished-{path.name}", out_dir / path.name
    kernels = kernels or Kernels()
    crash = _papermill(path, unfinished, parameters, kernels)
    if kernels.stopped:
        unfinished.unlink(missing_ok=True)
        raise InterruptedError(f"{path.name} was interrupted")
    if not unfinished.exists():
        return NotebookOutcome(path.stem, title=path.stem, error=crash or "no notebook was written")
    nb = nbformat.read(unfinished, as_version=4)
    nb.metadata.papermill.update(input_path=path.name, output_path=path.name, crash=crash)
    write_text(final, nbformat.writes(nb))
    unfinished.unlink()
    outcome = read_outcome(final)
    # nbconvert takes a second to import: here, because by now other kernels are running
    from mambanorm_study.report.notebook_page import to_html

    html = final.with_suffix(".html")
    write_text(html, to_html(nb, outcome.title))
    return replace(outcome, html=html)


def _papermill(path: Path, out: Path, parameters: dict | None, kernels: Kernels) -> str:
    """Execute the notebook into the file `out`, and return the error of the kernel, or ""."""
    # the working directory is the notebook's, as in JupyterLab, but an installed wheel stays clean
    folder = path.parent if CHECKOUT or KIT not in path.parents else WORK
    # papermill formats its paths: braces in a folder's name must be doubled
    names = [str(name).replace("{", "{{").replace("}", "}}") for name in (path, out)]
    try:
        with kernels.start(folder) as kernel:
            pm.execute_notebook(
                *names,
                parameters=parameters,
                km=kernel,
                kernel_name="python3",
                language="python",
                progress_bar=False,
            )
    except PapermillExecutionError:
        return ""  # a cell failed: the notebook holds its error
    except Exception as error:  # the kernel died or did not start
        return f"{type(error).__name__}: {error}"
    return ""


class Kernel(AsyncKernelManager):
    """A kernel that remembers its client and closes it.

    nbclient does not close the client of a kernel that it was given.
    """

    def client(self, **options):
        self.last_client = super().client(**options)
        return self.last_client

    def close(self) -> None:
        """Close the client and shut the kernel down."""
        if hasattr(self, "last_client"):
            self.last_client.stop_channels()
        run_sync(self._async_shutdown_kernel)(now=True)


class Kernels:
    """Kernels of this Python with a number of threads each, which can be stopped together."""

    def __init__(self, threads: int | None = None):
        self.threads = threads  # None = as many as the environment says
        self.running: set[Kernel] = set()
        self.stopped = False
        self.lock = threading.Lock()

    @contextmanager
    def start(self, folder: Path) -> Iterator[Kernel]:
        """Yield a running kernel whose working directory is `folder`, and shut it down after."""
        with tempfile.TemporaryDirectory(prefix="mambanorm-") as private:
            kernel = Kernel(kernel_name="python3", connection_file=f"{private}/kernel.json")
            if os.name == "posix" and len(private) < 90:
                # kernels that start side by side would choose the same TCP ports; the path of a
                # socket has about 100 characters
                kernel.transport, kernel.ip = "ipc", f"{private}/k"
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
        env.pop("MPLBACKEND", None)  # a backend for scripts would show no figures
        if CHECKOUT:  # the checkout may not be installed
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
        env[KERNEL] = "1"
        if self.threads:
            env.update(dict.fromkeys(THREAD_VARIABLES, str(self.threads)))
        return env

    def stop(self) -> None:
        """Kill the running kernels and the processes that they started.

        The notebooks of these kernels end with an error.
        """
        with self.lock:
            self.stopped = True
            for kernel in self.running:
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(kernel.provisioner.pid)
                    for child in process.children(recursive=True):
                        child.kill()
                    process.kill()
