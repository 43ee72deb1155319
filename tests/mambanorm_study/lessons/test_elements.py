"""The elements of the outputs: their distribution, which arm is more uniform, and the verdict."""

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import mambanorm as mn
from mambanorm.inside import token_norms
from mambanorm_study import figures
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.claims import judge_differences, rule
from mambanorm_study.lessons import elements
from mambanorm_study.lessons.elements import block_outputs, distribution, uniformity_gains

ARMS = ["None>SSM>None", "BN>SSM>None", "None>SSM>BN", "BN>SSM>BN"]
BOTH_ARE_FLATTER = ["None→BN − BN→BN", "BN→None − BN→BN"]


@pytest.fixture(scope="module")
def recorded():
    return elements.elements_by_depth("quick")


def planted(before, after, both, *, blocks=2, spread=0.01):
    """Return a frame in which log₁₀ of p999 ÷ median is the given value, with noise, per seed.

    before, after, both: one value per seed. The reference without a norm is far away.
    """
    draw, rows = np.random.default_rng(0), []
    for seed, values in enumerate(zip(np.full(len(both), 5.0), before, after, both, strict=True)):
        for arm, value in zip(ARMS, values, strict=True):
            for depth in range(1, blocks + 1):
                p999 = 2 * 10 ** (value + spread * draw.standard_normal())
                facts = {"arm": arm, "seed": seed, "depth": depth, "median": 2.0, "p999": p999}
                rows.append({**facts, "mode": "train", "kurtosis": p999})
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------- of one block's output


def by_hand(y):
    """Return median, p999, tail ratio and kurtosis of the elements of y (tokens, D)."""
    values = sorted(abs(value) for value in y.flatten().tolist())
    place = 0.999 * (len(values) - 1)
    low = values[int(place)]
    p999 = low + (place - int(place)) * (values[int(place) + 1] - low)
    median = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    return median, p999, p999 / median, stats.kurtosis(y.flatten().numpy(), fisher=False)


@pytest.mark.parametrize(
    ("sample", "tail", "kurtosis"),
    [
        (lambda shape: 2 * torch.rand(shape, dtype=torch.float64) - 1, 0.301, 1.8),  # uniform
        (lambda shape: torch.randn(shape, dtype=torch.float64), 0.688, 3.0),  # normal
    ],
)
def test_known_distributions_have_the_stated_tail_and_kurtosis(sample, tail, kurtosis):
    torch.manual_seed(0)
    y = sample((20_000, 16))
    facts = distribution(y)
    assert np.log10(facts["p999"] / facts["median"]) == pytest.approx(tail, abs=0.01)
    assert facts["kurtosis"] == pytest.approx(kurtosis, abs=0.05)
    # neither quantity depends on the scale
    larger = distribution(1e6 * y)
    assert larger["kurtosis"] == pytest.approx(facts["kurtosis"])
    assert larger["p999"] / larger["median"] == pytest.approx(facts["p999"] / facts["median"])


def test_the_quantities_are_those_of_a_slow_twin():
    torch.manual_seed(1)
    y = torch.randn(301, 7, dtype=torch.float64) ** 3
    facts = distribution(y)
    median, p999, _, kurtosis = by_hand(y)
    assert facts["median"] == pytest.approx(median)
    assert facts["p999"] == pytest.approx(p999)
    assert facts["kurtosis"] == pytest.approx(kurtosis)
    norms = sorted(sum(value**2 for value in token) ** 0.5 for token in y.tolist())
    assert facts["token_median"] == pytest.approx(norms[150])
    assert norms[-2] < facts["token_p999"] < norms[-1]


def test_a_heavy_tail_is_seen_and_one_huge_token_is_not_a_tail():
    """The 99.9 % quantile needs more than one element in 1,000; the kurtosis does not."""
    torch.manual_seed(2)
    y = torch.randn(4_000, 32)
    heavy, one = y.clone(), y.clone()
    heavy[torch.rand(4_000) < 0.01] *= 100
    one[7] *= 100
    tail = lambda facts: facts["p999"] / facts["median"]
    calm, heavy, one = distribution(y), distribution(heavy), distribution(one)
    assert tail(heavy) > 10 * tail(calm)
    assert tail(one) == pytest.approx(tail(calm), rel=0.05)
    assert min(heavy["kurtosis"], one["kurtosis"]) > 10 * calm["kurtosis"]


