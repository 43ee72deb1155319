"""The tables behind notebooks 04, 05 and 08: the paper's two steps, what choosing costs,
differences of differences, the gate, both modes, and Table 2.
"""

import json

import numpy as np
import pandas as pd
import pytest

import mambanorm_study as study
from mambanorm_study.basics.settings import ROOT
from mambanorm_study.tables import contrasts, diagnostics, procedure, run_tables
from mambanorm_study.tables.experiments import RECORDED_TASKS

NORMS = ["BN", "IN", "LN", "RMSN", "GN"]


def frame(means, task="digits", seeds=3, noise=None):
    """Return a run frame: arm → accuracy on validation, and on test unless `noise` (arm → by seed)
    is added there.
    """
    rows = []
    for arm, mean in means.items():
        n1, n2 = arm.split(">SSM>")
        for seed in range(seeds):
            test = mean + (noise or {}).get(arm, [0.0] * seeds)[seed]
            rows.append(
                dict(
                    task=task,
                    arm=arm,
                    n1=n1,
                    n2=n2,
                    seed=seed,
                    best_val_accuracy=mean,
                    test_accuracy=test,
                )
            )
    return pd.DataFrame(rows).assign(status="ok", chance=0.1, scale="quick")


def pairs_with(**changed):
    """All 36 pairs at 0.4, but for those that are named, such as LN_BN=0.7."""
    means = {f"{a}>SSM>{b}": 0.4 for a in ["None", *NORMS] for b in ["None", *NORMS]}
    return means | {name.replace("_", ">SSM>"): value for name, value in changed.items()}


GOOD_GN = dict(BN_GN=0.7, IN_GN=0.7, LN_GN=0.75, RMSN_GN=0.7)


def test_step_1_takes_the_highest_mean_over_four_partners_and_neither_none_nor_its_own_norm():
    runs = frame(pairs_with(None_BN=0.99, BN_BN=0.99, BN_None=0.99, **GOOD_GN))
    partners = procedure.pair_validation(runs)
    assert len(partners) == 20
    assert procedure.two_step_choices(runs) == {"digits": "LN>SSM>GN"}


def test_a_diverged_run_is_chosen_as_chance():
    runs = frame(pairs_with(**GOOD_GN))
    runs.loc[runs.arm == "LN>SSM>GN", "status"] = "diverged"
    validation = procedure.pair_validation(runs).set_index("arm").validation
    assert validation["LN>SSM>GN"] == pytest.approx(0.1)
    assert procedure.two_step_choices(runs)["digits"] != "LN>SSM>GN"


def test_the_ways_hold_six_arms_and_normvary_has_no_rank():
    lucky = {"BN>SSM>BN": [0.5] * 3}  # best on test, not on validation
    runs = frame(pairs_with(NormVary_GN=0.8, **GOOD_GN), noise=lucky)
    read = procedure.ways_to_choose(runs, {"digits": "LN>SSM>GN"}).set_index("way")
    assert read.arm.to_dict() == {
        "two steps": "LN>SSM>GN",
        "NormVary": "NormVary>SSM>GN",
        "same type": "GN>SSM>GN",
        "original": "RMSN>SSM>None",
        "one step": "LN>SSM>GN",
        "cheating": "BN>SSM>BN",
    }
    assert read["rank"].isna().to_dict()["NormVary"]
    assert read["rank"].drop("NormVary").tolist() == [2, 6, 6, 2, 1]
    pairs = procedure.against_chosen(runs, read.reset_index())
    assert pairs.b.tolist() == ["NormVary>SSM>GN", "GN>SSM>GN", "RMSN>SSM>None", "BN>SSM>BN"]
    assert pairs.difference.tolist() == pytest.approx([-5, 35, 35, -15])


