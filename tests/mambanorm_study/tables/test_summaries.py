"""The numbers on which the claims of §4.6 rest: each is read from a stored run, and equals a slow
computation of it.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm_study as study
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.store import find_run, save_run
from mambanorm_study.runs.sweep import sweep
from mambanorm_study.tables import diagnostics, experiments, summaries
from mambanorm_study.tables.experiments import deep_runs, failing_runs, growth_runs
from mambanorm_study.tables.growth import growth, growth_facts
from mambanorm_study.tables.summaries import sigma_facts, weight_facts, with_summaries

SCALE, NONE = "smoke", "None>SSM>None"


def run(status: str = "ok", **arrays: object) -> SimpleNamespace:
    """Return a stored run with these arrays."""
    arrays = {name: np.asarray(value, float) for name, value in arrays.items()}
    return SimpleNamespace(
        facts={"status": status}, diagnostics=arrays, path=SimpleNamespace(name="a-run")
    )


def spectra(status: str, sigma: object) -> SimpleNamespace:
    """Return a run that kept these singular values (T, layers, k) at steps 0, 10, 20, …"""
    return run(status, step=10.0 * np.arange(len(sigma)), singular_values=sigma)


# from the store


@pytest.fixture
def failing_lr(monkeypatch):
    """At smoke, models of four blocks and a learning rate that none survives without norms."""
    monkeypatch.setattr(experiments, "FAILURES", {SCALE: dict.fromkeys((2, 4), (1e-2, 30.0))})


def test_every_number_is_read_of_the_runs_that_its_claim_looks_at_and_of_no_other(
    store, failing_lr, monkeypatch
):
    growing, failing, deep = (
        growth_runs(SCALE, seeds=1),
        failing_runs(SCALE, 1),
        deep_runs(SCALE, 1),
    )
    others = [deep[0].but(seed=100), growing[0].but(seed=100), base_config("digits", SCALE)]
    frame = sweep(list(dict.fromkeys(growing + failing + deep + others)), workers=0, progress=False)
    found = with_summaries(frame).set_index("run_id")
    assert list(found.columns) == [name for name in frame.columns if name != "run_id"] + list(
        summaries.COLUMNS
    )
    pd.testing.assert_frame_equal(with_summaries(with_summaries(frame)), with_summaries(frame))

    assert {c.seed for c in failing if found.status[c.run_id] == "diverged" and c.arm == NONE} == {
        0
    }
    looked_at = {
        "growth": growing,
        "law": growing,
        "unevenness": deep,
        "sigma_rise": failing,
        "sigma_trend": failing,
    }
    for column, configs in looked_at.items():
        assert set(found.index[found[column].notna()]) == {c.run_id for c in configs}, column

    monkeypatch.setattr(
        diagnostics, "failing_facts", lambda *_: dict.fromkeys(summaries.NEAR_FAILURE, 1.0)
    )
    again = with_summaries(frame, rerun_models=True).set_index("run_id").fragility
    assert set(again.index[again.notna()]) == {
        c.run_id for c in failing if c.arm in (NONE, "RMSN>SSM>RMSN")
    }
    assert found.fragility.isna().all()  # unless it is asked for: it trains

    config = next(c for c in growing if c.arm == NONE)
    arrays = find_run(config).diagnostics
    assert arrays["ring_step"][-1] == found.first_nonfinite_step[config.run_id] - 1
    last = pd.Series(arrays["ring_outputs"][-1], index=[1, 2, 3, 4])
    assert found.growth[config.run_id] == growth(last)["decades_per_8"]
    assert found.law[config.run_id] == growth(last)["margin"]


def test_a_run_that_lacks_its_diagnostics_is_damaged_and_gives_nan_and_a_warning(store):
    configs = deep_runs(SCALE, 1)[:2]
    frame = sweep(configs, workers=0, progress=False)
    (find_run(configs[0]).path / "diagnostics.npz").unlink()
    with pytest.warns(UserWarning, match=rf"{configs[0].run_id} is damaged.*diagnostics\.npz"):
        found = with_summaries(frame)
    assert found.unevenness.isna().tolist() == [True, False]


def test_a_frame_without_such_runs_has_the_columns_and_no_warning(store):
    save_run(study.train(base_config("digits", SCALE)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for frame in (study.load_runs(), study.load_runs().query("task == 'listops'")):
            assert with_summaries(frame)[list(summaries.COLUMNS)].isna().all(axis=None)


# growth over depth (H10)


def test_growth_is_that_of_the_last_step_kept():
    depth = np.arange(1, 17)
    planted = 10 ** (0.1 * depth + 0.01 * np.sin(depth))
    found = growth_facts(run(ring_step=[7, 8], ring_outputs=[np.ones(16), planted]))
    assert found["growth"] == pytest.approx(0.8, abs=0.02)
    assert found["law"] > 2
    assert (
        growth_facts(run(ring_step=[8], ring_outputs=[depth**2.0 * (1 + 0.01 * np.sin(depth))]))[
            "law"
        ]
        < -2
    )


def test_outputs_beyond_float32_grow_over_its_whole_range_and_those_of_no_step_do_not():
    blown_up = run(ring_step=[3], ring_outputs=[[1.0, 10.0, np.inf, np.inf]])
    assert growth_facts(blown_up) == dict(growth=pytest.approx(8 * 38 / 4), law=0)
    assert growth_facts(run(step=[0])) == {}


# singular values (H11)


def slow_sigma(sigma: np.ndarray, at: int, half: int) -> dict[str, float]:
    """Return the two numbers of singular values (T, layers, k) between two steps, written out."""
    layers, ranks = sigma.shape[1:]

    def across(t):
        variances = []
        for j in range(ranks):
            mean = sum(sigma[t, block, j] for block in range(layers)) / layers
            variances.append(
                sum((sigma[t, block, j] - mean) ** 2 for block in range(layers)) / layers
            )
        return math.log10(sum(variances) / ranks)

    def size(t, block):
        return math.log10(math.sqrt(sum(sigma[t, block, j] ** 2 for j in range(ranks)) / ranks))

    depths = [block / (layers - 1) for block in range(layers)]
    grown = [size(at, block) - size(half, block) for block in range(layers)]
    x, y = sum(depths) / layers, sum(grown) / layers
    slope = sum((a - x) * (b - y) for a, b in zip(depths, grown)) / sum(
        (a - x) ** 2 for a in depths
    )
    return dict(sigma_rise=across(at) - across(half), sigma_trend=slope)


def test_the_spectrums_numbers_equal_a_slow_computation():
    rng = np.random.default_rng(0)
    sigma, control = np.exp(rng.standard_normal((2, 5, 6, 4)))
    failing = spectra("diverged", sigma)
    assert sigma_facts(failing, failing) == pytest.approx(slow_sigma(sigma, at=4, half=2))
    assert sigma_facts(spectra("ok", control), failing) == pytest.approx(
        slow_sigma(control, at=4, half=2)
    )


def test_the_variance_is_over_blocks_and_the_trend_is_of_their_sizes():
    unequal = (
        np.tile([1.0, 2.0, 3.0], (3, 5, 1)) * np.linspace(1, 1.1, 5)[:, None]
    )  # (T, layers, ranks)
    later = np.array([1.0, 1.0, 10.0])[:, None, None]
    all_grow = spectra("diverged", unequal * later)
    assert sigma_facts(all_grow, all_grow) == pytest.approx(dict(sigma_rise=2.0, sigma_trend=0.0))
    deep_grow = spectra("diverged", unequal * later ** np.linspace(0, 1, 5)[:, None])
    found = sigma_facts(deep_grow, deep_grow)
    assert found["sigma_trend"] == pytest.approx(1.0)
    assert found["sigma_rise"] > 2
    within = unequal * np.array([1.0, 1.0, 10.0])  # ranks apart, in every block alike
    wider = spectra("diverged", [unequal[0], unequal[0], within[0]])
    assert sigma_facts(wider, wider)["sigma_trend"] == pytest.approx(0.0)


def test_the_spectrum_is_compared_at_the_steps_of_the_run_that_failed():
    sigma = np.array([[[1.0], [1.1]], [[1.0], [1.1]], [[1.0], [2.0]], [[np.nan], [np.nan]]])
    failing = spectra("diverged", sigma)  # its last finite step is 20
    assert sigma_facts(failing, failing)["sigma_rise"] == pytest.approx(
        2.0
    )  # a difference of 0.1, later of 1
    calm = spectra(
        "ok", np.concatenate([sigma[[0, 0, 0]], 100 * sigma[[2]]])
    )  # rises only after the other failed
    assert sigma_facts(calm, failing) == pytest.approx(dict(sigma_rise=0.0, sigma_trend=0.0))


def test_without_a_failure_there_is_nothing_to_look_back_on():
    sigma = np.array([[[1.0], [1.1]], [[1.0], [1.5]]])
    failing = spectra("diverged", sigma)
    assert sigma_facts(failing, spectra("ok", sigma)) == {}
    assert sigma_facts(failing, None) == {}
    assert sigma_facts(failing, spectra("diverged", sigma[:1])) == {}  # failed in its first step


# sharper outputs, and deep blocks that matter more (H16)


def test_near_a_failure_the_entropy_and_the_weight_of_the_deep_blocks_are_what_they_say(
    monkeypatch,
):
    config = base_config("digits", SCALE, arm=NONE, n_layers=4)
    data = study.load_task("digits", SCALE, 0)
    model = build_model(config, data)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    entropy, _ = diagnostics.entropy_and_fragility(model, config)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    with torch.no_grad():
        logits = model(data.val.inputs[: diagnostics.SUMMARY_ROWS]).double().numpy()
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert entropy == pytest.approx(-(shares * np.log(shares)).sum(1).mean())
    monkeypatch.setattr(diagnostics, "DISTURBANCE", 2.0)
    for block in model.blocks[:2]:  # what they add is nothing, however they are disturbed
        block.out_proj.weight.data.zero_()
    assert diagnostics.entropy_and_fragility(model, config)[1] > 3
    monkeypatch.setattr(diagnostics, "DISTURBANCE", 0.0)
    assert diagnostics.entropy_and_fragility(model, config)[1] == 0


def test_a_run_is_held_beside_the_failing_one_at_its_steps(monkeypatch):
    config = base_config("digits", SCALE, arm="RMSN>SSM>RMSN", n_layers=4)
    stored = SimpleNamespace(config=config, path=Path("runs/one"))
    failing = SimpleNamespace(facts=dict(status="diverged", steps=4))
    at, measured = [], diagnostics.entropy_and_fragility

    def seen(model, config):
        at.append(measured(model, config))
        return at[-1]

    monkeypatch.setattr(diagnostics, "entropy_and_fragility", seen)
    found = diagnostics.failing_facts(stored, failing)
    assert found == pytest.approx(
        dict(sharpening=at[0][0] - at[1][0], fragility=at[1][1] - at[0][1])
    )
    assert len(at) == 2  # after steps 1 and 3, and no step more
    for none in (None, SimpleNamespace(facts=dict(status="ok", steps=4))):
        assert diagnostics.failing_facts(stored, none) == {}
    assert (
        diagnostics.failing_facts(stored, SimpleNamespace(facts=dict(status="diverged", steps=2)))
        == {}
    )


# weight norms (H12)


def test_unevenness_is_how_much_more_one_block_grew_than_another():
    first = np.array(
        [[3.0, 0.0, 0.0, 4.0], [1.0, 1.0, 1.0, 1.0]]
    )  # blocks of norm 5 and 2, (layers, parts)
    alike, apart = 3 * first, first * np.array([[1.0], [10.0]])
    assert weight_facts(run(part_norms=[first, apart, alike])) == {"unevenness": pytest.approx(0.0)}
    assert weight_facts(run(part_norms=[first, alike, apart])) == {"unevenness": pytest.approx(1.0)}
    assert weight_facts(run(part_norms=[first, apart, apart + np.inf])) == {
        "unevenness": pytest.approx(1.0)
    }
