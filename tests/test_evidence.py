"""What a run frame tells of a claim's arms: one rate an arm, runs that finish, how often they do not, what is
missing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import mambanorm as mn
from mambanorm.claims import CLAIMS, judge
from mambanorm.claims.evidence import Evidence, shared_rows
from mambanorm.claims.needed import chosen_lr, needed
from mambanorm.claims.protocol import SAME_RUNS, TRAINED_TASKS, VERSION
from mambanorm.runs.recorded_results import own_rate, recorded
from mambanorm.study.experiments import all_rates, lr_grid
from tests.planted import made_up, where

SCALE = "smoke"
RATES = lr_grid("digits", SCALE)
PROPOSAL, ORIGINAL = "NormVary>SSM>GN", "RMSN>SSM>None"


def of(frame: pd.DataFrame, arm: str, lr: float | None = None, seeds=None) -> pd.Series:
    """The rows of an arm, at one rate, of some seeds."""
    rows = (frame.arm == arm) & ((frame.lr == lr) | (lr is None))
    return rows if seeds is None else rows & frame.seed.isin(seeds)


def missing(frame: pd.DataFrame) -> list[mn.RunConfig]:
    """The runs that H8s still needs on digits with eight seeds."""
    asked = needed("H8s", 8, ["digits"], SCALE, frame)
    return [config for config in asked if config.run_id not in set(frame.run_id)]


# one rate an arm


def test_the_verdicts_and_the_lessons_have_one_rate_for_every_arm():
    frame = recorded("evening")
    evidence, compared = Evidence(frame, "evening"), 0
    for task in TRAINED_TASKS:
        for arm in sorted(set(frame.arm[frame.task == task])):
            runs = evidence.tuned((arm,), task)
            if not runs.gaps:
                lr, seeds = own_rate(task, arm, "evening")
                assert (runs.lr[0], runs.whole_seeds) == (lr, seeds), (task, arm)
                compared += 1
    assert compared > 80


def test_every_seed_has_the_rate_that_is_best_for_all():
    frame = made_up("H8s", sd=0.0, shared=0.0)
    lifted = where(frame, of(frame, PROPOSAL, RATES[0], [3]), best_val_accuracy=0.99)
    for one, rate in ((frame, 1), (lifted, 0)):
        assert Evidence(one, SCALE).tuned((PROPOSAL,), "digits").lr == chosen_lr(one, PROPOSAL, "digits") == RATES[rate]
    with pytest.raises(ValueError, match=r"not tuned on digits: .* lacks learning rate"):
        chosen_lr(frame[frame.lr != RATES[0]], PROPOSAL, "digits")
    with pytest.raises(ValueError, match="is not tuned on digits: not run: IN→IN"):
        chosen_lr(frame, "IN>SSM>IN", "digits")


def test_a_rate_that_is_tied_and_says_something_else_is_named():
    frame = made_up("H8s", {PROPOSAL: 12.0}, sd=0.5, curve=(-4.0, 0.0, 0.0))
    assert judge("H8s", frame).verdict == "reproduced"
    other = RATES[2] if Evidence(frame, SCALE).tuned((PROPOSAL,), "digits").lr == RATES[1] else RATES[1]
    rows = of(frame, PROPOSAL, other)
    lower = frame.assign(test_accuracy=frame.test_accuracy - 0.12 * rows)  # seen in the test alone
    verdict = judge("H8s", lower)
    assert (verdict.verdict, verdict.effect) == ("not judged", judge("H8s", frame).effect)
    assert verdict.reason.startswith(f"depends on the rate: NormVary→GN at {other:g} and not")


def test_the_best_of_a_group_is_chosen_by_validation_alone():
    frame = made_up("H5s", {f"{n1}>SSM>BN": 30.0 for n1 in ("LN", "GN")}, sd=0.5)
    better = where(frame, of(frame, "GN>SSM>BN"), best_val_accuracy=0.95, test_accuracy=0.60)
    row = next(r for r in judge("H5s", better).records if r["comparison"].endswith("BN→BN"))
    assert row["comparison"] == "GN→BN − BN→BN"
    assert row["effect"] == pytest.approx(10, abs=2)  # and not LN's 30, which the test alone would choose


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
    with pytest.raises(ValueError, match=r"test seeds are 0 to 99, got \[100\]"):
        needed("H1s", [0, 100], scale=SCALE)


@pytest.mark.parametrize(("curve", "end", "further"), [((0, 4, 9), 1, 5), ((9, 4, 0), -1, 1), ((0, 0, 0.5), 0, None)])
def test_a_grid_grows_at_the_end_that_is_still_better_by_more_than_the_smallest_effect(curve, end, further):
    frame = made_up("H8s", {PROPOSAL: 30.0}, sd=0.3, curve=curve)
    assert Evidence(frame, SCALE).tuned((PROPOSAL, ORIGINAL), "digits").edge.tolist() == [end, end]
    asked = [c for c in needed("H8s", 8, ["digits"], SCALE, frame) if c.lr not in RATES]
    assert {c.lr for c in asked} == (set() if further is None else {all_rates("digits", SCALE)[further]})
    assert {c.arm for c in asked} == (set() if further is None else set(CLAIMS["H8s"].arms))
    assert len(missing(frame)) == len(asked)
    verdict = judge("H8s", frame)
    assert verdict.verdict == ("not judged" if end else "reproduced")
    assert verdict.reason.startswith("still improving at the edge of its grid of rates: " if end else "")


def test_a_further_rate_counts_once_all_seeds_have_it_and_the_next_one_is_asked_for():
    frame, rate, after = made_up("H8s", sd=0.3, curve=(0.0, 4.0, 9.0)), *all_rates("digits", SCALE)[5:7]
    mine = frame[of(frame, PROPOSAL, RATES[-1])]
    ids = [mn.base_config("digits", SCALE, arm=PROPOSAL, seed=int(seed), lr=rate).run_id for seed in mine.seed]
    more = mine.assign(run_id=ids, lr=rate, test_accuracy=0.9, best_val_accuracy=0.9 + 0.001 * mine.seed)
    grown = pd.concat([frame, more.astype({"run_id": object})], ignore_index=True)
    evidence = Evidence(grown, SCALE)
    assert Evidence(made_up("H8s"), SCALE).further_rates([PROPOSAL], "digits") == []  # the best is no end
    assert evidence.tuned((PROPOSAL,), "digits").lr == rate
    assert evidence.further_rates([PROPOSAL], "digits") == [(PROPOSAL, rate), (PROPOSAL, after)]
    lost = grown[~((grown.lr == rate) & (grown.seed == 2))]
    assert Evidence(lost, SCALE).tuned((PROPOSAL,), "digits").lr == RATES[-1]
    asked = missing(lost)
    assert [c.seed for c in asked if (c.arm, c.lr) == (PROPOSAL, rate)] == [2]


def test_a_recording_that_was_broken_off_is_asked_for_what_it_lacks():
    """Some arms without a run, some with some of their rates."""
    frame = made_up("H8s", sd=0.3)
    begun = frame[of(frame, PROPOSAL) | of(frame, ORIGINAL, RATES[0])]
    for part, lacks in ((begun, 2 * 8), (begun[begun.arm == PROPOSAL], 3 * 8)):
        lacking = missing(part)
        assert sum(c.arm == ORIGINAL for c in lacking) == lacks
        assert not any(c.arm == PROPOSAL for c in lacking)


# trained to the end


def test_an_arm_that_is_best_in_its_last_steps_is_not_judged():
    frame = made_up("H8s", {PROPOSAL: 30.0}, sd=0.3, seeds=9)
    for late, word in ((3, "reproduced"), (4, "not judged")):  # of nine runs a third, and more
        last = np.where(of(frame, PROPOSAL, RATES[1]) & (frame.seed < late), 0.95, 0.9)
        verdict = judge("H8s", frame.assign(best_step=last * frame.steps))
        assert verdict.verdict == word
    assert verdict.reason == "still improving at the end of its steps: NormVary→GN (44 % of its runs)"
    beside = judge("H8s", frame.assign(best_step=np.where(frame.arm == "NormVary>SSM>None", 1.0, 0.5) * frame.steps))
    assert beside.verdict == "reproduced"  # it has no part in the decision


# runs that do not finish


def test_a_diverged_run_counts_as_chance_where_the_rate_is_chosen_and_not_at_all_where_arms_are_compared():
    frame = made_up("H8s", {PROPOSAL: 12.0}, sd=0.1, curve=(0.0, 0.0, -4.0))
    once = where(frame, of(frame, PROPOSAL, RATES[0], [3]), status="diverged")  # its accuracies must not be read
    runs = Evidence(once, SCALE).tuned((PROPOSAL,), "digits")
    assert runs.lr == RATES[1]
    assert runs.columns["validation"][0, list(runs.rates).index(RATES[0]), 3] == pytest.approx(10)
    calm = judge("H8s", once)
    lost = judge("H8s", where(once, of(once, PROPOSAL, seeds=[1, 5]), status="diverged"))
    assert (calm.n_seeds, lost.n_seeds) == (8, 6)
    assert lost.per_seed == tuple(np.delete(calm.per_seed, [1, 5]))
    assert lost.verdict == "reproduced"
    more = where(once, of(once, PROPOSAL, seeds=[1, 5]) | of(once, ORIGINAL, seeds=[2]), status="diverged")
    few = judge("H8s", more)
    assert (few.verdict, few.n_seeds) == ("not judged", 5)
    assert few.reason == "fewer than six seeds on which every compared run finished: 5"


def test_the_divergence_of_either_side_stands_beside_with_its_exact_interval_and_in_the_word_if_it_is_told():
    def lost(arm: str, seeds: int, ahead: float = 12.0):
        frame = made_up("H8s", {PROPOSAL: ahead}, sd=0.1, seeds=12)
        return judge("H8s", where(frame, of(frame, arm, seeds=range(seeds)), status="diverged"))

    verdict = lost(PROPOSAL, 4)
    assert verdict.said == verdict.verdict == "reproduced"
    assert verdict.stability == "diverged at their rates: NormVary→GN 4 of 12 [10, 65 %], RMSN→None 0 of 12 [0, 26 %]"
    often = lost(PROPOSAL, 5)
    assert (often.verdict, often.n_seeds) == ("reproduced", 7)
    assert often.said == "reproduced, but NormVary→GN diverges more often"
    assert often.said in often.brief
    assert lost(ORIGINAL, 5).said == "reproduced"  # that speaks for the claim
    assert lost(ORIGINAL, 5, -12.0).said == "contradicted, but RMSN→None diverges more often"
    assert lost(PROPOSAL, 5, -12.0).said == "contradicted"
    mean = made_up("H3s", {f"None>SSM>{norm}": 12.0 for norm in ("BN", "IN", "LN", "RMSN", "GN")}, sd=0.1, seeds=12)
    hit = mean.arm.isin(["None>SSM>GN", "None>SSM>LN"]) & (mean.seed < 3)
    pooled = judge("H3s", where(mean, hit, status="diverged"))
    assert pooled.stability.startswith(
        "diverged at their rates: the side of the claim 6 of 60 [4, 21 %], the other side 0"
    )
    assert pooled.said == "reproduced, but the side of the claim diverges more often"
    assert pooled.n_seeds == 9


# what is missing, and what no run can have


def test_what_a_frame_lacks_is_named_and_never_guessed():
    frame = made_up("H8s", {PROPOSAL: 30.0}, sd=0.5)
    lost = {
        "not tuned: NormVary→GN lacks learning rate": frame[~of(frame, PROPOSAL, RATES[2])],
        "not run: NormVary→GN": frame[frame.arm != PROPOSAL],
        "fewer than six seeds on which every compared run finished: 5": frame[frame.seed < 5],
    }
    for text, part in lost.items():
        verdict = judge("H8s", part)
        assert verdict.verdict == "not judged"
        assert text in verdict.reason
    gone = frame[~of(frame, ORIGINAL, RATES[0], [6, 7])]
    verdict = judge("H8s", gone)
    assert (verdict.verdict, verdict.n_seeds) == ("reproduced", 6)
    assert {c.seed for c in missing(gone)} == {6, 7}


@pytest.mark.parametrize("lost", ["failed", "nan", "inf"])
def test_a_run_without_a_finite_number_is_a_missing_run(lost):
    frame = made_up("H8s", {PROPOSAL: 30.0}, sd=0.5)
    hit = of(frame, PROPOSAL, RATES[0], range(3))
    if lost == "failed":
        frame = where(frame, hit, status="failed", test_accuracy=np.nan)
    else:
        frame = where(frame, hit, best_val_accuracy=float(lost))
    verdict = judge("H8s", frame)
    assert (verdict.verdict, verdict.n_seeds) == ("not judged", 5)


def test_runs_of_the_first_protocol_are_refused_and_those_of_all_that_asked_for_the_same_are_judged():
    frame = made_up("H8s")
    with pytest.raises(ValueError, match=f"holds runs of protocol 1, this is protocol {VERSION}"):
        judge("H8s", frame.assign(protocol=1))
    versions = np.array(SAME_RUNS)[np.arange(len(frame)) % len(SAME_RUNS)]
    assert judge("H8s", frame.assign(protocol=versions)).brief == judge("H8s", frame).brief


def test_what_the_test_rows_of_a_tasks_seeds_share_is_said():
    assert shared_rows("digits", "quick") == shared_rows("listops", "quick") == "one pool of rows"
    assert shared_rows("listops", "lab") == shared_rows("cifar10", "paper") == "one test set"
    assert shared_rows("mnist1d", "quick") == ""
    assert shared_rows("pydoc", "quick") == "one test text"
    assert "the seeds share one pool of rows: the interval speaks of it alone" in judge("H8s", made_up("H8s")).caveats


def test_what_a_verdict_is_based_on_names_the_papers_task_unless_it_is_the_same():
    verdict = judge("H8s", made_up("H8s"))
    assert verdict.fidelity == f"protocol {VERSION}, smoke scale, digits, not the paper's ListOps"
    same = dataclasses.replace(verdict, scale="paper", tasks=("listops",))
    assert same.fidelity == f"protocol {VERSION}, paper scale, listops"
    assert dataclasses.replace(same, scale="lab").fidelity.endswith("listops, not the paper's ListOps")
    assert dataclasses.replace(same, tasks=("imdb",)).fidelity.endswith("imdb, not the paper's ListOps")
