"""What a training step costs: the rows of `mambanorm bench` as a frame in, figure out; nothing here
measures.

The frame has a row a case: section, group, name, shape (B, L, D, N), status, median_ms, low_ms,
high_ms (quartiles), ratios, us_per_token, kb_per_token. `caption` says machine, threads and date.
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
    write_centred,
)

LINEAR_FROM = 512
"""From this length on, a fixed cost no longer shows in the cost per token."""


def _section(frame: pd.DataFrame, name: str, numbers: tuple[str, ...]) -> pd.DataFrame:
    """The rows of one section, what was not measured as NaN. ValueError if there are none or if
    columns are missing."""
    if missing := [
        column for column in ("section", "group", "name", "shape", *numbers) if column not in frame
    ]:
        raise ValueError(
            f"the frame of measurements lacks the columns {', '.join(missing)}: see mambanorm bench"
        )
    rows = frame[frame.section == name]
    if rows.empty:
        raise ValueError(
            f"the frame holds no rows of section {name!r}: mambanorm bench --only {name} measures it"
        )
    return rows.assign(**{column: pd.to_numeric(rows[column]) for column in numbers})


@styled
def fig_speed(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Time of one training step, a panel a size, a dot an implementation with its quartiles, on one
    logarithmic axis.

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
                foot = dict(
                    transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="bottom"
                )
                ax.text(x, 0.03, row.status, fontsize=8, color=GREY, **foot)
                continue
            if row.name == "floor":
                ax.axhline(
                    row.median_ms, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1
                )
            if np.isfinite(row.low_ms):
                ax.vlines(x, row.low_ms, row.high_ms, color=INK, linewidth=1.4, zorder=2)
            colour = {"floor": GREY, "ours": BEST}.get(row.name, COMBINATION)
            ax.plot(
                x, row.median_ms, "o", markersize=7, color=colour, markeredgecolor="white", zorder=3
            )
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
    """`2.3×` of the floor; for a peer also `(20×)` of ours; nothing for the floor itself."""
    texts = {
        to: f"{r:.1f}×" if r < 9.95 else f"{r:,.0f}×"
        for to, r in row.ratios.items()
        if row.name != "floor"
    }
    lines = [texts["floor"]] if "floor" in texts else []
    return "\n".join(lines + [f"({texts['ours']})"] if "ours" in texts else lines)


@styled
def fig_scaling(frame: pd.DataFrame, caption: str = "") -> Figure:
    """Time and peak memory per token against the length, a line a group; a level line is growth in
    proportion to it.

    The legend says by how much each line varies from 512 positions on; dashed: the mean of the
    first group there.
    """
    rows = _section(frame, "length", ("us_per_token", "kb_per_token"))
    rows = rows.assign(length=rows["shape"].str[1])
    fig, axes = new_figure(1, 2, height=3.9)
    panels = {
        "us_per_token": "time per token (µs, log scale)",
        "kb_per_token": "peak memory per token (kB, log scale)",
    }
    for ax, (column, label) in zip(axes[0], panels.items(), strict=True):
        ax.set_ylabel(label)
        if rows[column].isna().all():
            write_centred(ax, "not measured")
            continue
        for i, (group, line) in enumerate(rows.groupby("group", sort=False)):
            line = line.dropna(subset=column).sort_values("length")
            long = line[column][line.length >= LINEAR_FROM]
            text = f"{group}: varies {long.max() / long.min():.2f}×" if len(long) else group
            style = dict(
                color=(BEST, COMBINATION)[i % 2],
                linestyle=("-", "-.")[i % 2],
                linewidth=1.6,
                markersize=5,
            )
            ax.plot(line.length, line[column], marker="o", label=text, **style)
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
        f"varies: highest by lowest from length {LINEAR_FROM} on",
        "dashed: growth in proportion to the length",
    )
    return finish(fig, "What a longer sequence costs", caption, *notes)
