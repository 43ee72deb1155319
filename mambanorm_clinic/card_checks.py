"""The measured checks of a norm's card: questions, and the answers of one norm.

All are tried on made-up numbers, in under a second for an ordinary norm. The answer to a question
that fails is its error.
"""

import copy
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

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

# Two norms are the same if their outputs, of order 1, differ by less.
SAME = 1e-6
# Largest relative error against float64, in a narrow type and at a mean of 3,000.
LARGEST_ERROR = 5e-2
# Smaller relative changes are rounding, in float64.
ROUNDING = 1e-9


class Mark(StrEnum):
    """Whether an answer is good or bad; many are neither."""

    GOOD = "good"
    BAD = "bad"
    NEITHER = ""


class Answer(NamedTuple):
    """The answer to a question, and its mark."""

    text: str
    mark: Mark = Mark.NEITHER


def _judged(is_good: object, good: str, bad: str) -> Answer:
    return Answer(good, Mark.GOOD) if is_good else Answer(bad, Mark.BAD)


@dataclass(frozen=True)
class Trial:
    """A norm, and what registration measures of it: a result, or the error of a norm that
    fails.
    """

    name: str
    result: Behaviour | None = None
    error: Exception | None = None

    @property
    def behaviour(self) -> Behaviour:
        """Return the result. Raise the norm's error if it failed."""
        if self.error is not None:
            raise self.error
        return self.result


Ask = Callable[[Trial], Answer]


