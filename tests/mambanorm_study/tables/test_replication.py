"""The reader's own runs beside the recorded ones: which arms, on which seed, and where they lie."""

import numpy as np
import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm_study import answers
from mambanorm_study.basics.settings import KERNEL, STORED_ONLY
from mambanorm_study.runs import recorded_results
from mambanorm_study.runs.recorded_results import grid_at_recorded_lr, recorded, recorded_lr
from mambanorm_study.tables import experiments, replication
from mambanorm_study.tables.experiments import RECORDED_TASKS


def studies(rng: np.random.Generator, n: int, seeds: int, shift: float = 0.0):
    """Made-up recorded and fresh runs of an arm, with a spread of 1.5 points."""
    for _ in range(n):
        accuracy = 0.85 + 0.015 * rng.standard_normal(seeds + 1)
        accuracy[-1] += shift
        frame = pd.DataFrame(
            dict(task="made_up", arm="LN>SSM>LN", seed=range(seeds + 1), status="ok")
        )
        frame["test_accuracy"] = accuracy
        yield frame.iloc[:-1], frame.iloc[-1:]


@pytest.mark.parametrize("seeds", [8, 12])
def test_a_fresh_run_of_the_same_arm_lies_inside_nineteen_times_in_twenty(seeds):
    rng = np.random.default_rng(0)
    lies = [replication.replication(*study).lies.iloc[0] for study in studies(rng, 200, seeds)]
    assert 0.92 <= np.mean([place == "inside" for place in lies]) <= 0.98


def test_a_fresh_run_that_is_far_worse_lies_below_and_is_named():
    (recorded, fresh), *_ = studies(np.random.default_rng(1), 1, 12, shift=-0.2)
    table = replication.replication(recorded, fresh)
    assert table.lies.tolist() == ["below"]
    said = answers.replication_text(table)
    assert "0 of 1" in said
    assert "Outside: LN→LN on made_up" in said


def test_diverged_runs_are_counted_apart_and_few_recorded_ones_tell_nothing():
    (recorded, fresh), *_ = studies(np.random.default_rng(2), 1, 8)
    failed = fresh.assign(status="failed", test_accuracy=np.nan)
    ended = pd.concat(
        [fresh.assign(status="diverged", test_accuracy=0.1), fresh.assign(arm="GN>SSM>GN"), failed]
    )
    table = replication.replication(recorded, ended)
    assert table.lies.tolist() == ["diverged", "untold", "failed"]
    said = answers.replication_text(table)
    assert "Diverged, and counted apart: LN→LN on made_up" in said
    assert "Too few recorded runs" in said
    spoilt = recorded.assign(status=["diverged", *["ok"] * 7])
    assert replication.replication(spoilt, fresh).n.tolist() == [7]


def test_language_models_are_compared_in_bits():
    frame = pd.DataFrame(
        dict(task="pydoc", arm="LN>SSM>LN", seed=range(5), status="ok", test_accuracy=0.5)
    )
    frame["test_loss"] = np.log(2) * np.array([3.00, 3.01, 3.02, 2.99, 3.9])
    row = replication.replication(frame.iloc[:4], frame.iloc[4:]).iloc[0]
    assert (row.unit, row.lies) == ("bits", "above")
    assert row.value == pytest.approx(3.9)
    assert row["mean"] == pytest.approx(3.005)


def test_a_store_draws_its_fresh_seed_once(tmp_path, monkeypatch):
    (first,) = replication.fresh_seeds(tmp_path)
    assert first > 10_000
    assert replication.fresh_seeds(tmp_path) == [first]
    monkeypatch.setenv("MAMBANORM_FRESH", "3")
    assert replication.fresh_seeds(tmp_path) == [first, first + 1, first + 2]
    (tmp_path / replication.FRESH_SEED_FILE).write_text("torn")
    assert min(replication.fresh_seeds(tmp_path)) > 10_000
    monkeypatch.setenv("MAMBANORM_FRESH", "many")
    with pytest.raises(
        ValueError, match="MAMBANORM_FRESH must be a whole number from 0 to 100, got 'many'"
    ):
        replication.fresh_seeds(tmp_path)


