"""Error rates and power of the rule, from simulated studies with known true effects.

The rule (rule.py) gives a verdict, such as "supported", on a claim and on each of its comparisons.
A simulated study has one run for each arm and seed; a comparison is the difference between the
accuracies of two arms. Learning rates are not simulated, because they are chosen on other seeds, so
the choice is independent of the noise on the test seeds.
"""

from itertools import product

import numpy as np
import pandas as pd

from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import SMALLEST_EFFECT
from mambanorm_study.claims.plan import PROTOCOL
from mambanorm_study.tables.run_tables import markdown_table

# The standard deviation, in percentage points, of the accuracies of recorded runs around the mean
# accuracy of their arm.
SD = 1.3

# The true effect, in percentage points, of comparisons that are so clear that they cannot decide
# the verdict on the claim.
CLEAR_EFFECT = 20.0

# Structure of a claim, i.e. how it uses its comparisons → (number of comparisons, True if it
# suffices that one of them is supported).
STRUCTURES = {"one comparison": (1, False), "one of five": (5, True), "all of four": (4, False)}

# True effect in percentage points → the verdict that is wrong at this effect. Wrong verdicts are
# counted at zero and at the smallest effect of interest.
WRONG = {0.0: rule.SUPPORTED, SMALLEST_EFFECT: rule.NO_GAIN}

# In the scenarios "failing" and UNSEEN: the share of runs that fail, and by how many percentage
# points a failure lowers the accuracy of a run.
FAILURE_SHARE, FAILURE_COST = 0.05, 40

UNSEEN = "one side fails"
SCENARIOS = {
    "plain": "normal noise",
    "t3": "heavy tails: Student's t with 3 degrees of freedom",
    "unequal": "arms whose noise differs up to ninefold",
    "skewed": "the noise of the claim's side is exponential, so a few runs lie far above its mean",
    "failing": "5 % of all runs fail, which costs 40 points",
    UNSEEN: "5 % of the runs of the claim's side fail, and the others are 2 points better",
}
RECORDED = PROTOCOL.with_name("CALIBRATION.md")


