"""Claims about the report: parameters arrive, a failing notebook does not stop the others, and the
page shows everything.
"""

import base64
import html
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from urllib.parse import unquote

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

import mambanorm_study as study
from mambanorm_study import base_config
from mambanorm_study.advice.first_page import FINDINGS
from mambanorm_study.answers.sentences import without_braces
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.report import execute as report, study as whole_study
from mambanorm_study.report.execute import run_notebook
from mambanorm_study.report.notebook_page import render_markdown, to_html
from mambanorm_study.report.notebooks import find_notebooks, read_outcome
from mambanorm_study.report.page import key_lines, markdown
from mambanorm_study.report.plan import plan_study
from mambanorm_study.report.study import run_study, write_report
from mambanorm_study.tables import budget

WIDGET = "application/vnd.jupyter.widget-view+json"
PARAMETERS = """\
scale: str = None  # None = the environment's
seeds: int = None
tasks: list = None
runs_dir: str = None
scheduler: str = None
"""


def png(width=1600, height=800) -> str:
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def code(source: str, *tags: str):
    return new_code_cell(source, metadata={"tags": list(tags)})


def answer(expressions: str):
    """Return a cell that displays expressions as the answer."""
    return code(
        f"import os\nfrom IPython.display import Markdown\nMarkdown(' '.join(map(str, [{expressions}])))",
        "answer",
    )


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """Return a function that writes a tiny notebook into the folder that replaces the study's:
    `notebooks("01_a", cell, …)`.
    """
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setattr("mambanorm_study.report.notebooks.NOTEBOOK_FOLDER", folder)

    def write(name, *cells):
        opening = new_markdown_cell(
            f"# Title of {name}\n\n**Question.** Does {name}\nwork?\n\nMore text."
        )
        nbformat.write(
            new_notebook(cells=[opening, code(PARAMETERS, "parameters"), *cells]),
            folder / f"{name}.ipynb",
        )
        return folder / f"{name}.ipynb"

    return write


def test_parameters_are_injected_and_the_kernel_runs_in_the_notebooks_folder(notebooks, tmp_path):
    path = notebooks("01_a", answer("scale, seeds, tasks, runs_dir, os.getcwd()"))
    outcome = run_notebook(
        path,
        out := tmp_path / "new" / "{out}",
        {"scale": "smoke", "seeds": [0, 3], "tasks": ["digits"]},
    )
    assert not outcome.problem
    assert outcome.answer == f"smoke [0, 3] ['digits'] None {path.parent}"
    assert (outcome.title, outcome.question) == ("Title of 01_a", "Does 01_a\nwork?")
    assert outcome.wall_s > 0
    assert outcome.executed
    assert os.listdir(out) == ["01_a.ipynb"]
    assert "new" not in outcome.notebook.read_text()  # the file does not name its folder


def test_notebooks_are_found_by_their_beginning_and_an_unknown_one_names_the_nearest(notebooks):
    for name in ("00_start_here", "03_type", "04_position"):
        notebooks(name)
    assert [path.stem for path in find_notebooks()] == ["00_start_here", "03_type", "04_position"]
    assert [path.stem for path in find_notebooks(["04_position", "03"])] == [
        "03_type",
        "04_position",
    ]
    with pytest.raises(ValueError, match=r"'03_tipe'.*did you mean '03_type'"):
        find_notebooks(["03_tipe"])


