"""The verdicts as forest plots: all claims on one page, and the comparisons of one claim.

Both are made from `mambanorm.claims.Verdict`; each claim keeps its own unit and threshold. WORDS and STATES are the
colours and the legend of every verdict, in figures and in the HTML table.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm.figures.colours import COMBINATION, GREY, INK, NO_NORM, own_run
from mambanorm.figures.style import finish, new_figure, styled, upright
from mambanorm.study.tables import seeds_text

WORDS = {
    "reproduced": (COMBINATION, "enough of its comparisons lie above their threshold"),
    "contradicted": (NO_NORM, "so many lie below it that the claim cannot hold"),
    "≈ threshold": ("#6B4FA0", "told to lie near the threshold: hardly an effect"),
    "open": ("#946500", "we cannot tell yet: more seeds could, and about how many is said"),
    "not judged": ("#3F4A54", "such runs cannot tell, for the reason given"),
}
"""The word of a verdict → its colour (readable on white, and under white), and what it means."""

STATES = {
    "holds": (COMBINATION, "wholly above the threshold"),
    "fails": (NO_NORM, "wholly below"),
    "near": ("#6B4FA0", "on both sides, and near it"),
    "open": ("#946500", "on both sides: more seeds could tell"),
    "not judged": ("#3F4A54", "cannot tell, for the reason given"),
}
"""The state of a comparison → its colour, and where its interval lies."""

ENDS = "95 %, wider where a claim asks several comparisons"


@styled
def fig_verdicts(verdicts: Sequence) -> Figure:
    """Each claim in words, its verdict, and the comparison that decides it, with its interval; accuracy claims share an
    axis, which ends where most rows do (`_clip`), every other claim has its own. A claim may have a row for each task;
    one that was not run has an empty row. ValueError for no verdict."""
    if not verdicts:
        raise ValueError("there is no verdict to draw: make them with mambanorm.judge")
    verdicts = sorted(verdicts, key=lambda verdict: list(WORDS).index(verdict.verdict))
    shared: dict[str, list] = {unit: [v for v in verdicts if v.unit == unit] for unit in ("pp", "bits a character")}
    others = dict.fromkeys(v.claim.id for v in verdicts if v.unit not in shared)
    panels = [*filter(None, shared.values()), *([v for v in verdicts if v.claim.id == name] for name in others)]
    heights = [0.75 + 0.62 * len(panel) for panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.9, height_ratios=heights)
    clipped = [_verdict_panel(ax, panel) for ax, panel in zip(axes[:, 0], panels, strict=True)]
    told = [v for v in verdicts if v.n_seeds]
    seeds = seeds_text([v.n_seeds for v in told]) if told else "no runs"
    where = [", ".join(dict.fromkeys(str(getattr(v, name)) for v in verdicts)) for name in ("protocol", "scale")]
    dots = f"large dot and line: the effect that decides and its interval, {ENDS}; small dots: seeds"
    keys = _keys("the claim's threshold", [v for v in verdicts if np.isfinite(v.paper)])
    basis = f"protocol {where[0]}", f"{where[1]} scale", seeds
    cut = "a line cut at the edge goes on: see its numbers" if any(clipped) else ""
    words = legend(WORDS, [v.verdict for v in verdicts])
    return finish(fig, "Every claim, every verdict", *basis, dots, *keys, cut, *words)


def legend(looks: Mapping[str, tuple[str, str]], shown: Iterable[str]) -> list[str]:
    """What the words mean that stand beside the rows, each in its colour."""
    return [f"{word}: {meaning}" for word, (_, meaning) in looks.items() if word in set(shown)]


def _keys(threshold: str, with_paper: Sequence) -> tuple[str, str]:
    """What the tick is, and on which of the paper's data the drawn diamonds were measured ("" without one)."""
    places = ", ".join(dict.fromkeys(v.claim.printed_on for v in with_paper))
    return f"grey tick: {threshold}", f"hollow diamond: the paper's own number, on {places}" if places else ""


def _verdict_panel(ax: Axes, verdicts: Sequence) -> bool:
    for y, verdict in enumerate(verdicts):
        colour = WORDS[verdict.verdict][0]
        if verdict.n_seeds:
            seeds = verdict.per_seed if verdict.unit not in NOT_BY_SEED else ()
            beside = dict(threshold=verdict.threshold, paper=verdict.paper)
            estimate(ax, y, verdict.effect, *verdict.ci, colour, seeds, **beside)
        _said(ax, y, verdict.verdict, _note(verdict), colour)
    _name_rows(ax, [fill(f"{v.claim.id}  {v.claim.words}", 52) for v in verdicts], verdicts[0].unit)
    return _clip(ax, verdicts)


