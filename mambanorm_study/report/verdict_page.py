"""The verdicts as an HTML table with one row per claim and task.

A row has the claim in words, its verdict, a small picture of the interval and the effect. A click
on the claim unfolds the details, the figure and the command.
"""

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from mambanorm_study.basics.text import plural
from mambanorm_study.report.page import template
from mambanorm_study.tables.run_tables import label

MAX_RATES = 4  # with more arms, no learning rates are shown

# Kind of task → heading of the claims about accuracy and loss; and the heading of all other claims.
HEADINGS = {
    "sequence": "Sequences (curves)",
    "vision": "Images of letters and digits",
    "language": "Language models (Python's documentation)",
}
OF_FAILURES = "Failures, growth and learning rates (mnist1d)"
TASKS_OF_HEADINGS = ("curves", "glyphs_images", "pydoc", "mnist1d")


def verdict_html(
    verdicts: Sequence[Any],
    *,
    last_column: Mapping[tuple[str, str], str] | None = None,
    caption: str = "",
    pictures: bool = True,
) -> str:
    """Return a list of `mambanorm_study.claims.Verdict` as an HTML table.

    last_column: (claim id, task) → the text of the last column, such as the verdict on the reader's
    runs; None means that the last column has the paper's number. pictures: also draw the
    comparisons of each claim, in the part of the row that unfolds.
    """
    # imported here, because the report's other pages need no matplotlib
    from mambanorm_study.figures.verdicts import WORD_COLOURS, WORD_MEANINGS

    counts = Counter(verdict.word for verdict in verdicts)
    return template(
        "verdicts.html",
        groups=_groups(verdicts, [_row(verdict, last_column, pictures) for verdict in verdicts]),
        counted=", ".join(f"{counts[word]} {word}" for word in WORD_MEANINGS if counts[word]),
        caption=caption,
        last="your runs" if last_column else "paper",
        colours=WORD_COLOURS,
        meanings=WORD_MEANINGS,
    )


def _groups(verdicts: Sequence[Any], rows: list[dict[str, Any]]) -> dict[str, list]:
    """Return the rows under a heading for each group of claims."""
    groups: dict[str, list] = {}
    for verdict, row in zip(verdicts, rows, strict=True):
        is_tuned = verdict.claim.runs == "tuned"
        heading = HEADINGS[verdict.claim.kind] if is_tuned else OF_FAILURES
        groups.setdefault(heading, []).append(row)
    order = [*HEADINGS.values(), OF_FAILURES]
    return dict(sorted(groups.items(), key=lambda group: order.index(group[0])))


def _sketch(row: Any) -> dict[str, float] | None:
    """Return the places of effect, interval and smallest effect of interest in the small picture of
    a row, between −2.5 and 2.5; None without an interval.

    The unit of the axis is the smallest effect of interest. Since effects differ a hundredfold, the
    axis is the inverse hyperbolic sine.
    """
    if not math.isfinite(row.low):
        return None
    unit = row.smallest or max(abs(row.low), abs(row.high)) / 3
    offset = 50 if row.unit == "% of runs" else 0  # half of the runs is the mark
    places = {"low": row.low, "mean": row.effect, "high": row.high}
    if offset:
        unit = 25
    sketch = {
        name: round(min(max(0.6 * math.asinh((value - offset) / unit), -2.5), 2.5), 2)
        for name, value in places.items()
    }
    return sketch | {"mark": 0 if offset else round(0.6 * math.asinh(row.smallest / unit), 2)}


def _row(
    verdict: Any, last_column: Mapping[tuple[str, str], str] | None, pictures: bool
) -> dict[str, Any]:
    paper, task = verdict.main_row.paper, f" --tasks {verdict.task}" if verdict.task else ""
    last = "–" if math.isnan(paper) else f"{paper:+.3g}".replace("-", "−")
    if last_column:
        last = last_column.get((verdict.claim.id, verdict.task), "–")
    return dict(
        id=verdict.claim.id,
        task="" if verdict.task in TASKS_OF_HEADINGS else verdict.task,
        word=verdict.word,
        said=verdict.as_text,
        claim=verdict.claim.words,
        first=[note for note in (verdict.reason, verdict.failures) if note],
        details=_details(verdict),
        footnotes=verdict.footnotes,
        sketch=_sketch(verdict.main_row),
        picture=_picture(verdict) if pictures else "",
        command=f"mambanorm verdicts --claims {verdict.claim.id} --scale {verdict.scale}{task}",
        effect=verdict.main_row.amount if verdict.n else "–",
        last=last,
    )


def _details(verdict: Any) -> dict[str, str]:
    """Return the paragraphs of the part of a row that unfolds, as heading → text."""
    claim, row = verdict.claim, verdict.main_row
    details = {
        "Measured": claim.quantity,
        "Must lie above 0": claim.condition,
        "The paper": f"“{claim.quote}” ({claim.where}). In numbers: {claim.paper}.",
    }
    if not verdict.n:
        return details
    decided = [row.comparison, plural(row.n, "seed"), verdict.basis]
    if row.lrs and len(row.lrs) <= MAX_RATES:
        rates = ", ".join(f"{label(arm)} {lr:g}" for arm, lr in row.lrs.items())
        decided.insert(2, f"learning rates {rates}")
    return {"Decided by": "; ".join(decided), **details}


def _picture(verdict: Any) -> str:
    """Return the figure of a claim's comparisons as the data URL of a small image.

    Returns "" if a single comparison decides, and for the verdict "no word".
    """
    n_deciding = sum(row.decides for row in verdict.rows)
    if n_deciding < 2 or not verdict.n or verdict.main_row.why:
        return ""
    from PIL import Image

    from mambanorm_study.figures import fig_claim

    figure, png, webp = fig_claim(verdict), BytesIO(), BytesIO()
    figure.supxlabel("")
    figure.savefig(png, format="png", dpi=62)
    # eight colours, because a notebook with all verdicts must stay below 500 kB
    small = Image.open(png).convert("RGB")
    small = small.quantize(8, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.convert("RGB").save(webp, format="webp", lossless=True, quality=75, method=4)
    return f"data:image/webp;base64,{base64.b64encode(webp.getvalue()).decode()}"
