"""A sentence under a figure states the number that the recorded runs give."""

import numpy as np
import pandas as pd
import pytest

from mambanorm_study.answers.sentences import (
    gap,
    seen,
    stated_numbers,
    without_braces,
    wrong_numbers,
)

SENTENCE = "BN leads by {5.3} points, IN lies {−0.4} below, at 8 blocks."


def test_only_numbers_in_braces_are_compared():
    assert stated_numbers(SENTENCE) == ["5.3", "−0.4"]
    assert without_braces(SENTENCE) == "BN leads by 5.3 points, IN lies −0.4 below, at 8 blocks."


def test_numbers_are_compared_as_they_are_printed():
    assert wrong_numbers(SENTENCE, [5.26, -0.43]) == []
    assert wrong_numbers(SENTENCE, [-5.26, -0.43]) == []  # 5.3 has no sign
    assert wrong_numbers(SENTENCE, [5.26, 0.43]) == ["−0.4 is stated, +0.4 is measured"]
    assert wrong_numbers("{1,200} runs", [1200]) == []
    with pytest.raises(ValueError, match="shorter"):
        wrong_numbers(SENTENCE, [5.3])


def test_recorded_runs_that_give_another_number_are_an_error_and_other_runs_are_told():
    assert seen(SENTENCE, 5.3, -0.4) == without_braces(SENTENCE)
    with pytest.raises(AssertionError, match="5.3 is stated, 4.9 is measured"):
        seen(SENTENCE, 4.9, -0.4)
    other_runs = seen(SENTENCE, 4.9, np.nan, recorded=False)
    assert "In your runs: 4.9, –." in other_runs


def test_a_gap_is_paired_by_seed_and_nan_without_common_runs():
    arms = ["RMSN>SSM>None", "None>SSM>GN"]
    rows = [
        {"task": "curves", "arm": arm, "seed": seed, "test_accuracy": 0.5 + lead + seed / 100}
        for arm, lead in zip(arms, (0.0, 0.02), strict=True)
        for seed in (0, 1)
    ]
    runs = pd.DataFrame(rows).assign(scale="evening", status="ok", lr=0.01, chance=0.1)
    assert gap(runs, arms[1], arms[0]) == pytest.approx(2)
    assert np.isnan(gap(runs, arms[1], "None>SSM>BN"))
    assert np.isnan(gap(runs, *arms, task="digits"))
