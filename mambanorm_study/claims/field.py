"""The questions of notebook 16, which practitioners asked in public threads, as data.

The rule is that of the claims (PROTOCOL.md). The predictions were committed before any of the runs
that judge them. The runs are at the default scale, in data/results/field.parquet; `mambanorm record
--scale evening --questions` trains and records them in the order of QUESTIONS.

A cell that is an arm of the study keeps its learning rate. Predictions about 1,200 steps, eight
blocks or another number of training rows keep the learning rates of the unchanged settings.
Q4 averages four directions, where Vim has two. Q6 ends at 3,500 rows, all that the task has. Q1 and
Q5 have twelve test seeds, the others eight.

Seen before the predictions: every recorded run of the claims, among them those of claim E3s, which
is the first comparison of Q5 on other seeds; and three runs on seed 300 (RMSN→None and RMSN→DyT on
curves, RMSN→None on images), by which run times and the validation loss of 1 nat were chosen.
"""

from mambanorm_study.basics.settings import FLAT
from mambanorm_study.claims.question import Prediction, Question
from mambanorm_study.runs.grid import QUESTION_SEEDS

LONGER, DEEPER = {"steps": 1_200, "eval_every": 80}, {"n_layers": 8}

Q1 = Question(
    id="Q1",
    words="Does it matter that A_log and D are excluded from weight decay?",
    asked=(
        "github.com/state-spaces/mamba/issues/798",
        "github.com/athms/mad-lab/issues/5",
        "github.com/athms/mad-lab/pull/6",
    ),
    cells={
        "RMSN→None": "RMSN>SSM>None",
        "RMSN→None, decayed": "RMSN>SSM>None; decay_ssm=0.1",
        "None→GN": "None>SSM>GN",
        "None→GN, decayed": "None>SSM>GN; decay_ssm=0.1",
    },
    predictions=(
        Prediction(
            "With RMSN→None, a model without decay of A_log and D is more accurate.",
            {"RMSN→None": 1, "RMSN→None, decayed": -1},
            "no gain",
        ),
        Prediction(
            "With None→GN, a model without decay of A_log and D is more accurate.",
            {"None→GN": 1, "None→GN, decayed": -1},
            "no gain",
        ),
        Prediction(
            "Weight decay makes D smaller.",
            {"RMSN→None": 1, "RMSN→None, decayed": -1},
            "supported",
            column="mean_d",
            smallest=0.05,
        ),
        Prediction(
            "Weight decay makes the largest |A| smaller.",
            {"RMSN→None": 1, "RMSN→None, decayed": -1},
            "supported",
            column="largest_a",
            smallest=0.5,
        ),
    ),
    seeds=QUESTION_SEEDS,
)

Q2 = Question(
    id="Q2",
    words="What does it cost if Δ's bias starts at zero, and does a norm after the scan repair it?",
    asked=(
        "github.com/fla-org/flash-linear-attention/pull/739",
        "github.com/huggingface/transformers/issues/43717",
        "github.com/athms/mad-lab/issues/3",
    ),
    cells={
        "RMSN→None": "RMSN>SSM>None",
        "RMSN→None, bias 0": "RMSN>SSM>None; dt_init=zero",
        "RMSN→None, A = −1": "RMSN>SSM>None; a_init=ones",
        "None→GN": "None>SSM>GN",
        "None→GN, bias 0": "None>SSM>GN; dt_init=zero",
        "RMSN→GN": "RMSN>SSM>GN",
        "RMSN→GN, bias 0": "RMSN>SSM>GN; dt_init=zero",
    },
    predictions=(
        Prediction(
            "With RMSN→None, mamba-ssm's bias is better than a bias of zero.",
            {"RMSN→None": 1, "RMSN→None, bias 0": -1},
            "supported",
        ),
        Prediction(
            "With None→GN, mamba-ssm's bias is better than a bias of zero.",
            {"None→GN": 1, "None→GN, bias 0": -1},
            "supported",
        ),
        Prediction(
            "With RMSN→GN, mamba-ssm's bias is better than a bias of zero.",
            {"RMSN→GN": 1, "RMSN→GN, bias 0": -1},
            "supported",
        ),
        Prediction(
            "GN after the scan repairs it: a bias of zero costs RMSN→GN less than RMSN→None.",
            {"RMSN→None": 1, "RMSN→GN, bias 0": 1, "RMSN→None, bias 0": -1, "RMSN→GN": -1},
            "cannot tell",
        ),
        Prediction(
            "A bias of zero delays the validation loss of 1 nat.",
            {"RMSN→None, bias 0": 1, "RMSN→None": -1},
            "supported",
            column="steps_to_loss",
            smallest=40,
        ),
        Prediction(
            "An A that starts at −1, …, −N is better than one that starts at −1 everywhere.",
            {"RMSN→None": 1, "RMSN→None, A = −1": -1},
            "no gain",
        ),
        Prediction(
            "With eight blocks, mamba-ssm's bias is better than a bias of zero (RMSN→None).",
            {"RMSN→None": 1, "RMSN→None, bias 0": -1},
            "supported",
            changes=DEEPER,
        ),
        Prediction(
            "With eight blocks and a bias of zero, RMSN→GN is better than RMSN→None.",
            {"RMSN→GN, bias 0": 1, "RMSN→None, bias 0": -1},
            "supported",
            changes=DEEPER,
        ),
    ),
)

