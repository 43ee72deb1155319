"""Claims about pages and notebooks: links lead somewhere, commands are understood, code runs, names
exist, numbers, tables and pictures are those that the package makes, and every exercise has its
solution.
"""

import base64
import re
import shlex
import statistics
import subprocess
import sys
from functools import cache
from itertools import pairwise

import nbformat
import pytest

import mambanorm as mn
import mambanorm_clinic
import mambanorm_study
from mambanorm_study import widgets
from mambanorm_study.advice.first_page import findings_page, findings_table
from mambanorm_study.advice.what_to_take import advice_table, what_to_do
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.cli import main as cli
from mambanorm_study.report.notebooks import copy_notebooks
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.bibliography import bibliography

FOLDER = ROOT / "notebooks"
PAGES = {
    page: page.read_text()
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), FOLDER / "README.md")
}
README, TEACHING = PAGES[ROOT / "README.md"], PAGES[FOLDER / "README.md"]
NOTEBOOKS = [path.stem for path in sorted(FOLDER.glob("*.ipynb"))]
OF_THE_PATH = [
    name for name in NOTEBOOKS if name[:2] in ("03", "04", "05", "06", "07", "08", "14", "15")
]
COMPARED = "nbval-check-output"


@cache
def cells_of(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells


def tags(cell):
    return set(cell.metadata.get("tags", ()))


# pages


def test_the_first_page_is_short_and_says_what_was_found_and_what_to_take():
    lines = README.splitlines()
    assert len(lines) <= 110
    first_screen = "\n".join(lines[:32])
    assert findings_table("notebooks/") in first_screen
    assert advice_table(what_to_do(recorded("evening"))) in first_screen
    assert "make study" in first_screen
    assert "An Empirical Study on Normalization in Mamba" in first_screen


def test_the_words_of_earlier_rules_appear_only_in_the_history():
    pages = {**PAGES, **{name: str(cells_of(name)) for name in NOTEBOOKS}}
    for page, text in pages.items():
        assert not re.search("reproduced|contradicted|not judged|≈ threshold", text, re.I), page


def test_the_published_page_is_what_the_recorded_results_make_and_asks_no_host():
    page = (ROOT / "docs" / "index.html").read_text()
    assert findings_page() == page, "python -m mambanorm_study.advice.first_page writes it anew"
    assert len(page.encode()) < 200_000
    assert (ROOT / "docs" / ".nojekyll").is_file()
    addresses = re.findall(
        r"""(?:\s(?:src|href|srcset|action)="|url\(|@import)([^"\s)]{0,9})""", page
    )
    assert set(addresses) == {"data:imag"}  # the picture


def test_the_page_of_norms_has_a_row_for_each():
    lines = ["| norm | statistics over | causal | learns | source |", "|---|---|---|---|---|"]
    for name, entry in mn.NORMS.items():
        axes, causal = " · ".join(entry.axes) or "–", "yes" if entry.causal else "no"
        lines.append(f"| `{name}` | {axes} | {causal} | {entry.learnable} | {entry.source} |")
    assert "\n".join(lines) in PAGES[ROOT / "docs" / "norms.md"], "\n".join(lines)


def test_the_page_of_sources_has_a_row_for_each():
    lines = ["| source | title | authors |", "|---|---|---|"]
    for ref in bibliography().itertuples():
        title = f"[{ref.title}]({ref.url})" if ref.url else ref.title
        more = ". ".join(filter(None, (ref.published, ref.note)))
        mark = f" ({ref.source})" if ref.source else ""
        lines.append(
            f"| {ref.label}{mark} | {title}{f'. {more}' if more else ''} | {ref.authors} |"
        )
    assert "\n".join(lines) in PAGES[ROOT / "docs" / "sources.md"], "\n".join(lines)


BLOCKS = re.findall(r"```(\w+)\n(.*?)```", "\n".join(PAGES.values()), re.DOTALL)
COMMANDS = re.findall(r"^mambanorm [^\n]*", "\n".join(code for _, code in BLOCKS), re.MULTILINE)
COMMANDS += re.findall(r"(?<=`)mambanorm \w[^`]*(?=`)", TEACHING)


@pytest.mark.parametrize("code", [code for language, code in BLOCKS if language == "python"])
def test_python_blocks_run_as_scripts(code, store):
    script = store.parent / "script.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=store.parent
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_are_understood(line):
    options = cli._parse(shlex.split(line.replace("\n", " "), comments=True)[1:])
    for arm in getattr(options, "arms", None) or []:
        if not options.imports:  # those need the file that they import
            mn.Arm.parse(arm)


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"\bmake ([a-z]+)\b", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE) or target == "and", target


def test_files_that_a_reader_is_led_to_exist():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (page.parent / target).exists(), (page, target)
    named = re.findall(r"`([\w/]+(?:\.(?:py|md|json)|/))`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(named) > 30
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "mambanorm" / name).exists(), name


