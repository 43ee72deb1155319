"""Tuning inside the interval: cross-fitted rates, grids that grow, divergence judged by rate; and what is missing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import mambanorm as mn
from mambanorm.claims import CLAIMS, calibrate, judge
from mambanorm.claims.effects import half_width
from mambanorm.claims.evidence import Evidence, overlap
from mambanorm.claims.needed import chosen_lr, missing, needed
from mambanorm.claims.tuning import crossfit, edge, grow, out_of_range
from mambanorm.study.experiments import all_rates, lr_grid
from mambanorm.study.intervals import t_quantile

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
            values = accuracy + 0.001 * frame.seed + (0.3 if arm == PROPOSAL else 0.0)
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
    assert (paired.failed[0], paired.tried[0]) == (1, 24)
    every = frame.assign(status=frame.status.mask(frame.arm == PROPOSAL, "diverged"))
    scores = Evidence(every, SCALE).tuned((PROPOSAL,), "digits").columns["score"][0]
    assert scores.tolist() == pytest.approx([10.0] * 8)


def test_a_rate_that_is_too_high_is_not_held_against_an_arm():
    diverged = np.zeros((2, 3, 4))
    diverged[:, 2, :2] = 1  # half of the runs at the highest rate
    diverged[1, 1, 0] = 1
    choice = np.array([[0, 1, 1, 1], [2, 1, 1, 1]])
    assert out_of_range(diverged, choice).tolist() == [[False, False, True], [False, False, False]]


def test_a_side_that_diverges_more_often_does_not_win_by_it():
    frame = made_up(effects={PROPOSAL: 30.0}, sd=0.5)
    one = (frame.arm == PROPOSAL) & (frame.lr == RATES[0]) & (frame.seed == 5)
    verdict = judge("H8s", frame.assign(status=frame.status.mask(one, "diverged")))
    assert judge("H8s", frame).verdict == "reproduced"
    assert verdict.verdict == "inconclusive"
    assert any("diverged more often (NormVary→GN 1 runs): it cannot win by it" in text for text in verdict.caveats)
    other = (frame.arm == ORIGINAL) & (frame.lr == RATES[0]) & (frame.seed == 5)
    assert judge("H8s", frame.assign(status=frame.status.mask(one | other, "diverged"))).verdict == "reproduced"


@pytest.mark.parametrize(("cost", "k", "tried"), [(40.0, 0, 24), (70.0, 0, 24), (40.0, 0, 96), (40.0, 1, 24)])
def test_luck_with_divergence_and_with_the_mean_come_together_at_most_at_the_level(cost, k, tried):
    error, n, level = 1.3, 8, 0.025
    width = half_width(error, n, level, ((cost, k, tried),))
    for p in np.linspace(k / tried, 0.6, 200):
        unseen = stats.binom.cdf(k, tried, p)
        lucky = stats.t.sf((width - (p - k / tried) * cost) / error, n - 1)
        assert (unseen if p > k / tried else 1.0) * lucky <= level * 1.02  # between the rates at which it is computed
    assert width >= t_quantile(n - 1, level) * error
    assert half_width(error, n, level, ()) == pytest.approx(t_quantile(n - 1, level) * error)


def test_the_rate_that_stays_unseen_costs_less_the_more_runs_there_are():
    widths = [half_width(1.0, 8, 0.025, ((40.0, 0, tried),)) for tried in (8, 24, 48, 96, 1000)]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] == pytest.approx(t_quantile(7), rel=0.02)


# the interval


def test_an_interval_is_that_of_t_widened_by_the_overlap_of_the_splits():
    verdict = judge("H3s", made_up("H3s", sd=1.0))
    assert overlap("digits", SCALE) == pytest.approx(40 / 120)
    assert overlap("listops", "quick") == pytest.approx(0.1)
    assert overlap("imdb", "paper") == pytest.approx(1.0, rel=0.2)
    (main,) = [row for row in verdict.records if row["decides"]]
    values = np.array(main["per_seed"])
    error = values.std(ddof=1) * np.sqrt(1 / 8 + 1 / 3)
    plain = t_quantile(7) * error
    assert main["effect"] - main["low"] >= plain
    assert main["effect"] - main["low"] <= plain + 0.2 * 60 * (1 - 0.025 ** (1 / 24))  # one arm of five, at worst
    assert verdict.effect == pytest.approx(values.mean())


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
    assert named == [f"seed {k} left out: RMSN→None at learning rate {RATES[0]:g} not run" for k in (6, 7)]
    assert {c.seed for c in missing("H8s", gone, 8, ["digits"], SCALE)} == {6, 7}


def test_a_failed_run_is_a_missing_run():
    frame = made_up(effects={PROPOSAL: 30.0}, sd=0.5)
    hit = (frame.arm == PROPOSAL) & (frame.seed < 3)
    failed = frame.assign(status=frame.status.mask(hit, "failed"), test_accuracy=frame.test_accuracy.mask(hit))
    verdict = judge("H8s", failed)
    assert (verdict.verdict, verdict.n_seeds) == ("sketch", 5)
    assert sum("left out" in text for text in verdict.caveats) == 3


def test_two_protocols_in_one_frame_are_refused():
    frame = made_up()
    with pytest.raises(ValueError, match="runs of the protocols 1 and 2: judge one at a time"):
        judge("H8s", frame.assign(protocol=np.where(frame.seed < 4, 1, 2)))
    with pytest.raises(ValueError, match=r"recorded under protocol 1, this is protocol 2.*version_1"):
        judge("H8s", frame.assign(protocol=1))
    assert judge("H8s", frame.assign(protocol=2)).protocol == 2


def test_test_seeds_from_100_on_are_refused():
    with pytest.raises(ValueError, match=r"test seeds are 0 to 99, got \[100\]"):
        needed("H1s", [0, 100], scale=SCALE)