Q3 = Question(
    id="Q3",
    words="Against NaN in a long training: a floor under |A|, weight decay of A_log, or a norm?",
    asked=("github.com/state-spaces/mamba/issues/72", "github.com/state-spaces/mamba/pull/996"),
    cells={
        "RMSN→None": "RMSN>SSM>None",
        "RMSN→None, floor": "RMSN>SSM>None; a_floor=0.01",
        "RMSN→None, decayed": "RMSN>SSM>None; decay_ssm=0.1",
        "RMSN→GN": "RMSN>SSM>GN",
        "RMSN→GN, floor": "RMSN>SSM>GN; a_floor=0.01",
        "RMSN→GN, decayed": "RMSN>SSM>GN; decay_ssm=0.1",
    },
    predictions=(
        Prediction(
            "With RMSN→None, a floor of 0.01 under |A| makes the model better.",
            {"RMSN→None, floor": 1, "RMSN→None": -1},
            "no gain",
            changes=LONGER,
        ),
        Prediction(
            "With RMSN→None, weight decay of A_log and D makes the model better.",
            {"RMSN→None, decayed": 1, "RMSN→None": -1},
            "no gain",
            changes=LONGER,
        ),
        Prediction(
            "GN after the scan makes the model better.",
            {"RMSN→GN": 1, "RMSN→None": -1},
            "supported",
            changes=LONGER,
        ),
        Prediction(
            "With RMSN→GN, a floor of 0.01 under |A| makes the model better.",
            {"RMSN→GN, floor": 1, "RMSN→GN": -1},
            "no gain",
            changes=LONGER,
        ),
        Prediction(
            "With RMSN→GN, weight decay of A_log and D makes the model better.",
            {"RMSN→GN, decayed": 1, "RMSN→GN": -1},
            "no gain",
            changes=LONGER,
        ),
        Prediction(
            "The smallest |A|, which starts at 1, falls (RMSN→None).",
            {"RMSN→None": -1},
            "supported",
            column="smallest_a",
            offset=1.0,
            smallest=0.1,
            changes=LONGER,
        ),
        Prediction(
            "The largest output grows more over the blocks with RMSN→None than with RMSN→GN.",
            {"RMSN→None": 1, "RMSN→GN": -1},
            "cannot tell",
            column="growth",
            smallest=FLAT,
            changes=LONGER,
        ),
    ),
)

