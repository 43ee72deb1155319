"""Questions about what a norm does, answered by running the norm on small random inputs.

All questions together take less than a second for most norms. If the norm raises an error on a
question, the answer is the text of the error.
"""

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.block import MambaBlock
from mambanorm.norms import NORMS, create_norm, registered_name
from mambanorm.norms.behaviour import (
    CHANNELS,
    LENGTHS,
    MAX_GRADIENT_ERROR,
    Behaviour,
    dtype_name,
    measure,
)
from mambanorm_study.lessons.invariance import (
    CHANGE_LIMIT,
    CHANGES,
    output_change,
    prepared_norm,
    random_batch,
)
from mambanorm_study.models.mamba2 import Mamba2Block
from mambanorm_study.models.transformer import TransformerBlock
from mambanorm_study.models.vision import VSSBlock

# Two norms compute the same if their outputs, which are of order 1, differ by less than this.
LARGEST_DIFFERENCE = 1e-6
# Largest error of a norm's output that is accepted in float16, in bfloat16, and in float32 for an
# input with mean 3,000. The error is relative to the output in float64.
LARGEST_ERROR = 5e-2
# Relative changes below this number are rounding errors of float64.
ROUNDING = 1e-9

GOOD, BAD = "good", "bad"


class Answer(NamedTuple):
    """The answer to a question about a norm.

    text: the answer in words. mark: "good", "bad", or "" for an answer that is neither.
    """

    text: str
    mark: str = ""


def _good_or_bad(is_good: object, good: str, bad: str) -> Answer:
    return Answer(good, GOOD) if is_good else Answer(bad, BAD)


def behaviour_of(name: str) -> Behaviour:
    """Measure a registered norm, and return its Behaviour (see mambanorm/norms/behaviour.py).

    Raises any error that the norm raises.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measure(partial(create_norm, registered_name(name), CHANNELS))


def error_text(error: Exception) -> str:
    """Return an error's type and message (at most 160 characters) in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def checks_of(name: str, behaviour: Behaviour | None = None) -> pd.DataFrame:
    """Return a DataFrame with one row per question about a norm.

    Columns: group (the title of a group of questions), question, answer (a text), mark ("good",
    "bad", or "" for an answer that is neither). behaviour: the result of `behaviour_of`; None means
    to measure the behaviour now.
    """
    name = registered_name(name)
    measured = _answers_from(behaviour or behaviour_of(name), name)
    rows = [("what it looks at", question, *answer) for question, answer in measured.items()]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for group, questions in QUESTIONS.items():
            for question, ask in questions.items():
                torch.manual_seed(0)
                try:
                    answer = ask(name)
                except Exception as error:  # a user's norm may raise any exception
                    answer = Answer(error_text(error), BAD)
                rows.append((group, question, *answer))
    return pd.DataFrame(rows, columns=["group", "question", "answer", "mark"])


# ---------------------------------- answers from the norm's behaviour, as register_norm measures it


def _answers_from(behaviour: Behaviour, name: str) -> dict[str, Answer]:
    """Return a map from question to Answer, for the questions that the measured behaviour answers.

    name: the registered name of the norm.
    """
    entry, axes = NORMS[name], " · ".join(behaviour.axes) or "no axis"
    ahead, padding = Answer("no", GOOD), Answer("no", GOOD)
    if behaviour.looks_ahead:
        ahead = Answer(lookahead_text(behaviour), BAD if entry.causal else "")
    if behaviour.padding:
        row, position = behaviour.padding
        padding = Answer(f"padding of row {row} changes the output of position {position}", BAD)
    return {
        "axes of its statistics": _good_or_bad(
            set(behaviour.axes) == set(entry.axes),
            f"{axes}, as declared",
            f"{axes}; declared: {' · '.join(entry.axes)}",
        ),
        "does a later position change an earlier output": ahead,
        "does another row of the batch change an output, in training": Answer(
            "yes" if "B" in behaviour.axes else "no"
        ),
        "does padding change an output, when lengths are given": padding,
        "two passes of one input": Answer(
            "differ: the norm draws random numbers" if behaviour.random else "are equal"
        ),
        "saving and loading its state dict": _good_or_bad(
            not behaviour.hidden,
            "gives the same outputs",
            "loses a part of the norm's state, which the state dict does not contain",
        ),
        "gradients against finite differences": _gradient_answer(behaviour.gradient[0]),
        "gradients against finite differences, with lengths": _gradient_answer(
            behaviour.gradient[1]
        ),
    }


