"""Questions of practitioners, answered by the rule of the claims (rule.py).

A question compares cells. A cell is an arm with changed settings, such as `RMSN>SSM>None;
dt_init=zero` (runs/grid.py). Each prediction of a question is judged as a claim that has one
comparison. A cell is tuned as an arm is, on the tuning seeds. Predictions about changed settings,
such as eight blocks, keep the learning rates that the cells have without this change.

field.py has the questions of notebook 16. `mambanorm ask FILE` answers a question of yours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from mambanorm.errors import WORD, brief, unknown
from mambanorm_study.basics.atomic import sha256
from mambanorm_study.basics.checks import check_kind, check_whole
from mambanorm_study.basics.extensions import ImportFailed, load_imports, set_imports
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import UNITS, Claim, Comparison, compared_column
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.plan import (
    add_summaries,
    check_comparable,
    check_test_seeds,
    is_tuned,
    tuning_runs,
)
from mambanorm_study.claims.verdict import Verdict, judge
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import (
    FIELDS_OUTSIDE_CELLS,
    QUESTION_SEEDS,
    Cell,
    base_config,
    check_once,
    grid,
    unique,
)
from mambanorm_study.runs.needed_runs import known_runs, train_needed
from mambanorm_study.runs.recorded_results import RESULTS, read_recorded
from mambanorm_study.tables.plan import untrained_model
from mambanorm_study.tables.scores import select_test_seeds
from mambanorm_study.tables.summaries import OF_QUESTIONS

FIELD_RESULTS = RESULTS / "field.parquet"


# The columns of `scores` that a prediction can be about: those that every run has, and those that
# are measured on QUESTION_SEEDS only.
MEASURED_COLUMNS = ("growth", *OF_QUESTIONS)
COLUMNS = ("score", "bits", *MEASURED_COLUMNS)


@dataclass(frozen=True)
class Prediction:
    """A statement about the cells of a question, and the verdict on it that you expect.

    weights: a map from the name of a cell to its weight. The statement is right if the weighted sum
    of the cells' scores is above zero: {"with norm": 1, "without": -1} says that the cell "with
    norm" is better. verdict: the expected verdict, one of "supported", "no gain", "opposite" and
    "cannot tell". changes: fields of RunConfig that differ for all cells, such as {"n_layers": 8}.

    By default accuracies are compared, and the smallest effect of interest is one point; on texts
    the bits per character, and 0.01 bits. column, smallest: another quantity (COLUMNS) and its
    smallest effect of interest. offset: a number that is added to the sum.
    """

    words: str
    weights: Mapping[str, float]
    verdict: str
    column: str = ""
    offset: float = 0.0
    smallest: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kind("weights", self.weights, Mapping, "{'a': 1, 'b': -1}")
        expected = [word for word in rule.WORDS if word != rule.NO_WORD]
        if self.verdict not in expected:
            raise unknown("verdict", self.verdict, expected)
        if self.column not in ("", *COLUMNS):
            raise unknown("column", self.column, COLUMNS)
        if self.column and not (self.smallest or 0) > 0:
            raise ValueError(
                f"column={self.column!r} needs smallest=, the smallest effect of interest, "
                f"in {UNITS[self.column]}"
            )
        if not self.weights or (sum(self.weights.values()) and not self.offset):
            raise ValueError(
                "the weights must be those of a difference, such as {'a': 1, 'b': -1}, with the "
                f"sum 0, got {dict(self.weights)}: the cell that should lose has the weight -1"
            )
        for name, value in self.changes.items():
            if name in FIELDS_OUTSIDE_CELLS or not isinstance(value, int | float | str):
                raise ValueError(f"changes cannot have {name}={value!r}: change it in the cells")

    @property
    def comparison(self) -> str:
        """The comparison in words: `with norm − without`."""
        terms = [f"{self.offset:g}"] if self.offset else []
        for name, weight in sorted(self.weights.items(), key=lambda item: item[1] < 0):
            sign = "− " if weight < 0 else "+ "
            factor = "" if abs(weight) == 1 else f"{abs(weight):g}·"
            terms.append(f"{sign}{factor}{name}")
        return " ".join(terms).removeprefix("+ ")


@dataclass(frozen=True)
class Question:
    """A question, the cells that are compared on a task, and predictions made before the runs.

    id: a word, the name of the answer's page. words: the question in one sentence. cells: a map
    from a short name to a cell. asked: addresses where the question was asked. seeds: six or more
    test seeds, or a number n for the first n of QUESTION_SEEDS. Raises ValueError for an unknown
    task, cells that cannot be compared, seeds that are not test seeds, and predictions about other
    cells.
    """

    id: str
    words: str
    cells: Mapping[str, str]
    predictions: Sequence[Prediction]
    task: str = "curves"
    asked: Sequence[str] = ()
    seeds: int | Sequence[int] = 8

    def __post_init__(self) -> None:
        if not isinstance(self.id, str) or not re.fullmatch(WORD, self.id):
            raise ValueError(f"the id of a question must be a word such as Q7, got {self.id!r}")
        check_kind("cells", self.cells, Mapping, "{'name': 'RMSN>SSM>None'}")
        seeds = self.seeds
        if isinstance(seeds, int):
            seeds = QUESTION_SEEDS[: check_whole("seeds", seeds, rule.FEWEST, len(QUESTION_SEEDS))]
        elif len(seeds) < rule.FEWEST:
            raise ValueError(f"a verdict needs at least {rule.FEWEST} seeds, got {brief(seeds)}")
        cells = {name: str(Cell.parse(cell)) for name, cell in self.cells.items()}
        given = [self.predictions] if isinstance(self.predictions, Prediction) else self.predictions
        asked = (self.asked,) if isinstance(self.asked, str) else tuple(self.asked)
        for name, value in dict(
            seeds=check_test_seeds(list(seeds)), cells=cells, predictions=tuple(given), asked=asked
        ).items():
            object.__setattr__(self, name, value)
        check_comparable(list(cells.values()), self.task, STUDY_SCALE)
        if not self.predictions:
            raise ValueError("a question needs predictions: write down what you expect")
        for prediction in self.predictions:
            check_kind("each of predictions", prediction, Prediction, "Prediction(…)")
            self._check(prediction)

    def _check(self, prediction: Prediction) -> None:
        for name in prediction.weights:
            if name not in self.cells:
                raise unknown("cell", name, self.cells)
            base_config(self.task, STUDY_SCALE, arm=self.cells[name], **prediction.changes)
        if prediction.column in MEASURED_COLUMNS and not set(self.seeds) <= set(QUESTION_SEEDS):
            raise ValueError(
                f"{prediction.column} is measured on seeds {QUESTION_SEEDS[0]} to "
                f"{QUESTION_SEEDS[-1]} only: leave out seeds="
            )

    @property
    def claims(self) -> list[Claim]:
        """The predictions as claims that `judge` takes, in the same order."""
        column, smallest = compared_column(self.task)
        return [
            Claim(
                id=f"{self.id}.{number}",
                words=f"{prediction.words}\n(predicted: {prediction.verdict})",
                quote="",
                where="; ".join(self.asked),
                quantity=prediction.column or column,
                comparisons=(
                    Comparison(
                        prediction.comparison,
                        {self.cells[name]: weight for name, weight in prediction.weights.items()},
                        prediction.column or column,
                        prediction.offset,
                        prediction.smallest or smallest,
                    ),
                ),
                of_paper=False,
            )
            for number, prediction in enumerate(self.predictions, start=1)
        ]

    def needed(
        self,
        scale: str,
        known: pd.DataFrame,
        seeds: Sequence[int] | None = None,
        *,
        is_plan: bool = False,
    ) -> list[RunConfig]:
        """Return the configs of the runs that are needed next: tuning runs, then test runs.

        known: the run frame of known runs. seeds: test seeds; None means those of the question.
        is_plan: True adds the test runs of cells that are not tuned yet, at the task's learning
        rate, to estimate how long all runs take.
        """
        evidence, configs = Evidence(known, scale), []
        for claim, prediction in zip(self.claims, self.predictions, strict=True):
            for cell in claim.arms:
                configs += tuning_runs(cell, self.task, evidence)
                if not (is_tuned(cell, self.task, evidence) or is_plan):
                    continue
                settings = dict(prediction.changes, scale=scale, seeds=seeds or self.seeds)
                lr = evidence.lr(cell, self.task) or base_config(self.task, scale).lr
                configs += grid([cell], [self.task], lr=lr, **settings)
        return unique(configs)

    def judge(self, frame: pd.DataFrame, scale: str = STUDY_SCALE) -> Answer:
        """Return the answer from a run frame; no run is trained."""
        evidence = Evidence(select_test_seeds(frame, self.seeds), scale)
        no_runs = Evidence(None, scale)
        verdicts = []
        for claim, prediction in zip(self.claims, self.predictions, strict=True):
            settings = dict(changes=prediction.changes, keep_lrs=True)
            verdict = judge(claim, Evidence(evidence, **settings), task=self.task)
            # cells without test runs are compared on the tuning seeds, which is no answer
            is_answer = verdict.main_row.fresh
            verdicts.append(verdict if is_answer else judge(claim, no_runs, task=self.task))
        return Answer(self, verdicts)


@dataclass(frozen=True)
class Answer:
    """The verdicts on the predictions of a question, in the order of the predictions."""

    question: Question
    verdicts: list[Verdict]

    @property
    def held(self) -> list[bool]:
        """For each prediction, True if its verdict is the expected one."""
        predictions = self.question.predictions
        return [v.word == p.verdict for v, p in zip(self.verdicts, predictions, strict=True)]

    @property
    def table(self) -> pd.DataFrame:
        """One row for each prediction, with the columns statement, predicted, verdict, difference
        (with its 95 % interval), seeds, rates (the learning rate of each of its cells, or of all),
        and failed (the number of failed runs of each cell).
        """
        names = {cell: name for name, cell in self.question.cells.items()}
        rows = []
        for verdict, prediction in zip(self.verdicts, self.question.predictions, strict=True):
            row = verdict.main_row
            reason = f" ({verdict.reason})" if verdict.reason else ""
            failed = {names[cell]: count for cell, count in (row.failed or {}).items()}
            rates = [f"{rate:g}" for rate in (row.lrs or {}).values()]
            rows.append(
                {
                    "statement": prediction.words,
                    "predicted": prediction.verdict,
                    "verdict": f"{verdict.as_text}{reason}" if row.n else "no runs",
                    "difference": row.amount if row.n else "",
                    "seeds": row.n,
                    "rates": ", ".join(rates if len(set(rates)) > 1 else rates[:1]),
                    "failed": ", ".join(
                        f"{name} {k} of {n}" for name, (k, n) in failed.items() if k
                    )
                    or "none",
                }
            )
        return pd.DataFrame(rows)

    @property
    def cells(self) -> pd.DataFrame:
        """One row for each cell: its name, the cell, and its learning rate (NaN if not run)."""
        rates = {}
        for verdict in self.verdicts:
            rates |= verdict.main_row.lrs or {}
        rows = [(name, cell, rates.get(cell, nan)) for name, cell in self.question.cells.items()]
        return pd.DataFrame(rows, columns=["name", "cell", "learning rate"])

    @property
    def summary(self) -> str:
        """The number of predictions that held, as a sentence."""
        return f"{sum(self.held)} of {len(self.held)} predictions held."

    def __str__(self) -> str:
        lines = [f"{self.question.id}: {self.question.words}"]
        for row in self.table.itertuples():
            lines.append(f"- {row.statement} {row.verdict} (predicted: {row.predicted})")
            measured = f"{row.difference}, " if row.seeds else ""
            lines.append(f"    {measured}{plural(row.seeds, 'seed')}, failed: {row.failed}")
        return "\n".join([*lines, self.summary])


def known_answers(scale: str = STUDY_SCALE, runs_dir: str | Path | None = None) -> pd.DataFrame:
    """Return the run frame of all known runs at a scale, those of the questions in field.py too."""
    is_recorded = scale == STUDY_SCALE and FIELD_RESULTS.is_file()
    return known_runs(scale, runs_dir, read_recorded(FIELD_RESULTS) if is_recorded else None)


def ask(
    question: Question,
    *,
    scale: str = STUDY_SCALE,
    runs_dir: str | Path | None = None,
    **engine: Any,
) -> Answer:
    """Train the missing runs of a question and return the answer.

    engine: the arguments scheduler, workers, client and progress of `sweep`. Raises ValueError for
    a cell that the task's model cannot have, and RuntimeError if a run could not be trained.
    """
    for cell in question.cells.values():
        untrained_model(base_config(question.task, scale, arm=cell))
    known = known_answers(scale, runs_dir)
    trained = train_needed(partial(question.needed, scale), scale, runs_dir, known, **engine)
    if len(trained.failed):
        number, first = plural(len(trained.failed), "run"), trained.failed.iloc[0]
        raise RuntimeError(f"{number} could not be trained, the first ({first.arm}): {first.error}")
    return question.judge(add_summaries(trained, scale, runs_dir).known, scale)


def questions_in(file: str | Path) -> list[Question]:
    """Import a Python file and return its QUESTION, or the list of its QUESTIONS.

    Raises ValueError if the file cannot be imported or has neither, and if it was edited since this
    process imported it.
    """
    path = str(Path(file).resolve())
    try:
        set_imports([path])
    except ImportFailed as error:
        raise ValueError(str(error).removeprefix("--import ")) from error
    if load_imports()[path] != sha256(Path(path)):
        raise ValueError(f"{file} was edited after its import: restart the kernel")
    module = next(one for one in sys.modules.values() if getattr(one, "__file__", None) == path)
    questions = getattr(module, "QUESTIONS", None) or [getattr(module, "QUESTION", None)]
    if not all(isinstance(one, Question) for one in questions):
        raise ValueError(f"{file} has no question: write QUESTION = Question(…), see notebook 16")
    check_once("question", [one.id for one in questions])
    return questions
