"""E1 to E4, the hypotheses about later models: planted truth, the ladder of rates, and the scan's
head-room.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

import mambanorm_study as study
from mambanorm_study import claims
from mambanorm_study.claims import judge
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS
from mambanorm_study.claims.other_sources import AFTER_GATE, JAMBA, MAMBA
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables import diagnostics, robustness, summaries
from tests import planted

SCALE, NONE, AFTER = "smoke", "None>SSM>None", "None>SSM>LN"
OWN = base_config("digits", SCALE).lr


def test_they_stand_apart_from_the_claims_of_the_sources():
    assert list(BEYOND) == ["E1s", "E2s", "E3s", "E4s", "E3l", "E4l"]
    assert not set(BEYOND) & set(CLAIMS)
    assert claims.find_claim("E2s") is BEYOND["E2s"]
    assert {
        config.arm
        for config in claims.verdict_runs(CLAIMS, pd.DataFrame(), tasks=["digits"], scale=SCALE)
    } == {arm for claim in CLAIMS.values() if claim.kind == "sequence" for arm in claim.arms}
    with pytest.raises(ValueError, match="unknown claim 'E5s'"):
        claims.find_claim("E5s")
    assert all(claim.compared_paper_task == "" for claim in BEYOND.values())


# E2: a ladder of rates


def climbed(plain: float, normed: float, *, best: float = 0.8, noise: float = 0.03) -> pd.DataFrame:
    """Return a ladder on which accuracy falls from `best` to chance around a rate, log₁₀ of
    multiples of the task's.
    """
    rng, frame = np.random.default_rng(1), planted.skeleton("E2s", 8, SCALE)
    centre = frame.arm.map({MAMBA: plain, JAMBA: normed}) + noise * rng.standard_normal(len(frame))
    share = 1 / (1 + np.exp(8 * (np.log10(frame.lr / OWN) - centre)))
    return frame.assign(
        test_accuracy=0.1 + (best - 0.1) * share, best_val_accuracy=0.5, chance=0.1, status="ok"
    )


@pytest.mark.parametrize(
    ("plain", "normed", "word"),
    [(0.4, 1.0, "supported"), (0.7, 0.7, "no gain"), (1.0, 0.4, "opposite")],
)
def test_a_higher_rate_is_told(plain, normed, word):
    verdict = judge("E2s", climbed(plain, normed))
    assert verdict.word == word
    assert verdict.main_row.unit == "decades of the rate"
    assert verdict.main_row.effect == pytest.approx(normed - plain, abs=0.1)  # a rung is 0.4


def test_a_run_that_diverged_does_not_train_and_models_at_chance_have_no_word():
    frame = climbed(0.4, 1.0)
    high = frame.lr > 5 * OWN
    failed = frame.assign(
        status=np.where(high, "diverged", "ok"), test_accuracy=frame.test_accuracy.where(~high, 0.9)
    )
    assert abs(judge("E2s", failed).main_row.effect) < judge("E2s", frame).main_row.effect / 2
    lost = judge("E2s", frame.assign(test_accuracy=0.1))
    assert (lost.word, lost.reason) == ("no word", "both sides' accuracy may be chance")


def test_a_seed_needs_every_rung_of_the_ladder():
    frame = climbed(0.4, 1.0)
    assert judge("E2s", frame[frame.lr != frame.lr.max()]).n == 0
    gone = frame[~((frame.arm == JAMBA) & (frame.lr == frame.lr.max()) & (frame.seed == 54))]
    assert judge("E2s", gone).n == 7
    assert judge("E2s", frame.iloc[:0], scale=SCALE).n == 0


# E1: room below float16's largest number


def test_head_room_is_measured_and_has_no_word():
    rng, frame = np.random.default_rng(0), planted.skeleton("E1s", 8, SCALE)
    room = frame.arm.eq(NONE).map({True: 0.0, False: 3.0}) + 0.05 * rng.standard_normal(len(frame))
    finite = dict(status="ok", test_accuracy=0.5, best_val_accuracy=0.5, chance=0.1)
    verdict = judge("E1s", frame.assign(headroom=room, **finite))
    row = verdict.main_row
    assert (verdict.word, row.unit, row.n) == ("no word", "decades", 8)
    assert row.effect == pytest.approx(3.0, abs=0.05)
    assert row.low < 3 < row.high
    assert verdict.reason.startswith("VMamba's authors do not say")


def test_head_room_is_that_of_the_largest_output_of_the_scan(tmp_path):
    config = next(c for c in claims.needed("E1s", 1, scale=SCALE) if c.arm == AFTER)
    frame = summaries.with_summaries(
        study.sweep([config], runs_dir=tmp_path, workers=0, progress=False), tmp_path
    )
    model, data = (
        robustness.stored_model(study.find_run(config, tmp_path)),
        study.load_task("digits", SCALE, config.seed),
    )
    inputs, lengths, _ = data.test.batch(slice(0, diagnostics.SUMMARY_ROWS))
    seen = []
    handles = [
        block.n2.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        for block in model.blocks
    ]
    with torch.no_grad():
        model(inputs, lengths)
    assert len(seen) == len(handles) == config.n_layers
    by_hand = math.log10(65_504 / max(float(y.abs().max()) for y in seen))
    assert frame.headroom.item() == pytest.approx(by_hand, abs=1e-4)


# E3 and E4: tuned


@pytest.mark.parametrize(
    ("claim_id", "effects", "word"),
    [
        ("E3s", {AFTER_GATE: 12.0}, "supported"),
        ("E3s", {AFTER_GATE: -12.0}, "opposite"),
        ("E4s", {MAMBA: 12.0, "None>SSM>RMSN": 12.0}, "supported"),
        ("E4s", {MAMBA: 12.0, "None>SSM>RMSN": -12.0}, "opposite"),  # both are asked for
    ],
)
def test_tuned_arms_are_judged_as_those_of_the_paper(claim_id, effects, word):
    assert judge(claim_id, planted.made_up(claim_id, effects)).word == word
