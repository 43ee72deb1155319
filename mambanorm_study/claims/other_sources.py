"""The claims of other sources than the paper, judged by the same rule.

A1v … A3v    the study's second source (S2, AutoNorm), on images. It asks three questions about a
             Transformer, names the models that would answer them, and prints no number.
H1l, H3l, H8l    the paper's claims about language models with causal norms: our extension, for the
             paper trains no language model. Of its five norms LN and RMSN are causal, and so is GN
             within a token (GN-token); BN and IN have no causal form. NormVary-token mixes these
             three. Above 0 the paper is right.
E1 … E4      claims of the authors of later models about their norms and sites, which the paper does
             not make. Their models are thousands of times as large: a result here need not hold
             there, nor the reverse.
"""

from dataclasses import replace

from mambanorm.arms import NORM_CHOICES, PRESETS
from mambanorm_study.claims.claim import (
    HIGHER_RATE,
    INSIDE_SEEDS,
    LADDER_SEEDS,
    NO_NUMBER,
    NONE,
    SMALLEST_EFFECT,
    Claim,
    Comparison,
    after_against_before,
    causal_steps,
    minus,
    pair,
    types_against_none,
)
from mambanorm_study.tables.scores import SMALLEST_BITS
from mambanorm_study.tables.summaries import CORRUPTED

# ------------------------------------------------------------------------------------ S2, AutoNorm

OUR_READING = (
    "tested with S2's own x ⊙ α; beside it the published DyT, γ·tanh(αx)+β; with S2's MixUp, "
    "DropPath and the like off, so that the norms alone differ; one weight a token and norms "
    "behind the sum are our reading"
)
# A model with tanh in DyT → the model with S2's form of it.
LINEAR = {
    "AutoNorm": "AutoNorm_Linear",
    "AutoNorm_RandomSelector": "AutoNorm_Linear_RandomSelector",
}


def _a(
    number: int, words: str, quote: str, quantity: str, *comparisons: Comparison, note: str = ""
) -> Claim:
    """Return a claim whose comparisons decide with S2's form of DyT. Beside them stand the deciding
    ones with tanh.
    """
    linear = [
        replace(
            one,
            name=one.name.replace("AutoNorm", LINEAR["AutoNorm"]),
            weights={LINEAR.get(arm, arm): weight for arm, weight in one.weights.items()},
        )
        for one in comparisons
    ]
    tanh = [replace(one, decides=False) for one in comparisons if one.decides]
    return Claim(
        id=f"A{number}v",
        words=words,
        quote=quote,
        where="S2, §IV",
        quantity=quantity,
        paper_task="CIFAR-10",
        comparisons=(*linear, *tanh),
        note=f"S2 asks the question and asserts nothing; {note}{OUR_READING}",
    )


def _corrupted(name: str, column: str, decides: bool = True) -> Comparison:
    return Comparison(name, {"AutoNorm": 1.0, "FrozenLN": -1.0}, column=column, decides=decides)


AUTONORM_CLAIMS = (
    _a(
        1,
        "In a Transformer a learned selector between DyT and LN beats LN alone.",
        "`disable_selector`: In this mode, the `NormSelector` is effectively bypassed, and the "
        "model exclusively utilizes Layer Normalization. This allows us to evaluate the baseline "
        "performance",
        "test accuracy of AutoNorm_Linear minus FrozenLN; beside it AutoNorm, with tanh",
        minus("AutoNorm", "FrozenLN"),
    ),
    _a(
        2,
        "In a Transformer a learned selector between DyT and LN beats random weights.",
        "`random_selector`: […] providing a stochastic baseline to assess whether the learned "
        "adaptive weighting by the MLP offers a significant advantage over arbitrary "
        "combinations.",
        "test accuracy of AutoNorm_Linear minus AutoNorm_Linear_RandomSelector; beside it both "
        "with tanh",
        minus("AutoNorm", "AutoNorm_RandomSelector"),
        note="random weights are noise in training and a half each in the test; ",
    ),
    _a(
        3,
        "In a Transformer a learned selector is more accurate than LN alone on noisy and on "
        "rotated test rows.",
        "Robustness to noise and rotation: Evaluated using corrupted test loaders (e.g., Gaussian "
        "noise, random rotations) to assess model stability under perturbed inputs.",
        "accuracy on the test rows with Gaussian noise (mean of 0.1, 0.2, 0.4 and 0.8 of the "
        "inputs' standard deviation), and turned by a random angle (mean of at most 10, 20, 30 and "
        "45°), of AutoNorm_Linear minus FrozenLN",
        *(_corrupted(f"AutoNorm − FrozenLN, {kind}", kind) for kind in CORRUPTED),
        *(
            _corrupted(f"what {kind} changes", f"{kind}_change", decides=False)
            for kind in CORRUPTED
        ),
        note="a model that is better on clean rows has a head start, so what corruption changes "
        "stands beside; ",
    ),
)