def test_the_winners_curse_is_what_the_best_of_one_seed_loses_elsewhere():
    runs = frame({"BN>SSM>BN": 0.5, "IN>SSM>IN": 0.6}, noise={"BN>SSM>BN": [0.3, 0, 0]})
    curse = procedure.winners_curse(runs).set_index("seed")
    assert curse.winner.tolist() == ["BN>SSM>BN", "IN>SSM>IN", "IN>SSM>IN"]
    assert curse.points_lost.tolist() == pytest.approx([30, 0, 0])
    assert procedure.winners_curse(runs[runs.seed == 0]).points_lost.isna().all()


FOUR = ("NormVary>SSM>GN", "RMSN>SSM>GN", "NormVary>SSM>None", "RMSN>SSM>None")


def test_a_difference_of_differences_is_taken_seed_by_seed_over_the_shared_seeds():
    runs = frame(
        dict(zip(FOUR, (0.9, 0.6, 0.5, 0.4), strict=True)), noise={FOUR[0]: [0.1, 0.0, -0.1]}
    )
    row = run_tables.paired_steps(runs, contrasts.INTERACTION).iloc[0]
    assert (row.task, row.step, row.n) == ("digits", "GN", 3)
    assert row.difference == pytest.approx(20)
    assert (row.low, row.high) == pytest.approx(run_tables.t_interval([30, 20, 10]))
    fewer = run_tables.paired_steps(runs.drop(runs.index[-1]), contrasts.INTERACTION)
    assert fewer.n.tolist() == [2]


def test_gn_against_the_others_compares_the_gain_of_the_place():
    means = {"None>SSM>GN": 0.9, "GN>SSM>None": 0.5, "None>SSM>LN": 0.6, "LN>SSM>None": 0.5}
    rows = run_tables.paired_steps(frame(means), contrasts.position_contrasts("GN", ["LN"]))
    assert rows.step.tolist() == ["LN"]
    assert rows.difference.tolist() == pytest.approx([30])


def test_the_second_norm_is_compared_with_the_better_place():
    runs = frame({"GN>SSM>GN": 0.8, "GN>SSM>None": 0.7, "None>SSM>GN": 0.4})
    row = contrasts.second_norm_gains(runs, ["GN"]).iloc[0]
    assert (row.a, row.b) == ("GN>SSM>GN", "GN>SSM>None")
    assert row.difference == pytest.approx(10)


def test_a_norm_after_the_ssm_leaves_the_gate_alone_and_a_norm_before_holds_it():
    sizes = diagnostics.rms_inside_block(["RMSN>SSM>None", "None>SSM>RMSN"], factors=(1, 100))
    after, before = sizes.loc["None>SSM>RMSN"], sizes.loc["RMSN>SSM>None"]
    assert after.z[100] / after.z[1] == pytest.approx(100, rel=1e-3)
    assert before.z[100] / before.z[1] == pytest.approx(1, rel=1e-2)
    np.testing.assert_allclose(after.n2, 1, atol=0.01)
    assert after.branch[100] / after.branch[1] > 20


def test_only_bn_scores_differently_in_train_and_eval_mode(tmp_path):
    configs = study.grid(["BN>SSM>None", "IN>SSM>None"], ["digits"], scale="smoke", seeds=1)
    assert diagnostics.mode_accuracies(configs, tmp_path).empty  # nothing is stored yet
    runs = study.sweep(configs, workers=0, progress=False, runs_dir=tmp_path)
    found = diagnostics.mode_accuracies(configs, tmp_path).set_index("arm")
    assert found.points_lost["IN>SSM>None"] == 0
    assert found["eval"].tolist() == pytest.approx(
        runs.set_index("arm").loc[found.index].best_val_accuracy.tolist()
    )
    assert (found.points_lost == 100 * (found.train - found["eval"])).all()


