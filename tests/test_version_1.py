"""Version 1 of the protocol stays what it was: its verdicts on its own runs, and the branches of its rule."""

from __future__ import annotations

import ast
import hashlib
import json
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from mambanorm.basics.settings import ROOT
from mambanorm.claims import version_1
from mambanorm.claims.version_1 import HYPOTHESES, judge_version_1
from mambanorm.claims.version_1.hypotheses import (
    SELECT_SEEDS,
    TUNE_SEEDS,
    depth_setting,
    failure_settings,
    learning_rates,
)
from mambanorm.study.intervals import t_interval
from mambanorm.training import recorded_results
from mambanorm.training.grid import base_config

THEN = """
claim | verdict | effect, low, high
  | decided by | task by task
H1s | inconclusive | 1.5000000000000009 -0.9319502207190102 3.931950220719012
  | IN→IN − None→None on listops | digits reproduced, listops inconclusive
H2s | contradicted | -20.26462395543176 -32.910416843291614 -7.618831067571902
  | GN→GN − IN→IN on digits | digits contradicted, listops inconclusive
H3s | contradicted | -4.45 -7.383648818741088 -1.516351181258912
  | None→LN − LN→None on listops | digits inconclusive, listops contradicted
H4s | contradicted | -15.076601671309197 -29.098020778938995 -1.0551825636793986
  | effect of after: GN − RMSN on digits | digits contradicted, listops inconclusive
H5s | inconclusive | 6.197771587743736 -3.9955405669102717 16.391083742397743
  | BN→GN − GN→GN | digits inconclusive, listops not run
H6s | contradicted | -17.331128133704738 -22.62506931398846 -12.037186953421013
  | mean of ·→GN − mean of ·→IN | digits contradicted, listops not run
H7s | inconclusive | -2.167479108635098 -5.428754982501847 1.0937967652316503
  | spread of ·→BN − spread of ·→GN | digits inconclusive, listops not run
H8s | inconclusive | 1.1812499999999986 -1.5542671629417777 3.916767162941775
  | NormVary→GN − RMSN→None on listops | digits reproduced, listops inconclusive
H9s | contradicted | 0.0 0.0 49.59500281943206
  | None→None, 4 blocks, lr 0.01 | digits contradicted
H10s | contradicted | -0.010506526282221679 -0.016709878552984125 -0.004303174011459233
  | None→None grows | digits contradicted
H11s | contradicted | -0.08362935114664916 -0.1296962040925393 -0.03756249820075901
  | deepest minus first block, against the control | digits contradicted
H12s | contradicted | 0.000929628103287913 -0.003537896321031953 0.005397152527607779
  | None→None − None→GN on digits | digits contradicted, listops contradicted
H1v | reproduced | 31.78969359331476 11.422690052511584 52.156697134117934
  | BN→BN − None→None | digits_images reproduced
H2v | inconclusive | -2.9944289693593316 -7.031682012029412 1.042824073310749
  | LN→LN − IN→IN | digits_images inconclusive
H3v | contradicted | -4.004178272980502 -8.143691489200245 0.13533494323924167
  | None→LN − LN→None | digits_images contradicted
H4v | contradicted | -18.80222841225627 -30.77994326360366 -6.82451356090888
  | effect of after: GN − BN | digits_images contradicted
H5v | inconclusive | 1.1490250696378812 -0.5134022883060059 2.8114524275817683
  | IN→RMSN − RMSN→RMSN | digits_images inconclusive
H6v | contradicted | -3.1162952646239557 -4.743763995879393 -1.4888265333685191
  | mean of ·→LN − mean of ·→IN | digits_images contradicted
H7v | inconclusive | -0.06963788300835594 -0.9945325473809149 0.855256781364203
  | spread of ·→GN − spread of ·→LN | digits_images inconclusive
H8v | inconclusive | 0.9749303621169911 -2.5422745499347865 4.492135274168769
  | NormVary→LN − LN→LN | digits_images inconclusive
"""
"""What version 1 said, each with 8 seeds, computed by its own judge while it was the current one."""

