"""How often the rule is wrong, and how often it finds what is there: whole made-up studies through the real `judge`.

A study is the frame of all runs that a claim needs, with results that are made up: what the arms' means are, is known.
It has what a real one has: a level that a seed gives to every arm, noise of each run, validation accuracies that differ
from the test's, three learning rates to choose from, and what its scenario adds.

    SCENARIOS       what a study may have besides
    means           the truth: at the boundary from either side, k × the threshold, all arms equal, the paper's numbers
    study           one made-up study
    simulate        so many of them → how often each verdict comes out; calibration.py makes a table of it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm.claims.comparisons import NONE, Comparison
from mambanorm.claims.hypotheses import CONTROL, UNEVEN, Claim, find_claim
from mambanorm.claims.needed import needed
from mambanorm.claims.verdict import VERDICTS, judge
from mambanorm.study.paper import paper_values

TASK = {"sequence": "digits", "vision": "digits_images"}
CHANCE = 10.0  # per cent
BOUNDARY = {"not above": "reproduced", "not below": "contradicted"}
"""Truths at the boundary (a claim just fails to hold; it just holds) and the verdict that would be wrong."""
STUDIES = 1_000
PAPER_SD = 0.5  # points, of the paper's own numbers planted: its Table 2 has 0.15 to 0.75


@dataclass(frozen=True)
class Scenario:
    """What a made-up study has, in points of accuracy (per cent).

    sd: noise of a run, of test and of validation; shared: what a seed gives to every arm; curve: what the three rates
    give; mixed: each arm has the curve in an order of its own. tails: degrees of freedom of Student's t, 0 = normal
    noise; unequal: the arms' sd run from 1/3 of it to 3 × it; rows: accuracies are counts of so many test rows. luck:
    share of the variance of an arm's noise that is the same for every seed, because their test rows overlap.
    diverges: share of the runs that diverge of the side that could win by luck; its other runs are better by as much,
    so that its mean stays where it is, a diverged run scored as chance. how: each "run" by itself, a "seed" at all
    rates at once, "chosen": at the best rate alone, or "collapse": not diverged, but at chance. base: where the arms
    are, far: how far those lie off that are not at the boundary. task: another one than the digits.
    """

    what: str
    sd: float = 1.4
    shared: float = 2.0
    curve: tuple[float, float, float] = (-4.0, 0.0, -4.0)
    mixed: bool = False
    tails: int = 0
    unequal: bool = False
    rows: int = 0
    luck: float = 0.0
    diverges: float = 0.0
    how: str = "run"
    task: str = ""
    base: float = 50.0
    far: float = 20.0


SCENARIOS = {
    "plain": Scenario("normal noise, one rate clearly best"),
    "flat": Scenario("all three rates equal: chosen by noise", curve=(0.0, 0.0, 0.0)),
    "rates": Scenario("rates 1.4 points apart, in another order in each arm", curve=(-1.4, 0.0, -2.8), mixed=True),
    "tails": Scenario("heavy tails: Student's t with 3 degrees of freedom", tails=3),
    "unequal": Scenario("arms whose noise differs up to ninefold", unequal=True),
    "ties": Scenario("50 test rows: accuracies in steps of 2 points, many ties", sd=0.0, rows=50),
    "overlap": Scenario("a quarter of the noise's variance is the same for all seeds: splits that overlap", luck=0.25),
    "ceiling": Scenario("arms at 97 to 100 %", 0.0, 0.2, curve=(-1.0, 0.0, -1.0), rows=359, base=97.0, far=2.5),
    "little overlap": Scenario("ListOps, whose splits overlap by a tenth", task="listops"),
    "diverges 5 %": Scenario("the side that could win by luck diverges in 5 % of its runs", diverges=0.05),
    "diverges 10 %": Scenario("the same in 10 %", diverges=0.10),
    "by seed": Scenario("the same in 10 % of its seeds, at all rates at once", diverges=0.10, how="seed"),
    "at one rate": Scenario("the same in 10 % of its runs at the best rate alone", diverges=0.10, how="chosen"),
    "collapses": Scenario("10 % of its runs end at chance, but finite", diverges=0.10, how="collapse"),
}
BROKEN = ("by seed", "at one rate", "collapses")
"""Scenarios in which what the rule takes for granted is not so: shown apart, the limits are not promised for them."""

INSIDE = ("plain", "tails")
"""Scenarios that mean something for the claims of §4.6, which do not look at accuracies."""
CONTROLS = {
    "paper": Scenario("the paper's printed numbers", PAPER_SD, PAPER_SD, (0.0, 0.0, 0.0), base=0.0),
    "equal": Scenario("all arms equal"),
}


@lru_cache(maxsize=128)
def skeleton(claim_id: str, seeds: int = 8, scale: str = "quick", task: str = "") -> pd.DataFrame:
    """The runs that a claim needs, without results."""
    claim = find_claim(claim_id)
    names = ("run_id", "task", "arm", "seed", "scale", "lr", "n_layers", "train_rows", "role")
    configs = needed(claim, seeds, [task or TASK[claim.kind]], scale)
    frame = pd.DataFrame([{name: getattr(config, name) for name in names} for config in configs])
    frame = frame.astype({name: object for name in ("run_id", "task", "arm", "scale", "role")})  # plain text is faster
    return frame.set_axis(frame.columns.astype(object), axis=1)


def deciding(claim: Claim) -> list[list[Comparison]]:
    """The comparisons that decide; of each group all, because any of them may be chosen."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in claim.comparisons:
        if comparison.decides:
            groups.setdefault(comparison.group or comparison.name, []).append(comparison)
    return list(groups.values())


