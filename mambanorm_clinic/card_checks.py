"""What a norm does, measure: the checks of a card beyond those of registration
(norms/behaviour.py).

All of it is tried on made-up numbers, in under a second for an ordinary norm. A question that fails
says with what.
"""

from __future__ import annotations

import copy
import math
import re
import warnings
from collections.abc import Callable
from functools import cache, partial

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.block import MambaBlock
from mambanorm.norms import NORMS, create_norm, norm_name
from mambanorm.norms.behaviour import (
    CHANNELS,
    LENGTHS,
    MAX_GRADIENT_ERROR,
    Behaviour,
    gradient_error,
    measure,
    name_of,
    prepare,
)
from mambanorm_study.lessons.invariance import (
    CHANGE_LIMIT,
    CHANGES,
    output_change,
    prepared_norm,
    sample,
)
from mambanorm_study.models.mamba2 import Mamba2Block
from mambanorm_study.models.transformer import TransformerBlock
from mambanorm_study.models.vision import VSSBlock

SAME = 1e-6
"""Two norms whose outputs of order 1 differ by less are one."""
EDGE = 1e-2
"""A larger relative error is worth a word: in float16 and at a mean of 3,000, against float64."""
Found = tuple[str, str]
"""What was found, and "good", "bad", or "" where it is neither."""


def checks_of(name: str) -> pd.DataFrame:
    """One row a question: group, question, found, told (good, bad, or "" where it is neither)."""
    name, rows = norm_name(name), []
    looks, feels = _behaviour(name)
    groups = {
        "what it looks at": looks,
        "what it does not feel": feels,
        "at the edges": EDGES,
        "in models": MODELS,
    }
    questions = [(group, *pair) for group, asked in groups.items() for pair in asked.items()]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group, question, ask in questions:
            torch.manual_seed(0)
            try:
                found, told = ask(name)
            except Exception as error:  # anything that a norm of a user's own may raise
                found, told = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", "bad"
            rows.append(dict(group=group, question=question, found=found, told=told))
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------------- what it looks at


def _behaviour(
    name: str,
) -> tuple[dict[str, Callable[[str], Found]], dict[str, Callable[[str], Found]]]:
    """What it looks at, the questions of registration, all answered by one trial, gradient and
    batch-mates; and what it does not feel."""
    entry = NORMS[name]

    @cache
    def found() -> Behaviour:
        return measure(lambda: create_norm(name, CHANNELS))

    def ahead(_: str) -> Found:
        if (pair := found().looks_ahead) is None:
            return "no", "good"
        return f"position {pair[1]} sees position {pair[0]}", "bad" if entry.causal else ""

    def axes(_: str) -> Found:
        said = " · ".join(found().axes) or "no axis"
        same = set(found().axes) == set(entry.axes)
        return (
            (f"{said}, as declared", "good")
            if same
            else (f"{said}; declared: {' · '.join(entry.axes)}", "bad")
        )

    def padding(_: str) -> Found:
        if (moved := found().padding) is None:
            return "no", "good"
        return f"behind the end of row {moved[0]} it moves position {moved[1]}", "bad"

    def kept(_: str) -> Found:
        return (
            ("not all of it is in the state dict", "bad")
            if found().hidden
            else ("gives the same outputs", "good")
        )

    looks = {
        "over which axes its statistics are": axes,
        "does a later position change an earlier output": ahead,
        "… and its gradient": _gradient_ahead,
        "does another row of the batch, in training": lambda _: (
            "yes" if "B" in found().axes else "no",
            "",
        ),
        "… in evaluation": _mates,
        "does padding, when lengths are given": padding,
        "two passes of one input": lambda _: (
            "differ: it draws at random" if found().random else "are equal",
            "",
        ),
        "state dict there and back": kept,
        "training and evaluation": _modes,
    }
    feels = {change: partial(_felt, change=change) for change in list(CHANGES)[:4]}
    feels |= {
        f"{what} in another order": partial(_order, axis=i)
        for i, what in ((1, "positions"), (2, "channels"))
    }
    return looks, feels


def _gradient_ahead(name: str) -> Found:
    x = sample(3, 6, CHANNELS).requires_grad_()
    y = prepared_norm(name, x.detach())(x, None)
    for early in range(x.shape[1] - 1):
        (slope,) = torch.autograd.grad(
            y[:, early].square().sum(), x, retain_graph=True, allow_unused=True
        )
        felt_at = (
            []
            if slope is None
            else torch.nonzero(slope[:, early + 1 :].abs().amax((0, 2)) > 1e-12).flatten()
        )
        if len(felt_at):
            late = early + 1 + int(felt_at[0])
            return f"position {early} passes a gradient to position {late}", "bad" if NORMS[
                name
            ].causal else ""
    return "no", "good"


