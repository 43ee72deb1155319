"""`recommend`: the decision framework of the guide *Normalization Techniques* (source S4) as one
table, the first rule that fits: RULES. Papers are named where they are at odds with the guide; what
this kit has measured of its advice is in notebook 11. The rule for Mamba comes from recorded runs
(mamba.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mambanorm.checks import check_flag, check_size
from mambanorm.errors import shown, unknown
from mambanorm_study.advice.mamba import advised
from mambanorm_study.basics.settings import SMALL_BATCH
from mambanorm_study.tasks import TASKS as KIT

ARCHITECTURES = ("cnn", "rnn", "lstm", "gru", "transformer", "gan", "mamba", "mlp")
TASKS = (
    "classification", "regression", "detection", "segmentation", "style_transfer", "image_translation", "generation",
    "language_model", "reinforcement_learning", "debugging",
)  # fmt: skip
IMAGES = ("style_transfer", "image_translation")
"""Tasks that turn an image into an image."""
SMALL_BATCH_TASKS = ("detection", "segmentation", "reinforcement_learning")
COMPONENTS = ("generator", "discriminator", "output")
LARGE, DEEP = 1e9, 12
"""Parameters from which the guide calls a Transformer large; layers above which it leaves
post-norm."""


class Question(NamedTuple):
    """What is asked; None where it is left open. size: parameters; depth: layers."""

    architecture: str
    batch_size: int | None = None
    task: str | None = None
    causal: bool = False
    size: float | None = None
    component: str | None = None
    depth: int | None = None

    @property
    def words(self) -> str:
        """`cnn, batch_size=4`"""
        given = {
            name: value
            for name, value in self._asdict().items()
            if value and name != "architecture"
        }
        told = (
            f"{name}={value:,.0f}" if name == "size" else f"{name}={value}"
            for name, value in given.items()
        )
        return ", ".join([self.architecture, *told])

    @property
    def small(self) -> bool:
        """Whether its batches are small: asked, or expected of its task."""
        return self.batch_size < SMALL_BATCH if self.batch_size else self.task in SMALL_BATCH_TASKS

    @property
    def blind(self) -> bool:
        """Whether it may see no later position: a language model is causal without being called
        so."""
        return self.causal or self.task == "language_model"


@dataclass(frozen=True)
class Recommendation:
    """A norm by its name in the kit ("None" for none), its place in words, the line of code, and
    why, each with its source in brackets. at_odds: where sources contradict each other or the runs
    of this kit; undecided: runs of this kit that decide nothing; instead: norms to try next."""

    question: Question
    norm: str
    place: str
    code: str
    reasons: tuple[str, ...] = ()
    at_odds: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    def _repr_markdown_(self) -> str:
        norm = "no norm" if self.norm == "None" else self.norm
        lines = [f"**{self.question.words}: {norm}, {self.place}**", "", f"    {self.code}"]
        lists = {"Why": self.reasons, "What is at odds": self.at_odds}
        lists |= {"Not decided by this kit's runs": self.undecided, "To try next": self.instead}
        for title, entries in lists.items():
            lines += ["", f"{title}:", "", *(f"- {entry}" for entry in entries)] if entries else []
        return "\n".join(lines)

    __repr__ = _repr_markdown_


class Rule(NamedTuple):
    """What is taken where `fits`; reasons: texts with the section of the guide in brackets."""

    fits: Callable[[Question], bool]
    norm: str
    place: str
    code: str
    reasons: tuple[str, ...]
    at_odds: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


WU_AND_HE = (
    "The guide prints BN 3.2 points behind GN at batch 2, and names “He et al.”. The paper says 10.6 points. "
    "[Wu & He 2018, abstract]"
)
NORM_FREE = (
    "The guide calls normalization mandatory. Networks without it train as well with scaled weight standardization and "
    "gradient clipping, or with a tanh in place of the norm. [Brock et al. 2021, NFNets; Zhu et al. 2025, DyT]"
)
IDENTICAL = (
    "The guide calls GroupNorm(1) a LayerNorm: of images over C·H·W it is, of one token's channels it is not. And "
    "GroupNorm(C) is InstanceNorm only with the same γ and β: torch's InstanceNorm has none by default. [notebook 11]"
)
BATCH_OF_ONE = (
    "The guide calls BatchNorm undefined at batch 1. It is so only without a spatial extent: over H·W positions it has "
    "statistics, those of InstanceNorm. [torch.nn.BatchNorm2d; notebook 11]"
)
MARGINAL = "In one place BatchNorm is for batches of at least 16, in another of at least 8. [guide S4, Batch Norm]"
REVERSED = (
    "The guide says that InstanceNorm preserves each image's style and BatchNorm erases it. Each channel leaves "
    "InstanceNorm with mean 0 and variance 1, whatever the style: it erases, and that is why it helps. "
    "[Huang & Belongie 2017]"
)
INSIDE = (
    "The guide normalizes the outputs alone, and so not the state. The paper normalizes inside the recurrence. "
    "[Ba et al. 2016]"
)
NEVER_BN = (
    "BatchNorm trains LSTMs well when it has statistics of its own for each step. Pooled over steps it is one shift "
    "and scale a channel: that destroys no order in time. [Cooijmans et al. 2017]"
)
ARITHMETIC = (
    "The guide's RMSNorm is 15–20 % faster than LayerNorm. By its own table all of LayerNorm costs 3–5 %, and a part "
    "cannot save more than it costs. [guide S4, RMS Normalization against Performance Impact]"
)
GPT_2 = (
    "The guide lists GPT-2 as post-norm and PaLM with RMSNorm. GPT-2 moved the norm to the input of each sub-block, "
    "and the paper on PaLM speaks of layer norms without biases. [Radford et al. 2019; Chowdhery et al. 2022, §2]"
)
DEEPNET = "With scaled residuals and initial weights, post-norm trains with 1,000 layers. [Wang et al. 2022, DeepNet]"
DCGAN = (
    "DCGAN has BatchNorm in the generator and in the discriminator, but for the output of the one and the input of the "
    "other, and calls it critical for training deep generators. [Radford et al. 2016]"
)
SCALED_INPUTS = (
    "Badly scaled inputs hurt a single layer as well: standardise the data, which is no layer. "
    "[LeCun et al. 1998, Efficient BackProp; notebook 01]"
)
FUTURE = (
    "No output may depend on a later position: LN and RMSN look at one position alone; BN, GN and IN take statistics "
    "along the positions, and so from the future. [notebook 01]"
)
STYLE = (
    "Style transfer and image translation take InstanceNorm, whatever the batch: it removes the contrast of the "
    "content image, which the output must not depend on. [guide S4, step 2; Ulyanov et al. 2017; Huang & Belongie 2017]"
)
CRITIC = "A critic with a gradient penalty asks for LayerNorm in place of BatchNorm. [Gulrajani et al. 2017]"
AFTER_CONVOLUTION = "after the convolution, before the activation"
PLACED = "In CNNs the norm stands between convolution and activation. [guide S4, step 3]"
PRE_NORM = "before each sub-layer (pre-norm), and once before the head"
PRE = "Pre-norm is more stable, and the default; post-norm above 12 layers is hard to train. [guide S4, Mistake 4]"
STEP = "step by step, on the outputs of each layer"
HIDDEN = "after the linear layer, before the activation"

RULES = (
    Rule(
        lambda q: q.component == "output",
        "None",
        "on the output layer",
        "nn.Linear(d, n_out)  # and no norm behind it",
        (
            "Logits, predictions, pixels and scores need their own scale. [guide S4, When NOT to Normalize]",
        ),
    ),
    Rule(
        lambda q: q.task == "debugging",
        "None",
        "until the cause is found",
        "nn.Identity()",
        (
            "Without norms a wrong initialization or loss shows itself. [guide S4, When NOT to Normalize]",
        ),
    ),
    Rule(
        lambda q: q.depth == 1 and q.architecture in ("mlp", "cnn") and q.task not in IMAGES,
        "None",
        "in a single layer",
        "nn.Identity()",
        ("One layer is too simple to need it. [guide S4, When NOT to Normalize]",),
        (SCALED_INPUTS,),
    ),
    Rule(
        lambda q: (
            q.task in IMAGES
            and not q.blind
            and (q.architecture == "cnn" or q.component == "generator")
        ),
        "IN",
        AFTER_CONVOLUTION,
        "nn.InstanceNorm2d(channels, affine=True)",
        (STYLE, PLACED),
        (REVERSED, IDENTICAL),
        ("GN",),
    ),
    Rule(
        lambda q: q.architecture == "cnn" and q.blind,
        "LN",
        "over the channels of each position",
        "nn.LayerNorm(channels)  # on (B, L, C)",
        ("LayerNorm does not mix steps. [guide S4, Layer Normalization]",),
    ),
    Rule(
        lambda q: q.architecture == "cnn" and q.small,
        "GN",
        AFTER_CONVOLUTION,
        "nn.GroupNorm(32, channels)  # 32 must divide channels, and be fewer",
        (
            f"Below {SMALL_BATCH} rows the statistics of BatchNorm are noisy. [guide S4, step 1]",
            PLACED,
        ),
        (WU_AND_HE, IDENTICAL, BATCH_OF_ONE),
        ("LN over C·H·W", "frozen BN"),
    ),
    Rule(
        lambda q: q.architecture == "cnn",
        "BN",
        AFTER_CONVOLUTION,
        "nn.BatchNorm2d(channels)",
        (
            f"From {SMALL_BATCH} rows on BatchNorm is the default of CNNs. [guide S4, step 2]",
            PLACED,
        ),
        (MARGINAL, NORM_FREE),
        ("GN",),
    ),
    Rule(
        lambda q: q.architecture in ("rnn", "lstm", "gru"),
        "LN",
        STEP,
        "nn.LayerNorm(hidden_size)  # on (B, L, hidden)",
        ("Recurrent nets take LayerNorm, never BatchNorm. [guide S4, step 2]",),
        (INSIDE, NEVER_BN),
        ("RMSN",),
    ),
    Rule(
        lambda q: q.architecture == "transformer" and (q.size or 0) >= LARGE,
        "RMSN",
        PRE_NORM,
        "nn.RMSNorm(d_model)",
        ("With at least 1B parameters it is RMSNorm. [guide S4, step 2]", PRE),
        (ARITHMETIC, GPT_2, DEEPNET),
        ("LN",),
    ),
    Rule(
        lambda q: q.architecture == "transformer",
        "LN",
        PRE_NORM,
        "nn.LayerNorm(d_model)",
        ("With fewer than 1B parameters it is LayerNorm. [guide S4, step 2]", PRE),
        (ARITHMETIC, GPT_2, DEEPNET),
        ("RMSN",),
    ),
    Rule(
        lambda q: q.architecture == "gan" and q.component == "generator",
        "None",
        "in the generator",
        "nn.Identity()",
        ("A generator that translates no image needs no norm, or InstanceNorm. [guide S4, GAN]",),
        (DCGAN,),
        ("IN",),
    ),
    Rule(
        lambda q: q.architecture == "gan",
        "None",
        "in the discriminator",
        "nn.Identity()",
        ("BatchNorm lets the discriminator see who else is in the batch. [guide S4, GAN]", CRITIC),
        (DCGAN,),
        ("LN", "spectral norm"),
    ),
    Rule(
        lambda q: q.small or q.blind,
        "LN",
        HIDDEN,
        "nn.LayerNorm(features)",
        (
            "LayerNorm works at any batch size, 1 included. [guide S4, Layer Normalization; Summary, 2]",
        ),
        (NORM_FREE,),
        ("RMSN", "None"),
    ),
    Rule(
        lambda q: True,
        "BN",
        HIDDEN,
        "nn.BatchNorm1d(features)",
        (
            "BatchNorm takes fully connected features as well, from 8 rows on. [guide S4, Batch Normalization]",
        ),
        (NORM_FREE,),
        ("LN", "None"),
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
    """The norm for an architecture and its place, with reasons: the guide's decision framework
    (`references("S4")`).

    batch_size: rows of a training batch on one device. size: parameters, such as 7e9. component:
    "generator" or "discriminator" (a GAN needs one), or "output" for the last layer. depth: layers.
    For "mamba", task may also name a recorded task of this kit (`pydoc`), and the reasons are
    recorded verdicts. ValueError for an unknown value.
    """
    q = Question(architecture, batch_size, task, causal, size, component, depth)
    tasks = (*TASKS, *KIT) if architecture == "mamba" else TASKS
    for name, valid in (
        ("architecture", ARCHITECTURES),
        ("task", (None, *tasks)),
        ("component", (None, *COMPONENTS)),
    ):
        if (value := getattr(q, name)) not in valid:
            raise unknown(name, value, valid)
    if architecture == "gan" and component is None:
        raise ValueError(
            f"a GAN has two networks: component is needed, valid are {', '.join(COMPONENTS)}"
        )
    for name in ("batch_size", "depth"):
        if getattr(q, name) is not None:
            check_size(name, getattr(q, name))
    check_flag("causal", causal)
    if size is not None and not (isinstance(size, int | float) and size >= 1):
        raise ValueError(f"size must be a number of parameters such as 3e8, got {shown(size)}")
    if architecture == "mamba":
        return Recommendation(q, *advised(task, causal, batch_size))
    _, norm, place, code, reasons, odd, instead = next(rule for rule in RULES if rule.fits(q))
    if q.blind:
        reasons, instead = (
            (*reasons, FUTURE),
            tuple(name for name in instead if name not in ("BN", "GN", "IN")),
        )
    return Recommendation(q, norm, place, code, reasons, odd, instead)