def targets(claim: Claim, truth: str | float, far: float) -> np.ndarray:
    """What each deciding comparison truly is, beyond its threshold: "not above", one more would have to hold; "not
    below", just enough hold; a number k, every one is k thresholds, or k − 1 units above a threshold of 0."""
    m = len(deciding(claim))
    u = claim.at_least or m
    if truth == "not above":
        return np.array([far] * (u - 1) + [0.0] * (m - u + 1))
    if truth == "not below":
        return np.array([0.0] * u + [-far] * (m - u))
    return np.full(m, (float(truth) - 1) * unit_of(claim))


def unit_of(claim: Claim) -> float:
    """What effects are multiples of: the threshold; of the claim whose threshold is 0 (H12) what counts as uneven."""
    return abs(claim.threshold) or UNEVEN


def means(claim: Claim, truth: str | float, far: float = 20.0) -> dict[str, float]:
    """Arm → points off the base: the comparisons are what `targets` says; "equal": none; "paper": its numbers."""
    if truth == "equal":
        return {}
    if truth == "paper":
        return _paper_means(claim)
    groups, arms = deciding(claim), claim.arms
    above = targets(claim, truth, far)
    if claim.comparisons[0].column == "spread":
        return _spread_means(claim, above)
    weights, wanted = [], []
    for group, value in zip(groups, above, strict=True):
        for comparison in group:
            weights.append([comparison.weights.get(arm, 0.0) for arm in arms])
            wanted.append(claim.threshold_of(comparison) + value)
    return dict(zip(arms, np.linalg.pinv(np.array(weights)) @ np.array(wanted), strict=True))


def printed_arms(claim: Claim) -> dict[str, float]:
    """The claim's arms whose accuracies the paper prints, per cent."""
    values = paper_values(claim.kind)
    values = values[(values.task == claim.printed_on) & values.arm.isin(claim.arms)]
    return dict(zip(values.arm, 100 * values.accuracy, strict=True))


def _paper_means(claim: Claim) -> dict[str, float]:
    """What the paper prints; the arms that it does not print, in its favour."""
    known = printed_arms(claim)
    better, worse = min(max(known.values()) + 5, 95.0), max(min(known.values()) - 5, 5.0)
    weight = {arm: sum(c.weights.get(arm, 0.0) for c in claim.comparisons if c.decides) for arm in claim.arms}
    return {arm: known.get(arm, better if weight[arm] > 0 else worse) for arm in claim.arms}


