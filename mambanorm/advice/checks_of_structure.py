"""Checks of what a model is made of: the kind of each norm, its place, and the shapes that pass through it.

Each takes an Exam and yields findings. `check` names the line of the guide's checklist (S4), or the section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from mambanorm.advice.findings import Exam, Finding
from mambanorm.advice.rules import DEEP, SMALL_BATCH
from mambanorm.advice.swap import most_groups
from mambanorm.advice.trace import (
    ACTIVATIONS,
    PADS,
    SOFTMAX,
    WEIGHTED,
    Seen,
    behind_sums,
    channels_of,
    norms_of,
    takes_batch_statistics,
)
from mambanorm.basics.text import plural
from mambanorm.norms.base import Norm

NAMES = {"GN": "GroupNorm", "LN": "LayerNorm", "RMSN": "RMSNorm", "IN": "InstanceNorm"}
LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
PADDED = 0.02
"""Share of empty positions from which padding is worth a word."""


def _batch_norms(exam: Exam) -> list[tuple[str, nn.Module]]:
    return [(path, module) for path, module, kind in norms_of(exam.model) if takes_batch_statistics(module, kind)]


def _seen(exam: Exam, path: str) -> Seen | None:
    return next((seen for seen in exam.trace.seen if seen.path == path), None) if exam.trace else None


def small_batches(exam: Exam) -> Iterator[Finding]:
    """Check 1: BatchNorm learns from fewer than 8 rows of its own input. Running statistics, in eval mode, do not mind.

    In a model in train mode a norm in eval mode is frozen; of a model in eval mode it is said what training would do.
    """
    norms = [path for path, norm in _batch_norms(exam) if norm.training or not exam.training]
    ran = {path: seen for path in norms if (seen := _seen(exam, path))}
    rows = {path: exam.batch_size or (ran[path].shape[0] if path in ran else exam.rows) for path in norms}
    small = {path: n for path, n in rows.items() if n and n < SMALL_BATCH}
    if exam.evaluating or not small:
        return
    path, told = min(small, key=small.get), ""
    if path in ran and exam.batch_size in (None, ran[path].shape[0]):
        values = math.prod(ran[path].shape) // channels_of(ran[path].module)
        told = f"; the statistics of the first are taken over {values:,} values a channel"
    learns = "learns" if exam.training else "would learn, when trained,"
    found = f"BatchNorm {learns} from batches of {small[path]} ({plural(len(small), 'such norm')}{told})"
    mend = "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
    yield Finding(
        "serious" if small[path] <= 2 and exam.training else "warning", path, found, mend, "check 1, mistake 1"
    )


def recurrent(exam: Exam) -> Iterator[Finding]:
    """Check 2: BatchNorm on the outputs of an RNN, an LSTM or a GRU, step after step.

    Dropout or an activation may stand between. Without a pass only their widths are compared.
    """
    nets = {path: module for path, module in exam.model.named_modules() if isinstance(module, RECURRENT)}
    for path, module in _batch_norms(exam) if nets else ():
        seen = _seen(exam, path)
        source = seen.behind if seen else "" if exam.trace else _widths(nets, module)
        if source not in nets or (seen and len(seen.shape) != 3):
            continue
        outputs = f"of the outputs of {source} ({type(nets[source]).__name__})"
        if seen:
            steps = math.prod(seen.shape[1:]) // channels_of(module)
            found = f"one BatchNorm statistic over {seen.shape[0]} rows × {steps} steps {outputs}"
        else:
            found = f"by its width this may be one BatchNorm statistic over all steps {outputs}: give a batch to see"
        mend = "nn.LayerNorm on (B, L, hidden), or statistics of its own for each step"
        yield Finding("warning" if seen else "note", path, found, mend, "check 2, mistake 2")


def _widths(nets: dict[str, nn.Module], norm: nn.Module) -> str:
    """Without a pass: the recurrent net whose outputs have the width of a one-dimensional BatchNorm."""
    if not isinstance(norm, nn.BatchNorm1d):
        return ""
    return next((path for path, net in nets.items() if _width(net) == norm.num_features), "")


def _width(net: nn.Module) -> int:
    both = 2 if getattr(net, "bidirectional", False) else 1
    return both * (getattr(net, "proj_size", 0) or net.hidden_size)


def wrong_for_the_task(exam: Exam) -> Iterator[Finding]:
    """Check 3: style transfer and image translation with BatchNorm."""
    norms = _batch_norms(exam)
    if exam.task in ("style_transfer", "image_translation") and norms:
        what = "each image's style stays in, and the output then depends on the batch"
        found = f"{plural(len(norms), 'BatchNorm')} in {exam.task.replace('_', ' ')}: {what}"
        yield Finding("warning", norms[0][0], found, "nn.InstanceNorm2d(channels, affine=True)", "check 3, mistake 5")


def placed_behind_activation(exam: Exam) -> Iterator[Finding]:
    """Check 4: convolution → activation → norm, where norm → activation is meant."""
    for seen in exam.trace.seen if exam.trace else ():
        image_norm = seen.kind in ("BN", "IN", "GN")
        if image_norm and ACTIVATIONS.match(seen.made_by) and WEIGHTED.match(seen.before):
            what = seen.made_by.removesuffix("Backward0")
            found = f"the norm stands behind the activation ({what}), and that behind the convolution"
            mend = "convolution, norm, activation; or, in residual nets, norm, activation, convolution"
            yield Finding("note", seen.path, found, mend, "check 4")


def deep_post_norm(exam: Exam) -> Iterator[Finding]:
    """Check 10: norms on the residual stream of more than 12 layers; torch's decoder layers have three, others two.

    Counted are the calls of a pass. Without one, the layers of torch that are built so.
    """
    chain = behind_sums(exam.trace) if exam.trace else []
    of_decoders = [seen for seen in chain if isinstance(_parent(exam, seen.path), nn.TransformerDecoderLayer)]
    decoders, others = math.ceil(len(of_decoders) / 3), math.ceil((len(chain) - len(of_decoders)) / 2)
    count, where = len(chain), chain[0].path if chain else ""
    if not chain:
        built = [(path, m) for path, m in exam.model.named_modules() if isinstance(m, LAYERS) and not m.norm_first]
        decoders = sum(isinstance(m, nn.TransformerDecoderLayer) for _, m in built)
        others = len(built) - decoders
        count, where = 3 * decoders + 2 * others, built[0][0] if built else ""
    if decoders + others > DEEP:
        found = f"post-norm: {count} norms behind residual sums, in about {decoders + others} layers"
        mend = "pre-norm, x + f(norm(x)), with a last norm before the head; or warm-up and scaled residuals"
        yield Finding("warning", where, found, mend, "check 10, mistake 4")


def _parent(exam: Exam, path: str) -> nn.Module:
    return exam.model.get_submodule(path.rpartition(".")[0])


def norm_on_the_output(exam: Exam) -> Iterator[Finding]:
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out, or its softmax.

    Features may well end in a norm. That the output is no such thing is told by a loss, a softmax or `component`.
    """
    if not (exam.trace and exam.trace.ends_in and exam.trace.output.dim() == 2):
        return
    softmax = SOFTMAX.match(exam.trace.output.grad_fn.name())
    sure = softmax or exam.loss or exam.component == "output"
    found = f"the output {tuple(exam.trace.output.shape)} comes straight from a norm, so its scale is fixed"
    found = found.replace("comes", "is a softmax that comes" if softmax else "comes")
    found += "" if sure else ": fine for features, not for logits or what is regressed"
    mend = "no norm behind the last linear layer"
    yield Finding("serious" if sure else "warning", exam.trace.ends_in, found, mend, "when not to, 1")


