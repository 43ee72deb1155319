"""The paper's claims as data: what each says, where, and what would have to be seen for it to hold.

A claim is a list of comparisons. Each is a weighted sum of accuracies that is large if the paper is right, such as
`None→GN − GN→None`. Every threshold was set before any run: here, and for the parts of H10 in comparisons.py.
H1s…H12s are about sequences, H1v…H8v about images (§4.6 shows sequences only). effects.py computes the intervals, and
`judge` in verdict.py compares them with the thresholds.

    runs        what a claim looks at: "tuned" runs (each arm at the learning rate that validation chose), the deepest
                models of Figure 9 ("depth"), the settings that fail ("failing", Figure 10), depth × rate ("failure")
    measure     "contrast": the weighted sum, seed by seed; "spread": the same for mean distances from the median;
                "failure": the rate of non-finite ends
    select      "best": of each group one comparison is chosen on the select seeds; "rival": the hardest
                rival is chosen on the select seeds, and the effect and interval against it are reported
    correction  "simultaneous": Bonferroni over the claim's comparisons; "each" (H3, H9): the claim holds if every
                uncorrected interval is above its threshold (an intersection–union test); that one fails is judged by
                simultaneous intervals

Glossary: pp percentage points of accuracy, decades log₁₀ of a growth.
"""

from __future__ import annotations

from dataclasses import dataclass

from mambanorm.claims.comparisons import (
    FLAT,
    NONE,
    Comparison,
    after_against_before,
    combinations_against_type,
    growth,
    interactions,
    marginal_means,
    minus,
    normvary_steps,
    pair,
    spectra,
    spreads,
    type_against_each,
    types_against_none,
)
from mambanorm.errors import unknown
from mambanorm.model.arms import NORM_CHOICES, Arm
from mambanorm.study.paper import MAIN_TASKS

