"""Tests of the explorers without a browser."""

import io
import math
import re
import sys

import nbformat
import numpy as np
import pytest
import torch
from ipywidgets import Dropdown
from PIL import Image

from mambanorm.arms import PRESETS
from mambanorm.block import MambaBlock
from mambanorm_study import widgets
from mambanorm_study.cli.main import main
from mambanorm_study.figures.diagrams import influencing_cells
from mambanorm_study.figures.lessons import example_batch
from mambanorm_study.figures.style import StudyFigure
from mambanorm_study.lessons import explorable
from mambanorm_study.lessons.invariance import CHANGE_LIMIT, output_change, prepared_norm
from mambanorm_study.runs import measurements
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.norm_catalog import arm_parameters
from mambanorm_study.tables.scan_by_hand import INPUTS, scan_by_hand
from mambanorm_study.widgets import page, recorded as recorded_explorers
from mambanorm_study.widgets.explorers import (
    CUSTOM,
    PRESET_MODELS,
    Explorer,
    recorded_runs,
)
from tests.mambanorm_study.figures.test_figures import assert_labelled

# what all explorers share


def texts(figure) -> str:
    """Return all text of a figure."""
    return " ".join(
        text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))
    )


def test_a_control_changes_the_picture_in_place_and_an_error_is_shown_as_a_message():
    def draw(size: int) -> StudyFigure:
        if size > 2:
            raise ValueError(f"size {size} is <too> large")
        figure = StudyFigure(figsize=(size, 1))
        figure.set_label(f"a figure of size {size}")
        return figure

    explorer = Explorer(draw, size=Dropdown(options=[1, 2, 3]))
    image, before = explorer.picture, explorer.picture.value
    explorer.controls["size"].value = 2
    assert explorer.picture is image
    assert image.value != before
    assert Image.open(io.BytesIO(image.value)).format == "PNG"
    assert "size 2" in image.tooltip
    before = image.value
    explorer.controls["size"].value = 3
    assert explorer.message.value == "<p>size 3 is &lt;too&gt; large</p>"
    assert image.value == before
    explorer.controls["size"].value = 2
    assert explorer.message.value == ""


@pytest.fixture(scope="module")
def made():
    """Return an explorer of each kind in its first state."""
    return {make: make() for make in widgets.EXPLORERS.values()}


@pytest.mark.parametrize("make", widgets.EXPLORERS.values(), ids=lambda make: make.__name__)
def test_every_explorer_is_one_labelled_picture_with_an_alternative_text(make, made):
    explorer = made[make]
    data, metadata = explorer._repr_mimebundle_()
    assert (
        Image.open(io.BytesIO(data["image/png"])).width
        == 1.5 * metadata["image/png"]["width"]
        == 1425
    )
    assert len(metadata["image/png"]["alt"]) > 40
    assert "seed" in metadata["image/png"]["alt"]
    assert len([child for child in explorer.children if child is explorer.picture]) == 1
    assert_labelled(explorer.figure)


# norms


def test_in_eval_mode_batch_norm_depends_on_nobody_else_and_follows_the_scale():
    x = example_batch()
    norm = prepared_norm("BN", x, training=False)
    assert output_change(norm, "other rows", x) == output_change(norm, "later positions", x) == 0
    assert output_change(norm, "all × 3", x) > CHANGE_LIMIT
    assert not influencing_cells("BN", training=False).any()
    assert influencing_cells("BN").any()


# the block


def test_the_parameters_of_every_place_add_up_to_the_model():
    parameters, config = arm_parameters("RMSN>SSM>GN"), base_config("digits", "quick")
    layers, d = config.n_layers, config.d_model
    norms = {place: parameters[place] for place in ("N1", "N2")}
    assert norms == {"N1": layers * d, "N2": layers * 2 * 2 * d}
    block = MambaBlock(
        d, "None", "None", d_state=config.d_state, d_conv=config.d_conv, expand=config.expand
    )
    block = sum(p.numel() for p in block.parameters())
    assert parameters["mixers"] == layers * block


def test_recorded_accuracies_are_those_of_the_recorded_rows():
    from mambanorm_study.runs.recorded_results import recorded

    cell = recorded_runs("RMSN>SSM>GN").query("scale == 'quick' and task == 'digits'")
    rows = recorded("quick").set_index("run_id").loc[cell.run_id]
    assert len(cell) == rows.seed.nunique() == len(rows)
    assert np.allclose(cell.score, 100 * rows.test_accuracy)
    assert rows.lr.nunique() == 1
    assert set(rows.arm) == {"RMSN>SSM>GN"}


def test_an_arm_that_is_not_recorded_says_so():
    explorer = widgets.explore_block()
    absent = recorded_runs("Derf>SSM>DyT")
    assert absent.empty
    assert "this arm is not recorded" in texts(
        explorer._draw(**explorer.values | {"n1": "Derf", "n2": "DyT"})
    )


def test_a_norm_at_a_further_site_is_drawn_and_counted():
    explorer = widgets.explore_block()
    before = explorer.picture.value
    explorer.controls["B"].value = "RMSN"
    assert explorer.picture.value != before
    assert "RMSN→GN + RMSN at B" in explorer.picture.tooltip
    words = texts(explorer._draw(**explorer.values))
    assert "B: RMSN" in words
    assert "further" in words
    plain, with_b = arm_parameters("RMSN>SSM>GN"), arm_parameters("RMSN>SSM>GN+B:RMSN")
    config = base_config("digits", "quick")
    assert with_b["further"] == config.n_layers * config.d_state
    assert sum(with_b.values()) - sum(plain.values()) == with_b["further"]
    assert "further" not in plain
    arm, options = (
        PRESETS["Falcon-Mamba"].arm,
        dict(PRESETS["Falcon-Mamba"].options),
    )  # without weights
    block = MambaBlock(config.d_model, *arm, d_state=config.d_state, norm_options=options)
    assert arm_parameters(str(arm), weightless=True).get("further", 0) == config.n_layers * sum(
        p.numel() for p in block.more.parameters()
    )


