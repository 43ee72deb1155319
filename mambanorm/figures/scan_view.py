"""A scan by hand, for the explorer: input and step size above, states and output below."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import GREY, INK, finish, quick_figure, styled
from mambanorm.study.inside import HandScan

LAYOUT = [["u", "delta"], ["h", "y"]]
MARGINS = dict(left=0.07, right=0.985, top=0.87, bottom=0.19, hspace=0.5, wspace=0.2)

NAMES = {
    "u": ("input u", "u"),
    "delta": ("step size Δ", "Δ"),
    "h": ("states h", "h"),
    "y": ("output y, the mean of the states", "y"),
}
"""Panel → its title, and the symbol on its axis."""


@styled
def fig_scan_view(scan: HandScan, *, delta: float, a: float) -> Figure:
    """Input u, step size Δ, the states h and the output y of `study.scan_by_hand`, by position; no unit (a.u.)."""
    fig, axes = quick_figure(LAYOUT, height=4.8, margins=MARGINS, sharex=True)
    _bars(axes["u"], scan.u.numpy(), GREY)
    _bars(axes["delta"], scan.delta.numpy(), "#0072B2")
    where = np.arange(1, len(scan.u) + 1)
    for n, state in enumerate(scan.states.numpy(), start=1):
        colour = matplotlib.colormaps["viridis"](0.85 * (n - 1) / max(len(scan.states) - 1, 1))
        axes["h"].plot(where, state, color=colour, linewidth=1.6, label=f"state {n}, rate {n * a:.2g}")
    axes["y"].plot(where, scan.y.numpy(), color=INK, linewidth=1.8)
    for key, (title, symbol) in NAMES.items():
        axes[key].set_title(title, color=INK)
        axes[key].set_ylabel(f"{symbol} (a.u.)")
    for key in ("h", "y"):
        axes[key].set_xlabel("position")
    axes["h"].legend(loc="upper right", fontsize=7.5)
    slow, fast = float(scan.half_life[0]), float(scan.half_life[-1])
    kept = f"each position keeps exp(−Δ·rate) of a state: half is gone after {slow:.3g} steps (state 1) to {fast:.3g}"
    return finish(fig, "A scan by hand", f"h ← exp(−Δ·rate)·h + Δ·u, with Δ = {delta:.3g} at most", kept, "no seed")


def _bars(ax: Axes, values: np.ndarray, colour: str) -> None:
    """A thin line to each value and a dot on it."""
    where = np.arange(1, len(values) + 1)
    ax.vlines(where, 0, values, color=colour, linewidth=1.5)
    ax.plot(where, values, "o", markersize=3, color=colour)
    ax.axhline(0, color=GREY, linewidth=0.7)
