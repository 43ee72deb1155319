"""Claims as data: a source's sentence, and the comparisons that would show it.

A comparison is a weighted sum of arms; the side that the source calls better has positive weights.
The functions below the two classes make the comparisons of §4.2 to §4.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm_study.basics.settings import FLAT
from mambanorm_study.tables.paper import MAIN_TASKS, printed_difference

NONE, NO_NUMBER = "None>SSM>None", "no number printed"
# The model with norms on both sides that is held beside None→None where that one fails (H9, H16).
CONTROL = "RMSN>SSM>RMSN"

# Column of the evidence → unit of a comparison in it; pp are percentage points.
UNITS = {
    "score": "pp",
    "noise": "pp",
    "rotation": "pp",
    "noise_change": "pp",
    "rotation_change": "pp",
    "bits": "bits a character",  # with a minus, so that more is better
    "range": "pp",
    "growth": "decades in 8 blocks",
    "steepness": "decades in 8 blocks",
    "law": "AIC",
    "sigma_rise": "log₁₀ of the variance",
    "sigma_trend": "log₁₀, slope over depth",
    "unevenness": "log₁₀ of the ratio",
    "headroom": "decades",
    "sharpening": "nats",
    "fragility": "log₁₀ of the change",
    "reach": "decades of the rate",
}

# The smallest effect of interest of every accuracy claim, in percentage points.
SMALLEST_EFFECT = 1.0

# Decades: the smallest effect of interest on a learning rate, a quarter more (E2, H13); log₁₀ 1.1,
# a tenth more (H11, H16); log₁₀ 1.05, blocks whose weight norms differ by 5 % (H12).
HIGHER_RATE, TENTH, UNEVEN = 0.1, 0.041, 0.021

# The last letter of a claim's id → the kind of task that it is about.
KINDS = {"s": "sequence", "v": "vision", "l": "language"}


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of arms that is above zero if the claim is right: {"None>SSM>GN": 1,
    "GN>SSM>None": -1}.

    column: what is measured of a run (study/scores.py). offset: added to the sum. smallest: the
    smallest effect of interest; None = the claim's. group: of the comparisons of one group,
    validation chooses one. decides: False for a comparison that is printed beside the claim and has
    no part in its word.
    """

    name: str
    weights: Mapping[str, float]
    column: str = "score"
    offset: float = 0.0
    smallest: float | None = None
    group: str = ""
    decides: bool = True
    without: str = ""  # the norm that a mean over the norms leaves out

    @property
    def unit(self) -> str:
        return UNITS[self.column]