def test_points_are_random_magnitudes_and_the_same_each_time():
    torch.manual_seed(3)
    y = torch.randn(100, 4)
    facts = distribution(y, seed=5)
    for name, values in (("elements", y.abs().flatten()), ("tokens", y.norm(dim=-1))):
        assert len(facts[name]) == elements.POINTS
        assert set(facts[name]) <= set(values.double().log10().numpy().round(2))
    assert distribution(y, seed=5) == facts
    assert distribution(y, seed=6)["elements"] != facts["elements"]


def test_values_that_are_not_finite_are_not_hidden():
    y = torch.randn(200, 4)
    y[:20, 0] = torch.inf
    assert not np.isfinite(distribution(y)["p999"])
    y[0, 1] = torch.nan
    assert np.isnan(distribution(y)["median"])


def test_the_outputs_of_the_blocks_leave_padding_out():
    torch.manual_seed(4)
    ids, lengths = torch.randint(1, 9, (6, 10)), torch.tensor([10, 3, 7, 1, 10, 5])
    model = mn.SequenceClassifier(3, vocab_size=9, d_model=8, n_layers=3, arm="BN>SSM>BN").train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    outputs = block_outputs(model, ids, lengths)
    assert [tuple(y.shape) for y in outputs] == [(36, 8)] * 3
    frame = pd.DataFrame(token_norms(model, ids, lengths)).query("site == 'residual'")
    for depth, y in enumerate(outputs, start=1):
        np.testing.assert_allclose(y.norm(dim=-1), frame[frame.depth == depth].l2, rtol=1e-5)
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())
    assert block_outputs(model, ids, None)[0].shape == (60, 8)


# ------------------------------------------------------------------------------- gains and the word


def test_gains_are_the_mean_over_the_blocks_seed_by_seed():
    frame = planted(before=[2.0, 3.0], after=[1.0, 1.0], both=[0.5, 1.5], spread=0)
    gains = uniformity_gains(frame)
    assert list(gains) == BOTH_ARE_FLATTER
    np.testing.assert_allclose(gains, [[0.5, 1.5], [-0.5, 1.5]])
    frame.loc[(frame.arm == ARMS[2]) & (frame.depth == 2), "p999"] *= 10  # one of the two blocks
    np.testing.assert_allclose(uniformity_gains(frame), [[1.0, 1.5], [0.0, 1.5]])
    np.testing.assert_allclose(uniformity_gains(frame, "kurtosis"), [[0.5, 1.5], [-0.5, 1.5]])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_seed_with_values_that_are_not_finite_is_left_out(value):
    frame = planted(before=[2.0] * 3, after=[1.0] * 3, both=[0.5] * 3)
    frame.loc[(frame.seed == 1) & (frame.arm == ARMS[3]) & (frame.depth == 1), "p999"] = value
    assert list(uniformity_gains(frame).index) == [0, 2]
    reference = planted(before=[2.0] * 3, after=[1.0] * 3, both=[0.5] * 3)
    reference.loc[reference.arm == ARMS[0], "p999"] = value  # None→None is not judged
    assert list(uniformity_gains(reference).index) == [0, 1, 2]


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (0.9, ("supported", "supported", "supported")),
        (0.3, ("opposite", "supported", "opposite")),
        (0.5, ("no gain", "supported", "no gain")),
    ],
)
def test_a_planted_effect_gets_its_word(after, words):
    frame = planted(before=[1.5] * 8, after=[after] * 8, both=[0.5] * 8)
    verdict, table = judge_differences(uniformity_gains(frame), elements.SMALLEST)
    assert (*table.verdict, verdict) == words
    shuffled = uniformity_gains(frame.sample(frac=1, random_state=0))
    pd.testing.assert_frame_equal(shuffled, uniformity_gains(frame))
    assert (table.low < table.effect).all()
    assert (table.effect < table.high).all()


