"""NormCard: the facts about a norm, written as an HTML page, as JSON, or as text for a terminal."""

import base64
import html
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mambanorm.norms import NORMS
from mambanorm_clinic.card_checks import BAD, GOOD
from mambanorm_clinic.card_text import CardFacts, sentences_of
from mambanorm_study.basics.atomic import writable_folder, write_text
from mambanorm_study.claims.evidence import VERSION
from mambanorm_study.report.page import add_templates, enlarge_on_click, mathml, page, template
from mambanorm_study.runs import machine
from mambanorm_study.tables.run_tables import label

add_templates(Path(__file__).with_name("templates"))

SIGNS = {GOOD: "✓", BAD: "✗"}
DECLARED = ("equation", "source", "axes", "causal", "learnable", "doubt")
VERDICT_COLUMNS = [
    "place", "task", "against", "word", "effect", "low", "high", "unit", "n", "diverged",
]  # fmt: skip
# Column of a table → heading of the column on the page.
HEADINGS = {
    "effect": "difference", "low": "95 % from", "high": "to", "n": "seeds",
    "highest_lr": "highest learning rate that trains", "shape": "B × L × D",
    "over_rmsn": "× RMSN", "over_ln": "× LN", "kept": "kept / input", "kept_rmsn": "of RMSN",
    "mark": "",
}  # fmt: skip
NUMBER = "{:.3g}".format


