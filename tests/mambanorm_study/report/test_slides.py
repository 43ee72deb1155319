"""Claims about the slides: they have the questions, figures and answer of a notebook, and load
nothing from the network.
"""

import base64
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mambanorm_study.cli.main import main
from mambanorm_study.report.slides import make_slides, slides_of

ANSWER = "**Answer** (3 seeds: a sketch). Yes."
PNG = base64.b64encode(b"a picture").decode()


def shown(data, **metadata):
    return [new_output("display_data", data=data, metadata=metadata)]


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """Return the folder of two notebooks that replace the kit's: 01_one has everything that slides
    show, 02_two has a title only.
    """
    cells = [
        new_markdown_cell(
            "# Title & more\n\n**Question.** Does $x^2$ work,\nsee [two](02_two.ipynb)?\n\nMore."
        ),
        new_code_cell("x = 1"),
        new_markdown_cell("## Look\n\nWords on <the> figure."),
        new_code_cell(
            "fig", outputs=shown({"image/png": PNG}, **{"image/png": {"alt": 'A "figure"'}})
        ),
        new_markdown_cell("**Predict:** what comes next? See [the web](https://example.org)."),
        new_code_cell("fig", outputs=shown({"image/png": PNG})),
        new_code_cell(
            "said", metadata={"tags": ["answer"]}, outputs=shown({"text/markdown": ANSWER})
        ),
        new_markdown_cell("## Exercises\n\n1. Try `y`."),
    ]
    folder = tmp_path / "notebooks"
    folder.mkdir()
    nbformat.write(new_notebook(cells=cells), folder / "01_one.ipynb")
    nbformat.write(new_notebook(cells=cells[:1]), folder / "02_two.ipynb")
    monkeypatch.setattr("mambanorm_study.report.notebooks.NOTEBOOK_FOLDER", folder)
    return folder


def test_a_deck_has_the_question_the_figures_the_answer_and_the_exercises_in_order(notebooks):
    slides = list(slides_of(notebooks / "01_one.ipynb"))
    assert [(s.kind, s.heading) for s in slides] == [
        ("title", "Title & more"),
        ("figure", "Look"),
        ("text", "Look"),
        ("figure", "Look"),
        ("answer", "Answer"),
        ("text", "Exercises"),
    ]
    assert "<math" in slides[0].body
    assert "see two?" in slides[0].body  # no link to what does not stand beside the slides
    assert 'href="https://example.org"' in slides[2].body
    assert slides[1].notes == "Words on <the> figure."
    assert "&lt;the&gt;" in slides[1].to_html()
    assert 'alt="A &quot;figure&quot;"' in slides[1].body
    assert slides[3].body.endswith(f'src="data:image/png;base64,{PNG}">')
    assert '<p class="basis">3 seeds: a sketch</p>' in slides[4].body
    assert "Answer" not in slides[4].body


@pytest.mark.parametrize("name", ["00_start_here", "05_combination", "12_verdicts"])
def test_a_deck_of_the_kit_opens_without_a_network(name, tmp_path):
    (path,) = make_slides([name], tmp_path / "new")
    text = path.read_text()
    page = re.sub(r"<(script|style)>.*?</\1>", r"<\1>", text, flags=re.DOTALL)
    loaded = re.findall(r'<(?!a\b)[^>]* (?:src|srcset|data|href)="([^"]*)', page)
    assert loaded
    assert not [url[:60] for url in loaded if not url.startswith("data:image/")]
    style = "".join(re.findall(r"<style>(.*?)</style>", text, re.DOTALL))
    assert "@import" not in style
    assert not [
        url
        for url in re.findall(r"url\(\s*['\"]?([^)]{0,40})", style)
        if not url.startswith("data:")
    ]
    assert "Copyright (C) 2011-2026 Hakim El Hattab" in text
    assert page.count("<script>") == 2
    assert page.count("<section") >= 3
    assert path.stat().st_size < 1_500_000


def test_the_command_makes_the_decks_asked_for_and_an_unknown_notebook_names_the_nearest(
    notebooks, tmp_path, capsys
):
    out = tmp_path / "decks"
    assert main(["slides", "--notebooks", "02", "--out", str(out)]) == 0
    assert capsys.readouterr().out.split() == [str(out / "02_two.slides.html")]
    assert main(["slides", "--notebooks", "01_ona", "--out", str(out)]) == 2
    assert "did you mean '01_one'" in capsys.readouterr().err


def test_decks_of_a_report_are_made_of_its_own_notebooks(notebooks, tmp_path):
    report = tmp_path / "report"
    report.mkdir()
    nb = nbformat.read(notebooks / "02_two.ipynb", as_version=4)
    nb.cells[0].source = "# From the report"
    nbformat.write(nb, report / "02_two.ipynb")
    (path,) = make_slides(None, tmp_path, report)
    assert "<title>From the report: slides</title>" in path.read_text()
    with pytest.raises(ValueError, match="report has none of these notebooks"):
        make_slides(["01"], tmp_path, report)
