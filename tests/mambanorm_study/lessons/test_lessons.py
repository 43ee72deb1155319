"""The experiments of the lessons: each says what it should on cases whose answer is known."""

from itertools import pairwise

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import solve_ivp
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler
from torch import nn

import mambanorm as mn
from mambanorm_study.answers import first_steps as answers
from mambanorm_study.lessons import invariance, preprocessing, state_space, trained
from mambanorm_study.lessons.trained import fit
from mambanorm_study.report.notebook_page import to_html
from mambanorm_study.report.notebooks import read_outcome
from mambanorm_study.tasks.base import Split

# preprocessing


def test_features_are_scaled_as_scikit_learn_does():
    x = preprocessing.wines().to_numpy()
    scaled = {how: scale(x) for how, scale in preprocessing.SCALINGS.items()}
    np.testing.assert_allclose(scaled["min–max"], MinMaxScaler().fit_transform(x), atol=1e-12)
    np.testing.assert_allclose(
        scaled["standardised"], StandardScaler().fit_transform(x), atol=1e-12
    )
    np.testing.assert_allclose(scaled["raw"].mean(0), 0, atol=1e-9)


def test_descent_finds_the_least_squares_weights_and_diverges_above_twice_the_safe_rate():
    x, y = preprocessing.wine_problem("standardised")
    path = preprocessing.descend(x, y)
    assert path.loss.is_monotonic_decreasing
    assert path.left.iloc[-1] <= preprocessing.CONVERGED_SHARE < path.left.iloc[-2]
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    assert preprocessing.squared_error(
        x, y, path[["w0", "w1"]].iloc[-1].to_numpy()
    ) == pytest.approx(path.loss.iloc[-1])
    assert np.abs(path[["w0", "w1"]].iloc[-1] - best).max() < 0.1
    edge = 2 / preprocessing.hessian_eigenvalues(x)[-1]
    assert preprocessing.descend(x, y, lr=1.05 * edge).loss.iloc[-1] > 10 * path.loss.iloc[0]
    assert preprocessing.descend(x, y, lr=0.9 * edge).left.iloc[-1] <= preprocessing.CONVERGED_SHARE


def test_the_worse_the_condition_the_more_steps():
    table = preprocessing.scaling_table()
    assert list(table.index) == ["raw", "min–max", "min–max, centred", "standardised"]
    assert table.condition.is_monotonic_decreasing
    assert table.steps.is_monotonic_decreasing


def test_one_wrong_value_ruins_min_max_and_hardly_moves_the_quartiles():
    table, x = preprocessing.outlier_table(), preprocessing.wines()[["proline"]].to_numpy()
    scalers = {
        "min–max": MinMaxScaler(),
        "standardised": StandardScaler(),
        "robust": RobustScaler(),
    }
    for how, scaler in scalers.items():
        wrong = x.copy()
        wrong[0] *= 100
        for column, values in zip(table, (x, wrong), strict=True):
            assert table.loc[how, column] == pytest.approx(np.ptp(scaler.fit_transform(values)[1:]))
    kept = table["one wrong"] / table["as measured"]
    assert kept["min–max"] < 0.02
    assert kept["robust"] > 0.95


# invariances


def test_a_norm_does_not_feel_what_its_equation_cancels():
    blind = invariance.invariances() < invariance.CHANGE_LIMIT
    norms = {n: e for n, e in mn.NORMS.items() if n != "Constant"}  # which sees no input
    known = {  # which norms cannot feel the change, from their equations
        "all × 3": {n for n in norms if n not in ("None", "Scale", "DyT", "Derf", "NormSelector")},
        "all + 3": {"BN", "IN", "LN", "adaLN", "GN", "LN-DL", "GN-token", "SwitchNorm"},
        "each channel × its own": {"BN", "IN"},
        "each channel + its own": {"BN", "IN"},
        "other rows": {n for n, e in norms.items() if "B" not in e.axes},
        "later positions": {n for n, e in norms.items() if e.causal},
        "other rows, in eval": set(norms),
    }
    assert list(known) == list(blind)
    for change, names in known.items():
        assert set(blind.index[blind[change]]) == names, change


def test_the_three_questions_are_answered_as_the_axes_say():
    table = invariance.norm_properties()
    assert set(table.index[~table.alone.astype(bool)]) == {
        n for n, e in mn.NORMS.items() if "B" in e.axes
    }
    assert set(table.index[table["no future"].astype(bool)]) == {
        n for n, e in mn.NORMS.items() if e.causal and n != "Constant"
    }
    assert list(table.index[~table["one position"].astype(bool)]) == ["IN"]


# the small training loop and what is trained with it


def separable(rows=64):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(0))
    return Split(x, (x[:, 0] > 0).long())


def test_a_run_that_diverges_is_scored_as_a_guess():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e20)
    assert list(fit(model, separable(), optimizer, epochs=3, batch_size=16))[-1] == 0.5


def test_the_small_vgg_is_trained_on_paired_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(trained, "LEARNING_RATES", (0.02,))
    frame = trained.batch_norm_curves("smoke", 2, runs_dir=tmp_path / "one")
    assert len(frame) == 2 * 3
    torch.rand(17)
    assert frame.equals(trained.batch_norm_curves("smoke", 2, runs_dir=tmp_path / "other"))
    monkeypatch.setattr(
        trained, "small_vgg", None
    )  # what is kept is read, and the rest cannot be trained now
    assert frame.equals(trained.batch_norm_curves("smoke", 2, runs_dir=tmp_path / "one"))
    with pytest.raises(TypeError):
        trained.batch_norm_curves("smoke", 3, runs_dir=tmp_path / "one")


