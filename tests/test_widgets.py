"""The explorers, without a browser: controls move the picture, and what stands in it is true."""

from __future__ import annotations

import gc
import io
import math
import sys
import time

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from torch import nn

from mambanorm import widgets
from mambanorm.arms import MORE_SITES, PRESETS
from mambanorm.block import MambaBlock
from mambanorm.cli.main import main
from mambanorm.diagnostics.growth import growth_map
from mambanorm.figures.arm_view import fig_arm_view
from mambanorm.figures.diagrams import moving_cells
from mambanorm.figures.growth_view import fig_growth_view
from mambanorm.figures.lessons import example_batch
from mambanorm.figures.live_view import fig_live_view
from mambanorm.figures.style import StudyFigure
from mambanorm.lessons.invariance import CHANGES, FELT, felt, prepared_norm
from mambanorm.norms import NORMS
from mambanorm.study.inside import INPUTS, LONGEST, parse_numbers, scan_by_hand
from mambanorm.study.norm_catalog import arm_facts
from mambanorm.training.grid import base_config
from mambanorm.training.live import GRADIENT_BINS, LiveRun, LiveRuns
from mambanorm.training.run import train
from mambanorm.training.store import save_run
from mambanorm.widgets import grid, page
from mambanorm.widgets.block import NAMED, OWN
from mambanorm.widgets.explorer import Explorer, choice, no_collection
from mambanorm.widgets.norms import SEQUENCE, TOKEN, scopes
from mambanorm.widgets.page import explorers_notebook
from mambanorm.widgets.recorded import COLUMNS, grid_means, recorded_arm, recorded_cell, recorded_rates

# ---------------------------------------------------------------------------------------------------------------------
# what all explorers share


def texts(figure) -> str:
    """All words of a figure."""
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


@pytest.fixture
def small():
    """An explorer whose drawing is cheap, and the list of what was drawn."""
    drawn = []

    def draw(size: int) -> StudyFigure:
        drawn.append(size)
        if size > 2:
            raise ValueError(f"size {size} is <too> large")
        figure = StudyFigure(figsize=(size, 1))
        figure.set_label(f"a figure of size {size}")
        return figure

    return Explorer(draw, size=choice(1, [1, 2, 3], "size")), drawn


def test_a_control_changes_the_one_picture_in_place(small):
    explorer, _ = small
    image, before = explorer.picture, explorer.picture.value
    explorer.controls["size"].value = 2
    assert explorer.picture is image
    assert image.value != before
    assert Image.open(io.BytesIO(image.value)).format == "PNG"
    assert "size 2" in image.tooltip


def test_an_explorer_remembers_the_pictures_it_has_drawn(small):
    explorer, drawn = small
    for size in (2, 1, 2, 1):
        explorer.controls["size"].value = size
    assert drawn == [1, 2, 1]  # the first picture is kept in few colours, and drawn once more in all


def test_a_value_that_cannot_be_drawn_is_told_in_words_and_the_picture_stays(small):
    explorer, _ = small
    before = explorer.picture.value
    explorer.controls["size"].value = 3
    assert explorer.said.value == "<p>size 3 is &lt;too&gt; large</p>"
    assert explorer.picture.value == before
    explorer.controls["size"].value = 2
    assert explorer.said.value == ""


@pytest.mark.parametrize("make", widgets.EXPLORERS.values(), ids=lambda make: make.__name__)
def test_every_explorer_is_one_picture_with_words_for_those_who_cannot_see_it(make):
    explorer = make()
    data, metadata = explorer._repr_mimebundle_()
    assert Image.open(io.BytesIO(data["image/png"])).size[0] == 950
    assert len(data["image/png"]) < 60_000  # notebooks that keep it stay small
    assert len(metadata["image/png"]["alt"]) > 40
    assert "seed" in metadata["image/png"]["alt"]
    assert len([child for child in explorer.children if child is explorer.picture]) == 1


