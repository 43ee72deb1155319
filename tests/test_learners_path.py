"""A notebook of the study opens with goals, needs and minutes, tests its guesses, and solves its exercises."""

import re
import statistics

import nbformat
import pytest

from mambanorm.basics.settings import ROOT

NAMES = (
    *("03_type", "04_position", "05_combination", "06_normvary", "07_diagnostics", "08_validation"),
    *("14_clinic", "15_your_norm"),
)
COMPARED = "nbval-check-output"
OPENING = ("**Question.**", "**You will be able to**", "**You need**", "**Time.**")


@pytest.fixture(params=NAMES)
def cells(request):
    return nbformat.read(ROOT / "notebooks" / f"{request.param}.ipynb", 4).cells


def test_the_first_cell_says_what_for_with_what_and_how_long(cells):
    places = [cells[0].source.find(f"\n{words}") for words in OPENING]
    assert min(places) > 0
    assert places == sorted(places)
    assert 2 <= len(re.findall(r"^- ", cells[0].source, re.MULTILINE)) <= 3
    assert re.search(r"\d+ minutes to read", cells[0].source)


def test_what_is_asked_to_be_guessed_is_tested_below(cells):
    asked = [i for i, cell in enumerate(cells) if cell.source.startswith("## Predict first")]
    tested = [i for i, cell in enumerate(cells) if cell.source.startswith("## Your guesses, tested")]
    assert len(asked) == len(tested) == 1
    assert asked < tested
    assert "answers." in cells[tested[0] + 1].source


@pytest.mark.parametrize("cells", [*NAMES, "11_choosing"], indirect=True)
def test_every_exercise_has_a_folded_solution_below_its_lead(cells):
    (at,) = [i for i, cell in enumerate(cells) if cell.source.startswith("## Exercises")]
    numbers = re.findall(r"^(\d)\. ", cells[at].source, re.MULTILINE)
    leads, codes = cells[at + 1 :: 2], cells[at + 2 :: 2]
    assert [re.match(r"\*\*Solution (\d)\*\*", lead.source).group(1) for lead in leads] == numbers
    assert len(codes) == len(leads)
    for cell in codes:
        assert {"solution"} <= set(cell.metadata.tags) <= {"solution", COMPARED}
        assert cell.metadata.jupyter.source_hidden
        assert cell.metadata.jupyter.outputs_hidden


GRADED = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", GRADED, ids=lambda path: path.stem)
def test_every_exercise_has_its_stars_and_is_no_change_of_a_number(path):
    (asked,) = [c.source for c in nbformat.read(path, 4).cells if "## Exercises" in c.source]
    exercises = re.split(r"^(?=\d\. )", asked, flags=re.MULTILINE)[1:]
    assert len(exercises) >= 3
    assert all(re.match(r"\d\. ★{1,3} \*\*", exercise) for exercise in exercises)
    assert "seeds =" not in asked


def test_sixty_cells_are_compared_with_what_is_committed():
    cells = [cell for path in GRADED for cell in nbformat.read(path, 4).cells]
    compared = [cell for cell in cells if COMPARED in cell.metadata.get("tags", ())]
    assert len(compared) >= 60
    assert all(cell.outputs for cell in compared)


def test_cells_are_short_and_define_no_functions_but_what_is_built_by_hand(cells):
    lengths = [len(cell.source.splitlines()) for cell in cells if cell.cell_type == "code"]
    assert statistics.median(lengths) <= 6
    assert max(lengths) <= 20
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    defined = re.findall(r"^def (\w+)", code, re.MULTILINE)
    by_hand = {"pool", "one_hot", "largest"}
    own_loop = {
        "new_model", "batches", "bits", "train", "note", "parts", "listen", "normed", "score", "treat", "treated",
        "with_trainer",
    }  # fmt: skip
    assert set(defined) <= by_hand | own_loop