SMALLEST_EFFECT = 1.0
"""The smallest effect of interest of every accuracy claim, in percentage points."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper; its sentences, its comparisons, and how they are judged (see the top of the file)."""

    id: str
    words: str  # what the paper claims, in our words
    where: str
    quantity: str
    test: str
    direction: str
    paper: str
    comparisons: tuple[Comparison, ...]
    threshold: float = SMALLEST_EFFECT
    runs: str = "tuned"
    measure: str = "contrast"
    select: str = ""
    correction: str = "simultaneous"
    main: str = ""  # the comparison that decides; "" = every one must hold
    reference: str = ""  # the arm that Fisher's test compares the divergence of the others with
    needs_grid: bool = False  # every pair of norms, not only single ones and types
    paper_task: str = ""  # where the paper prints the numbers of these arms; "" = its main experiment
    note: str = ""

    @property
    def kind(self) -> str:
        return "sequence" if self.id.endswith("s") else "vision"

    @property
    def unit(self) -> str:
        """The unit of its first comparison; the claim on growth (H10) has comparisons in two units."""
        return "% of runs" if self.measure == "failure" else self.comparisons[0].unit

    @property
    def printed_on(self) -> str:
        return self.paper_task or MAIN_TASKS[self.kind]

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm the claim compares, once each."""
        return tuple(dict.fromkeys(arm for comparison in self.comparisons for arm in comparison.weights))

    @property
    def m(self) -> int:
        """How many comparisons there are to correct for; with select="best" one a group."""
        names = [comparison.group or comparison.name for comparison in self.comparisons]
        return len(set(names)) if self.select == "best" else len(names)

    def threshold_of(self, comparison: Comparison) -> float:
        return self.threshold if comparison.threshold is None else comparison.threshold


def find_claim(claim_id: str | Claim) -> Claim:
    """The claim of that id. ValueError for an unknown one."""
    if isinstance(claim_id, Claim):
        return claim_id
    if claim_id not in CLAIMS:
        raise unknown("claim", claim_id, CLAIMS)
    return CLAIMS[claim_id]


BEST_AFTER = {"sequence": "GN", "vision": "LN"}
"""The norm that the paper recommends after the SSM, for each of its two kinds of task (§4.5)."""

T_SIMULTANEOUS = "paired t over shared seeds, Bonferroni simultaneous intervals"


def _h1(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="The same norm before and after the SSM beats no norm at all, whichever norm it is.",
        where="§4.2, Figure 5",
        quantity="test accuracy of N→N minus None→None, for each of five norms; rates of divergence beside it",
        test=f"{T_SIMULTANEOUS}; Fisher's exact test for divergence",
        direction="N→N above None→None",
        paper={"sequence": "7.0 → 68.8 % (GN), 58.9 % (LN)", "vision": "10.7 → 86.6 % (LN), 86.3 % (GN)"}[kind],
        comparisons=types_against_none(),
        reference=NONE,
        note="the paper says so of an appropriate norm; here each of the five has to hold",
    )


def _h2(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best}→{best} is the best single type.",
        where="§4.2, Figure 5",
        quantity=f"test accuracy of {best}→{best} minus each other type",
        test=f"{T_SIMULTANEOUS}; the effect is that against the best rival of the select seeds",
        direction=f"{best}→{best} above every other",
        paper={"sequence": "GN 68.8 %, next LN 58.9 %", "vision": "LN 86.6 %, next GN 86.3 %"}[kind],
        comparisons=type_against_each(best),
        select="rival",
        note={"vision": "the paper's own lead is 0.3 points, below the smallest effect of interest"}.get(kind, ""),
    )


def _h3(claim_id: str, kind: str) -> Claim:
    own = {"sequence": "BN +0.0 and IN −3.9", "vision": "RMSN −2.1 and LN +0.2"}[kind]
    return Claim(
        id=claim_id,
        words="A norm after the SSM beats the same norm before it, for every norm.",
        where="§4.3, Table 1, Figure 6",
        quantity="test accuracy of None→N minus N→None, for each of five norms",
        test="paired t over shared seeds; intersection–union: every norm has to pass, uncorrected",
        direction="after above before",
        paper={"sequence": "+49.6 points with GN", "vision": "+20.7 points with GN"}[kind],
        comparisons=after_against_before(),
        correction="each",
        note=f"the paper says “generally”; its own Table 1 has {own}",
    )


def _h4(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="What is gained by standing after instead of before the SSM is largest for GN.",
        where="§4.3, Table 1",
        quantity="(None→GN − GN→None) minus (None→N − N→None), for each other norm",
        test=T_SIMULTANEOUS,
        direction="GN's gain above every other's",
        paper={"sequence": "+49.6 (GN), next +2.0 (LN)", "vision": "+20.7 (GN), but BN +47.3"}[kind],
        comparisons=interactions("GN"),
        note={"vision": "in the paper's own Table 1 BN gains more than GN: +47.3 points"}.get(kind, ""),
    )


def _h5(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="With the norm after the SSM fixed, the best other norm before it beats the same norm before it.",
        where="§4.4, Figure 7",
        quantity="test accuracy of N1*→N2 minus N2→N2, for each N2; N1* chosen on the validation of the select seeds",
        test=T_SIMULTANEOUS,
        direction="combination above single type, for every N2",
        paper={"sequence": "BN→BN 41.4 → LN→BN 52.1 %", "vision": "BN→BN 74.6 → RMSN→BN 87.3 %"}[kind],
        comparisons=combinations_against_type(),
        needs_grid=True,
        select="best",
        note="the paper picks the best of four on the results it reports",
    )


def _h6(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best} is the best norm after the SSM: the highest mean over the other norms before it.",
        where="§4.4, Figure 8",
        quantity=f"mean test accuracy over the four other N1, of N2 = {best} minus each other N2",
        test=f"{T_SIMULTANEOUS}; the effect is that against the best rival of the select seeds",
        direction=f"N2 = {best} above every other N2",
        paper="no number printed",
        comparisons=marginal_means(best),
        needs_grid=True,
        select="rival",
    )


def _h7(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best} after the SSM also has the narrowest spread over the norms before it.",
        where="§4.4, Figure 8",
        quantity=f"mean |accuracy − median| over the four N1, of each other N2 minus that of {best}, seed by seed",
        test=f"Brown–Forsythe's deviations, {T_SIMULTANEOUS}; the classical test beside it",
        direction=f"every other N2 spreads wider than {best}",
        paper="no number printed",
        comparisons=spreads(best),
        needs_grid=True,
        threshold=0.5,
        measure="spread",
        note="threshold: half a point of mean deviation, half the smallest effect of an accuracy",
    )


def _h8(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    original = {"sequence": "RMSN>SSM>None", "vision": "LN>SSM>LN"}[kind]
    steps = normvary_steps(best, original)
    return Claim(
        id=claim_id,
        words=f"NormVary→{best} beats the original {Arm.parse(original).label}.",
        where="§4.5, Table 2",
        quantity="test accuracy, the proposal minus the original; the other rows tell NormVary's share from N2's",
        test=T_SIMULTANEOUS,
        direction="proposal above original",
        paper={"sequence": "ListOps 37.90 → 40.27 %", "vision": "no row of Table 2 is named vision (I4e)"}[kind],
        comparisons=steps,
        main=steps[0].name,
        paper_task={"sequence": "ListOps"}.get(kind, ""),
        note={"sequence": "N1 and N2 change at once (I7): only the main row is the paper's claim"}.get(kind, ""),
    )


# H9…H12, the intuitive explanation: on sequences only, as in the paper


def _h9() -> Claim:
    return Claim(
        id="H9s",
        words="Without normalization training consistently ends in infinite values.",
        where="§4.6",
        quantity="share of None→None runs that end non-finite, at each depth × learning rate",
        test="exact (Clopper–Pearson) intervals; intersection–union: every cell has to pass; Fisher against "
        "normalized controls",
        direction="above one half in every cell",
        paper="“consistently”; but its own no-norm models score 7.0 % and 10.7 % (I6)",
        comparisons=(Comparison("None→None ends non-finite", {NONE: 1.0}),),
        threshold=50.0,
        runs="failure",
        measure="failure",
        correction="each",
        reference=NONE,
        note="threshold: consistently means more often than not, in every cell tried",
    )


def _h10() -> Claim:
    return Claim(
        id="H10s",
        words="Without a norm after the SSM outputs grow exponentially with depth; one after keeps them flat; "
        "one on both sides is flattest.",
        where="§4.6, Figure 9",
        quantity="decades of the median token's ‖y‖₂ in 8 blocks (BN, train mode, deepest models); "
        "AIC of the best other law minus that of the exponential",
        test="t-intervals of per-seed slopes and AIC margins, simultaneous over seven parts",
        direction=f"growth above {FLAT} decades in 8 blocks without N2, exponential by AIC; below it with N2",
        paper="Figure 9, no number printed",
        comparisons=growth(),
        threshold=FLAT,
        runs="depth",
        note="the paper draws 4 layers, too few to tell an exponential from another law (I5); at quick these deep "
        "models train for 24 steps only",
    )


def _h11() -> Claim:
    return Claim(
        id="H11s",
        words="Before a run fails the variance of out_proj's singular values rises, most in the deepest blocks.",
        where="§4.6, Figure 10",
        quantity="log₁₀ of the variance at the last finite step over that half way, mean over blocks and last "
        "minus first block, None→None minus the control RMSN→None of the same seed at the same steps",
        test=T_SIMULTANEOUS,
        direction="failing run above its control, deepest block above the first",
        paper="Figure 10, no number printed",
        comparisons=spectra(),
        threshold=0.041,
        runs="failing",
        note="threshold: log₁₀ 1.1, a variance one tenth larger; only seeds whose no-norm run failed can tell",
    )


def _h12() -> Claim:
    return Claim(
        id="H12s",
        words="A norm after the SSM evens out the weight norms of the blocks over depth.",
        where="§1, §5, Appendix B",
        quantity="log₁₀ of largest over smallest block (L2 norm of all its weights) after training, "
        "None→None minus None→N",
        test=T_SIMULTANEOUS,
        direction="more even with a norm after, for each of five norms",
        paper="no number printed",
        comparisons=tuple(minus(NONE, pair("None", n), column="unevenness") for n in NORM_CHOICES),
        threshold=0.021,
        note="threshold: log₁₀ 1.05, a ratio one twentieth smaller",
    )


ACCURACY = (_h1, _h2, _h3, _h4, _h5, _h6, _h7, _h8)
"""(id, kind) → Claim: those of sequences and of vision differ in the norm of BEST_AFTER and in the paper's numbers."""

CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in [
        *(make(f"H{i}s", "sequence") for i, make in enumerate(ACCURACY, start=1)),
        *(make() for make in (_h9, _h10, _h11, _h12)),
        *(make(f"H{i}v", "vision") for i, make in enumerate(ACCURACY, start=1)),
    ]
}
