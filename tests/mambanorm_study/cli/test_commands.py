"""Claims about the command line: help, errors with the nearest name, dry runs, and reuse of stored
runs.
"""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from mambanorm_study import base_config, claims
from mambanorm_study.cli import recording, training as train_command
from mambanorm_study.cli.main import COMMANDS, main
from mambanorm_study.report import study as report
from mambanorm_study.runs import worker
from mambanorm_study.runs.grid import parse_changes
from mambanorm_study.tasks import TASKS

plan_module = import_module("mambanorm_study.tables.plan")  # mambanorm.plan is the function
sweep_module = import_module("mambanorm_study.runs.sweep")  # mambanorm.sweep is the function
pytestmark = pytest.mark.usefixtures("store")


def call(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(argv)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    code, out, _ = call(capsys, command, "--help")
    assert code == 0
    assert "examples:" in out
    assert f"mambanorm {command}" in out


@pytest.fixture
def notebook_folder(tmp_path, monkeypatch):
    from mambanorm_study.report import notebooks as report

    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "03_type.ipynb").write_text("{}")
    monkeypatch.setattr(report, "NOTEBOOK_FOLDER", tmp_path / "notebooks")


def test_values_are_read_by_the_type_of_the_field():
    assert parse_changes(["squeeze_excite=True"]) == {"squeeze_excite": True}
    with pytest.raises(ValueError, match="squeeze_excite must be True or False, got 'yes'"):
        base_config(**parse_changes(["squeeze_excite=yes"]))
    assert parse_changes(["lr=0.5", "teacher=1234567890123456"]) == {
        "lr": 0.5,
        "teacher": "1234567890123456",
    }
    changes = parse_changes(
        ["lr=1e-3", "n_layers=8", "schedule=constant_warmup", 'norm_options={"groups": 2}']
    )
    assert changes == {
        "lr": 1e-3,
        "n_layers": 8,
        "schedule": "constant_warmup",
        "norm_options": {"groups": 2},
    }
    assert base_config(**changes).n_layers == 8


def test_train_stores_a_run_and_a_second_call_reuses_it(capsys, monkeypatch, store):
    argv = [
        "train",
        "--arm",
        "RMSN→SSM→GN",
        "--scale",
        "smoke",
        "--seed",
        "3",
        "--set",
        "steps=2",
        "--workers",
        "0",
    ]
    code, out, _ = call(capsys, *argv)
    assert code == 0
    assert "RMSN>SSM>GN on digits, seed 3" in out
    assert "chance is 10.0 %" in out
    assert len(list(store.iterdir())) == 1
    assert str(next(store.iterdir())) in out

    monkeypatch.setattr(train_command, "_train", lambda *_: pytest.fail("the store has this run"))
    code, again, _ = call(capsys, *argv)
    assert code == 0
    assert again == "Already stored, nothing to train:\n" + out


def test_a_run_that_diverges_is_a_result(capsys):
    arguments = [
        "--scale",
        "smoke",
        "--set",
        "lr=1e30",
        "--set",
        "warmup_steps=0",
        "--set",
        "weight_decay=0",
    ]
    code, out, _ = call(capsys, "train", "--arm", "None>SSM>None", *arguments)
    assert code == 0
    assert "diverged        at step 2, first in" in out


def test_sweep_prints_a_row_an_arm_and_trains_nothing_twice(capsys, monkeypatch):
    arms = "RMSN>SSM>None,preset:VMamba"
    argv = [
        "sweep",
        "--arms",
        arms,
        "--scale",
        "smoke",
        "--seeds",
        "0,3",
        "--workers",
        "0",
        "--set",
        "steps=2",
    ]
    code, out, _ = call(capsys, *argv)
    assert code == 0
    rows = [line.split() for line in out.splitlines() if ">SSM>" in line]
    assert [row[0] for row in rows] == ["RMSN>SSM>None", "LN>SSM>LN"]
    assert all(row[2] == "±" and row[-2:] == ["(2", "runs)"] for row in rows)

    monkeypatch.setattr(worker, "train", lambda _: pytest.fail("the store has this run"))
    assert call(capsys, *argv)[:2] == (0, out)


def test_a_dry_run_counts_and_estimates_and_trains_nothing(capsys, store):
    common = ["--scale", "smoke", "--workers", "0"]
    code, out, _ = call(capsys, "sweep", "--grid", "type", "--dry-run", *common)
    assert code == 0
    assert "6 runs asked for, 0 in the store" in out
    assert "6 missing" in out
    assert "Training takes about" in out
    assert "a few steps of one run on digits, timed just now" in out
    assert not store.exists()

    call(capsys, "train", "--arm", "LN>SSM>LN", *common)
    _, out, _ = call(capsys, "sweep", "--grid", "type", "--dry-run", *common)
    assert "6 runs asked for, 1 in the store" in out
    _, out, _ = call(capsys, "train", "--arm", "LN>SSM>LN", "--dry-run", *common)
    assert "1 run asked for, 1 in the store" in out
    assert "about" not in out


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--set", 'norm_options={"eps": NaN}'], "eps must be 0 or above, got nan"),
        (["--set", "batch_size=121"], "batch_size=121 is beyond the 120 training rows of digits"),
        (["--set", "label_smoothing=0.1", "--tasks", "energy"], "energy is a regression"),
        (
            ["--set", "down_sample=[1]"],
            "down_sample=(1,) has no effect on the SequenceClassifier that digits needs",
        ),
        (["--runs-dir", "FILE/below"], "below cannot hold the run store: Not a directory"),
    ],
    ids=lambda part: part[1] if isinstance(part, list) else "",
)
def test_a_dry_run_refuses_what_training_refuses(option, said, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    option = [part.replace("FILE", str(tmp_path / "file")) for part in option]
    for argv in (
        ["train", "--arm", "LN>SSM>LN"],
        ["sweep", "--arms", "LN>SSM>LN", "--workers", "0"],
    ):
        code, out, err = call(capsys, *argv, "--scale", "smoke", *option, "--dry-run")
        assert said in err
        assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)


