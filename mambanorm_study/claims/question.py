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

from mambanorm.errors import WORD, unknown
from mambanorm_study.basics.atomic import sha256
from mambanorm_study.basics.checks import check_kind
from mambanorm_study.basics.extensions import load_imports, set_imports
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import UNITS, Claim, Comparison, compared_column
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.plan import (
    add_summaries,
    check_test_seeds,
    is_tuned,
    tuning_runs,
)
from mambanorm_study.claims.verdict import Verdict, judge
from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import (
    QUESTION_SEEDS,
    Cell,
    base_config,
    check_once,
    check_task,
    grid,
    unique,
)
from mambanorm_study.runs.needed_runs import known_runs, train_needed
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.runs.recorded_results import RESULTS, read_recorded
from mambanorm_study.tables.scores import select_test_seeds

FIELD_RESULTS = RESULTS / "field.parquet"


@dataclass(frozen=True)
class Prediction:
    """A statement about the cells of a question, and the verdict on it that you expect.

    weights: a map from the name of a cell to its weight. The statement is right if the weighted sum
    of the cells' scores is above zero: {"with norm": 1, "without": -1} says that the cell "with
    norm" is better. verdict: the expected verdict, one of "supported", "no gain", "opposite" and
    "cannot tell". column, offset, smallest: what is compared, a number added to the sum, and the
    smallest effect of interest (see Comparison); by default the accuracy and one point, on texts
    the bits per character and 0.01 bits. changes: fields of RunConfig that differ for all cells,
    such as {"n_layers": 8}.
    """

    words: str
    weights: Mapping[str, float]
    verdict: str
    column: str = ""
    offset: float = 0.0
    smallest: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

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
    from a short name to a cell. asked: addresses where the question was asked. seeds: test seeds.
    Raises ValueError for an unknown task, a cell that cannot be run or that has two names, a seed
    that is not a test seed, and a prediction that is not about `cells`.
    """

    id: str
    words: str
    cells: Mapping[str, str]
    predictions: Sequence[Prediction]
    task: str = "curves"
    asked: Sequence[str] = ()
    seeds: Sequence[int] = QUESTION_SEEDS[:8]

    def __post_init__(self) -> None:
        if not re.fullmatch(WORD, self.id):
            raise ValueError(f"the id of a question must be a word such as Q7, got {self.id!r}")
        check_test_seeds(list(self.seeds))
        check_task(self.task)
        if kind_of(self.task) == "table":
            raise ValueError(f"{self.task} is a regression, and the rule is not made for these")
        for cell in self.cells.values():
            base_config(self.task, STUDY_SCALE, arm=cell)
        cells = {name: str(Cell.parse(cell)) for name, cell in self.cells.items()}
        check_once("cell", list(cells.values()))
        object.__setattr__(self, "cells", cells)
        for prediction in self.predictions:
            check_kind("each of predictions", prediction, Prediction, "Prediction")
            for name in prediction.weights:
                if name not in self.cells:
                    raise unknown("cell", name, self.cells)
            if prediction.verdict not in rule.WORDS:
                raise unknown("verdict", prediction.verdict, rule.WORDS)
            if prediction.column not in ("", *UNITS):
                raise unknown("column", prediction.column, UNITS)

    @property
    def claims(self) -> list[Claim]:
        """The predictions as claims that `judge` takes, in the same order."""
        column, smallest = compared_column(self.task)
        return [
            Claim(
                id=f"{self.id}.{number}",
                words=f"{prediction.words} (predicted: {prediction.verdict})",
                quote="",
                where="; ".join(self.asked),
                quantity=prediction.column or column,
                comparisons=(
                    Comparison(
                        prediction.comparison,
                        {self.cells[name]: weight for name, weight in prediction.weights.items()},
                        prediction.column or column,
                        prediction.offset,
                        smallest if prediction.smallest is None else prediction.smallest,
                    ),
                ),
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
        evidence = Evidence(select_test_seeds(frame, list(self.seeds)), scale)
        verdicts = [
            judge(
                claim, Evidence(evidence, changes=prediction.changes, keep_lrs=True), task=self.task
            )
            for claim, prediction in zip(self.claims, self.predictions, strict=True)
        ]
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
        (with its 95 % interval), seeds, and failed (the number of failed runs of each cell).
        """
        names = {cell: name for name, cell in self.question.cells.items()}
        rows = []
        for verdict, prediction in zip(self.verdicts, self.question.predictions, strict=True):
            row = verdict.main_row
            reason = f" ({verdict.reason})" if verdict.reason else ""
            failed = {names[cell]: count for cell, count in (row.failed or {}).items()}
            rows.append(
                {
                    "statement": prediction.words,
                    "predicted": prediction.verdict,
                    "verdict": f"{verdict.as_text}{reason}" if row.n else f"not run{reason}",
                    "difference": row.amount if row.n else "",
                    "seeds": row.n,
                    "failed": ", ".join(
                        f"{name} {k} of {n}" for name, (k, n) in failed.items() if k
                    ),
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
        """How many predictions held, as a sentence."""
        return f"{sum(self.held)} of {plural(len(self.held), 'prediction')} held."

    def __str__(self) -> str:
        lines = [f"{self.question.id}: {self.question.words}"]
        for row in self.table.itertuples():
            lines.append(f"- {row.statement} {row.verdict} (predicted: {row.predicted})")
            failed = f"failed: {row.failed}" if row.failed else ""
            notes = filter(None, (row.difference, plural(row.seeds, "seed"), failed))
            lines.append(f"    {', '.join(notes)}")
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

    engine: the arguments scheduler, workers, client and progress of `sweep`. Raises RuntimeError if
    a run could not be trained.
    """
    known = known_answers(scale, runs_dir)
    trained = train_needed(partial(question.needed, scale), scale, runs_dir, known, **engine)
    if len(trained.failed):
        number, first = plural(len(trained.failed), "run"), trained.failed.iloc[0]
        raise RuntimeError(f"{number} could not be trained, the first ({first.arm}): {first.error}")
    return question.judge(add_summaries(trained, scale, runs_dir).known, scale)


def questions_in(file: str | Path) -> list[Question]:
    """Import a Python file and return the questions that it defines.

    Raises ValueError if the file cannot be imported or defines no question, and if it was edited
    since this process imported it.
    """
    path = str(Path(file).resolve())
    set_imports([path])
    if load_imports()[path] != sha256(Path(path)):
        raise ValueError(f"{file} was edited after its import: restart the kernel")
    module = next(one for one in sys.modules.values() if getattr(one, "__file__", None) == path)
    questions = [value for value in vars(module).values() if isinstance(value, Question)]
    if not questions:
        raise ValueError(
            f"{file} defines no question: write QUESTION = Question(…), see notebook 16"
        )
    return questions
