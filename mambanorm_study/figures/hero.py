"""The picture at the start of README, report and docs/index.html: the block and two grids."""

from collections.abc import Mapping

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Rectangle

from mambanorm.arms import PAPER_NORMS
from mambanorm_study.figures.colours import BEST, GREY, INK, WHITE
from mambanorm_study.figures.diagrams import draw_block
from mambanorm_study.figures.style import StudyFigure, styled

TEXT = 14  # points; large, because a telephone shows the picture at half its size
PALEST = 0.1  # this share of the cells has the palest colour, so that the others differ


@styled
def fig_hero(grids: Mapping[str, pd.DataFrame]) -> StudyFigure:
    """Return a figure of the block with its two places for a norm, and below it one grid of test
    accuracies for each entry of `grids`: the norm before the block in rows, after the scan in
    columns.

    grids: title → one row per arm, with the columns n1, n2, mean (per cent), diverged (number of
    runs that diverged), is_original and is_chosen.
    """
    fig = StudyFigure(figsize=(7.6, 5.9), dpi=100, layout="constrained")
    rows = fig.subfigures(2, 1, height_ratios=[1.0, 2.55])
    block = rows[0].subplots()
    draw_block(block, "RMSN>SSM>BN", fontsize=TEXT - 4)
    axes = rows[1].subplots(1, len(grids), sharey=True)
    for ax, (title, table) in zip(axes, grids.items(), strict=True):
        _draw_grid(ax, table, title)
    axes[0].set_ylabel("N₁, before the block", fontsize=TEXT)
    rows[1].supxlabel(
        "numbers: % correct in the test · ring: the original · star: chosen by validation",
        fontsize=TEXT - 3.5,
        color=GREY,
    )
    fig.set_label(
        "The Mamba block with a norm before it (N1) and after its scan (N2), and the mean test "
        f"accuracy in per cent of all 36 pairs: {', '.join(grids)}. Ring: the original. Star: the "
        "pair that validation chooses. Hatched: runs failed."
    )
    return fig


def _draw_grid(ax: Axes, table: pd.DataFrame, title: str) -> None:
    """Draw the mean accuracy of each pair of norms as a heat map with numbers."""
    means = table.pivot(index="n1", columns="n2", values="mean")
    means = means.reindex(PAPER_NORMS, columns=PAPER_NORMS)
    ax.imshow(
        means,
        cmap=matplotlib.colors.ListedColormap(
            matplotlib.colormaps["YlGnBu"](np.linspace(0, 0.62, 256))
        ),
        vmin=np.nanquantile(means, PALEST),
        aspect="equal",
    )
    for row in table.itertuples():
        x, y = PAPER_NORMS.index(row.n2), PAPER_NORMS.index(row.n1)
        ax.text(x, y, f"{row.mean:.0f}", ha="center", va="center", fontsize=TEXT, color=INK)
        if row.is_original:
            ring = Ellipse((x, y), 0.9, 0.86, fill=False, edgecolor=INK, linewidth=1.8)
            ax.add_patch(ring)
        if row.is_chosen:
            ax.plot(x + 0.36, y - 0.34, "*", color=BEST, markersize=13, markeredgecolor=WHITE)
        if row.diverged:
            box = Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="///", edgecolor=GREY)
            ax.add_patch(box)
    places = range(len(PAPER_NORMS))
    ax.set_xticks(places, PAPER_NORMS, fontsize=TEXT - 3)
    ax.set_yticks(places, PAPER_NORMS, fontsize=TEXT - 3)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=TEXT)
    ax.set_xlabel("N₂, after the scan", fontsize=TEXT)
