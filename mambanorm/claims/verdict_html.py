"""The verdicts as one HTML table, one line a claim, which folds out to what stands beside its word, its figure, its
caveats and its command.

It needs no script and no network, and is still a table where its style is removed (GitHub, a notebook that is not
trusted). A notebook shows it, and the report's index page shows it first.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from mambanorm.basics.text import plural
from mambanorm.claims.evidence import tasks_of
from mambanorm.claims.needed import VERDICT_TASKS
from mambanorm.claims.protocol import TRAINED_TASKS, planned_seeds
from mambanorm.claims.rule import VERDICTS, levels
from mambanorm.claims.verdict import Verdict
from mambanorm.runs.presets import LANGUAGE_TASKS

STYLE = """<style>
.verdicts { font: 14px/1.45 system-ui, sans-serif; max-width: 1130px; color: inherit; }
.verdicts table { width: 100%; margin: 0; border-collapse: collapse; font: inherit; table-layout: fixed; }
.verdicts :is(th, td) { box-sizing: border-box; padding: 5px 12px 5px 4px; border: 0; text-align: left !important;
  vertical-align: baseline !important; white-space: normal; background: none; } /* Jupyter's own rules are narrower */
.verdicts thead th { padding-bottom: 4px; font-size: 12px; font-weight: 400; opacity: .75; }
.verdicts thead :first-child { width: 50px; } .verdicts thead :nth-child(2) { width: 122px; }
.verdicts thead :nth-child(4) { width: 270px; } .verdicts thead :nth-child(5) { width: 76px; }
.verdicts tbody tr { border-top: 1px solid #8884; background: none; }
.verdicts tbody tr:hover { background: #8881; }
.verdicts tbody th { font-family: ui-monospace, Menlo, Consolas, monospace; }
.verdicts i { padding: 1px 9px; border-radius: 9px; color: #fff; font-style: normal; font-weight: 600;
  font-size: 12.5px; white-space: nowrap; }
.verdicts .key { font-size: 12.5px; line-height: 2; opacity: .9; } .verdicts .key span { margin-right: 14px; }
.verdicts .num { font-size: 13px; font-variant-numeric: tabular-nums; }
.verdicts details { font-size: 13px; }
.verdicts summary { cursor: pointer; color: inherit; font-size: 13.5px; }
.verdicts tr:not(:has([open])) :is(td summary, .num) { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.verdicts > details { margin-top: 12px; }
.verdicts details :is(p, ul) { margin: 5px 0; } .verdicts details ul { padding-left: 18px; }
.verdicts details img { max-width: 100%; margin: 6px 0; background: #fff; }
.verdicts details pre { margin: 6px 0; padding: 6px 10px; background: #8881; white-space: pre-wrap; font-size: 12.5px; }
@media (max-width: 760px) { .verdicts :is(table, tbody, tr, th, td) { display: block; }
  .verdicts thead { display: none; } .verdicts :is(th, td) { padding: 2px 4px; }
  .verdicts td[data-column]::before { content: attr(data-column) ": "; opacity: .75; }
  .verdicts tr:not(:has([open])) :is(td summary, .num) { white-space: normal; }
  .verdicts tbody :is(th, .verdict) { display: inline-block; padding-top: 8px; }
  .verdicts tr:not(:has([open])) .num + .num { display: none; } }
</style>"""


def verdict_html(
    verdicts: Sequence[Verdict],
    *,
    beside: Mapping[str, str] | None = None,
    caption: str = "",
    pictures: bool = True,
) -> str:
    """The table. `beside`: claim id → the word of a last column, such as what the reader's own runs say. In the fold,
    where `pictures`, every comparison drawn."""
    names = ["claim", "verdict", "what is tested", "effect [bounds]", "your runs" if beside else "paper"]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = "\n".join(_row(verdict, beside, pictures) for verdict in verdicts)
    return (
        f'{_style()}\n<div class="verdicts">\n<p><strong>{_said(verdicts)}</strong> {html.escape(caption)}</p>\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n{_key()}\n</div>"
    )


def _said(verdicts: Sequence[Verdict]) -> str:
    """`3 reproduced, 2 contradicted.`"""
    words = Counter(verdict.verdict for verdict in verdicts)
    return ", ".join(f"{words[name]} {name}" for name in VERDICTS if words[name]) + "."


def _style() -> str:
    """The words have the colours of the figures."""
    from mambanorm.figures.verdicts import WORDS

    colours = "\n".join(f".verdicts .{_class(word)} {{ background: {colour}; }}" for word, (colour, _) in WORDS.items())
    return STYLE.replace("</style>", f"{colours}\n</style>")


def _key() -> str:
    """What every word means, and what the folded figures show."""
    from mambanorm.figures.verdicts import ENDS, STATES, WORDS

    words = " ".join(f"<span>{_pill(word)} {meaning}</span>" for word, (_, meaning) in WORDS.items())
    states = "; ".join(f"<b>{state}</b>: {meaning}" for state, (_, meaning) in STATES.items())
    marks = "Grey tick: the threshold. Small dots: seeds. Hollow diamond: the paper's number."
    figures = f"In the figures, a comparison {states}. Line: the interval, {ENDS}. {marks}"
    said = f'<p class="key">{words}</p>\n<p class="key">{figures}</p>'
    return f"<details><summary>What the words and the marks of the figures mean</summary>\n{said}\n</details>"


def _class(word: str) -> str:
    """`≈ threshold` → `threshold`, `not run` → `not-run`: the word as a class of the style."""
    return re.sub(r"\W+", "-", word).strip("-")


def _pill(word: str) -> str:
    return f'<i class="{_class(word)}">{word}</i>'


def _row(verdict: Verdict, beside: Mapping[str, str] | None, pictures: bool) -> str:
    """The claim in one line, and what the verdict rests on, folded."""
    claim, found = verdict.claim, bool(verdict.n_seeds)
    fold = f"<summary>{html.escape(claim.words)}</summary>{_small_print(verdict)}{_fold(verdict, pictures)}"
    effect = verdict.amount if found else "–"
    last = beside.get(claim.id, "–") if beside else _number(verdict.paper)
    return (
        f'<tr><th scope="row">{claim.id}</th><td class="verdict">{_pill(verdict.verdict)}</td>'
        f"<td><details>{fold}</details></td>"
        f'<td class="num" data-column="effect">{html.escape(effect)}</td>'
        f'<td class="num" data-column="{"your runs" if beside else "paper"}">{html.escape(last)}</td></tr>'
    )


def _small_print(verdict: Verdict) -> str:
    """What must not be missed beside the word of a verdict: why it is not told, each task's own, how often runs
    diverged, how many comparisons hold, and other settings that say something else."""
    each = ", ".join(f"{task}: {said}" for task, said in verdict.by_task.items())
    lines = [verdict.reason, each if len(verdict.by_task) > 1 else "", verdict.said if "but" in verdict.said else ""]
    lines += [verdict.failed, verdict.stability, verdict.count, verdict.uneven]
    lines += [f"{name}: {other.brief}" for name, other in verdict.at_odds.items()]
    return "".join(f"<p>{html.escape(line)}</p>" for line in dict.fromkeys(filter(None, lines)))


def _fold(verdict: Verdict, pictures: bool) -> str:
    claim = verdict.claim
    lines = {
        "Decided by": f"{verdict.decided_by}; {plural(verdict.n_seeds, 'seed')}; {verdict.fidelity}",
        "Measured": claim.quantity,
        "Holds if": f"{claim.direction}. Threshold: {_number(verdict.threshold)} {verdict.unit}.{_levels(verdict)}",
        "The paper": f"“{claim.quote}” ({claim.where}). In numbers: {claim.paper}.",
    }
    if not verdict.n_seeds:
        del lines["Decided by"]
    elif verdict.plain != verdict.ci:
        low, high = (_number(end) for end in verdict.plain)
        lines["Decided by"] += (
            f". The 95 % interval of its mean is [{low}, {high}]; the bounds have levels of their own"
        )
    if errors := _errors(verdict):
        lines["Errors"] = errors
    parts = [f"<p><strong>{name}.</strong> {html.escape(text)}</p>" for name, text in lines.items()]
    parts.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in verdict.caveats) + "</ul>")
    if verdict.n_seeds and pictures:
        parts.append(_picture(verdict))
    return "".join(parts) + f"<pre>{html.escape(command(verdict))}</pre>"


def _errors(verdict: Verdict) -> str:
    """How many test rows the two sides of the decision get wrong; "" for what is no accuracy."""
    one, other = (verdict.turns_on or {}).get("errors", (np.nan, np.nan))
    if not (np.isfinite(one) and other > 0):
        return ""
    return f"{one:.1f} % of the test rows against {other:.1f} %, {one / other:.2f} times as many (means of the seeds)."


def _levels(verdict: Verdict) -> str:
    """How many comparisons it takes, and the levels of the ends of their intervals; "" for one that was not run."""
    m = max((sum(row["decides"] for row in verdict.records if row["task"] == t) for t in verdict.tasks), default=0)
    if not m:
        return ""
    at_least = verdict.claim.at_least
    needed = f"{at_least or m} of {m} comparisons have to hold. " if m > 1 else ""
    low, high = (f"{100 * level:.3g} %" for level in levels(m, at_least, len(verdict.tasks)))
    return f" {needed}One-sided levels of the bounds: lower {low}, upper {high}."


def _picture(verdict: Verdict) -> str:
    """The claim's comparisons without their caption: what the marks of all pictures mean is said once, below the table.
    As the numbers stand in the fold, the alternative text is short: twenty pictures must leave a notebook small. "" for
    a single comparison, which stands in the picture of all claims."""
    if len(verdict.records) < 2:
        return ""
    from mambanorm.figures import fig_claim

    figure, drawn, small = fig_claim(verdict), io.BytesIO(), io.BytesIO()
    figure.supxlabel("")
    figure.savefig(drawn, format="png", dpi=62)
    few = Image.open(drawn).convert("RGB").quantize(8, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.convert("RGB").save(small, format="webp", lossless=True, quality=75, method=4)  # the slowest way saves 0.5 %
    content, what = base64.b64encode(small.getvalue()).decode(), f"{verdict.claim.id}: {verdict.verdict}"
    return f'<img alt="{what}, every comparison with its interval" src="data:image/webp;base64,{content}">'


def command(verdict: Verdict) -> str:
    """The command that trains what the claim lacks and prints its verdict."""
    known = TRAINED_TASKS if verdict.scale == "evening" else (*VERDICT_TASKS, *LANGUAGE_TASKS)
    tasks = ",".join(verdict.tasks or tasks_of(verdict.claim, known, verdict.scale))
    asked = f"--claims {verdict.claim.id} --scale {verdict.scale} --tasks {tasks}"
    seeds = planned_seeds(verdict.claim.id, verdict.scale)
    return f"mambanorm verdicts {asked} --seeds {f'{seeds[0]}-{seeds[-1]}' if seeds[0] else len(seeds)}"


def _number(x: float) -> str:
    return "–" if x != x else f"{x:+.3g}".replace("-", "−")