def test_a_preset_of_the_explorer_is_the_published_arm():
    explorer = widgets.explore_block()
    assert explorer.values["preset"] == CUSTOM
    assert {name for name, preset in PRESETS.items() if preset.arm.more} < set(PRESET_MODELS)
    for name in ("Jamba", "Falcon-Mamba"):
        explorer.controls["preset"].value = name
        assert f"The model of arm {PRESETS[name].arm.label}" in explorer.picture.tooltip
    explorer.controls["preset"].value = CUSTOM
    assert "The model of arm RMSN>SSM>GN" in explorer.picture.tooltip


# the scan


def test_states_follow_the_recurrence_and_forget_by_half_in_their_half_life():
    u, delta, a = INPUTS["a word, then noise"], 0.3, 0.7
    scan = scan_by_hand(u, delta, a)
    for n in (1, 4):
        h = 0.0
        for t, value in enumerate(u):
            h = math.exp(-delta * n * a) * h + delta * value
            assert float(scan.states[n - 1, t]) == pytest.approx(h)
    assert torch.allclose(scan.y, scan.states.mean(0))
    scan = scan_by_hand([1.0] + [0.0] * 20, delta=0.1, a=math.log(2))
    assert scan.half_life[:2].tolist() == pytest.approx([10, 5])
    assert float(scan.states[0, 10]) == pytest.approx(float(scan.states[0, 0]) / 2)


def test_where_delta_follows_the_input_a_state_holds_still_while_nothing_comes_in():
    scan = scan_by_hand([0, 2, 0, 0, 0, 1, 0], delta=0.5, a=1.0, selective=True)
    assert scan.delta.tolist() == [0, 0.5, 0, 0, 0, 0.25, 0]
    assert len(set(scan.states[0, 1:5].tolist())) == 1


# the page


def test_the_page_has_every_explorer_under_its_title_with_a_sentence():
    nb = page.explorers_notebook()
    nbformat.validate(nb)
    code = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    words = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    for (title, make), cell in zip(
        widgets.EXPLORERS.items(), code[-len(widgets.EXPLORERS) :], strict=True
    ):
        assert f"<h2>{title}</h2>" in words
        assert f"{make.__name__}()" in cell
        assert " ".join(make.__doc__.partition("\n\n")[0].split()) in words


def test_the_server_listens_on_this_machine_only_and_wants_a_token(tmp_path):
    options = page._voila_options(tmp_path / "x.ipynb", None)
    assert "--Voila.ip=127.0.0.1" in options
    assert "--Voila.auto_token=True" in options
    assert "http" not in page.POLICY  # no other server


def test_without_voila_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "voila.app", None)
    assert main(["explore", "--no-browser"]) == 2
    assert "needs voila, which is not installed here" in capsys.readouterr().err


# explorers of recorded data


def test_the_explorers_measurements_are_recorded(tmp_path, monkeypatch):
    """If this fails, lessons/explorable.py has changed: measure into an empty store with the source
    "trained", and add its rows to data/results/measured.parquet (runs/measurements.py).
    """
    monkeypatch.setattr(measurements, "exactly_threads", lambda _: pytest.fail("it measures"))
    for measured in (explorable.failing_run, explorable.larger_weights, explorable.neighbours):
        assert len(measured(tmp_path)) > 50


def test_the_failing_run_is_calm_at_first_and_ends_beyond_float32():
    worst = explorable.failing_run().groupby("step").largest.max()
    assert worst.loc[0] < 100
    infinite = [step for step, largest in worst.items() if math.isinf(largest)]
    assert infinite == [13, 23, 24, 25]  # notebook 07 says so
    assert worst.loc[15] < 65_504
    figure = recorded_explorers.draw_failing_run(0)
    assert "float16" in texts(figure)
    assert "not finite" in figure.get_label()


def test_a_norm_before_the_block_bounds_models_with_larger_weights():
    runs = explorable.larger_weights()
    last = runs[(runs.n_layers == 24) & (runs.gain == 4) & (runs.depth == 24)].set_index("arm")
    assert math.isinf(last.largest["None>SSM>None"])
    assert last.largest["RMSN>SSM>None"] < 100 < last.largest["None>SSM>RMSN"]
    again = [
        row
        for row in explorable._measure_gains(["RMSN>SSM>None"], depths=(4,))
        if row["gain"] == 4.0
    ]
    stored = runs[(runs.arm == "RMSN>SSM>None") & (runs.n_layers == 4) & (runs.gain == 4)]
    assert [row["largest"] for row in again] == pytest.approx(stored.largest.tolist(), rel=0.01)


def test_more_seeds_name_the_wrong_arm_less_often():
    pair = next(iter(recorded_explorers.PAIRS))
    assert len(recorded_explorers._differences(pair)) == 24

    def wrong(seeds: int) -> int:
        figure = recorded_explorers.draw_seed_lottery(pair, seeds, 1)
        return int(re.search(r"(\d+)% of the draws name the wrong arm", texts(figure))[1])

    assert wrong(1) > wrong(3) > wrong(12)


def test_only_batch_norm_in_training_sees_the_neighbours():
    runs = explorable.neighbours()
    for (norm, mode), rows in runs.groupby(["norm", "mode"]):
        moved = np.ptp(rows[[str(digit) for digit in range(10)]].to_numpy(), axis=0).max()
        assert (moved > 0.05) == (norm == "BN" and mode == "train"), (norm, mode)
