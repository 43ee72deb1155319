"""Error rates and power of the rule, from simulated studies with known true effects.

The rule (rule.py) gives a claim, and each of its comparisons, a word such as "supported". A
simulated study has one run for each arm and seed; a comparison is the difference of two arms.
Learning rates are not simulated: they are chosen on other seeds, so the choice is independent of
the noise on the test seeds.
"""

from itertools import product

import numpy as np
import pandas as pd

from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import SMALLEST_EFFECT
from mambanorm_study.claims.plan import PROTOCOL
from mambanorm_study.tables.run_tables import markdown_table

# The standard deviation of a run's accuracy around the mean of its arm in the recorded runs, in
# points.
SD = 1.3

# The true effect, in points, of comparisons that are so clear that they do not decide the word.
CLEAR_EFFECT = 20.0

# How a claim uses its comparisons → (number of comparisons, True if one suffices).
STRUCTURES = {"one comparison": (1, False), "one of five": (5, True), "all of four": (4, False)}

# The true effects at which wrong words are counted, zero and the smallest effect of interest, in
# points → the word that is wrong at this effect.
WRONG = {0.0: rule.SUPPORTED, SMALLEST_EFFECT: rule.NO_GAIN}

# The share of runs that fail in the last two scenarios, and by how many points a failure lowers the
# accuracy.
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
    truths: list[float], scenario: str, seeds: int, rng: np.random.Generator
) -> np.ndarray:
    """Return simulated differences of one study, of shape (comparisons, seeds), whose true means
    are `truths`. Each comparison is one arm minus an arm that all comparisons share.
    """
    shape = (len(truths) + 1, seeds)
    is_t3 = scenario == "t3"
    noise = rng.standard_t(3, shape) / np.sqrt(3) if is_t3 else rng.standard_normal(shape)
    if scenario == "skewed":
        noise[1:] = rng.standard_exponential((len(truths), seeds)) - 1
    if scenario == "unequal":
        noise = noise * 3.0 ** rng.uniform(-1, 1, (len(noise), 1))
    if scenario == "failing":
        noise = noise - FAILURE_COST / SD * (rng.random(shape) < FAILURE_SHARE)
    differences = np.array(truths)[:, None] + SD * (noise[1:] - noise[0])
    if scenario == UNSEEN:  # the true mean includes the failures
        differences += FAILURE_COST * (
            FAILURE_SHARE - (rng.random(differences.shape) < FAILURE_SHARE)
        )
    return differences


def truths_of(structure: str, truth: float) -> list[float]:
    """Return true effects of a claim's comparisons, one or all of which equal `truth`, such that a
    wrong word of the claim is as likely as possible.

    If one comparison alone can make the claim's word wrong, all comparisons have the effect
    `truth`. If the claim has the wrong word only when all comparisons have this word, one
    comparison has the effect `truth`, and the effects of the others are far on the side of this
    word.
    """
    comparisons, one_suffices = STRUCTURES[structure]
    if one_suffices == (truth == 0):
        return [truth] * comparisons
    return [truth] + [-CLEAR_EFFECT if one_suffices else CLEAR_EFFECT] * (comparisons - 1)


def simulate(
    structure: str, truth: float, scenario: str = "plain", *, seeds: int = 8, studies: int = 1_000
) -> dict[str, float]:
    """Return a dictionary from word to the share of simulated studies with this word, if the true
    effect is `truth` points.

    structure: a key of STRUCTURES. scenario: a key of SCENARIOS.
    """
    comparisons, one_suffices = STRUCTURES[structure]
    levels, truths = rule.levels(comparisons, one_suffices), truths_of(structure, truth)
    rng = np.random.default_rng(0)
    counts = dict.fromkeys(rule.WORDS, 0)
    for _ in range(studies):
        differences = draw_differences(truths, scenario, seeds, rng)
        words = [rule.word_of(row, SMALLEST_EFFECT, *levels) for row in differences]
        counts[rule.word_of_claim(words, one_suffices)] += 1
    return {word: count / studies for word, count in counts.items()}


def calibrate(studies: int = 1_000) -> pd.DataFrame:
    """Return how often simulated studies end with each word of the rule.

    One row for each scenario, structure of the claim (STRUCTURES), number of seeds and true effect;
    a column for each word holds its share of the studies. `wrong`: the share of studies whose word
    is wrong for this effect; NaN if the effect is not in WRONG.
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


def wrong_words(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the shares of wrong words in per cent: one row for each scenario and number
    of seeds, one column for each structure. A cell is text with two shares: that of "supported" at
    a true effect of 0 / that of "no gain" at a true effect of +1 point.
    """
    at_marks = frame.dropna(subset="wrong")
    at_marks = at_marks.assign(
        percent=(100 * at_marks.wrong).map("{:.1f}".format),
        row=at_marks.scenario + ", " + at_marks.seeds.map(str),
    )
    cells = at_marks.groupby(["row", "structure"], sort=False).percent.agg(" / ".join)
    return cells.unstack().rename_axis("scenario, seeds")


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table of the share of "supported" in per cent for one comparison under plain noise:
    one row for each true effect, one column for each number of seeds.
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
        wrong_seen=markdown_table(wrong_words(seen)),
        scenarios=scenarios,
        unseen=SCENARIOS[UNSEEN],
        wrong_unseen=markdown_table(wrong_words(frame[is_unseen])),
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