UNITS = {
    "H7s": ("pp", 0.5),
    "H7v": ("pp", 0.5),
    "H9s": ("% of runs", 50.0),
    "H10s": ("decades in 8 blocks", 0.25),
    "H11s": ("log₁₀ of the variance", 0.041),
    "H12s": ("log₁₀ of the ratio", 0.021),
}
"""Unit and threshold, where they are not one percentage point."""


def test_the_verdicts_of_version_1_are_those_that_it_gave():
    frame = recorded_results.recorded("quick", version=1)
    _, *then = [row.split(" | ") for row in THEN.strip().replace("\n  |", " |").splitlines()]
    assert [row[0] for row in then] == list(HYPOTHESES)
    for claim, verdict, numbers, decided_by, by_task in then:
        found = judge_version_1(claim, frame)
        assert (found.claim, found.verdict, found.n_seeds, found.decided_by) == (claim, verdict, 8, decided_by)
        assert (found.unit, found.threshold) == UNITS.get(claim, ("pp", 1.0)), claim
        assert ", ".join(map(" ".join, found.by_task.items())) == by_task, claim
        expected = [float(number) for number in numbers.split()]
        assert [found.effect, *found.ci] == pytest.approx(expected, rel=1e-12, abs=1e-12), claim


def test_the_hypotheses_of_version_1_are_word_for_word_what_they_were():
    """All comparisons, weights and thresholds, those that decide nothing on its own runs included."""
    text = json.dumps([asdict(hypothesis) for hypothesis in HYPOTHESES.values()])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "f29f6319e391f1e9"


def test_version_1_takes_nothing_from_files_that_later_versions_change():
    for path in sorted((ROOT / "mambanorm/claims/version_1").glob("*.py")):
        modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        ours = [name for name in modules if name.startswith("mambanorm.")]
        assert not [name for name in ours if ".claims" in name and not name.startswith(version_1.__name__)], path
        assert not [name for name in ours if name.endswith(".experiments")], path  # its settings are written out


# ---------------------------------------------------------------------------------------------------------------------
# planted frames, at scale smoke


def planted(claim: str, effects: dict[str, float], seeds: int = 8, tasks=("digits",), noise: float = 0.5):
    """All runs of a tuned claim at 50 % + the arm's effect in points + noise; the middle rate is the best."""
    rng, rows = np.random.default_rng(0), []
    for task in tasks:
        for arm in HYPOTHESES[claim].arms:
            for lr in learning_rates(task, "smoke"):
                best = lr == base_config(task, "smoke").lr
                for seed in [*TUNE_SEEDS, *([*SELECT_SEEDS, *range(seeds)] if best else [])]:
                    points = 50 + effects.get(arm, 0.0) + noise * rng.standard_normal()
                    rows.append(run(base_config(task, "smoke", arm=arm, seed=seed, lr=lr), points - 30 * (not best)))
    return pd.DataFrame(rows)


def run(config, points: float, status: str = "ok") -> dict:
    names = {name: getattr(config, name) for name in ("run_id", "task", "scale", "arm", "seed", "lr", "role")}
    return names | dict(status=status, chance=0.1, test_accuracy=points / 100, best_val_accuracy=points / 100)


AFTER = {f"None>SSM>{n}": 12.0 for n in ("BN", "IN", "LN", "RMSN", "GN")}


def test_fewer_than_six_seeds_are_a_sketch_and_no_run_is_not_run():
    frame = planted("H3s", AFTER)
    words = {n: judge_version_1("H3s", frame[(frame.role == "tune") | (frame.seed < n)]) for n in (0, 5, 6, 8)}
    assert {n: (found.verdict, found.n_seeds) for n, found in words.items()} == {
        0: ("not run", 0),
        5: ("sketch", 5),
        6: ("reproduced", 6),
        8: ("reproduced", 8),
    }
    assert judge_version_1("H3v", frame).by_task == {}  # digits are not images


