"""The classes `Claim` and `Comparison`, and functions that make comparisons.

A claim is a sentence of a source, with the comparisons of trained models that would confirm the
claim. An arm is a choice of norms, e.g. RMSN>SSM>GN: RMSN before the SSM, and GN after it. A
comparison is a weighted sum of the scores of arms; arms that the claim calls better have positive
weights. The verdict on a claim is, for example, "supported" (rule.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm_study.runs.presets import kind_of
from mambanorm_study.tables.paper import MAIN_TASKS, printed_weighted_sum
from mambanorm_study.tables.run_tables import label
from mambanorm_study.tables.scores import SMALLEST_BITS

NONE, NO_NUMBER = "None>SSM>None", "no number printed"
# The control arm, which has norms on both sides of the SSM. Training fails in many runs of
# None→None; the claims H9 and H16 compare None→None with the control arm.
CONTROL = "RMSN>SSM>RMSN"

# Column that a comparison can use → unit of the differences; pp means percentage points. `scores`
# in tables/scores.py computes most of the columns, and evidence.py computes `range` and `reach`.
UNITS = {
    "score": "pp",
    "noise": "pp",
    "rotation": "pp",
    "noise_change": "pp",
    "rotation_change": "pp",
    "bits": "bits a character",  # the negated loss, so that higher is better
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
    "steps_to_loss": "steps",
    "smallest_a": "in |A|",
    "largest_a": "in |A|",
    "mean_d": "in D",
}

# The smallest effect of interest of every accuracy claim, in percentage points.
SMALLEST_EFFECT = 1.0

# Smallest effects of interest, each the log₁₀ of a ratio: a learning rate that is 25 % higher
# (claims E2 and H13), a quantity that is 10 % larger (H11, H16), and weight norms of blocks that
# differ by 5 % (H12).
HIGHER_RATE, TENTH, UNEVEN = 0.1, 0.041, 0.021

# The last letter of a claim's id → the kind of task that the claim is about.
KINDS = {"s": "sequence", "v": "vision", "l": "language"}

# Kind of task → the main task on which claims about this kind are tested at the default scale.
MAIN_TASK = {"sequence": "curves", "vision": "glyphs_images", "language": "pydoc"}

# At the default scale: the test seeds of every claim about tuned arms (arms whose learning rate is
# chosen by validation), and the additional test seeds of the claims H4 and H8 on their main task.
TEST_SEEDS, FURTHER_TEST_SEEDS = tuple(range(52, 64)), tuple(range(64, 76))

# The seeds of the three kinds of claims whose runs have fixed learning rates (on `mnist1d` at the
# default scale): claims about failures, about activations and weights inside models, and about the
# highest learning rate that trains. Version 11 of the protocol has already judged runs on these
# seeds.
FAILURE_SEEDS, INSIDE_SEEDS = tuple(range(40, 80)), tuple(range(40, 60))
LADDER_SEEDS = tuple(range(40, 48))


@dataclass(frozen=True)
class Comparison:
    """A comparison of arms: a weighted sum of their scores. If the claim is right, the sum is above
    zero.

    weights: a map from arm to weight, such as `{"None>SSM>GN": 1.0, "GN>SSM>None": -1.0}`. column:
    the column of scores that is compared, a key of UNITS. offset: a number added to the sum.
    smallest: the smallest effect of interest; None means that of the claim. group: of all
    comparisons with the same group, only the comparison with the largest mean difference in
    validation scores is judged; "" means no group. decides: False for a comparison that is reported
    but does not affect the verdict on the claim. left_out_norm: the norm that is left out, if the
    comparison is a mean over the other norms, and "" for any other comparison.
    """

    name: str
    weights: Mapping[str, float]
    column: str = "score"
    offset: float = 0.0
    smallest: float | None = None
    group: str = ""
    decides: bool = True
    left_out_norm: str = ""

    @property
    def unit(self) -> str:
        """The unit of the weighted sum of scores, such as "pp"."""
        return UNITS[self.column]


@dataclass(frozen=True)
class Claim:
    """A claim of a source: its sentence, the comparisons that would confirm it, and its runs.

    runs: "tuned" if every arm has the learning rate that validation chose; else the name of a list
    of runs with fixed learning rates (`fixed_runs` in tables/experiments.py). seeds: the test seeds
    at the default scale. further_seeds: additional test seeds at the default scale on the main task
    (MAIN_TASK). other_tasks: the tasks at the default scale in addition to the main task.
    `mambanorm record` and benchmarks/protocol.py read these fields, so a new claim needs no entry
    elsewhere.
    """

    id: str
    words: str  # the claim in our words
    quote: str  # the sentence of the source
    where: str  # where the source says it
    quantity: str  # what is measured
    comparisons: tuple[Comparison, ...]
    paper: str = NO_NUMBER  # the numbers that the source prints
    smallest: float = SMALLEST_EFFECT
    runs: str = "tuned"
    one_suffices: bool = False  # True: one deciding comparison must hold; False: all must hold
    why_no_word: str = ""  # why the claim is measured but has no verdict; "" if it has one
    paper_task: str = ""  # the paper's task with results for these arms; "" if its main task
    note: str = ""
    other_tasks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = TEST_SEEDS
    further_seeds: tuple[int, ...] = ()
    of_paper: bool = True  # False: its arms are not compared with the paper's numbers

    @property
    def kind(self) -> str:
        """The kind of task that the claim is about: sequence, vision or language."""
        return KINDS[self.id[-1]]

    @property
    def compared_paper_task(self) -> str:
        """The paper's task with whose results we compare our results; "" if there is none."""
        if not self.of_paper:
            return ""
        return self.paper_task or MAIN_TASKS.get(self.kind, "")

    def paper_difference(self, comparison: Comparison, task: str) -> float:
        """Return the value of a comparison, computed from the accuracies that the paper prints, in
        percentage points; NaN if the paper prints none for these arms.

        task: the task of our runs. The accuracies on the paper's main tasks are used for every task
        of ours. The accuracies on another task of the paper (`paper_task`, such as ListOps for H8s)
        are used only if `task` is that task.
        """
        is_printed = (
            self.compared_paper_task and self.runs == "tuned" and comparison.column == "score"
        )
        if not is_printed or (self.paper_task and task != self.paper_task.lower()):
            return float("nan")
        return printed_weighted_sum(comparison.weights, self.kind, self.compared_paper_task)

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms that the claim compares, each listed once."""
        arms = [arm for comparison in self.comparisons for arm in comparison.weights]
        return tuple(dict.fromkeys(arms))

    @property
    def deciding_groups(self) -> list[list[Comparison]]:
        """The comparisons that decide the verdict, as a list of groups. A comparison without a
        group is the only member of its group.
        """
        groups: dict[str, list[Comparison]] = {}
        for comparison in self.comparisons:
            if comparison.decides:
                groups.setdefault(comparison.group or comparison.name, []).append(comparison)
        return list(groups.values())

    @property
    def condition(self) -> str:
        """The condition under which the claim holds, as text: the comparisons that must be above
        zero, such as `one of 5: BN→BN − None→None; IN→IN − None→None; …`. For a claim without a
        verdict, the text says why it has none.
        """
        if self.why_no_word:
            return f"no word: {self.why_no_word}"
        names = [group[0].group or group[0].name for group in self.deciding_groups]
        if len(names) == 1:
            return names[0]
        return f"{'one of' if self.one_suffices else 'all'} {len(names)}: {'; '.join(names)}"

    def smallest_effect(self, comparison: Comparison) -> float:
        """Return the smallest effect of interest of a comparison, in the comparison's unit."""
        return self.smallest if comparison.smallest is None else comparison.smallest