@pytest.mark.parametrize("make", widgets.EXPLORERS.values(), ids=lambda make: make.__name__)
def test_every_axis_of_an_explorer_says_what_it_shows(make):
    explorer = make()
    for ax in explorer.first.axes:
        if not ax.axison or not ax.has_data():
            continue
        row = [other for other in explorer.first.axes if other is ax or other.get_shared_y_axes().joined(ax, other)]
        column = [other for other in explorer.first.axes if other is ax or other.get_shared_x_axes().joined(ax, other)]
        assert any(other.get_ylabel() for other in row), ax
        assert any(other.get_xlabel() for other in column) or ax.get_label() == "<colorbar>", ax


# ---------------------------------------------------------------------------------------------------------------------
# norms

INVARIANT = {  # by definition, in training mode
    "BN": {"all × 3", "all + 3", "each channel × its own", "each channel + its own"},
    "IN": {"all × 3", "all + 3", "each channel × its own", "each channel + its own", "other rows"},
    "LN": {"all × 3", "all + 3", "other rows", "later positions"},
    "RMSN": {"all × 3", "other rows", "later positions"},
    "GN": {"all × 3", "all + 3", "other rows"},
    "LN-DL": {"all × 3", "all + 3", "other rows"},
    "RMSN-DL": {"all × 3", "other rows"},
    "GN-token": {"all × 3", "all + 3", "other rows", "later positions"},
    "None": {"other rows", "later positions"},
    "DyT": {"other rows", "later positions"},
    "SwitchNorm": {"all × 3", "all + 3"},
    "Scale": {"other rows", "later positions"},
}


@pytest.mark.parametrize("name", INVARIANT)
def test_what_leaves_a_norm_unmoved_is_what_its_equation_says(name):
    x = example_batch()
    assert {change for change in CHANGES if felt(prepared_norm(name, x), change, x) < FELT} == INVARIANT[name]


@pytest.mark.parametrize("name", NORMS)
def test_the_trials_find_the_registered_causality(name):
    x = example_batch()
    assert (felt(prepared_norm(name, x), "later positions", x) < FELT) == NORMS[name].causal


def test_in_eval_mode_batch_norm_depends_on_nobody_else_and_follows_the_scale():
    x = example_batch()
    norm = prepared_norm("BN", x, training=False)
    assert felt(norm, "other rows", x) == felt(norm, "later positions", x) == 0
    assert felt(norm, "all × 3", x) > FELT
    assert not moving_cells("BN", training=False).any()
    assert moving_cells("BN").any()


def test_running_statistics_have_settled_on_the_batch():
    x = example_batch(offset=10)
    y = prepared_norm("BN", x, training=False)(x)
    assert y.mean().abs() < 0.1
    assert 0.8 < y.std() < 1.2


def test_one_group_is_layer_norm_over_the_sequence():
    x = example_batch()
    assert torch.allclose(prepared_norm("GN", x, groups=1)(x), prepared_norm("LN-DL", x)(x), atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 4, 8), (4, 1, 8), (4, 8)])
def test_trials_need_a_batch_mate_and_a_future(shape):
    with pytest.raises(ValueError, match="at least 2 rows and 2 positions"):
        felt(nn.Identity(), "other rows", torch.zeros(shape))


def test_scope_and_groups_are_offered_only_where_they_mean_something():
    explorer = widgets.explore_norms()
    controls = explorer.controls
    assert controls["groups"].layout.display == "none"  # LN has none
    assert controls["scope"].layout.display == "flex"
    controls["scope"].value = SEQUENCE
    assert "LN-DL, train" in explorer.picture.tooltip
    controls["norm"].value = "BN"
    assert controls["scope"].layout.display == "none"
    assert "BN, train" in explorer.picture.tooltip
    controls["norm"].value = "GN"
    assert controls["groups"].layout.display == "flex"
    before = explorer.picture.value
    controls["groups"].value = 1
    assert explorer.picture.value != before