def lookahead_text(behaviour: Behaviour) -> str:
    """Return a text such as "position 0 sees position 1".

    behaviour: the measured behaviour of a norm whose outputs depend on later positions.
    """
    late, early = behaviour.looks_ahead
    return f"position {early} sees position {late}"


def _gradient_answer(error: float) -> Answer:
    if not math.isfinite(error):
        return Answer("the gradient is not finite", BAD)
    good, bad = f"agree to {error:.1g}", f"differ by {_percent(error)}"
    return _good_or_bad(error < MAX_GRADIENT_ERROR, good, bad)


# --------------------------------------------------------------------------- changes of the input


def _other_rows_answer(name: str) -> Answer:
    x = random_batch()
    effect = output_change(prepared_norm(name, x, training=False), "other rows", x)
    return _good_or_bad(effect < ROUNDING, "no", "yes")


def _modes_answer(name: str) -> Answer:
    x = random_batch()
    with torch.no_grad():
        eval_output, train_output = (
            prepared_norm(name, x, training=training)(x, None) for training in (False, True)
        )
    difference = _relative_difference(eval_output, train_output)
    if difference > ROUNDING:
        return Answer(f"differ by {_percent(difference)}")
    return Answer("are equal", GOOD)


def _invariance_answer(name: str, *, change: str) -> Answer:
    x = random_batch()
    effect = output_change(prepared_norm(name, x), change, x)
    changed = f"the output changes by {_percent(effect)}"
    return Answer("invariant" if effect < CHANGE_LIMIT else changed)


# --------------------------------------------------------------------------------- unusual inputs