def try_norm(name: str) -> Trial:
    """Return the trial of a registered norm."""
    name = norm_name(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return Trial(name, measure(lambda: create_norm(name, CHANNELS)))
        except Exception as error:  # a norm of yours may raise anything
            return Trial(name, error=error)


def error_text(error: Exception) -> str:
    """Return the type and the message of an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def checks_of(norm: str | Trial) -> pd.DataFrame:
    """Return one row a question: group, question, answer, mark (see Mark)."""
    trial = norm if isinstance(norm, Trial) else try_norm(norm)
    rows = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group, questions in GROUPS.items():
            for question, ask in questions.items():
                torch.manual_seed(0)
                try:
                    answer = ask(trial)
                except Exception as error:  # a norm of yours may raise anything
                    answer = Answer(error_text(error), Mark.BAD)
                rows.append((group, question, answer.text, answer.mark.value))
    return pd.DataFrame(rows, columns=["group", "question", "answer", "mark"])


# --------------------------------------------------------------------------------- what it looks at


def _axes(trial: Trial) -> Answer:
    axes, declared = trial.behaviour.axes, NORMS[trial.name].axes
    text = " · ".join(axes) or "no axis"
    bad = f"{text}; declared: {' · '.join(declared)}"
    return _judged(set(axes) == set(declared), f"{text}, as declared", bad)


def _ahead(trial: Trial) -> Answer:
    if trial.behaviour.looks_ahead is None:
        return Answer("no", Mark.GOOD)
    return Answer(position_seen(trial.behaviour), _mark_of_ahead(trial))


def position_seen(behaviour: Behaviour) -> str:
    """Return which position sees which later one."""
    late, early = behaviour.looks_ahead
    return f"position {early} sees position {late}"


def _mark_of_ahead(trial: Trial) -> Mark:
    return Mark.BAD if NORMS[trial.name].causal else Mark.NEITHER


def _gradient_ahead(trial: Trial) -> Answer:
    x = sample(3, 6, CHANNELS).requires_grad_()
    y = prepared_norm(trial.name, x.detach())(x, None)
    for early in range(x.shape[1] - 1):
        (grad,) = torch.autograd.grad(
            y[:, early].square().sum(),
            x,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        later = torch.nonzero(grad[:, early + 1 :].abs().amax((0, 2)) > 1e-12).flatten()
        if len(later):
            text = f"position {early} passes a gradient to position {early + 1 + int(later[0])}"
            return Answer(text, _mark_of_ahead(trial))
    return Answer("no", Mark.GOOD)


def _rows_in_training(trial: Trial) -> Answer:
    return Answer("yes" if "B" in trial.behaviour.axes else "no")


def _rows_in_evaluation(trial: Trial) -> Answer:
    x = sample()
    effect = output_change(prepared_norm(trial.name, x, training=False), "other rows", x)
    return _judged(effect < ROUNDING, "no", "yes")


def _padding(trial: Trial) -> Answer:
    if trial.behaviour.padding is None:
        return Answer("no", Mark.GOOD)
    row, position = trial.behaviour.padding
    return Answer(f"behind the end of row {row} it moves position {position}", Mark.BAD)


def _two_passes(trial: Trial) -> Answer:
    return Answer("differ: it draws at random" if trial.behaviour.random else "are equal")


def _state_dict(trial: Trial) -> Answer:
    good, bad = "gives the same outputs", "not all of it is in the state dict"
    return _judged(not trial.behaviour.hidden, good, bad)


def _modes(trial: Trial) -> Answer:
    x = sample()
    with torch.no_grad():
        evaluated = prepared_norm(trial.name, x, training=False)(x, None)
        trained = prepared_norm(trial.name, x)(x, None)
    gap = _gap(evaluated, trained)
    return (
        Answer(f"differ by {_percent(gap)}") if gap > ROUNDING else Answer("are equal", Mark.GOOD)
    )


# ---------------------------------------------------------------------------- what it does not feel


def _change(trial: Trial, *, change: str) -> Answer:
    x = sample()
    effect = output_change(prepared_norm(trial.name, x), change, x)
    return Answer(
        "not felt" if effect < CHANGE_LIMIT else f"the output changes by {_percent(effect)}"
    )


def _order(trial: Trial, *, axis: int) -> Answer:
    x = sample()
    order = torch.randperm(x.shape[axis], generator=torch.Generator().manual_seed(1))
    norm = prepared_norm(trial.name, x)
    with torch.no_grad():
        y = _output_of_copy(norm, x)
        reordered = _output_of_copy(norm, x.index_select(axis, order))
    gap = _gap(reordered, y.index_select(axis, order))
    changed = f"the outputs change by {_percent(gap)}"
    return Answer("the outputs move along" if gap < CHANGE_LIMIT else changed)


# ---------------------------------------------------------------------------------------- the edges


def _output_of_copy(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return the output of a copy of a norm, which draws the same numbers each time."""
    torch.default_generator.manual_seed(0)
    return copy.deepcopy(norm)(x, lengths)


def _gap(other: Tensor, y: Tensor) -> float:
    return float((other - y).norm() / y.norm().clamp(min=1e-12))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _finite(trial: Trial, *, x: Tensor) -> Answer:
    """Answer whether output and gradient are finite, and whether the output depends on x."""
    x = x.clone().requires_grad_()
    try:
        norm = create_norm(trial.name, x.shape[-1])
    except ValueError as error:  # groups that do not divide the channels
        return Answer(f"refused: {str(error)[:100]}")
    y = norm(x, None)
    y.square().sum().backward()
    for what, value in (("output", y), ("gradient", x.grad)):
        if value is not None and not value.isfinite().all():
            return Answer(f"the {what} is not finite", Mark.BAD)
    text = f"finite, largest {y.detach().abs().max():.3g}"
    depends = x.std() < 1e-6 or y.detach().std() > CHANGE_LIMIT
    return Answer(text, Mark.GOOD) if depends else Answer(f"{text}; nothing of the input is left")


def _precision(trial: Trial, *, x: Tensor, dtype: torch.dtype) -> Answer:
    """Answer how far a narrow type, which the output must have, is from float64 on x."""
    x = x.to(dtype)
    norm = create_norm(trial.name, x.shape[-1])
    with torch.no_grad():
        exact = _output_of_copy(copy.deepcopy(norm).double(), x.double())
        y = _output_of_copy(norm.to(dtype), x)
    if y.dtype != dtype:
        return Answer(f"returns {name_of(y.dtype)} for {name_of(dtype)}", Mark.BAD)
    if not y.isfinite().all():
        return Answer("not finite", Mark.BAD)
    error = _gap(y.double(), exact)
    text = f"relative error {error:.1e}"
    return _judged(error <= LARGEST_ERROR, text, text)


def _large_float16(trial: Trial) -> Answer:
    return Answer(_precision(trial, x=300 * ORDINARY, dtype=torch.float16).text)


def _gradient(trial: Trial, *, lengths: Tensor | None = None) -> Answer:
    error = gradient_error(*prepare(lambda: create_norm(trial.name, CHANNELS)), lengths)
    if not math.isfinite(error):
        return Answer("the gradient is not finite", Mark.BAD)
    return _judged(
        error < MAX_GRADIENT_ERROR, f"agree to {error:.1g}", f"differ by {_percent(error)}"
    )


def _device(trial: Trial) -> Answer:
    """Answer whether all tensors of a norm move with it.

    Without a GPU it is tried on `meta`, which has shapes and no numbers: a norm that reads numbers
    cannot be tried there.
    """
    device = "cuda" if torch.cuda.is_available() else "meta"
    norm = create_norm(trial.name, CHANNELS).to(device)
    try:
        norm(torch.ones(2, 5, CHANNELS, device=device), None)
    except (RuntimeError, NotImplementedError) as error:
        if device == "meta" and not re.search("(expected|same) device", str(error)):
            return Answer("not tried: there is no GPU here")
        text = "not all of it moves with .to(device): make it a parameter or a buffer"
        return Answer(text, Mark.BAD)
    return Answer("all of it moves", Mark.GOOD)


# ---------------------------------------------------------------------------------------- in models


def _runs_in(trial: Trial, *, make: Callable[[str], nn.Module], shape: tuple[int, ...]) -> Answer:
    model, x = make(trial.name), torch.randn(shape)
    loss = model(x).square().mean()
    loss.backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    is_finite = loss.isfinite() and all(grad.isfinite().all() for grad in grads)
    return _judged(is_finite, "runs, finite forward and backward", "not finite")


def _step_by_step(trial: Trial) -> Answer:
    if not NORMS[trial.name].causal:
        return Answer("refused: it is not declared causal")
    block = MambaBlock(16, trial.name, trial.name, d_state=4).eval()
    x = torch.randn(2, 7, 16)
    with torch.no_grad():
        whole = block(x)
        y, cache = block.prefill(x[:, :4])
        steps = [block.step(x[:, i], cache) for i in range(4, 7)]
    gap = _gap(torch.cat([y, torch.stack(steps, 1)], 1), whole)
    bad = f"differs from one pass by {_percent(gap)}"
    return _judged(gap < 1e-4, "gives what one pass gives", bad)


ORDINARY = torch.randn(
    4, 12, CHANNELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64
)
LOOKS_AT: dict[str, Ask] = {
    "over which axes its statistics are": _axes,
    "does a later position change an earlier output": _ahead,
    "… and its gradient": _gradient_ahead,
    "does another row of the batch, in training": _rows_in_training,
    "… in evaluation": _rows_in_evaluation,
    "does padding, when lengths are given": _padding,
    "two passes of one input": _two_passes,
    "state dict there and back": _state_dict,
    "training and evaluation": _modes,
}
FEELS: dict[str, Ask] = {
    **{change: partial(_change, change=change) for change in list(CHANGES)[:4]},
    "positions in another order": partial(_order, axis=1),
    "channels in another order": partial(_order, axis=2),
}
EDGES: dict[str, Ask] = {
    "zeros": partial(_finite, x=torch.zeros(2, 6, CHANNELS)),
    "constants": partial(_finite, x=torch.full((2, 6, CHANNELS), 2.0)),
    "one position": partial(_finite, x=ORDINARY.float()[:, :1]),
    "one channel": partial(_finite, x=ORDINARY.float()[..., :1]),
    "one row": partial(_finite, x=ORDINARY.float()[:1]),
    "a mean of 3,000, in float32": partial(_precision, x=ORDINARY + 3_000, dtype=torch.float32),
    "float16": partial(_precision, x=ORDINARY, dtype=torch.float16),
    # the square of 300 is beyond float16, which is no fault of the norm
    "float16, values of 300": _large_float16,
    "bfloat16": partial(_precision, x=ORDINARY, dtype=torch.bfloat16),
    "gradients against finite differences": _gradient,
    "… where lengths are given": partial(_gradient, lengths=LENGTHS),
    "another device": _device,
}
MODELS: dict[str, Ask] = {
    "Mamba-2 block": partial(
        _runs_in, make=lambda n: Mamba2Block(16, n, n, d_state=8, head_dim=8), shape=(2, 8, 16)
    ),
    "image block": partial(
        _runs_in, make=lambda n: VSSBlock(16, n, n, d_state=4), shape=(2, 4, 4, 16)
    ),
    "Transformer block": partial(
        _runs_in, make=lambda n: TransformerBlock(16, n, n), shape=(2, 8, 16)
    ),
    "step by step": _step_by_step,
}
GROUPS: dict[str, dict[str, Ask]] = {
    "what it looks at": LOOKS_AT,
    "what it does not feel": FEELS,
    "at the edges": EDGES,
    "in models": MODELS,
}


# ------------------------------------------------------------------------- which norm is it really?


def twin(name: str) -> str:
    """Return the name of the built-in norm that computes the same as this norm, or "".

    Equal norms have the same outputs in training and in evaluation, also of ragged rows, at the
    start and at other values of their parameters.
    """
    kit_norms = [other for other, entry in NORMS.items() if entry.built_in and other != name]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for other in kit_norms:
            if _equal_norms(*(create_norm(each, CHANNELS).double() for each in (name, other))):
                return other
    return ""


def _equal_norms(norm: nn.Module, other: nn.Module) -> bool:
    learned, other_learned = (
        [p for p in each.parameters() if p.requires_grad] for each in (norm, other)
    )
    if [p.shape for p in learned] != [p.shape for p in other_learned]:
        return False
    if not _equal_outputs(norm, other):
        return False
    for p, q in zip(learned, other_learned, strict=True):
        q.copy_(p.add_(0.3 * torch.randn_like(p)))
    return _equal_outputs(norm, other)


def _equal_outputs(norm: nn.Module, other: nn.Module) -> bool:
    x, lengths = sample(3, 6, CHANNELS), torch.tensor([6, 4, 3])
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    try:
        for training in (True, False):
            norm.train(training)
            other.train(training)
            for given, rows in ((None, slice(None)), (lengths, valid)):
                y, y_other = (_output_of_copy(each, x, given)[rows] for each in (norm, other))
                if y.shape != y_other.shape or not float((y - y_other).abs().max()) < SAME:
                    return False
    except Exception:  # a norm that fails equals no other
        return False
    return True
