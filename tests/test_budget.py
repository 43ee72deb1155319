"""Claims over the training budget, and the parts of a recording; planted truth."""

import numpy as np
import pandas as pd
import pytest

import mambanorm as mn
from mambanorm import claims, figures
from mambanorm.claims import needed, recording
from mambanorm.claims.evidence import Evidence
from mambanorm.claims.protocol import EVENING_SEEDS, FAILING_SEEDS, GRID_SEEDS, LOOKED_BACK, TRAINED_TASKS
from mambanorm.runs.grid import base_config
from mambanorm.study.experiments import BUDGETS, at_budget, inside_task, lr_grid
from tests import planted

SCALE, PROPOSAL = "evening", "NormVary>SSM>GN"
TASK, LATER, _, IMAGES, TEXT = TRAINED_TASKS


def made_up(effect: float, rng: int = 0, claim: str = "H8s", **changes) -> pd.DataFrame:
    """All runs of a claim at a setting, the proposal so many points ahead."""
    configs = needed(claim, EVENING_SEEDS, [TASK], SCALE, changes=changes)
    return planted.study(planted.rows_of(configs), {PROPOSAL: effect}, rng, sd=0.5)


@pytest.fixture(scope="module")
def frame():
    """Ahead by 12 points early, by 6 later and by none at the end."""
    effects = zip((12.0, 6.0, 0.0), BUDGETS, strict=True)
    return pd.concat([made_up(effect, i, **at_budget(TASK, SCALE, share)) for i, (effect, share) in enumerate(effects)])


def test_a_budget_is_a_whole_schedule_with_a_share_of_the_steps():
    own = base_config(TASK, SCALE)
    for share in BUDGETS:
        config = base_config(TASK, SCALE, **at_budget(TASK, SCALE, share))
        assert config.steps == round(share * own.steps)
        assert config.warmup_steps <= config.steps / 4
        assert config.steps // config.eval_every >= 8
        assert (config.run_id == own.run_id) == (share == 1)


def test_an_effect_that_goes_away_is_called_so(frame):
    table = claims.over_budget(frame, ["H8s"])
    assert table.share.tolist() == list(BUDGETS)
    assert table.steps.tolist() == [round(base_config(TASK, SCALE).steps * share) for share in BUDGETS]
    assert table.verdict.tolist()[:2] == ["reproduced"] * 2
    assert table.verdict[2] in ("≈ threshold", "contradicted")
    assert table.effect.tolist() == pytest.approx([12, 6, 0], abs=1)
    assert ((table.low < table.effect) & (table.effect < table.high)).all()


def test_a_frame_that_is_read_once_says_the_same_at_every_setting(frame):
    read = Evidence(frame, SCALE)
    for changes in (None, at_budget(TASK, SCALE, BUDGETS[0]), dict(d_model=16)):
        once, anew = (mn.judge("H8s", one, scale=SCALE, changes=changes) for one in (read, frame))
        assert once.brief == anew.brief
        assert once.caveats == anew.caveats
        assert once.rows.equals(anew.rows)


def test_the_runs_of_one_setting_say_nothing_of_another(frame):
    assert mn.judge("H8s", made_up(5.0, d_model=16), scale=SCALE).n_seeds == 0
    assert mn.judge("H8s", made_up(5.0, d_model=16), scale=SCALE, changes=dict(d_model=16)).verdict == "reproduced"
    with pytest.raises(ValueError, match="H9s is about runs of its own.*no changes"):
        mn.judge("H9s", frame, scale=SCALE, changes=dict(d_model=16))
    with pytest.raises(ValueError, match="H9s is about runs of its own.*no changes"):
        needed("H9s", 8, None, SCALE, changes=dict(d_model=16))


