"""The function `recommend`, which says which norm to use in which model.

The table RULES is the decision framework of the guide *Normalization Techniques*
(`references("S4")`). The first rule that fits gives the answer. `Recommendation.contradictions`
names papers that contradict the guide, and notebook 11 tests some advice of the guide. The advice
for a Mamba block comes from recorded runs (mamba.py).
"""

from collections.abc import Callable
from dataclasses import replace

from mambanorm.checks import check_size
from mambanorm.errors import unknown
from mambanorm_study.advice.mamba import recommend_mamba
from mambanorm_study.advice.recommendation import Question, Recommendation
from mambanorm_study.basics.settings import SMALL_BATCH
from mambanorm_study.tasks import TASKS as KIT_TASKS

ARCHITECTURES = ("cnn", "rnn", "lstm", "gru", "transformer", "gan", "mamba", "mlp")
TASKS = (
    "classification",
    "regression",
    "detection",
    "segmentation",
    "style_transfer",
    "image_translation",
    "generation",
    "language_model",
    "reinforcement_learning",
    "debugging",
)
IMAGE_TO_IMAGE = ("style_transfer", "image_translation")
COMPONENTS = ("generator", "discriminator", "output")
# From this number of parameters on, the guide recommends RMSNorm for a Transformer.
LARGE_SIZE = 1e9
POOLED_NORMS = ("BN", "GN", "IN")  # norms with statistics over the positions of a sequence

# Texts that several rules share.
ON_NORM_FREE_NETWORKS = (
    "The guide calls normalization mandatory. Networks without norms train as well with scaled "
    "weight standardization and gradient clipping, or with a tanh in place of the norm. [Brock "
    "et al. 2021, NFNets; Zhu et al. 2025, DyT]"
)
GROUP_NORM_IDENTITIES = (
    "The guide calls GroupNorm(1) a LayerNorm. GroupNorm(1) equals a LayerNorm over C·H·W of an "
    "image, but not a LayerNorm over the channels of one token. GroupNorm(C) equals InstanceNorm "
    "only with the same γ and β: torch's InstanceNorm has no γ and β by default. [notebook 11]"
)
# What contradicts the guide on Transformers: the guide's own table, the papers on the guide's
# examples, and DeepNet.
ON_TRANSFORMERS = (
    "The guide says that RMSNorm is 15–20 % faster than LayerNorm. But in its table LayerNorm "
    "adds only 3–5 % to the inference time, so no replacement can save more than 5 %. [guide S4, "
    "RMS Normalization against Performance Impact]",
    "The guide says that GPT-2 is post-norm and that PaLM has RMSNorm. GPT-2 moved the norm to the "
    "input of each sub-block, and the paper on PaLM speaks of layer norms without biases. [Radford "
    "et al. 2019; Chowdhery et al. 2022, §2]",
    "With scaled residuals and initial weights, post-norm trains with 1,000 layers. [Wang et al. "
    "2022, DeepNet]",
)
ON_DCGAN = (
    "DCGAN uses BatchNorm in the generator, except at its output, and in the discriminator, "
    "except at its input. Its authors call BatchNorm critical for training deep generators. "
    "[Radford et al. 2016]"
)
WHY_CAUSAL = (
    "No output may depend on a later position. LN and RMSN read one position at a time; BN, "
    "GN and IN compute statistics over all positions, later ones included. [notebook 01]"
)
AFTER_CONVOLUTION = "after the convolution, before the activation"
WHY_AFTER_CONV = "In CNNs the norm goes between convolution and activation. [guide S4, step 3]"
PRE_NORM = "before each sub-layer (pre-norm), and once before the head"
WHY_PRE_NORM = (
    "Pre-norm is the default, because it is more stable than post-norm. Post-norm is hard to train "
    "above 12 layers. [guide S4, Mistake 4]"
)
AFTER_LINEAR = "after the linear layer, before the activation"

