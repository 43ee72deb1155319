"""Depth × gain, for the explorer: where the outputs of a new model explode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import GREY, INK, NO_NORM, finish, quick_figure, short, styled, whole_ticks

LAYOUT = [["map", "line"]]
MARGINS = dict(left=0.075, right=0.985, top=0.83, bottom=0.24, wspace=0.24)
DECADES = 6.0
"""Of the colours; whatever is larger has the last colour."""


@styled
def fig_growth_view(
    sizes: np.ndarray, gains: Sequence[float], gain: float, arm: str, *, training: bool, seed: int
) -> Figure:
    """`diagnostics.growth_map` (gains, depth) as a map, and the row of the gain nearest to `gain` as a line; red where
    an output is not finite. Sizes are norms of tokens, without unit (a.u.)."""
    fig, axes = quick_figure(LAYOUT, height=4.0, margins=MARGINS, width_ratios=(1.15, 1))
    row = int(np.abs(np.log(np.asarray(gains) / gain)).argmin())
    _draw_map(fig, axes["map"], sizes, gains, row)
    _draw_line(axes["line"], sizes[row], gains[row])
    lost = np.flatnonzero(~np.isfinite(sizes[row]))
    end = f"not finite from block {lost[0] + 1} on" if len(lost) else f"{sizes[row, -1]:.3g} after the last block"
    return finish(
        fig,
        f"{short(arm)}, {'train' if training else 'eval'} mode, new weights: {end}",
        "a gain multiplies what every block adds (out_proj), 1 = as mamba-ssm draws it",
        "largest of 128 tokens of normal noise, ‖input‖₂ ≈ 6",
        "red: not finite",
        f"seed {seed}, one seed: a sketch",
    )


def _draw_map(fig: Figure, ax: Axes, sizes: np.ndarray, gains: Sequence[float], row: int) -> None:
    """Depth to the right, gain upwards, log₁₀ of the size as colour."""
    ax.set_facecolor(NO_NORM)
    logs = np.ma.masked_invalid(np.log10(np.where(np.isfinite(sizes), sizes, np.nan)))
    edges = dict(extent=(0.5, sizes.shape[1] + 0.5, -0.5, len(gains) - 0.5), origin="lower", aspect="auto")
    image = ax.imshow(logs, cmap="viridis", vmin=0, vmax=DECADES, interpolation="nearest", **edges)
    bar = fig.colorbar(image, ax=ax, pad=0.02, extend="max")
    bar.set_label("log₁₀ of the largest ‖y‖₂ (a.u.)")
    bar.outline.set_visible(False)
    ax.axhline(row, color="white", linewidth=1.2, linestyle="--")
    ax.set_yticks(range(0, len(gains), 2), [f"{float(f'{gain:.2g}'):g}" for gain in gains[::2]])
    ax.set(xlabel="depth (blocks)", ylabel="gain of out_proj")
    ax.grid(False)


def _draw_line(ax: Axes, sizes: np.ndarray, gain: float) -> None:
    """One row of the map; a cross at the first block whose output is not finite."""
    depth, finite = np.arange(1, len(sizes) + 1), np.isfinite(sizes)
    ax.plot(depth[finite], sizes[finite], marker="o", markersize=3, color=INK)
    ax.set_yscale("log")
    ax.minorticks_off()  # over twelve decades there are eighty, a quarter of the time of drawing
    ax.yaxis.set_major_formatter("{x:g}")  # powers as formulas take another quarter
    if not finite.all():
        first = depth[~finite][0]
        ax.axvspan(first - 0.5, len(sizes) + 0.5, color=NO_NORM, alpha=0.15, linewidth=0)
        ax.text(first, 0.97, "not finite", transform=ax.get_xaxis_transform(), va="top", color=NO_NORM, fontsize=8.5)
    ax.set_ylim(1, 3 * max(1e3, sizes[finite].max(initial=1)))  # not zoomed into what is as good as constant
    ax.axhline(sizes[finite][0] if finite.any() else 1, color=GREY, linewidth=0.8, linestyle=":")
    ax.set(xlim=(0.5, len(sizes) + 0.5), xlabel="depth (blocks)", ylabel="largest ‖y‖₂ (a.u., log scale)")
    ax.set_title(f"at gain {gain:.2g}", color=INK)
    whole_ticks(ax)
