"""The verdicts as an HTML table with one row per claim and task.

A click on a row unfolds the details, the figure and the command of the row's claim.
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
        rows=[_row(verdict, last_column, pictures) for verdict in verdicts],
        counted=", ".join(f"{counts[word]} {word}" for word in WORD_MEANINGS if counts[word]),
        caption=caption,
        last="your runs" if last_column else "paper",
        colours=WORD_COLOURS,
        meanings=WORD_MEANINGS,
    )


def _row(
    verdict: Any, last_column: Mapping[tuple[str, str], str] | None, pictures: bool
) -> dict[str, Any]:
    paper, task = verdict.main_row.paper, f" --tasks {verdict.task}" if verdict.task else ""
    last = "–" if math.isnan(paper) else f"{paper:+.3g}".replace("-", "−")
    if last_column:
        last = last_column.get((verdict.claim.id, verdict.task), "–")
    return dict(
        id=verdict.claim.id,
        task=verdict.task,
        word=verdict.word,
        said=verdict.as_text,
        claim=verdict.claim.words,
        first=[note for note in (verdict.reason, verdict.failures) if note],
        details=_details(verdict),
        footnotes=verdict.footnotes,
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