def test_five_seeds_have_no_word():
    frame = planted(before=[1.5] * 5, after=[1.0] * 5, both=[0.5] * 5)
    verdict, table = judge_differences(uniformity_gains(frame), elements.SMALLEST)
    assert {verdict, *table.verdict} == {"no word"}


@pytest.mark.parametrize("differences", [{"a": [0.1, np.nan]}, {"a": []}])
def test_differences_that_are_not_finite_or_missing_are_refused(differences):
    with pytest.raises(ValueError, match="must be finite"):
        judge_differences(pd.DataFrame(differences, dtype=float), 0.1)


def test_the_upper_end_is_corrected_for_the_number_of_comparisons():
    """The plain interval of the first comparison lies below zero, the corrected one does not."""
    gains = np.array([-0.1, 0.01, -0.05, -0.06, 0.012, -0.08, -0.02, 0.0])
    low, high = rule.interval(gains)
    assert low < high < 0 < rule.interval(gains, *rule.levels(2, one_suffices=False))[1]
    _, one = judge_differences(pd.DataFrame({"a": gains}), 0.001)
    _, two = judge_differences(pd.DataFrame({"a": gains, "b": gains}), 0.001)
    assert (one.verdict["a"], two.verdict["a"]) == ("opposite", "cannot tell")
    assert (one.corrected["a"], two.corrected["a"]) == (False, True)
    assert (two.low["a"], two.high["a"]) == (low, high)


# ---------------------------------------------------------------------------------- what is recorded


def test_the_recorded_models_are_those_of_the_plan(recorded):
    assert sorted(recorded.seed.unique()) == list(range(8))
    assert list(recorded.arm.unique()) == ARMS
    rows = recorded.groupby(["seed", "arm", "mode"]).depth.agg(list)
    assert len(rows) == 8 * 4 * 2
    assert all(depths == [1, 2, 3, 4] for depths in rows)
    assert recorded.elements.map(len).unique().tolist() == [elements.POINTS]
    assert recorded.accuracy.between(20, 100).all()  # chance is 10 %
    pd.testing.assert_frame_equal(recorded, elements.elements_by_depth("evening"))


def test_the_lesson_can_be_measured_here(tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    frame = elements.elements_by_depth("smoke", 2, runs_dir=tmp_path)
    assert set(frame.seed) == {0, 1}
    assert list(frame.arm.unique()) == ARMS
    assert len(frame) == 2 * 4 * 2 * 2  # seeds, arms, modes, blocks
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert len(uniformity_gains(frame)) == 2


def test_the_figure_has_a_panel_for_each_arm_with_points_of_all_seeds(recorded):
    fig = figures.fig_elements(recorded)
    titles = [ax.get_title(loc="left") for ax in fig.axes]
    assert titles == ["None→None", "BN→None", "None→BN", "BN→BN"]
    clouds = [line for line in fig.axes[0].lines if len(line.get_xdata()) > 2]
    assert len(clouds) == 2 * 4  # elements and tokens of each block
    assert {len(line.get_xdata()) for line in clouds} == {8 * elements.POINTS}
    caption = fig.get_label()
    assert "evening scale · 8 seeds" in caption
    assert "train mode" in caption
    assert "eval mode" in figures.fig_elements(recorded, mode="eval").get_label()


def test_notebook_07_shows_the_recorded_rows_and_the_prediction(recorded):
    cells = nbformat.read(ROOT / "notebooks" / "07_diagnostics.ipynb", as_version=4).cells
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", ())]
    (said,) = [
        data["text/markdown"]
        for data in outputs
        if "(predicted: opposite)" in data.get("text/markdown", "")
    ]
    (table,) = [
        data["text/plain"] for data in outputs if BOTH_ARE_FLATTER[0] in data.get("text/plain", "")
    ]
    verdict, judged = judge_differences(uniformity_gains(recorded), elements.SMALLEST)
    assert f"**{verdict}** (predicted: opposite)" in said
    assert "Prediction: *opposite*" in elements.__doc__
    for row in judged.itertuples():
        numbers = [f"{value:.3f}" for value in (row.effect, row.low, row.high)]
        assert " ".join([row.Index, *numbers, "8", row.verdict]) in " ".join(table.split())