def test_the_arms_of_type_position_and_normvary_are_replicated_and_of_the_grid_its_ends():
    configs = study.notebook_runs("evening", RECORDED_TASKS[:1], source="auto")
    assert {c.arm for c in replication.configs_to_replicate(configs["03_type"])} == set(
        map(str, experiments.TYPE_ARMS)
    )
    grid = configs["05_combination"]
    chosen = replication.configs_to_replicate(grid)
    means = recorded_results.recorded_runs(grid).groupby("arm").val_accuracy.mean()
    assert {means.idxmax(), means.idxmin(), "RMSN>SSM>None"} <= {c.arm for c in chosen}
    assert len(chosen) == len({c.arm for c in chosen}) < len({c.arm for c in grid})
    assert replication.configs_to_replicate(grid, "trained") == []
    assert study.replicate(grid, source="trained").empty


def test_fresh_runs_have_the_recorded_rate_and_steps(tmp_path):
    asked = study.notebook_runs("evening", RECORDED_TASKS[:1], source="auto")["03_type"]
    (seed,), recorded_seed = replication.fresh_seeds(tmp_path), asked[0].seed
    known = {config.run_id for config in asked}
    for config in replication.fresh_configs(asked, runs_dir=tmp_path):
        assert config.seed == seed
        assert config.but(seed=recorded_seed).run_id in known


def test_the_notebooks_of_a_study_read_fresh_runs_and_train_none(tmp_path, monkeypatch):
    asked = study.notebook_runs("evening", RECORDED_TASKS[:1], source="auto")["03_type"]
    fresh = replication.fresh_configs(asked, runs_dir=tmp_path)
    monkeypatch.setenv(KERNEL, STORED_ONLY)
    monkeypatch.setattr(
        replication.store, "missing_runs", lambda configs, _: [c for c in configs if c != fresh[1]]
    )
    assert replication.fresh_configs(asked, runs_dir=tmp_path) == [fresh[1]]
    monkeypatch.setenv(KERNEL, "1")
    assert replication.fresh_configs(asked, runs_dir=tmp_path) == fresh


def test_an_arms_rate_is_the_best_mean_on_validation_of_its_tuning_seeds():
    frame = recorded("evening")
    frame = frame[frame.seed < 52]
    for arm in ("GN>SSM>None", "BN>SSM>BN", "RMSN>SSM>IN"):
        lr, _ = recorded_lr(RECORDED_TASKS[0], arm, "evening")
        own = study.base_config(RECORDED_TASKS[0], "evening", arm=arm)
        scores = {}
        for rate in frame.lr[(frame.task == RECORDED_TASKS[0]) & (frame.arm == arm)].unique():
            ids = [own.but(lr=float(rate), seed=seed).run_id for seed in range(40, 52)]
            rows = frame[frame.run_id.isin(ids)]
            if len(rows) >= 8:
                scores[rate] = rows.best_val_accuracy.where(
                    rows.status != "diverged", rows.chance
                ).mean()
        assert len(scores) >= 3
        assert lr == max(scores, key=scores.get)
    assert recorded_lr("listops", "LN>SSM>LN", "evening") is None


def test_what_is_recorded_is_read_and_the_rest_is_trained(tmp_path, capsys):
    recorded_one = study.notebook_runs("evening", RECORDED_TASKS[1:2], source="auto")["09_vision"][
        0
    ]
    new = study.grid(["LN>SSM>LN"], ["digits"], scale="smoke", seeds=1)
    frame = study.sweep([*new, recorded_one], runs_dir=tmp_path, workers=0, source="auto")
    assert frame.run_id.tolist() == [new[0].run_id, recorded_one.run_id]
    assert study.load_runs(tmp_path).run_id.tolist() == [new[0].run_id]
    assert "Recorded results, not trained here: 1 run," in capsys.readouterr().out


def test_at_evening_unrecorded_arms_are_left_out_unless_all_is_trained():
    asked = [*experiments.TYPE_ARMS, experiments.Arm("NormVary", "BN")]
    read = grid_at_recorded_lr(asked, RECORDED_TASKS[:1], "evening", source="auto")
    assert {c.arm for c in read} == set(map(str, experiments.TYPE_ARMS))
    assert len({c.seed for c in read}) == 12
    trained = grid_at_recorded_lr(asked, RECORDED_TASKS[:1], "evening", source="trained")
    assert {c.arm for c in trained} == set(map(str, asked))
    assert len({c.seed for c in trained}) == 3


def test_recorded_runs_as_the_only_source_refuse_what_is_not_recorded(monkeypatch):
    monkeypatch.setenv("MAMBANORM_SOURCE", "recorded")
    asked = study.grid(["LN>SSM>LN"], ["digits"], scale="evening", seeds=1)
    with pytest.raises(ValueError, match="not in the recorded results"):
        replication.unrecorded(asked)
    small = study.grid(["LN>SSM>LN"], ["level"], scale="quick", seeds=1)
    assert replication.unrecorded(small) == small