def test_the_scopes_of_the_explorer_reach_every_norm():
    reached = {scope: name for base in widgets.norms.base_names() for scope, name in scopes(base).items()}
    assert set(reached) == {TOKEN, SEQUENCE}
    assert {name for base in widgets.norms.base_names() for name in scopes(base).values()} >= set(NORMS) - {
        "NormVary-fixed"
    }
    assert scopes("LN") == {TOKEN: "LN", SEQUENCE: "LN-DL"}
    assert scopes("GN") == {SEQUENCE: "GN", TOKEN: "GN-token"}
    assert scopes("IN") == {SEQUENCE: "IN"}


# ---------------------------------------------------------------------------------------------------------------------
# the block


def test_the_parameters_of_every_place_add_up_to_the_model():
    facts = arm_facts("RMSN>SSM>GN", "LN", "RMSN")
    layers, d = facts.n_layers, facts.d_model
    own = {place: facts.parameters[place] for place in ("stem norm", "N1", "N2", "final norm")}
    assert own == {"stem norm": 2 * d, "N1": layers * d, "N2": layers * 2 * 2 * d, "final norm": d}
    config = base_config("digits", "quick")
    block = MambaBlock(d, "None", "None", d_state=config.d_state, d_conv=config.d_conv, expand=config.expand)
    block = sum(p.numel() for p in block.parameters())
    assert facts.parameters["mixers"] == layers * block
    assert facts.total == sum(facts.parameters.values())
    assert facts.block_ms > 0


def test_recorded_accuracies_are_those_of_the_recorded_rows():
    from mambanorm.training.recorded_results import recorded

    cell = recorded_cell("quick", "digits", "RMSN>SSM>GN")
    rows = recorded("quick").set_index("run_id").loc[cell.run_id]
    assert len(cell) == rows.seed.nunique() == len(rows)
    assert np.allclose(cell.accuracy, rows.test_accuracy)
    assert np.allclose(cell.lr, rows.lr)
    assert set(rows.arm) == {"RMSN>SSM>GN"}


def test_an_arm_that_is_not_recorded_is_empty_and_the_figure_says_so():
    results = recorded_arm("Derf>SSM>DyT")
    assert results.empty
    assert list(results.columns) == COLUMNS
    figure = fig_arm_view(arm_facts("Derf>SSM>DyT"), results, note="this arm is not recorded")
    assert "this arm is not recorded" in texts(figure)


def test_norms_outside_the_blocks_are_drawn_and_no_result_is_claimed_for_them():
    explorer = widgets.explore_block()
    drawn = explorer._draw(**explorer.values | {"stem_norm": "IN", "final_norm": "LN"})
    words = texts(drawn)
    assert "recorded were models" in words
    assert "stem: –" not in words
    assert "recorded were models" not in texts(explorer.first)


def test_a_norm_at_a_further_site_is_drawn_and_counted():
    explorer = widgets.explore_block()
    before = explorer.picture.value
    explorer.controls["B"].value = "RMSN"
    assert explorer.picture.value != before
    assert "RMSN→GN + RMSN at B" in explorer.picture.tooltip
    words = texts(explorer._draw(**explorer.values))
    assert "B: RMSN" in words
    assert "further" in words
    plain, with_b = arm_facts("RMSN>SSM>GN"), arm_facts("RMSN>SSM>GN+B:RMSN")
    assert with_b.parameters["further"] == with_b.n_layers * base_config("digits", "quick").d_state
    assert with_b.total - plain.total == with_b.parameters["further"]
    assert "further" not in plain.parameters


@pytest.fixture
def undrawn(monkeypatch):
    """The explorer of the block, and the values of each picture that it would draw."""
    explorer, drawn = widgets.explore_block(), []
    monkeypatch.setattr(explorer, "_png", lambda values: drawn.append(dict(values)) or (b"", ""))
    return explorer, drawn


def test_a_preset_of_the_explorer_is_the_published_arm_and_drawn_once(undrawn):
    explorer, drawn = undrawn
    assert {name for name, preset in PRESETS.items() if preset.arm.more} < set(NAMED)
    for name in NAMED:
        explorer.preset.value = name
        sites = {site: drawn[-1][site] for site in ("n1", "n2", *MORE_SITES)}
        assert sites == dict.fromkeys(MORE_SITES, "None") | PRESETS[name].arm.sites
        assert drawn[-1]["weights"] == (name != "Falcon-Mamba")
        assert explorer.preset.value == name
    assert len(drawn) == len(NAMED)