def _spread_means(claim: Claim, above: np.ndarray) -> dict[str, float]:
    """Four arms of a variance: those of the narrowest have 4 points², the others as much more as is wanted."""
    pattern, found = np.array([-1.5, -0.5, 0.5, 1.5]), {}
    pattern /= pattern.std(ddof=1)
    for comparison, value in zip(claim.comparisons, above, strict=True):
        for sign, variance in ((-1, 4.0), (1, max(4.0 + claim.threshold + value, 0.0))):
            mine = [arm for arm, weight in comparison.weights.items() if sign * weight > 0]
            found |= dict(zip(mine, pattern * np.sqrt(variance), strict=True))
    return found


def study(
    frame: pd.DataFrame,
    effects: Mapping[str, float],
    rng: np.random.Generator,
    scenario: Scenario,
    diverging: Iterable[str] = (),
) -> pd.DataFrame:
    """The frame with results: arms at `base` + their effect (points), as the scenario says."""
    seed, rate = (np.unique(frame[name].to_numpy(), return_inverse=True)[1] for name in ("seed", "lr"))
    arm, arms = pd.factorize(frame.arm.to_numpy(object))
    place = np.tile(np.arange(3), (len(arms), 1))
    if scenario.mixed:
        place = rng.permuted(place, axis=1)
    mean = scenario.base + np.array([effects.get(name, 0.0) for name in arms])
    p = np.where(np.isin(arms, list(diverging)), scenario.diverges, 0.0)
    mean = (mean - p * CHANCE) / (1 - p)
    expected = (
        mean[arm]
        + np.array(scenario.curve)[place[arm, rate]]
        + scenario.shared * rng.standard_normal(seed.max() + 1)[seed]
    )
    sd = scenario.sd * (3.0 ** rng.permutation(np.linspace(-1, 1, len(arms)))[arm] if scenario.unequal else 1.0)
    noise = rng.standard_normal((2, len(frame))) if not scenario.tails else _tails(rng, scenario.tails, (2, len(frame)))
    if scenario.luck:
        noise = np.sqrt(1 - scenario.luck) * noise
        noise[0] += np.sqrt(scenario.luck) * rng.standard_normal(len(arms))[arm]
    accuracy = np.clip((expected + sd * noise) / 100, 0.0, 1.0)
    if scenario.rows:
        accuracy = rng.binomial(scenario.rows, np.clip(accuracy, 0.0, 0.999)) / scenario.rows
    lost = rng.random(len(frame)) < p[arm]
    if scenario.how == "seed":
        lost = rng.random((len(arms), seed.max() + 1))[arm, seed] < p[arm]
    elif scenario.how == "chosen":
        lost &= np.array(scenario.curve)[place[arm, rate]] == max(scenario.curve)
    elif scenario.how == "collapse":
        accuracy, lost = np.where(lost, CHANCE / 100, accuracy), np.zeros(len(frame), bool)
    status = pd.Series(np.where(lost, "diverged", "ok"), dtype=object)
    return frame.assign(status=status, test_accuracy=accuracy[0], best_val_accuracy=accuracy[1], chance=CHANCE / 100)


def _tails(rng: np.random.Generator, df: int, size: tuple[int, int]) -> np.ndarray:
    """Student's t, scaled to a standard deviation of 1."""
    return rng.standard_t(df, size) / np.sqrt(df / (df - 2))


def simulate(
    claim_id: str | Claim,
    truth: str | float,
    scenario: str | Scenario = "plain",
    *,
    seeds: int = 8,
    studies: int = STUDIES,
    seed: int = 0,
    scale: str = "quick",
) -> dict[str, float]:
    """How often each verdict comes out of made-up studies whose truth is known; only the verdicts that came out."""
    claim = find_claim(claim_id)
    setting = (SCENARIOS | CONTROLS)[scenario] if isinstance(scenario, str) else scenario
    rng, frame = np.random.default_rng(seed), skeleton(claim.id, seeds, scale, setting.task)
    if claim.runs == "tuned":
        effects, side = means(claim, truth, setting.far), -1 if truth == "not below" else 1
        side = -side if claim.comparisons[0].column == "spread" else side  # a mean that is too high narrows its side
        weight = {arm: sum(c.weights.get(arm, 0.0) for c in claim.comparisons if c.decides) for arm in claim.arms}
        lucky = [arm for arm in claim.arms if side * weight[arm] > 0]
        frames = (study(frame, effects, rng, setting, lucky) for _ in range(studies))
    else:
        frames = (_inside(claim, frame, truth, rng, setting) for _ in range(studies))
    found = Counter(judge(claim, made_up, scale=scale).verdict for made_up in frames)
    return {name: found[name] / studies for name in VERDICTS if found[name]}


