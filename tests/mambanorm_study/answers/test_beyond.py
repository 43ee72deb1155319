"""Tests of notebook 13 on made-up runs: gains site by site, figures and answers."""

import math

import numpy as np
import pandas as pd
import pytest

from mambanorm.arms import MORE_SITES, PRESETS
from mambanorm_study import answers, figures
from mambanorm_study.claims import judge
from mambanorm_study.claims.hypotheses import BEYOND
from mambanorm_study.tables.contrasts import site_gains
from mambanorm_study.tables.experiments import MAMBA_ARM, SITE_NORMS, site_arms
from mambanorm_study.tables.notebook_runs import notebook_runs
from tests import planted
from tests.mambanorm_study.claims.test_other_sources import climbed

WORTH = {"RMSN at B": 0.10, "LN at residual": -0.20, "Scale at B": 0.02}


def frame(task: str = "digits", seeds: int = 6, norms=SITE_NORMS) -> pd.DataFrame:
    """Return runs of every site: Mamba's arm at 50 %, others at 50 % plus WORTH, noise of 0.01."""
    rng, rows = np.random.default_rng(0), []
    for arm in site_arms(norms):
        gain = WORTH.get(arm.label.removeprefix("RMSN→None + "), 0.0)
        for seed in range(seeds):
            accuracy = 0.5 + gain + 0.01 * rng.standard_normal()
            loss = math.log(2) * (2.0 - gain)
            rows.append(
                dict(task=task, arm=str(arm), seed=seed, test_accuracy=accuracy, test_loss=loss)
            )
    facts = dict(
        status="ok", scale="quick", chance=0.1, chance_loss=3.0, best_val_accuracy=0.5, lr=0.01
    )
    return pd.DataFrame(rows).assign(**facts)


def test_the_arms_are_mambas_own_and_one_norm_more_at_each_site():
    arms = site_arms()
    assert arms[0] == MAMBA_ARM == PRESETS["Mamba"].arm
    assert len(set(arms)) == len(arms) == 1 + len(SITE_NORMS) * len(MORE_SITES)
    assert PRESETS["Mamba-2-norms"].arm in arms
    asked = notebook_runs("smoke", seeds=1)["13_beyond"]
    assert {c.task for c in asked} == {"digits", "pydoc"}
    assert notebook_runs("smoke", ["diabetes"], seeds=1)["13_beyond"] == []


def test_gains_are_paired_by_seed_and_a_diverged_run_counts_as_chance():
    runs = frame()
    table = site_gains(runs).set_index(["norm", "site"])
    assert len(table) == len(SITE_NORMS) * len(MORE_SITES)
    assert table.gain["RMSN", "B"] == pytest.approx(10, abs=1)
    assert table.gain["LN", "residual"] == pytest.approx(-20, abs=1)
    baseline = runs[runs.arm == str(MAMBA_ARM)].set_index("seed").test_accuracy
    with_b = runs[runs.arm == f"{MAMBA_ARM}+B:RMSN"].set_index("seed").test_accuracy
    assert table.per_seed["RMSN", "B"] == pytest.approx((100 * (with_b - baseline)).tolist())
    lost = runs.assign(status=np.where(runs.arm == f"{MAMBA_ARM}+B:RMSN", "diverged", "ok"))
    assert site_gains(lost).set_index(["norm", "site"]).gain["RMSN", "B"] == pytest.approx(
        -40, abs=1
    )
    # a reader's own runs may lack the arm to compare with
    assert site_gains(runs[runs.arm != str(MAMBA_ARM)]).empty


def test_gains_of_a_language_model_are_bits():
    table = site_gains(frame("pydoc", norms=["RMSN"])).set_index("site")
    assert set(table.unit) == {"bits per character saved"}
    assert table.gain["B"] == pytest.approx(0.10)
    assert table.gain["z"] == pytest.approx(0)


def test_the_figures_say_what_they_rest_on():
    both = pd.concat([frame(), frame("pydoc", norms=["RMSN"])], ignore_index=True)
    fig = figures.fig_site_gains(site_gains(both), "quick scale · 6 seeds")
    assert [ax.get_title("left") for ax in fig.axes] == ["digits", "pydoc"]
    assert "bits per character saved" in fig.axes[1].get_xlabel()
    assert "quick scale · 6 seeds" in fig.get_supxlabel()
    assert len(fig.axes[0].get_yticklabels()) == len(MORE_SITES)
    fresh = frame(seeds=1, norms=["RMSN"]).assign(seed=10_007)
    gains = site_gains(frame())
    fig = figures.fig_site_gains(gains[gains.site == "B"], "quick scale", fresh=fresh)
    (diamond,) = [
        line
        for line in fig.axes[0].get_lines()
        if line.get_marker() == "D" and len(line.get_xdata())
    ]
    assert list(diamond.get_xdata()) == site_gains(fresh).set_index("site").per_seed["B"]


def test_the_answers_are_those_of_the_runs():
    table = site_gains(frame())
    verdicts = [
        judge("E2s", climbed(0.4, 1.0)),
        judge("E3s", climbed(0.4, 1.0).iloc[:0], scale="smoke"),
    ]
    said = answers.what_a_site_brings(frame(), table)
    assert "- **digits** (6 seeds), the largest mean: RMSN at B (+9" in said
    assert "clearly above zero: RMSN at B" in said
    assert "LN at residual (−" in said.split("clearly below zero:")[1]
    with_trained = answers.what_a_site_brings(
        frame(), table, table[(table.site == "B") & (table.norm != "LN")]
    )
    trained = with_trained.split("- **digits**, trained: RMSN at B (+")[1]
    assert trained.splitlines()[0].endswith(": clearly above zero")
    assert (
        "- **digits**, in the first epochs, one learning rate for all (6 seeds), the largest mean: "
        in with_trained
    )
    authors = answers.authors_and_runs(verdicts)
    assert "**E2s: supported, by more than 0.1 decades of the rate.**" in authors
    assert BEYOND["E3s"].quote in authors
    assert "not run" in authors.split("**E3s: no word.**")[1]
    assert answers.what_a_site_brings(frame(), table.iloc[:0]).endswith(
        "- Scale, the learned gain alone, was not run."
    )


def test_the_headroom_of_each_arm_and_its_failed_runs_are_counted():
    frame = planted.skeleton("E1s")
    without = frame.arm == "None>SSM>None"
    room = without.map({True: 2.0, False: -3.0})
    runs = frame.assign(
        headroom=room, status=np.where(without & (frame.seed < 57), "diverged", "ok")
    )
    table = answers.float16_headroom(runs, ["None>SSM>None", "None>SSM>LN", "GN>SSM>GN"])
    assert table.index.tolist() == ["None→None", "None→LN"]
    assert table.loc["None→None"].tolist() == [5, 3, 3, 2.0]
    assert table.loc["None→LN"].tolist() == [0, 8, 0, -3.0]
    assert answers.float16_headroom(frame, ["None>SSM>None"]).empty
