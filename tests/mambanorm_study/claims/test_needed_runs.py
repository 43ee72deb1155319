"""Claims over the training budget, which runs a claim needs, and the parts of a recording; planted
truth.
"""

import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm_study import claims, figures
from mambanorm_study.claims import CLAIMS, needed
from mambanorm_study.claims.claim import FURTHER_TEST_SEEDS, TEST_SEEDS
from mambanorm_study.claims.evidence import NEW_TUNING_SEEDS, Evidence
from mambanorm_study.claims.hypotheses import BEYOND
from mambanorm_study.claims.pages import comparisons_by_steps
from mambanorm_study.claims.plan import TRAINED_TASKS
from mambanorm_study.claims.verdict import compare_arms
from mambanorm_study.cli import recording
from mambanorm_study.cli.recording import DEEP, DEEP_ARMS, DEEP_TUNING
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import BUDGETS, POSITION_ARMS, budget_changes, inside_task
from tests import planted

SCALE, PROPOSAL, ORIGINAL = "evening", "NormVary>SSM>GN", "RMSN>SSM>None"
CURVES, LISTOPS, GLYPHS, IMAGES, TEXT, PATHS = TRAINED_TASKS
SHARES = (0.5, 1.0, 2.0)


def made_up(effect: float, rng: int = 0, seeds=12, **changes) -> pd.DataFrame:
    """Return all runs of H8s on curves at a setting, the proposal so many points ahead."""
    configs = planted.tuned_and_tested(CLAIMS["H8s"].arms, CURVES, seeds, SCALE, **changes)
    return planted.planted_frame(planted.rows_of(configs), {PROPOSAL: effect}, rng, sd=0.4)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """Ahead by 12 points early, by 6 later and by none at the end."""
    effects = zip((12.0, 6.0, 0.0), SHARES, strict=True)
    return pd.concat(
        [
            made_up(effect, i, **budget_changes(CURVES, SCALE, share))
            for i, (effect, share) in enumerate(effects)
        ],
        ignore_index=True,
    )


# over the budget


def test_a_budget_is_a_whole_schedule_with_a_share_of_the_steps():
    own = base_config(CURVES, SCALE)
    for share in BUDGETS:
        config = base_config(CURVES, SCALE, **budget_changes(CURVES, SCALE, share))
        assert config.steps == round(share * own.steps)
        assert config.warmup_steps <= config.steps / 4
        assert config.steps // config.eval_every >= 8
        assert (config.run_id == own.run_id) == (share == 1)


def test_an_effect_that_goes_away_is_called_so(frame):
    table = comparisons_by_steps(frame)
    table = table[table.claim == "H8s"]
    assert table.share.tolist() == list(SHARES)
    assert table.steps.tolist() == [
        round(base_config(CURVES, SCALE).steps * share) for share in SHARES
    ]
    assert table.word.tolist() == ["supported", "supported", "no gain"]
    assert table.effect.tolist() == pytest.approx([12, 6, 0], abs=1)
    assert ((table.low < table.effect) & (table.effect < table.high)).all()


def test_a_figure_of_it_has_a_panel_for_each_claim_and_says_what_is_drawn(frame):
    table = comparisons_by_steps(frame)
    drawn = figures.fig_budget(table, "protocol 12")
    assert "12 seeds" in drawn.get_label()
    assert "the smallest effect of interest" in drawn.get_label()
    assert "change with the number of steps" in drawn.get_suptitle()
    with pytest.raises(
        ValueError, match="none of these claims has been run at several numbers of steps"
    ):
        figures.fig_budget(table.iloc[:0], "protocol 12")


def test_the_runs_of_one_setting_say_nothing_of_another():
    narrow = made_up(5.0, d_model=16)
    assert study.judge("H8s", narrow).n == 0
    assert study.judge("H8s", Evidence(narrow, changes=dict(d_model=16))).word == "supported"


# which runs a claim needs


