"""What the notebooks show, for the tests of the sources' items."""

import re
from functools import cache

import nbformat

from mambanorm_study.basics.settings import ROOT


@cache
def code(notebook):
    """Return the code of a notebook, such as "07_diagnostics", without its hidden solutions."""
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
    return "\n".join(
        cell.source
        for cell in cells
        if cell.cell_type == "code" and "solution" not in cell.metadata.get("tags", ())
    )


def assert_shown(notebook, *names):
    """Assert that the code of a notebook contains each of the names as a whole word."""
    missing = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", code(notebook))]
    assert not missing, f"{notebook} does not show {missing}"


def texts_of(figure):
    """Return all texts of a figure: the panels' titles, x ticks and annotations."""
    axes = figure.axes
    return [
        *(text.get_text() for ax in axes for text in ax.texts),
        *(text.get_text() for ax in axes for text in ax.get_xticklabels()),
        *(ax.get_title(loc) for ax in axes for loc in ("left", "center")),
    ]
