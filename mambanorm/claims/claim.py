"""What a claim is: a source's sentence, the comparisons that would show it, and how they are judged.

A comparison is a weighted sum of arms; the side that the paper calls better has positive weights. Below the two classes
stand the comparisons of §4.2 to §4.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm.basics.settings import FLAT
from mambanorm.study.paper import MAIN_TASKS

NONE = "None>SSM>None"

UNITS = {
    "score": "pp",
    "noise": "pp",
    "rotation": "pp",
    "noise_change": "pp",
    "rotation_change": "pp",
    "bits": "bits a character",  # with a minus, so that more is better
    "spread": "pp²",
    "growth": "decades in 8 blocks",
    "steepness": "decades in 8 blocks",
    "law": "AIC",
    "sigma_rise": "log₁₀ of the variance",
    "sigma_trend": "log₁₀, slope over depth",
    "unevenness": "log₁₀ of the ratio",
    "headroom": "decades",
    "reach": "decades of the rate",
}
"""Column of the evidence → unit of a comparison in it; pp are percentage points."""

ACCURACIES = ("score", "noise", "rotation")
"""Columns that are accuracies in per cent: on the test rows, and on the same rows corrupted (summaries.py)."""
CORRUPTED = ACCURACIES[1:]


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of arms: {"None>SSM>GN": 1, "GN>SSM>None": -1}.

    group: of the comparisons of one group, one is chosen. threshold: None = the claim's own. decides: False for what is
    shown beside the decision; it costs the decision nothing.
    """

    name: str
    weights: Mapping[str, float]
    group: str = ""
    column: str = "score"  # of the run frame, as evidence.py reads it
    threshold: float | None = None
    decides: bool = True

    @property
    def unit(self) -> str:
        return UNITS[self.column]


SMALLEST_EFFECT = 1.0
"""The smallest effect of interest of every accuracy claim, in percentage points."""

SMALLEST_BITS = 0.01
"""That of every claim about language models, in bits a character: about half a percent of what a small model needs."""

KINDS = {"s": "sequence", "v": "vision", "l": "language"}
"""The last letter of a claim's id → the kind of task that it is about."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper; its sentences, its comparisons, and how they are judged (hypotheses.py)."""

    id: str
    words: str  # what the paper claims, in our words
    quote: str  # the paper's own sentence
    where: str  # and its place
    quantity: str
    direction: str
    paper: str  # the numbers that the paper prints
    comparisons: tuple[Comparison, ...]
    threshold: float = SMALLEST_EFFECT
    runs: str = "tuned"  # each arm at the rate that validation chose; else the fixed runs of evidence.py
    at_least: int | None = None  # how many of the deciding comparisons have to hold: None = all
    select: str = ""  # "best": of each group of comparisons one is chosen by validation
    needs_grid: bool = False  # every pair of norms, not only single ones and types
    paper_task: str = ""  # where the paper prints the numbers of these arms; "" = its main experiment
    note: str = ""

    @property
    def kind(self) -> str:
        return KINDS[self.id[-1]]

    @property
    def beyond(self) -> bool:
        """Whether it is about later models, and no claim of a source of the study (other_sources.py)."""
        return self.id.startswith("E")

    @property
    def unit(self) -> str:
        """The unit of its first comparison; the claim on growth (H10) has comparisons in two units."""
        return "% of runs" if self.runs == "failure" else self.comparisons[0].unit

    @property
    def printed_on(self) -> str:
        """On which of its tasks the paper prints numbers; "" if it has none of this kind."""
        if self.beyond:
            return ""
        return self.paper_task or MAIN_TASKS.get(self.kind, "")

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm the claim compares, once each."""
        return tuple(dict.fromkeys(arm for comparison in self.comparisons for arm in comparison.weights))

    def threshold_of(self, comparison: Comparison) -> float:
        return self.threshold if comparison.threshold is None else comparison.threshold


def pair(n1: str, n2: str) -> str:
    return str(Arm(n1, n2))


def minus(better: str, worse: str, **options) -> Comparison:
    """One arm minus another."""
    name = f"{Arm.parse(better).label} − {Arm.parse(worse).label}"
    return Comparison(name, {better: 1.0, worse: -1.0}, **options)


def types_against_none(norms: Sequence[str] = NORM_CHOICES) -> tuple[Comparison, ...]:
    return tuple(minus(pair(n, n), NONE) for n in norms)


def type_against_each(best: str) -> tuple[Comparison, ...]:
    return tuple(minus(pair(best, best), pair(n, n)) for n in NORM_CHOICES if n != best)


def after_against_before(norms: Sequence[str] = NORM_CHOICES) -> tuple[Comparison, ...]:
    """The mean over the norms, as Figure 6 draws it; beside it each norm of Table 1."""
    each = [minus(pair("None", n), pair(n, "None"), decides=False) for n in norms]
    weights = {arm: weight / len(each) for one in each for arm, weight in one.weights.items()}
    return Comparison(f"mean over {len(each)} norms: None→N − N→None", weights), *each


def combinations_against_type() -> tuple[Comparison, ...]:
    """A group for each N2: the four other norms before it, each against N2 on both sides; one is chosen (Figure 7)."""
    return tuple(
        minus(pair(n1, n2), pair(n2, n2), group=f"best→{n2} − {n2}→{n2}")
        for n2 in NORM_CHOICES
        for n1 in NORM_CHOICES
        if n1 != n2
    )


def mean(arms: Iterable[str]) -> dict[str, float]:
    """Arm → its weight in the mean of all."""
    arms = list(arms)
    return dict.fromkeys(arms, 1 / len(arms))


def against(name: str, better: Mapping[str, float], worse: Mapping[str, float], **options: object) -> Comparison:
    """One weighted sum of arms minus another; an arm that cancels is none."""
    weights = dict(better)
    for arm, weight in worse.items():
        weights[arm] = weights.get(arm, 0.0) - weight
    return Comparison(name, {arm: weight for arm, weight in weights.items() if weight}, **options)


def _over_n1(n2: str) -> dict[str, float]:
    """The mean of an N2 over the four other norms before it, without None and without itself (Figure 8)."""
    return mean(pair(n1, n2) for n1 in NORM_CHOICES if n1 != n2)


def marginal_means(best: str) -> tuple[Comparison, ...]:
    """The mean of one N2 minus the mean of each other."""
    others = [n2 for n2 in NORM_CHOICES if n2 != best]
    return tuple(against(f"mean of ·→{best} − mean of ·→{n2}", _over_n1(best), _over_n1(n2)) for n2 in others)


def spreads(narrowest: str) -> tuple[Comparison, ...]:
    """The arms of each other N2 with positive weights, those of one N2 with negative."""
    names = {n2: f"spread of ·→{n2} − spread of ·→{narrowest}" for n2 in NORM_CHOICES if n2 != narrowest}
    return tuple(against(names[n2], _over_n1(n2), _over_n1(narrowest), column="spread") for n2 in names)


def normvary_steps(n2: str, original: str) -> tuple[Comparison, ...]:
    """The paper's step; beside it, what tells NormVary's share of it from N2's and from mere mixing (I7)."""
    before, after, _ = Arm.parse(original)
    steps = [(pair("NormVary", n2), original), (pair("NormVary", n2), pair(before, n2))]
    if after != n2:
        steps.append((pair("NormVary", after), original))
    steps.append((pair("NormVary", n2), pair("NormVary-fixed", n2)))
    return tuple(minus(*step, decides=step == steps[0]) for step in dict.fromkeys(steps))