def compared_column(task: str) -> tuple[str, float]:
    """Return the column of `scores` in which arms are compared on a task, and the smallest effect
    of interest in its unit: "bits" for language models, "score" for other tasks.
    """
    is_text = kind_of(task) == "language"
    return ("bits", SMALLEST_BITS) if is_text else ("score", SMALLEST_EFFECT)


def pair(n1: str, n2: str) -> str:
    """Return the arm, as text, with norm n1 before the SSM and norm n2 after it."""
    return str(Arm(n1, n2))


def minus(better: str, worse: str, detail: str = "", **options) -> Comparison:
    """Return the comparison "`better` minus `worse`" of two arms or cells. `detail` is appended to
    the name of the comparison.
    """
    name = f"{label(better)} − {label(worse)}{detail}"
    return Comparison(name, {better: 1.0, worse: -1.0}, **options)


def means(name: str, better: Iterable[str], worse: Iterable[str], **options) -> Comparison:
    """Return the comparison "mean over the arms `better` minus mean over the arms `worse`". An arm
    in both groups has the sum of its positive and its negative weight.

    name: the name of the comparison. options: further fields of `Comparison`.
    """
    weights: dict[str, float] = {}
    for sign, arms in ((1, list(better)), (-1, list(worse))):
        for arm in arms:
            weights[arm] = weights.get(arm, 0.0) + sign / len(arms)
    return Comparison(name, {arm: weight for arm, weight in weights.items() if weight}, **options)


def norms_except(norm: str, norms: Sequence[str] = NORM_CHOICES) -> list[str]:
    """Return the list `norms` without the norm `norm`."""
    return [name for name in norms if name != norm]


def arms_ending_in(n2: str) -> list[str]:
    """Return five arms: each of the paper's norms before the SSM, combined with `n2` after it."""
    return [pair(n1, n2) for n1 in NORM_CHOICES]


def types_against_none(norms: Sequence[str] = NORM_CHOICES, **options) -> tuple[Comparison, ...]:
    """Return one comparison for each norm N, N→N minus None→None (the paper's Figure 5): N before
    and after the SSM, against no norm.
    """
    return tuple(minus(pair(n, n), NONE, **options) for n in norms)


def after_against_before(norms: Sequence[str] = NORM_CHOICES, **options) -> tuple[Comparison, ...]:
    """Return comparisons of a norm N after the SSM with the same norm before it, None→N − N→None.

    First the mean over all norms (the paper's Figure 6), which decides the verdict; then the
    difference for each norm (the paper's Table 1); then for each norm the mean over the other
    norms, which shows whether the mean over all norms depends on a single norm.
    """

    def mean_over(norms: Sequence[str], name: str, **fields) -> Comparison:
        after, before = [pair("None", n) for n in norms], [pair(n, "None") for n in norms]
        return means(name, after, before, **options, **fields)

    each = [minus(pair("None", n), pair(n, "None"), decides=False, **options) for n in norms]
    without = [
        mean_over(norms_except(n, norms), f"the mean without {n}", decides=False, left_out_norm=n)
        for n in norms
    ]
    return mean_over(norms, f"mean over {len(norms)} norms: None→N − N→None"), *each, *without