def test_every_name_of_the_packages_on_a_page_or_in_a_notebook_exists():
    """Check `mn.name`, `study.name` and `clinic.name` in the README, docs/ and notebooks/."""
    packages = {"mn": mn, "study": mambanorm_study, "clinic": mambanorm_clinic}
    texts = {page.stem: text for page, text in PAGES.items()}
    texts |= {name: "\n".join(cell.source for cell in cells_of(name)) for name in NOTEBOOKS}
    used = {
        (page, package, name)
        for page, text in texts.items()
        for package, name in re.findall(r"\b(mn|study|clinic)\.([A-Za-z_]\w*)", text)
    }
    assert ("training", "study", "TransformerClassifier") in used
    assert len({page for page, _, _ in used}) > 10
    missing = [one for one in sorted(used) if not hasattr(packages[one[1]], one[2])]
    assert missing == []


# the teacher's page


def test_every_notebook_has_a_row_with_minutes_a_place_on_the_map_and_less_than_500_kilobytes():
    minutes = dict(re.findall(r"^\| (?:\[|`)(\d\d_\w+).*?\| (\d+) \|", TEACHING, re.MULTILINE))
    assert set(NOTEBOOKS) <= set(minutes)
    assert all(5 <= int(some) <= 60 for some in minutes.values())
    assert set(NOTEBOOKS) - {"00_start_here"} <= set(
        re.findall(r"\b\d\d_\w+\b", str(cells_of("00_start_here")))
    )
    assert [
        name for name in NOTEBOOKS if (FOLDER / f"{name}.ipynb").stat().st_size >= 500_000
    ] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_minutes_of_a_notebook_are_counted(name):
    """A minute for 120 words, for 12 lines of code that is not hidden, and for each figure."""
    cells = cells_of(name)
    words = sum(len(cell.source.split()) for cell in cells if cell.cell_type == "markdown")
    codes = [
        cell
        for cell in cells
        if cell.cell_type == "code" and not cell.metadata.get("jupyter", {}).get("source_hidden")
    ]
    lines = sum(len(cell.source.splitlines()) for cell in codes)
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    counted = words / 120 + lines / 12 + figures
    (stated,) = re.findall(rf"^\| \[{name}\].*?\| (\d+) \|", TEACHING, re.MULTILINE)
    assert abs(int(stated) - counted) <= 5, round(counted)
    in_notebook = re.search(r"(\d+) minutes (?:to|of reading)", cells[0].source)[1]
    assert in_notebook == stated


def test_a_students_copy_has_no_solutions(tmp_path):
    assert copy_notebooks(tmp_path, student=True) == []
    for name in NOTEBOOKS:
        original, copy = cells_of(name), nbformat.read(tmp_path / f"{name}.ipynb", 4).cells
        assert not any("solution" in tags(cell) for cell in copy)
        assert not any(cell.source.startswith("**Solution") for cell in copy)
        solved = sum("solution" in tags(cell) for cell in original)
        assert len(original) - len(copy) == 2 * solved
        assert any("## Exercises" in cell.source for cell in copy) or not solved


def test_what_the_page_calls_recorded_can_be_read_instead_of_trained():
    """A notebook that need not train takes the parameter `source`, or reads the recorded results in
    any case.
    """
    for name, said in re.findall(r"^\| \[(\d\d_\w+)\].*\| ([^|]+) \|$", TEACHING, re.MULTILINE):
        text = str(cells_of(name))
        if said.startswith("trains nothing"):
            assert "source: str = None" in text or "recorded" in text, name


# notebooks


def test_a_comparison_that_several_pages_print_has_the_same_numbers_on_every_page():
    arm = r"([\w-]+→[\w-]+)\)?"
    told = re.compile(rf"{arm}(?: −| against) (?:[\w ]*\()?{arm}[^:\n]{{0,12}}: ([+−][^\]]+\])")
    shown = set()
    for name in NOTEBOOKS:
        cells = [cell for cell in cells_of(name) if "solution" not in tags(cell)]
        shown_by = [out.get("data", {}) for cell in cells for out in cell.get("outputs", ())]
        for text in (data.get("text/markdown", data.get("text/plain", "")) for data in shown_by):
            shown |= {(name, (a, b), amount) for a, b, amount in told.findall(text)}
    assert {"09_vision", "12_verdicts", "13_beyond"} <= {name for name, _, _ in shown}
    amounts = {pair: amount for _, pair, amount in shown}
    assert len({(pair, amount) for _, pair, amount in shown}) == len(amounts), sorted(shown)
    gain = r"on [\w ]+? ([\d.]+) points more than the original"
    advised = re.findall(rf"\*\*{arm}\*\* \| {gain}, {arm}", README)
    assert len(advised) == 2
    for chosen, points, original in advised:
        assert amounts[chosen, original].startswith(f"+{points} points")