def test_neighbours_cannot_be_told_by_counting_and_the_label_is_right():
    data = trained.neighbours(60, seed=3)
    counts = torch.stack([(data.inputs == symbol).sum(1) for symbol in range(trained.SYMBOLS)])
    assert (counts == 3).all()
    assert int(data.labels.sum()) == 30
    for row, label in zip(data.inputs.tolist(), data.labels.tolist(), strict=True):
        assert ((0, 1) in pairwise(row)) == bool(label)


def test_a_block_without_nothing_is_the_block_and_without_a_part_it_does_not_use_its_weights():
    torch.manual_seed(0)
    whole, x = mn.MambaBlock(8, "RMSN", "GN"), torch.randn(2, 6, 8)
    unused = {"nothing": set(), "conv": {"conv1d.weight", "conv1d.bias"}, "gate": set()}
    for part, names in unused.items():
        block = trained.BlockWithout(part, 8, "RMSN", "GN")
        block.load_state_dict(whole.state_dict())
        y = block(x)
        assert torch.allclose(y, whole(x), atol=1e-5) == (part == "nothing")
        y.sum().backward()
        assert {name for name, p in block.named_parameters() if p.grad is None} == names
    gate_rows = block.in_proj.weight.grad[block.d_inner :]
    assert not gate_rows.any()  # the last one is the block without a gate


def test_the_parts_are_trained_on_both_tasks():
    frame = trained.parts_of_a_block("smoke", 1)
    assert len(frame) == 2 * 3
    assert set(frame.chance) == {0.5, 0.1}


# the state space


def test_zero_order_hold_is_the_differential_equation_and_mambas_gain_its_first_term():
    a, b, delta, u = -1.5, 0.7, 0.4, [1.0, -2.0, 0.5]
    exact, h = [], 0.0
    for value in u:
        h = solve_ivp(
            lambda _, h, v=value: a * h + b * v, (0, delta), [h], rtol=1e-10, atol=1e-12
        ).y[0, -1]
        exact.append(h)
    np.testing.assert_allclose(
        state_space.simulate(u, delta, a, b, "zero-order hold"), exact, rtol=1e-7
    )
    decay, gain = state_space.coefficients(delta, a, b)
    assert (decay, gain) == (pytest.approx(np.exp(delta * a)), pytest.approx(delta * b))
    tiny = state_space.discretization_error([1e-4, 1.0]).excess
    assert tiny[0] == pytest.approx(5e-5, rel=1e-3)
    assert tiny[1] == pytest.approx(1 / (1 - np.exp(-1)) - 1)


def test_the_recurrence_is_the_selective_scan_of_one_state():
    u = torch.randn(1, 1, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    delta, ones = torch.full_like(u, 0.3), torch.ones(1, 1, 9, dtype=torch.float64)
    A = torch.tensor([[-2.0]], dtype=torch.float64)
    y = mn.selective_scan(u, delta, A, ones, ones)
    np.testing.assert_allclose(state_space.simulate(u[0, 0].tolist(), 0.3, -2.0), y[0, 0])


# answers on made-up measurements


def two_runs(before, after):
    facts = dict(
        task="digits", seed=0, scale="quick", status="ok", chance=0.1, wall_s=5.0, threads=1
    )
    rows = [("RMSN>SSM>None", before), ("RMSN>SSM>GN", after)]
    return pd.DataFrame(rows, columns=["arm", "test_accuracy"]).assign(**facts)


def test_the_first_answers_say_what_the_two_runs_reached():
    said = answers.answer_on_first_runs(two_runs(0.565, 0.7))
    assert (
        "The original Mamba reaches 56.5 %, and with a norm after the SSM 70.0 %: +13.5 points. "
        "Chance is 10.0 %. A run takes 5 s on 1 thread(s)." in said
    )
    assert "with a norm after the SSM 30.0 %: −5.0 points" in answers.answer_on_first_runs(
        two_runs(0.35, 0.3)
    )


def test_the_answers_on_cost_compare_plain_norms_with_plain_norms():
    ratio = dict.fromkeys(mn.NORMS, 50.0) | {"RMSN": 0.8, "LN": 1.0, "GN-token": 1.5}
    ratio |= dict.fromkeys(("BN", "IN", "GN", "LN-DL", "RMSN-DL"), 2.0) | {"None": 0.1}
    table = pd.DataFrame({"norm": list(ratio), "ratio": list(ratio.values())}).sort_values("ratio")
    said = answers.costs_text(table)
    assert "The cheapest norm is RMSN. By the median RMSN is 20 % faster than LN" in said
    assert "take 2.0 times LN's time, norms per token (RMSN, LN, GN-token) 1.0 times" in said
    gain = table.assign(ratio=table.ratio.mask(table.norm == "Scale", 0.2)).sort_values("ratio")
    assert "RMSN was the cheapest and" in answers.answer_on_norms(gain)  # a gain is no norm


def test_a_solution_is_folded_in_the_report_and_nothing_else_is(tmp_path):
    cells = [
        nbformat.v4.new_markdown_cell(
            "# T\n\n<details><summary>In words</summary>\n\nBecause **x**.\n\n</details>"
        ),
        nbformat.v4.new_code_cell("1 + 1", metadata=dict(tags=["solution"])),
        nbformat.v4.new_code_cell("2 + 2"),
    ]
    path = tmp_path / "01_t.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    page = to_html(read_outcome(path))
    inside = page.split('<details class="solution">')
    assert len(inside) == 2
    folded, after = inside[1].split("</details>")
    assert folded.count("<pre>") == after.count("<pre>") == 1
    assert "<strong>x</strong>" in inside[0]
