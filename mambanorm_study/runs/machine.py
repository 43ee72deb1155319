"""Finds the device, commit, package versions, processor and memory that a run uses."""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import os
import platform
import re
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mambanorm_study.basics.settings import CHECKOUT, Later

psutil, torch = Later("psutil"), Later("torch")


def pick_device(name: str = "auto") -> torch.device:
    """Return the device `name`; "auto" means CUDA if available, else the CPU.

    Raises ValueError if the device is not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device {name!r} is not available here ({reason}): "
            "use 'auto', which picks an available device, or 'cpu'"
        ) from None


@functools.cache
def git_commit(root: Path = Path(__file__).parent) -> str:
    """Return the checkout's short commit hash; "" if the kit is not used from a checkout.

    A `+` is appended if a Python file differs from the commit.
    """
    if not CHECKOUT:  # a wheel may be installed inside another repository
        return ""
    git = functools.partial(subprocess.run, capture_output=True, text=True, check=True, cwd=root)
    try:
        commit = git(["git", "rev-parse", "--short=12", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--untracked-files=no", "--", "*.py"]).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changed else "")


@functools.cache
def versions() -> str:
    """Return the versions of Python and of the packages on which results depend, as one text.

    An example is `python 3.11.7, torch 2.13.0, …`.
    """
    texts = [f"python {platform.python_version()}"]
    for package in ("mambanorm", "torch", "numba", "numpy", "scikit-learn"):
        with suppress(PackageNotFoundError):
            texts.append(f"{package} {version(package)}")
    return ", ".join(texts)


@functools.cache
def machine() -> str:
    """Return a description of this machine: `Linux x86_64, AMD EPYC, 2 cores, 24 GiB`.

    The description includes a CUDA GPU if there is one, and leaves out the owner's name.
    """
    processor = platform.processor() or "unknown processor"
    with suppress(OSError, TypeError):  # TypeError if no line matches the pattern
        processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())[1].strip()
    size = f"{os.cpu_count()} cores, {round(memory() / 2**30)} GiB"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {processor}, {size}{gpu}"


def memory() -> int:
    """Return the machine's memory in bytes."""
    if not hasattr(os, "sysconf"):  # on Windows
        return psutil.virtual_memory().total
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PeakMemory:
    """Measures how far a run's peak memory exceeds the memory in use when the object was made.

    On CUDA, the peak is that of torch's allocator; on a CPU under Linux, it is the process's
    high-water mark; elsewhere, the growth is NaN. The constructor resets the peak, so that earlier
    runs of the process do not count.
    """

    def __init__(self, device: torch.device):
        self.device, self.start = device, math.nan
        gc.collect()
        with suppress(OSError, AttributeError):
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            else:
                # memory that an earlier run freed but glibc kept would hide the growth of this run
                ctypes.CDLL("libc.so.6").malloc_trim(0)
                Path("/proc/self/clear_refs").write_text("5")
            self.start = self._peak()

    def _peak(self) -> int:
        """Return the peak memory so far in bytes."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024

    def growth(self) -> float:
        """Return the peak so far minus the memory in use at the start, in MB; NaN if unknown."""
        return math.nan if math.isnan(self.start) else (self._peak() - self.start) / 1e6