@dataclass(frozen=True)
class Claim:
    """One claim of a source: its sentence, and the comparisons that would show it."""

    id: str
    words: str  # the claim in our words
    quote: str  # the source's sentence
    where: str  # where the source says it
    quantity: str
    comparisons: tuple[Comparison, ...]
    paper: str = NO_NUMBER  # the numbers that the source prints
    smallest: float = SMALLEST_EFFECT
    runs: str = "tuned"  # each arm at the learning rate that validation chose; else a list of study/experiments.py
    one_suffices: bool = False  # whether one deciding comparison suffices; else all must hold
    measured: str = ""  # why the claim has numbers and no word; "" = it has a word
    paper_task: str = (
        ""  # where the paper prints the numbers of these arms; "" = its main experiment
    )
    note: str = ""

    @property
    def kind(self) -> str:
        return KINDS[self.id[-1]]

    @property
    def printed_on(self) -> str:
        """The task on which the paper prints numbers; "" if it has none of this kind."""
        return "" if self.id.startswith("E") else self.paper_task or MAIN_TASKS.get(self.kind, "")

    def printed(self, comparison: Comparison, task: str) -> float:
        """Return the comparison in the paper's numbers, in points; NaN without them. Those of its
        main experiments are printed beside every task, those of a task that this kit has too
        (ListOps, for H8s) beside that task only."""
        here = self.printed_on if task == self.paper_task.lower() or not self.paper_task else ""
        known = here and self.runs == "tuned" and comparison.column == "score"
        return printed_difference(comparison.weights, self.kind, here) if known else float("nan")

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm the claim compares, once each."""
        return tuple(
            dict.fromkeys(arm for comparison in self.comparisons for arm in comparison.weights)
        )

    @property
    def deciding(self) -> list[list[Comparison]]:
        """The comparisons that decide, each a list: of its group, from which validation chooses
        one, or of itself."""
        groups: dict[str, list[Comparison]] = {}
        for comparison in self.comparisons:
            if comparison.decides:
                groups.setdefault(comparison.group or comparison.name, []).append(comparison)
        return list(groups.values())

    @property
    def asks(self) -> str:
        """The comparisons that must lie above zero: `one of 5: BN→BN − None→None; IN→IN −
        None→None; …`."""
        if self.measured:
            return f"no word: {self.measured}"
        names = [group[0].group or group[0].name for group in self.deciding]
        if len(names) == 1:
            return names[0]
        return f"{'one of' if self.one_suffices else 'all'} {len(names)}: {'; '.join(names)}"

    def smallest_of(self, comparison: Comparison) -> float:
        return self.smallest if comparison.smallest is None else comparison.smallest


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
    """The mean over the norms, as Figure 6 draws it. Beside it each norm of Table 1, and the mean
    without each one: does one of them carry it?"""
    each = [minus(pair("None", n), pair(n, "None"), decides=False) for n in norms]

    def over(some: Sequence[str], name: str, **options) -> Comparison:
        return against(
            name,
            mean(pair("None", n) for n in some),
            mean(pair(n, "None") for n in some),
            **options,
        )

    without = (
        over(
            [n for n in norms if n != left], f"the mean without {left}", decides=False, without=left
        )
        for left in norms
    )
    return over(norms, f"mean over {len(each)} norms: None→N − N→None"), *each, *without


def combinations_against_type() -> tuple[Comparison, ...]:
    """A group for each N2: the four other norms before it, each against N2 on both sides; one is
    chosen (Figure 7)."""
    return tuple(
        minus(pair(n1, n2), pair(n2, n2), group=f"best→{n2} − {n2}→{n2}")
        for n2 in NORM_CHOICES
        for n1 in NORM_CHOICES
        if n1 != n2
    )


def mean(arms: Iterable[str]) -> dict[str, float]:
    """Return arm → its weight in the mean of all."""
    names = list(arms)
    return dict.fromkeys(names, 1 / len(names))


def against(
    name: str, better: Mapping[str, float], worse: Mapping[str, float], **options: object
) -> Comparison:
    """One weighted sum of arms minus another; an arm that cancels is none."""
    weights = dict(better)
    for arm, weight in worse.items():
        weights[arm] = weights.get(arm, 0.0) - weight
    return Comparison(name, {arm: weight for arm, weight in weights.items() if weight}, **options)


def _over_n1(n2: str) -> dict[str, float]:
    """The mean of an N2 over the same five norms before it, itself among them (Figure 8)."""
    return mean(pair(n1, n2) for n1 in NORM_CHOICES)


def marginal_means(best: str) -> tuple[Comparison, ...]:
    """The mean of one N2 minus the mean of each other."""
    others = [n2 for n2 in NORM_CHOICES if n2 != best]
    return tuple(
        against(f"mean of ·→{best} − mean of ·→{n2}", _over_n1(best), _over_n1(n2)) for n2 in others
    )


def ranges(first: str) -> tuple[Comparison, ...]:
    """The range of an N2 over the norms before it (Figure 8); of one N2 first, then of the
    others."""
    n2s = (first, *(n2 for n2 in NORM_CHOICES if n2 != first))
    return tuple(
        Comparison(f"range of ·→{n2}", _over_n1(n2), column="range", decides=False) for n2 in n2s
    )


def normvary_steps(n2: str, original: str) -> tuple[Comparison, ...]:
    """The paper's step; beside it, what tells NormVary's share of it from N2's, from mere mixing
    (I7), and what the proposal is worth over its second norm alone."""
    before, after, _ = Arm.parse(original)
    steps = [(pair("NormVary", n2), original), (pair("NormVary", n2), pair(before, n2))]
    if after != n2:
        steps.append((pair("NormVary", after), original))
    steps += [
        (pair("NormVary", n2), pair("NormVary-fixed", n2)),
        (pair("NormVary", n2), pair("None", n2)),
    ]
    return tuple(minus(*step, decides=step == steps[0]) for step in dict.fromkeys(steps))


def causal_steps() -> tuple[Comparison, ...]:
    """The same step for a language model, with NormVary and GN within one token."""
    both, original = pair("NormVary-token", "GN-token"), pair("RMSN", "None")
    return (
        minus(both, original),
        minus(both, pair("RMSN", "GN-token"), decides=False),
        minus(pair("NormVary-token", "None"), original, decides=False),
        minus(both, pair("None", "GN-token"), decides=False),
    )


def growth(norm: str = "BN") -> tuple[Comparison, ...]:
    """§4.6 and Figure 9, part by part; the last line is "the scale disparity between layers is
    further reduced"."""
    none, before, after, both = (
        pair(*n) for n in (("None", "None"), (norm, "None"), ("None", norm), (norm, norm))
    )
    label = {arm: Arm.parse(arm).label for arm in (none, before, after, both)}
    return (
        Comparison(f"{label[none]} grows", {none: 1.0}, column="growth"),
        Comparison(f"{label[before]} grows", {before: 1.0}, column="growth"),
        Comparison(f"{label[none]} exponentially (AIC)", {none: 1.0}, column="law", smallest=0.0),
        Comparison(
            f"{label[before]} exponentially (AIC)", {before: 1.0}, column="law", smallest=0.0
        ),
        Comparison(f"{label[after]} flat", {after: -1.0}, column="steepness", offset=FLAT),
        Comparison(f"{label[both]} flat", {both: -1.0}, column="steepness", offset=FLAT),
        Comparison(
            f"{label[both]} flatter than {label[after]}",
            {after: 1.0, both: -1.0},
            column="steepness",
        ),
    )


def spectra(control: str = "RMSN>SSM>None") -> tuple[Comparison, ...]:
    """What the failing run's singular values do in the second half of its life, minus the control's
    at those steps."""
    own = {NONE: 1.0, control: -1.0}
    return (
        Comparison(
            "rise of the variance across blocks, against the control", own, column="sigma_rise"
        ),
        Comparison("more growth in deeper blocks, against the control", own, column="sigma_trend"),
    )


def evenness() -> tuple[Comparison, ...]:
    """The unevenness without a norm minus that with one after the SSM."""
    return tuple(minus(NONE, pair("None", n), column="unevenness") for n in NORM_CHOICES)