def _mates(name: str) -> Found:
    x = sample()
    return (
        ("no", "good")
        if output_change(prepared_norm(name, x, training=False), "other rows", x) < 1e-9
        else ("yes", "bad")
    )


def _modes(name: str) -> Found:
    x = sample()
    with torch.no_grad():
        gap = _gap(prepared_norm(name, x, training=False)(x, None), prepared_norm(name, x)(x, None))
    return (f"differ by {_percent(gap)}", "") if gap > 1e-9 else ("are equal", "good")


def _felt(name: str, change: str) -> Found:
    x = sample()
    moved = output_change(prepared_norm(name, x), change, x)
    return (
        ("not felt", "")
        if moved < CHANGE_LIMIT
        else (f"the output changes by {_percent(moved)}", "")
    )


def _order(name: str, axis: int) -> Found:
    x = sample()
    turned = torch.randperm(x.shape[axis], generator=torch.Generator().manual_seed(1))
    norm = prepared_norm(name, x)
    with torch.no_grad():
        y, other = (_passed(norm, inputs) for inputs in (x, x.index_select(axis, turned)))
    gap = _gap(other, y.index_select(axis, turned))
    return (
        ("the outputs move along", "")
        if gap < CHANGE_LIMIT
        else (f"the outputs change by {_percent(gap)}", "")
    )


# ---------------------------------------------------------------------------------------- the edges


