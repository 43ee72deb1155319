"""The rule of the verdicts, number by number: against examples computed by hand, and against
scipy.
"""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mambanorm_study.claims import rule
from mambanorm_study.claims.plan import PROTOCOL
from mambanorm_study.claims.rule import CANNOT_TELL, NO_GAIN, NO_WORD, OPPOSITE, SUPPORTED
from mambanorm_study.claims.verdict import failure_verdict
from mambanorm_study.runs.recorded_results import best_lr
from mambanorm_study.tables import intervals

T7 = 2.364624  # Student's t with 7 degrees of freedom, two-sided 95 %, from a printed table


def differences(mean: float, half: float, n: int = 8) -> np.ndarray:
    """Return n differences whose 95 % interval is mean ± half."""
    pattern = np.linspace(-1, 1, n)
    sd = half * n**0.5 / stats.t.isf(0.025, n - 1)
    return mean + sd * pattern / pattern.std(ddof=1)


# the learning rate of an arm


def test_the_rate_of_an_arm_has_the_best_mean_over_its_seeds_and_the_smaller_of_equals_is_taken():
    validation = np.random.default_rng(1).random((50, 4, 7)).round(1)
    for scores in validation:
        rows = pd.DataFrame(scores).stack().rename_axis(["lr", "seed"]).reset_index(name="score")
        assert best_lr(rows) == max(range(4), key=lambda lr: (round(scores[lr].mean(), 9), -lr))
    rows = pd.DataFrame({"lr": [1, 1, 2, 2, 2], "score": [9.0, 9.0, 1.0, 2.0, 3.0]})
    assert best_lr(rows) == 2  # a learning rate that lacks a seed cannot be chosen


# one comparison


def test_the_interval_is_students_t():
    seen = np.array(
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    )  # mean 4.5, sd 2.449490, standard error 0.866025
    assert rule.interval(seen) == pytest.approx(
        (4.5 - T7 * 0.866025, 4.5 + T7 * 0.866025), abs=1e-5
    )
    rng = np.random.default_rng(3)
    for n in (2, 3, 6, 12, 40):
        numbers = rng.standard_normal(n)
        twin = [
            stats.ttest_1samp(numbers, 0).confidence_interval(1 - 2 * level)
            for level in (0.01, 0.025 / 5)
        ]
        assert rule.interval(numbers, 0.01, 0.025 / 5) == pytest.approx((twin[0].low, twin[1].high))
    assert np.isnan(rule.interval([1.0])).all()
    assert np.isnan(rule.interval([])).all()


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        # the three examples of PROTOCOL.md
        (0.7, 2.3, SUPPORTED),
        (-0.3, 0.9, NO_GAIN),
        (-0.6, 1.4, CANNOT_TELL),
        # the other places beside the two marks
        (0.1, 0.9, SUPPORTED),
        (1.1, 2.0, SUPPORTED),
        (-2.0, -0.1, OPPOSITE),
        (-9.0, 0.9, NO_GAIN),
        (-9.0, 9.0, CANNOT_TELL),
    ],
)
def test_a_word_says_where_the_interval_lies_beside_zero_and_the_smallest_effect(low, high, word):
    seen = differences((low + high) / 2, (high - low) / 2)
    assert rule.interval(seen) == pytest.approx((low, high))
    assert rule.comparison_verdict(seen, 1.0) == word
    assert rule.comparison_verdict(seen / 100, 0.01) == word  # in bits a character


def test_the_examples_stand_in_the_protocol_as_they_are_tested():
    text = " ".join(PROTOCOL.read_text("utf-8").split())
    assert "+1.5 points [0.7, 2.3]. The interval lies above 0 but not above +1: *supported*" in text
    assert "[−0.3, 0.9] the word is *no gain of a point*" in text
    assert "[−0.6, 1.4] it is *cannot tell*" in text


def test_fewer_than_six_pairs_have_no_word():
    assert rule.comparison_verdict(differences(20.0, 1.0, 6), 1.0) == SUPPORTED
    for n in (0, 1, 5):
        assert rule.comparison_verdict([20.0] * n, 1.0) == NO_WORD
        assert rule.better_or_worse([20.0] * n, 1.0) == NO_WORD


def test_differences_without_spread_have_a_word():
    for value, word in (
        (20.0, SUPPORTED),
        (0.0, NO_GAIN),
        (-20.0, OPPOSITE),
    ):  # an end at 0 is not above it
        assert rule.comparison_verdict([value] * 8, 1.0) == word
    assert rule.seeds_to_tell([0.5] * 8, 1.0) == rule.FEWEST


@pytest.mark.parametrize(
    ("mean", "half", "word"),
    [
        (1.5, 0.8, "better"),
        (0.2, 0.1, "better"),
        (-1.5, 0.8, "worse"),
        (0.2, 0.7, "about the same"),
        (-0.2, 0.7, "about the same"),
        (0.2, 0.9, CANNOT_TELL),
        (-0.2, 0.9, CANNOT_TELL),
    ],
)
def test_two_arms_are_better_worse_about_the_same_or_cannot_be_told_apart(mean, half, word):
    assert rule.better_or_worse(differences(mean, half), 1.0) == word


