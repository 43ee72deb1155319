"""A run frame as verdicts read it: rates from the tuning seeds, comparisons on the test seeds, and
what is missing.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from mambanorm_study.claims import judge, needed
from mambanorm_study.claims.evidence import (
    NEW_TUNING_SEEDS,
    RULE_VERSION,
    VERSION,
    Evidence,
    Runs,
)
from mambanorm_study.claims.plan import TRAINED_TASKS
from mambanorm_study.runs.grid import grid
from mambanorm_study.runs.recorded_results import recorded, recorded_lr
from mambanorm_study.tables.experiments import LADDER, lr_grid
from mambanorm_study.tables.intervals import shared_data_name
from mambanorm_study.tables.summaries import MIN_SHARE_OF_BEST, highest_lr_that_trains
from tests.planted import made_up, planted_frame, rows_of, table_of, tuned_and_tested, where

SCALE = "smoke"
LOW, MIDDLE, HIGH = lr_grid("digits", SCALE)
PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"
PAIR = (PROPOSAL, ORIGINAL)


def of_pair(
    effect: float = 12.0, *, seeds=8, tuning=NEW_TUNING_SEEDS, changes=None, **how
) -> pd.DataFrame:
    """Return the runs of the two arms of H8s, the proposal so many points ahead."""
    configs = tuned_and_tested(PAIR, "digits", seeds, SCALE, tuning, **changes or {})
    return planted_frame(rows_of(configs), {PROPOSAL: effect}, **{"sd": 0.3, **how})


def of(frame: pd.DataFrame, arm: str, lr: float | None = None, seeds=None) -> pd.Series:
    """Return the mask of an arm's rows, at one rate, of some seeds."""
    rows = (frame.arm == arm) & ((frame.lr == lr) | (lr is None))
    return rows if seeds is None else rows & frame.seed.isin(seeds)


def rate(frame: pd.DataFrame, arm: str = PROPOSAL, rank: int = 0) -> float | None:
    return Evidence(frame, SCALE).lr(arm, "digits", rank)


# the learning rate of an arm


def test_the_verdicts_and_the_lessons_have_one_rate_for_every_arm():
    frame = recorded("evening")
    evidence, compared = Evidence(frame, "evening"), 0
    for task in TRAINED_TASKS:
        for arm in sorted(set(frame.arm[frame.task == task])):
            if (chosen := evidence.lr(arm, task)) is not None:
                assert recorded_lr(task, arm, "evening")[0] == chosen, (task, arm)
                compared += 1
    assert compared > 80


def test_the_rate_is_chosen_on_tuning_seeds_by_validation_alone():
    frame = of_pair()
    assert rate(frame) == MIDDLE
    tests = frame.seed.between(52, 99)
    spoilt = where(frame, tests, best_val_accuracy=0.01)  # validation of test seeds must not choose
    spoilt = where(
        spoilt, of(spoilt, PROPOSAL, LOW), test_accuracy=0.99
    )  # nor the test accuracy of any seed
    assert rate(spoilt) == MIDDLE
    assert rate(where(frame, of(frame, PROPOSAL, LOW), best_val_accuracy=0.99)) == LOW
    assert rate(frame[~tests]) == MIDDLE
    assert rate(frame[tests]) is None


def test_the_second_best_rate_has_rank_1():
    frame = of_pair(curve=(-4.0, 0.0, -8.0))
    assert [rate(frame, rank=rank) for rank in range(4)] == [MIDDLE, LOW, HIGH, None]


def test_a_diverged_run_counts_as_chance_where_the_rate_is_chosen():
    frame = of_pair(sd=0.1, curve=(0.5, 0.0, -4.0))
    assert rate(frame) == LOW
    once = where(
        frame, of(frame, PROPOSAL, LOW, [102]), status="diverged"
    )  # its accuracies must not be read
    assert (rate(once), rate(once, ORIGINAL)) == (MIDDLE, LOW)


