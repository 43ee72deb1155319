"""The claims of sources other than the paper, judged by the rule for the paper's claims.

A1v to A3v         claims about AutoNorm (S2 of docs/sources.md) on images. S2 asks three questions
                   about a Transformer and names the models that would answer these questions, but
                   prints no number.
H1l, H3l, H8l      three of the paper's claims, applied to language models. This is our extension,
                   because the paper trains no language model. Of the paper's five norms LN and RMSN
                   are causal, and GN has a causal form, GN within one token (GN-token); BN and IN
                   have no causal form. NormVary-token mixes LN, RMSN and GN-token.
E1 to E4           claims that the paper does not make: claims of the authors of later models about
                   the norms in these models. The later models are thousands of times larger than
                   ours, so a result for our models need not hold for the later models, and vice
                   versa.
"""

from dataclasses import replace

from mambanorm.arms import PRESETS
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
    minus,
    norms_except,
    pair,
    types_against_none,
)
from mambanorm_study.tables.scores import SMALLEST_BITS
from mambanorm_study.tables.summaries import CORRUPTED

# ------------------------------------------------------------------------------------ S2, AutoNorm

QUESTION = "S2 asks the question and makes no claim; "
OUR_READING = (
    "S2's form of DyT, x ⊙ α, is tested, and in addition the published one, γ·tanh(αx)+β; S2's "
    "MixUp, DropPath and other regularizers are off, so that only the norms differ; one weight for "
    "each token and norms after the residual sum are our reading of S2"
)

# The arm AutoNorm_Linear has DyT in the form of S2 (docs/sources.md); comparisons with this arm
# decide the verdicts. The arm AutoNorm has the published form of DyT, with tanh; comparisons with
# AutoNorm are only reported.
AUTONORM_CLAIMS = (
    Claim(
        id="A1v",
        words="In a Transformer a learned selector between DyT and LN beats LN alone.",
        quote="`disable_selector`: In this mode, the `NormSelector` is effectively bypassed, and "
        "the model exclusively utilizes Layer Normalization. This allows us to evaluate the "
        "baseline performance",
        where="S2, §IV",
        quantity="test accuracy of AutoNorm_Linear minus FrozenLN; in addition AutoNorm "
        "(with tanh) minus FrozenLN",
        comparisons=(
            minus("AutoNorm_Linear", "FrozenLN"),
            minus("AutoNorm", "FrozenLN", decides=False),
        ),
        paper_task="CIFAR-10",
        note=QUESTION + OUR_READING,
    ),
    Claim(
        id="A2v",
        words="In a Transformer a learned selector between DyT and LN beats random weights.",
        quote="`random_selector`: […] providing a stochastic baseline to assess whether the "
        "learned adaptive weighting by the MLP offers a significant advantage over arbitrary "
        "combinations.",
        where="S2, §IV",
        quantity="test accuracy of AutoNorm_Linear minus AutoNorm_Linear_RandomSelector; in "
        "addition the same difference with tanh in both arms",
        comparisons=(
            minus("AutoNorm_Linear", "AutoNorm_Linear_RandomSelector"),
            minus("AutoNorm", "AutoNorm_RandomSelector", decides=False),
        ),
        paper_task="CIFAR-10",
        note=QUESTION
        + "random weights are noise in training and one half for each norm in the test; "
        + OUR_READING,
    ),
    Claim(
        id="A3v",
        words="In a Transformer a learned selector is more accurate than LN alone on noisy and on "
        "rotated test rows.",
        quote="Robustness to noise and rotation: Evaluated using corrupted test loaders (e.g., "
        "Gaussian noise, random rotations) to assess model stability under perturbed inputs.",
        where="S2, §IV",
        quantity="accuracy on test rows with Gaussian noise (mean over 0.1, 0.2, 0.4 and 0.8 of "
        "the inputs' standard deviation), and on rows rotated by a random angle (mean over largest "
        "angles of 10, 20, 30 and 45°), of AutoNorm_Linear minus FrozenLN",
        comparisons=(
            *(minus("AutoNorm_Linear", "FrozenLN", f", {kind}", column=kind) for kind in CORRUPTED),
            *(
                Comparison(
                    f"what {kind} changes",
                    {"AutoNorm_Linear": 1.0, "FrozenLN": -1.0},
                    f"{kind}_change",
                    decides=False,
                )
                for kind in CORRUPTED
            ),
            *(
                minus("AutoNorm", "FrozenLN", f", {kind}", column=kind, decides=False)
                for kind in CORRUPTED
            ),
        ),
        paper_task="CIFAR-10",
        note=QUESTION
        + "a model that is better on clean rows has a head start on corrupted rows, so the change "
        "is reported in addition; " + OUR_READING,
    ),
)

