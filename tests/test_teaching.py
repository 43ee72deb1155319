"""Claims about the teacher's page: it names every notebook, its links lead somewhere, its commands are understood."""

import re
import shlex

import pytest

from mambanorm.basics.settings import ROOT
from mambanorm.cli import main as cli

FOLDER = ROOT / "notebooks"
PAGE = (FOLDER / "README.md").read_text()
TABLE = re.findall(r"^\| (?:\[|`)(\d\d_\w+).*?\| (\d+) \|", PAGE, re.MULTILINE)


def test_every_committed_notebook_has_less_than_500_kilobytes():
    assert [path.name for path in FOLDER.glob("*.ipynb") if path.stat().st_size >= 500_000] == []


def test_the_page_has_a_row_with_minutes_for_every_notebook():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} <= {name for name, _ in TABLE}
    assert all(5 <= int(minutes) <= 60 for _, minutes in TABLE)


def test_the_first_notebook_has_a_map_of_all_of_them():
    text = (FOLDER / "00_start_here.ipynb").read_text()
    assert {path.stem for path in FOLDER.glob("*.ipynb")} - {"00_start_here"} <= set(re.findall(r"\b\d\d_\w+\b", text))


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