@dataclass(frozen=True)
class NormCard(CardFacts):
    """A norm card: facts about one norm, and sentences, tables and pages made from these facts."""

    @property
    def sentences(self) -> dict[str, list[str]]:
        """Return a map from topic to a list of sentences, the most important topic first."""
        return sentences_of(self)

    @property
    def all_sentences(self) -> list[str]:
        """Return a list of all sentences of the card, in the order of `sentences`."""
        return [line for lines in self.sentences.values() for line in lines]

    @property
    def basis(self) -> str:
        """Return one line on the comparisons: their scale, tasks, numbers of seeds, and rule."""
        rule_text = (
            f"rule of protocol {VERSION}, each arm at its best learning rate, plain 95 % intervals"
        )
        return f"{self.scale} scale · {', '.join(self.tasks)} · {self._seed_counts} · {rule_text}"

    @property
    def _seed_counts(self) -> str:
        """Return the number of seeds of the comparisons as text, such as "8 seeds".

        If the comparisons have different numbers of seeds, the text is such as "6 or 8 seeds".
        """
        counts = set(self.verdicts.n) if len(self.verdicts) else set(map(len, self.seeds.values()))
        return f"{' or '.join(map(str, sorted(counts)))} seed{'' if counts == {1} else 's'}"

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Return a map from the title of each table of the page to the table.

        A table is a DataFrame whose columns have the headings of the page.
        """
        tables = {}
        if len(self.verdicts):
            tables["Is it better?"] = self._verdict_table()
        tables[f"Does it train, on {self.training.task.iloc[0]}?"] = self._training_table()
        if len(self.checks):
            for group, rows in self.checks.replace({"mark": SIGNS}).groupby("group", sort=False):
                columns = rows[["mark", "question", "answer"]]
                tables[f"{group.capitalize()}, measured"] = columns
            tables["What it costs, forward and backward"] = self.costs
        return {title: table.rename(columns=HEADINGS) for title, table in tables.items()}

    def _verdict_table(self) -> pd.DataFrame:
        rows = self.verdicts
        against = rows.against.map(label) + np.where(rows.best, ", the best recorded", "")
        diverged = rows.diverged.astype(str) + " against " + rows.diverged_against.astype(str)
        return rows.assign(against=against, diverged=diverged)[VERDICT_COLUMNS]

    def _training_table(self) -> pd.DataFrame:
        def diverged_text(by_lr: dict[str, tuple[int, int]]) -> str:
            counts = [f"{k} of {n} at {lr}" for lr, (k, n) in by_lr.items() if k]
            return ", ".join(counts) or "none"

        rows = self.training.assign(diverged=self.training.diverged.map(diverged_text))
        return rows.drop(columns="task").rename(
            columns={"reference_lr": f"for {label(self.against)}"}
        )

    def _html(self, *, with_picture: bool = True, with_equation: bool = False) -> str:
        entry = NORMS[self.name]
        figure = self._figure() if with_picture and self.scores else None
        with pd.option_context("display.max_colwidth", None):
            tables = {
                title: table.to_html(index=False, border=0, na_rep="–", float_format=NUMBER)
                for title, table in self.tables.items()
            }
        made = f"{datetime.now():%d %B %Y}, {machine.versions()}, {machine.machine()}"
        return template(
            "card.html",
            entry=entry,
            equation=mathml(entry.equation) if entry.equation and with_equation else "",
            words=[
                re.sub("`(.*?)`", r"<code>\1</code>", html.escape(line))
                for line in self.all_sentences
            ],
            picture=base64.b64encode(figure._repr_png_()).decode() if figure else "",
            alt=figure.get_label() if figure else "",
            tables=tables,
            basis=f"{self.basis} · {made}",
        )

    def _repr_html_(self) -> str:
        return f"<style>\n{template('card.css')}</style>\n{self._html()}"

    def _repr_png_(self) -> bytes | None:
        """Return the figure of the scores as PNG, None if there are no scores.

        The study's report shows one picture per notebook; of a notebook with a card, this figure.
        """
        return self._figure()._repr_png_() if self.scores else None

    def __str__(self) -> str:
        lines = [f"{self.name}, scale {self.scale}", *(f"- {line}" for line in self.all_sentences)]
        if len(self.verdicts):
            table = self.tables["Is it better?"]
            lines += ["", table.to_string(index=False, float_format=NUMBER)]
        return "\n".join(lines)

    __repr__ = __str__

    def to_json(self) -> str:
        """Return all facts about the norm as a text in JSON format."""
        entry = NORMS[self.name]
        facts = {
            "name": self.name,
            "scale": self.scale,
            "tasks": self.tasks,
            "seeds": self.seeds,
            "against": self.against,
            "same": self.same,
            "untrained": self.untrained,
            "words": self.all_sentences,
            "protocol": VERSION,
            "versions": machine.versions(),
            "machine": machine.machine(),
            "declared": {name: getattr(entry, name) for name in DECLARED},
            "checks": _records(self.checks),
            "costs": _records(self.costs),
            "training": _records(self.training),
            "verdicts": _records(self.verdicts),
            "scores": {task: _records(table) for task, table in self.scores.items()},
        }
        return json.dumps(facts, ensure_ascii=False, indent=1)

    def save(self, folder: str | Path) -> list[Path]:
        """Write the card to NAME.html and NAME.json in a folder, and return the two paths.

        NAME is the name of the norm. The HTML page loads nothing from the network.
        """
        folder = writable_folder(folder, "the card")
        paths = [folder / f"{self.name}.html", folder / f"{self.name}.json"]
        title = (
            f'<p class="eyebrow">mambanorm · a card for a norm</p><h1>{html.escape(self.name)}</h1>'
        )
        body = enlarge_on_click(title + self._html(with_equation=True))
        html_page = page(f"{self.name}: a card", body, template("index.css"), template("card.css"))
        write_text(paths[0], html_page)
        write_text(paths[1], self.to_json())
        return paths

    def _figure(self) -> Any:
        """Return a figure of the scores of all known arms, with the arms of this norm circled."""
        from mambanorm_study.figures import fig_card

        name = self.same or self.name
        caption = (
            f"{self.scale} scale · {self._seed_counts} · means over seeds, each arm at its best "
            "learning rate"
        )
        return fig_card(self.scores, name, caption)


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(table.to_json(orient="records"))


def cards_html(cards: Iterable[NormCard]) -> str:
    """Return one HTML text with several norm cards.

    Each card is folded and shows only the norm's name and the first sentence of the card.
    """
    folded_cards = [
        f"<details><summary><b>{html.escape(card.name)}</b> "
        f"{html.escape(card.all_sentences[0])}</summary>"
        f"{card._html(with_picture=False)}</details>"
        for card in cards
    ]
    return (
        f"<style>\n{template('card.css')}</style>\n"
        f'<div class="norm-cards">{"".join(folded_cards)}</div>'
    )
