"""How often the rule is wrong, and how often it finds what is there: made-up studies through the functions of rule.py.

A made-up study has what a real one has: a level that a seed gives to every arm, noise of each run, validation that
shares part of the test's noise, three learning rates to choose from, and what its scenario adds. Thousands are drawn
and judged at once, as arrays (studies, arms, rates, seeds). A test holds that `judge` says the same word of such a
study in a run frame. The paper's own numbers, and arms that are all equal: benchmarks/controls.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from mambanorm.basics.atomic import replacing
from mambanorm.basics.errors import unknown
from mambanorm.claims import rule
from mambanorm.claims.claim import SMALLEST_EFFECT, Claim, Comparison
from mambanorm.claims.hypotheses import find_claim
from mambanorm.claims.protocol import PROTOCOL, VERSION
from mambanorm.runs.recorded_results import RESULTS
from mambanorm.study.tables import markdown_table

BASE, CHANCE = 50.0, 10.0  # per cent
SHARED = 2.0  # points, the spread of what a seed gives to every arm
POOL, TEST_ROWS = 1_797, 359
FAR = 20.0
"""How far those comparisons lie off that are not at the threshold, in points."""
STUDIES = 1_000
AT_ONCE = 1_000

WRONG = {"not above": "reproduced", "not below": "contradicted"}
"""Truths at the threshold (a claim just fails to hold; it just holds) and the word that would be wrong."""
SEEDS = (8, 12)
EFFECTS = (1.0, 2.0, 4.0)
"""Points beyond the threshold, of every deciding comparison."""
LIMIT = 0.035
"""What a wrong word at the threshold may be at most, of all studies."""

WHO = {
    "H8s": "one comparison",
    "H3s": "the mean of five",
    "H1s": "one of five",
    "H2s": "all of four",
    "H2v": "three of four",
    "H5s": "the best of four, five times",
    "H6s": "means of five, all of four",
}
"""The claims that are simulated: every tuned accuracy claim is judged as one of them. H7 is a range; H9 to H13,
H16, E1 and E2 have one run an arm and seed, which leaves a plain t-interval, or an exact one."""


@dataclass(frozen=True)
class Scenario:
    """sd: noise of a run in points; alike: the correlation of test and validation noise; curve: what the three rates
    give, flat: all give the same in the arms of the side that could win by luck. tails: degrees of freedom of Student's
    t, 0 = normal; unequal: the arms' sd run from 1/3 of it to 3 × it; pool: every seed tests and validates on 359 of
    the same 1,797 rows, and the truth is about these. diverges: share of the runs that diverge of the claim's side,
    by_seed: at all rates of a seed at once."""

    what: str
    sd: float = 1.3
    alike: float = 0.65
    curve: tuple[float, ...] = (-4.0, 0.0, -4.0)
    flat: bool = False
    tails: int = 0
    unequal: bool = False
    pool: bool = False
    diverges: float = 0.0
    by_seed: bool = False


SCENARIOS = {
    "plain": Scenario("normal noise, one rate clearly best"),
    "tied rates": Scenario("all three rates of every arm give the same", curve=(0.0, 0.0, 0.0)),
    "larger sd": Scenario("twice the noise", sd=2.6),
    "t3": Scenario("heavy tails: Student's t with 3 degrees of freedom", tails=3),
    "unequal": Scenario("arms whose noise differs up to ninefold", unequal=True),
    "overlapping rows": Scenario("every seed tests on 359 rows of one pool of 1,797", pool=True),
    "diverges 2 %": Scenario("the arms of the claim's side diverge in 2 % of their runs", diverges=0.02),
    "diverges 5 %": Scenario("the same in 5 %", diverges=0.05),
    "diverges 10 %": Scenario("the same in 10 %", diverges=0.10),
    "by seed": Scenario("the same on 10 % of the seeds, at all rates at once", diverges=0.10, by_seed=True),
    "flat against sharp": Scenario(
        "the rates of the side that could win by luck give the same, correlation .8", flat=True, alike=0.8
    ),
}


def deciding(claim: Claim) -> list[list[Comparison]]:
    """The comparisons that decide; of each group all, because any of them may be chosen."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in claim.comparisons:
        if comparison.decides:
            groups.setdefault(comparison.group or comparison.name, []).append(comparison)
    return list(groups.values())


def targets(claim: Claim, truth: str | float) -> np.ndarray:
    """What each deciding comparison truly is, beyond its threshold: "not above", one more would have to hold; "not
    below", just enough hold; a number, every one is so many points."""
    m = len(deciding(claim))
    u = claim.at_least or m
    if truth == "not above":
        return np.array([FAR] * (u - 1) + [0.0] * (m - u + 1))
    if truth == "not below":
        return np.array([0.0] * u + [-FAR] * (m - u))
    return np.full(m, float(truth))


def means(claim: Claim, truth: str | float) -> dict[str, float]:
    """Arm → per cent, such that the comparisons are what `targets` says."""
    weights, wanted = [], []
    for group, value in zip(deciding(claim), targets(claim, truth), strict=True):
        for comparison in group:
            weights.append([comparison.weights.get(arm, 0.0) for arm in claim.arms])
            wanted.append(claim.threshold_of(comparison) + value)
    found = BASE + np.linalg.pinv(np.array(weights)) @ np.array(wanted)
    return dict(zip(claim.arms, found.tolist(), strict=True))


class Studies(NamedTuple):
    """(studies, arms, rates, seeds), per cent: what a run has in the test and on validation if it ends, and whether it
    diverged."""

    test: np.ndarray
    validation: np.ndarray
    diverged: np.ndarray


def draw(
    claim: Claim, truth: str | float, scenario: Scenario, seeds: int, studies: int, rng: np.random.Generator
) -> Studies:
    """Made-up studies whose arms have the means of the truth at their best rate."""
    mean, arms = means(claim, truth), claim.arms
    weight = np.array([sum(c.weights.get(arm, 0.0) for c in claim.comparisons if c.decides) for arm in arms])
    lucky = np.sign(weight) == (-1 if truth == "not below" else 1)
    shape = (studies, len(arms), len(scenario.curve), seeds)

    def noise() -> np.ndarray:
        return rng.standard_t(scenario.tails, shape) / 3**0.5 if scenario.tails == 3 else rng.standard_normal(shape)

    curve = np.where(scenario.flat & lucky[:, None], 0.0, np.array(scenario.curve))  # (arms, rates)
    expected = np.array([mean[arm] for arm in arms])[:, None, None] + curve[..., None]
    expected = expected + SHARED * rng.standard_normal((studies, 1, 1, seeds))
    sd = np.full((studies, len(arms)), scenario.sd)
    if scenario.unequal:
        sd = sd * 3.0 ** rng.permuted(np.tile(np.linspace(-1, 1, len(arms)), (studies, 1)), axis=1)
    both = scenario.alike**0.5 * noise()
    test, validation = (
        expected + sd[..., None, None] * (both + (1 - scenario.alike) ** 0.5 * noise()) for _ in ("test", "validation")
    )
    if scenario.pool:
        test, validation = (_of_pool(values, rng) for values in (test, validation))
    happens = rng.random((studies, len(arms), 1 if scenario.by_seed else shape[2], seeds)) < scenario.diverges
    diverged = np.broadcast_to(happens & (weight > 0)[:, None, None], shape)
    return Studies(np.clip(test, 0, 100), np.clip(validation, 0, 100), diverged)