@pytest.mark.parametrize("name", ["Jamba", "Falcon-Mamba", "Peri-LN"])
def test_parameters_of_a_preset_are_those_of_its_norms(name):
    arm, options = PRESETS[name].arm, dict(PRESETS[name].options)
    sizes = base_config("digits", "quick")
    block = MambaBlock(sizes.d_model, *arm, d_state=sizes.d_state, norm_options=options)
    facts = arm_facts(str(arm), weightless=bool(options))
    assert facts.parameters["further"] == facts.n_layers * sum(p.numel() for p in block.more.parameters())


def test_the_explorer_names_the_preset_that_its_controls_are_and_no_other(undrawn):
    explorer, _ = undrawn
    assert explorer.preset.value == OWN
    explorer.put(n2="None", B="RMSN", C="RMSN")
    assert explorer.preset.value == "Mamba-3-norms"
    explorer.controls["delta"].value = "RMSN"
    assert explorer.preset.value == "Jamba"
    explorer.controls["weights"].value = False
    assert explorer.preset.value == "Falcon-Mamba"
    explorer.controls["z"].value = "LN"
    assert explorer.preset.value == OWN
    assert explorer.values["B"] == "RMSN"  # to be nothing named changes nothing


def test_a_norm_that_does_not_fit_its_site_is_told():
    explorer = widgets.explore_block()
    before = explorer.picture.value
    explorer.controls["delta"].value = "GN"  # four groups, and Δ has fewer numbers
    assert "do not divide into 4 groups" in explorer.said.value
    assert explorer.picture.value == before


# ---------------------------------------------------------------------------------------------------------------------
# the scan


def test_a_state_forgets_by_half_in_its_half_life():
    scan = scan_by_hand([1.0] + [0.0] * 20, delta=0.1, a=math.log(2))
    assert float(scan.half_life[0]) == pytest.approx(10)
    assert float(scan.states[0, 10]) == pytest.approx(float(scan.states[0, 0]) / 2)
    assert torch.allclose(scan.half_life, scan.half_life[0] / torch.arange(1.0, 5, dtype=torch.float64))


def test_states_follow_the_recurrence():
    u, delta, a = INPUTS["a word, then noise"], 0.3, 0.7
    scan = scan_by_hand(u, delta, a)
    for n in (1, 4):
        h = 0.0
        for t, value in enumerate(u):
            h = math.exp(-delta * n * a) * h + delta * value
            assert float(scan.states[n - 1, t]) == pytest.approx(h)
    assert torch.allclose(scan.y, scan.states.mean(0))


def test_where_delta_follows_the_input_a_state_holds_still_while_nothing_comes_in():
    scan = scan_by_hand([0, 2, 0, 0, 0, 1, 0], delta=0.5, a=1.0, selective=True)
    assert scan.delta.tolist() == [0, 0.5, 0, 0, 0, 0.25, 0]
    assert len(set(scan.states[0, 1:5].tolist())) == 1


@pytest.mark.parametrize(("text", "said"), [("1 x 2", "'x' is no number"), ("", "0 numbers"), ("inf", "no number")])
def test_numbers_that_cannot_be_drawn_are_refused_in_words(text, said):
    with pytest.raises(ValueError, match=said):
        parse_numbers(text)
    with pytest.raises(ValueError, match=f"1 to {LONGEST} can be drawn"):
        parse_numbers("1 " * (LONGEST + 1))
    assert parse_numbers("0, 1 -2.5") == [0, 1, -2.5]


@pytest.mark.parametrize("bad", [dict(delta=0.0, a=1.0), dict(delta=1.0, a=-1.0), dict(delta=math.nan, a=1.0)])
def test_a_scan_needs_a_step_and_a_rate_above_zero(bad):
    with pytest.raises(ValueError, match="must be above 0"):
        scan_by_hand([1.0], **bad)


