"""The hypotheses of version 1 as data, and the settings of the runs that they look at. Frozen: see `__init__.py`.

A hypothesis is a list of comparisons. Each is a weighted sum of arms that is large if the paper is right.

    runs        "tuned": each arm at the learning rate that validation chose; "depth": Figure 9's deepest models;
                "failing": the setting of Figure 10; "failure": None→None over depth × learning rate
    measure     "contrast": the weighted sum, seed by seed; "spread": the same for mean distances from the median;
                "failure": the share of non-finite ends
    select      "best": one comparison of each group, "rival": the one that decides; both by the select seeds
    correction  "simultaneous": Bonferroni over the comparisons; "each": every uncorrected interval above its threshold
                holds the claim, and a simultaneous one below it fails the claim
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mambanorm.training.grid import base_config

NORMS = ("BN", "IN", "LN", "RMSN", "GN")
NONE = "None>SSM>None"
BEST_AFTER = {"s": "GN", "v": "LN"}
"""What the paper recommends after the SSM, for sequences and for images."""

LR_FACTORS = (0.4, 1.0, 2.5)
"""The learning rates to choose from, as multiples of the task's own at its scale; rounded to three digits."""

TUNE_SEEDS, SELECT_SEEDS = (100, 101), (200, 201)
FEWEST_SEEDS = 6
"""Fewer test seeds are a sketch."""

FLAT = 0.25
"""Decades in 8 blocks: the threshold of growth."""

UNITS = {
    "score": "pp",
    "growth": "decades in 8 blocks",
    "steepness": "decades in 8 blocks",
    "law": "AIC",
    "sigma_rise": "log₁₀ of the variance",
    "sigma_trend": "log₁₀ of the variance",
    "unevenness": "log₁₀ of the ratio",
}
"""What a comparison is about → its unit; pp are percentage points."""


@dataclass(frozen=True)
class Comparison:
    """A weighted sum of arms, such as {"None>SSM>GN": 1, "GN>SSM>None": -1}. `threshold` None = the hypothesis'."""

    name: str
    weights: Mapping[str, float]
    group: str = ""
    column: str = "score"
    threshold: float | None = None


@dataclass(frozen=True)
class Hypothesis:
    """A claim of the paper, its comparisons, and how they are judged (see the top of the file)."""

    id: str
    words: str
    comparisons: tuple[Comparison, ...]
    threshold: float = 1.0  # percentage points, where nothing else is said
    runs: str = "tuned"
    measure: str = "contrast"
    select: str = ""
    correction: str = "simultaneous"
    main: str = ""  # the comparison that decides; "" = every one must hold

    @property
    def unit(self) -> str:
        return "% of runs" if self.measure == "failure" else UNITS[self.comparisons[0].column]

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm that it compares, once each."""
        return tuple(dict.fromkeys(arm for comparison in self.comparisons for arm in comparison.weights))

    @property
    def m(self) -> int:
        """How many comparisons there are to correct for; with select="best" one a group."""
        return len({c.group if self.select == "best" else c.name for c in self.comparisons})


# ---------------------------------------------------------------------------------------------------------------------
# the settings of the runs


def learning_rates(task: str, scale: str) -> tuple[float, ...]:
    """The grid that every tuned arm chooses from, the smallest first."""
    return tuple(float(f"{factor * base_config(task, scale).lr:.3g}") for factor in LR_FACTORS)


def depth_setting(scale: str) -> dict[str, Any]:
    """The deepest models of Figure 9, on digits."""
    steps = {"smoke": 4, "quick": 24}.get(scale, 1_000)
    lr = min(base_config("digits", scale).lr, 4e-3)
    return dict(n_layers=5 if scale == "smoke" else 24, lr=lr, steps=steps, eval_every=max(steps // 3, 1))


def failure_settings(scale: str) -> list[dict[str, Any]]:
    """Depth × learning rate on digits; the last, with the most blocks and the highest rate, is that of Figure 10."""
    short = {} if scale == "smoke" else dict(steps=40, eval_every=10, warmup_steps=20)
    depths = (1, 2) if scale == "smoke" else (4, 8, 16)
    return [dict(n_layers=depth, lr=lr) | short for depth in depths for lr in (1e-2, 2.5e-2)]


# ---------------------------------------------------------------------------------------------------------------------
# the comparisons


def pair(n1: str, n2: str) -> str:
    return f"{n1}>SSM>{n2}"


def label(arm: str) -> str:
    return arm.replace(">SSM>", "→")


def minus(better: str, worse: str, **options: Any) -> Comparison:
    return Comparison(f"{label(better)} − {label(worse)}", {better: 1.0, worse: -1.0}, **options)


def interactions() -> tuple[Comparison, ...]:
    """(after − before) of GN minus (after − before) of each other norm."""
    own = {pair("None", "GN"): 1.0, pair("GN", "None"): -1.0}
    return tuple(
        Comparison(f"effect of after: GN − {n}", own | {pair("None", n): -1.0, pair(n, "None"): 1.0})
        for n in NORMS
        if n != "GN"
    )


def combinations() -> tuple[Comparison, ...]:
    """A group for each N2: the four other norms before it, each against N2 on both sides."""
    return tuple(
        minus(pair(n1, n2), pair(n2, n2), group=f"best→{n2} − {n2}→{n2}") for n2 in NORMS for n1 in NORMS if n1 != n2
    )


def marginals(name: str, more: list[str], less: list[str]) -> tuple[Comparison, ...]:
    """The mean over the other four N1 of each N2 in `more` minus that of each in `less`; `name` has two places."""
    mean = {n2: {pair(n1, n2): 0.25 for n1 in NORMS if n1 != n2} for n2 in NORMS}
    return tuple(
        Comparison(name.format(a, b), mean[a] | {arm: -weight for arm, weight in mean[b].items()})
        for a in more
        for b in less
    )


def normvary_steps(n2: str, original: str) -> tuple[Comparison, ...]:
    """The paper's step first; then what tells NormVary's share of it from N2's and from mere mixing."""
    before, after = original.split(">SSM>")
    proposal = pair("NormVary", n2)
    steps = [(proposal, original), (proposal, pair(before, n2))]
    steps += [(pair("NormVary", after), original)] if after != n2 else []
    return tuple(minus(*step) for step in dict.fromkeys([*steps, (proposal, pair("NormVary-fixed", n2))]))


