"""Tests of the answers of notebooks 07 to 14 and of their tables, on planted frames."""

from dataclasses import replace

import numpy as np
import pandas as pd

from mambanorm.arms import Arm
from mambanorm_study import answers, figures
from mambanorm_study.claims import CLAIMS, judge
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from mambanorm_study.runs.weight_log import sigma_history
from mambanorm_study.tables import diagnostics
from mambanorm_study.tables.experiments import GRID_ARMS
from mambanorm_study.tables.run_tables import paired_steps
from tests.planted import made_up


def test_a_larger_smallest_effect_changes_a_word():
    planted = made_up("H4s", {"None>SSM>GN": 2.0}, scale="quick", sd=6.0)
    assert judge("H4s", planted).word == "cannot tell"
    assert judge(replace(CLAIMS["H4s"], smallest=45.0), planted).word == "no gain"


# notebook 07


def grown(**of: tuple[float, float, float, float]) -> pd.DataFrame:
    """Return `residual_growth` of made-up models.

    of: arm → log₁₀ of the median token in the first and last block, and of the largest token.
    """
    rows = []
    for name, (a, b, c, d) in of.items():
        slope = 8 * (b - a) / 7
        law = (
            "flat"
            if abs(slope) <= 0.25
            else "exponential (log y ~ l)"
            if np.isfinite(b)
            else "explodes (non-finite)"
        )
        ends = dict(median_first=a, median_last=b, largest_first=c, largest_last=d)
        facts = dict(
            task="digits",
            phase="initial",
            arm=name.replace("_", "→"),
            mode="train",
            n_layers=8,
            law=law,
        )
        rows.append(facts | ends | dict(decades_per_8=slope, r2=np.nan, nonfinite=0.0))
    return pd.DataFrame(rows)


FLAT, RISES = (1.0, 1.1, 1.2, 1.3), (1.0, 4.0, 1.2, 6.0)
ENDLESS = (1.0, np.inf, 1.2, np.inf)


def test_growth_factors_are_those_from_the_first_block_to_the_last():
    table = answers.growth_factors(grown(None_None=ENDLESS, None_BN=RISES, BN_None=FLAT))
    factors = table.set_index("arm")[["median token ×", "largest token ×"]]
    assert factors.loc["None→None"].tolist() == ["inf", "inf"]
    assert factors.loc["None→BN"].tolist() == ["1,000", "63,100"]
    assert factors.loc["BN→None"].tolist() == ["1.26", "1.26"]


def test_a_run_that_is_watched_is_the_same_run_with_its_spectra_at_every_step():
    config = base_config("digits", "smoke", arm="None>SSM>None", steps=4, n_layers=2)
    run, arrays = diagnostics.train_watched(config)
    assert run.curves.train_loss.equals(train(config).curves.train_loss)
    steps, kept = sigma_history(run.diagnostics)
    assert arrays["step"].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(arrays["singular_values"][steps], kept, rtol=1e-5)
    ended, some = diagnostics.train_watched(config, until=2)
    assert ended is None
    np.testing.assert_array_equal(some["singular_values"], arrays["singular_values"][:3])
    assert answers.run_end(run) == "did **not** fail in its 4 steps here"
    run.status, run.steps, run.first_nonfinite_site = "diverged", 1, "blocks.1.scan"
    assert answers.run_end(run) == "went non-finite at step 2 of 4, first at `blocks.1.scan`"


def ended(arm: str, steps: list[float]) -> pd.DataFrame:
    """Return runs of an arm that diverged at these steps; NaN = the run did not."""
    status = ["ok" if step != step else "diverged" for step in steps]
    facts = dict(
        arm=arm, lr=0.01, first_nonfinite_step=steps, status=status, test_accuracy=0.5, chance=0.1
    )
    return pd.DataFrame(facts)


def test_failures_are_counted_arm_by_arm_with_their_steps():
    runs = pd.concat([ended("None>SSM>None", [9, 7, np.nan]), ended("RMSN>SSM>RMSN", [np.nan] * 3)])
    table = diagnostics.run_endings(runs)
    assert table.loc[(0.01, "None→None"), "ended non-finite"].startswith("2 of 3 [")
    assert table.loc[(0.01, "None→None"), "at step (median)"] == "8"
    assert table.loc[(0.01, "RMSN→RMSN"), "at step (median)"] == "–"
    runs = runs.assign(
        task="mnist1d",
        scale="evening",
        seed=[0, 1, 2, 0, 1, 2],
        growth=[1.0, 2.0, 3.0, 0.5, 0.5, np.nan],
    )
    text = answers.why_it_works(runs, runs[:5], "went on")
    assert "median of the runs: None→None 2.0, RMSN→RMSN 0.5.\n" in text
    assert (
        "Runs that ended non-finite at lr 0.01: None→None 2 of 3, RMSN→RMSN 0 of 3. One of the "
        "runs without norms" in text
    )
    assert "trained here again, went on.\n" in text


# notebook 09


def pictures(seeds: int = 3, **gain: float) -> pd.DataFrame:
    """Return the grid, NormVary and its control on images, at 80 % plus the seed and N2's gain."""
    arms = [*map(str, GRID_ARMS), "NormVary>SSM>LN", "NormVary-fixed>SSM>LN"]
    rows = [
        dict(
            task="digits_images",
            arm=arm,
            n1=Arm.parse(arm).n1,
            n2=Arm.parse(arm).n2,
            seed=seed,
            scale="quick",
        )
        | dict(test_accuracy=(80 + seed + gain.get(Arm.parse(arm).n2, 0) + i / 100) / 100)
        for i, arm in enumerate(arms)
        for seed in range(seeds)
    ]
    return pd.DataFrame(rows).assign(status="ok", chance=0.1, best_val_accuracy=0.8)


