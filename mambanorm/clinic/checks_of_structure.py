"""Checks of what a model is made of: the kind of each norm, its place, and the shapes that pass through it.

Each takes an Exam and yields symptoms. `check` names the line of the guide's checklist (S4), or the section. What is
before and behind a norm is known from a pass alone: without a batch these checks are silent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from mambanorm.advice.rules import DEEP, SMALL_BATCH
from mambanorm.basics.text import plural
from mambanorm.clinic.checks_of_behaviour import most_groups
from mambanorm.clinic.exam import Exam
from mambanorm.clinic.provenance import (
    ACTIVATIONS,
    PADS,
    SOFTMAX,
    WEIGHTED,
    behind_sums,
    channels_of,
    norms_of,
    takes_batch_statistics,
)
from mambanorm.clinic.symptoms import Symptom
from mambanorm.norms.base import Norm

NAMES = {"GN": "GroupNorm", "LN": "LayerNorm", "RMSN": "RMSNorm", "IN": "InstanceNorm"}
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
PADDED = 0.02
"""Share of empty positions from which padding is worth a word."""


def small_batches(exam: Exam) -> Iterator[Symptom]:
    """Check 1: BatchNorm learns from fewer than 8 rows of its own input. Running statistics, in eval mode, do not mind.

    In a model in train mode a norm in eval mode is frozen; of a model in eval mode it is said what training would do.
    """
    rows, told = {}, ""
    for path, norm in exam.batch_norms:
        if norm.training or not exam.training:
            ran = exam.ran(path)
            rows[path] = exam.batch_size or (ran.shape[0] if ran else exam.rows)
    small = {path: n for path, n in rows.items() if n and n < SMALL_BATCH}
    if exam.evaluating or not small:
        return
    path = min(small, key=small.get)
    ran = exam.ran(path)
    if ran and exam.batch_size in (None, ran.shape[0]):
        values = math.prod(ran.shape) // channels_of(ran.module)
        told = f"; the statistics of the first are taken over {values:,} values a channel"
    learns = "learns" if exam.training else "would learn, when trained,"
    found = f"BatchNorm {learns} from batches of {small[path]} ({plural(len(small), 'such norm')}{told})"
    mend = "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
    severity = "serious" if small[path] <= 2 and exam.training else "warning"
    yield Symptom(severity, path, found, mend, "check 1, mistake 1")


def recurrent(exam: Exam) -> Iterator[Symptom]:
    """Check 2: BatchNorm on the outputs of an RNN, an LSTM or a GRU, step after step; dropout or an activation may
    stand between."""
    nets = {path: module for path, module in exam.model.named_modules() if isinstance(module, RECURRENT)}
    for path, module in exam.batch_norms if nets else ():
        ran = exam.ran(path)
        if ran and ran.behind in nets and len(ran.shape) == 3:
            steps = math.prod(ran.shape[1:]) // channels_of(module)
            found = f"one BatchNorm statistic over {ran.shape[0]} rows × {steps} steps of the outputs of {ran.behind}"
            mend = "nn.LayerNorm on (B, L, hidden), or statistics of its own for each step"
            net = type(nets[ran.behind]).__name__
            yield Symptom("warning", path, f"{found} ({net})", mend, "check 2, mistake 2")


def wrong_for_the_task(exam: Exam) -> Iterator[Symptom]:
    """Check 3: style transfer and image translation with BatchNorm."""
    if exam.task in ("style_transfer", "image_translation") and (norms := exam.batch_norms):
        what = "each image's style stays in, and the output then depends on the batch"
        found = f"{plural(len(norms), 'BatchNorm')} in {exam.task.replace('_', ' ')}: {what}"
        yield Symptom("warning", norms[0][0], found, "nn.InstanceNorm2d(channels, affine=True)", "check 3, mistake 5")


def placed_behind_activation(exam: Exam) -> Iterator[Symptom]:
    """Check 4: convolution → activation → norm, where norm → activation is meant."""
    for ran in exam.trace.seen:
        if ran.kind in ("BN", "IN", "GN") and ACTIVATIONS.match(ran.made_by) and WEIGHTED.match(ran.before):
            what = ran.made_by.removesuffix("Backward0")
            found = f"the norm stands behind the activation ({what}), and that behind the convolution"
            mend = "convolution, norm, activation; or, in residual nets, norm, activation, convolution"
            yield Symptom("note", ran.path, found, mend, "check 4")


def deep_post_norm(exam: Exam) -> Iterator[Symptom]:
    """Check 10: norms on the residual stream of more than 12 layers, counted by their calls; torch's decoder layers
    have three, others two."""
    chain = behind_sums(exam.trace)
    parents = [exam.model.get_submodule(ran.path.rpartition(".")[0]) for ran in chain]
    of_decoders = sum(isinstance(parent, nn.TransformerDecoderLayer) for parent in parents)
    layers = math.ceil(of_decoders / 3) + math.ceil((len(chain) - of_decoders) / 2)
    if layers > DEEP:
        found = f"post-norm: {len(chain)} norms behind residual sums, in about {layers} layers"
        mend = "pre-norm, x + f(norm(x)), with a last norm before the head; or warm-up and scaled residuals"
        yield Symptom("warning", chain[0].path, found, mend, "check 10, mistake 4")


def norm_on_the_output(exam: Exam) -> Iterator[Symptom]:
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out, or its softmax.

    Features may well end in a norm. That the output is no such thing is told by a loss, a softmax or `component`.
    """
    if not exam.trace.ends_in or exam.trace.output.dim() != 2:
        return
    softmax = SOFTMAX.match(exam.trace.output.grad_fn.name())
    sure = softmax or exam.loss or exam.component == "output"
    comes = "is a softmax that comes" if softmax else "comes"
    found = f"the output {tuple(exam.trace.output.shape)} {comes} straight from a norm, so its scale is fixed"
    found += "" if sure else ": fine for features, not for logits or what is regressed"
    mend = "no norm behind the last linear layer"
    yield Symptom("serious" if sure else "warning", exam.trace.ends_in, found, mend, "when not to, 1")