def test_recorded_tuning_seeds_win_over_new_ones():
    old, new = (
        of_pair(tuning=range(40, 44), curve=(0.0, 2.0, -4.0)),
        of_pair(curve=(9.0, 0.0, -4.0)),
    )
    both = pd.concat([old, new]).drop_duplicates("run_id", ignore_index=True)
    assert (rate(old), rate(new), rate(both)) == (MIDDLE, LOW, MIDDLE)


def test_a_seed_tunes_if_it_has_every_rate_of_the_grid():
    frame, others = of_pair(), [101, 102, 103]
    luring = where(frame, of(frame, PROPOSAL, LOW, others), best_val_accuracy=0.99)
    assert rate(luring) == LOW
    assert rate(luring[~of(luring, PROPOSAL, HIGH, others)]) == MIDDLE  # what seed 100 says
    assert rate(luring[~of(luring, PROPOSAL, HIGH)]) is None


def test_a_rate_beyond_the_grid_counts_if_all_tuning_seeds_have_it():
    frame, further = of_pair(curve=(-9.0, -4.0, 0.0)), lr_grid("digits", SCALE, factors=LADDER)[2]
    more = planted_frame(
        rows_of(tuned_and_tested(PAIR, "digits", 8, SCALE)), sd=0.0
    )  # for its columns
    more = more[of(more, PROPOSAL, HIGH)].assign(best_val_accuracy=0.9)
    configs = [
        config for config in tuned_and_tested([PROPOSAL], "digits", 8, SCALE) if config.lr == HIGH
    ]
    more = more.assign(run_id=[config.but(lr=further).run_id for config in configs], lr=further)
    grown = pd.concat([frame, more], ignore_index=True)
    assert rate(frame) == HIGH
    assert rate(grown) == further
    assert rate(grown[~((grown.lr == further) & (grown.seed == 103))]) == HIGH


# comparisons


def test_a_comparison_is_read_on_the_test_seeds_at_the_fixed_rates():
    frame = of_pair()
    runs = Evidence(frame, SCALE).runs_of_arms(PAIR, "digits")
    assert (runs.seeds, runs.lrs, runs.fresh) == (tuple(range(52, 60)), (MIDDLE, MIDDLE), True)
    lifted = where(frame, frame.seed >= 100, test_accuracy=0.99)  # tuning seeds have no part in it
    assert judge("H8s", lifted).main_row.per_seed == judge("H8s", frame).main_row.per_seed


def test_without_test_seeds_a_comparison_is_read_on_the_tuning_seeds_and_is_not_fresh():
    frame = of_pair(tuning=range(40, 48))
    verdict = judge("H8s", frame[frame.seed < 52])
    assert (verdict.word, verdict.n, verdict.main_row.fresh) == ("supported", 8, False)
    assert verdict.footnotes[0] == "not fresh: earlier versions of the rule have judged these runs"
    fresh = judge("H8s", frame)
    assert (fresh.n, fresh.main_row.fresh, "not fresh" in "".join(fresh.footnotes)) == (
        8,
        True,
        False,
    )
    tuning = Evidence(frame, SCALE, tuning=True).runs_of_arms(PAIR, "digits")
    assert (tuning.seeds, tuning.fresh) == (tuple(range(40, 48)), False)


def test_runs_at_another_rate_than_the_chosen_one_are_not_compared():
    """The proposal is tested at the middle rate; where tuning chooses another, its tuning seeds are
    what there is.
    """
    frame = of_pair()
    moved = where(frame, of(frame, PROPOSAL, HIGH, NEW_TUNING_SEEDS), best_val_accuracy=0.99)
    runs = Evidence(moved, SCALE).runs_of_arms(PAIR, "digits")
    assert (runs.lrs, runs.seeds, runs.fresh) == ((HIGH, MIDDLE), NEW_TUNING_SEEDS, False)


