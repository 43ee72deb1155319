"""The rule of the verdicts, number by number, against scipy's slow and readable functions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from mambanorm.claims import CLAIMS, calibration, judge, rule
from mambanorm.claims.hypotheses import find_claim
from mambanorm.runs.recorded_results import best_rate
from mambanorm.study import intervals
from tests.planted import skeleton


def values(mean: float, sd: float = 1.0, n: int = 8, shape: tuple[int, ...] = ()) -> np.ndarray:
    """Numbers with exactly this mean and standard deviation."""
    pattern = np.linspace(-1, 1, n)
    return np.broadcast_to(mean + sd * pattern / pattern.std(ddof=1), (*shape, n))


# one rate an arm


def test_the_rate_of_an_arm_has_the_best_mean_over_its_seeds_and_the_smaller_of_equals_is_taken():
    rng = np.random.default_rng(1)
    validation = rng.random((50, 4, 7)).round(1)
    found = best_rate(validation)
    for mine, best in zip(validation, found, strict=True):
        assert best == max(range(4), key=lambda rate: (round(mine[rate].mean(), 9), -rate))
    few = np.array([[9.0, np.nan, 9.0], [1.0, 2.0, 3.0], [np.nan] * 3])
    assert best_rate(few) == 1  # a rate that lacks a seed is none to choose


def test_rates_are_tied_if_the_interval_holds_zero_and_the_gap_is_below_the_smallest_effect():
    rng = np.random.default_rng(2)
    validation = 50 + rng.standard_normal((200, 3, 8)) + 0.8 * rng.standard_normal((200, 3, 1))
    best = best_rate(validation)
    found = rule.tied(validation, best, 1.0)
    for mine, i, tied in zip(validation, best, found, strict=True):
        for rate in range(3):
            gap = mine[i] - mine[rate]
            alike = rate != i and stats.ttest_1samp(gap, 0).pvalue >= 0.05 and gap.mean() < 1.0
            assert tied[rate] == alike
    assert 0.2 < found.mean() < 0.6
    own = values(50.0)
    wide = np.stack([own, own - values(1.1, 3.0)])
    assert not rule.tied(wide, np.int64(0), 1.0).any()  # not told apart, and yet too far away
    assert rule.tied(wide, np.int64(0), 1.2).tolist() == [False, True]
    ended = np.array([[True] * 8, [False] + [True] * 7])  # of the pairs that finished the gap is wider
    assert not rule.tied(wide, np.int64(0), 1.2, ended).any()
    wide[1, 0] = np.nan
    assert not rule.tied(wide, np.int64(0), 1.2).any()


@pytest.mark.parametrize(
    ("gain", "sd", "at", "end"),
    [(1.5, 0.3, 2, 1), (1.5, 0.3, 0, -1), (1.5, 3.0, 2, 0), (0.9, 0.1, 2, 0), (5, 0.1, 1, 0)],
)
def test_an_arm_improves_at_an_end_of_its_grid_if_its_lead_is_told_to_exceed_the_smallest_effect(gain, sd, at, end):
    validation = np.stack([values(50.0)] * 3) - np.array([0.0, 0.0, 0.0])[:, None]
    validation[at] += values(gain, sd)
    assert rule.edge(validation, 1.0) == end
    unseen = np.vstack([validation, np.full((1, 8), np.nan)])
    assert rule.edge(unseen, 1.0) == end
    assert rule.edge(validation[:1], 1.0) == 0


# the interval and its states


def test_the_bounds_are_those_of_students_t_on_the_seeds_that_finished():
    rng = np.random.default_rng(3)
    numbers = rng.standard_normal((20, 12))
    numbers[rng.random(numbers.shape) < 0.2] = np.nan
    told = rule.tell(numbers, 0.3, (0.025 / 4, 0.01))
    for i, mine in enumerate(numbers):
        mine = mine[np.isfinite(mine)]
        test = stats.ttest_1samp(mine, 0)
        assert told.n[i] == len(mine)
        assert told.mean[i] == pytest.approx(mine.mean())
        assert told.low[i] == pytest.approx(test.confidence_interval(1 - 2 * 0.025 / 4).low)
        assert told.high[i] == pytest.approx(test.confidence_interval(0.98).high)
        assert (told.plain[0][i], told.plain[1][i]) == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert rule.tell(mine, 0.3, (0.025 / 4, 0.01)).state == told.state[i]  # one study or many
    none = rule.tell(np.full((1, 8), np.nan), 1.0)
    assert none.state == "not judged"
    assert none.n == 0


@pytest.mark.parametrize("threshold", [1.0, -0.25, 0.01])
def test_a_state_says_on_which_side_of_its_threshold_the_interval_lies(threshold):
    half = stats.t.isf(0.025, 7) / np.sqrt(8)  # of a spread of 1

    def state(left: float, right: float) -> str:
        """The state of an interval with these ends."""
        return str(rule.tell(values((left + right) / 2, (right - left) / 2 / half), threshold).state)

    reach, step = abs(threshold), 1e-3 * abs(threshold)
    assert state(threshold + step, threshold + 9) == "holds"
    assert state(threshold - 9, threshold - step) == "fails"
    assert state(threshold - reach + step, threshold + reach - step) == "near"
    assert state(threshold - reach - step, threshold + step) == "open"
    assert state(threshold - step, threshold + reach + step) == "open"
    assert state(threshold - step, threshold + 2 * step) == "near"


def test_bounds_with_other_levels_leave_a_comparison_open_that_95_per_cent_would_tell():
    numbers = values(1.0 + 1.05 * stats.t.isf(0.025, 7) / np.sqrt(8))
    assert rule.tell(numbers, 1.0).state == "holds"
    assert rule.tell(numbers, 1.0, rule.levels(5, 1)).state == "open"
    assert rule.tell(2 - numbers, 1.0).state == "fails"
    assert rule.tell(2 - numbers, 1.0, rule.levels(4)).state == "open"


def test_fewer_than_six_finished_pairs_and_seeds_that_are_all_alike_are_not_judged():
    assert rule.tell(values(20.0, n=6), 1.0).state == "holds"
    assert rule.tell(values(20.0, n=5), 1.0).state == "not judged"
    lost = values(20.0, n=7).copy()
    lost[[1, 4]] = np.nan
    assert rule.tell(lost, 1.0).state == "not judged"
    assert rule.tell(np.full(8, 20.0), 1.0).state == "not judged"


def test_levels_are_those_of_a_partial_conjunction():
    assert rule.levels(4) == (0.025, 0.025 / 4)  # uncorrected to hold, simultaneous to fail
    assert rule.levels(5, 1) == (0.025 / 5, 0.025)
    assert rule.levels(4, 3) == (0.025 / 2, 0.025 / 3)
    assert rule.levels(4, tasks=2) == (0.025, 0.025 / 8)


# what must be said at every tied rate


def compared(*differences: float, weights=((1.0, -1.0),), gap: float = 0.0, sd: float = 0.5, lost: bool = False):
    """Arm 0 at three rates, of which validation prefers the first by `gap`, against arm 1, which has one best rate; by
    how much it is ahead at each rate. lost: one run at the second rate diverged, and all others there are better."""
    noise = np.random.default_rng(4).standard_normal((2, 3, 8))
    scores, validation = 50 + sd * (noise - noise.mean(axis=-1, keepdims=True)), np.full((2, 3, 8), 20.0)
    scores[0] += np.array(differences)[:, None]
    validation[:, 0] += values(10.0, 0.3)
    validation[0, 1] = validation[0, 0] - values(gap, 1.0)
    if lost:
        scores[0, 1, 3], validation[0, 1, 3] = np.nan, 10.0
    return rule.compare(np.array(weights), scores, validation, 1.0, 1.0)


def test_what_a_comparison_says_must_be_said_at_the_tied_rates_that_speak_most_against_it():
    for differences, state in (((3, 3, -9), "holds"), ((3, 1, 3), "not judged"), ((-3, 3, 0), "not judged")):
        told, _, rates = compared(*differences)
        assert told.state == state
        assert told.mean == pytest.approx(differences[0])
        assert rates[0] == (1 if state == "not judged" else rates[0])
    assert compared(1, 3, 3, sd=2.0)[0].state == "open"  # nothing is said that another rate could take back
    assert compared(3, 1, 3, gap=1.5)[0].state == "holds"  # too far behind to be tied
    assert compared(3, 1, 3, weights=((-1.0, 1.0),))[0].state == "fails"
    assert compared(-3, -1, 3, weights=((-1.0, 1.0),))[0].state == "not judged"
    for other in (3, -3):
        assert compared(1.001, other, 1, sd=0.2)[0].state == "not judged"  # near, and something else at the other rate
        assert compared(0.999, other, 1, sd=0.2)[0].state == "not judged"
    told, _, rates = compared(-3, 1.0, 0, gap=-2.0, lost=True)  # luck with one run took the better rate away
    assert (told.state, rates.tolist()) == ("not judged", [1, 0])


def test_of_many_arms_all_are_moved_at_once():
    """Five arms against one: each alone takes a fifth of the lead back."""
    noise = np.random.default_rng(9).standard_normal((6, 2, 8))
    scores, validation = 50 + 0.3 * (noise - noise.mean(axis=-1, keepdims=True)), np.full((6, 2, 8), 50.0)
    validation += 0.3 * noise[:, ::-1]
    best = best_rate(validation)
    scores[np.arange(5), best[:5]] += 3.0
    weights = np.array([[0.2] * 5 + [-1.0]])
    told, _, rates = rule.compare(weights, scores, validation, 1.0, 1.0)
    assert told.mean == pytest.approx(3.0)
    assert (told.state, (rates[:5] != best[:5]).all()) == ("not judged", True)


def test_of_a_group_validation_chooses_and_a_tied_member_must_say_the_same():
    def group(promise: float, lead: float, lost: bool = False, absent: int = 0):
        """Two arms against a third: the first is 3 points ahead, the second `lead`; its validation is better by
        `promise`. lost: one of its runs diverged; absent: so many seeds it has not."""
        noise = np.random.default_rng(5).standard_normal((3, 1, 8))
        scores, validation = 50 + 0.5 * (noise - noise.mean(axis=-1, keepdims=True)), np.stack([values(50.0)[None]] * 3)
        scores[:2, 0] += np.array([3.0, lead])[:, None]
        validation[1, 0] = validation[0, 0] + values(promise, 0.6)
        if lost:
            scores[1, 0, 3], validation[1, 0, 3] = np.nan, 10.0
        scores[1, 0, :absent] = validation[1, 0, :absent] = np.nan
        weights = np.array([[1.0, 0, -1], [0, 1.0, -1]])
        alone = rule.compare(weights, scores, validation, 1.0, 1.0)
        rates = rule.compare(weights, np.stack([scores] * 2), np.stack([validation] * 2), 1.0, 1.0)[2]
        assert rates.tolist() == [alone[2].tolist()] * 2  # of two studies, as of one
        return alone

    told, member, _ = group(3.0, 9.0)
    assert (told.state, member, round(float(told.mean), 6)) == ("holds", 1, 9.0)
    told, member, _ = group(3.0, 9.0, absent=2)  # no arm is chosen because it has more seeds
    assert (told.state, member, told.n) == ("holds", 1, 6)
    assert group(-0.2, 9.0)[0].state == "holds"
    assert group(-3.0, 1.0)[0].state == "holds"
    for lost, promise in ((False, -0.2), (True, 0.2)):  # tied; behind by one unlucky run, tied where both finished
        told, member, _ = group(promise, 1.0, lost)
        assert (told.state, member) == ("not judged", 0)


# the word


@pytest.mark.parametrize("at_least", [None, 1, 3])
def test_a_claim_is_decided_by_how_many_hold_and_how_many_can(at_least):
    """Against the definition: whatever the undecided rows turn out to be."""
    m = 4
    u = at_least or m
    for states in itertools.product(("holds", "fails", "open", "near", "not judged"), repeat=m):

        def outcomes(*unsettled, states=states):
            """All that the claim could be if rows in these states were told; a row in another state settles nothing."""
            found = set()
            for told in itertools.product(("holds", "fails"), repeat=m):
                ends = [t if s in unsettled else s for s, t in zip(states, told, strict=True)]
                hold, fail = ends.count("holds"), ends.count("fails")
                found |= {"reproduced"} if hold >= u else {"contradicted"} if fail >= m - u + 1 else {"neither"}
            return found

        if outcomes() != {"neither"}:
            expected = outcomes().pop()
        elif outcomes("open") != {"neither"}:
            expected = "open"
        else:
            expected = "not judged" if outcomes("open", "not judged") != {"neither"} else "≈ threshold"
        assert rule.decide(np.array(states), at_least) == expected, states


def test_more_divergence_is_told_by_fishers_exact_test_from_one_side():
    for k, n, other_k, other_n in ((5, 12, 0, 12), (4, 12, 0, 12), (0, 12, 5, 12), (6, 8, 1, 8), (5, 8, 1, 8)):
        p = stats.fisher_exact([[k, n - k], [other_k, other_n - other_k]], alternative="greater").pvalue
        assert rule.more_often(k, n, other_k, other_n) == (p < 0.025)
    assert rule.more_often(5, 12, 0, 12)
    assert not rule.more_often(4, 12, 0, 12)
    assert not rule.more_often(0, 0, 3, 4)


@pytest.mark.parametrize(("margin", "sd", "levels"), [(1.0, 1.3, rule.levels(1)), (-2.0, 5.0, rule.levels(4))])
def test_so_many_seeds_would_tell_in_four_studies_of_five(margin, sd, levels):
    n = rule.seeds_to_tell(margin, sd, levels, 1.0)
    made = margin + sd * np.random.default_rng(6).standard_normal((4_000, n))
    told = np.isin(rule.tell(made + 1.0, 1.0, levels).state, ("holds", "fails", "near")).mean()
    assert 0.76 < told < 0.86
    assert rule.seeds_to_tell(0.0, 1.0, levels, 1.0) < 40  # it would be told to lie near the threshold
    assert rule.seeds_to_tell(0.0, 1.0, levels, 0.0) is None


def test_exact_intervals_and_tests_between_groups():
    assert intervals.clopper_pearson(0, 8) == pytest.approx((0, 1 - 0.025 ** (1 / 8)))
    assert intervals.clopper_pearson(8, 8, 0.9) == pytest.approx((0.05 ** (1 / 8), 1))
    assert intervals.fisher(8, 8, 0, 8) == pytest.approx(2 / 12870)
    assert intervals.fisher_above(8, 8, 0, 8) == pytest.approx(1 / 12870)
    with pytest.raises(ValueError, match="3 of 2"):
        intervals.clopper_pearson(3, 2)
    for n, level in itertools.product((1, 8, 96), (0.5, 0.95, 0.9998)):
        for k in range(n + 1):
            twin = stats.binomtest(k, n).proportion_ci(level, method="exact")
            assert intervals.clopper_pearson(k, n, level) == pytest.approx((twin.low, twin.high), abs=1e-9)
        assert intervals.t_quantile(n, (1 - level) / 2) == pytest.approx(stats.t.isf((1 - level) / 2, n))


# made-up studies


@pytest.mark.parametrize(
    ("claim", "truth", "low", "high"),
    [("H8s", "not above", 0.015, 0.035), ("H8s", "not below", 0.015, 0.035), ("H2s", "not above", 0.01, 0.035)],
)
def test_at_the_threshold_the_wrong_word_comes_as_often_as_its_level_says(claim, truth, low, high):
    found = calibration.simulate(claim, truth, studies=4_000)
    assert low < found[calibration.WRONG[truth]] < high


@pytest.mark.parametrize(("claim", "points"), [("H8s", 1.5), ("H2s", 3.0), ("H1s", 2.0)])
@pytest.mark.parametrize("scenario", ["tied rates", "diverges 10 %"])
def test_the_simulation_says_what_judge_says_of_the_same_studies_in_a_run_frame(claim, points, scenario):
    hypothesis, frame = find_claim(claim), skeleton(claim, 8, "smoke")
    setting = calibration.SCENARIOS[scenario]
    made = calibration.draw(hypothesis, points, setting, 8, 16, np.random.default_rng(7))
    orders = dict(arm=hypothesis.arms, lr=sorted(set(frame.lr)), seed=range(8))
    place = [frame[name].map({one: i for i, one in enumerate(order)}).to_numpy() for name, order in orders.items()]
    said = calibration.words(hypothesis, made)
    for i, word in enumerate(said):
        test, validation, diverged = (part[i][tuple(place)] for part in made)
        runs = frame.assign(test_accuracy=test / 100, best_val_accuracy=validation / 100, chance=0.1)
        verdict = judge(hypothesis, runs.assign(status=np.where(diverged, "diverged", "ok").astype(object)))
        assert verdict.verdict == word, (i, verdict.caveats)
    assert len(set(said)) > 1


def test_the_planted_means_are_what_they_say():
    for name, truth in itertools.product(calibration.WHO, ("not above", "not below", 1.0, 4.0)):
        claim = CLAIMS[name]
        found, wanted = calibration.means(claim, truth), calibration.targets(claim, truth)
        for group, value in zip(calibration.deciding(claim), wanted, strict=True):
            for comparison in group:
                total = sum(weight * found[arm] for arm, weight in comparison.weights.items())
                assert total == pytest.approx(claim.threshold_of(comparison) + value)


@pytest.mark.parametrize("scenario", list(calibration.SCENARIOS))
def test_a_made_up_study_has_the_means_and_the_likeness_that_are_planted(scenario):
    setting, claim = calibration.SCENARIOS[scenario], CLAIMS["H8s"]
    made = calibration.draw(claim, 5.0, setting, 8, 600, np.random.default_rng(8))
    wanted = np.array(list(calibration.means(claim, 5.0).values()))
    best = made.test[:, :, 1]
    assert best.mean(axis=(0, 2)) == pytest.approx(wanted, abs=0.25)
    rate = made.diverged.mean(axis=(0, 2, 3))
    weighs = np.array([claim.comparisons[0].weights.get(arm, 0) > 0 for arm in claim.arms])
    assert rate[~weighs].max() == 0
    assert rate[weighs] == pytest.approx([setting.diverges] * weighs.sum(), abs=0.03)
    slope, sharp = (made.test[:, :, 1] - made.test[:, :, 0]).mean(axis=(0, 2)), setting.curve[1] - setting.curve[0]
    assert slope[weighs] == pytest.approx(0 if scenario == "flat against sharp" else sharp, abs=0.25)
    assert slope[~weighs] == pytest.approx(sharp, abs=0.25)  # what an arm loses at another rate
    other = calibration.draw(claim, "not below", setting, 8, 600, np.random.default_rng(9)).test[:, 1]
    lost = (other[:, 1] - other[:, 0]).mean()  # of the side that could win by luck
    assert lost == pytest.approx(0 if scenario == "flat against sharp" else sharp, abs=0.25)
    noise = made.test[:, :, 0] - made.test[:, :, 2]  # the level of a seed drops out
    assert (np.median(noise.std(axis=2).max(axis=1) / noise.std(axis=2).min(axis=1)) > 4) == (scenario == "unequal")
    assert ((abs(noise) > 5 * noise.std()).mean() > 3e-4) == (scenario in ("unequal", "t3"))
    assert (made.diverged.any(axis=2) != made.diverged.all(axis=2)).any() == scenario.startswith("diverges")
    if scenario in ("plain", "t3", "larger sd"):
        noise = [part[:, 0, 1] - part.mean(axis=(1, 2)) for part in (made.test, made.validation)]
        assert np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1] == pytest.approx(setting.alike, abs=0.08)
