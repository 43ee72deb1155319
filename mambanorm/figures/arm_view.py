"""One arm, for the explorer: the model and its block with every norm, what it costs, and its recorded accuracy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.ticker import EngFormatter

from mambanorm.arms import Arm
from mambanorm.figures.diagrams import draw_block
from mambanorm.figures.style import GREY, INK, empty_axes, finish, jitter, norm_colour, quick_figure, styled
from mambanorm.study.norm_catalog import ArmFacts

LAYOUT = [["model", "model"], ["block", "block"], ["parameters", "results"]]
MARGINS = dict(left=0.115, right=0.985, top=0.92, bottom=0.19, hspace=0.26, wspace=0.42)
DARK = {"#0072B2", "#D55E00", "#009E73", "#B0559A", "#7E3B70", "#4B4FA8"}
NORM_PLACES = ("stem norm", "N1", "N2", "further", "final norm")


@styled
def fig_arm_view(
    facts: ArmFacts, results: pd.DataFrame, *, stem_norm: str = "None", final_norm: str = "None", note: str = ""
) -> Figure:
    """The model and its block, the parameters of every place (`study.arm_facts`), and the recorded test accuracy by
    task: a dot a seed (columns scale, task, accuracy, chance, diverged). `note` stands where there is no result."""
    fig, axes = quick_figure(LAYOUT, height=6.2, margins=MARGINS, height_ratios=(0.3, 1.05, 0.95))
    _draw_model(axes["model"], facts, stem_norm, final_norm)
    draw_block(axes["block"], facts.arm, fontsize=9)
    _draw_parameters(axes["parameters"], facts)
    _draw_results(axes["results"], results, note)
    norms = sum(facts.parameters.get(place, 0) for place in NORM_PLACES)
    share = f"{norms:,} of {facts.total:,} parameters are norms' ({100 * norms / facts.total:.2g} %)"
    timed = f"one block, forward and backward: {facts.block_ms:.1f} ms, without norms {facts.plain_ms:.1f} ms"
    seeds = f"; {results.groupby(['scale', 'task']).size().max()} seeds at most" if len(results) else ""
    arm = Arm.parse(facts.arm)
    return finish(
        fig,
        f"The model of arm {arm.label if arm.more else arm}",
        f"model of the digits: {facts.n_layers} blocks, width {facts.d_model}",
        share,
        f"{timed} (timed here just now, one thread)",
        f"results: recorded, line: mean, tick: chance, × diverged{seeds}",
    )


def _draw_model(ax: Axes, facts: ArmFacts, stem_norm: str, final_norm: str) -> None:
    """Stem, its norm, the blocks, the final norm, the head, from left to right."""
    empty_axes(ax)
    ax.set(xlim=(0, 11), ylim=(-0.62, 0.62))
    names = ("stem", stem_norm, f"{facts.n_layers} blocks, as below", final_norm, "mean, head")
    places, widths = (0.9, 2.9, 5.5, 8.1, 10.1), (1.1, 1.5, 2.6, 1.5, 1.4)
    for i, (name, x, width) in enumerate(zip(names, places, widths, strict=True)):
        is_norm = i in (1, 3)
        colour = norm_colour(name) if is_norm and name != "None" else "#FFFFFF"
        style = dict(facecolor=colour, edgecolor="#8A8A8A", linestyle="--" if is_norm and name == "None" else "-")
        shape = "round,pad=0,rounding_size=0.12"
        ax.add_patch(FancyBboxPatch((x - width / 2, -0.42), width, 0.84, boxstyle=shape, **style))
        label = ("stem: –" if i == 1 else "final: –") if is_norm and name == "None" else name
        ink = GREY if is_norm and name == "None" else "white" if colour in DARK else INK
        ax.text(x, 0, label, ha="center", va="center", fontsize=8.5, color=ink)
        if i:
            before = places[i - 1] + widths[i - 1] / 2
            arrow = dict(arrowstyle="-|>", mutation_scale=8, color=GREY, linewidth=1, shrinkA=0, shrinkB=0)
            ax.add_patch(FancyArrowPatch((before, 0), (x - width / 2, 0), **arrow))


def _draw_parameters(ax: Axes, facts: ArmFacts) -> None:
    """A bar a place, logarithmic, with its number."""
    places, counts = list(facts.parameters), np.array(list(facts.parameters.values()))
    ax.barh(range(len(places)), np.maximum(counts, 0.5), color=[INK if p in NORM_PLACES else "#B9B9B9" for p in places])
    for i, count in enumerate(counts):
        ax.text(max(count, 0.5) * 1.15, i, f"{count:,}", va="center", fontsize=8, color=INK)
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))  # 10k: powers as formulas take as long as all else
    ax.set(xlim=(0.5, 40 * counts.max()), ylim=(len(places) - 0.4, -0.6))
    ax.set(xlabel="parameters (log scale)", ylabel="place in the model")
    ax.set_yticks(range(len(places)), places)
    ax.grid(visible=False)
    ax.set_title("what it learns", color=INK)


def _draw_results(ax: Axes, results: pd.DataFrame, note: str) -> None:
    """Test accuracy by task: a dot a seed, a line at their mean, a tick at chance."""
    ax.set_title("recorded test accuracy", color=INK)
    ax.set(xlim=(0, 100), xlabel="test accuracy (%)", ylabel="task (scale)")
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    groups = list(results.groupby(["scale", "task"], sort=False)) if len(results) else []
    for i, (_, runs) in enumerate(groups):
        y = i + jitter(len(runs), 0.5)
        for failed, marker in ((False, "o"), (True, "X")):
            mine = (runs.diverged == failed).to_numpy(bool)
            ax.plot(100 * runs.accuracy[mine], y[mine], marker, markersize=4, color=INK, alpha=0.6)
        ax.vlines(100 * runs.accuracy.mean(), i - 0.35, i + 0.35, color="#2F6DB5", linewidth=2.2)
        ax.vlines(100 * runs.chance.mean(), i - 0.2, i + 0.2, color=GREY, linewidth=1)
    ax.set_yticks(range(len(groups)), [f"{task}\n({scale})" for (scale, task), _ in groups], fontsize=7.5)
    ax.set_ylim(max(len(groups), 1) - 0.4, -0.6)
    if not groups:
        ax.text(0.5, 0.5, note or "not recorded", transform=ax.transAxes, ha="center", va="center", color=GREY)