def test_a_diverged_run_scores_chance_and_is_counted():
    frame = of_pair(seeds=12)
    calm = judge("H8s", frame)
    lost = judge("H8s", where(frame, of(frame, PROPOSAL, seeds=[53, 57]), status="diverged"))
    assert (lost.n, lost.main_row.failed) == (12, {PROPOSAL: (2, 12), ORIGINAL: (0, 12)})
    assert "failed: NormVary→GN 2 of 12 runs" in lost.footnotes
    original = 100 * frame[of(frame, ORIGINAL, seeds=[53, 57])].test_accuracy
    for seed, accuracy in zip((53, 57), original, strict=True):
        assert lost.main_row.per_seed[seed - 52] == pytest.approx(10 - accuracy)
        assert calm.main_row.per_seed[seed - 52] == pytest.approx(12, abs=2)


def test_runs_that_still_improve_and_the_second_best_rates_are_footnotes():
    frame = of_pair(seeds=9, curve=(-4.0, 0.0, -8.0))
    expected = [frame[of(frame, arm, LOW)].test_accuracy.to_numpy() for arm in PAIR]
    difference = 100 * np.subtract(*expected).mean()
    # runs on test seeds at the second-best rate do not count
    tested = grid(PAIR, ["digits"], scale=SCALE, seeds=range(52, 61), lr=LOW)
    tested = planted_frame(rows_of(tested), base=20.0, curve=(0.0,))
    frame = pd.concat([frame, tested], ignore_index=True)
    for late, named in ((3, False), (4, True)):  # of nine runs a third, and more
        best = np.where(of(frame, PROPOSAL, seeds=range(52, 52 + late)), 0.95, 0.9) * frame.steps
        notes = judge("H8s", frame.assign(best_step=best)).footnotes
        assert ("still improved at the end: NormVary→GN 4 of 9 runs" in notes) == named
    (second,) = [note for note in notes if note.startswith("at the second-best")]
    assert second.startswith(
        f"at the second-best learning rates, tuning seeds: +{difference:.1f} points ["
    )


def test_changed_settings_fall_back_to_the_rate_of_the_scale_until_they_are_tuned():
    deep = dict(n_layers=3)
    frame = of_pair()
    tested = of_pair(-12.0, changes=deep)
    both = pd.concat([frame, tested[tested.seed < 100]], ignore_index=True)
    verdict = judge("H8s", Evidence(both, changes=deep))
    assert (verdict.word, verdict.n, verdict.main_row.lrs[PROPOSAL]) == ("opposite", 8, MIDDLE)
    assert judge("H8s", both).word == "supported"
    own = of_pair(-12.0, changes=deep, curve=(9.0, 0.0, -4.0))
    assert Evidence(pd.concat([frame, own]), SCALE, changes=deep).lr(PROPOSAL, "digits") == LOW
    assert judge("H8s", Evidence(tested, changes=dict(n_layers=4))).n == 0


def test_an_evidence_that_is_read_once_says_the_same_as_the_frame():
    frame = pd.concat([of_pair(), of_pair(-3.0, changes=dict(n_layers=3))], ignore_index=True)
    read = Evidence(frame, SCALE)
    for changes in (None, dict(n_layers=3), dict(n_layers=4)):
        once, anew = (judge("H8s", Evidence(one, changes=changes)) for one in (read, frame))
        assert (once.brief, once.footnotes) == (anew.brief, anew.footnotes)
        pd.testing.assert_frame_equal(table_of(once), table_of(anew))
    assert Evidence(read).lr(PROPOSAL, "digits") == MIDDLE


def test_an_array_that_lacks_an_arm_counts_no_failures():
    runs = Runs(PAIR, (52, 53), columns=dict(diverged=np.array([[1, 0]])))
    with pytest.raises(ValueError, match="shorter"):
        runs.failure_counts()


# what is missing, and what no run can have


def test_runs_that_are_no_frame_are_refused():
    with pytest.raises(TypeError, match="must be a DataFrame"):
        Evidence([dict(run_id=1)], SCALE)


