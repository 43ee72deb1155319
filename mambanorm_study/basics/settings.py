"""Paths; the scale and the source of runs, which environment variables may set; lazy imports.

A scale names the settings of runs that differ from RunConfig's defaults (runs/presets.py) and the
sizes of the data (tasks/). This module loads quickly, because it needs only the standard library,
so the command line reports a wrong argument at once.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from mambanorm.errors import unknown
from mambanorm_study.basics.checks import check_whole

PACKAGE = Path(__file__).resolve().parents[1]
# Folder of the checkout (notebooks, data, benchmarks), or site-packages if a wheel is installed.
ROOT = PACKAGE.parent

# Folder of notebooks and recorded results: the checkout, or the package if a wheel is installed
# (setup.py puts them there).
KIT = PACKAGE if (PACKAGE / "notebooks").is_dir() else ROOT

CHECKOUT = KIT == ROOT

# Folder of runs, reports and downloads: the checkout, or, if a wheel is installed, the current
# folder. If the current folder holds the notebooks, as in JupyterLab's kernels, the parent of the
# current folder is used.
WORK = ROOT if CHECKOUT else Path.cwd()
if not CHECKOUT and any(Path(path.name).is_file() for path in KIT.glob("notebooks/*.ipynb")):
    WORK = WORK.parent

# Folder to which `mambanorm sheet` and `mambanorm slides` write by default.
TEACHING = WORK / "reports" / "teaching"

# smoke takes seconds (for tests), quick takes minutes on a laptop, evening takes hours on a laptop
# (most models stop improving), lab takes hours on one GPU, and paper has the paper's settings.
SCALES = ("smoke", "quick", "evening", "lab", "paper")

# The guide S4 (docs/sources.md) advises against BatchNorm for batches with fewer rows than this.
SMALL_BATCH = 8

# Outputs whose size changes by at most this many decades over 8 blocks (a factor of 1.8) count as
# flat. The verdict on the paper's Figure 9 uses the same threshold.
#
# For comparison: a sum of l independent, equally large branches grows as √l, by 0.27 decades per 8
# blocks in 16 blocks, and by 0.19 decades per 8 blocks in 24 blocks.
FLAT = 0.25


def default_scale(fallback: str = "quick") -> str:
    """Return the scale that `MAMBANORM_SCALE` names, or `fallback` if the variable is not set."""
    return check_scale(os.environ.get("MAMBANORM_SCALE") or fallback)


# Default scale of the study and its notebooks.
STUDY_SCALE = "evening"


def study_scale(scale: str | None = None) -> str:
    """Return the scale of a study. None means `MAMBANORM_SCALE`, or STUDY_SCALE if it is unset."""
    return default_scale(STUDY_SCALE) if scale is None else check_scale(scale)


def check_scale(scale: str) -> str:
    """Return the given scale. Raise ValueError if it is not in SCALES."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


# Sources of runs. "auto" reads the runs that are recorded and trains all other runs.
SOURCES = ("auto", "trained", "recorded")


def check_source(source: str | None = None) -> str:
    """Return the given source of runs. None means `MAMBANORM_SOURCE`, or "auto" if that variable is
    not set.

    Raises ValueError if the source is unknown.
    """
    source = source or os.environ.get("MAMBANORM_SOURCE") or "auto"
    if source not in SOURCES:
        raise unknown("source", source, SOURCES)
    return source


# Minutes that a study trains runs on new seeds, if none are given.
DEFAULT_MINUTES = 4.0

# Environment variable that a study sets in the notebook kernels that it starts. Several kernels run
# at the same time, each on some of the cores.
KERNEL = "MAMBANORM_KERNEL"

# Value of the variable KERNEL in a study that has trained its fresh runs: the notebooks train no
# further ones.
STORED_ONLY = "stored"


def default_fresh_seeds() -> int:
    """Return how many new seeds to train for each compared arm: `MAMBANORM_FRESH`, else 1.

    Raises ValueError unless `MAMBANORM_FRESH` is a whole number from 0 to 100.
    """
    text = os.environ.get("MAMBANORM_FRESH") or "1"
    return check_whole("MAMBANORM_FRESH", int(text) if text.isdecimal() else text, 0, 100)


# --------------------------------------------------------------------------------------------------
# Lazy imports, so that a GPU machine on which models are trained needs only torch and few other
# packages.


class Later:
    """A module that is imported when it is first used: `pq = Later("pyarrow.parquet")`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)
