"""explore_failure: depth × gain, and where a model with fresh weights explodes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from mambanorm.diagnostics.growth import growth_map
from mambanorm.figures.growth_view import fig_growth_view
from mambanorm.figures.style import StudyFigure
from mambanorm.norms import NORMS
from mambanorm.widgets.explorer import Explorer, buttons, choice, log_slider

GAINS = tuple(float(gain) for gain in np.logspace(-1, 2, 13))
"""Four to a tenfold, as the slider goes."""
growth = lru_cache(64)(growth_map)


def _draw(n1: str, n2: str, training: bool, gain: float, seed: int) -> StudyFigure:
    sizes = growth(f"{n1}>SSM>{n2}", GAINS, training=training, seed=seed)
    return fig_growth_view(sizes, GAINS, gain, f"{n1}>SSM>{n2}", training=training, seed=seed)


def explore_failure() -> Explorer:
    """Pick an arm, a mode and a gain: the size of the outputs over 24 blocks before anything is learned."""
    return Explorer(
        _draw,
        n1=choice("None", list(NORMS), "N1"),
        n2=choice("BN", list(NORMS), "N2"),
        training=buttons(True, {"train": True, "eval": False}, "mode"),
        gain=log_slider(10.0, 0.1, 100, "gain", step=0.25),
        seed=choice(0, list(range(8)), "seed"),
    )
