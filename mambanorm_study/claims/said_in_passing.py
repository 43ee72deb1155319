"""H13s to H16s: claims that the paper makes in passing, without an experiment."""

from mambanorm.arms import NORM_CHOICES
from mambanorm_study.claims.claim import (
    CONTROL,
    FAILURE_SEEDS,
    HIGHER_RATE,
    LADDER_SEEDS,
    NONE,
    TENTH,
    Claim,
    Comparison,
    means,
    minus,
    pair,
)
from mambanorm_study.tables.summaries import CORRUPTED

# Claim H13 compares arms by the highest learning rate at which they train. It uses only LN and GN,
# the two best norms in the paper's Figure 5, because a third norm would double the number of runs.
TWO_NORMS = ("LN>SSM>GN", "GN>SSM>LN")
RIVALS = {
    "the same norm twice": ["LN>SSM>LN", "GN>SSM>GN"],
    "one norm before": ["LN>SSM>None", "GN>SSM>None"],
    "one norm after": ["None>SSM>LN", "None>SSM>GN"],
    "no norm": [NONE],
}

# H14 compares these two arms, both unchanged and with learned constants instead of Δ, B and C.
AFTER, BEFORE = "None>SSM>GN", "GN>SSM>None"
CONSTANT = "+B:Constant+C:Constant+delta:Constant"

IN_PASSING = (
    Claim(
        id="H13s",
        words="Two different norms, one before and one after the SSM, allow a higher learning rate "
        "than one norm.",
        quote="compared to using a single normalization type, the combination of normalization "
        "techniques not only stabilizes the training process but also significantly improves model "
        "performance",
        where="§5",
        quantity="log₁₀ of the highest learning rate that trains, of five rates from 1 to 39 times "
        "the task's (interpolated between two rates); a rate trains if the accuracy above chance "
        "is at least four fifths of that at the seed's best rate; the mean of LN→GN and GN→LN "
        "minus the mean of each group of rival arms",
        comparisons=tuple(
            means(f"two norms − {name}", TWO_NORMS, arms, column="reach")
            for name, arms in RIVALS.items()
        ),
        smallest=HIGHER_RATE,
        runs="ladder",
        seeds=LADDER_SEEDS,
        note="smallest effect: a learning rate 25 % higher. The paper does not define "
        "“stabilizes”; here we measure the highest learning rate that trains. Every verdict also "
        "reports how many runs diverged",
    ),
    Claim(
        id="H14s",
        words="GN is better after the SSM than before it because Δ, B and C depend on the input.",
        quote="This may be because the output feature distribution of SSM becomes huge and "
        "unstable due to dynamic parameterization. Applying GN after SSM directly normalizes these "
        "dynamic features",
        where="§4.3",
        quantity="test accuracy of None→GN minus GN→None, minus the same difference where "
        "Δ, B and C are learned constants",
        comparisons=(
            Comparison(
                "what selection adds to None→GN − GN→None",
                {AFTER: 1.0, BEFORE: -1.0, AFTER + CONSTANT: -1.0, BEFORE + CONSTANT: 1.0},
            ),
            minus(AFTER, BEFORE, decides=False),
            minus(AFTER + CONSTANT, BEFORE + CONSTANT, decides=False),
        ),
        note="constants start at 1/√N; Δ keeps its projection, its bias and softplus. A model "
        "without selection may be worse with GN at either site, so only the difference of the two "
        "differences is tested",
    ),
    Claim(
        id="H15v",
        words="There is a norm that, after the SSM, reduces the loss of accuracy through noise or "
        "rotation of the test rows.",
        quote="Selecting appropriate normalization methods after the SSM layer effectively "
        "regularizes the data distribution, preserves scale invariance of weight norms across "
        "layers of varying depths, and enhances the model's robustness",
        where="§1",
        quantity="accuracy on corrupted test rows (mean over four strengths) minus accuracy on "
        "clean rows, of None→N minus None→None, in runs that did not fail; in addition the "
        "accuracy on corrupted rows",
        comparisons=(
            *(
                minus(pair("None", n), NONE, f", {kind}", column=f"{kind}_change")
                for n in NORM_CHOICES
                for kind in CORRUPTED
            ),
            *(
                minus(pair("None", n), NONE, f", {kind}, what is left", column=kind, decides=False)
                for n in NORM_CHOICES
                for kind in CORRUPTED
            ),
        ),
        one_suffices=True,
        note="the paper does not measure robustness; the corruptions are from S2. A model that "
        "learned less has less to lose, so the accuracy on corrupted rows is reported in addition",
    ),
    Claim(
        id="H16s",
        words="Before a run fails its outputs get sharper, and the weights of its deepest blocks "
        "matter more.",
        quote="Some weights gain more importance in the model’s decision-making process, leading "
        "to sharper model outputs (Lin et al., 2024). Specifically, as the number of layers "
        "increases, the singular values of the deeper Mamba Blocks show the most significant "
        "growth, suggesting that the model’s decisions may heavily rely on certain weights in the "
        "deeper layers, thereby increasing their sensitivity.",
        where="§4.6",
        quantity="from half way to the last finite step of a run that fails, None→None minus "
        "RMSN→RMSN with the same seed at the same steps: by how much the entropy of the class "
        "probabilities falls (256 validation rows); and by how much log₁₀ of the change of a row's "
        "loss (median over rows and draws) grows, where the weights of the two deepest blocks are "
        "multiplied by 1 + 0.05 times normal noise, minus the same growth for the two first blocks",
        comparisons=(
            Comparison(
                "fall of the entropy, against the control",
                {NONE: 1.0, CONTROL: -1.0},
                column="sharpening",
                smallest=0.1,
            ),
            Comparison(
                "deep blocks matter more, against the control",
                {NONE: 1.0, CONTROL: -1.0},
                column="fragility",
                smallest=TENTH,
            ),
        ),
        smallest=0.1,
        runs="failing",
        seeds=FAILURE_SEEDS,
        note="smallest effects: 0.1 nats (ten classes have 2.3), and log₁₀ 1.1, which is 10 % "
        "more. Only seeds whose run without norms failed are compared",
    ),
)