def test_table_2_is_printed_with_its_gain_and_ours_stands_beside_the_task_of_the_same_name():
    printed = contrasts.printed_table()
    assert printed.loc["ListOps"].tolist() == ["37.90 ± 0.23", "40.27 ± 0.15", "+2.37 points"]
    assert contrasts.printed_gains()["IMDB"] == pytest.approx(2.44)
    runs = frame({"NormVary>SSM>GN": 0.5, "RMSN>SSM>None": 0.4}, task="listops")
    steps = {"NormVary→GN": (contrasts.PROPOSAL, contrasts.ORIGINAL)}
    beside = contrasts.gains_beside_paper(run_tables.paired_steps(runs, steps))
    assert beside.loc["ListOps"].tolist() == [
        "+2.37 points",
        "NormVary→GN: +10.0 points [10.0, 10.0]",
    ]
    assert beside.loc["IMDB", "ours, quick"] == "not run"


def test_normvary_has_the_seeds_of_the_grid_and_few_where_it_alone_is_not_recorded():
    configs = study.notebook_runs("evening", RECORDED_TASKS[:1])["05_combination"]
    seeds = sorted({config.seed for config in configs})
    recorded = procedure.normvary_runs(configs, {RECORDED_TASKS[0]: "GN"})
    assert {config.arm for config in recorded} == {"NormVary>SSM>GN"}
    assert [config.seed for config in recorded] == seeds
    unknown = procedure.normvary_runs(configs, {RECORDED_TASKS[0]: "LN-DL"})
    assert [config.seed for config in unknown] == seeds[:1]
    assert len(
        procedure.normvary_runs(configs, {RECORDED_TASKS[0]: "LN-DL"}, source="trained")
    ) == len(seeds)


def test_the_hours_beside_table_2_are_those_of_the_costs_and_of_the_gpu():
    page = (ROOT / "docs" / "costs.md").read_text(encoding="utf-8")
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    costs = {row[0]: row for row in cells}
    rows = json.loads((ROOT / "benchmarks/results/gpu.json").read_text(encoding="utf-8"))["rows"]
    gpu = {row["case"].removesuffix(", float32"): row.get("hours_of_a_run") for row in rows}
    petaflops = {task: float(costs[task][6].removesuffix(" P")) for task in ("listops", "imdb")}
    gpu["imdb"] = gpu["listops"] * petaflops["imdb"] / petaflops["listops"]
    gpu["cifar100"] = gpu["cifar10"]  # as many FLOPs
    assert costs["cifar100"][6] == costs["cifar10"][6]
    for task, (hours, gpu_hours) in contrasts.PAPER_HOURS.items():
        assert costs[task][-1] == hours, task
        assert float(gpu_hours.removeprefix("about ")) == pytest.approx(gpu[task], rel=0.03), task


def test_table_2_takes_the_shared_seeds_of_the_first_task_that_has_both_arms():
    def made(task, arm, seeds, start):
        rows = [dict(task=task, arm=arm, seed=n, test_accuracy=start + 0.01 * n) for n in seeds]
        return pd.DataFrame(rows).assign(scale="lab")

    pair = contrasts.ORIGINAL, contrasts.PROPOSAL
    runs = [
        made("listops", pair[0], range(12), 0.4),
        made("listops", pair[1], range(6, 12), 0.45),  # the last six alone are shared
        made("pathfinder64", pair[0], range(6), 0.8),
        *(made("paths16", arm, range(6), 0.7) for arm in pair),
        *(made("imdb", arm, [seed], 0.5) for seed, arm in enumerate(pair)),
    ]
    table = contrasts.table_2_beside_runs(pd.concat(runs))
    assert table["ours, %"]["ListOps"] == "48.5 → 53.5"
    assert table["our gain"]["ListOps"] == "+5.0 points [5.0, 5.0]"
    assert table["run here"]["ListOps"] == "ListOps (at evening 6 to 21 tokens); scale lab, 6 seeds"
    assert table["run here"]["Path-64"].startswith("paths like those of Pathfinder, 256 pixels")
    assert table["run here"]["IMDB"].startswith("not run")  # no seed is shared
    assert study.load_task("paths16", "smoke", 0).train.inputs.shape[1] == 256
    lengths = study.load_task("listops", "evening", 0).train.lengths
    assert (int(lengths.min()), int(lengths.max())) == (6, 21)