def test_a_figure_of_it_has_a_panel_for_each_claim_and_says_what_is_drawn(frame):
    drawn = figures.fig_budget(claims.over_budget(frame, ["H8s"]), "protocol 5")
    assert "12 seeds" in drawn.get_label()
    assert "the threshold" in drawn.get_label()
    assert "over the training budget" in drawn.get_suptitle()
    short = claims.over_budget(frame, ["H8s"]).iloc[:1]  # as far as a recording has come
    assert "over the training budget" in figures.fig_budget(short).get_suptitle()
    with pytest.raises(ValueError, match="none of these claims has been run over the budget"):
        figures.fig_budget(claims.over_budget(frame, ["H1s"]))


# the parts of a recording


def test_the_parts_of_the_evening_hold_what_was_planned():
    found, inside = claims.parts(SCALE), inside_task(SCALE)
    by_name = {part.name: part for part in found}
    order = [f"{TASK}: H1, H2", f"{TEXT}: H1", f"{TASK}: H8", f"{TEXT}: H8", f"{TASK}: H3, H4", f"{TASK}: H5, H6, H7"]
    order += [f"{inside}: E1", f"{TEXT}: E3, E4", f"{IMAGES}: H5, H6, H7", f"{LATER}: H8"]
    order += [f"{TASK}, steps × 0.25"]
    assert [name for name in by_name if name in order] == order
    assert found[0].seeds == EVENING_SEEDS
    assert by_name[f"{TASK}: H5, H6, H7"].seeds == GRID_SEEDS
    assert by_name[f"{IMAGES}: H3, H4, H15"].claims == ("H3v", "H4v", "H15v")
    assert by_name[f"{IMAGES}, steps × 0.25"].claims == ("H1v", "H2v", "H3v", "H4v", "H8v")
    of_inside = {name.removeprefix(f"{inside}: "): part.seeds for name, part in by_name.items() if part.task == inside}
    few = dict.fromkeys(("H13", "E2"), GRID_SEEDS)  # the task of §4.6 is asked nothing else
    assert of_inside == few | dict.fromkeys(("H10, H11", "H12", "E1"), LOOKED_BACK) | {"H9, H16": FAILING_SEEDS}
    nothing, quarter = pd.DataFrame(), base_config(TASK, SCALE).steps / 4
    assert {c.steps for c in by_name[f"{TASK}, steps × 0.25"].configs(SCALE, nothing)} == {quarter}
    assert {part.task for part in claims.parts(SCALE, tasks=["digits"])} == {"digits"}
    own, planned = claims.parts(SCALE, seeds=6), claims.parts("quick")[:1]
    assert {part.seeds for part in own + planned} == {tuple(range(6)), tuple(range(8))}


def test_the_manifest_says_which_runs_are_there(frame):
    table = claims.manifest(frame, SCALE, tasks=[TASK]).set_index("part")
    arms = len(mn.CLAIMS["H8s"].arms)
    assert table.there[f"{TASK}: H8"] == arms * 3 * len(EVENING_SEEDS) == table.needed[f"{TASK}: H8"]
    assert table.there[f"{TASK}: H1, H2"] < table.needed[f"{TASK}: H1, H2"]
    assert table.there[f"{TASK}, steps × 0.25"] == arms * 3 * len(EVENING_SEEDS)
    assert table.there[f"{TASK}: E3, E4"] < table.needed[f"{TASK}: E3, E4"]


def test_what_is_complete_is_written_part_by_part_and_nothing_recorded_is_lost(tmp_path, monkeypatch):
    runs = [mn.grid(["GN>SSM>GN"], scale="smoke", seeds=[seed]) for seed in range(3)]
    bad = mn.grid(["GN>SSM>GN"], scale="smoke", seeds=1, norm_options={"groups": 3})
    path = tmp_path / "frame.parquet"

    def record(*of):
        found = [recording.Part(str(i), also=tuple(c)) for i, c in enumerate(of)]
        monkeypatch.setattr(recording, "parts", lambda *_: found)
        claims.record_results("smoke", path=path, runs_dir=tmp_path / "runs", workers=0, progress=False)

    mn.sweep(runs[2], runs_dir=tmp_path / "runs", workers=0, progress=False)  # which no part asks for yet
    with pytest.raises(RuntimeError, match="1: 1 run could not be trained: this part is not recorded"):
        record(runs[0], bad, runs[1])
    assert pd.read_parquet(path).seed.tolist() == [0]
    record(runs[1])
    assert sorted(pd.read_parquet(path).seed) == [0, 1]
    record(*runs)
    written = pd.read_parquet(path)
    assert sorted(written.seed) == [0, 1, 2]
    assert written.config.notna().all()


