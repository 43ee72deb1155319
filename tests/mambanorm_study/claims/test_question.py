"""Claims about questions: cells are tuned and judged as arms are, and predictions are kept."""

import math
import subprocess
from types import SimpleNamespace

import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.claims import field, question as asking, rule
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, Evidence
from mambanorm_study.claims.plan import check_test_seeds
from mambanorm_study.claims.question import Prediction, Question
from mambanorm_study.claims.verdict import judge
from mambanorm_study.cli import recording
from mambanorm_study.cli.main import main
from mambanorm_study.config import RunConfig
from mambanorm_study.report.answer_page import save_answer
from mambanorm_study.runs.grid import QUESTION_SEEDS, Cell, base_config, setting_id
from mambanorm_study.runs.recorded_results import read_recorded
from mambanorm_study.tables.experiments import lr_grid
from mambanorm_study.tables.summaries import question_facts
from tests.planted import planted_frame, rows_of

DECAYED = "RMSN>SSM>None; decay_ssm=0.1"
DEEP = {"n_layers": 3}


def make_question(**changes) -> Question:
    return Question(
        **{
            "id": "Q9",
            "words": "Does it matter?",
            "cells": {"plain": "RMSN>SSM>None", "decayed": DECAYED},
            "predictions": [
                Prediction("Plain is better.", {"plain": 1, "decayed": -1}, "supported"),
                Prediction(
                    "Plain is better with three blocks.",
                    {"plain": 1, "decayed": -1},
                    "no gain",
                    changes=DEEP,
                ),
            ],
            **changes,
        }
    )


def known_rows(question: Question, rounds: int = 2) -> pd.DataFrame:
    """Return the rows of all runs that the question needs, planned in as many rounds as it takes."""
    frame = pd.DataFrame(columns=["run_id"])
    for _ in range(rounds):
        rows = rows_of(question.needed("smoke", frame))
        cells = ["decayed" if run else "plain" for run in decayed(rows)]
        frame = planted_frame(rows.assign(arm=cells), EFFECTS).assign(arm="RMSN>SSM>None")
    return frame


EFFECTS = {"plain": 8.0}


def decayed(rows: pd.DataFrame) -> list[bool]:
    ids = {
        setting_id("curves", "smoke", DECAYED, lr, seed, tuple(changes.items()))
        for lr in lr_grid("curves", "smoke")
        for seed in (*NEW_TUNING_SEEDS, *QUESTION_SEEDS)
        for changes in ({}, DEEP)
    }
    return rows.run_id.isin(ids).tolist()


# cells


def test_a_cell_is_an_arm_with_settings_and_reads_what_it_writes():
    text = 'RMSN>SSM>GN; dt_init=zero; n_layers=8; norm_options={"n2": {"groups": 2}}'
    cell = Cell.parse(text)
    assert cell.arm == "RMSN>SSM>GN"
    assert cell.changes == {
        "n_layers": 8,
        "dt_init": "zero",
        "norm_options": {"n2": {"groups": 2}},
    }
    assert str(cell) == text
    assert Cell.parse(str(cell)) == cell
    assert cell.label.startswith("RMSN→GN; dt_init=zero; n_layers=8")
    assert Cell.parse("RMSN>SSM>GN") == ("RMSN>SSM>GN", {})
    preset = base_config("curves", "smoke", arm="preset:Falcon-Mamba")
    assert preset.norm_options  # a preset's options are part of its cell
    assert base_config("curves", "smoke", arm=str(Cell.parse("preset:Falcon-Mamba"))) == preset
    config = base_config("curves", "smoke", arm=text, seed=3)
    assert config == base_config("curves", "smoke", arm=cell.arm, seed=3, **cell.changes)
    assert setting_id("curves", "smoke", text, config.lr, 3) == config.run_id


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("RMSN>SSM>None; n_layer=8", "unknown field for a cell 'n_layer'.*did you mean 'n_layers'"),
        ("RMSN>SSM>None; n_layers", "a cell takes n_layers=VALUE"),
        ("RMSN>SSM>None; n_layers=0", "n_layers must be"),
        ("RMSN>SSM>None; lr=1e-3", "unknown field for a cell 'lr'"),
        ("RMSN>SSM>None; seed=3", "unknown field for a cell 'seed'"),
        ("RMSN>SSM>Non; n_layers=8", "unknown norm 'Non'"),
        ("RMSN>SSM>None; d_state=4; d_state=8", "d_state' is given twice"),
        ("RMSN>SSM>None; start=0123456789abcdef; dt_init=zero", "no effect with start"),
    ],
)
def test_a_cell_that_cannot_be_run_is_refused(cell, message):
    with pytest.raises(ValueError, match=message):
        Cell.parse(cell)


