"""What a run is trained with: device, versions, commit, machine, and the memory it takes."""

from __future__ import annotations

import ctypes
import functools
import gc
import math
import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mambanorm_study.basics.settings import CHECKOUT, Later, has

psutil, torch = Later("psutil"), Later("torch")

RECORDED_PACKAGES = ("mambanorm", "torch", "numba", "numpy", "scikit-learn")


def pick_device(name: str = "auto") -> torch.device:
    """`"auto"` → CUDA if there is one, else the CPU; otherwise the device named. ValueError if it
    is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"device {name!r} is not available here ({reason}): use 'auto', which takes what there is, or 'cpu'"
        ) from None
    return device


@functools.cache
def git_commit(root: Path = Path(__file__).parent) -> str:
    """Commit of the checkout this package runs from, with `+` where it has been changed since; ""
    outside one."""
    if not CHECKOUT:  # a wheel's folder may stand in a repository of somebody else
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
    """`python 3.11.7, torch 2.13.0, …`: what the numbers depend on."""
    found = [f"python {platform.python_version()}"]
    for package in RECORDED_PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


@functools.cache
def machine() -> str:
    """`Linux x86_64, AMD EPYC, 2 cores, 24 GiB`: enough to compare times by, nothing that names its
    owner."""
    size = f"{os.cpu_count()} cores, {round(memory() / 2**30)} GiB"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{platform.system()} {platform.machine()}, {_processor()}, {size}{gpu}"


def memory() -> int:
    """Bytes of the machine's memory."""
    if has("psutil"):
        return psutil.virtual_memory().total
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


class PeakMemory:
    """Growth of memory since construction, in MB: the peak of this run, not that of the whole
    process. On CUDA it is the allocator's, on Linux the kernel's high-water mark, which is reset at
    the start; NaN where there is neither."""

    def __init__(self, device: torch.device):
        self.device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.start = torch.cuda.memory_allocated(device)
            return
        self.start = math.nan
        with suppress(OSError, AttributeError, StopIteration):
            ctypes.CDLL("libc.so.6").malloc_trim(
                0
            )  # glibc keeps what an earlier run freed, which would hide growth
            Path("/proc/self/clear_refs").write_text("5")
            self.start = _high_water_mark()

    def growth(self) -> float:
        """So far, in MB."""
        if self.device.type == "cuda":
            return (torch.cuda.max_memory_allocated(self.device) - self.start) / 1e6
        return math.nan if math.isnan(self.start) else (_high_water_mark() - self.start) / 1e6


def _high_water_mark() -> int:
    """Bytes, as Linux tells them of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
