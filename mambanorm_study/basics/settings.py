"""What the environment decides: where things stand and go, at which scale everything runs, whether
results are trained or read; and packages that not every machine has.

A scale is a named set of differences from a run's defaults (`runs/presets.py`, and the sizes of
data in `tasks/`). This module needs only the standard library, so that a wrong argument is reported
at once.
"""

from __future__ import annotations

import functools
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from mambanorm.errors import brief, unknown

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
"""The checkout: where notebooks, data and benchmarks stand beside the package. Of an installed
wheel: site-packages."""

KIT = PACKAGE if (PACKAGE / "notebooks").is_dir() else ROOT
"""What comes with the kit, notebooks and recorded results: beside the package, in a wheel
(setup.py) inside it."""


CHECKOUT = KIT == ROOT


def _working_folder() -> Path:
    """The current folder, or the one above where it holds the notebooks: JupyterLab starts a kernel
    beside its own."""
    here = Path.cwd()
    return (
        here.parent
        if any((here / path.name).is_file() for path in KIT.glob("notebooks/*.ipynb"))
        else here
    )


WORK = ROOT if CHECKOUT else _working_folder()
"""Where runs, reports and downloads go: the checkout; with a wheel the folder one works in."""

TEACHING = WORK / "reports" / "teaching"
"""Where the sheet and the slides go."""

SCALES = ("smoke", "quick", "evening", "lab", "paper")
"""Seconds, for tests; minutes on a laptop, how fast arms learn; its hours, trained models; hours on
one GPU; the paper's own settings."""


SMALL_BATCH = 8
"""Rows of a batch below which the guide (S4) leaves BatchNorm."""

FLAT = 0.25
"""Decades in 8 blocks (a factor of 1.8) up to which a slope is negligible: outputs are flat, and no
law is named.

So small a slope needs no multiplication from block to block: a sum of independent, equally large
branches grows as √l, which is 0.27 decades in 8 blocks over 16 blocks and 0.19 over 24. The verdict
on Figure 9 has the same threshold.
"""


def default_scale(otherwise: str = "quick") -> str:
    """The scale of the environment (`MAMBANORM_SCALE`), or quick. ValueError if it is unknown."""
    return check_scale(os.environ.get("MAMBANORM_SCALE") or otherwise)


STUDY_SCALE = "evening"
"""Where nothing else is asked for, the study and its notebooks stand on trained models."""


def study_scale(scale: str | None = None) -> str:
    """The scale of a study (None = the environment's, else STUDY_SCALE). ValueError if it is
    unknown."""
    return default_scale(STUDY_SCALE) if scale is None else check_scale(scale)


def check_scale(scale: str) -> str:
    """The scale. ValueError for an unknown one, with the nearest."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


SOURCES = ("auto", "trained", "recorded")
"""Where the runs of a study come from. auto: what is recorded is read, the rest is trained."""


def check_source(source: str | None = None) -> str:
    """`auto`, `trained` or `recorded`; None = the environment's (`MAMBANORM_SOURCE`), else auto.
    ValueError otherwise."""
    source = source or os.environ.get("MAMBANORM_SOURCE") or "auto"
    if source not in SOURCES:
        raise unknown("source", source, SOURCES)
    return source


KERNEL = "MAMBANORM_KERNEL"
"""Set in the environment of the kernels that a study starts, each with a share of the cores."""


def check_fresh(given: str) -> int:
    """How many fresh seeds the reader's machine trains of each compared arm. ValueError for what is
    no number from 0 to 100."""
    if not (given.isascii() and given.isdigit() and len(given) < 4 and int(given) <= 100):
        raise ValueError(
            f"the number of fresh seeds must be a whole number from 0 to 100, got {brief(given)}"
        )
    return int(given)


def fresh_seeds_asked() -> int:
    """That of the environment: `MAMBANORM_FRESH`, or 1; 0 = none."""
    return check_fresh(os.environ.get("MAMBANORM_FRESH") or "1")


# --------------------------------------------------------------------------------------------------
# packages that not every machine has. A GPU machine may have torch and little besides: a model
# trains there without those that keep and read files.


class Later:
    """Stands for a module: `pq = Later("pyarrow.parquet")` imports it with the first
    `pq.read_table`."""

    def __init__(self, name: str):
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self.__name__), attribute)


@functools.cache
def has(package: str) -> bool:
    """Whether a package can be imported (tried once)."""
    try:
        import_module(package)
    except ImportError:
        return False
    return True
