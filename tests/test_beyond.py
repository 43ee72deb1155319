"""E1 to E4, the hypotheses about later models: planted truth, the ladder of rates, and the scan's head-room."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm as mn
from mambanorm import claims
from mambanorm.claims import judge
from mambanorm.claims.evidence import TRAINS, reach
from mambanorm.claims.hypotheses import BEYOND, CLAIMS
from mambanorm.claims.needed import needed
from mambanorm.claims.other_sources import AFTER_GATE, JAMBA, MAMBA
from mambanorm.runs.grid import base_config
from mambanorm.runs.result import config_row
from mambanorm.study import robustness, summaries
from mambanorm.study.experiments import LADDER
from tests import planted

SCALE, NONE, AFTER = "smoke", "None>SSM>None", "None>SSM>LN"
OWN = base_config("digits", SCALE).lr


def test_they_stand_apart_from_the_claims_of_the_sources():
    assert list(BEYOND) == ["E1s", "E2s", "E3s", "E4s", "E3l", "E4l"]
    assert not set(BEYOND) & set(CLAIMS)
    assert claims.find_claim("E2s") is BEYOND["E2s"]
    assert "E2s" not in claims.verdict_table(pd.DataFrame(), scale=SCALE).id.tolist()
    with pytest.raises(ValueError, match="unknown claim 'E5s'"):
        claims.find_claim("E5s")
    assert all(claim.beyond and claim.printed_on == "" for claim in BEYOND.values())


# E2: a ladder of rates


def reach_by_hand(score: list[float], chance: float, rates: list[float]) -> float:
    line = chance + TRAINS * (max(score) - chance)
    last = max(j for j, value in enumerate(score) if value >= line)
    if last == len(rates) - 1:
        return math.log10(rates[-1])
    share = (score[last] - line) / (score[last] - score[last + 1])
    return math.log10(rates[last]) + share * math.log10(rates[last + 1] / rates[last])


@pytest.mark.parametrize(
    "score",
    [[80, 90, 50, 10, 10], [90, 90, 90, 90, 90], [90, 10, 10, 10, 10], [30, 50, 90, 20, 89], [10, 10, 10, 10, 90]],
)
def test_the_highest_rate_that_trains_is_read_between_the_rungs(score):
    rates = [0.01 * factor for factor in LADDER]
    found = reach(np.array(score, float)[None, :, None], np.full((1, 5, 1), 10.0), rates)
    assert found[0, 0] == pytest.approx(reach_by_hand(score, 10.0, rates))


def climbed(plain: float, normed: float, *, best: float = 0.8, noise: float = 0.03, seeds: int = 8) -> pd.DataFrame:
    """A ladder on which accuracy falls from `best` to chance around a rate, log₁₀ of multiples of the task's own."""
    rng, frame = np.random.default_rng(0), rows_of("E2s", seeds)
    centre = frame.arm.map({MAMBA: plain, JAMBA: normed}) + noise * rng.standard_normal(len(frame))
    share = 1 / (1 + np.exp(8 * (np.log10(frame.lr / OWN) - centre)))
    return frame.assign(test_accuracy=0.1 + (best - 0.1) * share, best_val_accuracy=0.5, chance=0.1, status="ok")


def rows_of(claim_id: str, seeds: int) -> pd.DataFrame:
    return pd.DataFrame([config_row(c) for c in needed(claim_id, seeds, ["digits"], SCALE)])


@pytest.mark.parametrize(
    ("plain", "normed", "expected"),
    [(0.4, 1.0, "reproduced"), (0.7, 0.7, "contradicted"), (1.0, 0.4, "contradicted")],
)
def test_a_higher_rate_is_told(plain, normed, expected):
    verdict = judge("E2s", climbed(plain, normed))
    assert verdict.verdict == expected
    assert verdict.unit == "decades of the rate"
    assert verdict.effect == pytest.approx(normed - plain, abs=0.1)  # a rung is 0.4