def _passed(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The output of a copy, drawn as any other."""
    torch.default_generator.manual_seed(0)
    return copy.deepcopy(norm)(x, lengths)


def _gap(other: Tensor, y: Tensor) -> float:
    return float((other - y).norm() / y.norm().clamp(min=1e-12))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _on(x: Tensor) -> Callable[[str], Found]:
    """Whether output and gradient of these float32 numbers are finite, and something of the input
    is left."""

    def ask(name: str) -> Found:
        own = x.clone().requires_grad_()
        try:
            norm = create_norm(name, x.shape[-1])
        except ValueError as refused:  # groups that do not divide the channels
            return f"refused: {str(refused)[:100]}", ""
        y = norm(own, None)
        y.square().sum().backward()
        for what, value in (("output", y), ("gradient", own.grad)):
            if value is not None and not value.isfinite().all():
                return f"the {what} is not finite", "bad"
        left = (
            ""
            if x.std() < 1e-6 or y.detach().std() > CHANGE_LIMIT
            else "; nothing of the input is left"
        )
        return f"finite, largest {y.detach().abs().max():.3g}{left}", "" if left else "good"

    return ask


def _against_float64(x: Tensor, dtype: torch.dtype, factor: float = 1.0) -> Callable[[str], Found]:
    """Return the question how far a narrower type, which the output must have too, is from float64
    on the same numbers."""

    def ask(name: str) -> Found:
        given = (factor * x).to(dtype)
        norm = create_norm(name, x.shape[-1])
        with torch.no_grad():
            exact = _passed(copy.deepcopy(norm).double(), given.double())
            y = _passed(norm.to(dtype), given)
        if y.dtype != dtype:
            return f"returns {name_of(y.dtype)} for {name_of(dtype)}", "bad"
        if not y.isfinite().all():
            return "not finite", "bad"
        error = _gap(y.double(), exact)
        return f"relative error {error:.1e}", "bad" if error > 5 * EDGE else "good"

    return ask


def _ordinary() -> Tensor:
    return torch.randn(
        4, 12, CHANNELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )


def _gradient(name: str, lengths: Tensor | None = None) -> Found:
    error = gradient_error(*prepare(lambda: create_norm(name, CHANNELS)), lengths)
    if not math.isfinite(error):
        return "the gradient is not finite", "bad"
    return (
        (f"agree to {error:.1g}", "good")
        if error < MAX_GRADIENT_ERROR
        else (f"differ by {_percent(error)}", "bad")
    )


def _device(name: str) -> Found:
    """Whether all that a norm holds moves with it. Without a GPU it is tried on `meta`, which has
    shapes and no numbers: a norm that looks at numbers cannot be tried there."""
    device = "cuda" if torch.cuda.is_available() else "meta"
    norm = create_norm(name, CHANNELS).to(device)
    try:
        norm(torch.ones(2, 5, CHANNELS, device=device), None)
    except (RuntimeError, NotImplementedError) as error:
        if device == "meta" and not re.search("(expected|same) device", str(error)):
            return "not tried: there is no GPU here", ""
        return "not all of it moves with .to(device): make it a parameter or a buffer", "bad"
    return "all of it moves", "good"


EDGES: dict[str, Callable[[str], Found]] = {
    "zeros": _on(torch.zeros(2, 6, CHANNELS)),
    "constants": _on(torch.full((2, 6, CHANNELS), 2.0)),
    "one position": _on(_ordinary().float()[:, :1]),
    "one channel": _on(_ordinary().float()[..., :1]),
    "one row": _on(_ordinary().float()[:1]),
    "a mean of 3,000, in float32": _against_float64(_ordinary() + 3_000, torch.float32),
    "float16": _against_float64(_ordinary(), torch.float16),
    # a square of 300 leaves float16: said, and no fault
    "float16, values of 300": lambda name: (
        _against_float64(_ordinary(), torch.float16, 300.0)(name)[0],
        "",
    ),
    "bfloat16": _against_float64(_ordinary(), torch.bfloat16),
    "gradients against finite differences": _gradient,
    "… where lengths are given": partial(_gradient, lengths=LENGTHS),
    "another device": _device,
}


# ---------------------------------------------------------------------------------------- in models


def _in(block: Callable[[str], nn.Module], *shape: int) -> Callable[[str], Found]:
    """Whether a block with the norm at both places passes finite numbers, forward and backward."""

    def ask(name: str) -> Found:
        model, x = block(name), torch.randn(shape)
        loss = model(x).square().mean()
        loss.backward()
        lost = [
            key
            for key, p in model.named_parameters()
            if p.grad is not None and not p.grad.isfinite().all()
        ]
        fine = loss.isfinite() and not lost
        return ("runs, finite forward and backward", "good") if fine else ("not finite", "bad")

    return ask


def _step_by_step(name: str) -> Found:
    if not NORMS[name].causal:
        return "refused: it is not declared causal", ""
    block, x = MambaBlock(16, name, name, d_state=4).eval(), torch.randn(2, 7, 16)
    with torch.no_grad():
        whole, (y, cache) = block(x), block.prefill(x[:, :4])
        later = [block.step(x[:, i], cache) for i in range(4, 7)]
    gap = _gap(torch.cat([y, torch.stack(later, 1)], 1), whole)
    return (
        ("gives what one pass gives", "good")
        if gap < 1e-4
        else (f"differs from one pass by {_percent(gap)}", "bad")
    )


MODELS: dict[str, Callable[[str], Found]] = {
    "Mamba-2 block": _in(lambda n: Mamba2Block(16, n, n, d_state=8, head_dim=8), 2, 8, 16),
    "image block": _in(lambda n: VSSBlock(16, n, n, d_state=4), 2, 4, 4, 16),
    "Transformer block": _in(lambda n: TransformerBlock(16, n, n), 2, 8, 16),
    "step by step": _step_by_step,
}


# ------------------------------------------------------------------------- which norm is it really?


def twin(name: str) -> str:
    """The norm of the kit that it is, to SAME, or "": the same outputs in training and in
    evaluation, of ragged rows too, wherever the parameters stand."""
    x, lengths = sample(3, 6, CHANNELS), torch.tensor([6, 4, 3])
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for other in (one for one, entry in NORMS.items() if entry.built_in and one != name):
            norms = [create_norm(one, CHANNELS).double() for one in (name, other)]
            mine, theirs = ([p for p in norm.parameters() if p.requires_grad] for norm in norms)
            if [p.shape for p in mine] == [p.shape for p in theirs] and _alike(*norms, x, lengths):
                for p, q in zip(mine, theirs, strict=True):
                    q.copy_(p.add_(0.3 * torch.randn_like(p)))
                if _alike(*norms, x, lengths):
                    return other
    return ""


def _alike(norm: nn.Module, other: nn.Module, x: Tensor, lengths: Tensor) -> bool:
    try:
        for mode in (True, False):
            for given in (None, lengths):
                ends = [_valid(_passed(one.train(mode), x, given), given) for one in (norm, other)]
                if (
                    ends[0].shape != ends[1].shape
                    or not float((ends[0] - ends[1]).abs().max()) < SAME
                ):
                    return False
    except Exception:  # a norm that fails is like none
        return False
    return True


def _valid(y: Tensor, lengths: Tensor | None) -> Tensor:
    return y if lengths is None else y[torch.arange(y.shape[1]) < lengths[:, None]]
