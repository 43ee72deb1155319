"""Tests of the figures, their tables and the paper's numbers on made-up runs."""

import io

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color
from PIL import Image
from scipy import stats

from mambanorm import NORMS, Arm
from mambanorm.arms import PAPER_NORMS
from mambanorm_clinic.figures import fig_cures
from mambanorm_study import figures
from mambanorm_study.figures.colours import BEST
from mambanorm_study.figures.diagrams import SHAPE, diagram_boxes, influencing_cells
from mambanorm_study.tables.experiments import GRID_ARMS
from mambanorm_study.tables.paper import PATTERN_ONLY, paper_values
from mambanorm_study.tables.run_tables import (
    beside_paper,
    best_arm,
    describe_frame,
    mean_sd,
    paired,
    percent,
    summarize,
)

GAIN = {"None": 0.0, "BN": 0.36, "IN": 0.38, "LN": 0.30, "RMSN": 0.31, "GN": 0.40}
BASE = {"digits": (0.46, 0.1), "listops": (0.30, 0.125)}


def made_run(task, arm, seed, *, accuracy=None, status="ok", scale="quick"):
    base, chance = BASE[task]
    arm = Arm.parse(arm)
    planted = (
        base + max(GAIN[arm.n1] / 4, GAIN[arm.n2]) + 0.01 * seed if accuracy is None else accuracy
    )
    test = {"ok": planted, "diverged": chance, "failed": np.nan}[status]
    facts = dict(
        test_accuracy=test,
        val_accuracy=test,
        best_val_accuracy=planted,
        chance=chance,
        status=status,
    )
    return dict(
        task=task, arm=str(arm), n1=arm.n1, n2=arm.n2, seed=seed, role="test", scale=scale, **facts
    )


@pytest.fixture(scope="module")
def frame():
    """Return both tasks, 6×6 arms and 3 seeds.

    IN→BN is missing, LN→LN has one seed, and None→None diverged once.
    """
    runs = []
    for task in BASE:
        for arm in GRID_ARMS:
            for seed in range(0 if arm == Arm("IN", "BN") else 1 if arm == Arm("LN", "LN") else 3):
                lost = arm == Arm("None", "None") and seed == 2
                runs.append(made_run(task, str(arm), seed, status="diverged" if lost else "ok"))
    return pd.DataFrame(runs)


def curve(stop=100, fail=False):
    step = np.arange(1, stop + 1)
    loss = 2.3 * np.exp(-step / 40)
    loss[-1] = np.nan if fail else loss[-1]
    return pd.DataFrame(
        dict(step=step, train_loss=loss, val_accuracy=np.where(step % 25 == 0, 0.5, np.nan))
    )


def token_frame():
    rows = [
        dict(
            depth=d,
            site=site,
            l2=10.0**d if d < 5 else np.inf,
            arm=arm,
            mode=mode,
            phase="trained",
            n_layers=5,
        )
        for arm in ("None>SSM>None", "BN>SSM>BN")
        for mode in ("train", "eval")
        for site in ("branch", "residual")
        for d in range(1, 6)
        for _ in range(8)
    ]
    return pd.DataFrame(rows).assign(seed=0, scale="quick")


STEPS = np.array([0, 10, 20])
SIGMA = np.sort(np.random.default_rng(0).uniform(0.1, 1, (8, 16)), 1)[:, ::-1]
FAILING = np.vstack([SIGMA[:-1] * 9, np.full((1, 16), np.nan)])
LOG = dict(
    step=STEPS,
    singular_values=np.stack([SIGMA] * 3),
    part_norms=np.ones((3, 8, 4)),
    mixture=np.full((3, 8, 2, 5), 0.2),
)

OUTPUTS = dict(
    ring_step=np.array([8, 9]), ring_outputs=np.array([[1.0, 2.0, 3.0], [1.0, 10.0, np.inf]])
)
ENDED = pd.DataFrame(
    dict(
        run_id=["a", "b", "c"],
        arm=["None>SSM>None", "BN>SSM>BN", "BN>SSM>BN"],
        status=["diverged", "ok", "ok"],
    )
).assign(seed=0, scale="evening")