# Each rule is a pair: a condition, which takes a Question and returns True if the rule fits, and an
# answer. The first rule that fits gives the answer.
RULES: tuple[tuple[Callable[[Question], bool], Recommendation], ...] = (
    (
        lambda q: q.component == "output",
        Recommendation(
            norm="None",
            place="on the output layer",
            code="nn.Linear(d, n_out)  # without a norm after it",
            reasons=(
                "Logits, predictions, pixels and scores have a scale that a norm would remove. "
                "[guide S4, When NOT to Normalize]",
            ),
        ),
    ),
    (
        lambda q: q.task == "debugging",
        Recommendation(
            norm="None",
            place="until the cause is found",
            code="nn.Identity()",
            reasons=(
                "A norm can hide a wrong initialization or loss. [guide S4, When NOT to Normalize]",
            ),
        ),
    ),
    (
        lambda q: (
            q.depth == 1 and q.architecture in ("mlp", "cnn") and q.task not in IMAGE_TO_IMAGE
        ),
        Recommendation(
            norm="None",
            place="in a single layer",
            code="nn.Identity()",
            reasons=(
                "A single layer is too simple to need a norm. [guide S4, When NOT to Normalize]",
            ),
            contradictions=(
                "Badly scaled inputs slow down a single layer as well: standardize the data "
                "before training. [LeCun et al. 1998, Efficient BackProp; notebook 01]",
            ),
        ),
    ),
    (
        lambda q: (
            q.task in IMAGE_TO_IMAGE
            and not q.is_causal
            and (q.architecture == "cnn" or q.component == "generator")
        ),
        Recommendation(
            norm="IN",
            place=AFTER_CONVOLUTION,
            code="nn.InstanceNorm2d(channels, affine=True)",
            reasons=(
                "Style transfer and image translation use InstanceNorm at every batch size: it "
                "removes the contrast of the content image, which must not affect the output. "
                "[guide S4, step 2; Ulyanov et al. 2017; Huang & Belongie 2017]",
                WHY_AFTER_CONV,
            ),
            contradictions=(
                "The guide says that InstanceNorm preserves each image's style and BatchNorm "
                "erases it. But after InstanceNorm every channel has mean 0 and variance 1, "
                "whatever the style: InstanceNorm erases the style, and that is why it helps. "
                "[Huang & Belongie 2017]",
                GROUP_NORM_IDENTITIES,
            ),
            alternatives=("GN",),
        ),
    ),
    (
        lambda q: q.architecture == "cnn" and q.is_causal,
        Recommendation(
            norm="LN",
            place="over the channels of each position",
            code="nn.LayerNorm(channels)  # on (B, L, C)",
            reasons=("LayerNorm does not mix positions. [guide S4, Layer Normalization]",),
        ),
    ),
    (
        lambda q: q.architecture == "cnn" and q.has_small_batch,
        Recommendation(
            norm="GN",
            place=AFTER_CONVOLUTION,
            code="nn.GroupNorm(32, channels)  # 32 must divide channels and be smaller",
            reasons=(
                f"Below {SMALL_BATCH} rows per batch the statistics of BatchNorm are noisy. "
                "[guide S4, step 1]",
                WHY_AFTER_CONV,
            ),
            contradictions=(
                "The guide says that BN is 3.2 points behind GN at batch 2, and cites “He et al.”. "
                "The paper on GN says 10.6 points. [Wu & He 2018, abstract]",
                GROUP_NORM_IDENTITIES,
                "The guide calls BatchNorm undefined at batch 1. That is true only without "
                "spatial positions. With H·W positions BatchNorm at batch 1 computes the "
                "statistics of InstanceNorm. "
                "[torch.nn.BatchNorm2d; notebook 11]",
            ),
            alternatives=(
                "LN over C·H·W",
                "frozen BN",
            ),
        ),
    ),
    (
        lambda q: q.architecture == "cnn",
        Recommendation(
            norm="BN",
            place=AFTER_CONVOLUTION,
            code="nn.BatchNorm2d(channels)",
            reasons=(
                f"From {SMALL_BATCH} rows per batch on, BatchNorm is the default of CNNs. "
                "[guide S4, step 2]",
                WHY_AFTER_CONV,
            ),
            contradictions=(
                "The guide asks for batches of at least 16 rows in one sentence and of at least 8 "
                "in another. [guide S4, Batch Norm]",
                ON_NORM_FREE_NETWORKS,
            ),
            alternatives=("GN",),
        ),
    ),
    (
        lambda q: q.architecture in ("rnn", "lstm", "gru"),
        Recommendation(
            norm="LN",
            place="step by step, on the outputs of each layer",
            code="nn.LayerNorm(hidden_size)  # on (B, L, hidden)",
            reasons=("Recurrent networks use LayerNorm, never BatchNorm. [guide S4, step 2]",),
            contradictions=(
                "The guide normalizes only the outputs, not the state. The paper on LayerNorm "
                "normalizes inside the recurrence. [Ba et al. 2016]",
                "BatchNorm trains LSTMs well with separate statistics for each step. With "
                "statistics over all steps BatchNorm applies one shift and one scale per channel, "
                "which does not destroy the order in time. [Cooijmans et al. 2017]",
            ),
            alternatives=("RMSN",),
        ),
    ),
    (
        lambda q: q.architecture == "transformer" and (q.size or 0) >= LARGE_SIZE,
        Recommendation(
            norm="RMSN",
            place=PRE_NORM,
            code="nn.RMSNorm(d_model)",
            reasons=(
                "Transformers with at least 1B parameters use RMSNorm. [guide S4, step 2]",
                WHY_PRE_NORM,
            ),
            contradictions=ON_TRANSFORMERS,
            alternatives=("LN",),
        ),
    ),
    (
        lambda q: q.architecture == "transformer",
        Recommendation(
            norm="LN",
            place=PRE_NORM,
            code="nn.LayerNorm(d_model)",
            reasons=(
                "Transformers with fewer than 1B parameters use LayerNorm. [guide S4, step 2]",
                WHY_PRE_NORM,
            ),
            contradictions=ON_TRANSFORMERS,
            alternatives=("RMSN",),
        ),
    ),
    (
        lambda q: q.architecture == "gan" and q.component == "generator",
        Recommendation(
            norm="None",
            place="in the generator",
            code="nn.Identity()",
            reasons=(
                "A generator that does not translate images uses no norm, or InstanceNorm. "
                "[guide S4, GAN]",
            ),
            contradictions=(ON_DCGAN,),
            alternatives=("IN",),
        ),
    ),
    (
        lambda q: q.architecture == "gan",
        Recommendation(
            norm="None",
            place="in the discriminator",
            code="nn.Identity()",
            reasons=(
                "With BatchNorm the discriminator's output for a row depends on the other rows. "
                "[guide S4, GAN]",
                "For a critic with a gradient penalty, its authors recommend LayerNorm instead of "
                "BatchNorm. [Gulrajani et al. 2017]",
            ),
            contradictions=(ON_DCGAN,),
            alternatives=(
                "LN",
                "spectral norm",
            ),
        ),
    ),
    (
        lambda q: q.has_small_batch or q.is_causal,
        Recommendation(
            norm="LN",
            place=AFTER_LINEAR,
            code="nn.LayerNorm(features)",
            reasons=(
                "LayerNorm works at any batch size, even 1. [guide S4, Layer Normalization; "
                "Summary, 2]",
            ),
            contradictions=(ON_NORM_FREE_NETWORKS,),
            alternatives=(
                "RMSN",
                "None",
            ),
        ),
    ),
    (
        lambda q: True,
        Recommendation(
            norm="BN",
            place=AFTER_LINEAR,
            code="nn.BatchNorm1d(features)",
            reasons=(
                "BatchNorm also works on the features of linear layers, from 8 rows per batch on. "
                "[guide S4, Batch Normalization]",
            ),
            contradictions=(ON_NORM_FREE_NETWORKS,),
            alternatives=(
                "LN",
                "None",
            ),
        ),
    ),
)