def test_arms_that_still_rise_are_told_one_by_one_at_the_rate_that_is_judged(frame):
    rate = lr_grid(TASK, SCALE)[1]
    fails = np.where(frame.lr == rate, 0.9, 0.1)  # the rate that every seed chooses
    best = np.where((frame.arm == PROPOSAL) & (frame.seed % 2 == 0) | (frame.lr != rate), 600, 100)
    table = claims.still_rising(frame.assign(best_step=best, best_val_accuracy=fails)).set_index("arm")
    assert set(table.index) == set(claims.CLAIMS["H8s"].arms)
    assert set(table.task) == {TASK}
    assert table.loc[PROPOSAL, ["runs", "late", "trained"]].tolist() == [12, 0.5, False]
    assert (table.drop(PROPOSAL).late == 0).all()
    whole = frame.assign(best_step=best, best_val_accuracy=fails)
    assert "still improving at the end of its steps: NormVary→GN (50 % of its runs)" in mn.judge("H8s", whole).reason
    early = mn.judge("H8s", whole.assign(best_step=1000), changes=at_budget(TASK, SCALE, BUDGETS[1]))
    assert early.verdict == "reproduced"  # a share of the steps is asked for on purpose


def test_a_task_that_the_protocol_does_not_plan_is_judged_where_it_is_asked_for():
    other = inside_task(SCALE)
    behind = planted.made_up("H8s", {PROPOSAL: -20.0}, seeds=EVENING_SEEDS, scale=SCALE, task=other, sd=0.5)
    ahead = made_up(12.0)
    alone, both = (mn.judge("H8s", some, scale=SCALE) for some in (ahead, pd.concat([ahead, behind])))
    assert (both.verdict, both.tasks, both.ci) == (alone.verdict, (TASK,), alone.ci)
    assert mn.judge("H8s", pd.concat([ahead, behind]), scale=SCALE, tasks=[other]).verdict == "contradicted"
    assert mn.judge("H8s", behind, scale=SCALE).tasks == (other,)  # there is no other


def test_at_evening_the_command_of_the_verdicts_asks_for_what_the_protocol_plans(store):
    few = claims.verdict_runs(["H1s", "H5s"], scale=SCALE)
    assert {config.task for config in few} == {TASK}
    singles = {config.seed for config in few if config.arm == "GN>SSM>GN"}
    assert singles == set(EVENING_SEEDS)
    assert {config.seed for config in few if config.arm == "LN>SSM>GN"} == set(GRID_SEEDS)
    with pytest.raises(ValueError, match="nothing to train: none of these claims is about these tasks"):
        claims.train_verdicts(["H1l"], tasks=[TASK], scale=SCALE, workers=0)


def test_language_models_of_different_texts_are_not_held_against_each_other():
    runs = planted.skeleton("H1l", 6, SCALE, "pydoc").assign(
        status="ok", chance=0.2, test_accuracy=0.5, best_val_accuracy=0.5, test_loss=1.5, best_val_loss=1.5
    )
    assert mn.judge("H1l", runs.assign(chance_loss=3.24), scale=SCALE).n_seeds == 6
    other = np.where(runs.arm == "None>SSM>None", 3.21, 3.24)
    with pytest.raises(ValueError, match=r"of different texts \(chance_loss 3.210000, 3.240000 nats\)"):
        mn.judge("H1l", runs.assign(chance_loss=other), scale=SCALE)
