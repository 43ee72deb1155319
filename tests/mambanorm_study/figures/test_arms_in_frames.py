"""Tests of run frames that mix arms with and without further sites: no mean pools them.

Every arm with further sites has an accuracy that no other arm has, so that a mean over both would
show.
"""

import pandas as pd
import pytest
from matplotlib.colors import to_hex

from mambanorm.arms import MORE_SITES, PAPER_NORMS
from mambanorm_study import answers, claims
from mambanorm_study.answers.vision import accuracy_by_n2, site_counts
from mambanorm_study.cli.printing import print_arms
from mambanorm_study.figures.colours import arm_styles
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.runs.result import config_row
from mambanorm_study.tables import contrasts, procedure, run_tables

PLAIN = [f"{n1}>SSM>{n2}" for n1 in (*PAPER_NORMS, "NormVary") for n2 in PAPER_NORMS]
FURTHER = [
    f"{arm}+{site}"
    for arm in PLAIN
    for site in ("gated:RMSN", "B:RMSN+C:RMSN+delta:RMSN", "branch:LN")
]
SEEDS = range(3)
CAPTION = "smoke scale"


def runs_of(arms, task="digits", level=0.3, spread=0.4, **changes):
    """Return a run frame with the columns of the store; accuracies rise from arm to arm."""
    rows = []
    for i, arm in enumerate(arms):
        for seed in SEEDS:
            accuracy = level + spread * (7 * i % len(arms)) / len(arms) + 0.002 * (seed * (i % 5))
            facts = dict(
                test_accuracy=accuracy, best_val_accuracy=accuracy, chance=0.1, status="ok"
            )
            rows.append(
                config_row(base_config(task, "smoke", arm=arm, seed=seed, **changes)) | facts
            )
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def plain():
    return runs_of(PLAIN)


@pytest.fixture(scope="module")
def mixed(plain):
    """Return the same runs, and between them better runs of arms with further sites."""
    frame = pd.concat([runs_of(FURTHER, level=0.9, spread=0.05), plain], ignore_index=True)
    return frame.sort_values(["seed", "n1", "n2"], kind="stable", ignore_index=True)


def sorted_result(value):
    """Return a result in a fixed order, whatever the order of the frame's rows."""
    if isinstance(value, pd.DataFrame):
        value = value.assign(
            **{name: value[name].map(str) for name in value if value[name].dtype == object}
        )
        return value.sort_values(list(value), ignore_index=True)
    return value.sort_index() if isinstance(value, pd.Series) else value


def chosen(runs):
    return procedure.two_step_choices(run_tables.pairs_only(runs[runs.n1 != "NormVary"]))


OF_PAIRS = {
    "the partners of each N2": procedure.pair_validation,
    "the two steps": procedure.two_step_choices,
    "the six ways to choose": lambda runs: procedure.ways_to_choose(runs, chosen(runs)),
    "the chosen pair against the others": lambda runs: procedure.against_chosen(
        runs, procedure.ways_to_choose(runs, chosen(runs))
    ),
    "the guesses of notebook 05": lambda runs: answers.guesses_on_pairs(runs),
    "the N2 on images": accuracy_by_n2,
    "how often after is ahead": site_counts,
    "the second norm": lambda runs: contrasts.second_norm_gains(runs, ["LN", "GN"]),
    "the interaction": lambda runs: run_tables.paired_steps(runs, contrasts.INTERACTION),
    "the place against others": lambda runs: run_tables.paired_steps(
        runs, contrasts.position_contrasts("GN", ["LN", "IN"])
    ),
    "a pair of arms": lambda runs: run_tables.paired(runs, "RMSN>SSM>None", "None>SSM>None"),
    "named pairs of arms": lambda runs: run_tables.paired_steps(
        runs, {"a": ("RMSN>SSM>GN", "RMSN>SSM>None")}
    ),
    "the paper's numbers": run_tables.beside_paper,
    "a choice among some": lambda runs: run_tables.best_arm(
        runs, "digits", ["LN>SSM>GN", "GN>SSM>GN"]
    ),
}
# What is computed of pairs N1, N2 alone.


