"""The verdicts as one HTML table, each claim with a line that folds out to its figure, its caveats and its command.

It needs no script and no network, and is still a table where its style is removed (GitHub, a notebook that is not
trusted). A notebook shows it, and the report's index page shows it first.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from PIL import Image

from mambanorm.claims.verdict import VERDICTS, Verdict
from mambanorm.claims.verdict_runs import VERDICT_TASKS
from mambanorm.text import plural

STYLE = """<style>
.verdicts { font: 14px/1.45 system-ui, sans-serif; max-width: 1130px; color: inherit; }
.verdicts table { width: 100%; margin: 0; border-collapse: collapse; font: inherit; table-layout: auto; }
.verdicts :is(th, td) { box-sizing: border-box; padding: 7px 12px 0 4px; border: 0; text-align: left;
  vertical-align: baseline; white-space: normal; background: none; }
.verdicts thead th { padding-bottom: 4px; font-size: 12px; font-weight: 400; opacity: .75; }
.verdicts thead th:first-child { width: 60px; } .verdicts thead th:nth-child(2) { width: 128px; }
.verdicts tbody { border-top: 1px solid #8884; background: none; }
.verdicts tbody:hover { background: #8881; }
.verdicts tbody th { font-family: ui-monospace, Menlo, Consolas, monospace; }
.verdicts i { padding: 1px 9px; border-radius: 9px; color: #fff; font-style: normal; font-weight: 600;
  font-size: 12.5px; white-space: nowrap; }
.verdicts .reproduced { background: #2f6db5; } .verdicts .contradicted { background: #b9382f; }
.verdicts .inconclusive { background: #946500; } .verdicts .sketch, .verdicts .none { background: #6d6d6d; }
.verdicts .num { font-variant-numeric: tabular-nums; }
.verdicts .fold { padding: 2px 10px 7px 192px; font-size: 13px; }
.verdicts summary { cursor: pointer; opacity: .8; }
.verdicts .fold p { margin: 5px 0; } .verdicts .fold ul { margin: 5px 0; padding-left: 18px; }
.verdicts .fold img { max-width: 100%; margin: 6px 0; background: #fff; }
.verdicts .fold pre { margin: 6px 0; padding: 6px 10px; background: #8881; white-space: pre-wrap; font-size: 12.5px; }
@media (max-width: 760px) { .verdicts :is(table, tbody, tr, th, td) { display: block; }
  .verdicts thead { display: none; } .verdicts :is(th, td, .fold) { padding: 2px 4px; }
  .verdicts td[data-column]::before { content: attr(data-column) ": "; opacity: .75; }
  .verdicts tbody > tr:first-child > :is(th, .verdict) { display: inline-block; padding-top: 8px; } }
</style>"""


def verdict_html(verdicts: Sequence[Verdict], *, beside: dict[str, str] | None = None, caption: str = "") -> str:
    """The table. `beside`: claim id → the word of a last column, such as what the reader's own runs say."""
    counts = {name: sum(v.verdict == name for v in verdicts) for name in VERDICTS}
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    names = ["claim", "verdict", "what is tested", "effect [interval], threshold", "your runs" if beside else "paper"]
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    rows = "\n".join(_rows(verdict, beside, len(names)) for verdict in verdicts)
    return (
        f'{STYLE}\n<div class="verdicts">\n<p><strong>{said}.</strong> {html.escape(caption)}</p>\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n{rows}\n</table>\n</div>"
    )


def _rows(verdict: Verdict, beside: dict[str, str] | None, columns: int) -> str:
    """Two rows: the claim, and below it what the verdict rests on, folded."""
    claim, found = verdict.claim, bool(verdict.n_seeds)
    effect = f"{verdict.amount}, {_number(verdict.threshold)}" if found else "–"
    last = beside.get(claim.id, "–") if beside else _number(verdict.paper)
    kind = "none" if verdict.verdict == "not run" else verdict.verdict
    row = (
        f'<th scope="row">{claim.id}</th><td class="verdict"><i class="{kind}">{verdict.verdict}</i></td>'
        f"<td>{html.escape(claim.words)}{_small_print(verdict)}</td>"
        f'<td class="num" data-column="effect">{html.escape(effect)}</td>'
        f'<td class="num" data-column="{"your runs" if beside else "paper"}">{html.escape(last)}</td>'
    )
    label = f"{verdict.decided_by}, {plural(verdict.n_seeds, 'seed')}" if found else "what it would take"
    fold = f"<details><summary>{html.escape(label)}</summary>{_fold(verdict)}</details>"
    return f'<tbody>\n<tr>{row}</tr>\n<tr><td class="fold" colspan="{columns}">{fold}</td></tr>\n</tbody>'


def _small_print(verdict: Verdict) -> str:
    """What must not be missed beside the word of a verdict: each task's own, how many comparisons hold, models
    that have learned nothing, other settings that say something else."""
    lines = []
    if len(verdict.by_task) > 1:
        lines.append(", ".join(f"{task}: {said}" for task, said in verdict.by_task.items()))
    elif verdict.n_seeds and len(verdict.rows) > 1 and not verdict.claim.main:
        lines.append(f"{(verdict.rows.state == 'holds').sum()} of {len(verdict.rows)} comparisons hold")
    lines += [f"{name}: {other.brief}" for name, other in verdict.at_odds.items()]
    return "".join(f"<br><small>{html.escape(line)}</small>" for line in lines)


def _fold(verdict: Verdict) -> str:
    claim = verdict.claim
    lines = {
        "Decided by": f"{verdict.decided_by}; {plural(verdict.n_seeds, 'seed')}; {verdict.fidelity}",
        "Measured": claim.quantity,
        "Test": f"{claim.test}. Holds if {claim.direction}, by more than {_number(verdict.threshold)} {verdict.unit}.",
        "The paper": f"{claim.where}: {claim.paper}.",
    }
    if not verdict.n_seeds:
        del lines["Decided by"]
    parts = [f"<p><strong>{name}.</strong> {html.escape(text)}</p>" for name, text in lines.items()]
    parts.append("<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in verdict.caveats) + "</ul>")
    if verdict.n_seeds:
        parts.append(_picture(verdict))
    return "".join(parts) + f"<pre>{html.escape(command(verdict))}</pre>"


def _picture(verdict: Verdict) -> str:
    from mambanorm.figures import fig_claim

    drawn, small = io.BytesIO(), io.BytesIO()
    fig_claim(verdict).savefig(drawn, format="png", dpi=72)
    # 24 colours are enough for lines and words, and twenty pictures must leave a notebook small
    few = Image.open(drawn).convert("RGB").quantize(24, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    content = base64.b64encode(small.getvalue()).decode()
    return f"<img alt='the comparisons of {verdict.claim.id}' src='data:image/png;base64,{content}'>"


def command(verdict: Verdict) -> str:
    """The command that trains what the claim lacks and prints its verdict."""
    tasks = ",".join(verdict.tasks) or VERDICT_TASKS[verdict.claim.kind == "vision"]
    return f"mambanorm verdicts --claims {verdict.claim.id} --scale {verdict.scale} --tasks {tasks} --seeds 8"


def _number(x: float) -> str:
    return "–" if x != x else f"{x:+.3g}".replace("-", "−")