DRAW_FRAME = {
    "headline": figures.fig_headline,
    "type": figures.fig_type,
    "position": figures.fig_position,
    "single_vs_best": figures.fig_single_vs_best,
    "n2_box": figures.fig_n2_box,
    "grid": lambda frame: figures.fig_grid(frame, "digits"),
    "pairs": lambda frame: figures.fig_pairs(
        paired(frame, "None>SSM>GN", "GN>SSM>None"), describe_frame(frame)
    ),
}
DRAW_ARRAYS = {
    "curves": lambda text: figures.fig_curves(
        {"RMSN>SSM>GN": curve(), "a": curve(60, fail=True)}, text
    ),
    "mixture": lambda text: figures.fig_mixture(LOG, text),
    "singular_values": lambda text: figures.fig_singular_values(
        {"early": SIGMA, "failing": FAILING}, SIGMA, (0.1, 0.9), text
    ),
    "part_norms": lambda text: figures.fig_part_norms({"BN>SSM>BN": LOG}, text),
    "outputs": lambda text: figures.fig_outputs(ENDED, {"a": OUTPUTS, "b": OUTPUTS}, text),
}


def assert_labelled(fig):
    """Assert that every panel with data has both labels, or shares them with another panel."""
    for ax in fig.axes:
        if not ax.axison or ax.get_label() == "<colorbar>" or not ax.has_data():
            continue
        row = [
            other
            for other in fig.axes
            if other is ax or other.get_shared_y_axes().joined(ax, other)
        ]
        column = [
            other
            for other in fig.axes
            if other is ax or other.get_shared_x_axes().joined(ax, other)
        ]
        assert any(other.get_ylabel() for other in row), ax
        assert any(other.get_xlabel() for other in column), ax


@pytest.mark.parametrize("name", DRAW_FRAME)
def test_a_figure_of_a_frame_is_labelled_and_says_scale_and_seeds_also_of_one_seed(name, frame):
    fig = DRAW_FRAME[name](frame)
    assert_labelled(fig)
    assert "quick scale" in fig.get_supxlabel()
    assert "a sketch" in fig.get_supxlabel()
    assert "1 seed: a sketch" in DRAW_FRAME[name](frame[frame.seed == 0]).get_supxlabel()


@pytest.mark.parametrize("name", DRAW_ARRAYS)
def test_a_figure_of_arrays_is_labelled_and_carries_its_caption(name):
    fig = DRAW_ARRAYS[name]("smoke scale · 2 seeds: a sketch")
    assert_labelled(fig)
    assert fig.get_supxlabel().startswith("smoke scale · 2 seeds: a sketch")


def test_a_figure_is_shown_once_as_a_small_png_that_keeps_greys_and_nearly_all_colours(frame):
    import matplotlib.pyplot as plt

    fig, drawn = figures.fig_grid(frame, "digits"), io.BytesIO()
    data, metadata = fig._repr_mimebundle_()
    assert list(data) == ["image/png"]
    assert metadata["image/png"]["alt"].startswith("Every pair on digits · quick scale · ")
    fig.savefig(drawn, format="png", dpi=150)
    true, shown = (
        np.array(Image.open(f).convert("RGB"), int) for f in (drawn, io.BytesIO(data["image/png"]))
    )
    assert shown.shape[1] == 1.5 * metadata["image/png"]["width"] == 1230
    assert np.ptp(shown, axis=2)[np.ptp(true, axis=2) == 0].max() == 0
    assert np.mean(np.abs(true - shown).max(axis=2) > 8) < 0.005
    assert not plt.get_fignums()


def test_figures_refuse_what_they_cannot_draw(frame):
    for draw, message in (
        (lambda: figures.fig_headline(frame.iloc[:0]), "holds no runs"),
        (lambda: figures.fig_type(frame[frame.arm == "RMSN>SSM>GN"]), "none of the arms"),
        (lambda: figures.fig_grid(frame, "digit"), "did you mean 'digits'"),
    ):
        with pytest.raises(ValueError, match=message):
            draw()


