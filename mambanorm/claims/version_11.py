"""The questions that version 11 of the protocol asks and version 10 does not, or otherwise: written before their runs.

They are recorded (recording.py) and judged by nobody yet: when the recording is whole they go into hypotheses.py. What
each claim of the paper becomes by itself is told in PROTOCOL.md.
"""

from __future__ import annotations

from dataclasses import replace

from mambanorm.arms import NORM_CHOICES, Arm
from mambanorm.claims.claim import CORRUPTED, NONE, Claim, against, mean, minus, pair
from mambanorm.claims.hypotheses import BEST_AFTER, CLAIMS
from mambanorm.claims.other_sources import HIGHER_RATE

STABLE = ("LN", "GN")
"""The norms whose combinations, pairs and single places are held against one another by the rate that they bear: the
two that lead the paper's Figure 5. More would double the ladder's runs."""

LINEAR = {"AutoNorm": "AutoNorm_Linear", "AutoNorm_RandomSelector": "AutoNorm_Linear_RandomSelector"}


def _without_each(claim: Claim) -> Claim:
    """Beside the mean over the norms, the mean without each: does one of them carry it?"""
    norms, column = [Arm.parse(arm).n2 for arm in claim.arms if arm.startswith("None>")], claim.comparisons[0].column
    beside = []
    for norm in norms:
        left = [n for n in norms if n != norm]
        after, before = mean(pair("None", n) for n in left), mean(pair(n, "None") for n in left)
        beside.append(against(f"the mean without {norm}", after, before, column=column, decides=False))
    return replace(claim, comparisons=(*claim.comparisons, *beside))


def _same_first(claim: Claim) -> Claim:
    """Means over the same five N1 for each N2, N2 itself among them."""
    best = BEST_AFTER[claim.kind]
    means = {n2: mean(pair(n1, n2) for n1 in NORM_CHOICES) for n2 in NORM_CHOICES}
    return replace(
        claim,
        quantity=f"mean test accuracy over the same five N1, of N2 = {best} minus each other N2",
        comparisons=tuple(
            against(f"mean of ·→{best} − mean of ·→{n2}", means[best], means[n2]) for n2 in NORM_CHOICES if n2 != best
        ),
    )


def _beside_alone(claim: Claim) -> Claim:
    """Beside the proposal's step, what it is worth over its second norm alone."""
    proposal = next(iter(claim.comparisons[0].weights))
    alone = minus(proposal, pair("None", Arm.parse(proposal).n2), column=claim.comparisons[0].column, decides=False)
    return replace(claim, comparisons=(*claim.comparisons, alone))


def _own_form(claim: Claim) -> Claim:
    """The comparisons with the source's own form of DyT, where each arm has one; what decided, with tanh, beside."""
    own = []
    for one in claim.comparisons:
        weights = {LINEAR.get(arm, arm): weight for arm, weight in one.weights.items()}
        if not {"AutoNorm_FixedSelector"} & set(weights):
            own.append(replace(one, name=one.name.replace("AutoNorm", "AutoNorm_Linear"), weights=weights))
    tanh = [replace(one, decides=False) for one in claim.comparisons if one.decides]
    note = claim.note.replace(
        "tested with the published DyT, γ·tanh(αx)+β, where S2 writes x ⊙ α",
        "tested with S2's own x ⊙ α; beside it the published DyT, γ·tanh(αx)+β",
    )
    return replace(claim, comparisons=(*own, *tanh), note=note)


def _h13() -> Claim:
    mixed = [pair(a, b) for a in STABLE for b in STABLE if a != b]
    rivals = {
        "the same norm twice": [pair(n, n) for n in STABLE],
        "one norm before": [pair(n, "None") for n in STABLE],
        "one norm after": [pair("None", n) for n in STABLE],
        "no norm": [NONE],
    }
    return Claim(
        id="H13s",
        words="Two different norms, one before and one after the SSM, bear a higher learning rate than one norm.",
        quote="compared to using a single normalization type, the combination of normalization techniques not only "
        "stabilizes the training process but also significantly improves model performance",
        where="§5",
        quantity="log₁₀ of the highest of five rates, 1 to 39 times the task's own, at which a seed still has four "
        "fifths of what its best rate brings above chance; the mean of LN→GN and GN→LN minus that of each rival",
        direction="higher than the same norm on both sides, than one before, than one after, and than none",
        paper="no number printed",
        comparisons=tuple(
            against(f"two norms − {name}", mean(mixed), mean(arms), column="reach") for name, arms in rivals.items()
        ),
        threshold=HIGHER_RATE,
        runs="ladder",
        note="threshold: a quarter more. The paper does not say what stable is: here it is the rate that training "
        "bears, and how often the runs of Table 1 diverge stands beside every verdict",
    )


def _h14() -> Claim:
    blind = "+B:Constant+C:Constant+delta:Constant"
    after, before = pair("None", "GN"), pair("GN", "None")
    gain = minus(after, before, decides=False)
    without = minus(after + blind, before + blind, decides=False)
    both = against("what selection adds to None→GN − GN→None", gain.weights, without.weights)
    return Claim(
        id="H14s",
        words="GN is better after the SSM than before it because Δ, B and C depend on the input.",
        quote="This may be because the output feature distribution of SSM becomes huge and unstable due to dynamic "
        "parameterization. Applying GN after SSM directly normalizes these dynamic features",
        where="§4.3",
        quantity="test accuracy of None→GN minus GN→None, minus the same where Δ, B and C are learned constants",
        direction="the gain of the place is larger with the selection than without it",
        paper="no number printed",
        comparisons=(both, gain, without),
        note="constants start at 1/√N; Δ keeps its projection, its bias and softplus. Without selection a model may be "
        "worse in both places: only the difference of differences is asked",
    )


def _h15() -> Claim:
    costs = [
        minus(pair("None", n), NONE, column=f"{kind}_change", group=f"{n}, {kind}")
        for n in NORM_CHOICES
        for kind in CORRUPTED
    ]
    named = tuple(replace(one, name=f"{one.name}, {one.column.removesuffix('_change')}", group="") for one in costs)
    kept = tuple(
        replace(one, name=one.name + ", what is left", column=one.column.removesuffix("_change"), decides=False)
        for one in named
    )
    return Claim(
        id="H15v",
        words="There is a norm that, after the SSM, lets noise or rotation of the test rows cost less accuracy.",
        quote="Selecting appropriate normalization methods after the SSM layer effectively regularizes the data "
        "distribution, preserves scale invariance of weight norms across layers of varying depths, and enhances the "
        "model's robustness",
        where="§1",
        quantity="accuracy on corrupted test rows (mean over four strengths) minus that on the clean ones, of None→N "
        "minus None→None; beside it the accuracy that is left",
        direction="at least one None→N loses less than None→None, with noise or with rotation",
        paper="no number printed",
        comparisons=(*named, *kept),
        at_least=1,
        note="the paper measures no robustness: the corruptions are those of S2. A model that learned less has less to "
        "lose, so what is left stands beside",
    )


NEXT: dict[str, Claim] = {
    claim.id: claim
    for claim in (
        *(_without_each(CLAIMS[name]) for name in ("H3s", "H3v", "H3l")),
        *(_same_first(CLAIMS[name]) for name in ("H6s", "H6v")),
        *(_beside_alone(CLAIMS[name]) for name in ("H8s", "H8v", "H8l")),
        *(_own_form(CLAIMS[name]) for name in ("A1v", "A2v", "A3v")),
        _h13(),
        _h14(),
        _h15(),
    )
}
"""Claims by id, as version 11 asks them."""
