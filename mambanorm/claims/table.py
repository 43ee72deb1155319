"""The verdicts as one HTML table, each row folding out to its figure, its caveats and the command that runs it again.

It needs no script and no network: a notebook shows it, and the report's index page shows it first.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence

from PIL import Image

from mambanorm.claims.training import TASKS
from mambanorm.claims.verdict import VERDICTS, Verdict
from mambanorm.sweep import plural

STYLE = """<style>
.verdicts { font: 14px/1.45 system-ui, sans-serif; max-width: 1130px; }
.verdicts details { border-bottom: 1px solid #8884; }
.verdicts summary { display: grid; grid-template-columns: 45px 112px minmax(196px, 1fr) 210px 98px; gap: 4px 12px;
  padding: 7px 4px; cursor: pointer; align-items: baseline; list-style: none; }
.verdicts summary:hover { background: #8881; }
.verdicts summary > b { font-family: ui-monospace, Menlo, Consolas, monospace; }
.verdicts .head { display: grid; grid-template-columns: 45px 112px minmax(196px, 1fr) 210px 98px; gap: 4px 12px;
  padding: 4px; border-bottom: 2px solid #8888; font-size: 12px; opacity: .75; }
.verdicts i { justify-self: start; padding: 1px 9px; border-radius: 9px; color: #fff; font-style: normal;
  font-weight: 600; font-size: 12.5px; white-space: nowrap; }
.verdicts .reproduced { background: #2f6db5; } .verdicts .contradicted { background: #b9382f; }
.verdicts .inconclusive { background: #946500; } .verdicts .sketch, .verdicts .none { background: #6d6d6d; }
.verdicts .num { font-variant-numeric: tabular-nums; }
.verdicts .fold { padding: 2px 10px 14px 3.6em; font-size: 13.5px; }
.verdicts .fold p { margin: 5px 0; } .verdicts .fold ul { margin: 5px 0; padding-left: 18px; }
.verdicts .fold img { max-width: 100%; margin: 6px 0; background: #fff; }
.verdicts .fold pre { margin: 6px 0; padding: 6px 10px; background: #8881; white-space: pre-wrap; font-size: 12.5px; }
@media (max-width: 760px) { .verdicts summary { grid-template-columns: 3.2em 1fr; } .verdicts .head { display: none; }
  .verdicts summary > :nth-child(n + 3) { grid-column: 1 / -1; } .verdicts .fold { padding-left: 6px; } }
</style>"""


def verdict_html(verdicts: Sequence[Verdict], *, beside: dict[str, str] | None = None, caption: str = "") -> str:
    """The table. `beside`: claim id → the word of a second column, such as what the reader's own runs say."""
    counts = {name: sum(v.verdict == name for v in verdicts) for name in VERDICTS}
    said = ", ".join(f"{n} {name}" for name, n in counts.items() if n)
    head = (
        "claim",
        "verdict",
        "what the paper says",
        "effect [interval], threshold",
        "your runs" if beside else "paper",
    )
    return "\n".join(
        [
            STYLE,
            '<div class="verdicts">',
            f"<p><strong>{said}.</strong> {html.escape(caption)}</p>",
            '<div class="head">' + "".join(f"<span>{text}</span>" for text in head) + "</div>",
            *(_row(v, beside) for v in verdicts),
            "</div>",
        ]
    )


def _row(verdict: Verdict, beside: dict[str, str] | None) -> str:
    claim, found = verdict.claim, bool(verdict.n_seeds)
    effect = f"{verdict.amount}, {_number(verdict.threshold)}" if found else "–"
    last = beside.get(claim.id, "–") if beside else _number(verdict.paper)
    kind = "none" if verdict.verdict == "not run" else verdict.verdict
    summary = (
        f"<b>{claim.id}</b><i class='{kind}'>{verdict.verdict}</i>"
        f"<span>{html.escape(claim.words)}{_small_print(verdict)}</span>"
        f"<span class='num'>{html.escape(effect)}</span><span>{last}</span>"
    )
    return f"<details><summary>{summary}</summary><div class='fold'>{_fold(verdict)}</div></details>"


def _small_print(verdict: Verdict) -> str:
    """What must not be missed beside the word of a verdict: each task's own, how many comparisons hold, other settings
    that say something else."""
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
    fig_claim(verdict).savefig(drawn, format="png", dpi=80)
    # 24 colours are enough for lines and words, and twenty pictures must leave a notebook small
    few = Image.open(drawn).convert("RGB").quantize(24, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    content = base64.b64encode(small.getvalue()).decode()
    return f"<img alt='the comparisons of {verdict.claim.id}' src='data:image/png;base64,{content}'>"


def command(verdict: Verdict) -> str:
    """The command that trains what the claim lacks and prints its verdict."""
    tasks = ",".join(verdict.tasks) or TASKS[verdict.claim.kind == "vision"]
    return f"mambanorm verdicts --claims {verdict.claim.id} --scale {verdict.scale} --tasks {tasks} --seeds 8"


def _number(x: float) -> str:
    return "–" if x != x else f"{x:+.3g}".replace("-", "−")
