"""What the environment decides: where the checkout stands, and at which scale everything runs.

A scale is a named set of differences from a run's defaults (`training/presets.py`, and the sizes of data in `tasks/`).
This module needs only the standard library, so that a wrong argument is reported at once.
"""

from __future__ import annotations

import os
from pathlib import Path

from mambanorm.errors import unknown

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: where notebooks, data and benchmarks stand beside the package."""

SCALES = ("smoke", "quick", "evening", "lab", "paper")
"""Seconds, for tests; minutes on a laptop, how fast arms learn; its hours, trained models; hours on one GPU; the
paper's own settings."""


def default_scale() -> str:
    """The scale of the environment (`MAMBANORM_SCALE`), or quick. ValueError if it is unknown."""
    return check_scale(os.environ.get("MAMBANORM_SCALE") or "quick")


def check_scale(scale: str) -> str:
    """The scale. ValueError for an unknown one, with the nearest."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale
