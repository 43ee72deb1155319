"""Error rates and power of the rule: simulated studies whose truth is known, judged by the
functions of rule.py.

A simulated study has one run an arm and seed; a comparison is the difference of two arms. Learning
rates need no simulation: they are chosen on other seeds, so they are independent of the noise of
the test.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mambanorm_study.claims import rule
from mambanorm_study.claims.claim import SMALLEST_EFFECT
from mambanorm_study.claims.plan import PROTOCOL
from mambanorm_study.tables.run_tables import markdown_table

# The standard deviation of a run's accuracy around the mean of its arm, in points, as in the
# recorded runs.
SD = 1.3

# How far from the marks those comparisons lie that must not decide, in points.
FAR = 20.0

# How a claim uses its comparisons: their number, and whether one suffices.
STRUCTURES = {"one comparison": (1, False), "one of five": (5, True), "all of four": (4, False)}

# A true effect at a mark, in points → the word that would be wrong there.
WRONG = {0.0: rule.SUPPORTED, SMALLEST_EFFECT: rule.NO_GAIN}

SCENARIOS = {
    "plain": "normal noise",
    "t3": "heavy tails: Student's t with 3 degrees of freedom",
    "unequal": "arms whose noise differs up to ninefold",
    "skewed": "the noise of the claim's side is exponential: seldom far above its mean",
    "failing": "5 % of all runs fail, which costs 40 points",
    "one side fails": "5 % of the runs of the claim's side fail, and the others are 2 points better",
}
UNSEEN = "one side fails"
RECORDED = PROTOCOL.with_name("CALIBRATION.md")


def draw(truths: list[float], scenario: str, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Return the differences (comparisons, seeds) of one study: each arm minus a common one, with
    these true means."""
    shape = (len(truths) + 1, seeds)
    noise = (
        rng.standard_t(3, shape) / np.sqrt(3) if scenario == "t3" else rng.standard_normal(shape)
    )
    if scenario == "skewed":
        noise[1:] = rng.standard_exponential((len(truths), seeds)) - 1
    if scenario == "unequal":
        noise = noise * 3.0 ** rng.uniform(-1, 1, (len(noise), 1))
    if scenario == "failing":
        noise = noise - 40 / SD * (rng.random(shape) < 0.05)
    differences = np.array(truths)[:, None] + SD * (noise[1:] - noise[0])
    if scenario == UNSEEN:  # the true mean includes the failures
        differences += 40 * (0.05 - (rng.random(differences.shape) < 0.05))
    return differences


def truths_of(structure: str, truth: float) -> list[float]:
    """Return the true effects of a claim's comparisons, such that a wrong word is as likely as it
    can be: where the wrong word needs all comparisons, all but one lie far on its side."""
    comparisons, one_suffices = STRUCTURES[structure]
    others = truth if one_suffices == (truth == 0) else -FAR if one_suffices else FAR
    return [truth] + [others] * (comparisons - 1)


def simulate(
    structure: str, truth: float, scenario: str = "plain", *, seeds: int = 8, studies: int = 1_000
) -> dict[str, float]:
    """Return the share of each word among simulated studies whose true effect is `truth`, in
    points."""
    comparisons, one_suffices = STRUCTURES[structure]
    levels, truths, rng = (
        rule.levels(comparisons, one_suffices),
        truths_of(structure, truth),
        np.random.default_rng(0),
    )
    counts = dict.fromkeys(rule.WORDS, 0)
    for _ in range(studies):
        words = [
            rule.word_of(row, SMALLEST_EFFECT, *levels)
            for row in draw(truths, scenario, seeds, rng)
        ]
        counts[rule.word_of_claim(words, one_suffices)] += 1
    return {word: count / studies for word, count in counts.items()}


def calibrate(studies: int = 1_000) -> pd.DataFrame:
    """Return one row for each scenario, structure, number of seeds and true effect: how often each
    word comes out, and `wrong`, how often the wrong one (NaN where the effect is at no mark)."""
    rows = []
    for scenario in SCENARIOS:
        for structure in STRUCTURES:
            effects = (*WRONG, 2.0, 4.0) if structure == "one comparison" else WRONG
            for seeds, truth in ((seeds, truth) for seeds in (8, 12) for truth in effects):
                cell = dict(
                    scenario=scenario,
                    seeds=seeds,
                    structure=structure,
                    truth=truth,
                    studies=studies,
                )
                cell |= simulate(structure, truth, scenario, seeds=seeds, studies=studies)
                rows.append(cell | dict(wrong=cell.get(WRONG.get(truth), np.nan)))
    return pd.DataFrame(rows)


def errors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return scenario and seeds × structure: the share of wrong words in per cent, "supported at 0
    / no gain at +1"."""
    edge = frame.dropna(subset="wrong")
    edge = edge.assign(
        percent=(100 * edge.wrong).map("{:.1f}".format),
        row=edge.scenario + ", " + edge.seeds.map(str),
    )
    return (
        edge.groupby(["row", "structure"], sort=False)
        .percent.agg(" / ".join)
        .unstack()
        .rename_axis("scenario, seeds")
    )


def found(frame: pd.DataFrame) -> pd.DataFrame:
    """Return true effect × seeds: the share of "supported" in per cent, for one comparison under
    plain noise."""
    plain = frame[(frame.scenario == "plain") & (frame.structure == "one comparison")]
    return (
        (100 * plain.pivot(index="truth", columns="seeds", values=rule.SUPPORTED))
        .round()
        .astype(int)
    )


def calibration_text(frame: pd.DataFrame) -> str:
    """Return all of it as Markdown."""
    seen, unseen = frame[frame.scenario != UNSEEN], frame[frame.scenario == UNSEEN]
    worst = seen.loc[seen.wrong.idxmax()]
    return f"""# How often the verdicts are wrong

Simulated studies, judged by the functions of the rule, {frame.studies.min():,} a cell: `mambanorm calibrate`. A run
has a standard deviation of {SD} points. The most frequent wrong word is *{WRONG[worst.truth]}* at a true effect of
{worst.truth:+g}, in {100 * worst.wrong:.1f} % of studies ({worst.structure}, {worst.seeds} seeds, {worst.scenario}).

## Wrong words at the two marks, per cent: supported at 0 / no gain at +1

Scenario and number of seeds × how the claim uses its comparisons.

{markdown_table(errors(seen))}

{chr(10).join(f"- {name}: {text}" for name, text in SCENARIOS.items() if name != UNSEEN)}

## What no rule sees

Failures that are too rare to occur in the sample. Here {SCENARIOS[UNSEEN]},
so that both sides are equal if failures count as chance. Most samples contain no failure, and the word is *supported*:

{markdown_table(errors(unseen))}

That is why every verdict prints how many runs failed, with an exact interval: 0 of 12 failed runs still allow a failure
rate of up to 26 %.

## Supported, per cent, by true effect (points) and number of seeds

{markdown_table(found(frame))}
"""