# -------------------------------------------------------------------------------- what figures show


def test_the_grid_writes_means_leaves_missing_cells_blank_and_marks_divergence(frame):
    fig = figures.fig_grid(frame, "digits")
    texts = {
        tuple(int(place) for place in text.get_position()): text.get_text()
        for text in fig.axes[0].texts
    }
    assert not texts.get((1, 2))  # N1 = IN, N2 = BN
    assert len([text for text in texts.values() if text]) == 35
    assert "1 of 3 diverged" in texts[0, 0]
    assert "1 seed" in texts[3, 3]
    (best,) = [patch for patch in fig.axes[0].patches if same_color(patch.get_edgecolor(), BEST)]
    assert "87.0" in texts[int(best.get_x()), int(best.get_y())]
    assert f"{100 * (0.46 + 0.40 + 0.01):.1f}" in texts[5, 0]
    assert "blank" in fig.get_supxlabel()
    whole = pd.concat([frame, pd.DataFrame([made_run("digits", "IN>SSM>BN", 0)])])
    assert "blank" not in figures.fig_grid(whole, "digits").get_supxlabel()


def test_a_curve_that_ends_non_finite_has_a_cross_and_does_not_flatten_the_others():
    exploding = curve(60).assign(grad_norm=1.0)
    exploding.loc[59, "grad_norm"] = np.inf
    exploding.loc[50:, "train_loss"] = 1e9
    fig = figures.fig_curves({"None>SSM>None": exploding, "RMSN>SSM>None": curve()}, "one run")
    crosses = [line for line in fig.axes[0].lines if line.get_marker() == "X"]
    assert [line.get_xdata()[0] for line in crosses] == [60]
    assert fig.axes[0].get_ylim()[1] < 5
    assert "cut at" in fig.get_supxlabel()


def test_the_best_combination_is_chosen_on_validation_not_on_test():
    runs = [made_run("digits", f"{n1}>SSM>GN", 0, accuracy=0.5) for n1 in PAPER_NORMS]
    frame = pd.DataFrame(runs)
    frame.loc[frame.n1 == "LN", "best_val_accuracy"] = 0.9
    frame.loc[frame.n1 == "BN", "test_accuracy"] = 0.9
    frame.loc[frame.n1.isin(["None", "GN"]), "best_val_accuracy"] = 1.0  # neither is a combination
    texts = figures.fig_single_vs_best(frame).axes[0].texts
    assert [text.get_text() for text in texts] == ["LN"]


def test_position_and_type_show_the_paper_in_a_panel_of_its_own_and_name_another_section(frame):
    position, kind = figures.fig_position(frame), figures.fig_type(frame)
    for fig in (position, kind):
        assert "Breakfast" in fig.axes[2].get_title(loc="left")
        assert PATTERN_ONLY in fig.get_supxlabel()
    printed = {text.get_text() for text in position.axes[2].texts}
    assert {"28.4", "10.9", "7.0", "57.1", "59.1", "58.7", "60.5", "20.5", "70.1"} == printed
    assert "None→None from §4.2" in position.get_supxlabel()
    assert [text.get_text() for text in kind.axes[2].texts] == ["7.0", "68.8", "58.9", "41.4"]
    assert "BN→BN from §4.4" in kind.get_supxlabel()
    images = figures.fig_type(frame[frame.task == "digits"].assign(task="digits_images"))
    assert "74.6" in [text.get_text() for text in images.axes[1].texts]


