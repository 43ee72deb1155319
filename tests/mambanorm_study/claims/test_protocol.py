"""The protocol: PROTOCOL.md says what the code does, and recorded runs name the version that was in
force.
"""

from __future__ import annotations

import re
import subprocess

import pandas as pd
import pytest

from benchmarks.protocol import (
    PREDICTIONS,
    how_many_held,
    outcomes,
    predict,
    rates_text,
    with_tables,
)
from mambanorm_study.basics.settings import ROOT, SCALES
from mambanorm_study.claims import CLAIMS, TRAINED_TASKS, judge, rule
from mambanorm_study.claims.claim import FURTHER_TEST_SEEDS, TEST_SEEDS
from mambanorm_study.claims.evidence import VERSION, Evidence
from mambanorm_study.claims.hypotheses import BEYOND
from mambanorm_study.claims.plan import PROTOCOL, planned_tasks
from mambanorm_study.cli import recording
from mambanorm_study.runs.grid import is_test_seed
from mambanorm_study.runs.recorded_results import recorded, recorded_path

# claim and task whose prediction was written by hand, before any run on the task was trained
BY_HAND = [("H8s", "paths16")]


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return recorded("evening")


@pytest.fixture(scope="module")
def predictions() -> pd.DataFrame:
    return pd.read_csv(PREDICTIONS, keep_default_na=False)


def test_the_document_is_short_and_its_tables_are_those_of_the_code(frame):
    """If this fails: python -m benchmarks.protocol"""
    document = PROTOCOL.read_text("utf-8")
    assert document == with_tables(document, frame)
    assert len(document.splitlines()) <= 280
    assert document.startswith(f"# The protocol of the verdicts, version {VERSION}\n")
    for claim in (CLAIMS | BEYOND).values():
        assert f"| {claim.id} | {claim.words} | {claim.condition} |" in document
    for file in re.findall(r"\]\(([\w.]+/?)\)", document):
        assert (PROTOCOL.parent / file).exists(), file


def test_the_document_names_every_version():
    versions = re.findall(
        r"^\| (\d+) \| \d{4}-\d\d-\d\d \|", PROTOCOL.read_text("utf-8"), re.MULTILINE
    )
    assert [int(number) for number in versions] == list(range(1, VERSION + 1))


def test_the_words_and_numbers_of_the_rule_are_those_of_the_document():
    document = " ".join(PROTOCOL.read_text("utf-8").split())
    for word in rule.WORDS:
        assert f"**{word}" in document or f"**{word.capitalize()}" in document, word
    order = ", ".join(f"*{word}*" for word in rule.STRENGTH)
    assert f"From the weakest to the strongest: {order}" in document
    assert "fewer than six pairs" in document
    assert rule.FEWEST == 6
    assert (rule.ONE_SIDED, CLAIMS["H1s"].smallest, CLAIMS["H1l"].smallest) == (0.025, 1.0, 0.01)
    assert "The second mark is 0.01 bits" in document


# predictions and learning rates


def test_the_predictions_are_the_words_on_the_tuning_seeds(frame, predictions):
    pairs = list(predictions[["claim", "task"]].itertuples(index=False, name=None))
    assert [pair for pair, n in zip(pairs, predictions.n, strict=True) if not n] == BY_HAND
    by_hand = predictions.n == 0
    predictions, pairs = predictions[~by_hand], [pair for pair in pairs if pair not in BY_HAND]
    predictions = predictions.reset_index(drop=True)
    columns = [name for name in predictions if name != "version_11"]
    pd.testing.assert_frame_equal(
        predict(frame, pairs)[columns], predictions[columns], check_dtype=False
    )