def test_a_setting_that_is_given_twice_is_refused():
    with pytest.raises(ValueError, match="'n_layers' is given twice"):
        base_config("curves", "smoke", arm="RMSN>SSM>None; n_layers=8", n_layers=2)


def test_two_cells_are_compared_as_two_arms_are(store):
    deep = "None>SSM>GN; n_layers=3"
    engine = dict(seeds=6, scale="smoke", workers=0, progress=False)
    row = study.compare(deep, "None>SSM>GN", "curves", **engine).iloc[0]
    assert row.n == 6
    depths = study.load_runs(scale="smoke").groupby("n_layers").size()
    assert depths.to_dict() == {2: 18, 3: 18}  # three rates on four seeds, and six test seeds
    for same in ("None>SSM>GN;n_layers=3;", "None>SSM>GN; d_state=4; n_layers=3"):
        with pytest.raises(ValueError, match="compared with itself"):
            study.compare(deep, same, "curves", **engine)


def test_cells_are_listed_apart_when_they_are_swept(store, capsys):
    cells = "RMSN>SSM>None,RMSN>SSM>None; betas=[0.8,0.9]; dt_init=zero"
    call = ["sweep", "--arms", cells, "--tasks", "curves", "--scale", "smoke", "--seeds", "2"]
    assert main([*call, "--workers", "0"]) == 0
    out = capsys.readouterr().out
    assert out.count("(2 runs") == 2
    assert "RMSN>SSM>None; betas=[0.8,0.9]; dt_init=zero" in out


# planning


def test_each_cell_is_tuned_first_and_then_tested_on_the_seeds_of_the_question():
    question = make_question()
    first = question.needed("smoke", pd.DataFrame(columns=["run_id"]))
    assert len(first) == 2 * 3 * 4  # cells, rates, seeds
    assert {config.seed for config in first} == set(NEW_TUNING_SEEDS)
    assert {(config.decay_ssm, config.n_layers) for config in first} == {(0.0, 2), (0.1, 2)}
    frame = known_rows(question)
    tested = frame[~frame.seed.isin(NEW_TUNING_SEEDS)]
    assert sorted(set(tested.seed)) == list(question.seeds)
    assert tested.groupby("n_layers").size().to_dict() == {2: 2 * 8, 3: 2 * 8}
    assert set(tested.lr) == {lr_grid("curves", "smoke")[1]}  # the best rate of `planted_frame`
    planned = question.needed("smoke", pd.DataFrame(columns=["run_id"]), is_plan=True)
    assert len(planned) == len(frame)


def test_a_question_keeps_the_rates_of_unchanged_settings_even_if_others_are_tuned():
    question = make_question()
    frame = known_rows(question)
    lowest = lr_grid("curves", "smoke")[0]
    deep = [
        base_config("curves", "smoke", arm="RMSN>SSM>None", seed=seed, lr=lr, **DEEP)
        for seed in NEW_TUNING_SEEDS
        for lr in lr_grid("curves", "smoke")
    ]
    tuned_deep = planted_frame(rows_of(deep), curve=(9.0, 0.0, 0.0))
    both = pd.concat([frame, tuned_deep], ignore_index=True)
    changed = Evidence(both, "smoke", changes=DEEP)
    assert changed.lr("RMSN>SSM>None", "curves") == lowest
    kept = Evidence(both, "smoke", changes=DEEP, keep_lrs=True)
    assert kept.lr("RMSN>SSM>None", "curves") != lowest
    assert question.judge(both, "smoke").table.equals(question.judge(frame, "smoke").table)


# answers


def test_an_answer_sets_each_prediction_beside_its_verdict():
    answer = make_question().judge(known_rows(make_question()), "smoke")
    assert [verdict.word for verdict in answer.verdicts] == ["supported", "supported"]
    assert answer.held == [True, False]
    assert answer.summary == "1 of 2 predictions held."
    assert answer.table.seeds.tolist() == [8, 8]
    assert answer.table.predicted.tolist() == ["supported", "no gain"]
    assert answer.table.difference.str.match(r"\+8\.\d points|\+[79]\.\d points").all()
    text = str(answer)
    assert "Plain is better. supported, by more than a point (predicted: supported)" in text
    assert answer.cells.set_index("name").cell["decayed"] == DECAYED
    assert answer.cells["learning rate"].nunique() == 1
    assert answer.table.rates.tolist() == [f"{answer.cells['learning rate'][0]:g}"] * 2
    assert answer.table.failed.tolist() == ["none", "none"]