def draw_differences(
    true_effects: list[float], scenario: str, seeds: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the simulated differences of one study in percentage points, as an array of shape
    (comparisons, seeds). Each comparison is one arm minus an arm that all comparisons share.

    true_effects: the true mean of each comparison. scenario: a key of SCENARIOS. seeds: the number
    of seeds.
    """
    shape = (len(true_effects) + 1, seeds)
    is_t3 = scenario == "t3"
    noise = rng.standard_t(3, shape) / np.sqrt(3) if is_t3 else rng.standard_normal(shape)
    if scenario == "skewed":
        noise[1:] = rng.standard_exponential((len(true_effects), seeds)) - 1
    if scenario == "unequal":
        noise = noise * 3.0 ** rng.uniform(-1, 1, (len(noise), 1))
    if scenario == "failing":
        noise = noise - FAILURE_COST / SD * (rng.random(shape) < FAILURE_SHARE)
    differences = np.array(true_effects)[:, None] + SD * (noise[1:] - noise[0])
    if scenario == UNSEEN:  # the mean cost of failures is added, so the true means stay
        differences += FAILURE_COST * (
            FAILURE_SHARE - (rng.random(differences.shape) < FAILURE_SHARE)
        )
    return differences


def least_favourable_effects(structure: str, true_effect: float) -> list[float]:
    """Return the true effects of a claim's comparisons, in percentage points, with which a wrong
    verdict on the claim is most likely.

    If a wrong verdict on one comparison is enough for the wrong verdict on the claim, all
    comparisons have the effect `true_effect`. If the wrong verdict is needed on all comparisons,
    one comparison has the effect `true_effect`, and the other comparisons have an effect of
    CLEAR_EFFECT or −CLEAR_EFFECT, which makes the wrong verdict on them nearly certain.

    structure: a key of STRUCTURES.
    """
    comparisons, one_suffices = STRUCTURES[structure]
    if one_suffices == (true_effect == 0):
        return [true_effect] * comparisons
    return [true_effect] + [-CLEAR_EFFECT if one_suffices else CLEAR_EFFECT] * (comparisons - 1)


def simulate(
    structure: str,
    true_effect: float,
    scenario: str = "plain",
    *,
    seeds: int = 8,
    studies: int = 1_000,
) -> dict[str, float]:
    """Return a map from each verdict to the share of simulated studies that end with this verdict,
    if the true effect is `true_effect` percentage points.

    structure: the structure of the claim, a key of STRUCTURES. scenario: a key of SCENARIOS. seeds:
    the number of seeds of a study. studies: the number of studies.
    """
    comparisons, one_suffices = STRUCTURES[structure]
    levels, true_effects = (
        rule.levels(comparisons, one_suffices),
        least_favourable_effects(structure, true_effect),
    )
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(rule.WORDS, 0)
    for _ in range(studies):
        differences = draw_differences(true_effects, scenario, seeds, rng)
        verdicts = [rule.comparison_verdict(row, SMALLEST_EFFECT, *levels) for row in differences]
        counts[rule.claim_verdict(verdicts, one_suffices)] += 1
    return {verdict: count / studies for verdict, count in counts.items()}


def calibrate(studies: int = 1_000) -> pd.DataFrame:
    """Return how often simulated studies end with each verdict, as a DataFrame with one row for
    each scenario, structure of the claim, number of seeds and true effect.

    Columns: scenario, seeds, structure (a key of STRUCTURES), truth (the true effect in percentage
    points), studies (their number), one column for each verdict (the share of studies that end with
    it), wrong (the share of studies whose verdict is wrong at this effect; NaN if the effect is not
    in WRONG).
    """
    rows = []
    effects = (*WRONG, 2.0, 4.0)
    for scenario, structure, seeds, truth in product(SCENARIOS, STRUCTURES, (8, 12), effects):
        if truth in WRONG or structure == "one comparison":
            shares = simulate(structure, truth, scenario, seeds=seeds, studies=studies)
            rows.append(
                {
                    "scenario": scenario,
                    "seeds": seeds,
                    "structure": structure,
                    "truth": truth,
                    "studies": studies,
                    **shares,
                    "wrong": shares.get(WRONG.get(truth), np.nan),
                }
            )
    return pd.DataFrame(rows)


def wrong_verdicts(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the shares of wrong verdicts in per cent, with one row for each scenario
    and number of seeds, and one column for each structure of the claim. A cell is a text with two
    shares, such as `2.1 / 2.4`: the share of "supported" at a true effect of 0, and the share of
    "no gain" at a true effect of +1 point.

    frame: the result of `calibrate`.
    """
    at_marks = frame.dropna(subset="wrong")
    at_marks = at_marks.assign(
        percent=(100 * at_marks.wrong).map("{:.1f}".format),
        row=at_marks.scenario + ", " + at_marks.seeds.map(str),
    )
    cells = at_marks.groupby(["row", "structure"], sort=False).percent.agg(" / ".join)
    return cells.unstack().rename_axis("scenario, seeds")


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the share of studies with the verdict "supported", in per cent, for claims
    with one comparison and normal noise. It has one row for each true effect in percentage points,
    and one column for each number of seeds.

    frame: the result of `calibrate`.
    """
    plain = frame[(frame.scenario == "plain") & (frame.structure == "one comparison")]
    shares = plain.pivot(index="truth", columns="seeds", values=rule.SUPPORTED)
    return (100 * shares).round().astype(int)


def calibration_text(frame: pd.DataFrame) -> str:
    """Return the text of CALIBRATION.md. frame: the result of `calibrate`."""
    is_unseen = frame.scenario == UNSEEN
    seen = frame[~is_unseen]
    worst = seen.loc[seen.wrong.idxmax()]
    scenarios = "\n".join(f"- {name}: {text}" for name, text in SCENARIOS.items() if name != UNSEEN)
    return TEXT.format(
        studies=frame.studies.min(),
        sd=SD,
        worst=worst,
        worst_word=WRONG[worst.truth],
        worst_percent=100 * worst.wrong,
        wrong_seen=markdown_table(wrong_verdicts(seen)),
        scenarios=scenarios,
        unseen=SCENARIOS[UNSEEN],
        wrong_unseen=markdown_table(wrong_verdicts(frame[is_unseen])),
        power=markdown_table(power(frame)),
    )


TEXT = """# How often the verdicts are wrong

Simulated studies, judged by the functions of the rule, {studies:,} per cell: `mambanorm calibrate`.
A run has a standard deviation of {sd} points. The most frequent wrong word is *{worst_word}* at a
true effect of {worst.truth:+g}, in {worst_percent:.1f} % of studies ({worst.structure},
{worst.seeds} seeds, {worst.scenario}).

## Wrong words at the two marks, per cent: supported at 0 / no gain at +1

Scenario and number of seeds × how the claim uses its comparisons.

{wrong_seen}

{scenarios}

## What no rule sees

The rule cannot see failures that are too rare to occur in the sample. Here {unseen},
so that both sides are equal if failures count as chance. Most samples contain no failure, and the
word is *supported*:

{wrong_unseen}

That is why every verdict prints how many runs failed, with an exact interval: 0 of 12 failed runs
still allow a failure rate of up to 26 %.

## Supported, per cent, by true effect (points) and number of seeds

{power}
"""
