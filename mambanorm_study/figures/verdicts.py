"""The verdicts as forest plots: all claims on one page, and the comparisons of one claim.

Both are drawn from `mambanorm_study.claims.Verdict`; each claim keeps its unit and its marks.
WORD_COLOURS has the colours and the legend of every verdict, in figures and in the HTML table.
"""

from collections.abc import Iterable, Sequence
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mambanorm_study.figures.colours import COMBINATION, GREY, INK, NO_NORM, own_run
from mambanorm_study.figures.style import finish, new_figure, styled, upright
from mambanorm_study.tables.run_tables import seeds_text

WORD_COLOURS = {
    "supported": (COMBINATION, "the 95 % interval lies above 0"),
    "no gain": (
        "#6B4FA0",
        "it contains 0 and lies below the smallest effect of interest (one point)",
    ),
    "opposite": (NO_NORM, "it lies below 0"),
    "cannot tell": ("#946500", "anything else; about how many more seeds would tell is printed"),
    "no word": ("#3F4A54", "measured only, fewer than six pairs of runs, or accuracy near chance"),
}
"""The word of a verdict → its colour (readable on white, and under white), and what it means."""


@styled
def fig_verdicts(verdicts: Sequence) -> Figure:
    """Return a row for each claim and task: the claim, its word, and the comparison that decides it
    with its interval.

    Claims on accuracy share an axis, which ends where most rows do (`_clip`); every other claim has
    its own. A claim that was not run has an empty row. ValueError for no verdict.
    """
    if not verdicts:
        raise ValueError("there is no verdict to draw: make them with mambanorm.judge")
    verdicts = sorted(verdicts, key=lambda verdict: list(WORD_COLOURS).index(verdict.word))
    shared = {
        unit: [v for v in verdicts if v.turns_on.unit == unit]
        for unit in ("pp", "bits a character")
    }
    others = dict.fromkeys(v.claim.id for v in verdicts if v.turns_on.unit not in shared)
    panels = [
        *filter(None, shared.values()),
        *([v for v in verdicts if v.claim.id == name] for name in others),
    ]
    heights = [0.75 + 0.56 * len(panel) for panel in panels]
    fig, axes = new_figure(len(panels), 1, height=sum(heights) + 0.9, height_ratios=heights)
    clipped = [_verdict_panel(ax, panel) for ax, panel in zip(axes[:, 0], panels, strict=True)]
    run = [v for v in verdicts if v.n]
    protocol, scale, *_ = verdicts[0].basis.split(", ")
    basis = protocol, scale, seeds_text([v.n for v in run]) if run else "no runs"
    dots = "large dot and line: mean difference and 95 % interval; small dots: seeds"
    keys = _keys([v for v in verdicts if np.isfinite(v.turns_on.paper)])
    stale = (
        "* not fresh: earlier versions of the rule were read on these runs"
        if any(map(_stale, run))
        else ""
    )
    cut = "an arrow points to an effect beyond the axis" if any(clipped) else ""
    words = legend([v.word for v in verdicts])
    return finish(fig, "Every claim, every verdict", *basis, dots, *keys, stale, cut, *words)


def _stale(verdict) -> bool:
    return verdict.n > 0 and not verdict.turns_on.fresh


def legend(shown: Iterable[str]) -> list[str]:
    """Return what the words mean that are shown."""
    return [
        f"{word}: {meaning}" for word, (_, meaning) in WORD_COLOURS.items() if word in set(shown)
    ]


def _keys(with_paper: Sequence) -> tuple[str, str]:
    """Return what the ticks and the hollow diamonds are ("" without a diamond)."""
    places = ", ".join(dict.fromkeys(v.claim.printed_on for v in with_paper))
    diamond = f"hollow diamond: the paper's own number, on {places}" if places else ""
    return "grey tick: the smallest effect of interest", diamond


def _verdict_panel(ax: Axes, verdicts: Sequence) -> bool:
    for y, verdict in enumerate(verdicts):
        colour, row = WORD_COLOURS[verdict.word][0], verdict.turns_on
        if verdict.n:
            seeds = row.per_seed if row.unit not in NOT_BY_SEED else ()
            estimate(
                ax,
                y,
                row.effect,
                row.low,
                row.high,
                colour,
                seeds,
                smallest=row.smallest,
                paper=row.paper,
            )
        _said(ax, y, verdict.said + " *" * _stale(verdict), _note(verdict), colour)
    _name_rows(
        ax,
        [fill(f"{v.claim.id}  {v.claim.words}", 52) for v in verdicts],
        verdicts[0].turns_on.unit,
    )
    return _clip(ax, verdicts)


def _note(verdict) -> str:
    """Return what is printed below the word: the effect, the paper's, what is compared, and what is
    lacking."""
    if not verdict.n:
        return verdict.reason or "not run"
    row = verdict.turns_on
    paper = f"; paper {row.paper:+.1f}".replace("-", "−") if np.isfinite(row.paper) else ""
    reason = fill(verdict.reason, 60, max_lines=1, placeholder=" …") if verdict.reason else ""
    return "\n".join(
        filter(None, [f"{row.amount}{paper}", f"{row.comparison}, {verdict.task}", reason])
    )


CLIP = 2.5
"""The axis ends at this many times the median reach of its rows if one of them reaches much
further."""


