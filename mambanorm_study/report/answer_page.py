"""The HTML page of the answer to a question (claims/question.py)."""

import base64
import html
from datetime import datetime
from pathlib import Path
from typing import Any

from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.figures.verdicts import fig_verdicts
from mambanorm_study.report.page import enlarge_on_click, markdown, page, template
from mambanorm_study.runs import machine
from mambanorm_study.tables.run_tables import markdown_table


def answer_html(answer: Any) -> str:
    """Return the page of an `Answer`: its figure, the predictions and verdicts, and the cells."""
    question = answer.question
    figure = fig_verdicts(answer.verdicts, "Each prediction, with its verdict", in_order=True)
    picture = base64.b64encode(figure._repr_png_()).decode()
    asked = ", ".join(question.asked)
    text = "\n\n".join(
        [
            f"**{answer.summary}**",
            f"Asked at {asked}." if asked else "",
            markdown_table(answer.table.set_index("statement")),
            "## The cells",
            markdown_table(answer.cells.set_index("name")),
            "## How it was judged",
            f"By the rule of mambanorm_study/claims/PROTOCOL.md, on {question.task} at scale "
            f"{answer.verdicts[0].scale}, seeds {', '.join(map(str, question.seeds))}.",
            *(
                f"- prediction {number}: {note}"
                for number, one in enumerate(answer.verdicts, start=1)
                for note in one.footnotes
            ),
            f"{datetime.now():%d %B %Y}, {machine.versions()}, {machine.machine()}.",
        ]
    )
    title = f"{question.id}: {question.words}"
    body = (
        f'<p class="eyebrow">mambanorm · a question</p><h1>{html.escape(title)}</h1>'
        f'<img src="data:image/png;base64,{picture}" alt="{html.escape(figure.get_label())}">'
    )
    return page(title, enlarge_on_click(body) + markdown(text), template("index.css"))


def save_answer(answer: Any, folder: str | Path) -> Path:
    """Write the page of an `Answer` to <id>.html in a folder, and return its path."""
    path = writable_folder(folder, "the answer") / f"{answer.question.id}.html"
    write_text(path, answer_html(answer))
    return path