def test_a_typed_input_is_drawn_and_a_wrong_one_is_told():
    explorer = widgets.explore_scan()
    controls = explorer.controls
    assert controls["numbers"].layout.display == "none"
    controls["source"].value = "by hand"
    assert controls["numbers"].layout.display == "flex"
    before = explorer.picture.value
    controls["numbers"].value = "1 2 drei"
    assert "drei" in explorer.said.value
    assert explorer.picture.value == before
    controls["numbers"].value = "1 2 3"
    assert explorer.picture.value != before


# ---------------------------------------------------------------------------------------------------------------------
# depth × gain


def test_without_norms_a_large_gain_explodes_and_one_before_the_block_holds_it():
    none, rmsn = (growth_map(arm, [1.0, 30.0], n_layers=12) for arm in ("None>SSM>None", "RMSN>SSM>None"))
    assert not np.isfinite(none[1, -1])
    assert np.isfinite(none[0]).all()
    assert np.isfinite(rmsn).all()
    assert rmsn[1, -1] < 1e4
    lost = ~np.isfinite(none[1])
    assert (np.diff(lost.astype(int)) >= 0).all()  # once not finite, for good


def test_an_untrained_batch_norm_in_eval_mode_is_no_norm():
    """I10."""
    new, none = (growth_map(arm, [5.0], n_layers=4, training=False) for arm in ("BN>SSM>BN", "None>SSM>None"))
    assert np.allclose(new, none, rtol=1e-3)
    assert not np.allclose(growth_map("BN>SSM>BN", [5.0], n_layers=4), none, rtol=0.1)


@pytest.mark.parametrize(("arm", "norms"), [("RMSN>SSM>GN", ("RMSN", "GN")), ("BN>SSM>None", ("BN", "None"))])
@torch.no_grad()
def test_a_gain_is_one_on_out_proj_and_no_gain_sees_anothers_rows(arm, norms):
    gains = [0.3, 3.0]
    torch.manual_seed(0)
    blocks, x = [MambaBlock(32, *norms) for _ in range(6)], torch.randn(8, 16, 32)
    for gain in gains:
        y, sizes = x, []
        for block in blocks:
            drawn = block.out_proj.weight.clone()
            block.out_proj.weight.mul_(gain)
            y = block(y)
            block.out_proj.weight.copy_(drawn)
            sizes.append(float(y.norm(dim=-1).max()))
        np.testing.assert_allclose(growth_map(arm, gains, n_layers=6)[gains.index(gain)], sizes, rtol=1e-5)


def test_a_growth_map_depends_on_its_seed_alone():
    torch.manual_seed(1)
    one = growth_map("LN>SSM>None", [1.0], n_layers=3)
    state = torch.get_rng_state()
    two = growth_map("LN>SSM>None", [1.0], n_layers=3)
    assert np.array_equal(one, two)
    assert torch.equal(state, torch.get_rng_state())
    assert not np.array_equal(one, growth_map("LN>SSM>None", [1.0], n_layers=3, seed=1))


@pytest.mark.parametrize("bad", [dict(gains=[0.0]), dict(gains=[-1.0]), dict(gains=[1.0], n_layers=0)])
def test_a_growth_map_refuses_what_makes_no_sense(bad):
    with pytest.raises(ValueError, match="gains must be above 0|n_layers"):
        growth_map("LN>SSM>None", **bad)


def test_the_figure_says_from_which_block_on_outputs_are_not_finite():
    sizes = np.array([[1.0, 2.0, 3.0], [10.0, np.inf, np.inf]])
    how = dict(training=True, seed=0)
    assert "not finite from block 2 on" in texts(fig_growth_view(sizes, [1.0, 10.0], 9.0, "None>SSM>None", **how))
    assert "3 after the last block" in texts(fig_growth_view(sizes, [1.0, 10.0], 1.2, "None>SSM>None", **how))


# ---------------------------------------------------------------------------------------------------------------------
# live training


def short_run(**changes):
    return base_config("digits", "smoke", steps=6, warmup_steps=2, device="cpu", **changes)


