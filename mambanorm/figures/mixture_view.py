"""What a norm mixes, for the explorer: its weights at one step over the layers, and over all steps for each layer."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.diagnostics import registered
from mambanorm.figures.style import GREY, INK, finish, norm_colour, quick_figure, short, styled
from mambanorm.norms.more import SwitchNorm
from mambanorm.norms.normvary import NormVary

MARGINS = dict(left=0.06, right=0.985, top=0.84, bottom=0.3, wspace=0.28)


@styled
def fig_mixture_view(
    steps: np.ndarray,
    mixture: np.ndarray,
    *,
    at: float,
    part: str,
    arm: str,
    caption: str,
    note: str = "",
    norm: type[NormVary | SwitchNorm] = NormVary,
) -> Figure:
    """mixture (T, norms, 2, members of `norm`) at steps (T,): left the weights of one part (mean or variance) of every
    norm, by depth, at the step nearest to `at` (a share of all steps, 0…1); right each member over the steps, a line a
    norm, the deepest the darkest. `note` stands where there is nothing yet."""
    members = registered(norm)
    layout, widths = [["map", ".", *members]], (0.44 * len(members), 0.12, *[1] * len(members))
    fig, axes = quick_figure(layout, height=4.0, margins=MARGINS, width_ratios=widths)
    row = 0 if part == "mean" else 1
    axes["map"].set(xlabel="member", ylabel="norm, by depth")
    when = round(at * (len(steps) - 1)) if len(steps) else 0
    if len(steps):
        _draw_map(axes["map"], mixture[when, :, row], list(members.values()))
    else:
        axes["map"].text(0.5, 0.5, note, transform=axes["map"].transAxes, ha="center", va="center", color=GREY)
    for i, (member, name) in enumerate(members.items()):
        ax, norms = axes[member], mixture.shape[1] if len(steps) else 0
        for depth in range(norms):
            ax.plot(steps, mixture[:, depth, row, i], color=norm_colour(name), alpha=0.35 + 0.65 * (depth + 1) / norms)
        ax.axhline(1 / len(members), color=GREY, linewidth=0.8, linestyle=":")
        if len(steps):
            ax.axvline(steps[when], color=INK, linewidth=0.8)
        ax.set(ylim=(0, 3 / len(members)), xlabel="step")
        ax.set_title(name, color=INK)
        if i:
            ax.sharey(axes[next(iter(members))])
            ax.tick_params(labelleft=False)
    axes[next(iter(members))].set_ylabel(f"weight of the {part}")
    shown = f"step {steps[when]}" if len(steps) else "not trained yet"
    words = f"dotted: uniform, {1 / len(members):.2g}", "right: a line a norm, the deepest is the darkest"
    return finish(fig, f"{short(arm)}: what {norm.__name__} mixes, {part}s, {shown}", caption, *words)


def _draw_map(ax: Axes, weights: np.ndarray, members: list[str]) -> None:
    """(norms, members) as colours with their numbers."""
    ax.imshow(weights, cmap="PuOr_r", vmin=0.0, vmax=2 / len(members), aspect="auto")
    for (y, x), weight in np.ndenumerate(weights):
        ax.text(x, y, f"{weight:.3f}", ha="center", va="center", fontsize=7.5, color=INK)
    ax.set_xticks(range(len(members)), members, rotation=20, fontsize=7.5)
    ax.set_yticks(range(len(weights)), [str(i + 1) for i in range(len(weights))])
    ax.set_title("at this step", color=INK)
    ax.grid(visible=False)