def test_the_last_column_has_the_words_on_the_test_seeds_and_the_readme_counts_them(frame):
    table = outcomes(frame)
    judged = table[table.held.notna()]
    for row in judged.itertuples():
        verdict = judge(row.claim, frame, scale="evening", task=row.task)
        assert verdict.main_row.fresh
        assert f"**{verdict.as_text}**" in row.outcome
        assert row.held == row.prediction.startswith(verdict.word)
        assert ("The prediction failed" in row.outcome) == (not row.held)
    held, number = int(judged.held.sum()), len(judged)
    assert f"**{held} of {number} predictions held on the test seeds" in PROTOCOL.read_text("utf-8")
    words = dict(
        enumerate(
            ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
            + ["eleven", "twelve"],
            start=1,
        )
    )
    said = f"of {words[number]} predictions that were written down before, {words[held]} held"
    assert said in (ROOT / "README.md").read_text()


def test_a_prediction_that_fails_is_named(frame):
    table = outcomes(frame)
    table["held"] = None
    table.loc[0, "held"], table.loc[1, "held"] = True, False
    text = how_many_held(table)
    assert text.startswith("**1 of 2 predictions held")
    assert f"{table.claim[1]} on {table.task[1]} did not" in text


def test_the_predictions_are_made_for_every_claim_and_task_that_is_planned(predictions):
    planned = [(name, task) for name in CLAIMS | BEYOND for task in planned_tasks(name, "evening")]
    assert list(predictions[["claim", "task"]].itertuples(index=False, name=None)) == planned


def test_the_words_of_version_11_are_kept(predictions):
    assert set(predictions.version_11) <= {
        "reproduced",
        "contradicted",
        "open",
        "not judged",
        "≈ threshold",
    }
    kept = predictions.set_index(["claim", "task"]).version_11
    assert kept["H3v", "glyphs_images"] == "reproduced"
    assert kept["H2s", "glyphs"] == "contradicted"
    assert kept["H4s", "curves"] == "open"


def test_test_runs_change_neither_predictions_nor_learning_rates(frame, predictions):
    """They rest on the tuning seeds alone."""
    tuning = frame[~((frame.task != "mnist1d") & frame.seed.map(is_test_seed))]
    assert rates_text(tuning) == rates_text(frame)
    (row,) = predictions[(predictions.claim == "H4s") & (predictions.task == "curves")].itertuples()
    assert predict(tuning, [("H4s", "curves")]).prediction.tolist() == [row.prediction]


def test_every_recorded_test_run_has_its_arms_fixed_rate(frame):
    evidence = Evidence(frame, "evening")
    tests = frame[
        frame.task.isin(TRAINED_TASKS) & frame.seed.isin((*TEST_SEEDS, *FURTHER_TEST_SEEDS))
    ]
    for (task, arm, lr), _ in tests.groupby(["task", "arm", "lr"]):
        own = {evidence.lr(arm, task), Evidence(evidence, changes=recording.DEEP).lr(arm, task)}
        assert lr in own, (task, arm, lr)


# what is recorded


def test_recorded_results_name_the_protocol_that_was_in_force():
    for scale in (scale for scale in SCALES if recorded_path(scale).is_file()):
        rows = recorded(scale)
        assert set(rows.protocol) <= set(range(2, VERSION + 1))
        for version, some in rows.groupby("protocol"):
            commits = set(some.protocol_commit)
            assert all(
                re.fullmatch("[0-9a-f]{7,40}", commit) for commit in commits
            )  # and not changed since
            texts = {text for text in map(protocol_at, commits) if text}
            assert all(
                text.startswith(f"# The protocol of the verdicts, version {version}\n")
                for text in texts
            )


def protocol_at(commit: str) -> str:
    """Return PROTOCOL.md at a commit; "" in a copy without history, and where the file lay
    elsewhere then.
    """
    show = ["git", "show", f"{commit}:mambanorm_study/claims/{PROTOCOL.name}"]
    return subprocess.run(show, capture_output=True, text=True, cwd=PROTOCOL.parent).stdout


def test_the_protocol_commit_is_told_and_so_is_an_edit(tmp_path, monkeypatch):
    assert re.fullmatch(r"[0-9a-f]{7,40}(, changed since)?|unknown", recording.protocol_commit())
    monkeypatch.setattr(recording, "PROTOCOL", tmp_path / "PROTOCOL.md")
    assert recording.protocol_commit() == "unknown"