def test_to_watch_a_run_changes_nothing_in_it():
    config = short_run(arm="BN>SSM>NormVary")
    run = LiveRun(config)
    run.train()
    alone = train(config)
    assert run.status == "done"
    assert run.losses == alone.curves.train_loss.tolist()
    assert run.steps == list(range(1, 7))
    assert run.looked == [1, 5]
    assert run.l2.shape == (config.n_layers,)
    assert run.gradients.sum() == pytest.approx(1)
    assert all(0 <= accuracy <= 1 for accuracy in run.accuracies)
    assert [list(kinds) for kinds in run.mixtures] == [["mixture"]] * 2
    mixtures = np.stack([kinds["mixture"] for kinds in run.mixtures])
    assert mixtures.shape == (2, config.n_layers, 2, 5)
    assert np.allclose(mixtures.sum(-1), 1, atol=1e-6)


def test_runs_side_by_side_are_those_that_train_alone_and_leave_the_threads_as_they_were():
    before, calls = torch.get_num_threads(), []
    configs = [short_run(arm=arm) for arm in ("RMSN>SSM>None", "None>SSM>IN")]
    runs = LiveRuns(configs, lambda: calls.append(1)).start()
    runs._watcher.join(120)
    assert [run.status for run in runs.runs] == ["done", "done"]
    assert [run.losses for run in runs.runs] == [train(config).curves.train_loss.tolist() for config in configs]
    assert torch.get_num_threads() == before
    assert calls


def test_a_run_stops_when_it_is_told_to():
    runs = LiveRuns([short_run().but(steps=10_000)], lambda: None).start()
    while not runs.runs[0].steps:
        assert runs.running
        time.sleep(0.05)
    runs.stop(wait_s=60)
    assert not runs.running
    assert runs.runs[0].status == "stopped"
    assert 1 <= len(runs.runs[0].steps) < 10_000


def test_a_run_that_cannot_start_says_why():
    run = LiveRun(short_run().but(batch_size=10**6))
    run.train()
    assert "batch_size=1000000 is beyond" in run.status


def test_live_training_shows_both_arms_and_gives_its_buttons_back():
    explorer = widgets.explore_training(steps=3)
    before = explorer.picture.value
    explorer.begin()
    explorer.live._watcher.join(120)
    assert explorer.picture.value != before
    assert not explorer.start.disabled
    assert explorer.halt.disabled
    words = texts(explorer._show(**explorer.values))
    assert "RMSN→None: done" in words
    assert "None→IN: done" in words
    explorer.controls["seed"].value = 1  # another question: the old answer goes
    assert "done" not in texts(explorer._show(**explorer.values))


def test_live_training_takes_norms_at_further_sites_and_tells_what_is_none():
    explorer = widgets.explore_training(steps=3)
    explorer.controls["a_more"].value = "+B:RMSN+C:RMSN"
    explorer.put(b1="RMSN", b2="None", b_more=" gated:RMSN")
    assert [config.arm for config in explorer.configs()] == [
        "RMSN>SSM>None+B:RMSN+C:RMSN",
        "RMSN>SSM>None+gated:RMSN",
    ]
    explorer.begin()
    explorer.live._watcher.join(120)
    words = texts(explorer._show(**explorer.values))
    assert "RMSN→None + RMSN at B, C: done" in words
    assert "RMSN→None + RMSN at gated: done" in words
    explorer.controls["b_more"].value = "+gate:RMSN"
    assert "unknown site" in explorer.said.value
    assert "did you mean" in explorer.said.value
    explorer.begin()
    assert "unknown site" in explorer.said.value