def test_what_a_frame_lacks_is_named_and_never_guessed():
    frame = of_pair()
    for reason, part in {
        "not tuned: NormVary→GN": frame[~of(frame, PROPOSAL, HIGH)],
        "not tuned: NormVary→GN, RMSN→None": frame[frame.seed < 100],
        "4 pairs of runs, and 6 are needed": frame[frame.seed >= 100],
        "5 pairs of runs, and 6 are needed": frame[(frame.seed >= 100) | (frame.seed < 57)],
    }.items():
        verdict = judge("H8s", part)
        assert (verdict.word, verdict.reason) == ("no word", reason)
    gone = judge("H8s", frame[~of(frame, ORIGINAL, seeds=[56, 57])])
    assert (gone.word, gone.n) == ("supported", 6)


@pytest.mark.parametrize("lost", ["failed", "nan", "inf"])
def test_a_run_without_a_finite_number_is_a_missing_run(lost):
    frame = of_pair()
    rows = of(frame, PROPOSAL, MIDDLE, range(52, 55))
    if lost == "failed":
        frame = where(frame, rows, status="failed", test_accuracy=np.nan)
    else:
        frame = where(frame, rows, best_val_accuracy=float(lost))
    verdict = judge("H8s", frame)
    assert (verdict.word, verdict.n) == ("no word", 5)


def test_a_frame_of_two_scales_is_read_at_the_one_that_is_named():
    smoke, quick = (
        made_up("H8s", {PROPOSAL: 12.0}),
        made_up("H8s", {PROPOSAL: -12.0}, scale="quick"),
    )
    both = pd.concat([smoke, quick], ignore_index=True)
    with pytest.raises(ValueError, match="mixes the scales quick and smoke: name one with scale="):
        Evidence(both)
    for scale, alone, word in (("smoke", smoke, "supported"), ("quick", quick, "opposite")):
        verdict = judge("H8s", both, scale=scale)
        assert (verdict.scale, verdict.word) == (scale, word)
        pd.testing.assert_frame_equal(table_of(verdict), table_of(judge("H8s", alone)))


def test_runs_that_an_earlier_rule_of_the_protocol_has_read_are_not_fresh():
    frame = made_up("H8s")
    plain = judge("H8s", frame)
    for version in (2, 11, RULE_VERSION, VERSION):
        verdict = judge("H8s", frame.assign(protocol=version))
        assert (verdict.brief, verdict.main_row.fresh) == (plain.brief, version >= RULE_VERSION)


def test_language_models_of_different_texts_are_not_compared():
    """Python's documentation changes with Python; the loss of guessing by frequency tells texts
    apart.
    """
    losses = dict(test_loss=1.5, best_val_loss=1.5, chance_loss=3.24)
    frame = made_up("H1l", sd=0.0).assign(**losses)
    assert judge("H1l", frame).n
    other = where(frame, frame.arm == "None>SSM>None", chance_loss=3.21)
    with pytest.raises(
        ValueError, match=r"read different texts \(chance_loss 3.210000, 3.240000 nats\)"
    ):
        judge("H1l", other)


def test_what_the_test_rows_of_a_tasks_seeds_share_is_said():
    assert (
        shared_data_name("digits", "quick")
        == shared_data_name("listops", "quick")
        == "one pool of rows"
    )
    assert (
        shared_data_name("listops", "lab") == shared_data_name("cifar10", "paper") == "one test set"
    )
    assert shared_data_name("mnist1d", "quick") == ""
    assert shared_data_name("pydoc", "quick") == "one test text"
    assert "the seeds share one pool of rows" in "; ".join(judge("H8s", made_up("H8s")).footnotes)


# how high a learning rate can be


def reach_by_hand(score: list[float], chance: float, rates: list[float]) -> float:
    line = chance + MIN_SHARE_OF_BEST * (max(score) - chance)
    last = max(j for j, value in enumerate(score) if value >= line)
    if last == len(rates) - 1:
        return math.log10(rates[-1])
    share = (score[last] - line) / (score[last] - score[last + 1])
    return math.log10(rates[last]) + share * math.log10(rates[last + 1] / rates[last])


