"""`recommend`: the decision framework of the guide *Normalization Techniques* (source S4), one rule an architecture.

Step 1 asks for the batch, 2 for the architecture, 3 for the place; then what the guide says of when not to normalize,
and its advice of 2025. A reason by `guide` names its section. Papers are named where they are at odds with it. What
this kit has measured comes from evidence.py, and so does the rule for Mamba.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mambanorm.advice import evidence
from mambanorm.advice.recommendation import (
    ARCHITECTURES,
    COMPONENTS,
    IMAGES,
    LARGE,
    TASKS,
    Question,
    Reason,
    Recommendation,
    check_question,
    meant,
    parameters,
)
from mambanorm.basics.settings import SMALL_BATCH, check_scale, default_scale
from mambanorm.tasks import TASKS as KIT

DEEP = 12
"""Layers above which it leaves post-norm."""
SMALL_BATCH_TASKS = ("detection", "segmentation", "reinforcement_learning")
"""Tasks whose batches the guide expects to be small."""

AFTER_CONVOLUTION = "after the convolution, before the activation"
PRE_NORM = "before each sub-layer (pre-norm), and once before the head"


def guide(text: str, section: str) -> Reason:
    return Reason(text, f"guide S4, {section}")


ARITHMETIC = Reason(
    "The guide's RMSNorm is 15–20 % faster than LayerNorm. By its own table all of LayerNorm costs 3–5 %, and a part "
    "cannot save more than it costs.",
    "guide S4, RMS Normalization against Performance Impact",
)
WU_AND_HE = Reason(
    "The guide prints BN 3.2 points behind GN at batch 2, and names “He et al.”. The paper says 10.6 points.",
    "Wu & He 2018, abstract, against guide S4, Group Normalization",
)
NORM_FREE = Reason(
    "The guide calls normalization mandatory. Networks without it train as well with scaled weight standardization and "
    "gradient clipping, or with a tanh in place of the norm.",
    "Brock et al. 2021, NFNets; Zhu et al. 2025, DyT",
)
IDENTICAL = Reason(
    "The guide calls GroupNorm(1) a LayerNorm: of images over C·H·W it is, of one token's channels it is not. And "
    "GroupNorm(C) is InstanceNorm only with the same γ and β: torch's InstanceNorm has none by default.",
    "guide S4, Group Normalization; shown in notebook 11",
)


# ---------------------------------------------------------------------------------------------------------------------
# when not to normalize


def never(q: Question) -> Recommendation | None:
    """The three cases of "When NOT to Normalize"; None for any other question."""
    section, odd = "When NOT to Normalize", ()
    if q.component == "output":  # logits come from a linear layer, pixels and a GAN's score from a convolution
        images = q.architecture == "gan" or (q.architecture == "cnn" and q.task in IMAGES)
        what, layer = ("Pixels and scores", "nn.Conv2d(channels, 3, 3, padding=1)") if images else (
            "Logits and predictions", "nn.Linear(d, n_out)")  # fmt: skip
        text = f"{what} need their own scale; a norm on the output takes it away."
        place, code = "on the output layer", f"{layer}  # and no norm behind it"
    elif q.task == "debugging":
        text = "Without norms a wrong initialization, loss or preprocessing shows itself."
        place, code = "until the cause is found", "nn.Identity()"
    elif q.depth == 1 and q.architecture in ("mlp", "cnn") and q.task not in IMAGES:
        text, odd = "One layer is too simple to need it.", (_SCALED_INPUTS,)
        place, code = "in a single layer", "nn.Identity()"
    else:
        return None
    return Recommendation(q, "None", place, code, (guide(text, section),), odd)


_SCALED_INPUTS = Reason(
    "Badly scaled inputs hurt a single layer as well: standardise the data, which is no layer.",
    "LeCun et al. 1998, Efficient BackProp; notebook 01",
)


# ---------------------------------------------------------------------------------------------------------------------
# architectures


def cnn(q: Question, store: dict) -> Recommendation:
    if q.sees_no_future:
        why = guide("LayerNorm does not mix steps.", "Layer Normalization")
        code = "nn.LayerNorm(channels)  # on (B, L, C)"
        return Recommendation(q, "LN", "over the channels of each position", code, (why, *_causal(q)))
    if q.task in IMAGES:
        return _instance_norm(q, store)
    small = (q.batch_size or SMALL_BATCH) < SMALL_BATCH or (q.batch_size is None and q.task in SMALL_BATCH_TASKS)
    measured, odd, undecided = evidence.batch_size(q.batch_size, "GN" if small else "BN", store)
    if small:
        given = f"{q.task} usually has batches" if q.batch_size is None else f"A batch of {q.batch_size} is"
        whys = [
            guide(f"{given} below {SMALL_BATCH}: the statistics of BatchNorm are noisy.", "Decision Framework, step 1")
        ]
        if q.batch_size == 1:
            odd = (_BATCH_OF_ONE, *odd)
        return Recommendation(
            q, "GN", AFTER_CONVOLUTION, "nn.GroupNorm(32, channels)  # 32 must divide channels, and be fewer",
            (*whys, _after_convolution(), *measured), (WU_AND_HE, IDENTICAL, *odd), ("LN over C·H·W", "frozen BN"),
            undecided,
        )  # fmt: skip
    given = "Without a batch size, one of at least 8 is assumed" if q.batch_size is None else f"Batch {q.batch_size}"
    whys = (
        guide(f"{given}: BatchNorm is the default of CNNs.", "Decision Framework, steps 1 and 2"),
        _after_convolution(),
    )
    marginal = [_MARGINAL] if q.batch_size is not None and q.batch_size < 2 * SMALL_BATCH else []
    odd = (*marginal, NORM_FREE, _PREACTIVATION, *odd)
    code = "nn.BatchNorm2d(channels)"
    return Recommendation(q, "BN", AFTER_CONVOLUTION, code, (*whys, *measured), odd, ("GN",), undecided)


_MARGINAL = guide("In one place BatchNorm is for batches of at least 16, in another of at least 8.", "Batch Norm")
_BATCH_OF_ONE = Reason(
    "The guide calls BatchNorm undefined at batch 1. It is so only without a spatial extent: over H·W positions it has "
    "statistics, those of InstanceNorm.",
    "torch.nn.BatchNorm2d; shown in notebook 11",
)
_PREACTIVATION = Reason(
    "Norm and activation can also stand before the convolution, so that the residual path stays free.", "He et al. 2016"
)


def _causal(q: Question) -> list[Reason]:
    """What a causal model adds to the reasons for LN or RMSN; nothing for another model."""
    asked = Reason("A language model predicts the next token: it is taken as causal.", "this kit")
    whys = [
        Reason("LN and RMSN look at one position, and so at no later one.", "notebook 01"),
        Reason("BN, GN and IN take statistics along the positions, and so from the future.", "notebook 01"),
    ]
    return ([] if q.causal else [asked]) + whys if q.sees_no_future else []


def _after_convolution() -> Reason:
    return guide("In CNNs the norm stands between convolution and activation.", "Decision Framework, step 3")


def _instance_norm(q: Question, store: dict) -> Recommendation:
    measured, odd, undecided = evidence.style(store)
    what = "Style transfer" if q.task == "style_transfer" else "Image-to-image translation"
    whys = (
        guide(f"{what} takes InstanceNorm, whatever the batch.", "Decision Framework, step 2"),
        Reason("It removes the contrast of the content image, which the output must not depend on.",
               "Ulyanov et al. 2017; Huang & Belongie 2017"),
        _after_convolution(),
    )  # fmt: skip
    reversed_ = Reason(
        "The guide says that InstanceNorm preserves each image's style and BatchNorm erases it. Each channel leaves "
        "InstanceNorm with mean 0 and variance 1, whatever the style: it erases, and that is why it helps.",
        "Huang & Belongie 2017, against guide S4, Instance Normalization",
    )
    code, odd = "nn.InstanceNorm2d(channels, affine=True)", (reversed_, IDENTICAL, *odd)
    return Recommendation(q, "IN", AFTER_CONVOLUTION, code, (*whys, *measured), odd, ("GN",), undecided)


def recurrent(q: Question, store: dict) -> Recommendation:
    measured, odd, undecided = evidence.recurrent(store)
    whys = (
        guide("Recurrent nets take LayerNorm, never BatchNorm.", "Decision Framework, step 2"),
        guide("It stands on the hidden states, step by step.", "Decision Framework, step 3"),
        *_causal(q),
        *measured,
    )
    inside = Reason(
        "The guide normalizes the outputs alone, and so not the state. The paper normalizes inside the recurrence.",
        "Ba et al. 2016, against guide S4, RNN / LSTM",
    )
    never_bn = Reason(
        "BatchNorm trains LSTMs well when it has statistics of its own for each step. Pooled over steps it is one "
        "shift and scale a channel: that destroys no order in time.",
        "Cooijmans et al. 2017, against guide S4, Why NOT BatchNorm",
    )
    place, code = "on the outputs of each layer, step by step", "nn.LayerNorm(hidden_size)  # on (B, L, hidden)"
    return Recommendation(q, "LN", place, code, whys, (inside, never_bn, *odd), ("RMSN",), undecided)


def transformer(q: Question, store: dict) -> Recommendation:
    large = (q.size or 0) >= LARGE
    norm = "RMSN" if large else "LN"
    says = f"With {'at least' if large else 'fewer than'} 1B parameters it is {'RMSNorm' if large else 'LayerNorm'}."
    measured, odd, undecided = evidence.depth(q.depth, store)
    whys = [
        guide(says, "Decision Framework, step 2; Modern Recommendations (2025)"),
        guide("Pre-norm is more stable, and the default.", "Decision Framework, steps 2 and 3"),
    ]
    if q.depth is not None and q.depth > DEEP:
        whys.append(guide(f"Post-norm above {DEEP} layers is hard to train.", "Transformer; Mistake 4"))
        odd = (_DEEPNET, *odd)
    whys += _causal(q)
    code, instead = ("nn.RMSNorm(d_model)", ("LN",)) if large else ("nn.LayerNorm(d_model)", ("RMSN",))
    odd = (ARITHMETIC, _GPT_2, *odd)
    return Recommendation(q, norm, PRE_NORM, code, (*whys, *measured), odd, instead, undecided)


_DEEPNET = Reason(
    "With scaled residuals and initial weights, post-norm trains with 1,000 layers.", "Wang et al. 2022, DeepNet"
)
_GPT_2 = Reason(
    "The guide lists GPT-2 as post-norm and PaLM with RMSNorm. GPT-2 moved the norm to the input of each sub-block, "
    "and the paper on PaLM speaks of layer norms without biases.",
    "Radford et al. 2019; Chowdhery et al. 2022, §2; against guide S4, Transformer and RMS Normalization",
)


def gan(q: Question, store: dict) -> Recommendation:
    if q.component == "generator" and q.task in IMAGES:
        return replace(_instance_norm(q, store), instead=("None",))
    why = {
        "generator": "A generator that translates no image needs no norm, or InstanceNorm.",
        "discriminator": "BatchNorm lets the discriminator see who else is in the batch.",
    }
    whys = [guide(why[q.component], "Decision Framework, step 2; GAN")]
    instead = ("LN over the channels of each position",) if q.sees_no_future else ("IN",)
    if q.component == "discriminator":
        whys, instead = [*whys, _CRITIC], ("LN", "spectral norm")
    whys += [_NO_STATISTIC] if q.sees_no_future else []
    return Recommendation(q, "None", f"in the {q.component}", "nn.Identity()", tuple(whys), (_DCGAN,), instead)


_NO_STATISTIC = Reason("Without a norm there is no statistic that a later position could enter.", "notebook 01")
_CRITIC = Reason("A critic with a gradient penalty asks for LayerNorm in place of BatchNorm.", "Gulrajani et al. 2017")
_DCGAN = Reason(
    "DCGAN has BatchNorm in the generator and in the discriminator, but for the output of the one and the input of the "
    "other, and calls it critical for training deep generators.",
    "Radford et al. 2016, against guide S4, GAN",
)


def mlp(q: Question, store: dict) -> Recommendation:
    place = "after the linear layer, before the activation"
    small = (q.batch_size or SMALL_BATCH) < SMALL_BATCH or q.task == "reinforcement_learning"
    norm = "LN" if small or q.sees_no_future else "BN"
    measured, odd, undecided = evidence.batch_size(q.batch_size, norm, store, "dense")
    odd = (NORM_FREE, *odd)
    if norm == "LN":
        why = guide("LayerNorm works at any batch size, 1 included.", "Layer Normalization; Summary, 2")
        whys = (why, *_causal(q), *measured)
        return Recommendation(q, "LN", place, "nn.LayerNorm(features)", whys, odd, ("RMSN", "None"), undecided)
    why = guide("BatchNorm takes fully connected features as well, from 8 rows on.", "Batch Normalization")
    code = "nn.BatchNorm1d(features)"
    return Recommendation(q, "BN", place, code, (why, *measured), odd, ("LN", "None"), undecided)


RULES: dict[str, Callable[..., Recommendation]] = dict(
    cnn=cnn, rnn=recurrent, lstm=recurrent, gru=recurrent, transformer=transformer, gan=gan, mlp=mlp
)
"""Architecture → its rule; Mamba's is in evidence.py."""