def test_the_picture_is_the_one_that_notebook_12_draws():
    (cell,) = [cell for cell in cells_of("12_verdicts") if "figures.fig_hero(" in cell.source]
    (drawn,) = [
        output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})
    ]
    assert base64.b64decode(drawn) == (ROOT / "data" / "readme.png").read_bytes()


@pytest.mark.parametrize("name", OF_THE_PATH)
def test_a_notebook_opens_with_what_it_is_for_and_tests_its_guesses(name):
    cells = cells_of(name)
    opening = ("**Question.**", "**You will be able to**", "**You need**", "**Time.**")
    places = [cells[0].source.find(f"\n{words}") for words in opening]
    assert min(places) > 0
    assert places == sorted(places)
    assert 2 <= len(re.findall(r"^- ", cells[0].source, re.MULTILINE)) <= 3
    assert re.search(r"\d+ minutes to read", cells[0].source)
    (asked,) = [i for i, cell in enumerate(cells) if cell.source.startswith("## Predict first")]
    (tested,) = [
        i for i, cell in enumerate(cells) if cell.source.startswith("## Your guesses, tested")
    ]
    assert asked < tested
    assert "answers." in cells[tested + 1].source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_an_explorer_that_a_text_promises_follows_the_text(name):
    promise = re.compile(r"explorer|\bDrag\b|Try this yourself|[Cc]hoose .* yourself|you play")
    for text, cell in pairwise(cells_of(name)):
        if text.cell_type == "markdown" and promise.search(text.source):
            assert "widgets.explore_" in cell.source, text.source
        for explorer in re.findall(r"widgets\.(explore_\w+)", cell.source):
            assert hasattr(widgets, explorer)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_exercise_has_its_stars_is_no_change_of_a_number_and_has_a_folded_solution(name):
    (asked,) = [cell.source for cell in cells_of(name) if "## Exercises" in cell.source]
    exercises = re.split(r"^(?=\d\. )", asked, flags=re.MULTILINE)[1:]
    assert len(exercises) >= 3
    assert all(re.match(r"\d\. ★{1,3} \*\*", exercise) for exercise in exercises)
    assert "seeds =" not in asked
    solutions = [
        (lead, cell) for lead, cell in pairwise(cells_of(name)) if "solution" in tags(cell)
    ]
    numbers = [
        re.match(r"\*\*Solution (?:of exercise )?(\d)\b", lead.source)[1] for lead, _ in solutions
    ]
    assert numbers == [exercise[0] for exercise in exercises]
    for _, cell in solutions:
        assert tags(cell) <= {"solution", COMPARED}
        assert cell.metadata.jupyter.source_hidden
        assert cell.metadata.jupyter.outputs_hidden
        assert cell.outputs


def test_every_code_of_an_inconsistency_that_is_cited_is_in_the_list():
    texts = [path.read_text() for path in (ROOT / "mambanorm").rglob("*.py")]
    texts += [
        cell.source for name in NOTEBOOKS for cell in cells_of(name) if cell.cell_type == "markdown"
    ]
    cited = {code for text in texts for code in re.findall(r"\((I\d+[a-z]?)\)", text)}
    listed = re.findall(r"^\| (I\d+[a-z]?) \|", PAGES[ROOT / "docs" / "paper.md"], re.MULTILINE)
    assert {"I1", "I3", "I4f", "I14"} <= cited <= set(listed)
    assert len(listed) == len(set(listed))


def test_every_forest_plot_of_the_notebooks_names_its_interval_and_sixty_cells_are_compared():
    drawn = [
        cell.source for name in NOTEBOOKS for cell in cells_of(name) if "fig_pairs(" in cell.source
    ]
    assert len(drawn) > 5
    assert [code for code in drawn if "interval" not in code] == []
    compared = [cell for name in NOTEBOOKS for cell in cells_of(name) if COMPARED in tags(cell)]
    assert len(compared) >= 60
    assert all(cell.outputs for cell in compared)


@pytest.mark.parametrize("name", OF_THE_PATH)
def test_cells_are_short_and_define_no_functions_but_what_is_built_by_hand(name):
    codes = [cell.source for cell in cells_of(name) if cell.cell_type == "code"]
    lengths = [len(code.splitlines()) for code in codes]
    assert statistics.median(lengths) <= 6
    assert max(lengths) <= 20
    defined = re.findall(r"^def (\w+)", "\n".join(codes), re.MULTILINE)
    by_hand = {"pool", "one_hot", "largest"}
    own_loop = {
        "new_model",
        "batches",
        "bits",
        "train",
        "note",
        "parts",
        "listen",
        "normed",
        "score",
        "treat",
        "treated",
        "with_trainer",
    }
    assert set(defined) <= by_hand | own_loop
