"""The claims in §4.2 to §4.6 of the paper as data, with the comparisons that decide each verdict.

H1s to H8s are about sequences, H1v to H8v about images, and H9s to H12s about the paper's
explanation, for which the paper shows only sequences. H13 to H16 are in said_in_passing.py. To add
a claim, declare it here; `mambanorm record` and benchmarks/protocol.py read the claim's tasks and
seeds. A changed claim needs a new version of the protocol (PROTOCOL.md).

The unit pp means percentage points of accuracy. A growth by one decade is a factor of ten.
"""

from dataclasses import replace

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm.errors import unknown
from mambanorm_study.basics.settings import FLAT
from mambanorm_study.claims.claim import (
    CONTROL,
    FAILURE_SEEDS,
    FURTHER_TEST_SEEDS,
    INSIDE_SEEDS,
    NONE,
    TENTH,
    UNEVEN,
    Claim,
    Comparison,
    after_against_before,
    arms_ending_in,
    means,
    minus,
    norms_except,
    pair,
    types_against_none,
)
from mambanorm_study.claims.other_sources import AUTONORM_CLAIMS, BEYOND_CLAIMS, language_claims
from mambanorm_study.claims.said_in_passing import IN_PASSING


def find_claim(claim_id: str | Claim) -> Claim:
    """Return the claim with this id. If a Claim is given, it is returned unchanged. Raises
    ValueError for an unknown id.
    """
    if isinstance(claim_id, Claim):
        return claim_id
    known_claims = CLAIMS | BEYOND
    if claim_id not in known_claims:
        raise unknown("claim", claim_id, known_claims)
    return known_claims[claim_id]


# Kind of task → the norm that the paper recommends after the SSM (§4.5 of the paper).
BEST_AFTER = {"sequence": "GN", "vision": "LN"}


def _h1(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="There is a norm that, before and after the SSM, beats no norm at all.",
        quote="Our exploration indicates that the choice of the appropriate normalization "
        "significantly improves model performance",
        where="Abstract, §4.2, Figure 5",
        quantity="test accuracy of N→N minus None→None, for each of five norms N",
        paper={
            "sequence": "7.0 → 68.8 % (GN), 58.9 % (LN)",
            "vision": "10.7 → 86.6 % (LN), 86.3 % (GN)",
        }[kind],
        comparisons=types_against_none(),
        one_suffices=True,
        other_tasks=("glyphs",) if kind == "sequence" else (),
    )


def _h2(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best}→{best} is the best single type.",
        quote={
            "sequence": "applying N = GN improved the performance of Mamba from the baseline of "
            "7.0% (no normalization) to 68.8%. LN also significantly enhanced performance, "
            "reaching 58.9%, making it the next-best performer.",
            "vision": "applying N = LN increased the baseline accuracy from 10.7% to 86.6%. GN "
            "closely followed with an accuracy of 86.3%.",
        }[kind],
        where="§4.2, Figure 5",
        quantity=f"test accuracy of {best}→{best} minus that of each other norm on both sides",
        paper={"sequence": "GN 68.8 %, next LN 58.9 %", "vision": "LN 86.6 %, next GN 86.3 %"}[
            kind
        ],
        comparisons=tuple(minus(pair(best, best), pair(n, n)) for n in norms_except(best)),
        other_tasks=("glyphs",) if kind == "sequence" else (),
        note=""
        if kind == "sequence"
        else "the paper's own lead over GN→GN is 0.3 points, below the smallest effect of interest",
    )