@pytest.mark.parametrize("name", OF_PAIRS)
def test_results_on_pairs_do_not_depend_on_further_sites_in_the_frame(name, plain, mixed):
    among, alone = (sorted_result(OF_PAIRS[name](frame)) for frame in (mixed, plain))
    if isinstance(among, pd.DataFrame):
        pd.testing.assert_frame_equal(among, alone)
    elif isinstance(among, pd.Series):
        pd.testing.assert_series_equal(among, alone)
    else:
        assert among == alone


# --------------------------------------------------------------------------------------------------
# runs of one arm that differ in model or norm options


def test_a_mean_over_runs_with_several_norm_options_is_refused_and_they_can_be_told_apart(capsys):
    """Jamba and Falcon-Mamba have one arm: they differ in the norms' options."""
    both = pd.concat(
        [
            runs_of([f"preset:{name}"], level=level)
            for name, level in (("Jamba", 0.3), ("Falcon-Mamba", 0.6))
        ]
    )
    assert both.arm.nunique() == 1
    with pytest.raises(ValueError, match=r"differ in norm_options.*distinguish_arms"):
        run_tables.summarize(both)
    with pytest.raises(ValueError, match="several runs of one seed"):
        run_tables.paired(both, both.arm.iloc[0], both.arm.iloc[0])
    means = run_tables.summarize(run_tables.distinguish_arms(both)).set_index("arm")["mean"]
    assert sorted(means.round(1)) == [0.3, 0.6]
    print_arms(both)
    lines = capsys.readouterr().out
    assert "30." in lines
    assert '"affine": false' in lines
    alone = both[both.norm_options == "{}"]
    assert set(run_tables.distinguish_arms(alone).arm) == set(both.arm)


def test_a_mean_over_two_kinds_of_block_is_refused():
    both = pd.concat([runs_of(["RMSN>SSM>GN"], model=model) for model in ("mamba", "mamba2")])
    with pytest.raises(ValueError, match="differ in model"):
        run_tables.summarize(both)
    assert set(run_tables.distinguish_arms(both).arm) == {"RMSN>SSM>GN mamba", "RMSN>SSM>GN mamba2"}
    assert "blocks of mamba and mamba2" in run_tables.describe_frame(both)
    assert "blocks of mamba2 ·" in run_tables.describe_frame(both[both.model == "mamba2"])
    assert "blocks" not in run_tables.describe_frame(both[both.model == "mamba"])


def test_a_mean_by_n1_and_n2_over_further_sites_is_refused(mixed):
    with pytest.raises(ValueError, match="differ in arm.*pairs_only"):
        run_tables.summarize(mixed, ["task", "n1", "n2"])


# --------------------------------------------------------------------------------------------------
# labels and looks

MANY = [
    *PLAIN,
    *FURTHER,
    *(f"RMSN>SSM>None+{site}:{norm}" for site in MORE_SITES for norm in ("LN", "RMSN")),
    *("None>SSM>None+B:LN", "None>SSM>None+z:GN"),
]


def test_no_two_lines_look_alike_and_hollow_markers_are_those_of_further_sites():
    styles = arm_styles(list(dict.fromkeys(MANY)))
    looks = [(to_hex(look["color"]), look["marker"], look["linestyle"]) for look in styles.values()]
    assert len(set(looks)) == len(looks)
    assert {arm for arm, look in styles.items() if "markerfacecolor" in look} == {
        arm for arm in MANY if "+" in arm
    }
    assert styles["None>SSM>None+B:LN"]["marker"] == styles["LN>SSM>None"]["marker"]


# --------------------------------------------------------------------------------------------------
# claims, plan, command line


@pytest.mark.parametrize("claim", ["H1s", "H4s", "H5s"])
def test_a_verdict_does_not_see_runs_of_further_sites(claim):
    frame = recorded("quick")
    frame = frame[(frame.task == "digits") & ~frame.arm.str.contains("MHA")]
    more = frame[frame.arm.isin(PLAIN)].assign(test_accuracy=1.0, best_val_accuracy=1.0)
    ids = [f"further-{run_id}" for run_id in more.run_id]
    more = more.assign(arm=more.arm + "+gated:RMSN", run_id=ids)
    alone, among = (
        claims.judge(claim, runs, scale="quick") for runs in (frame, pd.concat([frame, more]))
    )
    assert (among.word, among.brief, among.n) == (alone.word, alone.brief, alone.n)
    assert alone.n