def _of_pool(accuracy: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """What TEST_ROWS rows of the pool show of a run that gets this per cent of the pool right."""
    right = np.round(np.clip(accuracy, 0, 100) / 100 * POOL).astype(int)
    return 100 * rng.hypergeometric(right, POOL - right, TEST_ROWS) / TEST_ROWS


def words(claim: Claim, made: Studies) -> np.ndarray:
    """(studies,) the word of each."""
    groups = deciding(claim)
    one_sided = rule.levels(len(groups), claim.at_least)
    scores = np.where(made.diverged, np.nan, made.test)
    validation = np.where(made.diverged, CHANCE, made.validation)
    states = []
    for group in groups:
        weights = np.array([[c.weights.get(arm, 0.0) for arm in claim.arms] for c in group])
        used, threshold = weights.any(axis=0), claim.threshold_of(group[0])
        mine = weights[:, used], scores[:, used], validation[:, used]
        states.append(rule.compare(*mine, SMALLEST_EFFECT, threshold, one_sided)[0].state)
    return rule.decide(np.stack(states, axis=-1), claim.at_least)


def simulate(
    claim_id: str | Claim,
    truth: str | float,
    scenario: str = "plain",
    *,
    seeds: int = 8,
    studies: int = STUDIES,
    seed: int = 0,
) -> dict[str, float]:
    """How often each word comes out of made-up studies whose truth is known; only the words that came out. ValueError
    for a claim that is not tuned, or compares no accuracies."""
    claim, setting = find_claim(claim_id), SCENARIOS[scenario]
    if claim.runs != "tuned" or claim.comparisons[0].column != "score":
        raise ValueError(
            f"{claim.id} compares no accuracies of tuned arms: it is not simulated (known: {', '.join(WHO)})"
        )
    rng, found = np.random.default_rng(seed), []
    for start in range(0, studies, AT_ONCE):
        found.append(words(claim, draw(claim, truth, setting, seeds, min(AT_ONCE, studies - start), rng)))
    found = np.concatenate(found)
    return {word: float((found == word).mean()) for word in rule.VERDICTS if (found == word).any()}


# ----------------------------------------------------------------------------------------------------------- the table


def calibrate(
    claims: Iterable[str] | None = None, scenarios: Iterable[str] | None = None, studies: int = STUDIES
) -> pd.DataFrame:
    """One row a cell: claim, scenario, truth, seeds, studies, and the share of each word. Errors at the threshold in
    every scenario, and power, each at every number of SEEDS. ValueError for an unknown claim or scenario."""
    from tqdm.auto import tqdm

    if wrong := [name for name in scenarios or () if name not in SCENARIOS]:
        raise unknown("scenario", wrong[0], SCENARIOS)
    asked = [(truth, name) for name in scenarios or SCENARIOS for truth in WRONG]
    asked += [(effect, "plain") for effect in EFFECTS]
    cells = [(find_claim(name).id, seeds, *cell) for name in claims or WHO for seeds in SEEDS for cell in asked]
    rows = []
    for claim, seeds, truth, scenario in tqdm(cells, unit="cell"):
        said = truth if isinstance(truth, str) else f"+{truth:g}"
        facts = dict(claim=claim, scenario=scenario, truth=said, seeds=seeds, studies=studies)
        rows.append(facts | simulate(claim, truth, scenario, seeds=seeds, studies=studies))
    return pd.DataFrame(rows).reindex(columns=[*COLUMNS, *rule.VERDICTS]).fillna(dict.fromkeys(rule.VERDICTS, 0.0))


COLUMNS = ["claim", "scenario", "truth", "seeds", "studies"]
RECORDED = RESULTS / "calibration.csv"
READABLE = PROTOCOL.with_name("CALIBRATION.md")


def recorded_calibration() -> pd.DataFrame:
    """The table of the repository; empty if it was not made."""
    return pd.read_csv(RECORDED) if RECORDED.is_file() else pd.DataFrame(columns=[*COLUMNS, *rule.VERDICTS])


def record_calibration(frame: pd.DataFrame) -> tuple:
    """Writes the table of the repository, as data and to read; returns where."""
    for path, text in ((RECORDED, frame.to_csv(index=False)), (READABLE, calibration_text(frame))):
        with replacing(path) as temporary:
            temporary.write_text(text, "utf-8")
    return RECORDED, READABLE


def wrong(frame: pd.DataFrame) -> pd.DataFrame:
    """The cells at the threshold, with the share of the wrong word in the column `share`."""
    edge = frame[frame.truth.isin(WRONG)]
    return edge.assign(share=[row[WRONG[row["truth"]]] for row in edge.to_dict("records")])


def errors(frame: pd.DataFrame, seeds: int) -> pd.DataFrame:
    """claim × scenario: how often the word at the threshold is wrong, per cent, "reproduced / contradicted"."""
    edge = wrong(frame[frame.seeds == seeds])
    table = edge.pivot_table(index="claim", columns="scenario", values="share", sort=False, aggfunc=_per_cent)
    return table.rename(index=named)


def _per_cent(shares: pd.Series) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares)