def test_the_planned_runs_of_a_claim_are_the_test_runs_of_its_recorded_arms():
    known = recorded(SCALE)
    for claim, task, seeds in (
        ("H2s", CURVES, TEST_SEEDS),
        ("H4v", IMAGES, TEST_SEEDS + FURTHER_TEST_SEEDS),
    ):
        configs = needed(claim, tasks=[task], scale=SCALE, frame=known)
        evidence = Evidence(known, SCALE)
        assert {(config.arm, config.seed, config.lr) for config in configs} == {
            (arm, seed, evidence.lr(arm, task)) for arm in CLAIMS[claim].arms for seed in seeds
        }


def test_a_claim_is_asked_on_the_tasks_of_the_plan():
    def tasks(name: str) -> set[str]:
        return {config.task for config in needed(name, 1, scale=SCALE)}

    assert tasks("H8s") == {CURVES, LISTOPS, PATHS}
    assert tasks("H1s") == tasks("H2s") == {CURVES, GLYPHS}
    assert tasks("H3s") == tasks("E4s") == {CURVES}
    assert tasks("H3v") == {IMAGES}
    assert tasks("H1l") == {TEXT}
    assert tasks("H9s") == tasks("E2s") == {inside_task(SCALE)}
    assert {config.task for config in needed("H3s", 1, ["digits"], SCALE)} == {
        "digits"
    }  # where it is asked for
    assert needed("H1l", tasks=[CURVES], scale=SCALE) == []
    with pytest.raises(
        ValueError, match="nothing to train: none of these claims is about these tasks"
    ):
        claims.train_verdicts(["H1l"], tasks=[CURVES], scale=SCALE, workers=0)


# the parts of a recording


def test_the_parts_are_recorded_in_the_order_of_the_protocol():
    names = list(dict.fromkeys(part.name for part in recording.parts(SCALE)))
    more = "the arms of H4 and H8 once more"
    assert [name for name in names if not name.startswith("mnist1d")] == [
        "curves, every arm",
        f"curves, {more}",
        "curves, 300 steps",
        "curves, 1,200 steps",
        "curves, 2,400 steps",
        "curves, 8 blocks",
        "glyphs_images, every arm",
        "pydoc, every arm",
        f"glyphs_images, {more}",
        f"pydoc, {more}",
        "listops",
        "glyphs",
        PATHS,
    ]
    fixed = {name.removeprefix("mnist1d, ") for name in names if name.startswith("mnist1d")}
    assert fixed == {name for name, claim in (CLAIMS | BEYOND).items() if claim.runs != "tuned"}


def test_the_parts_have_the_arms_and_seeds_of_the_protocol():
    known, arms, seeds = recorded(SCALE), {}, {}
    for part in recording.parts(SCALE):
        configs = [config for config in part.find_needed(known) if config.seed >= 52]
        arms.setdefault(part.name, set()).update(config.arm for config in configs)
        seeds.setdefault(part.name, []).extend(part.seeds)
        if part.name.startswith("mnist1d"):
            assert {config.run_id for config in configs} <= set(known.run_id)
    named = (
        ("curves", 44, ("H4s", "H8s")),
        ("glyphs_images", 43, ("H4v", "H8v")),
        ("pydoc", 16, ("H8l",)),
    )
    for name, number, often in named:
        assert len(arms[f"{name}, every arm"]) == number
        assert seeds[f"{name}, every arm"] == list(TEST_SEEDS)
        assert arms[f"{name}, the arms of H4 and H8 once more"] == {
            a for claim in often for a in CLAIMS[claim].arms
        }
        assert seeds[f"{name}, the arms of H4 and H8 once more"] == list(FURTHER_TEST_SEEDS)
    assert arms["listops"] == set(CLAIMS["H8s"].arms)
    assert len(arms["glyphs"]) == 6
    assert seeds[PATHS] == list(TEST_SEEDS)
    assert arms["curves, 300 steps"] == set(map(str, POSITION_ARMS))
    assert seeds["curves, 300 steps"] == list(range(52, 58))