def discriminator(exam: Exam) -> Iterator[Symptom]:
    """BatchNorm in each discriminator of a GAN, told by `component` or by the name of a class."""
    named = [path for path, m in exam.model.named_modules() if "discriminator" in type(m).__name__.lower()]
    told: set[str] = set()
    for path in [""] if exam.component == "discriminator" else named:
        norms = [name for name, _ in exam.batch_norms if not path or name.startswith(f"{path}.")]
        if norms and not told & {*norms}:
            told |= {*norms}
            found = f"{plural(len(norms), 'BatchNorm')} in a discriminator: a row's score depends on its batch-mates"
            yield Symptom("warning", norms[0], found, "no norm, LN, or spectral norm", "GAN; modern advice")


def groups(exam: Exam) -> Iterator[Symptom]:
    """Norms with a statistic over one or two values, and GroupNorm with one channel in each group."""
    for path, module, kind in norms_of(exam.model):
        ran = exam.ran(path)
        values = values_of(module, kind, ran and ran.shape)
        g, c = getattr(module, "num_groups", 0), channels_of(module)
        if values == 1 or (values == 2 and kind != "RMSN"):
            left = "only which of the two is larger" if values == 2 else "their sign" if kind == "RMSN" else "nothing"
            found = f"each statistic is taken over {plural(values, 'value')}: {left} is left of them, whatever goes in"
            yield Symptom("serious", path, found, "fewer groups, or a norm over all channels", NAMES[kind])
        elif g > 1 and g == c:
            found = f"{g} groups of one channel each: this is InstanceNorm"
            mend = f"fewer groups, such as {most_groups(c)}, or say InstanceNorm"
            yield Symptom("note", path, found, mend, NAMES[kind])


def values_of(module: nn.Module, kind: str, shape: tuple[int, ...] | None) -> int | None:
    """Over how many values of a row a GN, an LN, an RMSN or an IN takes a statistic; None if that cannot be told."""
    own = isinstance(module, Norm)  # (B, L, D); torch has (B, C, …)
    if kind in ("LN", "RMSN"):
        return module.d if own else math.prod(getattr(module, "normalized_shape", ())) or None
    if kind not in ("GN", "IN") or not shape:
        return None
    groups = getattr(module, "groups", None) or getattr(module, "num_groups", None)
    positions = math.prod(shape[1:-1] if own else shape[2:])
    return positions if kind == "IN" else channels_of(module) // groups * positions


def padding(exam: Exam) -> Iterator[Symptom]:
    """BatchNorm straight behind padding: the zeros enter its statistics."""
    embeddings = {p for p, m in exam.model.named_modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None}
    for ran in exam.trace.seen:
        padded = PADS.match(ran.made_by) or ran.source in embeddings or "pad" in ran.source.lower()
        if takes_batch_statistics(ran.module, ran.kind) and padded and ran.empty > PADDED and not ran.masked:
            found = f"{100 * ran.empty:.0f} % of the positions under the statistics are padding"
            mend = "pad behind the norm, let convolutions pad, or leave padding out (lengths= in this kit's norms)"
            yield Symptom("warning", ran.path, found, mend, "Batch Normalization")
