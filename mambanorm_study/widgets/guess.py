"""Questions with menus, for the section "Predict first" of a notebook."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import ipywidgets as w

from mambanorm_study.basics.atomic import write_text
from mambanorm_study.runs.store import runs_dir as store_dir

NO_GUESS = "–"


class Guess(w.VBox):
    """Questions, each with a menu of answers. The guesses are kept in the run store, so that they
    are there when the notebook is executed again.

    name: the name under which the guesses are kept, such as "03_type". questions: question → the
    answers to choose from. A static page shows the questions as a list.
    """

    def __init__(
        self,
        name: str,
        questions: Mapping[str, Sequence[str]],
        runs_dir: str | Path | None = None,
    ):
        self.path = store_dir(runs_dir) / ".guesses" / f"{name}.json"
        self.questions = questions
        kept = json.loads(self.path.read_text("utf-8")) if self.path.is_file() else {}
        self.menus, rows = {}, []
        for question, answers in questions.items():
            options = [NO_GUESS, *answers]
            menu = w.Dropdown(options=options, layout=w.Layout(width="260px"))
            menu.value = kept.get(question) if kept.get(question) in options else NO_GUESS
            menu.observe(self._keep, "value")
            self.menus[question] = menu
            rows.append(w.HBox([menu, w.Label(question)], layout=w.Layout(flex_flow="row wrap")))
        super().__init__(rows)
        self.add_class("mambanorm-guess")

    @property
    def guesses(self) -> dict[str, str]:
        """A map from each question to the reader's guess, without questions that have none."""
        chosen = {question: menu.value for question, menu in self.menus.items()}
        return {question: guess for question, guess in chosen.items() if guess != NO_GUESS}

    def score(self, outcomes: Sequence[str]) -> str:
        """Return the guesses beside the outcomes, with the number of right guesses, as Markdown.

        outcomes: for each question the answer that these runs give.
        """
        guesses, lines, right = self.guesses, [], 0
        for question, outcome in zip(self.questions, outcomes, strict=True):
            guess = guesses.get(question)
            right += guess == outcome
            mark = "no guess" if guess is None else f"you guessed {guess}"
            mark += " ✓" if guess == outcome else ""
            lines.append(f"1. {question} **{outcome}** ({mark})")
        if guesses:
            lines += ["", f"{right} of {len(guesses)} right."]
        return "\n".join(lines)

    def _keep(self, _) -> None:
        """Write the guesses to the run store."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(self.guesses, ensure_ascii=False))

    def _repr_mimebundle_(self, **options):
        lines = [f"1. {name} *{' · '.join(answers)}*" for name, answers in self.questions.items()]
        bundle = super()._repr_mimebundle_(**options)
        return {**bundle, "text/markdown": "\n".join(lines)}