def test_a_part_needs_three_seeds_at_most():
    assert (
        max(
            len(part.seeds)
            for part in recording.parts(SCALE)
            if not part.name.startswith("mnist1d")
        )
        == 3
    )


def test_paths16_is_tuned_first_at_three_rates_and_tested_on_the_arms_of_h8():
    first, *_ = [part for part in recording.parts(SCALE) if part.name == PATHS]
    tuning = first.find_needed(pd.DataFrame())
    arms = set(CLAIMS["H8s"].arms)
    assert {config.arm for config in tuning} == arms
    assert {config.seed for config in tuning} == set(NEW_TUNING_SEEDS)
    assert len({config.lr for config in tuning}) == 3
    runs = first.find_needed(planted.planted_frame(planted.rows_of(tuning), sd=0.1))
    tests = [config for config in runs if config.seed >= 52 and config.seed < 100]
    assert len(tests) == len(arms) * len(first.seeds)
    all_seeds = [seed for part in recording.parts(SCALE, tasks=[PATHS]) for seed in part.seeds]
    assert len(tuning) + len(arms) * len(all_seeds) == 144


def test_deep_models_are_tuned_first_and_tested_at_the_rates_of_deep_models():
    part = next(part for part in recording.parts(SCALE) if part.name == "curves, 8 blocks")
    tuning = part.find_needed(pd.DataFrame())
    assert {(config.n_layers, config.seed) for config in tuning} == {
        (8, seed) for seed in DEEP_TUNING
    }
    assert {config.arm for config in tuning} == set(DEEP_ARMS)
    low = planted.planted_frame(planted.rows_of(tuning), curve=(0.0, -9.0, -9.0), sd=0.1)
    assert part.find_needed(low.iloc[1:]) == tuning  # one run is missing
    (rate,) = {config.lr for config in part.find_needed(low) if config.seed >= 52}
    assert rate == min(config.lr for config in tuning)
    row = compare_arms("None>SSM>BN", ORIGINAL, Evidence(low, SCALE, changes=DEEP), CURVES)
    assert (row.n, row.fresh) == (len(DEEP_TUNING), False)


def test_other_seeds_tasks_and_scales_have_parts_too():
    assert {part.seeds for part in recording.parts(SCALE, seeds=6, tasks=[CURVES])} == {
        (52, 53, 54),
        (55, 56, 57),
    }
    assert {part.name for part in recording.parts(SCALE, tasks=[TEXT])} == {
        "pydoc, every arm",
        "pydoc, the arms of H4 and H8 once more",
    }
    found = recording.parts("quick", tasks=["digits"])
    assert [part.name for part in found] == [
        "verdicts, digits",
        "the notebooks",
        "extra runs of the notebooks",
    ]
    assert {part.seeds for part in found} == {tuple(range(52, 60))}
    assert {config.task for config in found[0].find_needed(pd.DataFrame())} == {"digits"}
    with pytest.raises(ValueError, match="test seeds are 52 to 99"):
        recording.parts(SCALE, seeds=[40])


def test_the_manifest_says_which_runs_are_there(frame):
    known = pd.concat([recorded(SCALE), frame], ignore_index=True)
    table = recording.manifest(known, SCALE).groupby("part")[["needed", "recorded"]].sum()
    assert table.loc["curves, every arm"].tolist()[0] == 44 * 12
    own = Evidence(recorded(SCALE), SCALE)
    at_their_rate = frame[(frame.seed < 100) & (frame.steps == base_config(CURVES, SCALE).steps)]
    at_their_rate = at_their_rate[
        at_their_rate.lr == at_their_rate.arm.map(lambda arm: own.lr(arm, CURVES))
    ]
    new = set(at_their_rate.run_id) - set(recorded(SCALE).run_id)
    before = recording.manifest(recorded(SCALE), SCALE).groupby("part").recorded.sum()
    assert table.recorded["curves, every arm"] - before["curves, every arm"] == len(new)
    empty = recording.manifest(pd.DataFrame(), SCALE)
    assert set(empty.recorded) == {0}