@pytest.mark.parametrize(
    "score",
    [
        [80, 90, 50, 10, 10],
        [90, 90, 90, 90, 90],
        [90, 10, 10, 10, 10],
        [30, 50, 90, 20, 89],
        [10, 10, 10, 10, 90],
    ],
)
def test_the_highest_rate_that_trains_is_read_between_the_rungs(score):
    rates = [0.01 * factor for factor in LADDER]
    found = highest_lr_that_trains(np.array(score, float), 10.0, rates)
    assert found == pytest.approx(reach_by_hand(score, 10.0, rates))


def test_a_seed_that_learns_at_no_rate_has_the_lowest():
    rates = [0.01 * factor for factor in LADDER]
    assert highest_lr_that_trains(np.full(5, 12.0), 10.0, rates) == pytest.approx(
        math.log10(rates[0])
    )


# what is needed next


def lacking(frame: pd.DataFrame | None) -> list:
    """Return the runs that H8s needs next on digits with eight test seeds."""
    asked = needed("H8s", 8, ["digits"], SCALE, frame)
    known = set() if frame is None else set(frame.run_id)
    return [config for config in asked if config.run_id not in known]


def test_an_arm_is_tuned_first_and_then_tested_at_its_rate():
    tuning = lacking(None)
    arms = {config.arm for config in tuning}
    assert {(c.arm, c.lr, c.seed) for c in tuning} == {
        (arm, lr, seed) for arm in arms for lr in (LOW, MIDDLE, HIGH) for seed in NEW_TUNING_SEEDS
    }
    assert len(tuning) == len(arms) * 12
    frame = planted_frame(rows_of(tuning), curve=(0.0, -4.0, -4.0), sd=0.1)
    tests = lacking(frame)
    assert {(c.arm, c.lr, c.seed) for c in tests} == {
        (arm, LOW, seed) for arm in arms for seed in range(52, 60)
    }
    assert {config.role for config in tests} == {"test"}
    whole = pd.concat([frame, planted_frame(rows_of(tests))], ignore_index=True)
    assert lacking(whole) == []
    assert judge("H8s", whole).n == 8


def test_a_tuning_that_was_broken_off_is_asked_for_what_it_lacks():
    frame = planted_frame(rows_of(lacking(None)), sd=0.1)
    begun = frame[~of(frame, PROPOSAL, seeds=[102, 103])]
    asked = [config for config in lacking(begun) if config.arm == PROPOSAL and config.seed >= 100]
    assert {(c.lr, c.seed) for c in asked} == {
        (lr, seed) for lr in (LOW, MIDDLE, HIGH) for seed in (102, 103)
    }


def test_arms_that_are_recorded_are_not_tuned_anew():
    frame = of_pair(tuning=range(40, 44))
    assert not [
        c for c in needed("H8s", 8, ["digits"], SCALE, frame) if c.arm in PAIR and c.seed >= 100
    ]


def test_seeds_that_tune_are_refused_as_test_seeds():
    for seeds, wrong in (([0, 60], "0"), ([52, 100], "100")):
        with pytest.raises(ValueError, match=f"test seeds are 52 to 99, got {wrong}: "):
            needed("H1s", seeds, scale=SCALE)
    with pytest.raises(ValueError, match="there are 36 test seeds, got 37"):
        needed("H1s", 37, scale=SCALE)
    assert {config.seed for config in needed("H9s", [3, 4], scale=SCALE)} == {
        3,
        4,
    }  # its rates are fixed


def test_evidence_on_the_tuning_seeds_stays_on_them_when_it_is_judged():
    frame = made_up("H4s")
    assert judge("H4s", Evidence(frame, tuning=True)).n == len(NEW_TUNING_SEEDS)
    assert judge("H4s", frame).n == 8