def _note(verdict) -> str:
    """What stands below the word: the effect, the paper's own, what is compared, and what is lacking."""
    if not verdict.n_seeds:
        return _headline(verdict.reason)
    paper = f"; paper {verdict.paper:+.1f}".replace("-", "−") if np.isfinite(verdict.paper) else ""
    task = f", {verdict.tasks[0]}" if len(verdict.tasks) == 1 else ""
    lacks = filter(None, (verdict.said[len(verdict.verdict) + 2 :], _headline(verdict.reason)))
    return "\n".join([f"{verdict.amount}{paper}", f"{verdict.decided_by}{task}", *lacks])


CLIP = 2.5
"""The axis ends at so many times the median reach of its rows, where one of them reaches much further."""


def _clip(ax: Axes, verdicts: Sequence) -> bool:
    """Ends the axis where most rows end; whether one goes on."""
    ends = np.array([(v.effect, *v.ci, v.paper) for v in verdicts if v.n_seeds]).reshape(-1, 4)
    reach = np.nanmax(np.abs(ends), axis=1, initial=0.0)
    limit = CLIP * float(np.median(reach)) if len(reach) > 2 else np.inf
    if far := bool((reach > 1.5 * limit).any()):
        low, high = ax.get_xlim()
        ax.set_xlim(max(low, -1.15 * limit), min(high, limit))
    return far


def _name_rows(ax: Axes, names: Sequence[str], unit: str) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel=spelled(unit))
    upright(ax, color="#CFCFCF", zorder=0)
    ax.locator_params(axis="x", nbins=5)


NOT_BY_SEED = ("% of runs",)
"""Units of numbers that a seed alone does not have."""


def _said(ax: Axes, y: float, word: str, note: str, colour: str) -> None:
    """The word at the right of a row, and below it in small what to know of it."""
    place = dict(transform=ax.get_yaxis_transform())
    ax.text(1.01, y - 0.06 * bool(note), word, color=colour, weight="bold", va="bottom" if note else "center", **place)
    if note:
        ax.text(1.01, y + 0.02, note, color=INK, fontsize=7, va="top", linespacing=1.05, **place)


def _headline(why: str) -> str:
    """`at chance: neither side clearly beats guessing` → `at chance`"""
    return re.split(r"[:,(]", why)[0].strip()


def estimate(
    ax: Axes, y, mean, low, high, colour: str, seeds, own=(), *, threshold=np.nan, paper=np.nan, below=0.22, **dot
):
    """A row of a forest plot: the interval and the mean, below them a small dot a seed and a diamond a run of the
    reader's own; a tick at the threshold, a hollow diamond at the paper's number."""
    ax.plot([threshold] * 2, [y - 0.36, y + 0.36], color=GREY, linewidth=1.2, zorder=1)
    if np.isfinite(low):
        ax.hlines(y, low, high, color=colour, linewidth=2.2)
    ax.plot(seeds, np.full(len(seeds), y + below), "o", markersize=2.5, color=colour, alpha=0.55)
    look = dict(marker="o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3) | dot
    ax.plot(mean, y, **look)
    ax.plot(own, np.full(len(own), y + below), **own_run(size=5))
    if np.isfinite(paper):
        ax.plot(paper, y, "D", markersize=6, markerfacecolor="none", markeredgecolor=INK, zorder=4)


def spelled(unit: str) -> str:
    return {"pp": "percentage points", "AIC": "AIC of the best other law − that of the exponential"}.get(unit, unit)


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
    heights = [0.7 + 0.38 * len(panel) for _, panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.75, width=8.4, height_ratios=heights)
    several = verdict.rows.task.nunique() > 1
    for ax, (unit, panel) in zip(axes[:, 0], panels, strict=True):
        for y, row in enumerate(panel.itertuples()):
            colour = STATES[row.state][0]
            seeds = row.per_seed if unit not in NOT_BY_SEED else ()
            beside = dict(threshold=row.threshold, paper=row.paper)
            estimate(ax, y, row.effect, row.low, row.high, colour, seeds, **beside)
            _said(ax, y, row.state, note_of(row), colour)
        _name_rows(ax, [row_name(row, several) for row in panel.itertuples()], unit)
    basis = verdict.fidelity, seeds_text(rows.n), f"line: interval, {ENDS}"
    keys = _keys("threshold", [verdict] if np.isfinite(rows.paper).any() else [])
    return finish(fig, f"{verdict.claim.id}: {verdict.verdict}", *basis, *keys, *legend(STATES, rows.state))


def note_of(row) -> str:
    """What to know of a comparison that does not tell: how many seeds would, or why these runs cannot; else ""."""
    if row.state not in ("open", "not judged"):
        return ""
    return f"about {row.seeds_to_tell:.0f} new seeds would tell" if pd.notna(row.seeds_to_tell) else _headline(row.why)


def row_name(row, several: bool) -> str:
    """Its name, its task where there are several, and whether it decides."""
    return row.comparison + f" · {row.task}" * several + ("" if row.decides else "  (beside)")
