"""Write the tables of PROTOCOL.md: `python -m benchmarks.protocol`.

Write a new version of the protocol before training runs for a changed claim, rule or plan.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from mambanorm_study.answers.phrases import join_words
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.claims import rule
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS
from mambanorm_study.claims.plan import PROTOCOL, TRAINED_TASKS, planned_seeds, tuned_arms
from mambanorm_study.claims.verdict import judge
from mambanorm_study.runs.recorded_results import RESULTS, recorded
from mambanorm_study.tables.run_tables import label

PREDICTIONS = RESULTS / "predictions.csv"
"""Each claim and task: the word of version 11, and the word of version 12 on the tuning seeds,
which is the prediction for the test seeds. Written before the first test seed was run.

Rows with n = 0 were predicted by version 13, before any run of the task was trained."""

START, END = "<!-- {}: written by python -m benchmarks.protocol -->\n", "<!-- end of {} -->\n"


def claims_table() -> str:
    """Return every claim with its unit, its marks and its planned seeds, as a Markdown table."""
    lines = [
        "| claim | in words | what must lie above 0 | unit | marks | seeds |",
        "|---|---|---|---|---|---|",
    ]
    for claim in (*CLAIMS.values(), *BEYOND.values()):
        if claim.runs == "failure":
            marks, units = "50 %", "% of runs"
        else:
            sizes = dict.fromkeys(
                f"{claim.smallest_effect(group[0]):g}" for group in claim.deciding_groups
            )
            marks = " / ".join(f"0 and {size}" for size in sizes) or "none"
            judged = [c for c in claim.comparisons if c.decides or claim.why_no_word]
            units = ", ".join(dict.fromkeys(comparison.unit for comparison in judged))
        planned = planned_seeds(claim, "evening")
        fresh = "" if claim.runs == "tuned" else " (not fresh)"
        seeds = f"{min(planned)}–{max(planned)}{fresh}"
        lines.append(
            f"| {claim.id} | {claim.words} | {claim.condition} | {units} | {marks} | {seeds} |"
        )
    return "\n".join(lines) + "\n"


def predictions_table(outcomes: pd.DataFrame) -> str:
    """Return the predictions and what came of them, as a Markdown table and a paragraph.

    outcomes: the result of `outcomes`.
    """
    columns = ["claim", "task", "comparison that decides, and its learning rates", "version 11"]
    columns += ["prediction", "test seeds"]
    lines = [f"| {' | '.join(columns)} |", "|---|---|---|---|---|---|"]
    for row in outcomes.itertuples():
        rates = f" ({row.rates})" if row.rates else ""
        compared = f"{row.comparison}{rates}: {row.amount}, n = {row.n}"
        if not row.n:
            compared = f"{row.comparison}: predicted by version 13, before any run"
        lines.append(
            f"| {row.claim} | {row.task} | {compared} | {row.version_11} | {row.prediction} "
            f"| {row.outcome} |"
        )
    return "\n".join([*lines, "", how_many_held(outcomes)]) + "\n"


def outcomes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the predictions with two more columns, one row per claim and task.

    The columns are outcome (the verdict on the test seeds as text, or why there is none yet) and
    held (whether the verdict has the predicted word; None without a prediction or without a verdict
    on test seeds).
    """
    evidence, rows = Evidence(frame, STUDY_SCALE), []
    for row in pd.read_csv(PREDICTIONS, keep_default_na=False).to_dict("records"):
        verdict = judge(row["claim"], evidence, task=row["task"])
        main, held = verdict.main_row, None
        if verdict.claim.runs != "tuned":
            outcome = "not fresh: no new seeds"
        elif not (main.n and main.fresh):
            outcome = "not recorded yet"
        else:
            outcome = f"**{verdict.as_text}**. {main.comparison}: {main.amount}, n = {main.n}"
            if not row["prediction"].startswith(rule.NO_WORD):
                held = row["prediction"].startswith(verdict.word)
                outcome += "" if held else ". *The prediction failed.*"
        rows.append({**row, "outcome": outcome, "held": held})
    return pd.DataFrame(rows)


def how_many_held(outcomes: pd.DataFrame) -> str:
    """Return a sentence on how many predictions held, and which failed."""
    judged = outcomes[outcomes.held.notna()]
    failed = judged[~judged.held.astype(bool)]
    sentence = f"{len(judged) - len(failed)} of {len(judged)} predictions held on the test seeds"
    if len(failed):
        names = [f"{row.claim} on {row.task}" for row in failed.itertuples()]
        sentence += f"; {join_words(names)} did not"
    waiting = int((outcomes.outcome == "not recorded yet").sum())
    if waiting:
        sentence += f". The test seeds of {waiting} more are not recorded yet"
    return f"**{sentence}.** A prediction held if its first word is the word on the test seeds."


def predict(frame: pd.DataFrame, pairs: Iterable[tuple[str, str]]) -> pd.DataFrame:
    """Return the predictions for pairs of claim and task: the words on the tuning seeds."""
    evidence, rows = Evidence(frame, STUDY_SCALE, tuning=True), []
    for claim, task in pairs:
        verdict = judge(claim, evidence, task=task)
        comparison = verdict.main_row
        lrs = comparison.lrs or {}
        lr_text = ", ".join(f"{label(arm)} {lr:g}" for arm, lr in lrs.items())
        rows.append(
            {
                "claim": claim,
                "task": task,
                "comparison": comparison.comparison,
                "rates": lr_text if len(lrs) <= 2 else "",
                "amount": comparison.amount,
                "n": comparison.n,
                "prediction": verdict.as_text,
            }
        )
    return pd.DataFrame(rows)


def rates_text(frame: pd.DataFrame) -> str:
    """Return the fixed learning rate of every tuned arm on every task of the plan, as a Markdown
    list.
    """
    evidence, lines = Evidence(frame, STUDY_SCALE), []
    for task in TRAINED_TASKS:
        arms: dict[float, list[str]] = {}
        for arm in tuned_arms(task):
            if (lr := evidence.lr(arm, task)) is not None:
                arms.setdefault(lr, []).append(label(arm))
        lines += [f"- {task}, {lr:g}: {', '.join(labels)}" for lr, labels in sorted(arms.items())]
    return "\n".join(lines) + "\n"


def with_tables(document: str, frame: pd.DataFrame) -> str:
    """Return PROTOCOL.md with its tables written anew."""
    tables = {
        "claims": claims_table(),
        "predictions": predictions_table(outcomes(frame)),
        "learning rates": rates_text(frame),
    }
    for name, table in tables.items():
        start, end = START.format(name), END.format(name)
        before, after = document.split(start)[0], document.split(end)[1]
        document = f"{before}{start}\n{table}\n{end}{after}"
    return document


if __name__ == "__main__":
    PROTOCOL.write_text(with_tables(PROTOCOL.read_text("utf-8"), recorded(STUDY_SCALE)), "utf-8")
    print(PROTOCOL)