def test_a_failing_notebook_is_reported_and_does_not_stop_the_others(notebooks, tmp_path):
    first = notebooks("01_fails", code("before = 1"), code("# the culprit\n1 / 0"), answer("1"))
    second = notebooks("02_dies", code("import os\nos._exit(3)"), code("late = 1"))
    variables = "os.environ['OMP_NUM_THREADS'], os.environ['NUMBA_NUM_THREADS']"
    third = notebooks("03_fine", answer(variables))
    fourth = notebooks("04_damaged")
    fourth.write_text("{")
    paths = [first, second, third, fourth]
    failed, dead, fine, damaged = report.execute(paths, tmp_path, {})
    assert failed.error == "cell [3]: ZeroDivisionError: division by zero"
    assert (failed.title, failed.answer) == ("Title of 01_fails", "")
    assert dead.error.startswith("DeadKernelError")
    assert "NotJSONError" in damaged.error
    assert "ZeroDivisionError" in to_html(failed)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = max(1, cores // min(2, cores))  # at most two kernels at a time
    assert (fine.error, fine.answer) == ("", f"{share} {share}")


SLOW = """
import sys
from pathlib import Path
from mambanorm_study.report.execute import execute
execute([Path(sys.argv[1])], Path(sys.argv[2]), {})
"""


def test_an_interrupt_leaves_no_kernel_and_no_file_behind(notebooks, tmp_path):
    path = notebooks("01_slow", code("import time\nopen('started', 'w')\ntime.sleep(60)"))
    command = [sys.executable, "-c", SLOW, str(path), str(tmp_path / "out")]
    process = psutil.Popen(command, stderr=subprocess.PIPE, cwd=ROOT)
    while not path.with_name("started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    kernels = process.children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert kernels
    assert not any(kernel.is_running() for kernel in kernels)
    assert not (tmp_path / "out").exists()


# the whole study


def replace_runs(monkeypatch, study):
    """Replace the runs of the notebooks."""
    monkeypatch.setattr("mambanorm_study.report.plan.notebook_runs", study)


@pytest.fixture
def small_study(notebooks, store, monkeypatch):
    """Make a study of two notebooks and two runs."""
    runs = [base_config("digits", "smoke", arm=arm) for arm in ("RMSN>SSM>None", "RMSN>SSM>GN")]
    replace_runs(monkeypatch, lambda *_: {"01_a": runs, "02_b": runs[:1]})
    notebooks("01_a", answer("scale, seeds, tasks, runs_dir, scheduler"))
    notebooks(
        "02_b", code("import mambanorm_study"), answer("len(mambanorm_study.load_runs(runs_dir))")
    )


def test_the_study_trains_once_and_reports(small_study, tmp_path, capsys, monkeypatch):
    out = tmp_path / "reports"
    runs_dir = tmp_path / "my runs"
    first = run_study(plan_study("smoke", runs_dir=runs_dir), out_dir=out, workers=0)
    assert [outcome.answer for outcome in first] == [
        f"smoke None None {tmp_path}/my runs None",
        "2",
    ]
    assert (out / "index.html").as_uri() in capsys.readouterr().out
    assert "2, of which 2 trained this time" in (out / "index.html").read_text()

    monkeypatch.setattr(
        whole_study, "sweep", lambda *_, **__: pytest.fail("nothing is missing, and yet it trains")
    )
    plan = plan_study("smoke", runs_dir=runs_dir, notebooks=["02"])
    second = run_study(plan, out_dir=out, workers=0)
    assert [outcome.name for outcome in second] == ["02_b"]
    page = (out / "index.html").read_text()
    assert "Title of 01_a" in page  # from the first time
    assert re.search(r", executed 20\d\d-\d\d-\d\d \d\d:\d\d UTC", page)


def test_a_study_leaves_out_what_it_has_no_time_for_and_says_so(
    small_study, tmp_path, capsys, monkeypatch
):
    """And its notebooks train no further runs."""
    monkeypatch.setattr(budget, "training_seconds", lambda _: 9e9)
    options = dict(out_dir=tmp_path / "out", workers=0)
    plan = plan_study("smoke")
    plan = replace(plan, optional=plan.to_train["01_a"][1:])
    run_study(plan, **options, minutes=0.5)
    said, page = capsys.readouterr().out, (tmp_path / "out" / "index.html").read_text()
    assert "about 0 of 1 fresh run fit in 30 s (--minutes " in said
    assert "1, of which 1 trained this time" in page
    for text in (said, page):
        assert "1 fresh run, because" in text
        assert "within 0.5 minutes of training" in text
    run_study(plan, **options, minutes=None)
    assert "2, of which 1 trained this time" in (tmp_path / "out" / "index.html").read_text()
    assert "Left out" not in (tmp_path / "out" / "index.html").read_text()


def test_a_second_study_executes_only_what_has_changed(small_study, tmp_path, capsys, monkeypatch):
    runs_dir, out = tmp_path / "store", tmp_path / "out"

    def executed():
        """Return the notebooks that a study executes, and look whether it reports on all."""
        called = []

        def execute(paths, out_dir, parameters, seconds):
            called.extend(path.stem for path in paths)
            return report.execute(paths, out_dir, parameters, seconds)

        monkeypatch.setattr(whole_study, "execute", execute)
        plan = plan_study("smoke", runs_dir=runs_dir)
        outcomes = run_study(plan, out_dir=out, workers=0)
        assert sorted(outcome.name for outcome in outcomes) == ["01_a", "02_b"]
        return called

    assert executed() == ["01_a", "02_b"]
    assert executed() == []
    assert "2 notebooks up to date in " in capsys.readouterr().out
    path = next(path for path in find_notebooks() if path.stem == "02_b")
    path.write_text(path.read_text().replace("More text", "Another text"))
    assert executed() == ["02_b"]
    (runs_dir / "0123456789abcdef").mkdir()  # a run of the user's own
    assert executed() == ["01_a", "02_b"]
    monkeypatch.setenv("MAMBANORM_SOURCE", "auto")
    assert executed() == ["01_a", "02_b"]
    nb = nbformat.read(out / "01_a.ipynb", as_version=4)
    nb.metadata.papermill.error = "it failed"
    nbformat.write(nb, out / "01_a.ipynb")
    assert executed() == ["01_a"]
    (out / "01_a.ipynb").write_text('{"cells": [')  # a damaged file
    assert executed() == ["01_a"]
    (runs_dir / ".resume-0123").mkdir()  # what is no run does not matter
    assert executed() == []
    (out / "02_b.ipynb").unlink()
    assert executed() == ["02_b"]


def test_notebooks_that_a_study_has_no_time_for_are_shown_and_executed_later(
    small_study, tmp_path, capsys, monkeypatch
):
    options = dict(out_dir=tmp_path / "out", workers=0, all_notebooks=False)
    plan = plan_study("smoke", runs_dir=tmp_path / "store")
    monkeypatch.setattr(whole_study, "NOTEBOOK_SECONDS", {"trained": -1.0, "not trained": 60.0})
    skipped = run_study(plan, **options)
    assert [(outcome.name, outcome.skipped, outcome.problem) for outcome in skipped] == [
        ("01_a", True, ""),
        ("02_b", True, ""),
    ]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("as published, not executed here") == 2
    assert "0 of 2 notebooks ran through; the next study executes the others" in page
    assert "2 notebooks, for lack of time: the next study executes them (01_a, 02_b)" in page
    assert "skipped 01_a  no time left; the next study executes it" in capsys.readouterr().out
    executed = run_study(plan, **options)
    assert not any(outcome.skipped for outcome in executed)
    answers = [outcome.answer for outcome in executed]
    # nothing is trained now: a notebook that is out of date but skipped keeps its earlier outputs
    monkeypatch.setattr(whole_study, "NOTEBOOK_SECONDS", {"trained": 60.0, "not trained": -1.0})
    monkeypatch.setenv("MAMBANORM_SOURCE", "auto")
    (tmp_path / "out" / "02_b.ipynb").write_text('{"cells": [')  # damaged: shown as published
    assert [outcome.skipped for outcome in run_study(plan, **options)] == [True, True]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("as published, not executed here") == 1
    monkeypatch.setattr(whole_study, "NOTEBOOK_SECONDS", {"trained": 60.0, "not trained": 60.0})
    executed = sorted(run_study(plan, **options), key=lambda outcome: outcome.name)
    answers = [outcome.answer for outcome in executed]
    monkeypatch.setattr(whole_study, "NOTEBOOK_SECONDS", {"trained": 60.0, "not trained": -1.0})
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    for _ in range(2):  # and still counts as out of date
        kept = sorted(run_study(plan, **options), key=lambda outcome: outcome.name)
        assert [outcome.answer for outcome in kept] == answers
        assert all(outcome.skipped and outcome.executed for outcome in kept)
        assert "UTC by an earlier study" in (tmp_path / "out" / "index.html").read_text()


def test_what_was_executed_longest_ago_comes_first(small_study, tmp_path, monkeypatch):
    """So that every notebook has its turn, although each study has little time."""
    plan = plan_study("smoke", runs_dir=tmp_path / "store", notebooks=["02"])
    run_study(plan, out_dir=tmp_path / "out", workers=0)
    orders = []

    def execute(paths, *arguments):
        orders.append([path.stem for path in paths])
        return report.execute(paths, *arguments)

    monkeypatch.setattr(whole_study, "execute", execute)
    monkeypatch.setenv("MAMBANORM_SOURCE", "auto")
    run_study(plan_study("smoke", runs_dir=tmp_path / "store"), out_dir=tmp_path / "out", workers=0)
    assert orders == [["01_a", "02_b"]]
    (tmp_path / "out" / "01_a.ipynb").unlink()
    monkeypatch.setattr(whole_study, "EXECUTED_FIRST", ("02_b",))
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    run_study(plan_study("smoke", runs_dir=tmp_path / "store"), out_dir=tmp_path / "out", workers=0)
    assert orders[1] == ["01_a", "02_b"]  # never executed, therefore first


def test_minutes_count_only_where_runs_were_trained(small_study, tmp_path, monkeypatch):
    plan = plan_study("smoke", runs_dir=tmp_path / "store")
    plan = replace(plan, optional=plan.to_train["01_a"])
    engine = dict(scheduler=None, workers=0, runs_dir=plan.runs_dir)
    monkeypatch.setattr(budget, "training_seconds", lambda _: 9e9)
    whole_study.train_runs(plan, engine, 4.0)  # no run fits, so none is trained
    assert budget.earlier_minutes(plan.optional, plan.runs_dir) == 0
    shutil.rmtree(tmp_path / "store")
    monkeypatch.setattr(budget, "training_seconds", lambda _: 0.01)
    whole_study.train_runs(plan, engine, 4.0)
    assert 0 < budget.earlier_minutes(plan.optional, plan.runs_dir) < 4  # they all fitted
    budget.save_minutes(plan.optional, 4.0, plan.runs_dir)
    for config in plan.optional:  # the user empties the store
        shutil.rmtree(tmp_path / "store" / config.run_id)
    assert not whole_study.train_runs(plan, engine, 4.0)
    assert (tmp_path / "store" / plan.optional[0].run_id).is_dir()


def test_a_plan_refuses_unknown_names(small_study):
    for options, message in [
        ({"tasks": ["digts"]}, "did you mean 'digits'"),
        ({"notebooks": "02_c"}, "did you mean '02_b'"),
        ({"scale": "smok"}, "did you mean 'smoke'"),
    ]:
        with pytest.raises(ValueError, match=message):
            plan_study(**options)


def test_a_notebook_without_a_task_is_left_out_and_a_run_that_cannot_be_trained_fails_its_own(
    small_study, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        whole_study,
        "execute",
        lambda paths, out, *_: [executed(out, path.stem) for path in paths],
    )
    impossible = base_config("digits", "smoke", arm="GN>SSM>GN", norm_options={"groups": 3})
    replace_runs(monkeypatch, lambda *_: {"01_a": [impossible], "02_b": []})
    options = dict(out_dir=tmp_path / "out", workers=0)
    with pytest.warns(UserWarning, match="groups"):
        outcomes = run_study(plan_study("smoke"), **options)
    assert [bool(outcome.problem) for outcome in outcomes] == [True, False]
    assert "1 of its runs could not be trained" in (tmp_path / "out" / "index.html").read_text()
    replace_runs(monkeypatch, lambda *_: {"01_a": [base_config("digits", "smoke")], "02_b": []})
    outcomes = run_study(plan_study("smoke", ["digits"]), **options)
    assert [outcome.name for outcome in outcomes] == ["01_a"]
    assert "02_b is left out: it uses none of the tasks digits" in capsys.readouterr().out


# the page


def executed(folder, name, *cells, error=""):
    """Return the outcome of an executed notebook; cells are Markdown or (tag, output)."""
    folder.mkdir(exist_ok=True)
    opening = f"# Title of {name}\n\n**Question.** Does {name}\nwork?"
    made = [new_markdown_cell(opening)]
    for cell in cells:
        plain = isinstance(cell, str)
        tags = {"metadata": {"tags": [cell[0]]}} if not plain else {}
        made.append(
            new_markdown_cell(cell) if plain else new_code_cell(SOURCE, outputs=[cell[1]], **tags)
        )
    execution = {"error": error, "end_time": "2026-11-27T12:00:00.000000"}
    nb = new_notebook(cells=made, metadata={"papermill": execution})
    nbformat.write(nb, folder / f"{name}.ipynb")
    return read_outcome(folder / f"{name}.ipynb")


SOURCE = "print('<b>' + nothing)"


def shows(mime, content):
    return new_output("display_data", {mime: content})


def test_cells_tagged_first_stand_above_all_cards(tmp_path):
    table = ("first", shows("text/html", "<b>the table</b>"))
    picture = ("first", shows("image/png", png(20, 10)))
    outcomes = [executed(tmp_path, "01_a"), executed(tmp_path, "12_b", table, "Words.", picture)]
    page = write_report(outcomes, tmp_path, {"Scale": "smoke"}).read_text()
    top, _, cards = page.partition('<section class="cards">')
    assert "<b>the table</b>" in top
    assert 'href="12_b.html"' in top
    assert re.search(
        r'<label class="figure"><input [^>]*><img alt="" src="data:image/png;base64,\w+', top
    )
    assert "the table" not in cards


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """Return the folder of the report on the committed notebooks."""
    folder = tmp_path_factory.mktemp("committed")
    for path in find_notebooks():
        shutil.copy(path, folder)
    outcomes = [read_outcome(folder / path.name) for path in find_notebooks()]
    write_report(outcomes, folder, {"Scale": "quick"})
    return folder


def test_the_report_opens_with_what_was_found_then_picture_contents_claims_and_cards(committed):
    page = (committed / "index.html").read_text()
    said = [html.escape(without_braces(finding.seen), quote=False) for finding in FINDINGS]
    (contents,) = re.findall(r'<nav class="contents">.*?</nav>', page, re.DOTALL)
    others = [
        '<label class="figure">',
        contents,
        '<div class="verdicts">',
        '<section class="cards">',
    ]
    places = [page.index(one) for one in (others[0], *said, *others[1:])]
    assert places == sorted(places)
    assert re.findall('<li><code>(..)</code> <a href="#(.*?)"', contents) == [
        (path.stem[:2], path.stem) for path in find_notebooks()
    ]
    alt = re.search('alt="(.*?)"', page[page.index(others[0]) :])[1]
    assert alt.startswith("The Mamba block with a norm before it")  # for those who cannot see it


def test_every_link_of_every_page_leads_to_a_page_and_to_a_heading_that_are_there(committed):
    pages = {path.name: path.read_text() for path in committed.glob("*.html")}
    ids = {name: re.findall(r'<[^>]* id="(.*?)"', page) for name, page in pages.items()}
    links = {
        name: re.findall(r'<a [^>]*href="(?!http)(.*?)"', page) for name, page in pages.items()
    }
    astray = []
    for name, found in links.items():
        assert len(set(ids[name])) == len(ids[name]), name
        for link in map(html.unescape, found):
            file, _, place = link.partition("#")
            there = (committed / (file or name)).is_file()
            if there and place:  # as browsers look for it: as it is written, then decoded
                there = bool({place, unquote(place)} & {*map(html.unescape, ids[file or name])})
            astray += [(name, link)] * (not there)
        if name != "index.html":
            assert not re.search(r"<h[1-4]>", pages[name]), name  # a heading without an id
    assert astray == []
    gate = "04_position.html#The-gate:-a-norm-before-acts-on-two-branches,-a-norm-after-on-one"
    assert gate in links["07_diagnostics.html"]


ADDRESS = re.compile(
    r"""(?:\s(?:src|href|srcset|action|poster|data)="|url\(["']?|@import\s+["'])([^"')]*)"""
)


def test_a_report_can_be_published_as_it_is(committed):
    """No address of a page leaves its folder or asks a host, but for a link that a reader may
    click.
    """
    assert ADDRESS.findall('<img src="a"> b{c:url(d)} @import "e"; <a href="f">') == [
        "a",
        "d",
        "e",
        "f",
    ]
    found = {}
    for path in committed.glob("*.html"):
        page = re.sub(r'<a [^>]*href="https?://[^>]*>', "<a>", path.read_text())
        found[path.name] = {
            one for one in ADDRESS.findall(page) if not one.startswith(("#", "data:"))
        }
    outside = {
        (name, one)
        for name, some in found.items()
        for one in some
        if re.match(r"\w+:|/|.*\.\.", one)
    }
    assert outside == set()
    assert {"00_start_here.html", "00_start_here.ipynb"} <= found["index.html"]
    assert all(
        (committed / one.partition("#")[0]).is_file() for some in found.values() for one in some
    )
    assert (committed / ".nojekyll").is_file()


def test_the_page_shows_contents_question_answer_thumbnail_and_failure_and_needs_no_network(
    tmp_path,
):
    said = shows("text/markdown", "**RMSN** wins, *clearly*: `84 %`, see [this](03_type.ipynb)")
    pictures = [
        (tag, shows("image/png", png(*size)))
        for tag, size in (("x", (20, 10)), ("thumbnail", (1600, 800)))
    ]
    error = "cell [1]: NameError: name 'nothing' is not defined"
    good = executed(tmp_path, "01_a", *pictures, ("answer", said))
    outcomes = [good, executed(tmp_path, "02_b", error=error), executed(tmp_path, "x", error="no")]
    page = write_report(
        outcomes, tmp_path, {"Scale": "smoke", "Machine": "a <small> one"}
    ).read_text()
    assert '<li><code>01</code> <a href="#01_a">Title of 01_a</a></li>' in page
    assert (
        '<li><code>x</code> <a href="#x">Title of x</a> <span class="bad">failed</span></li>'
        in page
    )
    assert 'id="found"' not in page  # nothing was
    assert "<strong>RMSN</strong> wins, <em>clearly</em>: <code>84 %</code>" in page
    assert '<a href="03_type.html">this</a>' in page
    assert "Does 01_a\nwork?" in page
    assert 'href="01_a.html"' in page
    (picture,) = re.findall(
        '<div class="picture"><img alt="" src="data:image/png;base64,(.*?)"', page
    )
    assert picture == png(1600, 800)  # the tagged picture, not the first one
    assert 'failed: <a href="#02_b">02_b</a>, <a href="#x">x</a></p>' in page
    assert "2 of 3 notebooks failed" in page
    assert "<p>cell [1]: NameError: name &#39;nothing&#39; is not defined</p>" in page
    assert "<strong>Failed</strong><p>no</p>" in page
    assert "a &lt;small&gt; one" in page
    assert "http" not in page
    assert "prefers-color-scheme: dark" in page
    alone = write_report([good], tmp_path, {"Scale": "smoke"}).read_text()
    assert "1 of 1 notebooks ran through" in alone


def test_answers_cannot_bring_html_or_scripts(tmp_path):
    evil = "**bold** [x](javascript:alert(1)) <img src=x onerror=alert(1)>"
    evil += "\n\n<script>alert(1)</script>"
    texts = dict(title="<i>T</i>", question=evil, answer=evil, error=evil)
    outcome = replace(executed(tmp_path, "01_a"), **texts)
    page = write_report([outcome], tmp_path, {"Scale": "smoke"}).read_text()
    for forbidden in ("<script", "<img src=x", 'href="javascript', "<i>"):
        assert forbidden not in page
    assert "&lt;script&gt;" in page
    assert "<strong>bold</strong>" in page


@pytest.fixture
def as_page(tmp_path):
    """Return a function that returns the page of a notebook of these cells."""

    def make(*cells) -> str:
        nbformat.write(new_notebook(cells=list(cells)), tmp_path / "one.ipynb")
        return to_html(read_outcome(tmp_path / "one.ipynb"))

    return make


def test_every_notebook_of_the_study_opens_complete_without_a_script(committed):
    """A hidden checkbox in the label of a figure enlarges it: :checked makes the figure as wide as
    it was drawn. `test_a_report_can_be_published_as_it_is` checks the addresses.
    """
    for path in find_notebooks():
        nb, page = nbformat.read(path, 4), (committed / f"{path.stem}.html").read_text()
        assert "<script" not in page
        assert "prefers-color-scheme: dark" in page
        assert "width=device-width" in page
        formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
        assert not any("\\" in formula for formula in formulas)  # a command that was not understood
        texts = [cell.source for cell in nb.cells if cell.cell_type == "markdown"]
        assert len(formulas) == sum(
            len(re.findall(r"\$\$.+?\$\$|\$[^$]+\$", text)) for text in texts
        )
        shown = [
            output
            for cell in nb.cells
            for output in cell.get("outputs", ())
            if WIDGET in output.get("data", {})
        ]
        assert all(
            {"image/png", "text/markdown"} & set(output.data) for output in shown
        )  # of an explorer its first picture stays
        drawn = re.findall(r'(.{0,80})<img\b[^>]*\bsrc="data:', page)
        assert all(
            before.endswith('<input type="checkbox" aria-label="Enlarge the figure">')
            for before in drawn
        ), path
    assert ".figure :checked + img { width: max(130%, 950px); max-width: none;" in page


def test_html_is_rendered_in_texts_and_escaped_in_answers_and_links_to_files_become_names(
    as_page,
):
    """What a store says stands in answers; a notebook's own text may hold HTML."""
    answer = shows("text/markdown", "**LN** <img src=x onerror=alert(1)>")
    links = "see [the protocol](../mambanorm_study/claims/PROTOCOL.md#rule), [next](01_a.ipynb), [it](https://arxiv.org/abs/2)"
    cells = [new_markdown_cell("<details>folded</details>"), new_markdown_cell(links)]
    page = as_page(*cells, new_code_cell("answer()", outputs=[answer]))
    assert "<strong>LN</strong> &lt;img" in page
    assert "<img" not in page
    assert "<details>folded" in page
    assert "the protocol (<code>mambanorm_study/claims/PROTOCOL.md</code>)" in page
    assert 'href="../' not in page
    assert 'href="01_a.html"' in page
    assert 'href="https://arxiv.org/abs/2"' in page  # a link is followed only by who clicks on it


def test_formulas_are_drawn_when_the_page_is_made(as_page):
    page = as_page(
        new_markdown_cell(r"Inline $\sigma^2_{BN}$ and" + "\n\n" + r"$$y = \frac{a}{\sqrt{b}}$$")
    )
    assert page.count("<math") == 2
    assert re.findall('<math[^>]*display="(.*?)"', page) == ["inline", "block"]
    assert "<mfrac><mrow><mi>a</mi></mrow><mrow><msqrt>" in page
    assert "\\frac" not in page
    assert "<math" in markdown(r"the norm $\lVert y \rVert_2$")  # on a card too
    assert markdown("costs 5 $") == "<p>costs 5 $</p>\n"


@pytest.mark.parametrize(
    "tex", [r"\text{<script>alert(1)</script>}", r"\href{javascript:alert(1)}{x}", r"\style{x}{y}"]
)
def test_a_formula_adds_no_script_and_no_style(tex):
    for page in (
        markdown(f"${tex}$"),
        markdown(f"$${tex}$$"),
        render_markdown(f"${tex}$", escape=True),
    ):
        assert "<math" in page
        assert not re.search("<script|href|style=", page)
    assert "<mo>&lt;</mo>" in markdown("$a < b$")


def test_pages_lead_to_the_one_before_and_the_one_after(tmp_path):
    outcomes = [executed(tmp_path, name) for name in ("01_a", "02_b", "03_c")]
    write_report(outcomes, tmp_path, {"Scale": "smoke"})
    first, second, third = ((tmp_path / f"{o.name}.html").read_text() for o in outcomes)
    following = [("next", "02_b.html")] * 2  # above and below
    assert re.findall('rel="(....)" href="(.*?)"', first) == following
    assert re.findall('rel="prev" href="(.*?)"', second) == ["01_a.html"] * 2
    assert re.findall('rel="next" href="(.*?)"', second) == ["03_c.html"] * 2
    assert re.findall('rel="next" href="(.*?)"', third) == []
    assert second.count('<a href="index.html">All notebooks</a>') == 2
    assert "← Title of 01_a" in second


ANSWERS = {
    "bullets": (
        "**Answer** (quick scale · 3 seeds).\n\n| a | b |\n| --- | --- |\n\n"
        "- **digits**: IN→IN has 82.8 % [1.0, 2.0]; the gain is clear. More.\n- two\n"
        "- three (a, b). Four.\n- five",
        [
            "**digits**: IN→IN has 82.8 % [1.0, 2.0]; the gain is clear. More.",
            "two",
            "three (a, b). Four.",
        ],
    ),
    "paragraphs": (
        "**Answer.** One. Two, 2.5 % of it.\n\nThree\nfour.",
        ["One. Two, 2.5 % of it.", "Three four."],
    ),
    "numbered": ("**Answer** (x (y) z).\n\n1. One.\n2. Two.", ["One.", "Two."]),
    "nothing": ("", []),
}


@pytest.mark.parametrize(("answer", "lines"), ANSWERS.values(), ids=list(ANSWERS))
def test_a_card_has_the_first_three_bullets_or_paragraphs_of_an_answer(answer, lines):
    assert key_lines(answer) == lines


def test_a_notebook_of_the_study_takes_injected_parameters(tmp_path):
    """Execute 03_type with papermill, at smoke, with one seed, one task and a new run store."""
    given = dict(scale="smoke", seeds=1, tasks=["digits"], runs_dir=str(tmp_path / "runs"))
    outcome = run_notebook(find_notebooks("03")[0], tmp_path / "out", given)
    assert not outcome.problem
    assert "digits" in outcome.answer
    assert "listops" not in outcome.answer
    stored = {path.name for path in (tmp_path / "runs").iterdir()}
    assert {
        config.run_id for config in study.notebook_runs("smoke", ["digits"], 1)["03_type"]
    } <= stored
    runs = study.load_runs(tmp_path / "runs")
    assert set(runs.seed) == {0}
    assert set(runs.task) == {
        "digits",
        "level",
    }  # that of the notebook's own experiment, and no other