# ---------------------------------------------------------------------------------- language models

# The paper's norms that a language model can have; GN within one token.
CAUSAL_NORMS = ("LN", "RMSN", "GN-token")

OURS = "the paper trains no language model: our extension to its claim about sequences"


def language_claims(h1: Claim, h3: Claim, h8: Claim) -> tuple[Claim, ...]:
    """Return H1l, H3l and H8l, made from the claims about sequences."""
    return (
        _causal(
            h1,
            "H1l",
            types_against_none(CAUSAL_NORMS),
            words="In a language model there is a causal norm that, before and after the SSM, "
            "beats no norm at all.",
            quantity="test loss in bits a character of None→None minus N→N, for each of three "
            "causal norms",
        ),
        _causal(
            h3,
            "H3l",
            after_against_before(CAUSAL_NORMS),
            words="In a language model a causal norm after the SSM beats the same norm before it, "
            "on average over the norms.",
            quantity="test loss in bits a character of N→None minus None→N, mean over three causal "
            "norms; beside it each norm, and the mean without each",
        ),
        _causal(
            h8,
            "H8l",
            causal_steps(),
            words="In a language model NormVary→GN in causal form, NormVary-token→GN-token, beats "
            "the original RMSN→None.",
            quantity="test loss in bits a character, the original's minus the proposal's; beside "
            "it what tells NormVary-token's share from GN-token's, and the proposal minus its "
            "second norm alone",
            note="of NormVary's five members the three that one token has: GN-token, LN and RMSN",
        ),
    )


def _causal(
    claim: Claim, claim_id: str, comparisons: tuple[Comparison, ...], note: str = "", **said: str
) -> Claim:
    """Return a claim about sequences as one about language models, compared in bits."""
    return replace(
        claim,
        id=claim_id,
        comparisons=tuple(replace(comparison, column="bits") for comparison in comparisons),
        smallest=SMALLEST_BITS,
        paper=NO_NUMBER,
        paper_task="",
        other_tasks=(),
        note=f"{OURS}; {note}" if note else OURS,
        **said,
    )


# --------------------------------------------------------------------------------- beyond the paper

MAMBA, JAMBA = str(PRESETS["Mamba"].arm), str(PRESETS["Jamba"].arm)
AFTER_GATE = str(PRESETS["Mamba-2-norms"].arm)


def _beyond(claim_id: str, comparisons: tuple[Comparison, ...], **fields: object) -> Claim:
    paper = "no number that these models could be held against"
    return Claim(id=claim_id, paper=paper, comparisons=comparisons, **fields)


def _e1() -> Claim:
    norm = pair("None", "LN")
    others = (pair("None", n) for n in NORM_CHOICES if n != "LN")
    return _beyond(
        "E1s",
        (
            Comparison("None→LN has room", {norm: 1.0}, column="headroom", decides=False),
            *(minus(arm, NONE, column="headroom", decides=False) for arm in (norm, *others)),
        ),
        words="In a deep model a norm after the scan keeps the scan's output within float16, where "
        "without one it is not.",
        quote="Our original attempt for adding ln is to avoid collapsing in training. It seems "
        "that the output of s6 is often too large (then get inf and finally NaN) to be in data "
        "type float16.",
        where="VMamba's authors, issue 182 of its repository",
        quantity="decades between the largest |y| of the scan, before the norm, and float16's "
        "65,504, over 8 blocks and the first 256 test rows, with the weights that are tested",
        runs="deep",
        seeds=INSIDE_SEEDS,
        measured="its authors do not say that the scan itself stays within float16: theirs is "
        "computed in float32 and normed before it becomes float16 (issue 138)",
        note="the models here train in float32",
    )


def _e2() -> Claim:
    arms = {JAMBA: 1.0, MAMBA: -1.0}
    best = Comparison("best accuracy", arms, smallest=SMALLEST_EFFECT, decides=False)
    return _beyond(
        "E2s",
        (minus(JAMBA, MAMBA, column="reach"), best),
        words="Norms on B, C and Δ let a model train at a higher learning rate.",
        quote="inner parts of the Mamba layers suffer from large activation values, leading to the "
        "spikes. We therefore added RMSNorm to internal activations. […] this stabilized training "
        "and prevented additional loss spikes.",
        where="Lieber et al. 2024 (Jamba), §6.4",
        quantity="log₁₀ of the highest of five rates, 1 to 39 times the task's own, at which a "
        "seed still has four fifths of what its best rate brings above chance (between two rates "
        "by interpolation); beside it the test accuracy of each arm's best rate",
        smallest=HIGHER_RATE,
        runs="ladder",
        seeds=LADDER_SEEDS,
        note="its authors speak of loss spikes; a ladder of rates stands in for them, and no spike "
        "is counted. A seed that still trains at 39 times is given 39 times; the best of five "
        "rates is chosen on the test rows, of both arms",
    )


def _e3(claim_id: str) -> Claim:
    column = "bits" if claim_id.endswith("l") else "score"
    return _beyond(
        claim_id,
        (
            minus(AFTER_GATE, pair("RMSN", "RMSN"), column=column),
            minus(AFTER_GATE, MAMBA, column=column, decides=False),
        ),
        words="A norm after the gate, as in Mamba-2, beats the same norm before the gate.",
        quote="we found that instabilities were prone to arising in larger models. We were able to "
        "alleviate this by adding an extra normalization layer […] to the block right before the "
        "final output projection.",
        where="Dao & Gu 2024 (Mamba-2), extra normalization",
        quantity=f"{MEASURES[column][0]}, RMSN on y·SiLU(z) against RMSN on y, each with RMSN "
        "before the SSM; beside it what the norm after the gate brings at all",
        smallest=MEASURES[column][1],
        note="its authors put it there for stability and say nothing of accuracy",
    )


def _e4(claim_id: str) -> Claim:
    column = "bits" if claim_id.endswith("l") else "score"
    before = minus(MAMBA, pair("Scale", "None"), column=column)
    after = minus(pair("None", "RMSN"), pair("None", "Scale"), column=column)
    of_gains = (
        minus(arm, NONE, column=column, decides=False)
        for arm in (pair("Scale", "None"), pair("None", "Scale"))
    )
    return _beyond(
        claim_id,
        (before, after, *of_gains),
        words="A norm brings more than its learned gain alone, before the SSM and after it.",
        quote="the simplest architecture change of gating each residual connection using a single "
        "zero-initialized parameter satisfies initial dynamical isometry and outperforms more "
        "complex approaches",
        where="against Bachlechner et al. 2021 (ReZero), abstract",
        quantity=f"{MEASURES[column][0]}, RMSN against Scale at the same place, a learned gain a "
        "channel, no more; beside it what the gain brings",
        smallest=MEASURES[column][1],
        note="no test of ReZero, whose gain is one number a branch, starts at zero and stands on "
        "the branch; here it is one a channel, starts at one and stands where the norm does",
    )


MEASURES = {
    "bits": ("test loss in bits a character, less is better", SMALLEST_BITS),
    "score": ("test accuracy", SMALLEST_EFFECT),
}

BEYOND_CLAIMS = (_e1(), _e2(), _e3("E3s"), _e4("E4s"), _e3("E3l"), _e4("E4l"))
