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
    instead,
    new_figure,
    quick_figure,
    short,
    some_of,
    styled,
    whole_ticks,
)
from mambanorm.norms.more import SwitchNorm
from mambanorm.norms.normvary import NormVary


@styled
def fig_part_norms(arrays_by_arm: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """Appendix B: by how much the L2 norm of in_proj, conv1d, SSM and out_proj has grown since the first snapshot, by
    depth; a line an arm.

    Input: arm → arrays with `step` (T,) and `part_norms` (T, layers, 4).
    """
    if not arrays_by_arm:
        raise ValueError("there are no weights to draw: give at least one arm → arrays (StoredRun.diagnostics)")
    fig, axes = new_figure(1, len(BLOCK_PARTS), height=3.2, sharey=True)
    for part, (ax, name) in enumerate(zip(axes[0], BLOCK_PARTS, strict=True)):
        for label, style in _colours_apart(arm_styles(list(arrays_by_arm))).items():
            first, last = arrays_by_arm[label]["part_norms"][[0, -1], :, part]
            ax.plot(np.arange(1, len(first) + 1), last / first, linewidth=1.5, label=short(label), **style)
        ax.axhline(1, color=GREY, linewidth=0.9, linestyle=":", zorder=1)
        ax.set(title=name, xlabel="block")
        whole_ticks(ax)
    axes[0, 0].set_ylabel("L2 norm, last ÷ first")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center")
    since = f"last snapshot over step {next(iter(arrays_by_arm.values()))['step'][0]}"
    return finish(fig, "How the weights have grown, by depth", caption or ONE_RUN, f"{since}, dotted: unchanged")


def _colours_apart(styles: dict[str, dict]) -> dict[str, dict]:
    """Gives arms that share a norm's colour different colours: dashes cannot be told apart in a zigzag over blocks."""
    spare, used, apart = iter(SPARE_COLOURS[3:] + SPARE_COLOURS[1:3]), set(), {}
    for label, style in styles.items():
        colour = style["color"] if style["color"] not in used else next(spare, style["color"])
        apart[label] = style | {"color": colour}
        used.add(colour)
    return apart


def registered(norm: type[NormVary | SwitchNorm]) -> dict[str, str]:
    """The members of a norm that mixes → how the registry names their statistics (Eq. 11–12 are over D·L)."""
    return {name: f"{name}-DL" if name in ("LN", "RMSN") else name for name in norm.members}


MEMBERS = registered(NormVary)


@styled
def fig_mixture(arrays_by_label: dict[str, dict[str, np.ndarray]], caption: str = "") -> Figure:
    """NormVary's learned weights over training: a column a norm by depth, rows for means and variances; one dash a
    label. Input: `step` (T,) and `mixture` (T, norms, 2, 5). ValueError if a run has no learned mixture."""
    if lacking := [label for label, arrays in arrays_by_label.items() if "mixture" not in arrays]:
        raise ValueError(f"run {lacking[0]!r} holds no mixture: only NormVary has one")
    dashes = dict(zip(arrays_by_label, DASHES * len(arrays_by_label), strict=False))
    members = {member: (_member_line(member), name) for member, name in MEMBERS.items()}
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
                for line, (look, _) in zip(weights.T, members.values(), strict=True):
                    every = max(1, len(steps) // 6)
                    axes[row, column].plot(steps, line.T, linestyle=dashes[label], markevery=every, **look)
    handles = [Line2D([], [], label=name, **look) for look, name in members.values()]
    if len(dashes) > 1:
        handles += [Line2D([], [], color=INK, linestyle=dash, label=short(label)) for label, dash in dashes.items()]
    fig.legend(handles=handles, loc="outside right center")
    notes = (
        "dotted: uniform, 0.2",
        "wide: LN-DL, on which RMSN-DL may lie",
        "RMSN-DL has no mean: its weight there stands for zero",
    )
    return finish(fig, "What NormVary mixes", caption or ONE_RUN, *notes)


def _member_line(member: str) -> dict:
    """LN-DL's line is wide, so that RMSN-DL's, drawn later, does not hide it: the two norms coincide where the mean
    over the channels is near zero."""
    name = MEMBERS[member]
    return dict(
        color=norm_colour(name), linewidth=4.0 if member == "LN" else 1.4, marker=norm_marker(name), markersize=4.5
    )


def _norm_place(norm: int, arrays: dict[str, np.ndarray]) -> str:
    """Which norm it is: its block, and its site where both sites of a block mix."""
    layers = arrays["part_norms"].shape[1] if "part_norms" in arrays else arrays["mixture"].shape[1]
    per_block = max(arrays["mixture"].shape[1] // layers, 1)
    site = f", N{norm % per_block + 1}" if per_block > 1 else ""
    return f"block {norm // per_block + 1}{site}"


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
    first, layout, widths = next(iter(members)), [["map", ".", *members]], (0.44 * len(members), 0.12)
    margins = dict(left=0.06, right=0.985, top=0.84, bottom=0.3, wspace=0.28)
    fig, axes = quick_figure(layout, height=4.0, margins=margins, width_ratios=(*widths, *[1] * len(members)))
    axes["map"].set(xlabel="member", ylabel="norm, by depth")
    if len(steps):
        when, weights = round(at * (len(steps) - 1)), mixture[:, :, 0 if part == "mean" else 1]
        axes["map"].imshow(weights[when], cmap="PuOr_r", vmin=0.0, vmax=2 / len(members), aspect="auto")
        for (y, x), weight in np.ndenumerate(weights[when]):
            axes["map"].text(x, y, f"{weight:.3f}", ha="center", va="center", fontsize=7.5, color=INK)
        axes["map"].set_xticks(range(len(members)), list(members.values()), rotation=20, fontsize=7.5)
        axes["map"].set_yticks(range(weights.shape[1]), [str(i + 1) for i in range(weights.shape[1])])
        axes["map"].set_title("at this step", color=INK)
        axes["map"].grid(visible=False)
    else:
        instead(axes["map"], note)
        for ax in axes.values():  # numbers on an empty axis would be made up
            ax.set(xticks=[])
        axes["map"].set(yticks=[])
    for i, (member, name) in enumerate(members.items()):
        ax = axes[member]
        if len(steps):
            depths = weights.shape[1]
            for depth in range(depths):
                shade = 0.35 + 0.65 * (depth + 1) / depths
                ax.plot(steps, weights[:, depth, i], color=norm_colour(name), alpha=shade)
            ax.axvline(steps[when], color=INK, linewidth=0.8)
        ax.axhline(1 / len(members), color=GREY, linewidth=0.8, linestyle=":")
        ax.set(ylim=(0, 3 / len(members)), xlabel="step")
        ax.set_title(name, color=INK)
        if member != first:
            ax.sharey(axes[first])
            ax.tick_params(labelleft=False)
    axes[first].set_ylabel(f"weight of the {part}")
    shown = f"step {steps[when]}" if len(steps) else "not trained yet"
    words = f"dotted: uniform, {1 / len(members):.2g}", "right: a line a norm, the deepest is the darkest"
    return finish(fig, f"{short(arm)}: what {norm.__name__} mixes, {part}s, {shown}", caption, *words)