@pytest.mark.parametrize("argv", [["study", "--notebooks", "03"], ["record", "--seeds", "1"]])
def test_a_dry_run_refuses_a_place_that_nothing_can_be_written_to(argv, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = call(
        capsys,
        *argv,
        "--scale",
        "smoke",
        "--dry-run",
        "--out",
        str(tmp_path / "file" / "below" / "x"),
    )
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "below" in err


HOURS = ["--scale", "smoke", "--workers", "0", "--set", "steps=100000000"]
LONG = {
    "train": ["train", "--arm", "RMSN>SSM>None", *HOURS],
    "sweep": ["sweep", "--grid", "type", *HOURS],
    "verdicts": ["verdicts", "--scale", "quick", "--seeds", "8"],
    "record": ["record", "--scale", "quick", "--seeds", "1"],
    "study": ["study", "--scale", "lab", "--seeds", "1", "--tasks", "digits"],
}


@pytest.mark.parametrize("name", LONG)
def test_a_training_of_hours_is_announced(name, capsys, monkeypatch, tmp_path):
    class Begun(Exception):
        pass

    def begin(*_, **__):
        raise Begun

    monkeypatch.setattr(plan_module, "training_seconds", lambda *_: 200_000.0)
    places = {train_command: "_train", sweep_module: "sweep", report: "run_study"}
    for module, trains in [
        *places.items(),
        (claims, "train_verdicts"),
        (recording, "record_results"),
    ]:
        monkeypatch.setattr(module, trains, begin)
    argv = LONG[name] + (["--out", str(tmp_path / "out.parquet")] if name == "record" else [])
    code, _, err = call(capsys, *argv)
    assert re.search(r"Training takes about \d+ h", err)
    assert (code, "Begun" in err) == (1, True)


def test_a_training_of_minutes_is_not_announced(capsys, monkeypatch):
    monkeypatch.setattr(
        plan_module, "training_seconds", lambda *_: pytest.fail("too short to be estimated")
    )
    assert call(capsys, "train", "--arm", "RMSN>SSM>None", "--scale", "smoke")[0] == 0


def test_a_regression_is_shown_in_the_units_of_its_target(capsys, store):
    assert main(["train", "--arm", "AutoNorm", "--task", "diabetes"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"test R² .* test RMSE \d+\.\d+ \(of predicting the training mean: \d+", out)
    assert (
        main(
            ["sweep", "--arms", "AutoNorm", "--tasks", "diabetes", "--seeds", "1", "--workers", "0"]
        )
        == 0
    )
    assert re.search(
        r"diabetes: R² on test.*\(RMSE \d+\.\d+, 1 run", " ".join(capsys.readouterr().out.split())
    )


def test_a_dry_run_needs_no_data_and_that_of_the_study_counts_the_runs_of_the_notebooks(
    capsys, notebook_folder
):
    """Neither IMDB nor Pathfinder's pictures are there."""
    code, out, _ = call(
        capsys,
        "sweep",
        "--arms",
        "RMSN>SSM>None",
        "--tasks",
        "imdb,pathfinder32",
        "--scale",
        "quick",
        "--dry-run",
    )
    assert code == 0
    assert "6 runs asked for" in out
    assert "a few steps of one run on imdb, pathfinder32, timed just now" in out
    argv = [
        "study",
        "--dry-run",
        "--scale",
        "smoke",
        "--tasks",
        "digits",
        "--seeds",
        "2",
        "--notebooks",
        "03",
    ]
    code, out, _ = call(capsys, *argv)
    assert code == 0
    assert "12 runs asked for" in out
    assert "03_type" in out


def test_an_interrupt_says_how_to_go_on(capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command, "_train", interrupt)
    code, _, err = call(capsys, "train", "--arm", "LN>SSM>LN", "--scale", "smoke")
    assert code == 130
    assert "Finished runs are stored" in err


def test_a_missing_or_empty_store_has_no_runs(capsys, store):
    code, out, _ = call(capsys, "runs")
    assert code == 0
    assert out.startswith(f"0 runs in {store}")


def test_runs_are_listed(capsys):
    call(capsys, "train", "--arm", "LN>SSM>None", "--scale", "smoke", "--set", "steps=2")
    _, out, _ = call(capsys, "runs", "--tasks", "digits", "--seeds", "1")
    assert out.startswith("1 run in")
    assert "LN>SSM>None" in out


def test_tasks_lists_titles_sources_and_scales(capsys):
    code, out, _ = call(capsys, "tasks")
    assert code == 0
    for word in (*TASKS, "Alpaydin", "see --prepare", "smoke", "paper"):
        assert word in out