def growth() -> tuple[Comparison, ...]:
    """Figure 9 part by part, with BN."""
    none, before, after, both = NONE, "BN>SSM>None", "None>SSM>BN", "BN>SSM>BN"
    grow = [Comparison(f"{label(a)} grows", {a: 1.0}, column="growth", threshold=FLAT) for a in (none, before)]
    law = [Comparison(f"{label(a)} exponentially (AIC)", {a: 1.0}, column="law", threshold=0.0) for a in (none, before)]
    flat = [Comparison(f"{label(a)} flat", {a: -1.0}, column="steepness", threshold=-FLAT) for a in (after, both)]
    order = {after: 1.0, both: -1.0}
    flatter = Comparison(f"{label(both)} flatter than {label(after)}", order, column="steepness", threshold=0.0)
    return (*grow, *law, *flat, flatter)


def spectra() -> tuple[Comparison, ...]:
    """The failing run minus its normalized control of the same seed, at the same steps."""
    own = {NONE: 1.0, "RMSN>SSM>None": -1.0}
    return (
        Comparison("rise of the variance, against the control", own, column="sigma_rise"),
        Comparison("deepest minus first block, against the control", own, column="sigma_trend"),
    )


# ---------------------------------------------------------------------------------------------------------------------
# the hypotheses


def accuracy(kind: str) -> Iterator[Hypothesis]:
    """H1 to H8, of sequences (s) or of images (v)."""
    best, original = BEST_AFTER[kind], {"s": "RMSN>SSM>None", "v": "LN>SSM>LN"}[kind]
    others, steps = [n for n in NORMS if n != best], normvary_steps(BEST_AFTER[kind], original)
    yield Hypothesis(
        f"H1{kind}",
        "The same norm before and after the SSM beats no norm at all, whichever norm it is.",
        tuple(minus(pair(n, n), NONE) for n in NORMS),
    )
    yield Hypothesis(
        f"H2{kind}",
        f"{best}→{best} is the best single type.",
        tuple(minus(pair(best, best), pair(n, n)) for n in others),
        select="rival",
    )
    yield Hypothesis(
        f"H3{kind}",
        "A norm after the SSM beats the same norm before it, for every norm.",
        tuple(minus(pair("None", n), pair(n, "None")) for n in NORMS),
        correction="each",
    )
    yield Hypothesis(
        f"H4{kind}",
        "What is gained by standing after instead of before the SSM is largest for GN.",
        interactions(),
    )
    yield Hypothesis(
        f"H5{kind}",
        "With the norm after the SSM fixed, the best other norm before it beats the same norm before it.",
        combinations(),
        select="best",
    )
    yield Hypothesis(
        f"H6{kind}",
        f"{best} is the best norm after the SSM: the highest mean over the other norms before it.",
        marginals("mean of ·→{} − mean of ·→{}", [best], others),
        select="rival",
    )
    yield Hypothesis(
        f"H7{kind}",
        f"{best} after the SSM also has the narrowest spread over the norms before it.",
        marginals("spread of ·→{} − spread of ·→{}", others, [best]),
        threshold=0.5,
        measure="spread",
    )
    yield Hypothesis(f"H8{kind}", f"NormVary→{best} beats the original {label(original)}.", steps, main=steps[0].name)


def inside() -> Iterator[Hypothesis]:
    """H9 to H12, the intuitive explanation: on sequences only, as in the paper."""
    yield Hypothesis(
        "H9s",
        "Without normalization training consistently ends in infinite values.",
        (Comparison("None→None ends non-finite", {NONE: 1.0}),),
        threshold=50.0,
        runs="failure",
        measure="failure",
        correction="each",
    )
    yield Hypothesis(
        "H10s",
        "Without a norm after the SSM outputs grow exponentially with depth; one after keeps them flat; "
        "one on both sides is flattest.",
        growth(),
        threshold=FLAT,
        runs="depth",
    )
    yield Hypothesis(
        "H11s",
        "Before a run fails the variance of out_proj's singular values rises, most in the deepest blocks.",
        spectra(),
        threshold=0.041,
        runs="failing",
    )
    yield Hypothesis(
        "H12s",
        "A norm after the SSM evens out the weight norms of the blocks over depth.",
        tuple(minus(NONE, pair("None", n), column="unevenness") for n in NORMS),
        threshold=0.021,
    )


HYPOTHESES: dict[str, Hypothesis] = {one.id: one for one in (*accuracy("s"), *inside(), *accuracy("v"))}
