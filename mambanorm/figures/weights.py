"""What was learned: the weights of the parts by depth (Appendix B), and what NormVary and SwitchNorm mix.

The inputs are `StoredRun.diagnostics` arrays (see `WeightLog.arrays`); `caption` says scale and seeds
(`tables.describe_frame`), which the arrays do not hold.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mambanorm.diagnostics import BLOCK_PARTS
from mambanorm.figures.colours import DASHES, GREY, INK, SPARE_COLOURS, arm_styles, norm_colour, norm_marker
from mambanorm.figures.style import (
    ONE_RUN,
    finish,
    new_figure,
    short,
    some_of,
    styled,
    whole_ticks,
)
from mambanorm.norms.normvary import NormVary


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Appendix B: L2 norm of in_proj, conv1d, SSM and out_proj by depth; a line an arm, faint: the first snapshot.

    Input: arm → arrays with `step` (T,) and `part_norms` (T, layers, 4).
    """
    fig, axes = new_figure(1, len(BLOCK_PARTS), height=3.2)
    for part, (ax, name) in enumerate(zip(axes[0], BLOCK_PARTS, strict=True)):
        for label, style in _colours_apart(arm_styles(list(arrays_by_arm))).items():
            norms = arrays_by_arm[label]["part_norms"][:, :, part]
            blocks = np.arange(1, norms.shape[1] + 1)
            ax.plot(blocks, norms[0], alpha=0.35, linewidth=1.2, **style)
            ax.plot(blocks, norms[-1], linewidth=1.5, label=short(label), **style)
        ax.set(title=name, xlabel="block", ylabel="L2 norm (a.u.)")
        whole_ticks(ax)
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    steps = next(iter(arrays_by_arm.values()))["step"]
    return finish(fig, "Weights by depth", caption or ONE_RUN, f"faint: step {steps[0]}, full colour: last snapshot")


def _colours_apart(styles: dict[str, dict]) -> dict[str, dict]:
    """Gives arms that share a norm's colour different colours: dashes cannot be told apart in a zigzag over blocks."""
    spare, used, apart = iter(SPARE_COLOURS[3:] + SPARE_COLOURS[1:3]), set(), {}
    for label, style in styles.items():
        colour = style["color"] if style["color"] not in used else next(spare, style["color"])
        apart[label] = style | {"color": colour}
        used.add(colour)
    return apart


MEMBERS = {name: f"{name}-DL" if name in ("LN", "RMSN") else name for name in NormVary.members}
"""NormVary's members → how the registry names their statistics (Eq. 11–12 are over D·L)."""


@styled
def fig_mixture(arrays_by_label: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """NormVary's learned weights over training: a column a norm by depth, rows for means and variances; one dash a
    label. Input: `step` (T,) and `mixture` (T, norms, 2, 5). ValueError if a run has no learned mixture."""
    if lacking := [label for label, arrays in arrays_by_label.items() if "mixture" not in arrays]:
        raise ValueError(f"run {lacking[0]!r} holds no mixture: only NormVary has one")
    dashes = dict(zip(arrays_by_label, DASHES * len(arrays_by_label), strict=False))
    # LN-DL's line is wide: where the mean over the channels is near zero, RMSN-DL's, drawn later, lies on it
    looks = {
        name: dict(
            color=norm_colour(name), linewidth=4.0 if member == "LN" else 1.4, marker=norm_marker(name), markersize=4.5
        )
        for member, name in MEMBERS.items()
    }
    widest = max(arrays_by_label.values(), key=lambda arrays: arrays["mixture"].shape[1])
    shown = some_of(widest["mixture"].shape[1], 6)
    fig, axes = new_figure(2, len(shown), height=4.6, sharex=True, sharey=True)
    for column, norm in enumerate(shown):
        axes[0, column].set_title(_norm_place(norm, widest), color=INK)
        axes[1, column].set_xlabel("step")
        whole_ticks(axes[1, column])
        for row, part in enumerate(("mean", "variance")):
            axes[row, column].axhline(0.2, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            axes[row, 0].set_ylabel(f"weight of the {part}")
            for label, arrays in arrays_by_label.items():
                steps, weights = arrays["step"], arrays["mixture"][:, norm : norm + 1, row]
                for line, look in zip(weights.T, looks.values(), strict=True):
                    every = max(1, len(steps) // 6)
                    axes[row, column].plot(steps, line.T, linestyle=dashes[label], markevery=every, **look)
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    if len(dashes) > 1:
        handles += [Line2D([], [], color=INK, linestyle=dash, label=short(label)) for label, dash in dashes.items()]
    fig.legend(handles=handles, loc="outside right center")
    notes = (
        "dotted: uniform, 0.2",
        "wide: LN-DL, on which RMSN-DL may lie",
        "RMSN-DL has no mean: its weight there stands for zero",
    )
    return finish(fig, "What NormVary mixes", caption or ONE_RUN, *notes)


def _norm_place(norm: int, arrays: dict[str, np.ndarray]) -> str:
    """Which norm it is: its block, and its site where both sites of a block mix."""
    layers = arrays["part_norms"].shape[1] if "part_norms" in arrays else arrays["mixture"].shape[1]
    per_block = max(arrays["mixture"].shape[1] // layers, 1)
    site = f", N{norm % per_block + 1}" if per_block > 1 else ""
    return f"block {norm // per_block + 1}{site}"