def recommend(
    architecture: str,
    *,
    batch_size: int | None = None,
    task: str | None = None,
    causal: bool = False,
    size: float | str | None = None,
    component: str | None = None,
    depth: int | None = None,
    scale: str | None = None,
    runs_dir=None,
) -> Recommendation:
    """The norm for an architecture and its place, with reasons (the guide's decision framework, S4).

    batch_size: rows of a training batch on one device. causal: no output may depend on a later position. size:
    parameters, a number or such as "7B". component: "generator" or "discriminator" (a GAN needs one), or "output" for
    the last layer. depth: layers. For "mamba", task may also name a recorded task of this kit (`mnist1d`), and the
    reasons are recorded verdicts. Runs of `advice.measure` that the run store holds (at a scale, in a folder; None =
    the environment's) are named where they speak to the question.
    Names may be spelt "Transformers" or "language model" as well. ValueError for an unknown value, with the valid
    ones.
    """
    architecture, component = meant(architecture, ARCHITECTURES), meant(component, COMPONENTS)
    tasks = (*TASKS, *KIT) if architecture == "mamba" else TASKS
    task = meant(task, tasks)
    batch_size, depth = (n.item() if isinstance(n, np.integer) else n for n in (batch_size, depth))
    question = Question(architecture, batch_size, task, causal, parameters(size), component, depth)
    check_question(question, tasks)
    store = dict(scale=default_scale() if scale is None else check_scale(scale), runs_dir=runs_dir)
    if refused := never(question):
        return refused
    return evidence.mamba(question) if architecture == "mamba" else RULES[architecture](question, store)