def test_before_a_run_has_shown_anything_no_axis_has_numbers_and_no_label_is_ever_cut():
    explorer = widgets.explore_training(steps=3)
    waiting = [("RMSN>SSM>None", LiveRun(short_run()))]
    how = dict(arms=["RMSN>SSM>None"], task="digits", scale="quick", seed=0, rows=128)
    for figure in (explorer.first, fig_live_view(waiting, GRADIENT_BINS, **how)):
        assert [len(ax.get_xticks()) + len(ax.get_yticks()) for ax in figure.axes] == [0] * 4
    assert texts(explorer.first).count("press start") == 4
    explorer.begin()
    explorer.live._watcher.join(120)
    explorer.live.runs[0].l2 = np.linspace(0, 23_456.7, 4)  # wide numbers move the label to the left
    shown = explorer._show(**explorer.values)
    FigureCanvasAgg(shown).draw()
    for ax in shown.axes:
        assert ax.yaxis.label.get_window_extent().x0 >= 0, ax.get_ylabel()


def test_each_arm_that_trains_has_a_row_of_controls_whose_names_are_whole():
    explorer = widgets.explore_training(steps=3)
    rows = [[child.description for child in row.children] for row in explorer.children[:3]]
    assert rows == [["first N1", "N2", "further"], ["second N1", "N2", "further"], ["seed", "start", "stop"]]


def test_the_page_of_explorers_names_no_control_that_is_not_there():
    for title, make in widgets.EXPLORERS.items():
        said = page._sentence(make)
        assert said.endswith("."), title
        assert "`" not in said, (title, said)


def test_live_training_refuses_one_arm_twice_in_words():
    explorer = widgets.explore_training()
    explorer.controls["b1"].value, explorer.controls["b2"].value = "RMSN", "None"
    explorer.begin()
    assert "both arms are RMSN" in explorer.said.value
    assert explorer.live is None


# ---------------------------------------------------------------------------------------------------------------------
# the grid


def test_a_click_on_a_cell_shows_that_pair_and_frames_it():
    explorer = widgets.explore_grid()
    explorer.cells["IN", "LN"].click()
    assert (explorer.values["n1"], explorer.values["n2"]) == ("IN", "LN")
    assert "IN→LN on digits" in explorer.picture.tooltip
    framed = [pair for pair, cell in explorer.cells.items() if "#F08A00" in cell.layout.border_top]
    assert framed == [("IN", "LN")]
    mean = recorded_cell("quick", "digits", "IN>SSM>LN").accuracy.mean()
    assert explorer.cells["IN", "LN"].description == f"{100 * mean:.1f}"


def test_the_cells_of_the_grid_change_before_their_picture_each_at_once():
    """A browser shows messages in their order: a picture sent first would stand above the cells of another task."""
    explorer, sent = widgets.explore_grid(), []
    for cell in explorer.cells.values():
        for part in (cell, cell.style):
            part.send_state = lambda key=None, **_: sent.append("cell")
    explorer.picture.send_state = lambda key=None, **_: sent.append("picture")
    explorer.controls["setting"].value = "listops (quick)"
    assert sent[-1] == "picture"
    assert sent.count("picture") == 1
    assert 36 <= sent.count("cell") <= 2 * 36
    mean = grid_means("quick", "listops")["RMSN>SSM>GN"]
    assert explorer.cells["RMSN", "GN"].description == (f"{100 * mean:.1f}" if np.isfinite(mean) else "–")


def test_an_axis_without_a_curve_has_no_numbers(monkeypatch):
    monkeypatch.setattr(grid, "_curves", lambda *_: None)
    last = grid._draw("digits (quick)", "RMSN", "GN").axes[-1]
    assert "curves are not recorded" in last.texts[0].get_text()
    assert not [*last.get_xticks(), *last.get_yticks()]


def test_a_pair_that_is_not_recorded_is_empty_in_the_grid_and_in_words():
    means = grid_means("evening", "mnist1d")
    absent = next((arm for arm, mean in means.items() if not np.isfinite(mean)), None)
    if absent is None:
        pytest.skip("every pair is recorded at scale evening")
    explorer = widgets.explore_grid()
    explorer.controls["setting"].value = "mnist1d (evening)"
    n1, _, n2 = absent.split(">")
    explorer.cells[n1, n2].click()
    assert explorer.cells[n1, n2].description == "–"
    assert "not recorded" in explorer.picture.tooltip