def _h3(claim_id: str, kind: str) -> Claim:
    mean, exceptions = {
        "sequence": ("+9.9", "BN +0.0 and IN −3.9"),
        "vision": ("+15.9", "RMSN −2.1 and LN +0.2"),
    }[kind]
    return Claim(
        id=claim_id,
        words="A norm after the SSM beats the same norm before it, on average over the norms.",
        quote="We observe that, for both tasks, applying normalization after SSM generally yields "
        "better results.",
        where="§4.3, Table 1, Figure 6 (“the average of all data points”)",
        quantity="test accuracy of None→N minus N→None, as a mean over five norms N; in addition "
        "for each norm, and for each norm as a mean over the other norms",
        paper=f"mean {mean} points; three of five norms by more than one point ({exceptions})",
        comparisons=after_against_before(),
        note={"sequence": "the paper's mean depends on GN: without GN it is 0.0"}.get(kind, ""),
    )


def _h4(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="GN after the SSM beats GN before it.",
        quote="applying GN after SSM improves accuracy by 49.6% compared to applying GN before SSM."
        if kind == "sequence"
        else "applying GN after SSM improves accuracy by 20.7% compared to applying GN before SSM.",
        where="§4.3, Table 1",
        quantity="test accuracy of None→GN minus GN→None",
        paper={"sequence": "+49.6 points", "vision": "+20.7 points"}[kind],
        comparisons=(minus(pair("None", "GN"), pair("GN", "None")),),
        further_seeds=FURTHER_TEST_SEEDS,
        note="the paper does not say that GN gains most, which version 1 tested; in the paper's "
        "Table 1 for images BN gains more",
    )


def _h5(claim_id: str, kind: str) -> Claim:
    return Claim(
        id=claim_id,
        words="With the norm after the SSM fixed, the best other norm before it beats the same "
        "norm before it.",
        quote="we first verify that an appropriate combination always leads to improved model "
        "performance.",
        where="§4.4, Figure 7",
        quantity="test accuracy of N1*→N2 minus N2→N2, for each N2; N1* is the other norm that is "
        "best by validation",
        paper={"sequence": "BN→BN 41.4 → LN→BN 52.1 %", "vision": "BN→BN 74.6 → RMSN→BN 87.3 %"}[
            kind
        ],
        comparisons=tuple(
            minus(pair(n1, n2), pair(n2, n2), group=f"best→{n2} − {n2}→{n2}")
            for n2 in NORM_CHOICES
            for n1 in norms_except(n2)
        ),
        note="the paper picks the best of four norms N1 by the same results that it reports",
    )


def _h6(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best} is the best norm after the SSM: the highest mean over the norms before it.",
        quote=f"we found that the average performance of {best} was the best",
        where="§4.4, Figure 8",
        quantity=f"mean test accuracy over the same five norms N1: N2 = {best} minus each other N2",
        comparisons=tuple(
            means(f"mean of ·→{best} − mean of ·→{n2}", arms_ending_in(best), arms_ending_in(n2))
            for n2 in norms_except(best)
        ),
    )


