"""The time left follows from the runs that have ended, and no run starts that would end too late."""

import pytest

from mambanorm_study.runs import pace as pace_module
from mambanorm_study.runs.grid import grid
from mambanorm_study.runs.pace import Pace, default_seconds

DIGITS = grid(["RMSN>SSM>None"], ["digits"], scale="smoke", seeds=4)
LISTOPS = grid(["RMSN>SSM>None"], ["listops"], scale="smoke", seeds=2)
EXPECTED = {config.run_id: 10.0 for config in (*DIGITS, *LISTOPS)}


@pytest.fixture
def clock(monkeypatch):
    """The time in seconds, as a list of one number."""
    now = [0.0]
    monkeypatch.setattr(pace_module.time, "monotonic", lambda: now[0])
    return now


def test_before_the_first_run_has_ended_the_expected_times_count():
    assert Pace(DIGITS, EXPECTED).seconds_left(DIGITS, 2) == 20
    assert Pace(DIGITS).seconds(DIGITS[0]) == default_seconds(DIGITS[0])


def test_a_run_of_a_task_changes_the_expectation_for_this_task_and_for_unknown_ones():
    pace = Pace([*DIGITS, *LISTOPS], EXPECTED)
    pace.ended(DIGITS[0], 30.0)
    assert pace.seconds(DIGITS[1]) == pace.seconds(LISTOPS[0]) == 30
    pace.ended(LISTOPS[0], 5.0)
    assert pace.seconds(LISTOPS[1]) == 5
    assert pace.seconds(DIGITS[1]) == 30
    assert pace.seconds_left([*DIGITS[1:], LISTOPS[1]], 2) == (3 * 30 + 5) / 2


def test_a_run_that_was_not_trained_says_nothing_about_the_speed():
    pace = Pace(DIGITS, EXPECTED)
    pace.ended(DIGITS[0], 0.0)
    assert pace.seconds(DIGITS[1]) == 10


def test_a_run_starts_only_if_it_is_expected_to_end_within_the_limit(clock):
    pace = Pace(DIGITS, EXPECTED, limit=25.0)
    assert pace.admits(DIGITS[0])
    clock[0] = 15.0
    assert pace.admits(DIGITS[1])
    assert pace.seconds_left(DIGITS, 1) == 10  # no later than the limit
    pace.ended(DIGITS[0], 15.0)  # slower than expected
    assert not pace.admits(DIGITS[1])
    assert Pace(DIGITS, EXPECTED).admits(DIGITS[1])