def test_a_bar_has_the_colour_of_its_norm_the_height_of_its_mean_and_the_sd_of_its_seeds(frame):
    ax = figures.fig_type(frame).axes[0]
    assert len(ax.patches) == len(PAPER_NORMS)
    spreads = [
        segment[:, 1] for bars in ax.collections for segment in bars.get_segments() if len(segment)
    ]
    for x, norm in enumerate(PAPER_NORMS):
        values = (
            100
            * frame[(frame.task == "digits") & (frame.arm == f"{norm}>SSM>{norm}")].test_accuracy
        )
        (bar,) = [one for one in ax.patches if one.get_x() < x < one.get_x() + one.get_width()]
        assert bar.get_height() == pytest.approx(values.mean())
        assert same_color(bar.get_facecolor()[:3], figures.PALETTE[norm])
        spread = pytest.approx(values.mean() + values.std() * np.array([-1, 1]))
        assert len(values) == 1 or any(seen == spread for seen in spreads)


def test_paired_differences_say_what_their_lines_are(frame):
    caption = " ".join(DRAW_FRAME["pairs"](frame).get_supxlabel().split())
    assert "large dots: means, lines: their intervals, small dots: seeds" in caption
    assert "not corrected for several comparisons" in caption
    assert "their intervals" not in DRAW_FRAME["pairs"](frame[frame.seed == 0]).get_supxlabel()


def fresh_values(fig):
    """Return the y values of the diamonds of fresh runs."""
    lines = [line for ax in fig.axes for line in ax.lines if line.get_marker() == "D"]
    return [value for line in lines for value in np.round(line.get_ydata(), 6)]


def test_fresh_runs_are_diamonds_and_the_caption_names_their_seed(frame):
    fresh = frame[(frame.seed == 0) & (frame.task == "digits")].assign(
        seed=12_345, test_accuracy=0.77
    )
    for name in ("headline", "type", "position", "single_vs_best", "proposal"):
        draw = getattr(figures, f"fig_{name}")
        without = draw(frame, fresh=fresh.iloc[:0] if name == "type" else None)
        assert fresh_values(without) == []
        assert "diamonds" not in without.get_label()
        fig = draw(frame, fresh=fresh)
        assert set(fresh_values(fig)) == {77.0}, name
        assert "diamonds: your own runs, seed 12,345" in " ".join(fig.get_label().split())
    cells = [
        text.get_text() for text in figures.fig_grid(frame, "digits", fresh=fresh).axes[0].texts
    ]
    assert len([cell for cell in cells if cell.startswith("◇ 77.0\n")]) == fresh.arm.nunique()


def test_an_interval_that_holds_zero_has_an_open_dot():
    facts = dict(
        task="digits",
        a="None>SSM>GN",
        b="GN>SSM>None",
        n=3,
        scale="quick",
        per_seed=[1.0, 2.0, 3.0],
    )
    bounds = [(1.0, 3.0), (-3.0, -1.0), (-108.0, 112.0)]
    table = pd.DataFrame([facts | dict(difference=sum(b) / 2, low=b[0], high=b[1]) for b in bounds])
    fig = figures.fig_pairs(table, "3 seeds")
    (ax,) = fig.axes
    assert ax.get_xlim() == (-6, 6)  # and not ±112
    assert "their intervals, cut at the edge" in fig.get_supxlabel()
    dots = [line for line in ax.lines if line.get_markersize() > 5 and line.get_marker() == "o"]
    assert [same_color(dot.get_markerfacecolor(), "white") for dot in dots] == [False, False, True]


def test_figure_9_shows_the_largest_token_beside_the_median_in_train_mode():
    """Of 256 tokens one grows: the median stays flat, and the largest must be seen to rise."""
    frame = token_frame().query("depth < 5 and mode == 'train'")
    frame = pd.concat(
        [frame.assign(l2=1.0)] * 32 + [frame.groupby(["arm", "site", "depth"]).head(1)]
    )
    frame = frame.assign(task="listops")
    fig = figures.fig_token_norms(pd.concat([frame, frame.assign(mode="eval", l2=1e9)]))
    for ax in fig.axes:
        median, largest = (
            np.round(line.get_ydata(), 6).tolist() for line in ax.lines if line.get_marker() != "X"
        )
        assert median == [0, 0, 0, 0]
        assert largest == [1, 2, 3, 4]
    assert "listops" in fig.get_suptitle()
    with pytest.raises(ValueError, match="has several values of task: listops, digits. Select one"):
        figures.fig_token_norms(pd.concat([frame, frame.assign(task="digits")]))
    with pytest.raises(ValueError, match="unknown phase"):
        figures.fig_token_norms(frame, phase="initial")


