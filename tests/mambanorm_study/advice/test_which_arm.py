"""Which arm to take, and any arm compared with any other: by the rule of the verdicts, with an
answer in words.
"""

import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm_study import advice
from mambanorm_study.advice import which_arm
from mambanorm_study.claims import rule
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, Evidence
from mambanorm_study.claims.plan import arm_runs
from mambanorm_study.cli.main import main
from mambanorm_study.runs.grid import grid, is_test_seed, setting_id
from mambanorm_study.runs.recorded_results import recorded_lr
from mambanorm_study.tables.experiments import lr_grid
from tests import planted

ARM, OTHER, PROPOSAL = "LN>SSM>GN", "RMSN>SSM>None", "NormVary>SSM>GN"
RECORDED = tuple(range(40, 52))


@pytest.fixture
def made_up(monkeypatch):
    """Return compare() on a made-up frame in which ARM leads by so many points."""

    def answer(lead, *, lost=(), tests=8, seeds=8, **how):
        frame = planted.rows_of(planted.tuned_and_tested([ARM, OTHER], "digits", tests))
        frame = planted.planted_frame(frame, {ARM: lead}, **how)
        frame = planted.where(frame, (frame.arm == ARM) & frame.seed.isin(lost), status="diverged")
        monkeypatch.setattr("mambanorm_study.runs.needed_runs.known_runs", lambda *_: frame)
        return study.compare(ARM, OTHER, "digits", seeds=seeds, scale="smoke").iloc[0]

    return answer


# ----------------------------------------------------------------------------------------- two arms


@pytest.mark.parametrize(
    ("lead", "sd", "said"),
    [
        (5.0, 0.5, "LN→GN is better than RMSN→None: +"),
        (-5.0, 0.5, "LN→GN is worse than RMSN→None: −"),
        (0.0, 0.2, "LN→GN and RMSN→None are about the same: "),
        (2.0, 3.0, "we cannot tell whether LN→GN or RMSN→None is better: "),
    ],
)
def test_the_answer_is_said_in_words(made_up, lead, sd, said):
    row = made_up(lead, sd=sd)
    assert row.said.startswith(said)
    assert row.n == 8
    assert row.fresh
    assert abs(row.effect - lead) < 2 * sd
    assert row.low < row.effect < row.high
    assert (
        row.said
        == f"{row.brief}; the seeds share one pool of rows, so the interval is valid for it only"
    )
    assert (
        ("new seeds would tell" in row.brief)
        == (row.word == rule.CANNOT_TELL)
        == (row.new_seeds is not None)
    )


def test_the_number_of_new_seeds_does_not_depend_on_which_arm_is_named_first():
    frame = planted.planted_frame(
        planted.rows_of(planted.tuned_and_tested([ARM, OTHER], "digits")), {ARM: 0.8}, sd=3.0
    )
    rows = [
        which_arm.comparison_row(*pair, "digits", frame, "smoke")
        for pair in ((ARM, OTHER), (OTHER, ARM))
    ]
    assert [row["word"] for row in rows] == [rule.CANNOT_TELL] * 2
    assert rows[0]["new_seeds"] == rows[1]["new_seeds"] > 8


def test_a_run_that_diverged_scores_chance_and_is_counted(made_up):
    row = made_up(5.0, sd=0.5, lost=(53, 56))
    assert (row.diverged, row.diverged_against, row.n) == (2, 0, 8)
    assert "failed: LN→GN 2 of 8 runs" in row.brief
    assert row.effect == pytest.approx((6 * 5 + 2 * (10 - 50)) / 8, abs=2)  # chance is 10 per cent


def test_fewer_than_six_pairs_have_no_word(made_up):
    assert made_up(5.0, tests=5, seeds=5).brief == "no word: 5 pairs of runs, and 6 are needed"


def test_a_list_of_seeds_is_judged_alone(made_up):
    assert made_up(5.0, tests=20, seeds=range(60, 68)).n == 8
    assert made_up(5.0, tests=20).n == 20