def recommend(
    architecture: str,
    *,
    batch_size: int | None = None,
    task: str | None = None,
    causal: bool = False,
    size: float | None = None,
    component: str | None = None,
    depth: int | None = None,
) -> Recommendation:
    """Return which norm to use in an architecture, where to put it, and why.

    The answer follows the decision framework of the guide *Normalization Techniques*
    (`references("S4")`); for "mamba" the answer comes from recorded runs.

    architecture: one of ARCHITECTURES. batch_size: rows of a training batch on one device. task:
    one of TASKS; for "mamba" also a recorded task of this kit, such as "pydoc". causal: True if no
    output may depend on a later position. size: the number of parameters of the model, such as 7e9.
    component: "generator" or "discriminator" (required for a GAN), or "output" for the last layer.
    depth: the number of layers. Raises ValueError for an invalid value.
    """
    question = Question(architecture, batch_size, task, causal, size, component, depth)
    _check(question)
    if architecture == "mamba":
        answer = recommend_mamba(task, causal)
    else:
        answer = next(answer for rule_fits, answer in RULES if rule_fits(question))
        if question.is_causal:
            causal_norms = tuple(x for x in answer.alternatives if x not in POOLED_NORMS)
            answer = replace(
                answer, reasons=(*answer.reasons, WHY_CAUSAL), alternatives=causal_norms
            )
    return replace(answer, question=question)


def _check(question: Question) -> None:
    """Raise ValueError if an argument of `recommend` in the question has an invalid value."""
    is_mamba, is_gan = question.architecture == "mamba", question.architecture == "gan"
    choices = {
        "architecture": ARCHITECTURES,
        "task": (None, *TASKS, *KIT_TASKS) if is_mamba else (None, *TASKS),
        # a GAN has two networks, so the component must be given
        "component": COMPONENTS if is_gan else (None, *COMPONENTS),
    }
    for name, valid in choices.items():
        if getattr(question, name) not in valid:
            raise unknown(name, getattr(question, name), valid)
    for name in ("batch_size", "depth"):
        if getattr(question, name) is not None:
            check_size(name, getattr(question, name))