def test_lost_tokens_end_the_line_and_leave_a_cross():
    fig = figures.fig_token_norms(token_frame())
    assert_labelled(fig)
    assert "quick scale · 1 seed: a sketch" in fig.get_supxlabel()
    ax = fig.axes[0]
    crosses = [line.get_xdata().round().tolist() for line in ax.lines if line.get_marker() == "X"]
    assert crosses == [[5]]
    assert [line.get_xdata().tolist() for line in ax.lines if line.get_marker() != "X"] == [
        [1, 2, 3, 4]
    ] * 2


def test_a_line_over_rates_is_the_mean_of_its_seeds_and_the_band_is_the_t_interval():
    runs = pd.DataFrame(
        [
            dict(lr=lr, seed=s, arm=arm, accuracy=50 + s)
            for lr in (0.1, 1)
            for s in range(6)
            for arm in "ab"
        ]
    )
    (ax,) = figures.fig_lines(
        runs.assign(chance=10.0), "lr", "arm", "Rates", band="95 % t-intervals"
    ).axes
    assert ax.get_xscale() == "log"
    assert [list(line.get_ydata()) for line in ax.lines if line.get_marker() in ("o", "s")] == [
        [52.5, 52.5]
    ] * 2
    low, high = stats.t.interval(0.95, 5, 52.5, stats.sem(range(6)))
    assert [np.ptp(band.get_paths()[0].vertices[:, 1]) for band in ax.collections] == pytest.approx(
        [high - low] * 2
    )
    caption = figures.fig_lines(
        runs[runs.seed == 0], "lr", "arm", "Rates", band="95 % t-intervals"
    ).get_supxlabel()
    assert "single runs" in caption
    assert "band" not in caption


def test_of_the_cures_only_a_run_that_fails_ends_in_a_cross_at_its_last_finite_step():
    ends = pd.DataFrame(
        dict(
            treatment=["none", "none", "cure"], seed=[0, 1, 0], failed=[True, False, False], step=9
        )
    )
    curves = pd.DataFrame(
        [
            dict(treatment=t, seed=s, step=n, bits=5.0)
            for t, s in ends.to_numpy()[:, :2]
            for n in (1, 2)
        ]
    )
    none, cure = fig_cures(curves.query("step < 2 or seed == 0"), ends, "Cures").axes
    assert [line.get_xdata().tolist() for line in none.lines if line.get_marker() == "X"] == [[2]]
    assert "1 of 2 fail" in none.get_title("left")
    assert not any(len(line.get_xdata()) for line in cure.lines if line.get_marker() == "X")


def test_weights_by_depth_are_shown_against_step_0():
    grown = LOG | {"part_norms": LOG["part_norms"] * [[[2]], [[3]], [[5]]]}
    for ax in figures.fig_part_norms({"None>SSM>None": grown, "BN>SSM>None": grown}, "").axes:
        assert [line.get_ydata().tolist() for line in ax.lines] == [[2.5] * 8] * 4


# ----------------------------------------------------------------------------------------- diagrams


