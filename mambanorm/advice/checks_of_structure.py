"""Checks of what a model is made of: the kind of each norm, its place, and the shapes that pass through it.

Each takes an Exam and yields findings. `check` names the line of the guide's checklist (S4), or the section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from mambanorm.advice.findings import Exam, Finding
from mambanorm.advice.rules import DEEP, SMALL_BATCH
from mambanorm.advice.trace import (
    ACTIVATIONS,
    PADS,
    WEIGHTED,
    behind_sums,
    channels_of,
    norms_of,
    takes_batch_statistics,
)
from mambanorm.text import plural

LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
PADDED = 0.02
"""Share of empty positions from which padding is worth a word."""


def _batch_norms(exam: Exam) -> list[tuple[str, nn.Module]]:
    return [(path, module) for path, module, kind in norms_of(exam.model) if takes_batch_statistics(module, kind)]


def small_batches(exam: Exam) -> Iterator[Finding]:
    """Check 1: BatchNorm learns from fewer than 8 rows. Running statistics, in eval mode, do not mind."""
    batch, norms = exam.batch_size or exam.rows, _batch_norms(exam)
    if exam.evaluating or batch is None or batch >= SMALL_BATCH or not norms:
        return
    path = norms[0][0]
    told = ""
    seen = next((s for s in exam.trace.seen if s.path == path), None) if exam.trace else None
    if seen is not None:
        values = math.prod(seen.shape) // channels_of(seen.module)
        told = f"; the statistics of the first are taken over {values:,} values a channel"
    found = f"BatchNorm learns from batches of {batch} ({plural(len(norms), 'such norm')}{told})"
    mend = "GroupNorm, or LN; or larger batches; or freeze the statistics of a pre-trained model"
    yield Finding("serious" if batch <= 2 else "warning", path, found, mend, "check 1, mistake 1")


def recurrent(exam: Exam) -> Iterator[Finding]:
    """Check 2: BatchNorm on the outputs of an RNN, an LSTM or a GRU, step after step."""
    nets = {path: module for path, module in exam.model.named_modules() if isinstance(module, RECURRENT)}
    if not nets:
        return
    for path, module in _batch_norms(exam):
        seen = next((s for s in exam.trace.seen if s.path == path), None) if exam.trace else None
        source = seen.source if seen else _widths(nets, module)
        if source in nets and (seen is None or len(seen.shape) == 3):
            steps = (
                f" over {seen.shape[0]} rows × {math.prod(seen.shape[1:]) // channels_of(module)} steps" if seen else ""
            )
            found = f"one BatchNorm statistic{steps} of the outputs of {source} ({type(nets[source]).__name__})"
            mend = "nn.LayerNorm on (B, L, hidden), or statistics of its own for each step"
            yield Finding("warning", path, found, mend, "check 2, mistake 2")


def _widths(nets: dict[str, nn.Module], norm: nn.Module) -> str:
    """Without a pass: the recurrent net whose width a one-dimensional BatchNorm has."""
    one = isinstance(norm, nn.BatchNorm1d)
    return next((path for path, net in nets.items() if one and net.hidden_size == norm.num_features), "")


def wrong_for_the_task(exam: Exam) -> Iterator[Finding]:
    """Check 3: style transfer and image translation with BatchNorm."""
    norms = _batch_norms(exam)
    if exam.task in ("style_transfer", "image_translation") and norms:
        found = f"{plural(len(norms), 'BatchNorm')} would mix the styles of a batch, in {exam.task.replace('_', ' ')}"
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
    """When not to normalize, case 1: a norm makes the (B, classes) that the model puts out."""
    if exam.trace and exam.trace.ends_in and exam.trace.output.dim() == 2:
        found = f"the output {tuple(exam.trace.output.shape)} comes straight from a norm, so its scale is fixed"
        yield Finding("serious", exam.trace.ends_in, found, "no norm behind the last linear layer", "when not to, 1")


def discriminator(exam: Exam) -> Iterator[Finding]:
    """BatchNorm in the discriminator of a GAN, told by `component` or by the name of a class."""
    parts = [
        (path, module)
        for path, module in exam.model.named_modules()
        if any(word in type(module).__name__.lower() for word in ("discriminator", "critic"))
    ]
    inside = [("", exam.model)] if exam.component == "discriminator" else parts
    for path, module in inside[:1]:
        norms = [name for name, norm, kind in norms_of(module) if takes_batch_statistics(norm, kind)]
        if norms:
            found = f"{plural(len(norms), 'BatchNorm')} in a discriminator: a row's score depends on its batch-mates"
            where = f"{path}.{norms[0]}".strip(".")
            yield Finding("warning", where, found, "no norm, LN, or spectral norm", "GAN; modern advice")


def groups(exam: Exam) -> Iterator[Finding]:
    """GroupNorm whose groups do not divide the channels, hold one channel each, or hold one value each."""
    shapes = {seen.path: seen.shape for seen in exam.trace.seen} if exam.trace else {}
    for path, module, _ in norms_of(exam.model):
        if not isinstance(module, nn.GroupNorm):
            continue
        g, c = module.num_groups, module.num_channels
        if c % g:
            yield Finding("serious", path, f"{c} channels do not divide into {g} groups", "a divisor", "GroupNorm")
            continue
        values = c // g * math.prod(shapes[path][2:]) if path in shapes else 0
        if values == 1:
            found = f"each of the {g} groups holds one value: what comes out is β, whatever goes in"
            yield Finding("serious", path, found, "fewer groups, or LN", "GroupNorm")
        elif g == c > 1:
            found = f"{g} groups of one channel each: this is InstanceNorm"
            yield Finding(
                "note", path, found, f"fewer groups, such as {max(c // 4, 1)}, or say InstanceNorm", "GroupNorm"
            )


def padding(exam: Exam) -> Iterator[Finding]:
    """BatchNorm straight behind padding: the zeros enter its statistics."""
    embeddings = {p for p, m in exam.model.named_modules() if isinstance(m, nn.Embedding) and m.padding_idx is not None}
    for seen in exam.trace.seen if exam.trace else ():
        padded = PADS.match(seen.made_by) or seen.source in embeddings or "pad" in seen.source.lower()
        if takes_batch_statistics(seen.module, seen.kind) and padded and seen.empty > PADDED and not seen.masked:
            found = f"{100 * seen.empty:.0f} % of the positions under the statistics are padding"
            mend = "pad behind the norm, let convolutions pad, or leave padding out (lengths= in this kit's norms)"
            yield Finding("warning", seen.path, found, mend, "Batch Normalization")
