"""The advice follows from the runs: other runs change it."""

import re

import numpy as np
import pandas as pd
import pytest

from mambanorm_study.advice.step_times import original_arm, relative_step_time
from mambanorm_study.advice.what_to_take import (
    NAN_READER,
    READERS,
    advice_in_detail,
    advice_table,
    arm_to_take,
    what_to_do,
)
from mambanorm_study.advice.which_arm import ADVISED_ON, ranking, tuned_arms
from mambanorm_study.claims import Evidence
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.run_tables import label

ORIGINAL = "RMSN>SSM>None"


@pytest.fixture(scope="module")
def frame():
    return recorded("evening")


@pytest.fixture(scope="module")
def advice(frame):
    return {row.reader: row for row in what_to_do(frame)}


def changed(frame, arm, points):
    """Return the frame with `points` added to every accuracy of an arm."""
    is_arm = frame.arm == arm
    columns = {
        name: frame[name].mask(is_arm, frame[name] + points / 100)
        for name in ("test_accuracy", "best_val_accuracy")
    }
    return frame.assign(**columns)


def test_every_reader_has_one_row_and_the_table_has_them_all(advice):
    assert list(advice) == [*READERS.values(), NAN_READER]
    table = advice_table(advice.values())
    assert table.count("\n") == 5
    assert all(f"| {row.reader} | **{row.take}** |" in table for row in advice.values())
    details = advice_in_detail(advice.values())
    for row in advice.values():
        facts = "\n".join(f"    - {fact}" for fact in row.know.split("; "))
        assert f"- **If you {row.reader}:**\n{facts}" in details


def test_the_advice_names_an_arm_that_is_better_or_the_original(frame, advice):
    evidence = Evidence(frame, "evening")
    for kind, task in ADVISED_ON.items():
        table = ranking(evidence, task)
        arm = arm_to_take(table)
        assert advice[READERS[kind]].take == label(arm)
        original = table[table.arm == original_arm(kind)].iloc[0]
        assert arm == original.arm or original.low > 0


def test_an_arm_that_falls_back_is_no_longer_advised(frame):
    curves = frame[frame.task == "curves"]
    chosen = arm_to_take(ranking(curves, "curves", scale="evening"))
    worse = ranking(changed(curves, chosen, -30), "curves", scale="evening")
    assert arm_to_take(worse) != chosen
    better = ranking(changed(curves, ORIGINAL, 5), "curves", scale="evening")
    assert arm_to_take(better) == ORIGINAL


def test_no_advice_contradicts_a_difference_of_the_same_runs(frame, advice):
    """Every arm that is called as good is about the same as the advised arm."""
    for kind, task in ADVISED_ON.items():
        row = advice[READERS[kind]]
        table = ranking(frame, task, scale="evening")
        same = [label(arm) for arm in table.arm[table.standing == "about the same"]]
        claimed = re.findall(r"about the same as ([^;]+)", row.know)
        names = [name for text in claimed for name in re.split(", | and ", text)]
        assert set(names) <= set(same)


def test_what_is_known_about_an_arm_follows_from_its_norms(advice):
    for row in advice.values():
        if "BN" in row.take.split("→"):
            assert "BN needs batches of several rows" in row.know
    assert "BN reads later positions in training" in advice[READERS["sequence"]].know
    for kind in ("vision", "language"):
        assert "later positions" not in advice[READERS[kind]].know
        assert "not fresh" in advice[READERS[kind]].know
    assert "not fresh" not in advice[READERS["sequence"]].know


def test_nan_the_norm_before_the_block_comes_first(frame, advice):
    row = advice[NAN_READER]
    assert row.take.startswith("RMSN before the block")
    runs = frame[(frame.task == "mnist1d") & (frame.n_layers == 8) & (frame.lr == 6e-3)]
    runs = runs[runs.seed >= 40]
    failed = {arm: int((of_arm.status == "diverged").sum()) for arm, of_arm in runs.groupby("arm")}
    assert f"{failed[ORIGINAL]} of 20 runs failed" in row.because
    assert row.because.endswith(f"without a norm {failed['None>SSM>None']} of 40 runs")
    assert f"BN after the scan alone failed in {failed['None>SSM>BN']} of 20 runs" in row.know
    ladder = frame[(frame.task == "mnist1d") & (frame.n_layers == 4) & frame.seed.between(40, 47)]
    after = ladder[ladder.arm.isin(["None>SSM>GN", "None>SSM>LN"]) & (ladder.lr > 5e-3)]
    failures = after[after.status == "diverged"]
    assert f"failed in {len(failures)} of {len(after)} runs, all at the highest rates" in row.know
    assert failures.lr.min() > after.lr.median()
    gain = runs[runs.seed < 60].pivot(index="seed", columns="arm", values="test_accuracy")
    gain = 100 * (gain["RMSN>SSM>RMSN"] - gain[ORIGINAL]).mean()
    assert f"{gain:+.1f} points".replace("-", "−") in row.know


def test_without_runs_there_is_no_advice(frame):
    assert what_to_do(frame.iloc[:0]) == []


def test_every_tuned_arm_has_a_recorded_step_time():
    for kind, task in ADVISED_ON.items():
        times = pd.Series({arm: relative_step_time(arm, task) for arm in tuned_arms(kind)})
        assert times[original_arm(kind)] == 1
        assert np.isfinite(times).all()
        assert times.between(0.5, 3).all()
