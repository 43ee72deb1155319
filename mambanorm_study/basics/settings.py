"""Paths, scales and sources of results, which the environment may set, and optional packages.

A scale is a named set of differences from a run's defaults (runs/presets.py, and the sizes of data
in tasks/). This module needs only the standard library, so a wrong argument is reported at once.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from mambanorm.errors import unknown
from mambanorm_study.basics.checks import check_whole

PACKAGE = Path(__file__).resolve().parents[1]
# The checkout with notebooks, data and benchmarks; site-packages for an installed wheel.
ROOT = PACKAGE.parent

# Folder of notebooks and recorded results: the checkout, or the package in a wheel (setup.py).
KIT = PACKAGE if (PACKAGE / "notebooks").is_dir() else ROOT

CHECKOUT = KIT == ROOT

# Folder of runs, reports and downloads: the checkout, or with a wheel the current folder, or its
# parent if the current one holds the notebooks, as in JupyterLab's kernels.
WORK = ROOT if CHECKOUT else Path.cwd()
if not CHECKOUT and any(Path(path.name).is_file() for path in KIT.glob("notebooks/*.ipynb")):
    WORK = WORK.parent

# Folder of the sheet and the slides.
TEACHING = WORK / "reports" / "teaching"

# Seconds, for tests; minutes on a laptop; hours on a laptop, for trained models; hours on one GPU;
# the paper's settings.
SCALES = ("smoke", "quick", "evening", "lab", "paper")

# The guide (S4) advises against BatchNorm for batches with fewer rows.
SMALL_BATCH = 8

# Largest slope, in decades over 8 blocks (a factor of 1.8), at which outputs count as flat.
#
# A sum of independent, equally large branches grows as √l: 0.27 decades in 8 of 16 blocks, 0.19 in
# 8 of 24. The verdict on Figure 9 uses the same threshold.
FLAT = 0.25


def default_scale(otherwise: str = "quick") -> str:
    """Return the environment's scale (`MAMBANORM_SCALE`), else `otherwise`."""
    return check_scale(os.environ.get("MAMBANORM_SCALE") or otherwise)


# Default scale of the study and its notebooks.
STUDY_SCALE = "evening"


def study_scale(scale: str | None = None) -> str:
    """Return the scale of a study (None = the environment's, else STUDY_SCALE)."""
    return default_scale(STUDY_SCALE) if scale is None else check_scale(scale)


def check_scale(scale: str) -> str:
    """Return the scale. Raise ValueError if it is unknown."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


# Sources of runs: "auto" reads the recorded runs and trains the others.
SOURCES = ("auto", "trained", "recorded")


def check_source(source: str | None = None) -> str:
    """Return the source (None = the environment's `MAMBANORM_SOURCE`, else auto).

    Raises ValueError if it is unknown.
    """
    source = source or os.environ.get("MAMBANORM_SOURCE") or "auto"
    if source not in SOURCES:
        raise unknown("source", source, SOURCES)
    return source


# Environment variable that a study sets in the notebook kernels that it starts. Several run at the
# same time, each on some of the cores.
KERNEL = "MAMBANORM_KERNEL"


def default_fresh_seeds() -> int:
    """Return how many fresh seeds of each compared arm to train: `MAMBANORM_FRESH`, else 1.

    Raises ValueError unless it is a whole number from 0 to 100.
    """
    text = os.environ.get("MAMBANORM_FRESH") or "1"
    return check_whole("MAMBANORM_FRESH", int(text) if text.isdecimal() else text, 0, 100)


# --------------------------------------------------------------------------------------------------
# optional packages: on a GPU machine with torch and little else, a model still trains


class Later:
    """A module that is imported at its first use: `pq = Later("pyarrow.parquet")`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)