def test_the_recorded_seeds_of_the_other_arm_are_taken_unless_more_are_asked_for():
    recorded = list(recorded_lr("curves", OTHER, "evening")[1])
    assert which_arm.comparison_seeds(OTHER, "curves", "evening", None) == recorded[:8]
    assert which_arm.comparison_seeds(OTHER, "curves", "evening", 6) == recorded[:6]
    without_questions = [*range(52, 76), *range(88, 94)]
    assert which_arm.comparison_seeds(OTHER, "curves", "evening", 30) == without_questions
    assert which_arm.comparison_seeds(OTHER, "listops", "smoke", None) == list(range(52, 60))
    assert which_arm.comparison_seeds(OTHER, "curves", "evening", [60, 61]) == [60, 61]
    with pytest.raises(ValueError, match="test seeds are 52 to 99, got 3"):
        which_arm.comparison_seeds(OTHER, "curves", "evening", [3, 60])


def test_a_new_arm_is_tuned_on_new_seeds_and_tested_where_the_other_is_recorded():
    """The other arm has no test seeds yet: the comparison is made on its tuning seeds, and is not
    fresh.
    """
    rates = lr_grid("digits", "smoke")
    configs = [
        config
        for lr in rates
        for config in grid([OTHER], ["digits"], scale="smoke", seeds=RECORDED, lr=lr)
    ]
    seeds = list(RECORDED[:8])
    for round_, expected in enumerate(
        [(NEW_TUNING_SEEDS, rates), (tuple(seeds), rates[1:2]), ((), ())]
    ):
        frame = planted.planted_frame(planted.rows_of(configs), {ARM: 5.0}, sd=0.3)
        needed = which_arm.comparison_runs(ARM, OTHER, "digits", seeds, "smoke", frame)
        missing = [config for config in needed if config.run_id not in set(frame.run_id)]
        assert {config.arm for config in missing} == ({ARM} if round_ < 2 else set())
        assert sorted({config.seed for config in missing}) == list(expected[0])
        assert sorted({config.lr for config in missing}) == list(expected[1])
        configs += missing
    row = which_arm.comparison_row(ARM, OTHER, "digits", frame, "smoke")
    assert (row["word"], row["n"], row["fresh"]) == ("better", 8, False)
    assert "; not fresh: a learning rate was chosen on these seeds; " in row["said"]
    # once both have test seeds, these alone are compared
    tests = arm_runs([ARM, OTHER], "digits", range(52, 60), Evidence(frame, "smoke"))
    frame = planted.planted_frame(
        planted.rows_of(dict.fromkeys([*configs, *tests])), {ARM: 5.0}, sd=0.3
    )
    row = which_arm.comparison_row(ARM, OTHER, "digits", frame, "smoke")
    assert (row["word"], row["n"], row["fresh"]) == ("better", 8, True)


def test_the_command_trains_the_missing_runs_and_prints_a_line_a_task(tmp_path, capsys):
    call = [
        "compare",
        ARM,
        "--scale",
        "smoke",
        "--tasks",
        "digits",
        "--seeds",
        "6",
        "--runs-dir",
        str(tmp_path),
    ]
    assert main([*call, "--dry-run"]) == 0
    assert (
        "24 runs asked for, 0 in the store" in capsys.readouterr().out
    )  # both arms are tuned first
    assert main([*call, "--workers", "0"]) == 0
    assert capsys.readouterr().out.strip().startswith("digits: ")
    assert 24 < len(study.load_runs(tmp_path)) <= 24 + 2 * 6