# ---------------------------------------------------------------------------------- language models

# The paper's norms that are causal, which language models require; GN-token is GN within one token.
CAUSAL_NORMS = ("LN", "RMSN", "GN-token")

EXTENSION = "the paper trains no language model; this extends its claim about sequences"
IN_BITS = dict(smallest=SMALLEST_BITS, paper=NO_NUMBER, paper_task="", other_tasks=())


def language_claims(h1: Claim, h3: Claim, h8: Claim) -> tuple[Claim, ...]:
    """Return the claims H1l, H3l and H8l about language models. They are made from the given claims
    about sequences, with causal norms and with comparisons in bits per character.
    """
    proposal, original = "NormVary-token>SSM>GN-token", "RMSN>SSM>None"
    steps = [
        (proposal, "RMSN>SSM>GN-token"),
        ("NormVary-token>SSM>None", original),
        (proposal, "None>SSM>GN-token"),
    ]
    return (
        replace(
            h1,
            id="H1l",
            words="In a language model there is a causal norm that, before and after the SSM, "
            "beats no norm at all.",
            quantity="test loss in bits per character of None→None minus N→N, for each of three "
            "causal norms N",
            comparisons=types_against_none(CAUSAL_NORMS, column="bits"),
            note=EXTENSION,
            **IN_BITS,
        ),
        replace(
            h3,
            id="H3l",
            words="In a language model a causal norm after the SSM beats the same norm before it, "
            "on average over the norms.",
            quantity="test loss in bits per character of N→None minus None→N, as a mean over three "
            "causal norms N; in addition for each norm, and for each norm as a mean over the other "
            "norms",
            comparisons=after_against_before(CAUSAL_NORMS, column="bits"),
            note=EXTENSION,
            **IN_BITS,
        ),
        replace(
            h8,
            id="H8l",
            words="In a language model NormVary→GN in causal form, NormVary-token→GN-token, beats "
            "the original RMSN→None.",
            quantity="test loss in bits per character of the original minus the proposal; in "
            "addition the changes of only one norm, and the proposal compared with the arm with "
            "only its second norm",
            comparisons=(
                minus(proposal, original, column="bits"),
                *(minus(better, worse, column="bits", decides=False) for better, worse in steps),
            ),
            note=f"{EXTENSION}; NormVary-token mixes the three of NormVary's five norms that are "
            "defined for one token: GN-token, LN and RMSN",
            **IN_BITS,
        ),
    )


# --------------------------------------------------------------------------------- beyond the paper

MAMBA, JAMBA = str(PRESETS["Mamba"].arm), str(PRESETS["Jamba"].arm)
AFTER_GATE = str(PRESETS["Mamba-2-norms"].arm)

NOT_COMPARABLE = "no number that is comparable with these models"

# Last letter of a claim's id → (the compared column, the name of its quantity, the smallest effect
# of interest).
MEASURES = {
    "s": ("score", "test accuracy", SMALLEST_EFFECT),
    "l": ("bits", "test loss in bits per character, less is better", SMALLEST_BITS),
}


def _e3(claim_id: str) -> Claim:
    column, measure, smallest = MEASURES[claim_id[-1]]
    return Claim(
        id=claim_id,
        paper=NOT_COMPARABLE,
        comparisons=(
            minus(AFTER_GATE, pair("RMSN", "RMSN"), column=column),
            minus(AFTER_GATE, MAMBA, column=column, decides=False),
        ),
        words="A norm after the gate, as in Mamba-2, beats the same norm before the gate.",
        quote="we found that instabilities were prone to arising in larger models. We were able to "
        "alleviate this by adding an extra normalization layer […] to the block right before the "
        "final output projection.",
        where="Dao & Gu 2024 (Mamba-2), extra normalization",
        quantity=f"{measure}, RMSN on y·SiLU(z) compared with RMSN on y, both with RMSN "
        "before the SSM; in addition RMSN on y·SiLU(z) compared with no norm there",
        smallest=smallest,
        note="Mamba-2's authors added this norm for stability and say nothing about accuracy",
    )