def test_all_rates_of_a_cell_are_shown_and_the_tuned_ones_are_among_them():
    rates = recorded_rates("quick", "digits", "GN>SSM>GN")
    cell = recorded_cell("quick", "digits", "GN>SSM>GN")
    assert rates.lr.nunique() >= 3
    assert not rates.duplicated(["lr", "seed"]).any()
    both = cell.merge(rates, on=["lr", "seed"], suffixes=("", "_again"))
    assert len(both) == len(cell)
    assert np.allclose(both.accuracy, both.accuracy_again)


def test_the_curve_of_a_cell_is_that_of_a_run_of_this_machine(store):
    grid._curves.cache_clear()
    assert grid._curves("smoke", "digits", "GN>SSM>GN") is None
    result = train(short_run(arm="GN>SSM>GN"))
    save_run(result)
    grid._curves.cache_clear()
    assert grid._curves("smoke", "digits", "GN>SSM>GN").train_loss.tolist() == result.curves.train_loss.tolist()
    grid._curves.cache_clear()


# ---------------------------------------------------------------------------------------------------------------------
# the mixture


def test_a_mixture_that_nobody_has_trained_is_said_to_be_missing(store):
    explorer = widgets.explore_mixture(steps=4)
    assert "nothing recorded, nothing stored" in explorer.picture.tooltip
    assert "press train" in texts(explorer.first)


@pytest.mark.parametrize("arm", ["NormVary>SSM>None", "SwitchNorm>SSM>SwitchNorm"])
def test_a_mixture_is_trained_here_and_moves_with_time(arm, store):
    explorer = widgets.explore_mixture(steps=6)
    explorer.controls["arm"].value = arm
    assert f"what {arm.split('>')[0]} mixes" in explorer.picture.tooltip
    explorer.begin()
    explorer.live._watcher.join(120)
    assert "trained here, done" in explorer.picture.tooltip
    assert "step 5" in explorer.picture.tooltip
    explorer.controls["at"].value = 0.0
    assert "step 1" in explorer.picture.tooltip
    explorer.controls["seed"].value = 3
    assert "nothing stored" in explorer.picture.tooltip


@pytest.mark.parametrize("arm", ["NormVary>SSM>GN", "SwitchNorm>SSM>None"])
def test_a_stored_run_is_shown_without_training(arm, store):
    explorer = widgets.explore_mixture(steps=4)
    config = explorer.config(arm, 2).but(device="auto")
    save_run(train(config))
    explorer.controls["seed"].value = 2
    explorer.controls["arm"].value = arm
    assert "from the run store of this machine" in explorer.picture.tooltip


# ---------------------------------------------------------------------------------------------------------------------
# the page


def test_the_page_has_every_explorer_under_its_title_with_a_sentence():
    nb = explorers_notebook()
    nbformat.validate(nb)
    code = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    words = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    for title, make in widgets.EXPLORERS.items():
        assert f">{title}</h2>" in words
        assert f"{make.__name__}()" in code[-len(widgets.EXPLORERS) + list(widgets.EXPLORERS).index(title)]
        assert len(make.__doc__) > 60


def test_the_server_listens_on_this_machine_only_and_wants_a_token(tmp_path):
    options = page._options(tmp_path / "x.ipynb", None)
    assert "--Voila.ip=127.0.0.1" in options
    assert "--Voila.auto_token=True" in options
    assert "http" not in page.POLICY  # no other server


@pytest.mark.parametrize("port", [0, 70_000])
def test_a_port_that_is_none_is_refused(port, capsys):
    with pytest.raises(ValueError, match="a port is a number from 1 to 65535"):
        page.serve(port)
    assert main(["explore", "--port", str(port)]) == 2
    assert "a port is a whole number from 1 to 65535" in capsys.readouterr().err


def test_without_voila_one_sentence_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "voila.app", None)
    assert main(["explore", "--no-browser"]) == 2
    assert "needs voila, which is not installed here" in capsys.readouterr().err


def test_drawing_leaves_the_garbage_collector_as_it_was():
    with no_collection():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