def test_the_verdict_is_that_of_a_claim_with_the_same_comparison():
    question, frame = make_question(), known_rows(make_question())
    answer = question.judge(frame, "smoke")
    claim = question.claims[0]
    row = judge(claim, frame, scale="smoke", task="curves").main_row
    assert str(row) == str(answer.verdicts[0].main_row)  # as text, because NaN is not NaN
    per_seed = answer.verdicts[0].main_row.per_seed
    assert answer.verdicts[0].word == rule.comparison_verdict(per_seed, 1.0)


def test_runs_on_the_seeds_of_claims_have_no_part_in_a_question():
    question, frame = make_question(), known_rows(make_question())
    others = [
        base_config("curves", "smoke", arm=cell, seed=seed, lr=lr_grid("curves", "smoke")[1])
        for cell in question.cells.values()
        for seed in range(52, 60)
    ]
    reverse = planted_frame(
        rows_of(others).assign(arm=["plain"] * 8 + ["decayed"] * 8), {"decayed": 30.0}
    ).assign(arm="RMSN>SSM>None")
    both = pd.concat([frame, reverse], ignore_index=True)
    assert question.judge(both, "smoke").table.equals(question.judge(frame, "smoke").table)


def test_runs_of_questions_have_no_part_in_a_claim_or_in_a_comparison():
    frame = known_rows(make_question())
    claim_seeds = [
        base_config("curves", "smoke", arm=cell, seed=seed, lr=lr_grid("curves", "smoke")[1])
        for cell in make_question().cells.values()
        for seed in range(52, 58)
    ]
    names = ["plain"] * 6 + ["decayed"] * 6
    tested = planted_frame(rows_of(claim_seeds).assign(arm=names), {"decayed": 5.0})
    both = pd.concat([frame, tested.assign(arm="RMSN>SSM>None")], ignore_index=True)
    row = judge(make_question().claims[0], both, scale="smoke", task="curves").main_row
    assert row.n == 6
    assert row.word == "opposite"  # as in `tested`; in `frame` plain is better
    assert make_question().judge(both, "smoke").verdicts[0].word == "supported"
    assert check_test_seeds(25)[-2:] == (75, 88)
    assert not set(check_test_seeds(36)) & set(QUESTION_SEEDS)


def test_a_question_that_was_not_run_says_so():
    tuned = known_rows(
        make_question(), rounds=1
    )  # tuning runs, on which both cells could be compared
    for frame in (pd.DataFrame(), tuned):
        answer = make_question().judge(frame, "smoke")
        assert set(answer.table.verdict) == {"no runs"}
        assert answer.held == [False, False]
        assert answer.summary == "0 of 2 predictions held."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "../Q9"}, "the id of a question must be a word such as Q7"),
        ({"id": 7}, "the id of a question must be a word such as Q7"),
        ({"cells": {"plain": DECAYED, "decayed": DECAYED.replace(" ", "")}}, "with itself"),
        ({"cells": {"plain": "RMSN>SSM>None; n_layers=4", "decayed": "RMSN>SSM>None"}}, "itself"),
        ({"cells": {"plain": "RMSN>MHA>None", "decayed": DECAYED}}, "compare arms of one model"),
        ({"cells": {"plain": "RMSN>SSM>BN", "decayed": DECAYED}, "task": "pydoc"}, "BN"),
        ({"task": "nothing"}, "unknown task 'nothing'"),
        ({"task": "energy"}, "energy is a regression"),
        ({"seeds": range(3, 9)}, "test seeds are 52 to 99, got 3"),
        ({"seeds": 3}, "seeds must be a whole number from 6 to 12, got 3"),
        ({"seeds": 13}, "seeds must be a whole number from 6 to 12, got 13"),
        ({"seeds": "12"}, "a verdict needs at least 6 seeds, got '12'"),
        ({"seeds": [60]}, r"a verdict needs at least 6 seeds, got \[60\]"),
        ({"seeds": range(70, 80)}, "seeds 76 to 87 are those of questions: give only these"),
        ({"cells": {"plain": "RMSN>SSM>None"}}, "unknown cell 'decayed'"),
        ({"predictions": []}, "a question needs predictions"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make_question(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "yes"}, "unknown verdict 'yes'"),
        ({"verdict": "no word"}, "unknown verdict 'no word'"),
        ({"column": "sharpening", "smallest": 1.0}, "unknown column 'sharpening'"),
        ({"column": "growth"}, "column='growth' needs smallest=.*decades in 8 blocks"),
        ({"column": "growth", "smallest": -1.0}, "column='growth' needs smallest="),
        ({"weights": {"plain": 1}}, "a difference.*the cell that should lose has the weight -1"),
        ({"weights": {}}, "the weights must be those of a difference"),
        ({"changes": {"lr": 1e-3}}, "changes cannot have lr=0.001"),
        ({"changes": {"norm_options": {"groups": 2}}}, "changes cannot have norm_options="),
    ],
)
def test_a_prediction_that_says_nothing_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Prediction(**{"words": "x", "weights": {"a": 1, "b": -1}, "verdict": "no gain", **changes})