def _e4(claim_id: str) -> Claim:
    column, measure, smallest = MEASURES[claim_id[-1]]
    gain_before, gain_after = pair("Scale", "None"), pair("None", "Scale")
    return Claim(
        id=claim_id,
        paper=NOT_COMPARABLE,
        comparisons=(
            minus(MAMBA, gain_before, column=column),
            minus(pair("None", "RMSN"), gain_after, column=column),
            minus(gain_before, NONE, column=column, decides=False),
            minus(gain_after, NONE, column=column, decides=False),
        ),
        words="A norm brings more than its learned gain alone, before the SSM and after it.",
        quote="the simplest architecture change of gating each residual connection using a single "
        "zero-initialized parameter satisfies initial dynamical isometry and outperforms more "
        "complex approaches",
        where="against Bachlechner et al. 2021 (ReZero), abstract",
        quantity=f"{measure}, RMSN compared with Scale at the same site, where Scale is only a "
        "learned gain for each channel; in addition Scale compared with no norm",
        smallest=smallest,
        note="this is not a test of ReZero, whose gain is one number for each branch and starts at "
        "zero; the gain of Scale is one number for each channel, starts at one, and is at the "
        "norm's site",
    )


BEYOND_CLAIMS = (
    Claim(
        id="E1s",
        paper=NOT_COMPARABLE,
        comparisons=(
            Comparison("None→LN has room", {pair("None", "LN"): 1.0}, "headroom", decides=False),
            *(
                minus(pair("None", n), NONE, column="headroom", decides=False)
                for n in ("LN", *norms_except("LN"))
            ),
        ),
        words="In a deep model with a norm after the scan, the scan's output stays within float16; "
        "without a norm it does not.",
        quote="Our original attempt for adding ln is to avoid collapsing in training. It seems "
        "that the output of s6 is often too large (then get inf and finally NaN) to be in data "
        "type float16.",
        where="VMamba's authors, issue 182 of its repository",
        quantity="decades between the largest |y| of the scan, before the norm, and 65,504, the "
        "largest number of float16, over 8 blocks and the first 256 test rows, with the weights of "
        "the tested model",
        runs="deep",
        seeds=INSIDE_SEEDS,
        why_no_word="VMamba's authors do not say that the scan itself stays within float16: their "
        "scan is computed in float32 and normalized before it becomes float16 (issue 138)",
        note="the models here train in float32",
    ),
    Claim(
        id="E2s",
        paper=NOT_COMPARABLE,
        comparisons=(
            minus(JAMBA, MAMBA, column="reach"),
            Comparison(
                "best accuracy",
                {JAMBA: 1.0, MAMBA: -1.0},
                smallest=SMALLEST_EFFECT,
                decides=False,
            ),
        ),
        words="Norms on B, C and Δ let a model train at a higher learning rate.",
        quote="inner parts of the Mamba layers suffer from large activation values, leading to the "
        "spikes. We therefore added RMSNorm to internal activations. […] this stabilized training "
        "and prevented additional loss spikes.",
        where="Lieber et al. 2024 (Jamba), §6.4",
        quantity="log₁₀ of the highest learning rate that trains, of five rates from 1 to 39 times "
        "the task's (interpolated between two rates); a rate trains if the accuracy above chance "
        "is at least four fifths of that at the seed's best rate; in addition the test accuracy at "
        "each seed's best rate",
        smallest=HIGHER_RATE,
        runs="ladder",
        seeds=LADDER_SEEDS,
        note="Jamba's authors speak of loss spikes; we count no spikes, but measure the highest "
        "learning rate that trains. If a seed still trains at 39 times the task's rate, this rate "
        "is taken as its highest; the best of the five rates is chosen on the test rows, for both "
        "arms",
    ),
    _e3("E3s"),
    _e4("E4s"),
    _e3("E3l"),
    _e4("E4l"),
)