def _clip(ax: Axes, verdicts: Sequence) -> bool:
    """End the axis where most rows end; return whether a row goes on."""
    rows = [v.turns_on for v in verdicts if v.n]
    ends = np.array([(row.effect, row.low, row.high, row.paper) for row in rows]).reshape(-1, 4)
    reach = np.nanmax(np.abs(ends), axis=1, initial=0.0)
    limit = CLIP * float(np.median(reach)) if len(reach) > 2 else np.inf
    if far := bool((reach > 1.5 * limit).any()):
        low, high = ax.get_xlim()
        low, high = max(low, -1.15 * limit), min(high, limit)
        ax.set_xlim(low, high)
        for y, verdict in enumerate(verdicts):
            if verdict.n and not low < verdict.turns_on.effect < high:
                right = verdict.turns_on.effect > high
                ax.plot(
                    0.97 * (high if right else low),
                    y,
                    ">" if right else "<",
                    color=WORD_COLOURS[verdict.word][0],
                )
    return far


def _name_rows(ax: Axes, names: Sequence[str], unit: str) -> None:
    ax.set_yticks(range(len(names)), names)
    ax.set(ylim=(len(names) - 0.4, -0.6), xlabel=spelled(unit))
    upright(ax, color=INK, linewidth=0.7, zorder=0)
    ax.locator_params(axis="x", nbins=5)


NOT_BY_SEED = ("% of runs",)
"""Units of numbers that a single seed does not have."""


def _said(ax: Axes, y: float, word: str, note: str, colour: str) -> None:
    """Write the word at the right of a row, and a note below it in small type."""
    place = dict(transform=ax.get_yaxis_transform())
    ax.text(
        1.01,
        y - 0.06 * bool(note),
        word,
        color=colour,
        weight="bold",
        va="bottom" if note else "center",
        **place,
    )
    if note:
        ax.text(1.01, y + 0.02, note, color=INK, fontsize=7, va="top", linespacing=1.05, **place)


def estimate(
    ax: Axes,
    y,
    mean,
    low,
    high,
    colour: str,
    seeds,
    own=(),
    *,
    smallest=np.nan,
    paper=np.nan,
    below=0.22,
    **dot,
):
    """Draw a row of a forest plot: the interval and the mean, below them a small dot a seed and a
    diamond a run of the reader's own; a tick at the smallest effect of interest, a hollow diamond
    at the paper's number."""
    ax.plot([smallest] * 2, [y - 0.36, y + 0.36], color=GREY, linewidth=1.2, zorder=1)
    if np.isfinite(low):
        ax.hlines(y, low, high, color=colour, linewidth=2.2)
    ax.plot(seeds, np.full(len(seeds), y + below), "o", markersize=2.5, color=colour, alpha=0.55)
    look = dict(marker="o", markersize=6.5, color=colour, markeredgecolor="white", zorder=3) | dot
    ax.plot(mean, y, **look)
    ax.plot(own, np.full(len(own), y + below), **own_run(size=5))
    if np.isfinite(paper):
        ax.plot(paper, y, "D", markersize=6, markerfacecolor="none", markeredgecolor=INK, zorder=4)


def spelled(unit: str) -> str:
    return {
        "pp": "percentage points",
        "AIC": "AIC of the best other law − that of the exponential",
    }.get(unit, unit)


@styled
def fig_claim(verdict) -> Figure:
    """Return every comparison of one claim: mean, 95 % interval, smallest effect, seeds, the
    paper's number.

    Comparisons in different units, as for growth (H10), get a panel for each unit. ValueError for a
    claim that was not run.
    """
    rows = [row for row in verdict.rows if row.n]
    if not rows:
        raise ValueError(f"claim {verdict.claim.id} was not run: there is nothing to draw")
    panels = {
        unit: [row for row in rows if row.unit == unit]
        for unit in dict.fromkeys(row.unit for row in rows)
    }
    heights = [0.7 + 0.38 * len(panel) for panel in panels.values()]
    fig, axes = new_figure(
        len(panels), 1, height=sum(heights) + 0.75, width=8.4, height_ratios=heights
    )
    for ax, (unit, panel) in zip(axes[:, 0], panels.items(), strict=True):
        for y, row in enumerate(panel):
            colour = WORD_COLOURS[row.word][0]
            seeds = row.per_seed if unit not in NOT_BY_SEED else ()
            estimate(
                ax,
                y,
                row.effect,
                row.low,
                row.high,
                colour,
                seeds,
                smallest=row.smallest,
                paper=row.paper,
            )
            tell = row.word == "cannot tell" and row.seeds_to_tell
            _said(
                ax,
                y,
                row.said,
                f"about {row.seeds_to_tell} new seeds would tell" if tell else "",
                colour,
            )
        names = [row.comparison + ("" if row.decides else "  (beside)") for row in panel]
        _name_rows(ax, names, unit)
    basis = verdict.basis, seeds_text([row.n for row in rows]), "line: 95 % interval"
    keys = _keys([verdict] if any(np.isfinite(row.paper) for row in rows) else [])
    title = f"{verdict.claim.id} on {verdict.task}: {verdict.said}"
    return finish(fig, title, *basis, *keys, *legend([row.word for row in rows]))
