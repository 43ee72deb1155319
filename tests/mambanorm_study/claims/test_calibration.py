"""How often the rule is wrong: simulated studies whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from mambanorm_study.claims import calibration, rule
from mambanorm_study.claims.calibration import (
    STRUCTURES,
    UNSEEN,
    WRONG,
    calibrate,
    calibration_text,
    draw_differences,
    least_favourable_effects,
    simulate,
)
from mambanorm_study.cli.main import main


@pytest.mark.parametrize("scenario", ["plain", "t3", "unequal", "skewed", "failing"])
def test_simulated_differences_have_the_true_means_and_a_common_arm(scenario):
    rng = np.random.default_rng(0)
    drawn = np.stack([draw_differences([0.0, 3.0], scenario, 12, rng) for _ in range(4_000)])
    assert drawn.mean(axis=(0, 2)) == pytest.approx([0.0, 3.0], abs=0.25)
    assert np.corrcoef(drawn[:, 0].ravel(), drawn[:, 1].ravel())[0, 1] > 0.2


def test_where_a_wrong_word_needs_all_comparisons_all_but_one_lie_far_on_its_side():
    assert least_favourable_effects("one of five", 0.0) == [0.0] * 5  # any one of five may be lucky
    assert least_favourable_effects("one of five", 1.0) == [1.0, *[-calibration.CLEAR_EFFECT] * 4]
    assert least_favourable_effects("all of four", 0.0) == [0.0, *[calibration.CLEAR_EFFECT] * 3]
    assert least_favourable_effects("all of four", 1.0) == [1.0] * 4


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("truth", WRONG)
def test_a_wrong_word_at_a_mark_is_rare(structure, truth):
    words = simulate(structure, truth, studies=1_500)
    assert words[WRONG[truth]] < 0.04
    assert sum(words.values()) == pytest.approx(1)


def test_large_effects_are_found_and_no_effect_is_told_with_little_noise(monkeypatch):
    assert simulate("one comparison", 4.0, studies=200)[rule.SUPPORTED] > 0.97
    monkeypatch.setattr(calibration, "SD", 0.2)
    assert simulate("one comparison", 0.0, studies=200)[rule.NO_GAIN] > 0.9


def test_the_recorded_text_keeps_what_the_protocol_promises():
    """At most 3 % wrong words in the first three scenarios, at most 5 % in the worst one that a
    sample can show.
    """
    text = calibration.RECORDED.read_text("utf-8")
    table, unseen = text.split("## What no rule sees")
    for row in table.splitlines():
        name, *cells = [cell.strip() for cell in row.strip("|").split("|")]
        if name.split(",")[0] in calibration.SCENARIOS:
            limit = 3.0 if name.startswith(("plain", "t3", "unequal")) else 5.0
            assert all(float(share) <= limit for cell in cells for share in cell.split(" / ")), row
    assert f"{UNSEEN}, 12" in unseen
    assert "functions of the rule, 5,000 per cell" in text


def test_the_command_prints_the_table(capsys):
    assert main(["calibrate", "--studies", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# How often the verdicts are wrong")
    assert "3 per cell" in out
    frame = calibrate(studies=2)
    assert set(frame.scenario) == set(calibration.SCENARIOS)
    assert "What no rule sees" in calibration_text(frame)