def _output_of_copy(norm: nn.Module, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return the output for x of a copy of a norm. The random seed is the same in every call."""
    torch.default_generator.manual_seed(0)
    return copy.deepcopy(norm)(x, lengths)


def _relative_difference(y: Tensor, reference: Tensor) -> float:
    return float((y - reference).norm() / reference.norm().clamp(min=1e-12))


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.1 else f"{100 * fraction:.2g} %"


def _finiteness_answer(name: str, *, x: Tensor) -> Answer:
    """Return the Answer to the question whether a norm's output and gradient for x are finite.

    If they are finite but the output does not depend on x, the text says so. name: the norm's
    registered name.
    """
    x = x.clone().requires_grad_()
    try:
        norm = create_norm(name, x.shape[-1])
    except ValueError as error:  # for example, the groups do not divide the channels
        return Answer(f"refused: {str(error)[:100]}")
    y = norm(x, None)
    y.square().sum().backward()
    if not y.isfinite().all():
        return Answer("the output is not finite", BAD)
    if x.grad is not None and not x.grad.isfinite().all():
        return Answer("the gradient is not finite", BAD)
    text = f"finite, largest {y.detach().abs().max():.3g}"
    depends = x.std() < 1e-6 or y.detach().std() > CHANGE_LIMIT
    return Answer(text, GOOD) if depends else Answer(f"{text}; does not depend on the input")


def _precision_answer(name: str, *, x: Tensor, dtype: torch.dtype) -> Answer:
    """Return the Answer to the question whether a norm computes precisely in a dtype.

    The output for x in `dtype` must have this dtype and be close to the output in float64.
    """
    x = x.to(dtype)
    norm = create_norm(name, x.shape[-1])
    with torch.no_grad():
        exact = _output_of_copy(copy.deepcopy(norm).double(), x.double())
        y = _output_of_copy(norm.to(dtype), x)
    if y.dtype != dtype:
        return Answer(f"returns {dtype_name(y.dtype)} for {dtype_name(dtype)}", BAD)
    error = _relative_difference(y.double(), exact)
    text = f"relative error {error:.1e}"
    return _good_or_bad(error <= LARGEST_ERROR, text, text)


# -------------------------------------------------------------------------------------- in models


def _block_answer(name: str, *, make: Callable[[str], nn.Module], shape: tuple[int, ...]) -> Answer:
    model = make(name)
    loss = model(torch.randn(shape)).square().mean()
    loss.backward()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    is_finite = loss.isfinite() and all(grad.isfinite().all() for grad in grads)
    return _good_or_bad(is_finite, "runs, finite forward and backward", "not finite")


def _stepwise_answer(name: str) -> Answer:
    if not NORMS[name].causal:
        return Answer("refused: the norm is not declared causal")
    block = MambaBlock(16, name, name, d_state=4).eval()
    x = torch.randn(2, 7, 16)
    with torch.no_grad():
        whole = block(x)
        y, cache = block.prefill(x[:, :4])
        steps = [block.step(x[:, i], cache) for i in range(4, 7)]
    difference = _relative_difference(torch.cat([y, torch.stack(steps, 1)], 1), whole)
    bad = f"the output differs from that of one pass by {_percent(difference)}"
    return _good_or_bad(difference < 1e-4, "gives the same output as one pass", bad)


RANDOM_INPUT = torch.randn(
    4, 12, CHANNELS, generator=torch.Generator().manual_seed(3), dtype=torch.float64
)

# Maps each group of questions to a map from question to function. The function takes the name of a
# norm and returns the Answer to the question.
QUESTIONS: dict[str, dict[str, Callable[[str], Answer]]] = {
    "what it looks at": {
        "does another row of the batch change an output, in evaluation": _other_rows_answer,
        "outputs in training and in evaluation": _modes_answer,
    },
    "what it is invariant to": {
        change: partial(_invariance_answer, change=change) for change in list(CHANGES)[:4]
    },
    "unusual inputs": {
        "zeros": partial(_finiteness_answer, x=torch.zeros(2, 6, CHANNELS)),
        "constants": partial(_finiteness_answer, x=torch.full((2, 6, CHANNELS), 2.0)),
        "one position": partial(_finiteness_answer, x=RANDOM_INPUT.float()[:, :1]),
        "one channel": partial(_finiteness_answer, x=RANDOM_INPUT.float()[..., :1]),
        "one row": partial(_finiteness_answer, x=RANDOM_INPUT.float()[:1]),
        "a mean of 3,000, in float32": partial(
            _precision_answer, x=RANDOM_INPUT + 3_000, dtype=torch.float32
        ),
        "float16": partial(_precision_answer, x=RANDOM_INPUT, dtype=torch.float16),
        "bfloat16": partial(_precision_answer, x=RANDOM_INPUT, dtype=torch.bfloat16),
    },
    "in models": {
        "Mamba-2 block": partial(
            _block_answer,
            make=lambda n: Mamba2Block(16, n, n, d_state=8, head_dim=8),
            shape=(2, 8, 16),
        ),
        "image block": partial(
            _block_answer, make=lambda n: VSSBlock(16, n, n, d_state=4), shape=(2, 4, 4, 16)
        ),
        "Transformer block": partial(
            _block_answer, make=lambda n: TransformerBlock(16, n, n), shape=(2, 8, 16)
        ),
        "step by step": _stepwise_answer,
    },
}


# ------------------------------------------------------------------ a norm that computes the same


def twin(name: str) -> str:
    """Return the name of a built-in norm that computes the same as norm `name`, "" if none does.

    Two norms compute the same if they have equal initial parameters, and equal outputs in training
    and in evaluation, with lengths and without lengths, for the initial and for changed parameters.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        values = _parameters_and_outputs(name)
        for other, entry in NORMS.items():
            # outside of a model adaLN has no condition and computes LN
            if entry.built_in and other not in (name, "adaLN"):
                other_values = _parameters_and_outputs(other)
                if other_values.shape != values.shape:
                    continue
                if (other_values - values).abs().max() < LARGEST_DIFFERENCE:
                    return other
    return ""


def _parameters_and_outputs(name: str) -> Tensor:
    """Return a vector of a norm's initial learned parameters, followed by outputs for one input.

    The outputs are computed in training and in evaluation, with and without lengths, and for
    initial and changed parameters. The input is the same in every call.
    """
    norm, x = create_norm(name, CHANNELS).double(), random_batch(3, 6, CHANNELS)
    valid = torch.arange(x.shape[1]) < LENGTHS[:, None]
    parameters = [p for p in norm.parameters() if p.requires_grad]
    values = [p.clone() for p in parameters]
    for _ in range(2):  # first with the initial parameters, then with changed parameters
        for training in (True, False):
            norm.train(training)
            values += [_output_of_copy(norm, x), _output_of_copy(norm, x, LENGTHS)[valid]]
        for p in parameters:
            p.add_(0.3 * torch.randn_like(p))
    return torch.cat([value.flatten() for value in values])