@pytest.mark.parametrize(
    ("arm", "options", "said"),
    [
        (OTHER, [], f"{OTHER} is compared with itself: give two different arms"),
        (ARM, ["--tasks", "pydoc"], "norm 'GN' sees the future"),
        (ARM, ["--tasks", "diabetes"], "diabetes is a regression"),
        (ARM, ["--tasks", "digits", "--seeds", "3,60"], "test seeds are 52 to 99"),
        ("LN>MHA>LN", [], "compare arms of one model"),
        ("Nix>SSM>GN", [], "unknown norm 'Nix'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_trained(arm, options, said, tmp_path, capsys):
    assert main(["compare", arm, "--runs-dir", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------------------- choosing an arm


@pytest.fixture(scope="module")
def many():
    """All arms of the sequence claims, None→BN ahead by 6 points, NormVary→GN behind by 6."""
    configs = planted.tuned_and_tested(which_arm.tuned_arms("sequence"), "digits", 8)
    return planted.planted_frame(
        planted.rows_of(configs), {"None>SSM>BN": 6.0, PROPOSAL: -6.0}, 40, sd=0.5
    )


def test_the_arm_to_take_is_chosen_by_validation_on_the_tuning_seeds(many):
    table = advice.ranking(many, "digits")
    assert (table.arm.iloc[0], table.standing.iloc[0]) == ("None>SSM>BN", "chosen")
    assert set(table.arm) == set(which_arm.tuned_arms("sequence"))
    tests = many.seed.map(is_test_seed)
    lucky = (many.arm == "IN>SSM>IN") & tests  # neither accuracy of a test seed may choose
    columns = {name: many[name] + 0.3 * lucky for name in ("test_accuracy", "best_val_accuracy")}
    assert advice.ranking(many.assign(**columns), "digits").arm.iloc[0] == "None>SSM>BN"
    tuned = (many.arm == "IN>SSM>IN") & ~tests
    better = many.best_val_accuracy + 0.3 * tuned
    assert (
        advice.ranking(many.assign(best_val_accuracy=better), "digits").arm.iloc[0] == "IN>SSM>IN"
    )
    with pytest.raises(ValueError, match="no arm is tuned and tested on task 'listops'"):
        advice.ranking(many, "listops")


def test_every_other_arm_is_compared_with_the_chosen_one_on_the_test_seeds(many):
    table = advice.ranking(many, "digits").set_index("arm")
    found = table.loc[PROPOSAL]
    assert (found.who, found.standing, found.n, found.fresh) == ("the paper's", "behind", 8, True)
    rows = many[many.seed.map(is_test_seed)].pivot(
        index="seed", columns="arm", values="test_accuracy"
    )
    gap = 100 * (rows["None>SSM>BN"] - rows[PROPOSAL])
    assert found.per_seed == pytest.approx(gap.tolist())
    assert (found.low, found.high) == pytest.approx(rule.interval(gap))
    assert found.behind == pytest.approx(12, abs=1)
    lost = planted.where(many, (many.arm == PROPOSAL) & (many.seed == 54), status="diverged")
    found = advice.ranking(lost, "digits").set_index("arm").loc[PROPOSAL]
    assert (found.n, found.diverged, len(found.per_seed)) == (8, 1, 8)
    assert max(found.per_seed) == pytest.approx(100 * rows["None>SSM>BN"][54] - 10)  # of chance


def test_without_test_seeds_the_ranking_is_on_the_tuning_seeds_and_not_fresh(many):
    table = advice.ranking(many[~many.seed.map(is_test_seed)], "digits")
    assert set(table.n) == {len(NEW_TUNING_SEEDS)}
    assert not table.fresh.any()
    assert set(table.standing) == {"chosen", "we cannot tell"}  # four pairs have no word


def test_an_arm_with_other_tuning_seeds_is_no_candidate_among_recorded_arms(many):
    """The arms of a reader are tuned on other seeds, so their validation cannot be compared."""
    recorded = many.assign(seed=many.seed.replace(dict(zip(NEW_TUNING_SEEDS, range(40, 44)))))
    recorded["run_id"] = [
        setting_id(run.task, run.scale, run.arm, run.lr, run.seed) for run in recorded.itertuples()
    ]
    mine = many[many.arm == "IN>SSM>IN"]
    frame = pd.concat([recorded[recorded.arm != "IN>SSM>IN"], mine])
    table = advice.ranking(frame, "digits")
    assert "IN>SSM>IN" not in set(table.arm)
    assert len(table) == len(which_arm.tuned_arms("sequence")) - 1


def test_arms_may_be_an_iterator(many):
    arms = ["None>SSM>BN", "LN>SSM>LN", OTHER]
    assert set(advice.ranking(many, "digits", arms=iter(arms)).arm) == set(arms)


def test_the_first_arms_and_those_that_somebody_recommends_are_shown(many):
    table = advice.ranking(many, "digits")
    shown = advice.leading_arms(table)
    assert shown["mean"].tolist() == [round(x, 1) for x in table["mean"][shown.index]]
    assert (
        set(table.index[:8])
        <= set(shown.index)
        <= {*table.index[:8], *table.index[table.who != ""]}
    )
    both = pd.concat([many, many.assign(task="listops")])
    assert list(advice.rankings(both, ["digits", "curves"])) == ["digits"]
