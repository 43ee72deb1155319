"""One question has one answer: notebooks, verdicts, `compare`, the ranking and the cards give the same
accuracy of an arm and the same difference of two arms."""

import pandas as pd
import pytest

from mambanorm_clinic.card_tables import score_table
from mambanorm_study.advice.which_arm import accuracy, comparison_row, rankings
from mambanorm_study.claims import CLAIMS, TRAINED_TASKS, Evidence, verdicts
from mambanorm_study.runs.recorded_results import (
    grid_at_recorded_lr,
    recorded,
    recorded_choices,
    recorded_runs,
)
from mambanorm_study.tables import run_tables

SCALE = "evening"


@pytest.fixture(scope="module")
def evidence():
    return Evidence(recorded(SCALE), SCALE)


def runs_in_a_notebook(arms, task):
    return recorded_runs(grid_at_recorded_lr(arms, [task], SCALE))


def in_per_cent(task):
    return task != "pydoc"  # notebooks print the bits of text by the verdicts' own functions


def two_arms(comparison):
    """Return the arms of a comparison "a − b", None for other comparisons."""
    weights = comparison.weights
    if comparison.column != "score" or sorted(weights.values()) != [-1, 1]:
        return None
    return tuple(sorted(weights, key=lambda arm: -weights[arm]))


def test_a_pair_of_a_claim_has_the_same_difference_in_notebooks_and_in_compare(evidence):
    seen = set()
    for verdict in verdicts(evidence, [name for name, c in CLAIMS.items() if c.runs == "tuned"]):
        pairs = {c.name: two_arms(c) for c in verdict.claim.comparisons}
        for row in verdict.rows:
            pair = pairs.get(row.comparison)
            if not row.n or pair is None or not in_per_cent(row.task):
                continue
            seen.add((row.task, *pair))
            shown = run_tables.paired(runs_in_a_notebook(pair, row.task), *pair).iloc[0]
            compared = comparison_row(*pair, row.task, evidence, SCALE)
            expected = (row.effect, row.low, row.high, row.n)
            assert (shown.difference, shown.low, shown.high, shown.n) == pytest.approx(expected)
            values = [compared[name] for name in ("effect", "low", "high", "n")]
            assert values == pytest.approx(expected)
    assert len(seen) > 15


def test_the_ranking_says_the_same_as_compare_and_the_notebooks(evidence):
    for task, table in rankings(evidence, TRAINED_TASKS).items():
        chosen, others = table.iloc[0], table.iloc[1:]
        runs = runs_in_a_notebook(table.arm, task)
        cards = score_table([], task, evidence).set_index("arm")["mean"]
        means = run_tables.summarize(runs).set_index("arm")
        for arm, facts in table.set_index("arm").iterrows():
            assert facts["mean"] == pytest.approx(accuracy(arm, task, evidence)["mean"])
            assert facts["mean"] == pytest.approx(cards[arm])
            if in_per_cent(task):
                ours = means.loc[arm]
                assert (facts["mean"], facts.n) == pytest.approx((100 * ours["mean"], ours.n))
        for arm, facts in others.set_index("arm").iterrows():
            compared = comparison_row(chosen.arm, arm, task, evidence, SCALE)
            expected = [compared[name] for name in ("effect", "low", "high")]
            assert [facts.behind, facts.low, facts.high] == pytest.approx(expected)


def test_the_learning_rate_is_chosen_by_one_rule(evidence):
    for task in TRAINED_TASKS:
        chosen = {arm: choice.lr for arm, choice in recorded_choices(task, SCALE).items()}
        ours = {arm: evidence.lr(arm, task) for arm in chosen}
        assert ours == chosen, task
        assert len(ours) > 5 or task not in evidence.tasks  # not recorded yet


def test_a_difference_is_over_all_seeds_that_both_arms_have(evidence):
    """Also where a third arm, or the grid, has fewer seeds."""
    for task in ("curves", "glyphs_images"):
        choices = recorded_choices(task, SCALE)
        alone = runs_in_a_notebook(["LN>SSM>LN", "None>SSM>None"], task)
        among = runs_in_a_notebook(list(choices), task)
        pair = ("LN>SSM>LN", "None>SSM>None")
        pd.testing.assert_frame_equal(
            run_tables.paired(alone, *pair), run_tables.paired(among, *pair)
        )
