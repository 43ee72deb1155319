"""Claims about notebooks and tasks: each takes a task or refuses it by name, and compares arms on
the same seeds.

`python -m benchmarks.notebook_matrix` executes every notebook with a task of every kind; here are a
few of these.
"""

import os
import re
import subprocess
import sys

import nbformat
import pytest

import mambanorm_clinic as clinic
import mambanorm_study as study
from benchmarks.notebook_matrix import KINDS, verdict
from mambanorm_study import advice
from mambanorm_study.basics.settings import ROOT, SCALES
from mambanorm_study.lessons import trained
from mambanorm_study.report.execute import run_notebook
from mambanorm_study.report.notebooks import find_notebooks
from mambanorm_study.report.plan import is_left_out
from mambanorm_study.runs.presets import PAPER
from mambanorm_study.runs.recorded_results import recorded_lr
from mambanorm_study.tables import scores
from mambanorm_study.tables.experiments import GRID_ARMS, VALIDATION_ARMS
from mambanorm_study.tables.notebook_runs import NOTEBOOKS, check_usable_tasks, usable_tasks


@pytest.mark.parametrize("task", KINDS.values())
def test_a_notebook_has_runs_of_a_task_or_names_the_tasks_that_it_takes(task):
    for scale in SCALES:
        plan = study.notebook_runs(scale, [task], seeds=1)
        for name in plan:
            if usable_tasks(name, [task], scale):
                assert plan.runs_of(name), (name, scale)
            elif name != "07_diagnostics":  # which always looks at the digits
                with pytest.raises(
                    ValueError, match=rf"^notebook {name} takes .*, got tasks=\['{task}'\]: .*$"
                ) as said:
                    plan.runs_of(name)
                assert ", ".join(usable_tasks(name, PAPER, scale)) in str(said.value)


def test_a_notebook_says_which_of_its_tasks_it_leaves_out_and_knows_no_other_names(capsys):
    assert {
        config.task
        for config in study.notebook_runs("smoke", ["digits", "pydoc"]).runs_of("03_type")
    } == {"digits"}
    assert capsys.readouterr().out == "Not used in this notebook: pydoc\n"
    with pytest.raises(ValueError, match="unknown task 'digts'"):
        study.notebook_runs("smoke", ["digts"]).runs_of("03_type")
    assert check_usable_tasks("15_your_norm", None, "smoke") is None
    assert check_usable_tasks("15_your_norm", ["digits", "diabetes", "pydoc"], "smoke") == [
        "digits",
        "pydoc",
    ]
    with pytest.raises(
        ValueError, match="notebook 15_your_norm takes digits, .*, got tasks=\\['diabetes'\\]"
    ):
        check_usable_tasks("15_your_norm", "diabetes", "smoke")


def test_a_study_leaves_out_the_notebooks_that_take_none_of_its_tasks():
    plan = study.notebook_runs("smoke", ["diabetes"])
    kept = [
        p.stem for p in find_notebooks() if not is_left_out(p.stem, plan, ["diabetes"], "smoke")
    ]
    assert [name[:2] for name in kept] == ["01", "02", "07", "10", "11", "12", "14", "16"]


def test_the_tasks_that_are_given_are_those_of_notebook_00_at_every_scale():
    for scale in SCALES:
        assert {
            config.task for config in study.notebook_runs(scale, ["curves"])["00_start_here"]
        } == {"curves"}
        assert {config.task for config in study.notebook_runs(scale)["00_start_here"]} == {"digits"}


@pytest.mark.parametrize(
    "task", ["listops", "glyphs", "mnist1d", "curves", "glyphs_images", "digits", "digits_images"]
)
def test_all_arms_of_a_notebook_share_seeds_whatever_is_recorded(task):
    for scale in ("quick", "evening"):
        plan = study.notebook_runs(scale, [task], source="auto")
        for name in plan:
            seeds = {}
            for config in plan[name]:
                seeds.setdefault((config.task, config.arm), set()).add(config.seed)
            for of in {key[0] for key in seeds}:
                assert set.intersection(*(found for key, found in seeds.items() if key[0] == of)), (
                    name,
                    scale,
                    of,
                )