def _h7(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    return Claim(
        id=claim_id,
        words=f"{best} after the SSM also has the narrowest spread over the norms before it.",
        quote="and the distribution of different normalization combinations was the most "
        "concentrated",
        where="§4.4, Figure 8",
        quantity="the largest minus the smallest accuracy over the same five norms N1, for each N2 "
        "and seed",
        comparisons=tuple(
            means(f"range of ·→{n2}", arms_ending_in(n2), [], column="range", decides=False)
            for n2 in (best, *norms_except(best))
        ),
        why_no_word="the range of single runs includes their noise",
    )


def _h8(claim_id: str, kind: str) -> Claim:
    best = BEST_AFTER[kind]
    proposal = pair("NormVary", best)
    original = {"sequence": "RMSN>SSM>None", "vision": "LN>SSM>LN"}[kind]
    # For sequences the paper's proposal changes N1 and N2 at once (I7 in docs/paper.md); the
    # comparisons in `steps` change only one of the two. For images the proposal changes only N1,
    # because the original model already has LN after the SSM.
    steps = {
        "sequence": [(proposal, "RMSN>SSM>GN"), ("NormVary>SSM>None", original)],
        "vision": [],
    }[kind]
    return Claim(
        id=claim_id,
        words=f"NormVary→{best} beats the original {Arm.parse(original).label}.",
        quote="It can be observed that our proposed method outperforms the original model in terms "
        "of experimental results",
        where="§4.5, Table 2",
        quantity="test accuracy of the proposal minus the original; in addition changes of one "
        "norm only, the proposal minus the proposal with uniform weights, and the proposal minus "
        "the arm with only its second norm",
        paper={
            "sequence": "ListOps 37.90 → 40.27 %",
            "vision": "no row of Table 2 is named vision (I4e)",
        }[kind],
        comparisons=(
            minus(proposal, original),
            *(minus(better, worse, decides=False) for better, worse in steps),
            minus(proposal, pair("NormVary-fixed", best), decides=False),
            minus(proposal, pair("None", best), decides=False),
        ),
        other_tasks=("listops", "paths16") if kind == "sequence" else (),
        further_seeds=FURTHER_TEST_SEEDS,
        paper_task={"sequence": "ListOps"}.get(kind, ""),
        note={"sequence": "N1 and N2 change at once (I7)"}.get(kind, ""),
    )


# The arms of claim H10 that have the norm of the paper's Figure 9: BN before the SSM, after it, and
# on both sides.
BEFORE, AFTER, BOTH = "BN>SSM>None", "None>SSM>BN", "BN>SSM>BN"

# Claims H9 to H12: the paper's explanation of why norms help (§4.6 of the paper).
EXPLANATION = (
    Claim(
        id="H9s",
        words="Without normalization training ends in infinite values where a model with norms on "
        "both sides trains.",
        quote="without normalization, the output layer after the SSM consistently produces "
        "infinite values, causing the training to fail. […] However, when normalization is applied "
        "both before and after, the training proceeds smoothly without failure.",
        where="§4.6",
        quantity="share of None→None runs that end non-finite, at each depth and learning rate, "
        "compared with the share of RMSN→RMSN at the same settings",
        paper="“consistently”; but its own no-norm models score 7.0 % and 10.7 % (I6)",
        comparisons=(Comparison("None→None fails", {NONE: 1.0, CONTROL: -1.0}),),
        smallest=50.0,
        runs="failure",
        seeds=FAILURE_SEEDS,
        one_suffices=True,
        note="we read “consistently” as more than half of the runs at a setting",
    ),
    Claim(
        id="H10s",
        words="Without a norm after the SSM outputs grow exponentially with depth; with one "
        "after it they stay flat, and with norms on both sides they are flattest.",
        quote="the lack of normalization in the Mamba layers leads to some elements in the input "
        "tensors growing extremely large as the network depth increases. […] when there is no "
        "normalization in Mamba, the L2 norm of the output tensors from each Mamba Block layer "
        "exhibits exponential growth as the number of layers increases. Normalization applied "
        "before the SSM layer does not mitigate this phenomenon, whereas normalization applied "
        "after the SSM layer helps maintain good scale invariance […] When normalization is "
        "applied both before and after the SSM layer, the scale disparity between layers is "
        "further reduced",
        where="§4.6, Figure 9",
        quantity="growth of the largest token's ‖y‖₂ over 8 blocks, in powers of ten (with BN, in "
        "train mode, at the last finite step of seeds whose model without norms fails); AIC of the "
        "best other law minus the AIC of the exponential law",
        paper="Figure 9, no number printed",
        comparisons=(
            Comparison("None→None grows", {NONE: 1.0}, "growth"),
            Comparison("BN→None grows", {BEFORE: 1.0}, "growth"),
            Comparison("None→None exponentially (AIC)", {NONE: 1.0}, "law", smallest=0.0),
            Comparison("BN→None exponentially (AIC)", {BEFORE: 1.0}, "law", smallest=0.0),
            Comparison("None→BN flat", {AFTER: -1.0}, "steepness", FLAT),
            Comparison("BN→BN flat", {BOTH: -1.0}, "steepness", FLAT),
            Comparison("BN→BN flatter than None→BN", {AFTER: 1.0, BOTH: -1.0}, "steepness"),
        ),
        smallest=FLAT,
        runs="growth",
        seeds=INSIDE_SEEDS,
        note="the largest token is measured because the paper speaks of some elements; the paper's "
        "Figure 9 shows 4 layers, too few to tell an exponential from another law (I5)",
    ),
    Claim(
        id="H11s",
        words="Before a run fails the variance of out_proj's singular values across the blocks "
        "rises, and the deeper blocks' values grow most.",
        quote="as the model approaches a state where infinite values occur, the variance of the "
        "singular values across different layers significantly increases. […] as the number of "
        "layers increases, the singular values of the deeper Mamba Blocks show the most "
        "significant growth",
        where="§4.6, Figure 10",
        quantity="log₁₀ of the variance of the singular values across blocks (rank by rank) at the "
        "last finite step, divided by this variance half way to that step; slope over relative "
        "depth of the growth of the root mean square of each block's singular values; both for "
        "None→None minus the control RMSN→None with the same seed, at the same steps",
        paper="Figure 10, no number printed",
        comparisons=(
            Comparison(
                "rise of the variance across blocks, against the control",
                {NONE: 1.0, "RMSN>SSM>None": -1.0},
                "sigma_rise",
            ),
            Comparison(
                "more growth in deeper blocks, against the control",
                {NONE: 1.0, "RMSN>SSM>None": -1.0},
                "sigma_trend",
            ),
        ),
        smallest=TENTH,
        runs="failing",
        seeds=INSIDE_SEEDS,
        note="smallest effect of both: log₁₀ 1.1, that is 10 % more variance, and 10 % more growth "
        "in the deepest block than in the first; only seeds whose run without norms failed are "
        "compared",
    ),
    Claim(
        id="H12s",
        words="There is a norm that, after the SSM, evens out how far the blocks' weight norms "
        "move in training.",
        quote="Selecting appropriate normalization methods after the SSM layer effectively "
        "regularizes the data distribution, preserves scale invariance of weight norms across "
        "layers of varying depths",
        where="§1, §5, Appendix B",
        quantity="for each block the L2 norm of its weights after training, divided by the norm at "
        "initialisation; unevenness is log₁₀ of the largest over the smallest of these ratios (at "
        "least 8 blocks); the unevenness of None→None minus the unevenness of None→N",
        comparisons=tuple(minus(NONE, pair("None", n), column="unevenness") for n in NORM_CHOICES),
        smallest=UNEVEN,
        runs="deep",
        seeds=INSIDE_SEEDS,
        one_suffices=True,
        note="smallest effect: log₁₀ 1.05, a difference of 5 % between blocks. The paper also "
        "names a direction (“higher weight norms in deeper layers”), which is not tested",
    ),
)

# The functions that return the claims H1 to H8, each for sequences or for images. The two versions
# of a claim differ in the norm of BEST_AFTER and in the paper's numbers.
ACCURACY = (_h1, _h2, _h3, _h4, _h5, _h6, _h7, _h8)

# Id → claim, for all claims except those about later models: the paper's claims, their extension to
# language models, and the claims about AutoNorm.
CLAIMS: dict[str, Claim] = {
    claim.id: claim
    for claim in [
        *(make(f"H{i}s", "sequence") for i, make in enumerate(ACCURACY, start=1)),
        *EXPLANATION,
        *(make(f"H{i}v", "vision") for i, make in enumerate(ACCURACY, start=1)),
        *AUTONORM_CLAIMS,
        *IN_PASSING,
        *language_claims(_h1("H1s", "sequence"), _h3("H3s", "sequence"), _h8("H8s", "sequence")),
    ]
}

# Id → claim, for the claims about later models, judged by the same rule. Where texts say "all
# claims", they mean CLAIMS, without the claims in BEYOND.
BEYOND: dict[str, Claim] = {claim.id: replace(claim, of_paper=False) for claim in BEYOND_CLAIMS}
