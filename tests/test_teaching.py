"""Claims about the teacher's page: it names every notebook, its links lead somewhere, its commands are understood."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest

from mambanorm.basics.settings import ROOT
from mambanorm.cli import main as cli

FOLDER = ROOT / "notebooks"
PAGE = (FOLDER / "README.md").read_text()
TABLE = re.findall(r"^\| (?:\[|`)(\d\d_\w+).*?\| (\d+) \|", PAGE, re.MULTILINE)


def test_the_page_has_a_row_with_minutes_for_every_notebook():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} <= {name for name, _ in TABLE}
    assert all(5 <= int(minutes) <= 60 for _, minutes in TABLE)


def test_the_first_notebook_has_a_map_of_all_of_them():
    text = (FOLDER / "00_start_here.ipynb").read_text()
    assert {path.stem for path in FOLDER.glob("*.ipynb")} - {"00_start_here"} <= set(re.findall(r"\b\d\d_\w+\b", text))


def test_the_short_way_takes_as_long_as_the_page_says():
    minutes = {name[:2]: int(value) for name, value in TABLE}
    (way,) = re.findall(r"A short way is ([\d →]+),", PAGE)
    assert sum(minutes[number] for number in way.split(" → ")) == pytest.approx(3.5 * 60, abs=15)


def test_the_lesson_fills_its_ninety_minutes_without_a_gap():
    spans = [tuple(map(int, span)) for span in re.findall(r"^\| (\d+)–(\d+) \|", PAGE, re.MULTILINE)]
    assert [spans[0][0], spans[-1][1]] == [0, 90]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))


def test_files_that_the_page_links_to_exist():
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (FOLDER / target).exists(), target


@pytest.mark.parametrize("line", re.findall(r"^mambanorm [^\n]*|(?<=`)mambanorm \w[^`]*(?=`)", PAGE, re.MULTILINE))
def test_commands_of_the_page_are_understood(line):
    cli._parse(shlex.split(line.replace("\n", " "), comments=True)[1:])


def test_what_the_page_calls_recorded_can_be_read_instead_of_trained():
    """A notebook that need not train takes the parameter `source`, or reads the recorded results in any case."""
    for name, said in re.findall(r"^\| \[(\d\d_\w+)\].*\| ([^|]+) \|$", PAGE, re.MULTILINE):
        text = (FOLDER / f"{name}.ipynb").read_text()
        if said.startswith("trains nothing"):
            assert "source: str = None" in text or "recorded" in text, name
