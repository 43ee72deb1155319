"""Helpers for the tests of items: names that a notebook uses, texts and numbers of a figure."""

import ast
from functools import cache

import nbformat

from mambanorm_study.basics.settings import ROOT


@cache
def names_in(notebook):
    """Return the names and attributes that the code of a notebook uses, such as "07_diagnostics",
    without its imports and its hidden solutions.
    """
    cells = nbformat.read(ROOT / "notebooks" / f"{notebook}.ipynb", as_version=4).cells
    code = [
        cell.source
        for cell in cells
        if cell.cell_type == "code" and "solution" not in cell.metadata.get("tags", ())
    ]
    nodes = [node for source in code for node in ast.walk(ast.parse(source))]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def assert_shown(notebook, *names):
    """Assert that the code of a notebook uses each of the names."""
    missing = set(names) - names_in(notebook)
    assert not missing, f"{notebook} does not show {missing}"


def texts_of(figure):
    """Return all texts of a figure: the panels' titles, x ticks and annotations."""
    axes = figure.axes
    return [
        *(text.get_text() for ax in axes for text in ax.texts),
        *(text.get_text() for ax in axes for text in ax.get_xticklabels()),
        *(ax.get_title(loc) for ax in axes for loc in ("left", "center")),
    ]


def drawn_numbers(figure):
    """Return every y value that a figure draws as a line, point or bar, as a set with one decimal."""
    numbers = set()
    for ax in figure.axes:
        for line in ax.lines:
            numbers |= {round(float(y), 1) for y in line.get_ydata()}
        for points in ax.collections:
            numbers |= {round(float(y), 1) for _, y in points.get_offsets()}
        numbers |= {
            round(float(bar.get_height()), 1) for bar in ax.patches if hasattr(bar, "get_height")
        }
    return numbers
