"""The verdicts as forest plots: all claims on one page, and the comparisons of one claim.

Both are made from `mambanorm.claims.Verdict`; each claim keeps its own unit and threshold, written before any run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.style import COMBINATION, GREY, INK, NO_NORM, SINGLE, finish, new_figure, styled
from mambanorm.study.tables import seeds_text

VERDICT_COLOURS = {
    "reproduced": COMBINATION,
    "contradicted": NO_NORM,
    "inconclusive": "#946500",  # SINGLE is too light for words
    "sketch": GREY,
    "not run": GREY,
}
STATE_COLOURS = {"holds": COMBINATION, "fails": NO_NORM, "open": SINGLE}


@styled
def fig_verdicts(verdicts: Sequence) -> Figure:
    """The comparison that decides each verdict, with its interval; accuracy claims share an axis, every other claim has
    its own. A claim may have a row for each task. A claim that was not run has an empty row."""
    if not verdicts:
        raise ValueError("there is no verdict to draw: make them with mambanorm.judge")
    shared = [v for v in verdicts if v.unit == "pp"]
    others = dict.fromkeys(v.claim.id for v in verdicts if v.unit != "pp")
    panels = ([shared] if shared else []) + [[v for v in verdicts if v.claim.id == name] for name in others]
    heights = [0.75 + 0.34 * len(panel) for panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.7, height_ratios=heights)
    for ax, panel in zip(axes[:, 0], panels, strict=True):
        _verdict_panel(ax, panel)
    told = [v for v in verdicts if v.n_seeds]
    seeds = seeds_text([v.n_seeds for v in told]) if told else "no runs"
    scales = ", ".join(dict.fromkeys(v.scale for v in verdicts))
    dots = "dot and line: the comparison that decides, with the interval that the verdict rests on"
    keys = _keys("the claim's threshold", [v for v in verdicts if np.isfinite(v.paper)])
    return finish(fig, "Every claim, every verdict", f"{scales} scale", seeds, dots, *keys)


def _keys(threshold: str, with_paper: Sequence) -> tuple[str, str]:
    """What the tick is, and on which of the paper's data the drawn diamonds were measured ("" without one)."""
    places = ", ".join(dict.fromkeys(v.claim.printed_on for v in with_paper))
    return f"grey tick: {threshold}", f"hollow diamond: the paper's own number, on {places}" if places else ""


def _verdict_panel(ax: Axes, verdicts: Sequence) -> None:
    for y, verdict in enumerate(verdicts):
        colour = VERDICT_COLOURS[verdict.verdict]
        if verdict.n_seeds:
            seeds = verdict.per_seed if verdict.claim.measure != "failure" else ()
            _row(ax, y, verdict.effect, *verdict.ci, verdict.threshold, verdict.paper, colour, seeds)
        ax.text(1.01, y, verdict.verdict, transform=ax.get_yaxis_transform(), va="center", color=colour, weight="bold")
    ax.set_yticks(range(len(verdicts)), [_label(v) for v in verdicts])
    ax.set(ylim=(len(verdicts) - 0.4, -0.6), xlabel=_spelled(verdicts[0].unit))
    _upright(ax)


def _label(verdict) -> str:
    where = f"  ({verdict.tasks[0]})" if len(verdict.tasks) == 1 else ""
    return f"{verdict.claim.id}  {verdict.decided_by or verdict.claim.direction}{where}"


def _row(ax: Axes, y: float, effect, low, high, threshold, paper, colour: str, seeds: Sequence[float] = ()) -> None:
    ax.plot([threshold] * 2, [y - 0.36, y + 0.36], color=GREY, linewidth=1.2)
    if np.isfinite(low):
        ax.hlines(y, low, high, color=colour, linewidth=2.2)
    ax.plot(seeds, np.full(len(seeds), y + 0.24), "o", markersize=2.4, color=colour, alpha=0.55)
    ax.plot(effect, y, "o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3)
    if np.isfinite(paper):
        ax.plot(paper, y, "D", markersize=6, markerfacecolor="none", markeredgecolor=INK, zorder=4)


def _spelled(unit: str) -> str:
    return {"pp": "percentage points", "AIC": "AIC of the best other law − that of the exponential"}.get(unit, unit)


def _upright(ax: Axes) -> None:
    ax.axvline(0, color="#CFCFCF", linewidth=1, zorder=0)
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")


@styled
def fig_claim(verdict) -> Figure:
    """Every comparison of one claim: mean, the interval it is judged by, its threshold, the seeds, the paper's number.

    Comparisons in different units, as for growth (H10), get a panel for each unit. ValueError for a claim that was not
    run.
    """
    rows = verdict.rows[verdict.rows.n > 0] if len(verdict.rows) else verdict.rows
    if not len(rows):
        raise ValueError(f"claim {verdict.claim.id} was not run: there is nothing to draw")
    panels = list(rows.groupby("unit", sort=False))
    heights = [0.7 + 0.3 * len(panel) for _, panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.55, width=8.4, height_ratios=heights)
    several = verdict.rows.task.nunique() > 1
    for ax, (unit, panel) in zip(axes[:, 0], panels, strict=True):
        for y, row in enumerate(panel.itertuples()):
            low, high = (row.each_low, row.each_high) if verdict.claim.correction == "each" else (row.low, row.high)
            seeds = row.per_seed if verdict.claim.measure != "failure" else ()
            _row(ax, y, row.effect, low, high, row.threshold, row.paper, STATE_COLOURS[row.state], seeds)
        names = [f"{row.comparison} · {row.task}" if several else row.comparison for row in panel.itertuples()]
        ax.set_yticks(range(len(panel)), names)
        ax.set(ylim=(len(panel) - 0.4, -0.6), xlabel=_spelled(unit))
        _upright(ax)
    colours = "blue: the interval lies above the threshold, red: below, yellow: on both sides"
    return finish(
        fig,
        f"{verdict.claim.id}: {verdict.verdict}",
        verdict.fidelity,
        seeds_text(rows.n),
        colours,
        *_keys("threshold", [verdict] if np.isfinite(rows.paper).any() else []),
    )
