"""Tuning inside the interval: cross-fitted rates, grids that grow, divergence judged by rate; and what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import mambanorm as mn
from mambanorm.claims import CLAIMS, calibrate, effects, judge
from mambanorm.claims.bounds import Noise, Risk, half_width
from mambanorm.claims.evidence import Evidence, splits_of
from mambanorm.claims.needed import chosen_lr, missing, needed
from mambanorm.claims.parts import parts_of
from mambanorm.claims.protocol import SAME_RUNS, STABLE, VERSION
from mambanorm.claims.tuning import crossfit, edge, grow, rates_that_count
from mambanorm.study.experiments import all_rates, lr_grid
from mambanorm.study.intervals import t_interval, t_quantile

SCALE = "smoke"
RATES = lr_grid("digits", SCALE)
PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"


def made_up(claim_id="H8s", effects=None, *, seeds=8, rng=0, sd=1.0, diverging=(), **scenario) -> pd.DataFrame:
    setting = calibrate.Scenario("test", sd=sd, **scenario)
    frame = calibrate.skeleton(claim_id, seeds, SCALE)
    return calibrate.study(frame, effects or {}, np.random.default_rng(rng), setting, diverging)


def put(frame: pd.DataFrame, arm: str, lr: float, *, seed: int | None = None, **values) -> pd.DataFrame:
    """The frame with other numbers for one arm at one rate (of one seed)."""
    rows = (frame.arm == arm) & (frame.lr == lr) & ((frame.seed == seed) | (seed is None))
    return frame.assign(**{name: frame[name].mask(rows, value) for name, value in values.items()})


# cross-fitting


def test_a_seeds_rate_is_the_best_of_the_other_seeds():
    rng = np.random.default_rng(1)
    validation, usable = rng.random((4, 5, 7)).round(1), rng.random((4, 5)) < 0.8
    usable[:, 2] = True
    found = crossfit(validation, usable, own=2)
    for arm in range(4):
        rates = [rate for rate in range(5) if usable[arm, rate]]
        for seed in range(7):
            others = [k for k in range(7) if k != seed]
            mean = {rate: round(np.mean([validation[arm, rate, k] for k in others]), 9) for rate in rates}
            best = max(rates, key=lambda rate: (mean[rate], -rate))  # the smaller of equals
            assert found.choice[arm, seed] == best
            assert found.promise[arm, seed] == pytest.approx(mean[best])
        assert found.chosen[arm] == max(rates, key=lambda rate: (round(validation[arm, rate].sum(), 9), -rate))


def test_no_run_chooses_the_rate_that_it_is_judged_at():
    frame = made_up(sd=0.0, shared=0.0)
    lifted = put(frame, PROPOSAL, RATES[0], seed=3, best_val_accuracy=0.99)
    rates = {name: Evidence(f, SCALE).tuned((PROPOSAL,), "digits").lr[0] for name, f in (("a", frame), ("b", lifted))}
    assert rates["a"].tolist() == [RATES[1]] * 8
    assert rates["b"][3] == RATES[1]  # seed 3 itself is judged where the others put it
    assert set(np.delete(rates["b"], 3)) == {RATES[0]}


def test_a_single_seed_takes_the_tasks_own_rate():
    paired = Evidence(made_up(seeds=1, curve=(9.0, 0.0, 9.0)), SCALE).tuned((PROPOSAL,), "digits")
    assert paired.lr.tolist() == [[mn.base_config("digits", SCALE).lr]]


def test_the_arm_of_each_group_is_chosen_by_the_other_seeds_too():
    """All four candidates at the boundary: chosen on the same numbers the best of them looks better than it is."""
    group = CLAIMS["H5s"].comparisons[0].group
    rng, honest, naive = np.random.default_rng(2), [], []
    frame, setting = calibrate.skeleton("H5s", 8, SCALE), calibrate.Scenario("noisy", sd=3.0)
    effects = calibrate.means(CLAIMS["H5s"], 1.0)
    for _ in range(40):
        runs = calibrate.study(frame, effects, rng, setting)
        row = next(r for r in judge("H5s", runs).records if r["comparison"].endswith("BN→BN"))
        honest.append(row["effect"])
        own = runs[runs.lr == RATES[1]].pivot(index="seed", columns="arm", values="test_accuracy") * 100
        four = [c.weights for c in CLAIMS["H5s"].comparisons if c.group == group]
        naive.append(max(own[max(w, key=w.get)].mean() for w in four) - own["BN>SSM>BN"].mean())
    assert np.mean(honest) == pytest.approx(1.0, abs=4 * np.std(honest) / np.sqrt(len(honest)))
    assert np.mean(naive) > 1.5


# the grid


def test_every_arm_gets_the_same_rates_with_every_seed():
    for claim_id in ("H1s", "H5s", "H8s"):
        configs = needed(claim_id, 8, ["digits"], SCALE)
        cells = {(c.arm, c.lr): set() for c in configs}
        for config in configs:
            assert config.role == "test"
            cells[config.arm, config.lr].add(config.seed)
        assert set(cells) == {(arm, rate) for arm in CLAIMS[claim_id].arms for rate in RATES}
        assert all(seeds == set(range(8)) for seeds in cells.values())


@pytest.mark.parametrize(("curve", "end", "further"), [((0, 4, 9), 1, 5), ((9, 4, 0), -1, 1), ((0, 0, 0.5), 0, None)])
def test_a_grid_grows_at_the_end_that_is_still_better_by_more_than_the_smallest_effect(curve, end, further):
    frame = made_up(sd=0.3, curve=curve)
    paired = Evidence(frame, SCALE).tuned((PROPOSAL, ORIGINAL), "digits")
    assert paired.edge.tolist() == [end, end]
    asked = [c for c in needed("H8s", 8, ["digits"], SCALE, frame) if c.lr not in RATES]
    assert {c.lr for c in asked} == (set() if further is None else {all_rates("digits", SCALE)[further]})
    assert {c.arm for c in asked} == (set() if further is None else set(CLAIMS["H8s"].arms))
    assert len(missing("H8s", frame, 8, ["digits"], SCALE)) == len(asked)


def grown(frame: pd.DataFrame, arm: str, rate: float, accuracy: float) -> pd.DataFrame:
    """The frame with the runs of an arm at a further rate."""
    mine = frame[(frame.arm == arm) & (frame.lr == RATES[-1])]
    ids = [mn.base_config("digits", SCALE, arm=arm, seed=int(seed), lr=rate).run_id for seed in mine.seed]
    more = mine.assign(run_id=ids, lr=rate, test_accuracy=accuracy, best_val_accuracy=accuracy)
    return pd.concat([frame, more.astype({"run_id": object})], ignore_index=True)


def test_a_further_rate_counts_only_where_the_rule_asks_for_it():
    rising, calm = made_up(sd=0.3, curve=(0.0, 4.0, 9.0)), made_up(sd=0.3)
    rate = all_rates("digits", SCALE)[5]
    for frame, used in ((rising, True), (calm, False)):
        paired = Evidence(grown(frame, PROPOSAL, rate, 0.9), SCALE).tuned((PROPOSAL,), "digits")
        assert (rate in paired.grids[0]) == used
        assert (paired.chosen[0] == rate) == used
    lost = grown(rising, PROPOSAL, rate, 0.9)
    lost = lost[~((lost.lr == rate) & (lost.seed == 2))]
    assert rate not in Evidence(lost, SCALE).tuned((PROPOSAL,), "digits").grids[0]
    assert [c.seed for c in missing("H8s", lost, 8, ["digits"], SCALE) if (c.arm, c.lr) == (PROPOSAL, rate)] == [2]


def test_a_recording_that_was_broken_off_is_asked_for_what_it_lacks():
    """Some arms without a run, some with some of their rates."""
    frame = made_up(sd=0.3)
    begun = frame[(frame.arm == PROPOSAL) | ((frame.arm == ORIGINAL) & (frame.lr == RATES[0]))]
    for part, lacks in ((begun, 2 * 8), (begun[begun.arm == PROPOSAL], 3 * 8)):
        lacking = missing("H8s", part, 8, ["digits"], SCALE)
        assert sum(c.arm == ORIGINAL for c in lacking) == lacks
        assert not any(c.arm == PROPOSAL for c in lacking)


def test_growing_ends_with_the_grid():
    validation = np.arange(5.0)[:, None] * 5 + np.random.default_rng(0).random((5, 6)) / 10
    usable, looked = np.array([True, True, True, False, False]), []

    def look(i):
        looked.append(i)
        return validation[i]

    grow(validation, usable, look)
    assert looked == [3, 4]
    assert usable.all()
    assert edge(validation, usable) == 1


def test_an_arm_that_may_still_improve_decides_nothing_against_itself():
    """At the edge of its grid the worse side may catch up, and a better one that is there loses nothing by it."""
    apart = made_up(effects={PROPOSAL: 30.0}, sd=0.3)
    for arm, effect, told in ((ORIGINAL, 30.0, "not testable"), (PROPOSAL, 30.0, "reproduced")):
        frame = made_up(effects={PROPOSAL: effect}, sd=0.3)
        for rate, accuracy in zip(RATES, (0.30, 0.34, 0.40), strict=True):
            values = accuracy + 0.001 * frame.seed + (0.45 if arm == PROPOSAL else 0.0)
            rows = (frame.arm == arm) & (frame.lr == rate)
            frame = frame.assign(
                test_accuracy=frame.test_accuracy.mask(rows, values + 0.01 * np.sin(frame.seed)),
                best_val_accuracy=frame.best_val_accuracy.mask(rows, values),
            )
        verdict = judge("H8s", frame)
        assert verdict.verdict == told, (arm, verdict.caveats)
        assert any("still rising at the edge of its grid" in text for text in verdict.caveats)
    assert judge("H8s", apart).verdict == "reproduced"


def test_the_chosen_rate_is_that_of_all_seeds_and_an_untuned_arm_has_none():
    frame = made_up(sd=0.1)
    assert chosen_lr(frame, PROPOSAL, "digits") == RATES[1]
    assert chosen_lr(put(frame, PROPOSAL, RATES[0], best_val_accuracy=0.9), PROPOSAL, "digits") == RATES[0]
    with pytest.raises(ValueError, match=r"not tuned on digits: .* lacks learning rate"):
        chosen_lr(frame[frame.lr != RATES[0]], PROPOSAL, "digits")
    with pytest.raises(ValueError, match="is not tuned on digits: not run: IN→IN"):
        chosen_lr(frame, "IN>SSM>IN", "digits")


# divergence


def test_a_diverged_run_is_scored_as_chance_in_validation_too():
    frame = made_up(sd=0.1, curve=(0.0, 0.0, -4.0))
    hit = (frame.arm == PROPOSAL) & (frame.lr == RATES[0]) & (frame.seed == 3)
    frame = frame.assign(status=frame.status.mask(hit, "diverged"))  # its accuracies stay high: they must not be read
    paired = Evidence(frame, SCALE).tuned((PROPOSAL,), "digits")
    assert set(np.delete(paired.lr[0], 3)) == {RATES[1]}
    assert paired.diverged[0].tolist() == [1, 24]
    every = frame.assign(status=frame.status.mask(frame.arm == PROPOSAL, "diverged"))
    scores = Evidence(every, SCALE).tuned((PROPOSAL,), "digits").columns["score"][0]
    assert scores.tolist() == pytest.approx([10.0] * 8)


def test_rates_count_up_to_the_chosen_ones_and_above_as_long_as_nothing_diverges():
    usable = np.array([[True] * 5] * 4)
    usable[3, 3] = False
    diverged = np.zeros((4, 5))
    diverged[1, 3], diverged[2, 4], diverged[0, 0] = 1, 2, 8
    choice = np.array([[1, 2], [2, 2], [2, 1], [2, 2]])
    counted = rates_that_count(diverged, usable, choice)
    assert counted.astype(int).tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]


def test_more_divergence_at_a_rate_that_is_not_chosen_never_helps():
    frame, lows = made_up(effects={PROPOSAL: 14.0}, sd=0.6), []
    for k in (0, 1, 3, 5, 8):
        hit = (frame.arm == PROPOSAL) & (frame.lr == RATES[2]) & (frame.seed < k)
        verdict = judge("H8s", frame.assign(status=frame.status.mask(hit, "diverged")))
        lows.append(verdict.ci[0])
        assert any(f"NormVary→GN diverged in {k} of 24 runs" in text for text in verdict.caveats) == (k > 0)
    assert lows[1] < lows[0] - 0.3  # 16 calm runs speak for it, not 24
    cost = Evidence(frame, SCALE).tuned((PROPOSAL,), "digits").columns["score"][0].mean() - 10
    noise = Noise(np.std(verdict.per_seed, ddof=1), splits_of("digits", SCALE).ratio, 0.0)
    widths = [half_width(noise, 8, 0.025, (Risk(cost, 0.0, 0.0, 0, tried),)) for tried in (24, 16)]
    assert lows[0] - lows[1] == pytest.approx(widths[1] - widths[0])
    assert lows[1:] == [lows[1]] * 4


def test_an_arm_that_diverges_where_it_is_judged_wins_only_what_it_is_ahead_by():
    frame = made_up(effects={PROPOSAL: 40.0}, sd=0.2, shared=0.0, seeds=16, curve=(-20.0, 0.0, -20.0))
    one = (frame.arm == PROPOSAL) & (frame.lr == RATES[1]) & (frame.seed == 5)
    calm, hit = judge("H8s", frame), judge("H8s", frame.assign(status=frame.status.mask(one, "diverged")))
    assert calm.verdict == "reproduced"
    assert hit.effect == pytest.approx(calm.effect - (90 - 10) / 16, abs=0.2)
    assert hit.ci[0] < calm.ci[0] - 10  # chance scores widen it, and a rate that was seen may be larger yet


@pytest.mark.parametrize(("cost", "tried", "sd"), [(40.0, 16, 2.6), (70.0, 24, 2.6), (40.0, 24, 0.2), (40.0, 120, 0.2)])
def test_luck_with_divergence_and_with_the_mean_come_together_at_most_at_the_level(cost, tried, sd):
    """Summed over every number of divergences that may be seen, at every rate: 120 runs are those of five arms."""
    noise, n, level = Noise(sd, 1 / 3, 0.0), 8, 0.025
    counts, error = np.arange(tried + 1), noise.error(n)
    risks = [Risk(cost, 0.0, 0.3 * k / tried, k, tried) for k in counts]  # fewer in the mean than among all runs
    widths = np.array([half_width(noise, n, level, (risk,)) for risk in risks])
    for p in np.linspace(0.01, 0.4, 60):
        short = np.array([cost * (p - risk.seen) for risk in risks])
        wrong = stats.binom.pmf(counts, tried, p) * stats.t.sf((widths - short) / error, n - 1)
        none = p > STABLE or tried >= 36  # no divergence at all: the two next tests
        assert wrong[int(none) :].sum() <= level * 1.02, p  # between the rates at which it is computed
    assert (widths >= t_quantile(n - 1, level) * error).all()
    assert half_width(noise, n, level, ()) == pytest.approx(t_quantile(n - 1, level) * error)


@pytest.mark.parametrize(("cost", "tried"), [(40.0, 8), (40.0, 24), (70.0, 30)])
def test_where_no_divergence_was_seen_there_is_room_for_one_run_in_ten(cost, tried):
    noise, n, level = Noise(2.6, 1 / 3, 0.0), 8, 0.025
    width = half_width(noise, n, level, (Risk(cost, 0.0, 0.0, 0, tried),))
    for p in np.linspace(0, STABLE, 200):
        lucky = stats.t.sf((width - p * cost) / noise.error(n), n - 1)
        assert (1 - p) ** tried * lucky <= level * 1.02


def test_an_arm_without_divergence_in_36_runs_is_stable():
    """A rate of one in ten stays unseen in 36 runs in at most 2.5 % of studies."""
    assert (1 - STABLE) ** 36 <= 0.025 < (1 - STABLE) ** 35
    noise = Noise(1.0, 0.0, 0.0)
    widths = [half_width(noise, 8, 0.025, (Risk(40.0, 0.0, 0.0, 0, tried),)) for tried in (8, 16, 24, 35, 36, 96)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-2:] == [pytest.approx(t_quantile(7) / np.sqrt(8))] * 2
    assert widths[-3] > 1.5 * widths[-1]


@pytest.mark.parametrize("side", [1, -1])
def test_what_divergence_costs_a_spread_is_what_it_does_to_the_variance(side):
    rng = np.random.default_rng(5)
    frame = made_up("H7s", {arm: 6 * rng.random() for arm in CLAIMS["H7s"].arms}, sd=0.3)
    paired = Evidence(frame, SCALE).tuned(CLAIMS["H7s"].arms, "digits")
    part = parts_of(CLAIMS["H7s"], paired)[0]
    means, lost = paired.columns["score"].mean(axis=1), (paired.columns["score"] - 10).mean(axis=1)
    sides = [np.flatnonzero((sign * part.weights > 0).all(axis=1)) for sign in (1, -1)]

    def gap(values):
        return np.var(values[sides[0]], ddof=1) - np.var(values[sides[1]], ddof=1)

    risks = effects._risks(paired, part, side)
    for risk, arm in zip(risks, np.concatenate(sides), strict=True):
        fallen = means.copy()
        fallen[arm] -= 0.1 * lost[arm]
        assert 0.1 * risk.linear + 0.01 * risk.square == pytest.approx(side * (gap(means) - gap(fallen)))


# the interval


def test_bounds_are_those_of_t_widened_by_the_overlap_of_the_splits():
    verdict = judge("H3s", made_up("H3s", sd=1.0))
    (main,) = [row for row in verdict.records if row["decides"]]
    values = np.array(main["per_seed"])
    plain = t_quantile(7) * values.std(ddof=1) * np.sqrt(1 / 8 + 1 / 3)
    assert main["effect"] - main["low"] >= plain
    assert main["effect"] - main["low"] <= plain + 0.2 * 60 * (1 - 0.025 ** (1 / 16))  # one arm of five, at worst
    assert verdict.effect == pytest.approx(values.mean())
    assert main["plain"] == pytest.approx(t_interval(values))


def test_what_the_splits_of_a_task_share():
    assert splits_of("digits", SCALE) == (40, pytest.approx(40 / 120), False)
    assert splits_of("digits", "quick") == (359, pytest.approx(359 / 1079), False)
    assert splits_of("listops", "quick") == (2_000, pytest.approx(0.1), False)
    assert splits_of("listops", "lab") == (2_000, 0.0, True)  # the same test rows for every seed
    assert splits_of("imdb", "paper").fixed
    assert splits_of("cifar10", "paper") == (10_000, 0.0, True)


def test_a_test_set_that_all_seeds_share_has_noise_that_no_seed_takes_away():
    few, many = Noise(1.0, 0.0, 4.0).error(8), Noise(1.0, 0.0, 4.0).error(1_000)
    assert few == pytest.approx(np.sqrt(1 / 8 + 4))
    assert many == pytest.approx(2.0, rel=0.01)


# what is missing


def test_what_a_frame_lacks_is_named_and_never_guessed():
    frame = made_up(effects={PROPOSAL: 30.0}, sd=0.5)
    lost = {
        "rate": (
            frame[~((frame.arm == PROPOSAL) & (frame.lr == RATES[2]))],
            "not tuned: NormVary→GN lacks learning rate",
        ),
        "arm": (frame[frame.arm != PROPOSAL], "not run: NormVary→GN"),
        "seeds": (frame[frame.seed < 5], "5 seeds, fewer than 8"),
        "tuning": (frame[frame.lr == RATES[1]], "no arm is tuned: one learning rate for all"),
    }
    for what, (part, text) in lost.items():
        verdict = judge("H8s", part)
        assert verdict.verdict == ("not run" if what == "arm" else "sketch"), what
        assert any(text in caveat for caveat in verdict.caveats), (what, verdict.caveats)
    gone = frame[~((frame.arm == ORIGINAL) & (frame.lr == RATES[0]) & frame.seed.isin([6, 7]))]
    verdict = judge("H8s", gone)
    assert (verdict.verdict, verdict.n_seeds) == ("reproduced", 6)
    named = [text for text in verdict.caveats if "left out" in text]
    assert named == [f"seeds 6, 7 left out: RMSN→None at learning rate {RATES[0]:g} not run"]
    assert {c.seed for c in missing("H8s", gone, 8, ["digits"], SCALE)} == {6, 7}


@pytest.mark.parametrize("lost", ["failed", "nan", "inf"])
def test_a_run_without_a_finite_number_is_a_missing_run(lost):
    frame = made_up(effects={PROPOSAL: 30.0}, sd=0.5)
    hit = (frame.arm == PROPOSAL) & (frame.seed < 3) & (frame.lr == RATES[0])
    if lost == "failed":
        frame = frame.assign(status=frame.status.mask(hit, "failed"), test_accuracy=frame.test_accuracy.mask(hit))
    else:
        frame = frame.assign(best_val_accuracy=frame.best_val_accuracy.mask(hit, float(lost)))
    verdict = judge("H8s", frame)
    assert (verdict.verdict, verdict.n_seeds) == ("sketch", 5)
    assert [text.split(":")[0] for text in verdict.caveats if "left out" in text] == ["seeds 0, 1, 2 left out"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(test_accuracy=51.0), "test_accuracy is a fraction from 0 to 1, got 51 in run .*: divide per cent by 100"),
        (dict(chance=10.0), "chance is a fraction from 0 to 1, got 10"),
        (dict(best_val_accuracy=-0.5), "best_val_accuracy is a fraction from 0 to 1, got -0.5"),
        (dict(status="OK"), "status of a run is one of ok, diverged, failed, got 'OK'"),
        (dict(seed=0.5), "a seed is a whole number, got 0.5"),
        (dict(seed=None), "a seed is a whole number, got"),
        (dict(protocol="v2"), f"recorded under protocol v2, this is protocol {VERSION}"),
    ],
)
def test_a_frame_that_says_what_no_run_can_have_is_refused(change, said):
    frame = made_up()
    name, value = next(iter(change.items()))
    column = frame[name].astype(object) if name in frame else pd.Series([None] * len(frame), dtype=object)
    column.iloc[3] = value
    with pytest.raises(ValueError, match=said):
        judge("H8s", frame.assign(**{name: column}))


def test_of_two_rows_of_a_run_the_one_with_its_summaries_counts_in_any_order():
    frame = calibrate.skeleton("H12s", 8, SCALE).assign(
        status="ok", test_accuracy=0.5, best_val_accuracy=0.5, chance=0.1
    )
    told = frame.assign(
        unevenness=frame.arm.map(lambda arm: 0.3 if arm == "None>SSM>None" else 0.1) + 0.001 * frame.seed
    )
    both = [judge("H12s", pd.concat(pair)).verdict for pair in ([frame, told], [told, frame])]
    assert both == [judge("H12s", told).verdict] * 2


def test_two_protocols_in_one_frame_are_refused():
    frame = made_up()
    with pytest.raises(ValueError, match="runs of the protocols 1 and 2: judge one at a time"):
        judge("H8s", frame.assign(protocol=np.where(frame.seed < 4, 1, 2)))
    with pytest.raises(ValueError, match=rf"recorded under protocol 1, this is protocol {VERSION}: record anew"):
        judge("H8s", frame.assign(protocol=1))
    for version in SAME_RUNS:  # version 3 judges the runs of version 2
        assert judge("H8s", frame.assign(protocol=version)).protocol == VERSION


def test_summaries_of_version_1_are_not_read_as_those_of_today():
    frame = calibrate.skeleton("H12s", 8, SCALE).assign(
        status="ok", test_accuracy=0.5, best_val_accuracy=0.5, chance=0.1
    )
    told = frame.assign(
        unevenness=frame.arm.map(lambda arm: 0.3 if arm == "None>SSM>None" else 0.1) + 0.001 * frame.seed
    )
    assert judge("H12s", told).verdict == "reproduced"
    assert judge("H12s", told.assign(growth_train=0.0)).verdict == "not run"


def test_test_seeds_from_100_on_are_refused():
    with pytest.raises(ValueError, match=r"test seeds are 0 to 99, got \[100\]"):
        needed("H1s", [0, 100], scale=SCALE)