def test_a_prediction_must_fit_its_question():
    plain = {"plain": 1, "decayed": -1}
    with pytest.raises(ValueError, match="'decay_ssm' is given twice"):
        make_question(predictions=[Prediction("x", plain, "no gain", changes={"decay_ssm": 1.0})])
    grown = Prediction("x", plain, "no gain", column="growth", smallest=0.25)
    with pytest.raises(ValueError, match="growth is measured on seeds 76 to 87 only"):
        make_question(predictions=[grown], seeds=range(52, 60))
    question = make_question(predictions=grown, asked="https://example.org", seeds=12)
    assert question.predictions == (grown,)
    assert question.asked == ("https://example.org",)
    assert question.seeds == QUESTION_SEEDS


# asking


FILE = """
from mambanorm_study.claims import Prediction, Question

QUESTION = Question(
    id="Q7",
    words="Does a second norm help?",
    cells={"one": "RMSN>SSM>None", "two <b>": "RMSN>SSM>RMSN"},
    predictions=[Prediction("Two are better.", {"two <b>": 1, "one": -1}, "supported")],
)
"""


def test_a_question_of_yours_is_trained_answered_and_written_to_a_page(store, tmp_path):
    file = tmp_path / "my_question_of_tests.py"
    file.write_text(FILE)
    (question,) = asking.questions_in(file)
    answer = asking.ask(question, scale="smoke", workers=0, progress=False)
    assert answer.verdicts[0].n == 8
    assert len(study.load_runs(scale="smoke")) == 2 * (12 + 8)
    page = save_answer(answer, tmp_path / "out").read_text()
    assert page.count("<img ") == 1
    assert "Does a second norm help?" in page
    assert "two &lt;b&gt;" in page
    assert "<b>" not in page
    assert "http" not in page


def test_a_cell_that_the_model_of_the_task_cannot_have_is_named(store):
    cells = {"plain": "RMSN>SSM>None", "decayed": "RMSN>SSM>None; merge=mean"}
    with pytest.raises(ValueError, match="merge='mean' has no effect on the SequenceClassifier"):
        asking.ask(make_question(cells=cells), scale="smoke", workers=0, progress=False)


def test_a_file_that_was_edited_after_its_import_is_refused(tmp_path):
    file = tmp_path / "edited_question_of_tests.py"
    file.write_text(FILE)
    assert asking.questions_in(file) == asking.questions_in(file)
    file.write_text(FILE.replace("Two are", "Both are"))
    with pytest.raises(ValueError, match="edited after its import: restart the kernel"):
        asking.questions_in(file)


def test_on_texts_a_prediction_is_about_bits():
    question = make_question(task="pydoc")
    assert question.claims[0].comparisons[0].column == "bits"
    assert question.claims[0].comparisons[0].smallest == 0.01
    assert make_question().claims[0].comparisons[0].column == "score"


def test_a_file_without_a_question_is_refused(tmp_path):
    file = tmp_path / "no_question_of_tests.py"
    file.write_text("x = 1\n")
    with pytest.raises(ValueError, match="has no question: write QUESTION = Question"):
        asking.questions_in(file)


# the questions of notebook 16


@pytest.mark.parametrize("question", field.QUESTIONS.values(), ids=lambda one: one.id)
def test_the_questions_have_sources_predictions_and_seeds_that_no_claim_has(question):
    assert question.asked
    assert set(question.seeds) <= set(QUESTION_SEEDS)
    for claim in (study.CLAIMS | study.claims.BEYOND).values():
        if claim.runs == "tuned":
            assert not set(claim.seeds + claim.further_seeds) & set(question.seeds)
    for claim in question.claims:
        assert claim.comparisons[0].weights


