"""The first page: what was found, the contents, the claims, and one card a notebook: its question, its picture and at
most three lines of its answer. Its text is in `templates/index.html`.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from mambanorm.basics.atomic import write_text
from mambanorm.basics.text import spell
from mambanorm.report.notebooks import NotebookOutcome
from mambanorm.report.page import OPENING, figures, key_lines, markdown, navigation, page, template


def link_pages(outcomes: Sequence[NotebookOutcome]) -> None:
    """Links each page to the one before and the one after it."""
    pages = [outcome for outcome in outcomes if outcome.html]
    links = [(outcome.title, outcome.html.name) for outcome in pages]
    for before, here, after in zip([None, *links], pages, [*links[1:], None]):
        text, to = here.html.read_text(encoding="utf-8"), navigation(before, after)
        write_text(here.html, re.sub('<nav class="pages">.*?</nav>', lambda _, to=to: to, text, flags=re.DOTALL))


def write_index(outcomes: Sequence[NotebookOutcome], out_dir: str | Path, facts: dict[str, str] | None = None) -> Path:
    """Writes the page of cards, links the notebooks' pages to each other, and returns its path. It needs no network."""
    out_dir, facts = Path(out_dir).resolve(), facts or {}
    out_dir.mkdir(parents=True, exist_ok=True)
    outcomes = sorted(outcomes, key=lambda outcome: outcome.name)
    link_pages(outcomes)
    scale = facts.get("Scale", "")
    body = template(
        "index.html",
        outcomes=outcomes,
        bad=[outcome for outcome in outcomes if not outcome.ok],
        facts=facts,
        scale=scale,
        markdown=markdown,
        figures=figures,
        lines=lambda answer: markdown("\n".join(f"- {line}" for line in key_lines(answer))),
        opening=OPENING,
        spell=spell,
    )
    whole = page(f"Normalization in Mamba: report at scale {scale}", body, template("index.css"))
    write_text(out_dir / "index.html", whole)
    write_text(out_dir / ".nojekyll", "")  # GitHub Pages then serves the folder as it is
    return out_dir / "index.html"