def test_a_run_that_diverged_does_not_train_and_models_at_chance_tell_nothing():
    frame = climbed(0.4, 1.0)
    high = frame.lr > 5 * OWN
    failed = frame.assign(status=np.where(high, "diverged", "ok"), test_accuracy=frame.test_accuracy.where(~high, 0.9))
    verdict = judge("E2s", failed)
    assert abs(verdict.effect) < judge("E2s", frame).effect / 2
    guessing = 0.1 + 0.02 * np.random.default_rng(0).standard_normal(len(frame))  # what 1 of 360 rows is worth
    lost = judge("E2s", frame.assign(test_accuracy=guessing))
    assert (lost.verdict, lost.reason) == ("not judged", "at chance: an arm learns at no rate")


def test_a_missing_rung_makes_a_sketch_and_a_missing_run_leaves_a_seed_out():
    frame = climbed(0.4, 1.0)
    short = judge("E2s", frame[frame.lr != frame.lr.max()])
    assert short.verdict == "not judged"
    assert "lacks learning rate" in short.reason
    gone = frame[~((frame.arm == JAMBA) & (frame.lr == frame.lr.max()) & (frame.seed == 2))]
    verdict = judge("E2s", gone)
    assert verdict.n_seeds == 7
    assert judge("E2s", frame.iloc[:0], scale=SCALE).n_seeds == 0


def test_a_seed_that_learns_at_no_rate_has_the_lowest():
    rates = [0.01 * factor for factor in LADDER]
    found = reach(np.full((1, 5, 1), 10.0), np.full((1, 5, 1), 10.0), rates)
    assert found.item() == pytest.approx(math.log10(rates[0]))


# E1: room below float16's largest number


def roomy(none: float, after: float, failed: int = 0) -> pd.DataFrame:
    rng, frame = np.random.default_rng(0), rows_of("E1s", 8)
    room = frame.arm.eq(NONE).map({True: none, False: after}) + 0.05 * rng.standard_normal(len(frame))
    lost = frame.arm.eq(NONE) & (frame.seed < failed)
    finite = dict(test_accuracy=0.5, best_val_accuracy=0.5, chance=0.1)
    return frame.assign(headroom=room.mask(lost, 0.0), status=np.where(lost, "diverged", "ok"), **finite)


def test_head_room_is_measured_and_never_judged():
    verdict = judge("E1s", roomy(0.0, 3.0))
    assert (verdict.verdict, verdict.unit, verdict.n_seeds) == ("not judged", "decades", 8)
    assert verdict.effect == pytest.approx(3.0, abs=0.05)
    assert verdict.ci[0] < 3 < verdict.ci[1]
    assert "measured, and not judged: its authors do not say" in verdict.reason


def test_head_room_is_that_of_the_largest_output_of_the_scan(tmp_path):
    config = next(c for c in needed("E1s", 1, scale=SCALE) if c.arm == AFTER)
    frame = summaries.with_summaries(mn.sweep([config], runs_dir=tmp_path, workers=0, progress=False), tmp_path)
    model, data = robustness.trained_model(config, tmp_path), mn.load_task("digits", SCALE, 0)
    inputs, lengths, _ = data.test.batch(slice(0, summaries.ROWS))
    seen = []
    handles = [block.n2.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for block in model.blocks]
    with torch.no_grad():
        model(inputs, lengths)
    assert len(seen) == len(handles) == config.n_layers
    by_hand = math.log10(65_504 / max(float(y.abs().max()) for y in seen))
    assert frame.headroom.item() == pytest.approx(by_hand, abs=1e-4)


# E3 and E4: tuned


@pytest.mark.parametrize(
    ("claim_id", "effects", "expected"),
    [
        ("E3s", {AFTER_GATE: 12.0}, "reproduced"),
        ("E3s", {AFTER_GATE: -12.0}, "contradicted"),
        ("E4s", {MAMBA: 12.0, "None>SSM>RMSN": 12.0}, "reproduced"),
        ("E4s", {MAMBA: 12.0, "Scale>SSM>None": 12.0, "None>SSM>RMSN": -12.0}, "contradicted"),
    ],
)
def test_tuned_arms_are_judged_as_those_of_the_paper(claim_id, effects, expected):
    frame = planted.made_up(claim_id, effects, seeds=12)
    assert judge(claim_id, frame).verdict == expected