Q4 = Question(
    id="Q4",
    words="Several directions of a scan are added: average them instead, or norm the sum?",
    asked=("github.com/hustvl/Vim/issues/30", "github.com/hustvl/Vim/pull/90"),
    task="glyphs_images",
    cells={
        "sum": "RMSN>SSM>None",
        "mean": "RMSN>SSM>None; merge=mean",
        "norm": "RMSN>SSM>None+branch:RMSN",
    },
    predictions=(
        Prediction(
            "The mean of the four directions is better than their sum.",
            {"mean": 1, "sum": -1},
            "no gain",
        ),
        Prediction(
            "RMSN on the branch is better than the plain sum.",
            {"norm": 1, "sum": -1},
            "cannot tell",
        ),
        Prediction(
            "The largest output grows more over the blocks with the sum than with the mean.",
            {"sum": 1, "mean": -1},
            "supported",
            column="growth",
            smallest=FLAT,
        ),
        Prediction(
            "With eight blocks, the mean of the four directions is better than their sum.",
            {"mean": 1, "sum": -1},
            "no gain",
            changes=DEEPER,
        ),
        Prediction(
            "With eight blocks, RMSN on the branch is better than the plain sum.",
            {"norm": 1, "sum": -1},
            "cannot tell",
            changes=DEEPER,
        ),
        Prediction(
            "With eight blocks, the largest output grows more with the sum than with the mean.",
            {"sum": 1, "mean": -1},
            "supported",
            column="growth",
            smallest=FLAT,
            changes=DEEPER,
        ),
        Prediction(
            "With eight blocks, the largest output grows more with the sum than with RMSN on the "
            "branch.",
            {"sum": 1, "norm": -1},
            "cannot tell",
            column="growth",
            smallest=FLAT,
            changes=DEEPER,
        ),
    ),
)

# At the default scale d_inner is 64: 16 channels are one of four groups.
BEFORE, AFTER = "RMSN>SSM>RMSN", "RMSN>SSM>None+gated:RMSN"
Q5 = Question(
    id="Q5",
    words="A norm before or after the gate, over the whole width or by groups?",
    asked=(
        "github.com/state-spaces/mamba/issues/547",
        "github.com/ggml-org/llama.cpp/pull/15507",
        "github.com/qiuzh20/gated_attention/issues/1",
    ),
    cells={
        "before, whole width": BEFORE,
        "before, 4 groups": BEFORE + '; norm_options={"n2": {"group_size": 16}}',
        "before, each channel": BEFORE + '; norm_options={"n2": {"group_size": 1}}',
        "after, whole width": AFTER,
        "after, 4 groups": AFTER + '; norm_options={"gated": {"group_size": 16}}',
        "after, each channel": AFTER + '; norm_options={"gated": {"group_size": 1}}',
    },
    predictions=(
        Prediction(
            "RMSN after the gate is better than before it, over the whole width.",
            {"after, whole width": 1, "before, whole width": -1},
            "supported",
        ),
        Prediction(
            "RMSN after the gate is better than before it, in four groups.",
            {"after, 4 groups": 1, "before, 4 groups": -1},
            "supported",
        ),
        Prediction(
            "After the gate, four groups are better than the whole width.",
            {"after, 4 groups": 1, "after, whole width": -1},
            "no gain",
        ),
        Prediction(
            "Before the gate, four groups are better than the whole width.",
            {"before, 4 groups": 1, "before, whole width": -1},
            "cannot tell",
        ),
        Prediction(
            "After the gate, the whole width is better than each channel alone.",
            {"after, whole width": 1, "after, each channel": -1},
            "supported",
        ),
        Prediction(
            "Before the gate, the whole width is better than each channel alone.",
            {"before, whole width": 1, "before, each channel": -1},
            "supported",
        ),
        Prediction(
            "The largest output grows more over depth with RMSN before the gate than after it.",
            {"before, whole width": 1, "after, whole width": -1},
            "supported",
            column="growth",
            smallest=FLAT,
        ),
    ),
    seeds=QUESTION_SEEDS,
)

SQUASH_OR_MEASURE = {"DyT": 0.5, "Derf": 0.5, "LN": -0.5, "RMSN": -0.5}
Q6 = Question(
    id="Q6",
    words="Norms that squash or norms that measure: does the amount of data decide?",
    asked=("arXiv:2604.23434",),
    cells={name: f"RMSN>SSM>{name}" for name in SQUASH_OR_MEASURE},
    predictions=tuple(
        Prediction(
            f"With {rows:,} training rows, DyT and Derf after the scan beat LN and RMSN there.",
            SQUASH_OR_MEASURE,
            verdict,
            changes={} if rows == 500 else {"train_rows": rows},
        )
        for rows, verdict in (
            (125, "supported"),
            (500, "cannot tell"),
            (2_000, "cannot tell"),
            (3_500, "opposite"),  # all training rows of the task
        )
    ),
)

# in the order of recording
QUESTIONS = {question.id: question for question in (Q1, Q2, Q5, Q4, Q3, Q6)}