@pytest.mark.parametrize("lost", ["a tune run", "an arm", "a select run"])
def test_an_untuned_arm_and_what_is_missing_are_a_sketch(lost):
    frame = planted("H2s", {"GN>SSM>GN": 12.0})
    assert judge_version_1("H2s", frame).verdict == "reproduced"
    mine = frame.arm == "BN>SSM>BN"
    seed = {"a tune run": TUNE_SEEDS[1], "a select run": SELECT_SEEDS[0]}.get(lost)
    gone = mine if seed is None else mine & (frame.seed == seed)
    assert judge_version_1("H2s", frame[~gone]).verdict == "sketch"


def test_of_equally_good_rates_the_smaller_is_chosen():
    frame = planted("H8s", {"NormVary>SSM>GN": 12.0}, noise=0.0)  # test runs at the middle rate only
    low, middle, high = learning_rates("digits", "smoke")
    words = {}
    for lr in (low, high):
        equal = frame.copy()
        equal.loc[(frame.role == "tune") & (frame.lr == lr), "best_val_accuracy"] = equal.best_val_accuracy[
            (frame.role == "tune") & (frame.lr == middle)
        ].to_numpy()
        words[lr] = judge_version_1("H8s", equal).verdict
    assert words == {low: "not run", high: "reproduced"}


def test_each_norm_has_to_pass_uncorrected_and_fails_only_by_a_simultaneous_interval():
    """H3: an effect whose interval clears the threshold alone, but not with four others."""
    values = np.array([-1.0, 1.0] * 4)
    edge = (t_interval(values)[0] + t_interval(values, 0.99)[0]) / 2  # between the two lower ends

    def verdict(shift: float):
        frame = planted("H3s", AFTER)
        for arm, points in (("None>SSM>GN", 50 + shift + values), ("GN>SSM>None", 50 + 0 * values)):
            test = (frame.arm == arm) & (frame.role == "test")
            frame.loc[test, "test_accuracy"] = points / 100
        return judge_version_1("H3s", frame)

    holds, fails = verdict(1 - edge), verdict(1 + edge)
    assert (holds.verdict, holds.decided_by) == ("reproduced", "None→GN − GN→None")
    assert holds.ci == pytest.approx(t_interval(values + 1 - edge))
    assert fails.verdict == "inconclusive"
    assert fails.ci == pytest.approx(t_interval(values + 1 + edge, 0.99))


def test_the_rival_decides_and_only_it_can_contradict():
    """H2: the rival is the best of the select seeds, not the one that happens to be worst for the claim in the test."""
    frame = planted("H2s", {"GN>SSM>GN": 12.0, "BN>SSM>BN": 6.0})
    assert judge_version_1("H2s", frame).decided_by == "GN→GN − BN→BN"
    frame.loc[(frame.arm == "IN>SSM>IN") & (frame.role == "test"), "test_accuracy"] = 0.9
    found = judge_version_1("H2s", frame)
    assert (found.verdict, found.decided_by) == ("inconclusive", "GN→GN − BN→BN")


def test_of_each_group_the_best_of_the_select_seeds_is_compared():
    frame = planted("H5s", {f"LN>SSM>{n}": 12.0 for n in ("BN", "IN", "RMSN", "GN")} | {"BN>SSM>LN": 12.0})
    found = judge_version_1("H5s", frame)
    assert found.verdict == "reproduced"
    assert found.decided_by.split("→")[0] in ("LN", "BN")
    frame.loc[(frame.arm == "LN>SSM>GN") & (frame.role == "select"), "status"] = "diverged"  # scored as chance
    found = judge_version_1("H5s", frame)
    assert (found.verdict, found.decided_by.endswith("→GN − GN→GN")) == ("contradicted", True)
    gone = (frame.arm == "RMSN>SSM>GN") & (frame.seed == SELECT_SEEDS[0])  # of four to choose from one is not known
    assert judge_version_1("H5s", frame[~gone]).verdict == "sketch"


def test_a_diverged_run_is_scored_as_chance():
    frame = planted("H8s", {"NormVary>SSM>GN": 12.0})
    before = judge_version_1("H8s", frame)
    hit = (frame.arm == "NormVary>SSM>GN") & (frame.role == "test") & (frame.seed == 3)
    after = judge_version_1("H8s", frame.assign(status=np.where(hit, "diverged", "ok")))
    fallen = 100 * frame.test_accuracy[hit].item() - 10
    assert (before.verdict, after.n_seeds) == ("reproduced", 8)
    assert before.effect - after.effect == pytest.approx(fallen / 8)