def named(claim: str) -> str:
    return f"{claim}, {WHO[claim]}" if claim in WHO else claim


def worst(frame: pd.DataFrame) -> pd.DataFrame:
    """scenario × wrong word: how often it comes out for the claim and number of seeds where it is so most often, per
    cent; and what the scenario is. No row for no cell."""
    table = wrong(frame).pivot_table(index="scenario", columns="truth", values="share", aggfunc="max", sort=False)
    table = (100 * table).round(1).rename(columns={truth: f"falsely {word}" for truth, word in WRONG.items()})
    return table.assign(studies=[SCENARIOS[name].what for name in table.index])


def power(frame: pd.DataFrame) -> pd.DataFrame:
    """claim × seeds: how often it is reproduced, per cent, if every comparison lies EFFECTS beyond its threshold."""
    rows = frame[frame.truth.astype(str).str.startswith("+")]
    table = rows.pivot_table(index="claim", columns="seeds", values="reproduced", sort=False, aggfunc=_per_cent)
    return table.rename(index=named)


def in_short(frame: pd.DataFrame) -> str:
    """The largest share of wrong words, and how many cells are above LIMIT."""
    edge = wrong(frame)
    if edge.empty:
        return ""
    top, over = edge.loc[edge.share.idxmax()], edge[edge.share > LIMIT]
    return (
        f"The wrong word that comes most often at the threshold is *{WRONG[top.truth]}*, in {100 * top.share:.1f} % of "
        f"studies ({top.claim}, {top.seeds} seeds, {top.scenario}); of {len(edge)} cells {len(over)} lie above "
        f"{100 * LIMIT:.1f} %."
    )


def calibration_text(frame: pd.DataFrame) -> str:
    """All of it as Markdown."""
    studies = ", ".join(f"{n:,}" for n in dict.fromkeys(frame.studies))
    parts = [
        f"# How often the verdicts are wrong, protocol {VERSION}",
        f"Made-up studies through the functions of the rule, {studies} a cell: `mambanorm calibrate`. "
        f"{in_short(frame)}",
    ]
    tables = {
        f"Wrong at the threshold: reproduced / contradicted, per cent, {n} seeds": errors(frame, n)
        for n in dict.fromkeys(frame.seeds)
    }
    beyond = " / ".join(f"{effect:g}" for effect in EFFECTS)
    tables[f"Found: reproduced, per cent, {beyond} points beyond the threshold, by seeds"] = power(frame)
    parts += [f"## {title}\n\n{markdown_table(table)}" for title, table in tables.items() if len(table)]
    asked = [f"- {name}: {SCENARIOS[name].what}" for name in dict.fromkeys(frame.scenario) if name in SCENARIOS]
    plain = SCENARIOS["plain"]
    noise = (
        f"Noise of a run {plain.sd} points, of a seed {SHARED:g}; test and validation noise correlated by "
        f"{plain.alike}, as in the recorded runs; arms at {BASE:g} %, chance {CHANCE:g} %. A truth at the threshold: "
        f"as many comparisons as can be lie {FAR:g} points off, the others at it."
    )
    return "\n\n".join([*parts, "## Scenarios\n\n" + "\n".join(asked), noise]) + "\n"
