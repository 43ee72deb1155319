"""The verdicts as one HTML table: a row a claim and task, which unfolds to its footnotes, its
figure and its command.

Verdicts (`mambanorm_study.claims.Verdict`) are passed in.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from mambanorm_study.basics.text import plural
from mambanorm_study.report.page import template
from mambanorm_study.tables.run_tables import label


def verdict_html(
    verdicts: Sequence[Any],
    *,
    beside: Mapping[tuple[str, str], str] | None = None,
    caption: str = "",
    pictures: bool = True,
) -> str:
    """Return the table. beside: (claim id, task) → the text of a last column, such as the word of
    the reader's runs. pictures: draw every comparison of a claim in what its row unfolds to."""
    from mambanorm_study.figures.verdicts import (
        WORD_COLOURS,  # here, because a page without verdicts needs no matplotlib
    )

    counts = Counter(verdict.word for verdict in verdicts)
    rows = [
        dict(
            id=verdict.claim.id,
            task=verdict.task,
            word=verdict.word,
            said=verdict.said,
            claim=verdict.claim.words,
            first=[note for note in (verdict.reason, verdict.failures) if note],
            fold=_fold(verdict),
            footnotes=verdict.footnotes,
            picture=_picture(verdict) if pictures else "",
            command=command(verdict),
            effect=verdict.turns_on.amount if verdict.n else "–",
            last=beside.get((verdict.claim.id, verdict.task), "–")
            if beside
            else _number(verdict.turns_on.paper),
        )
        for verdict in verdicts
    ]
    return template(
        "verdicts.html",
        rows=rows,
        counted=", ".join(f"{counts[word]} {word}" for word in WORD_COLOURS if counts[word]),
        caption=caption,
        last="your runs" if beside else "paper",
        words=WORD_COLOURS,
    )


def _fold(verdict: Any) -> dict[str, str]:
    """Return what a row unfolds to: the first words of a paragraph → the rest of it."""
    claim, row, decided = verdict.claim, verdict.turns_on, {}
    if verdict.n:
        rates = ", ".join(f"{label(arm)} {rate:g}" for arm, rate in (row.lrs or {}).items())
        at = f"; learning rates {rates}" if rates and len(row.lrs) <= 4 else ""
        decided = {"Decided by": f"{row.comparison}; {plural(row.n, 'seed')}{at}; {verdict.basis}"}
    return decided | {
        "Measured": claim.quantity,
        "Must lie above 0": claim.asks,
        "The paper": f"“{claim.quote}” ({claim.where}). In numbers: {claim.paper}.",
    }


def _picture(verdict: Any) -> str:
    """Return the comparisons of a claim as the address of a small image; "" where one decides, and
    without a word."""
    if sum(row.decides for row in verdict.rows) < 2 or not verdict.n or verdict.word == "no word":
        return ""
    from PIL import Image

    from mambanorm_study.figures import fig_claim

    figure, drawn, small = fig_claim(verdict), BytesIO(), BytesIO()
    figure.supxlabel("")
    figure.savefig(drawn, format="png", dpi=62)
    few = (
        Image.open(drawn)
        .convert("RGB")
        .quantize(8, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    few.convert("RGB").save(small, format="webp", lossless=True, quality=75, method=4)
    return f"data:image/webp;base64,{base64.b64encode(small.getvalue()).decode()}"


def command(verdict: Any) -> str:
    """Return the command that trains what the claim lacks and prints its verdict."""
    task = f" --tasks {verdict.task}" if verdict.task else ""
    return f"mambanorm verdicts --claims {verdict.claim.id} --scale {verdict.scale}{task}"


def _number(x: float) -> str:
    return "–" if x != x else f"{x:+.3g}".replace("-", "−")