def test_one_task_contradicts_if_none_reproduces_and_the_intervals_share_5_per_cent():
    frame = planted("H8s", {}, tasks=("digits", "listops"))
    hit = (frame.arm == "NormVary>SSM>GN") & (frame.role == "test")
    frame.loc[hit & (frame.task == "listops"), "test_accuracy"] -= 0.12

    def verdict(points: float):
        moved = frame.copy()
        moved.loc[hit & (frame.task == "digits"), "test_accuracy"] += points / 100
        return judge_version_1("H8s", moved)

    for points, digits, both in ((1.0, "inconclusive", "contradicted"), (12.0, "reproduced", "inconclusive")):
        found = verdict(points)
        assert (found.by_task, found.verdict) == ({"digits": digits, "listops": "contradicted"}, both)
        assert found.decided_by == "NormVary→GN − RMSN→None on listops"
    alone = judge_version_1("H8s", frame, tasks=["listops"])
    assert alone.effect == found.effect
    assert np.ptp(alone.ci) < np.ptp(found.ci)


def test_failure_is_judged_in_every_cell_of_depth_and_rate():
    def verdict(ended: list[str]):
        cells = zip(failure_settings("smoke"), ended, strict=True)
        configs = [
            (base_config(scale="smoke", arm="None>SSM>None", seed=seed, **setting), status)
            for setting, status in cells
            for seed in range(8)
        ]
        return judge_version_1("H9s", pd.DataFrame([run(config, 10, status) for config, status in configs]))

    assert verdict(["diverged"] * 4).verdict == "reproduced"
    one = verdict(["diverged"] * 3 + ["ok"])
    assert (one.verdict, one.decided_by, one.effect) == ("contradicted", "None→None, 2 blocks, lr 0.025", 0.0)
    assert one.ci[1] == pytest.approx(100 * (1 - (0.025 / 4) ** (1 / 8)))  # Clopper–Pearson over four cells


@pytest.mark.parametrize(("both", "verdict"), [(0.0, "reproduced"), (-0.6, "contradicted")])
def test_outputs_that_shrink_with_depth_are_not_flat(both, verdict):
    grown = {"None>SSM>None": 1.5, "BN>SSM>None": 1.0, "None>SSM>BN": 0.1, "BN>SSM>BN": both}
    rng, setting = np.random.default_rng(0), depth_setting("smoke")
    configs = [base_config(scale="smoke", arm=arm, seed=seed, **setting) for arm in grown for seed in range(8)]
    rows = [run(c, 50) | dict(growth_train=grown[c.arm] + 0.02 * rng.standard_normal(), law_train=9) for c in configs]
    assert judge_version_1("H10s", pd.DataFrame(rows)).verdict == verdict


def test_what_cannot_be_judged_is_named():
    frame = planted("H8s", {})
    with pytest.raises(ValueError, match="unknown claim of version 1 'H13s': valid are H1s, "):
        judge_version_1("H13s", frame)
    with pytest.raises(ValueError, match="two different results of run"):
        judge_version_1("H8s", pd.concat([frame, frame.assign(test_accuracy=0.1)]))
    with pytest.raises(ValueError, match="mixes the scales quick and smoke: name one"):
        judge_version_1("H8s", pd.concat([frame, frame.assign(scale="quick")]))


def test_recorded_results_of_an_older_version_are_no_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_results, "RESULTS", tmp_path)
    pd.DataFrame({"run_id": ["a"]}).to_parquet(recorded_results.recorded_path("quick", 1))
    assert [path.name for path in tmp_path.iterdir()] == ["quick-version-1.parquet"]
    assert recorded_results.recorded("quick", version=1).run_id.tolist() == ["a"]
    with pytest.raises(ValueError, match="no recorded results of scale 'quick' .recorded: none at all"):
        recorded_results.recorded("quick")
    with pytest.raises(ValueError, match="of scale 'lab' under version 1 of the protocol .recorded under it: quick"):
        recorded_results.recorded("lab", version=1)
