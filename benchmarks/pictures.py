"""Pictures of the results of `mambanorm bench`: each function takes a frame and returns a figure.

The frame has the columns of `benchmarks.timing.Row`. `caption` names machine, threads and date.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mambanorm_study.figures.colours import BEST, COMBINATION, GREY, INK
from mambanorm_study.figures.style import (
    finish,
    log_axis,
    new_figure,
    styled,
    write_above,
)

LINEAR_FROM = 512  # from this length on, a fixed cost no longer shows in the cost per token


def _section(frame: pd.DataFrame, name: str, numbers: tuple[str, ...]) -> pd.DataFrame:
    """Return the rows of one section, its `numbers` as floats. Raise ValueError if it was not
    measured.
    """
    rows = frame[frame.section == name]
    if rows.empty:
        hint = f"mambanorm bench --only {name} measures it"
        raise ValueError(f"the frame holds no rows of section {name!r}: {hint}")
    return rows.assign(**{column: pd.to_numeric(rows[column]) for column in numbers})


@styled
def fig_speed(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Return the time of one training step: a panel a size, a dot with quartiles an implementation,
    on one logarithmic axis.

    The number above a dot is its time as a multiple of the floor's; in brackets, a peer's time as a
    multiple of ours.
    """
    rows = _section(frame, "step", ("median_ms", "low_ms", "high_ms"))
    panels = list(rows.groupby(rows["shape"].map(tuple), sort=False))
    fig, axes = new_figure(1, len(panels), height=4.2, sharey=True)
    names = list(dict.fromkeys(rows.name))
    for ax, (shape, panel) in zip(axes[0], panels, strict=True):
        for row in panel.itertuples():
            x = names.index(row.name)
            if not np.isfinite(row.median_ms):
                place = dict(transform=ax.get_xaxis_transform(), ha="center", va="bottom")
                ax.text(x, 0.03, row.status, fontsize=8, color=GREY, rotation=90, **place)
                continue
            if row.name == "floor":
                style = dict(linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
                ax.axhline(row.median_ms, color=GREY, **style)
            if np.isfinite(row.low_ms):
                ax.vlines(x, row.low_ms, row.high_ms, color=INK, linewidth=1.4, zorder=2)
            colour = {"floor": GREY, "ours": BEST}.get(row.name, COMBINATION)
            dot = dict(markersize=7, markeredgecolor="white", zorder=3)
            ax.plot(x, row.median_ms, "o", color=colour, **dot)
            write_above(ax, x, np.nanmax([row.median_ms, row.high_ms]), _ratios(row), 7.5, (0, 7))
        ax.set_title(f"({', '.join(map(str, shape[:3]))})", color=INK)
        labels = [name.replace("+", "\n+ ") for name in names]
        ax.set_xticks(range(len(names)), labels, rotation=30, ha="right", rotation_mode="anchor")
        ax.set(xlim=(-0.6, len(names) - 0.4), xlabel="implementation")
    log_axis(axes[0, 0])
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(low / 1.4, high * 3)  # room for the numbers
    axes[0, 0].set_ylabel("time of a training step (ms, log scale)")
    parts = (
        "panels: (rows, length, d_model)",
        "dots: medians, lines: quartiles",
        "above: × floor (× ours)",
    )
    return finish(fig, "A training step, beside its floor and its peers", caption, *parts)


def _ratios(row) -> str:
    """Return `2.3×` the floor, and on a second line for a peer `(20×)` ours."""
    if row.name == "floor":
        return ""
    bases = {"floor": "{}", "ours": "({})"}
    lines = []
    for base, form in bases.items():
        if base in row.ratios:
            ratio = row.ratios[base]
            lines.append(form.format(f"{ratio:.1f}×" if ratio < 9.95 else f"{ratio:,.0f}×"))
    return "\n".join(lines)


@styled
def fig_scaling(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Return time and peak memory per token against the length, a line a group. A level line is
    growth in proportion to the length.

    The legend says by how much each line varies from 512 positions on. The dashed line is the mean
    of the first group from there on.
    """
    rows = _section(frame, "length", ("us_per_token", "kb_per_token"))
    rows = rows.assign(length=rows["shape"].str[1])
    fig, axes = new_figure(1, 2, height=3.9)
    panels = {
        "us_per_token": "time per token (µs, log scale)",
        "kb_per_token": "peak memory per token (kB, log scale)",
    }
    for ax, (column, axis_label) in zip(axes[0], panels.items(), strict=True):
        ax.set_ylabel(axis_label)
        if rows[column].isna().all():
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center")
            continue
        for i, (group, line) in enumerate(rows.groupby("group", sort=False)):
            line = line.dropna(subset=column).sort_values("length")
            long = line[column][line.length >= LINEAR_FROM]
            label = f"{group}: varies {long.max() / long.min():.2f}×" if len(long) else group
            style = dict(
                color=(BEST, COMBINATION)[i % 2],
                linestyle=("-", "-.")[i % 2],
                linewidth=1.6,
                markersize=5,
            )
            ax.plot(line.length, line[column], marker="o", label=label, **style)
            if i == 0 and len(long):
                ax.axhline(long.mean(), color=GREY, linewidth=1.1, linestyle="--", zorder=1)
        lengths = sorted(rows.length.unique())
        ax.set_xscale("log", base=2)
        ax.set_xticks(lengths, [f"{n:,}" for n in lengths], rotation=30)
        ax.xaxis.set_minor_formatter("")
        ax.set_xlabel("length (positions)")
        log_axis(ax)
        low, high = ax.get_ylim()
        ax.set_ylim(low / 1.3, high * 1.9)  # room for the legend
        ax.legend(loc="upper right")
    notes = (
        f"varies: highest over lowest from length {LINEAR_FROM} on",
        "dashed: growth in proportion to the length",
    )
    return finish(fig, "What a longer sequence costs", caption, *notes)
