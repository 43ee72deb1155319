"""Tests of the sheet of the norms: one A4 page with the facts of the registry."""

import re

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Polygon, Rectangle

from mambanorm import NORMS
from mambanorm_study import figures
from mambanorm_study.cli.main import main
from mambanorm_study.figures.diagrams import influencing_cells
from mambanorm_study.figures.sheet import equation


@pytest.fixture(scope="module")
def sheet():
    fig = figures.fig_sheet()
    FigureCanvasAgg(fig).draw()
    return fig


def cards(fig):
    """Return name → the axes of its card, whose child is the box of cells."""
    return {text.get_text(): ax for ax in fig.axes for text in ax.texts if text.get_text() in NORMS}


def test_the_sheet_has_a_card_for_every_norm_with_what_the_registry_says(sheet):
    assert list(cards(sheet)) == [name for name in NORMS if name != "Constant"]
    for name, ax in cards(sheet).items():
        words = " ".join(text.get_text() for text in ax.texts)
        entry = NORMS[name]
        assert ("sees the future" in words) == (not entry.causal)
        assert (" · ".join(entry.axes) or "no statistic") in words
        assert f"learns {entry.learnable}" in " ".join(words.split())
        assert entry.use
        assert " ".join(entry.use.split()[-2:]) in " ".join(words.split())
        assert all(part in words for part in equation(entry))


def test_no_words_leave_their_card_or_run_into_each_other(sheet):
    renderer = sheet.canvas.get_renderer()
    for name, ax in cards(sheet).items():
        (frame,) = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
        limits = frame.get_window_extent(renderer)
        boxes = {
            text.get_text(): text.get_window_extent(renderer)
            for text in ax.texts
            if text.get_text()
        }
        for text, box in boxes.items():
            assert limits.x0 <= box.x0 <= box.x1 <= limits.x1, (name, text)
            assert limits.y0 <= box.y0 <= box.y1 <= limits.y1, (name, text)
        for one in boxes:
            crossing = [two for two in boxes if two != one and boxes[one].overlaps(boxes[two])]
            assert not crossing, (name, one, crossing)


def test_shared_cells_are_hatched_for_printers_without_colour(sheet):
    for name, ax in cards(sheet).items():
        (box,) = ax.child_axes
        hatched = [
            patch for patch in box.patches if isinstance(patch, Polygon) and patch.get_hatch()
        ]
        assert bool(hatched) == bool(influencing_cells(name).any())


def test_the_command_writes_one_a4_page(tmp_path, capsys):
    assert main(["sheet", "--norms", "LN,BN,GN", "--out", str(tmp_path / "new")]) == 0
    pdf = tmp_path / "new" / "norms.pdf"
    assert capsys.readouterr().out.split() == [str(pdf)]
    raw = pdf.read_bytes()
    assert len(re.findall(rb"/Type /Page\b", raw)) == 1
    (width, height) = map(float, re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", raw).groups())
    assert np.allclose([width, height], [595, 842], atol=1)  # 210 × 297 mm in points