def test_arms_of_the_study_are_not_tuned_again():
    known = asking.known_answers()
    for question in field.QUESTIONS.values():
        needed = question.needed("evening", known)
        tuned = {run.arm for run in needed if run.seed in NEW_TUNING_SEEDS and is_plain(run)}
        assert tuned <= {"RMSN>SSM>DyT", "RMSN>SSM>Derf", "RMSN>SSM>None+branch:RMSN"}


def is_plain(run: RunConfig) -> bool:
    return run == base_config(run.task, run.scale, arm=run.arm, seed=run.seed, lr=run.lr)


# the measured columns


def test_runs_of_questions_have_growth_sizes_of_a_and_d_and_the_step_of_a_loss(store):
    configs = [
        base_config("curves", "smoke", seed=seed, lr=lr, steps=40, eval_every=10)
        for seed, lr in ((76, 2e-2), (52, 2e-2), (77, 1e-9))
    ]
    rows = study.with_summaries(study.sweep(configs, workers=0, progress=False)).set_index("seed")
    for seed in (76, 77):
        weights = study.find_run(configs[0].but(seed=seed, lr=rows.lr[seed])).checkpoint
        A = [value.exp() for name, value in weights.items() if name.endswith("A_log")]
        D = [value for name, value in weights.items() if name.endswith(".D")]
        assert rows.smallest_a[seed] == pytest.approx(float(min(value.min() for value in A)))
        assert rows.largest_a[seed] == pytest.approx(float(max(value.max() for value in A)))
        assert rows.mean_d[seed] == pytest.approx(float(sum(value.mean() for value in D) / len(D)))
        assert math.isfinite(rows.growth[seed])
    assert rows.loc[52, ["smallest_a", "mean_d", "steps_to_loss", "growth"]].isna().all()
    assert rows.steps_to_loss[77] == 40  # it never learns


def test_the_step_of_a_loss_lies_between_two_evaluations():
    curves = pd.DataFrame({"step": range(1, 7), "val_loss": [None, 3.0, None, 1.5, None, 0.5]})
    run = SimpleNamespace(
        config=SimpleNamespace(steps=6), curves=curves, facts={"status": "ok"}, checkpoint={}
    )
    assert question_facts(run) == {"steps_to_loss": 5.0}
    run.facts["status"] = "diverged"
    assert question_facts(run) == {"steps_to_loss": 6.0}
    run.facts["status"], curves.loc[1, "val_loss"] = "ok", 0.9
    assert question_facts(run) == {"steps_to_loss": 2.0}


# the commands


def test_the_command_asks_a_file_and_plans_without_training(store, tmp_path, capsys):
    file = tmp_path / "asked_by_command.py"
    file.write_text(FILE)
    call = ["ask", str(file), "--scale", "smoke", "--workers", "0", "--out", str(tmp_path / "out")]
    assert main([*call, "--dry-run"]) == 0
    assert "40 missing" in capsys.readouterr().out  # tuning and test runs
    assert not list(tmp_path.rglob("*.html"))
    assert main(call) == 0
    out = capsys.readouterr().out
    assert "Q7: Does a second norm help?" in out
    assert "predicted: supported" in out
    assert (tmp_path / "out" / "Q7.html").is_file()
    assert main(["ask", str(tmp_path / "missing.py")]) == 2


def test_the_recording_of_questions_has_its_own_parts_and_file(store, tmp_path, capsys):
    assert main(["record", "--scale", "evening", "--questions", "--dry-run"]) == 0
    listed = capsys.readouterr().out
    places = [listed.index(f"{name}, ") for name in ("Q1", "Q2", "Q5", "Q4", "Q3", "Q6")]
    assert places == sorted(places)
    for wrong in (["--tasks", "digits"], ["--seeds", "52-57"], ["--scale", "smoke"]):
        assert main(["record", "--questions", "--scale", "evening", *wrong]) == 2
        assert "leave out --seeds and --tasks" in capsys.readouterr().err
    parts = recording.parts("evening", questions=True)
    assert sum(len(part.seeds) for part in parts) == sum(
        len(question.seeds) for question in field.QUESTIONS.values()
    )


def test_the_predictions_are_those_that_were_committed_before_the_runs():
    (commit,) = set(read_recorded(asking.FIELD_RESULTS).protocol_commit)
    source = subprocess.run(
        ["git", "show", f"{commit}:mambanorm_study/claims/field.py"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if source.returncode:
        pytest.skip(f"the history of this checkout does not have commit {commit}")
    committed: dict = {}
    exec(source.stdout, committed)
    assert committed["QUESTIONS"] == field.QUESTIONS