def shared_cells(axes):
    """Return the cells (B, L, D) that share a statistic over these axes with one output value.

    The output value is that of the last channel at the last position of the first row. "D/G" is the
    group of the channel.
    """
    cells, (_, L, D) = np.zeros(SHAPE, bool), SHAPE
    spans = {"B": slice(None), "L": slice(None), "D": slice(None), "D/G": slice(D - D // 2, D)}
    cell = {"B": slice(0, 1), "L": slice(L - 1, L), "D": slice(D - 1, D)}
    cell.update({axis[0]: spans[axis] for axis in axes})
    cells[cell["B"], cell["L"], cell["D"]] = bool(axes)
    return cells


MIXED = {"SwitchNorm": ("BN", "IN", "LN-DL")} | dict.fromkeys(
    ("NormVary", "NormVary-fixed"), ("BN", "GN", "IN", "LN-DL", "RMSN-DL")
)


@pytest.mark.parametrize("name", [name for name in NORMS if name != "NormVary-token"])
def test_the_registry_names_the_axes_and_members_that_a_norms_output_depends_on(name):
    members = [shared_cells(NORMS[member].axes) for member in MIXED.get(name, (name,))]
    assert np.array_equal(influencing_cells(name), np.any(members, axis=0))


def test_figure_4_draws_the_arms_norms_and_dashes_none():
    boxes = diagram_boxes("RMSN>SSM>None")
    assert boxes["N1"].text == "RMSN"
    assert boxes["N1"].colour == figures.PALETTE["RMSN"]
    assert boxes["N2"].text == "–"
    dashed = [
        patch
        for patch in figures.fig_block("RMSN>SSM>None").axes[0].patches
        if patch.get_linestyle() == "--"
    ]
    assert len(dashed) == 1
    assert "dashed: no norm" in figures.fig_block("RMSN>SSM>None").get_supxlabel()
    assert "dashed" not in figures.fig_block("RMSN>SSM>GN").get_supxlabel()
    assert [ax.get_title("left") for ax in figures.fig_block("LN>SSM>None", "LN>SSM>LN").axes] == [
        "LN→None",
        "LN→LN",
    ]


# ----------------------------------------------------------------------------- tables and the paper


def test_summaries_are_scipys():
    values = [0.5, 0.6, 0.8]
    frame = pd.DataFrame(
        [made_run("digits", "GN>SSM>GN", seed, accuracy=v) for seed, v in enumerate(values)]
    )
    row = summarize(frame).iloc[0]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (row["mean"], row.sd, row.n) == pytest.approx(
        (np.mean(values), np.std(values, ddof=1), 3)
    )
    assert (row.low, row.high) == pytest.approx((low, high))
    assert np.isnan(summarize(frame[:1]).iloc[0].low)


def test_a_diverged_run_counts_as_chance_and_a_failed_one_not_at_all():
    runs = [
        made_run("digits", "GN>SSM>GN", s, accuracy=0.9, status=t)
        for s, t in enumerate(["ok", "diverged", "failed"])
    ]
    row = summarize(pd.DataFrame(runs)).iloc[0]
    assert (row["mean"], row.n, row.diverged) == pytest.approx((0.5, 2, 1))
    text = describe_frame(pd.DataFrame(runs))
    assert "1 of 3 runs diverged (scored as chance)" in text
    assert "1 of 3 runs failed (left out)" in text


def test_paired_differences_are_scipys_on_the_shared_seeds():
    a, b = {0: 0.60, 1: 0.65, 2: 0.72, 5: 0.99}, {2: 0.60, 1: 0.58, 0: 0.50, 7: 0.01}
    runs = [made_run("digits", "None>SSM>GN", s, accuracy=v) for s, v in a.items()]
    runs += [made_run("digits", "GN>SSM>None", s, accuracy=v) for s, v in b.items()]
    row = paired(pd.DataFrame(runs), "None→SSM→GN", "GN>SSM>None").iloc[0]
    differences = np.array([10.0, 7.0, 12.0])
    test = stats.ttest_rel([0.60, 0.65, 0.72], [0.50, 0.58, 0.60]).confidence_interval(0.95)
    assert row.per_seed == pytest.approx(differences)
    assert row.n == 3
    assert (row.low, row.difference, row.high) == pytest.approx(
        (100 * test.low, differences.mean(), 100 * test.high)
    )


def test_paired_names_the_missing_arm_and_refuses_ambiguous_seeds(frame):
    with pytest.raises(ValueError, match="IN>SSM>BN has no run on task 'digits'"):
        paired(frame, "None>SSM>None", "IN>SSM>BN")
    with pytest.raises(ValueError, match="several runs of one seed"):
        paired(pd.concat([frame, frame.assign(scale="lab")]), "None>SSM>None", "GN>SSM>GN")
    apart = frame[
        (frame.arm == "GN>SSM>GN") & (frame.seed == 0)
        | (frame.arm == "BN>SSM>BN") & (frame.seed == 1)
    ]
    with pytest.raises(ValueError, match="share no seed"):
        paired(apart, "GN>SSM>GN", "BN>SSM>BN")


def test_choice_reads_validation_and_scores_divergence_as_chance():
    runs = [made_run("digits", "LN>SSM>GN", 0, accuracy=0.7)]
    runs += [made_run("digits", "BN>SSM>GN", 0, accuracy=0.9, status="diverged")]
    assert best_arm(pd.DataFrame(runs), "digits") == "LN>SSM>GN"
    with pytest.raises(ValueError, match="nothing to choose from"):
        best_arm(pd.DataFrame(runs), "digits", ["IN>SSM>GN"])


@pytest.mark.parametrize(
    ("seeds", "text"), [(3, "3 seeds: a sketch · mean ± sd"), (8, "8 seeds · mean ± sd")]
)
def test_a_caption_calls_few_seeds_a_sketch(seeds, text):
    frame = pd.DataFrame([made_run("digits", "GN>SSM>GN", seed) for seed in range(seeds)])
    assert describe_frame(frame) == f"quick scale · {text} · digits"
    assert describe_frame(frame[:1]) == "quick scale · 1 seed: a sketch · single runs · digits"


def test_a_caption_says_unequal_seeds_mixed_scales_and_numbers_in_words(frame):
    assert "1–3 seeds: a sketch" in describe_frame(frame)
    both = pd.concat([frame, frame.assign(scale="lab")])
    assert describe_frame(both).startswith("scales quick and lab mixed")
    assert [percent(0.688), percent(0.4027, 2), percent(np.nan)] == ["68.8 %", "40.27 %", "–"]
    rows = pd.DataFrame({"mean": [0.828, 0.5], "sd": [0.0234, np.nan]})
    assert [mean_sd(row) for _, row in rows.iterrows()] == ["82.8 ± 2.3 %", "50.0 %"]


def test_the_papers_numbers_are_there_with_their_sections_and_the_first_ln_rows_are_in():
    everything, values = (
        paper_values(),
        paper_values("sequence").set_index(["source", "task", "arm"]).accuracy,
    )
    table = everything.query("source == 'Table 1'")
    assert len(table) == 20
    assert not table.duplicated(["kind", "arm"]).any()
    relabelled = table[(table.arm.str.contains("IN"))]
    assert relabelled.printed.tolist() == ["LN→SSM→None", "None→SSM→LN"] * 2
    assert relabelled.accuracy.tolist() == [0.109, 0.070, 0.702, 0.838]
    assert table.accuracy.mean() * 20 == pytest.approx(
        (400.7 + 738.9) / 100
    )  # column sums of the printed table
    assert values["Figure 5", "Breakfast", "GN>SSM>GN"] == 0.688
    assert values["Figure 7", "Breakfast", "LN>SSM>BN"] == 0.521
    assert values["Table 2", "ListOps", "NormVary>SSM>GN"] == pytest.approx(0.4027)
    assert len(everything) == 20 + 6 + 4 + 8
    with pytest.raises(ValueError, match="'vision'"):
        paper_values("visions")


def test_beside_the_paper_stand_its_tasks_and_notes(frame):
    table = beside_paper(frame)
    assert set(table.paper_task) == {"Breakfast", "ListOps"}
    assert set(table.task[table.paper_task == "ListOps"]) == {"listops"}
    row = table[(table.task == "digits") & (table.arm == "None>SSM>IN")].iloc[0]
    assert (row.ours, row.paper, row.n) == pytest.approx((0.46 + 0.38 + 0.01, 0.070, 3))
    assert "I1" in row.note