def test_missing_arms_are_trained_on_the_seeds_of_the_recorded_ones():
    runs = study.notebook_runs("evening", ["listops"], source="auto")["08_validation"]
    known = {arm: recorded_lr("listops", str(arm), "evening") for arm in VALIDATION_ARMS}
    assert None in known.values()
    assert {config.arm for config in runs} == set(map(str, VALIDATION_ARMS))
    assert {config.seed for config in runs} == set(known[VALIDATION_ARMS[0]][1])
    grid = study.notebook_runs("quick", ["listops"], source="auto")[
        "05_combination"
    ]  # of which half is recorded
    assert {config.arm for config in grid} == set(map(str, GRID_ARMS))


def rows_of(text: str) -> dict[str, str]:
    """Return notebook → its question, from the rows of a Markdown table."""
    rows = re.findall(r"^\| \[(\d\d_\w+)\]\(\S+\) \| (.*) \|$", text, re.MULTILINE)
    return {name: re.sub(r" \(.*\)$", "", question) for name, question in rows}


def test_the_notebooks_are_listed_with_their_questions():
    questions = {name: notebook.question for name, notebook in NOTEBOOKS.items()}
    assert [path.stem for path in find_notebooks()] == list(questions)
    assert rows_of((ROOT / "README.md").read_text("utf-8")) == questions
    cells = nbformat.read(find_notebooks("00")[0], as_version=4).cells
    (table,) = [cell.source for cell in cells if "| [03_type]" in cell.source]
    assert rows_of(table) == {name: questions[name] for name in questions if name[:2] != "00"}


NUMBERS = {
    "most notebooks": lambda seeds: study.notebook_runs("smoke", seeds=seeds),
    "01": lambda seeds: trained.batch_norm_curves("smoke", seeds),
    "02": lambda seeds: trained.parts_of_a_block("smoke", seeds),
    "11": lambda seeds: advice.measure("style", scale="smoke", seeds=seeds),
    "12": lambda seeds: scores.runs_to_judge("evening", seeds=seeds),
    "15": lambda seeds: clinic.norm_card("GN", seeds=seeds, train=False),
}


@pytest.mark.parametrize("read", NUMBERS.values(), ids=NUMBERS)
def test_a_wrong_number_of_seeds_is_told_as_such(read):
    for wrong, said in (
        (-1, "from 1 to 100, got -1"),
        ("3", "got '3'"),
        (10**30, "from 1 to 100, got 1"),
    ):
        with pytest.raises(ValueError, match=said) as error:
            read(wrong)
        assert "number of seeds" in str(error.value)


FEW = [
    ("00", "glyphs", "works"),  # four values a position
    ("00", "listops", "refused"),
    ("08", "listops", "works"),
    ("10", "digits_images", "works"),
    ("10", "diabetes", "works"),
    ("12", "pydoc", "works"),
    ("15", "diabetes", "refused"),
]


@pytest.mark.parametrize(("notebook", "task", "found"), FEW)
def test_a_notebook_runs_with_another_task_than_its_own_or_refuses_it(
    notebook, task, found, tmp_path
):
    given = dict(scale="smoke", seeds=1, tasks=[task])
    assert verdict(run_notebook(find_notebooks(notebook)[0], tmp_path, given)) == found


def test_notebook_03_has_no_column_of_a_task_without_the_same_norm_twice():
    cells = nbformat.read(find_notebooks("03")[0], as_version=4).cells
    (cell,) = [cell for cell in cells if "advice.rankings(known, TRAINED_TASKS" in cell.source]
    table = cell.outputs[0].data["text/html"]
    first, *_ = re.findall("<tr>.*?</tr>", table, re.DOTALL)
    leading = re.findall("<td>(.*?)</td>", first)
    assert len(leading) >= 4
    assert all(leading)


SAID = """import os

def pytest_collection_finish(session):
    print(os.environ["MAMBANORM_SCALE"], os.environ["MAMBANORM_RUNS_DIR"])
"""


@pytest.mark.parametrize(
    "given", [{}, {"MAMBANORM_SCALE": "quick", "MAMBANORM_RUNS_DIR": "elsewhere"}]
)
def test_notebooks_alone_are_tested_at_smoke_and_in_a_temporary_store(given, tmp_path):
    (tmp_path / "said.py").write_text(SAID)
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAMBANORM_")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "said",
        "--collect-only",
        "--nbval-lax",
        "notebooks/03_type.ipynb",
    ]
    env |= given | {"PYTHONPATH": str(tmp_path)}
    out = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout
    if given:
        assert "quick elsewhere" in out
    else:
        (store,) = [line.split()[1] for line in out.splitlines() if line.startswith("smoke ")]
        assert "mambanorm-notebooks-" in store
        assert not os.path.exists(store)  # deleted at the end