def causal_steps() -> tuple[Comparison, ...]:
    """The same step for a language model, with NormVary and GN within one token."""
    both, original = pair("NormVary-token", "GN-token"), pair("RMSN", "None")
    return (
        minus(both, original),
        minus(both, pair("RMSN", "GN-token"), decides=False),
        minus(pair("NormVary-token", "None"), original, decides=False),
    )


def growth(norm: str = "BN") -> tuple[Comparison, ...]:
    """§4.6 and Figure 9, part by part; the last line is "the scale disparity between layers is further reduced"."""
    none, before, after, both = (pair(*n) for n in (("None", "None"), (norm, "None"), ("None", norm), (norm, norm)))
    label = {arm: Arm.parse(arm).label for arm in (none, before, after, both)}
    return (
        Comparison(f"{label[none]} grows", {none: 1.0}, column="growth", threshold=FLAT),
        Comparison(f"{label[before]} grows", {before: 1.0}, column="growth", threshold=FLAT),
        Comparison(f"{label[none]} exponentially (AIC)", {none: 1.0}, column="law", threshold=0.0),
        Comparison(f"{label[before]} exponentially (AIC)", {before: 1.0}, column="law", threshold=0.0),
        Comparison(f"{label[after]} flat", {after: -1.0}, column="steepness", threshold=-FLAT),
        Comparison(f"{label[both]} flat", {both: -1.0}, column="steepness", threshold=-FLAT),
        Comparison(
            f"{label[both]} flatter than {label[after]}", {after: 1.0, both: -1.0}, column="steepness", threshold=0.0
        ),
    )


def spectra(control: str = "RMSN>SSM>None") -> tuple[Comparison, ...]:
    """What the failing run's singular values do in the second half of its life, minus the control's at those steps."""
    own = {NONE: 1.0, control: -1.0}
    return (
        Comparison("rise of the variance across blocks, against the control", own, column="sigma_rise"),
        Comparison("more growth in deeper blocks, against the control", own, column="sigma_trend"),
    )


def evenness() -> tuple[Comparison, ...]:
    """Three quarters of the unevenness without a norm, minus that with one after the SSM: above 0 it took
    a quarter."""
    after = [pair("None", n) for n in NORM_CHOICES]
    names = {arm: f"¾ {Arm.parse(NONE).label} − {Arm.parse(arm).label}" for arm in after}
    return tuple(Comparison(names[arm], {NONE: 0.75, arm: -1.0}, column="unevenness") for arm in after)