def discriminator(exam: Exam) -> Iterator[Finding]:
    """BatchNorm in each discriminator of a GAN, told by `component` or by the name of a class."""
    named = [path for path, m in exam.model.named_modules() if "discriminator" in type(m).__name__.lower()]
    outer = [path for path in named if not any(path != other and _within(path, other) for other in named)]
    for path in [""] if exam.component == "discriminator" else outer:
        norms = [name for name, _ in _batch_norms(exam) if _within(name, path)]
        if norms:
            found = f"{plural(len(norms), 'BatchNorm')} in a discriminator: a row's score depends on its batch-mates"
            yield Finding("warning", norms[0], found, "no norm, LN, or spectral norm", "GAN; modern advice")


def _within(path: str, other: str) -> bool:
    return not other or f"{path}.".startswith(f"{other}.")


def groups(exam: Exam) -> Iterator[Finding]:
    """Norms with a statistic over one or two values, and GroupNorm with one channel in each group."""
    shapes = {seen.path: seen.shape for seen in exam.trace.seen} if exam.trace else {}
    for path, module, kind in norms_of(exam.model):
        values = values_of(module, kind, shapes.get(path))
        g, c = getattr(module, "num_groups", 0), channels_of(module)
        if values == 1 or (values == 2 and kind != "RMSN"):
            left = "only which of the two is larger" if values == 2 else "their sign" if kind == "RMSN" else "nothing"
            found = f"each statistic is taken over {plural(values, 'value')}: {left} is left of them, whatever goes in"
            yield Finding("serious", path, found, "fewer groups, or a norm over all channels", NAMES[kind])
        elif g > 1 and g == c:
            found = f"{g} groups of one channel each: this is InstanceNorm"
            yield Finding(
                "note", path, found, f"fewer groups, such as {most_groups(c)}, or say InstanceNorm", NAMES[kind]
            )


def values_of(module: nn.Module, kind: str, shape: tuple[int, ...] | None) -> int | None:
    """Over how many values of a row a GN, an LN, an RMSN or an IN takes a statistic; None if that cannot be told."""
    if isinstance(module, Norm):
        positions = math.prod(shape[1:-1]) if shape else None
        of_groups = positions and module.d // getattr(module, "groups", 1) * positions
        return {"LN": module.d, "RMSN": module.d, "GN": of_groups, "IN": positions}.get(kind)
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return math.prod(module.normalized_shape)
    if isinstance(module, nn.GroupNorm) and shape:
        return module.num_channels // module.num_groups * math.prod(shape[2:])
    return math.prod(shape[2:]) if kind == "IN" and shape else None


def padding(exam: Exam) -> Iterator[Finding]:
    """BatchNorm straight behind padding: the zeros enter its statistics."""
    embeddings = {p for p, m in exam.model.named_modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None}
    for seen in exam.trace.seen if exam.trace else ():
        padded = PADS.match(seen.made_by) or seen.source in embeddings or "pad" in seen.source.lower()
        if takes_batch_statistics(seen.module, seen.kind) and padded and seen.empty > PADDED and not seen.masked:
            found = f"{100 * seen.empty:.0f} % of the positions under the statistics are padding"
            mend = "pad behind the norm, let convolutions pad, or leave padding out (lengths= in this kit's norms)"
            yield Finding("warning", seen.path, found, mend, "Batch Normalization")