def _inside(claim: Claim, frame: pd.DataFrame, truth, rng: np.random.Generator, setting: Scenario) -> pd.DataFrame:
    """Claims of §4.6: their numbers instead of accuracies, with noise; failures as they may happen."""
    frame = frame.assign(status="ok", test_accuracy=0.5, best_val_accuracy=0.5, chance=CHANCE / 100)
    if claim.runs == "failure":
        return _failures(claim, frame, truth, rng)
    for column, (mean, sd) in _inner_means(claim, truth).items():
        noise = rng.standard_normal(len(frame)) if not setting.tails else _tails(rng, setting.tails, (1, len(frame)))[0]
        frame = frame.assign(**{column: frame.arm.map(mean).to_numpy(float) + sd * noise})
    failed = np.full(len(frame), claim.runs in ("growth", "failing")) & (frame.arm == NONE).to_numpy()
    return frame.assign(status=np.where(failed, "diverged", "ok").astype(object))


def _inner_means(claim: Claim, truth: str | float) -> dict[str, tuple[dict[str, float], float]]:
    """Column → (arm → mean, noise of a run): half a unit, and of the laws 2 AIC."""
    if claim.runs == "growth":
        return _growth_means(claim, truth)
    found, above, unit = {}, targets(claim, truth, 10.0 * unit_of(claim)), unit_of(claim)
    for column in dict.fromkeys(c.column for c in claim.comparisons):
        mine = [(c, value) for c, value in zip(claim.comparisons, above, strict=True) if c.column == column]
        weights = np.array([[c.weights.get(arm, 0.0) for arm in claim.arms] for c, _ in mine])
        wanted = np.array([claim.threshold_of(c) + value for c, value in mine])
        level = 20 * unit  # far from 0: without norms there is unevenness to lose
        mean = dict(
            zip(claim.arms, level + np.linalg.pinv(weights) @ (wanted - level * weights.sum(axis=1)), strict=True)
        )
        found[column] = mean, unit / 2
    return found


def _growth_means(claim: Claim, truth: str | float) -> dict[str, tuple[dict[str, float], float]]:
    """None, before, after, both. At the boundary of "not above" is only the norm after, of "not below" everything."""
    flat = claim.threshold
    k = 6.0 if truth == "not above" else 1.0 if truth == "not below" else float(truth)
    after, both = 1.0 if truth == "not above" else 1 / min(k, 2.0), float(k == 1)
    growth = dict(zip(claim.arms, (flat * k, flat * k, flat * after, flat * both), strict=True))
    return {"growth": (growth, flat / 5), "law": (dict.fromkeys(claim.arms, 4.0 * (k - 1)), 2.0)}


def _failures(claim: Claim, frame: pd.DataFrame, truth, rng: np.random.Generator) -> pd.DataFrame:
    """None→None fails with the wanted probability in each cell, the control never."""
    cells = list(dict.fromkeys(zip(frame.n_layers, frame.lr, strict=True)))
    half = claim.threshold / 100
    if truth == "not above":
        p = dict.fromkeys(cells, half)
    elif truth == "not below":
        p = {cell: half * (i == 0) for i, cell in enumerate(cells)}
    else:
        p = dict.fromkeys(cells, min(half * (1 + 0.33 * (float(truth) - 1)), 1.0))
    chance = np.array([p[cell] for cell in zip(frame.n_layers, frame.lr, strict=True)]) * (frame.arm != CONTROL)
    return frame.assign(status=np.where(rng.random(len(frame)) < chance, "diverged", "ok"))
