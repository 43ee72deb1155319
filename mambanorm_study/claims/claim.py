"""Claims as data: a source's sentence, the comparisons that would show it, and the runs it needs.

A comparison is a weighted sum of arms; the side that the source calls better has positive weights.
The functions below the two classes make the comparisons of §4.2 to §4.6.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm_study.basics.settings import FLAT
from mambanorm_study.tables.paper import MAIN_TASKS, printed_difference

NONE, NO_NUMBER = "None>SSM>None", "no number printed"
# The model with norms on both sides that None→None is compared with where it fails (H9, H16).
CONTROL = "RMSN>SSM>RMSN"

# Column of the evidence → unit of a comparison in it; pp are percentage points.
UNITS = {
    "score": "pp",
    "noise": "pp",
    "rotation": "pp",
    "noise_change": "pp",
    "rotation_change": "pp",
    "bits": "bits a character",  # negated, so that more is better
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

# Smallest effects of interest in log₁₀: a learning rate a quarter higher (E2, H13), a tenth more
# (H11, H16), and blocks whose weight norms differ by 5 % (H12).
HIGHER_RATE, TENTH, UNEVEN = 0.1, 0.041, 0.021

# The last letter of a claim's id → its kind of task.
KINDS = {"s": "sequence", "v": "vision", "l": "language"}

# Kind of task → the task of its claims at the default scale.
MAIN_TASK = {"sequence": "curves", "vision": "glyphs_images", "language": "pydoc"}

# The test seeds that every claim has at the default scale, and those that some claims have besides
# on their main task.
TEST_SEEDS, FURTHER_TEST_SEEDS = tuple(range(52, 64)), tuple(range(64, 76))

# The seeds of claims on runs with fixed learning rates (`mnist1d` at the default scale): on
# failures, on the inside of models, and on ladders of learning rates. Version 11 recorded and read
# these runs.
FAILURE_SEEDS, INSIDE_SEEDS = tuple(range(40, 80)), tuple(range(40, 60))
LADDER_SEEDS = tuple(range(40, 48))


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of arms that is above zero if the claim is right: {"None>SSM>GN": 1,
    "GN>SSM>None": -1}.

    column: the column of the evidence (tables/scores.py) that is compared. offset: added to the
    sum. smallest: the smallest effect of interest; None = the claim's. group: validation chooses
    one comparison of each group. decides: False for a comparison that is printed beside the claim
    and does not affect its word.
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
        """The unit of the difference."""
        return UNITS[self.column]


@dataclass(frozen=True)
class Claim:
    """One claim of a source: its sentence, the comparisons that would show it, and its runs.

    runs: "tuned" for arms at the learning rate that validation chose; else the list of
    tables/experiments.py whose learning rates are part of the question. other_tasks and seeds: the
    tasks besides its kind's main task, and the test seeds, at the default scale; further_seeds:
    those on its main task only. The recording and PROTOCOL.md read these fields, so a claim is
    recorded wherever it is listed.
    """

    id: str
    words: str  # the claim in our words
    quote: str  # the source's sentence
    where: str  # where the source says it
    quantity: str
    comparisons: tuple[Comparison, ...]
    paper: str = NO_NUMBER  # the numbers that the source prints
    smallest: float = SMALLEST_EFFECT
    runs: str = "tuned"
    one_suffices: bool = False  # True if one deciding comparison suffices; else all must hold
    measured: str = ""  # why the claim has numbers and no word; "" = it has a word
    paper_task: str = ""  # where the paper prints numbers of these arms; "" = its main experiment
    note: str = ""
    other_tasks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = TEST_SEEDS
    further_seeds: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """The kind of task: sequence, vision or language."""
        return KINDS[self.id[-1]]

    @property
    def beyond_the_paper(self) -> bool:
        """True for claims about later models, which the paper does not make."""
        return self.id.startswith("E")

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of a claim on tuned arms at the default scale."""
        return MAIN_TASK[self.kind], *self.other_tasks

    @property
    def printed_on(self) -> str:
        """The task on which the paper prints numbers; "" if it has none of this kind."""
        if self.beyond_the_paper:
            return ""
        return self.paper_task or MAIN_TASKS.get(self.kind, "")

    def printed(self, comparison: Comparison, task: str) -> float:
        """Return the comparison in the paper's numbers, in points; NaN without them.

        Numbers of the paper's main experiments are shown beside every task, those of a task that
        this kit has too (ListOps, for H8s) beside that task only.
        """
        is_shown = not self.paper_task or task == self.paper_task.lower()
        is_printed = self.printed_on and self.runs == "tuned" and comparison.column == "score"
        if not (is_shown and is_printed):
            return float("nan")
        return printed_difference(comparison.weights, self.kind, self.printed_on)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that the claim compares, each once."""
        arms = [arm for comparison in self.comparisons for arm in comparison.weights]
        return tuple(dict.fromkeys(arms))

    @property
    def deciding(self) -> list[list[Comparison]]:
        """The groups of comparisons that decide; a comparison without a group is one alone."""
        groups: dict[str, list[Comparison]] = {}
        for comparison in self.comparisons:
            if comparison.decides:
                groups.setdefault(comparison.group or comparison.name, []).append(comparison)
        return list(groups.values())

    @property
    def asks(self) -> str:
        """The comparisons that must lie above zero: `one of 5: BN→BN − None→None; IN→IN −
        None→None; …`.
        """
        if self.measured:
            return f"no word: {self.measured}"
        names = [group[0].group or group[0].name for group in self.deciding]
        if len(names) == 1:
            return names[0]
        return f"{'one of' if self.one_suffices else 'all'} {len(names)}: {'; '.join(names)}"

    def smallest_of(self, comparison: Comparison) -> float:
        """Return the smallest effect of interest of a comparison."""
        return self.smallest if comparison.smallest is None else comparison.smallest


def pair(n1: str, n2: str) -> str:
    """Return the arm with these norms before and after the SSM."""
    return str(Arm(n1, n2))


def minus(better: str, worse: str, **options) -> Comparison:
    """Return the comparison of one arm minus another."""
    name = f"{Arm.parse(better).label} − {Arm.parse(worse).label}"
    return Comparison(name, {better: 1.0, worse: -1.0}, **options)


def mean(arms: Iterable[str]) -> dict[str, float]:
    """Return arm → its weight in the mean of all."""
    names = list(arms)
    return dict.fromkeys(names, 1 / len(names))


def against(
    name: str, better: Mapping[str, float], worse: Mapping[str, float], **options: object
) -> Comparison:
    """Return one weighted sum of arms minus another, without the arms that cancel."""
    weights = dict(better)
    for arm, weight in worse.items():
        weights[arm] = weights.get(arm, 0.0) - weight
    return Comparison(name, {arm: weight for arm, weight in weights.items() if weight}, **options)


def types_against_none(norms: Sequence[str] = NORM_CHOICES) -> tuple[Comparison, ...]:
    """Return N→N minus None→None for each norm (Figure 5)."""
    return tuple(minus(pair(n, n), NONE) for n in norms)


def type_against_each(best: str) -> tuple[Comparison, ...]:
    """Return one type minus each other type (Figure 5)."""
    return tuple(minus(pair(best, best), pair(n, n)) for n in NORM_CHOICES if n != best)


def _mean_after_minus_before(norms: Sequence[str], name: str, **options) -> Comparison:
    after = mean(pair("None", n) for n in norms)
    before = mean(pair(n, "None") for n in norms)
    return against(name, after, before, **options)


def after_against_before(norms: Sequence[str] = NORM_CHOICES) -> tuple[Comparison, ...]:
    """Return the mean of None→N − N→None over the norms (Figure 6), each norm's difference (Table
    1), and the mean without each norm, which shows whether one norm carries it.
    """
    every = _mean_after_minus_before(norms, f"mean over {len(norms)} norms: None→N − N→None")
    each = [minus(pair("None", n), pair(n, "None"), decides=False) for n in norms]
    without = [
        _mean_after_minus_before(
            [n for n in norms if n != omitted],
            f"the mean without {omitted}",
            decides=False,
            without=omitted,
        )
        for omitted in norms
    ]
    return every, *each, *without


def combinations_against_type() -> tuple[Comparison, ...]:
    """Return a group for each N2: the four other norms before it, each against N2 on both sides
    (Figure 7).
    """
    return tuple(
        minus(pair(n1, n2), pair(n2, n2), group=f"best→{n2} − {n2}→{n2}")
        for n2 in NORM_CHOICES
        for n1 in NORM_CHOICES
        if n1 != n2
    )


def _over_n1(n2: str) -> dict[str, float]:
    """Return the mean of an N2 over the same five norms before it, itself among them (Figure 8)."""
    return mean(pair(n1, n2) for n1 in NORM_CHOICES)


def marginal_means(best: str) -> tuple[Comparison, ...]:
    """Return the mean of one N2 minus the mean of each other (Figure 8)."""
    return tuple(
        against(f"mean of ·→{best} − mean of ·→{n2}", _over_n1(best), _over_n1(n2))
        for n2 in NORM_CHOICES
        if n2 != best
    )


def ranges(first: str) -> tuple[Comparison, ...]:
    """Return the range of each N2 over the norms before it (Figure 8), of `first` first."""
    n2s = (first, *(n2 for n2 in NORM_CHOICES if n2 != first))
    return tuple(
        Comparison(f"range of ·→{n2}", _over_n1(n2), column="range", decides=False) for n2 in n2s
    )


def normvary_steps(n2: str, original: str) -> tuple[Comparison, ...]:
    """Return the paper's step from the original to NormVary→N2. Beside it: the parts of the step
    that are NormVary's, N2's and mere mixing's (I7), and the step from N2 alone.
    """
    before, after, _ = Arm.parse(original)
    proposal = pair("NormVary", n2)
    steps = [(proposal, original), (proposal, pair(before, n2))]
    if after != n2:
        steps.append((pair("NormVary", after), original))
    steps += [(proposal, pair("NormVary-fixed", n2)), (proposal, pair("None", n2))]
    return tuple(minus(*step, decides=step == steps[0]) for step in dict.fromkeys(steps))


def causal_steps() -> tuple[Comparison, ...]:
    """Return the same steps for a language model, with NormVary and GN within one token."""
    both, original = pair("NormVary-token", "GN-token"), pair("RMSN", "None")
    return (
        minus(both, original),
        minus(both, pair("RMSN", "GN-token"), decides=False),
        minus(pair("NormVary-token", "None"), original, decides=False),
        minus(both, pair("None", "GN-token"), decides=False),
    )


def growth(norm: str = "BN") -> tuple[Comparison, ...]:
    """Return the parts of §4.6 and Figure 9; the last is "the scale disparity between layers is
    further reduced".
    """
    none, before, after, both = (
        pair(*n) for n in (("None", "None"), (norm, "None"), ("None", norm), (norm, norm))
    )
    label = {arm: Arm.parse(arm).label for arm in (none, before, after, both)}
    grows = [Comparison(f"{label[arm]} grows", {arm: 1.0}, "growth") for arm in (none, before)]
    exponential = [
        Comparison(f"{label[arm]} exponentially (AIC)", {arm: 1.0}, "law", smallest=0.0)
        for arm in (none, before)
    ]
    flat = [
        Comparison(f"{label[arm]} flat", {arm: -1.0}, "steepness", FLAT) for arm in (after, both)
    ]
    flatter = f"{label[both]} flatter than {label[after]}"
    return *grows, *exponential, *flat, Comparison(flatter, {after: 1.0, both: -1.0}, "steepness")


def spectra(control: str = "RMSN>SSM>None") -> tuple[Comparison, ...]:
    """Return the change of the failing run's singular values in the second half of its life, minus
    the control's at the same steps.
    """
    weights = {NONE: 1.0, control: -1.0}
    return (
        Comparison(
            "rise of the variance across blocks, against the control", weights, "sigma_rise"
        ),
        Comparison("more growth in deeper blocks, against the control", weights, "sigma_trend"),
    )


def evenness() -> tuple[Comparison, ...]:
    """Return the unevenness without a norm minus that with each norm after the SSM."""
    return tuple(minus(NONE, pair("None", n), column="unevenness") for n in NORM_CHOICES)