STEPS = {
    "proposal": ("NormVary>SSM>LN", "LN>SSM>LN"),
    "by mixing": ("NormVary-fixed>SSM>LN", "LN>SSM>LN"),
    "by learning": ("NormVary>SSM>LN", "NormVary-fixed>SSM>LN"),
}


def answered(runs: pd.DataFrame) -> str:
    return answers.answer_on_images(
        runs, runs[runs.arm.isin(map(str, GRID_ARMS))], paired_steps(runs, STEPS)
    )


def test_the_answer_on_images_follows_the_better_norm_after_the_ssm():
    better, worse = answered(pictures(LN=5.0)), answered(pictures(GN=5.0))
    assert "the best pair of the grid is GN→LN" in better or "→LN with" in better
    assert "LN, the paper's choice, minus GN: +" in better
    assert "LN, the paper's choice, minus GN: −" in worse
    assert "clearly above zero" in better.partition("minus GN: +")[2].split(".\n")[0]
    assert "clearly below zero" in worse.partition("minus GN: −")[2].split(".\n")[0]


# notebook 10

CHOSEN = pd.DataFrame(
    dict(block=block, depth=1, label=digit, w0=w0 + 0.01 * digit, sd=0.1)
    for block, w0 in (("blocks.0.n1", 0.2), ("blocks.0.n2", 0.7))
    for digit in range(3)
)


def test_the_answer_on_the_choice_reads_the_weights_the_blends_corrupted_rows_and_rivals():
    gap = dict(
        corrupted=50.0, change=-20.0, accuracy_gap=pd.Series([-12.0]), change_gap=pd.Series([3.0])
    )
    held = pd.DataFrame(
        [
            dict(task="digits_images", kind="noise", arm=arm, **gap)
            for arm in ("FrozenDyT", "FrozenLN")
        ]
    )
    blends = pd.DataFrame(
        [dict(step="learned − random", task="digits_images", difference=8.0, low=5.0, high=11.0)]
    )
    runs = pd.DataFrame(
        [dict(task="digits_images", arm="AutoNorm", seed=0, scale="quick", status="ok")]
    )
    how = dict(weights=CHOSEN, corrupted=held, ratios={"diabetes": 1.5})
    _, _, *lines = answers.answer_on_choice(
        runs, blends[:0], blends, blends[:0], **how
    ).splitlines()
    assert (
        "started at 0.5 and ended at 0.21 (blocks.0.n1) and 0.71 (blocks.0.n2) (one run)."
        in lines[0]
    )
    assert (
        lines[1] == "- **AutoNorm**, digits_images: learned − random +8.0 points [5.0, 11.0], "
        "clearly above zero"
    )
    assert lines[2].startswith("- **Under noise**, against FrozenLN: FrozenDyT −12.0")
    assert "(difference in the change from clean images +3.0" in lines[2]
    assert lines[3:] == [
        "- **diabetes**: the best model on validation has 1.50 times the RMSE of boosted trees"
    ]
    nothing = dict(weights=CHOSEN[:0], corrupted=held[:0], ratios={})
    empty = answers.answer_on_choice(runs, blends[:0], blends[:0], blends[:0], **nothing)
    assert empty.endswith("- **What is chosen**: No selector was recorded.")


def test_selectors_of_a_trained_model_are_drawn_by_class():
    (ax, bar) = figures.fig_selector(CHOSEN, "one run").axes
    assert (ax.get_xlabel(), ax.get_title(loc="left"), bar.get_ylabel()) == (
        "class",
        "by class",
        "w₀: 0 = LN, 1 = DyT",
    )


# notebook 14

ENDS = pd.DataFrame(
    dict(
        treatment=name,
        seed=seed,
        failed=bits is None,
        step=steps,
        bits=np.nan if bits is None else bits,
    )
    for name, steps, values in (
        ("as it is", 9, (None, None)),
        ("norm", 60, (3.0, 3.2)),
        ("clipped", 20, (None, 4.0)),
        ("slow", 60, (4.6, 4.8)),
    )
    for seed, bits in enumerate(values)
)


def test_the_answer_on_cures_names_the_start_and_counts_failed_finite_and_idle_treatments():
    text = answers.what_cures(ENDS, "quick", 4.5, "`a.out_proj`")
    assert text.startswith("**Answer** (quick scale, 2 seeds: a sketch; ")
    assert "- First not finite: `a.out_proj`.\n" in text
    assert (
        "- Runs failed: as it is (2 of 2, the first after 9 steps) and clipped (1 of 2, the first "
        "after 20 steps).\n" in text
    )
    assert (
        "- Finite in every seed, the lowest loss first: norm (3.10 bits ± 0.14) and slow (4.70 "
        "bits ± 0.14).\n" in text
    )
    assert text.endswith(
        "Staying finite is not learning: slow ended no lower than the 4.50 bits of a model that "
        "knows only how common each character is."
    )
    assert "Staying finite" not in answers.what_cures(ENDS, "quick", 5.0, "")
    assert answers.what_cures(ENDS[ENDS.failed], "quick", 5.0, "").endswith(
        "the lowest loss first: none."
    )