# several comparisons


def test_only_the_side_on_which_one_error_would_decide_is_corrected():
    assert rule.levels(1, True) == rule.levels(1, False) == (0.025, 0.025)
    assert rule.levels(5, one_suffices=True) == (0.005, 0.025)
    assert rule.levels(4, one_suffices=False) == (0.025, 0.00625)


def test_the_correction_takes_a_word_away_that_the_plain_interval_would_give():
    seen = differences(1.0, 0.95)
    assert rule.comparison_verdict(seen, 1.0) == SUPPORTED
    assert rule.comparison_verdict(seen, 1.0, *rule.levels(5, one_suffices=True)) == CANNOT_TELL
    assert (
        rule.comparison_verdict(seen, 1.0, *rule.levels(5, one_suffices=False)) == SUPPORTED
    )  # the other side
    assert rule.comparison_verdict(-seen, 1.0) == OPPOSITE
    assert rule.comparison_verdict(-seen, 1.0, *rule.levels(4, one_suffices=False)) == NO_GAIN
    assert rule.comparison_verdict(-seen, 1.0, *rule.levels(4, one_suffices=True)) == OPPOSITE


def test_a_claim_has_the_strongest_word_if_one_suffices_and_the_weakest_if_all_must_hold():
    order = [OPPOSITE, NO_GAIN, NO_WORD, CANNOT_TELL, SUPPORTED]
    assert sorted(order) == sorted(rule.WORDS)
    for words in itertools.product(order, repeat=3):
        places = [order.index(word) for word in words]
        assert rule.claim_verdict(words, one_suffices=True) == order[max(places)]
        assert rule.claim_verdict(words, one_suffices=False) == order[min(places)]


# how many seeds would tell


@pytest.mark.parametrize(("mean", "sd"), [(1.0, 1.3), (-2.0, 5.0), (0.3, 1.0), (0.8, 0.9)])
def test_so_many_seeds_would_tell_in_four_studies_of_five(mean, sd):
    seen = mean + sd * np.array([-1.0, 1.0] * 6) / np.std([-1.0, 1.0] * 6, ddof=1)
    n = rule.seeds_to_tell(seen, 1.0)
    made = mean + sd * np.random.default_rng(6).standard_normal((2_000, n))
    words = [rule.comparison_verdict(study, 1.0) for study in made]
    # the nearer of two ways to an informative word is counted: both together tell a little more
    # often
    assert 0.76 < np.mean([word in (SUPPORTED, NO_GAIN, OPPOSITE) for word in words]) < 0.95


def test_an_effect_of_zero_with_a_mark_at_zero_is_never_told():
    assert rule.seeds_to_tell([-1.0, 1.0] * 4, 0.0) is None
    assert rule.seeds_to_tell([-1.0, 1.0] * 4, 1.0) < 40  # that lies below one point


# failures


@pytest.mark.parametrize(
    ("k", "control", "n", "word"),
    [
        (8, 0, 8, SUPPORTED),  # 8 of 8: [63, 100 %]; 0 of 8: [0, 37 %]
        (8, 3, 8, CANNOT_TELL),  # 3 of 8: [9, 76 %], which may be more than half
        (5, 0, 8, CANNOT_TELL),  # 5 of 8: [24, 91 %]
        (0, 8, 8, OPPOSITE),
        (0, 0, 8, NO_GAIN),
        (1, 0, 8, CANNOT_TELL),  # 1 of 8: [0, 53 %]
        (8, 8, 8, CANNOT_TELL),
        (29, 0, 40, SUPPORTED),  # what version 11 recorded: 72.5 % [56, 85]
    ],
)
def test_failures_are_counted_and_their_shares_have_exact_intervals(k, control, n, word):
    assert failure_verdict(k, control, n) == word


def test_of_several_settings_more_failures_are_needed():
    """6 of 6 is 54 % or more at 2.5 %, and 43 % or more at 2.5 % / 4; 8 of 8 is 53 % or more."""
    shared, _ = rule.levels(4, one_suffices=True)
    assert failure_verdict(6, 0, 6) == SUPPORTED
    assert failure_verdict(6, 0, 6, shared) == CANNOT_TELL
    assert failure_verdict(8, 0, 8, shared) == SUPPORTED


def test_exact_intervals_of_a_share():
    assert intervals.clopper_pearson(0, 8) == pytest.approx((0, 1 - 0.025 ** (1 / 8)))
    assert intervals.clopper_pearson(8, 8, 0.9) == pytest.approx((0.05 ** (1 / 8), 1))
    assert intervals.count_with_interval(0, 12) == "0 of 12 [0, 26 %]"
    with pytest.raises(ValueError, match="k must be from 0 to n = 2, got 3"):
        intervals.clopper_pearson(3, 2)
    for n, level in itertools.product((1, 8, 96), (0.5, 0.95, 0.9998)):
        assert intervals.t_quantile(n, (1 - level) / 2) == pytest.approx(
            stats.t.isf((1 - level) / 2, n)
        )
