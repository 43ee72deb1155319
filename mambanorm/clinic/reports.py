"""What `watch` knows of a step that is not finite.

Report, NonFinite     what is said of it, as data and as text, and the error that carries it
Call, replay          the batch at which the training failed, once more
save_state            the last finite weights, written
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.basics.atomic import replacing, save_tensors
from mambanorm.clinic.batches import as_it_was, eagerly, tensors_in
from mambanorm.clinic.passing import First, Pass, named
from mambanorm.clinic.sites import places_of
from mambanorm.clinic.symptoms import Symptoms
from mambanorm.diagnostics import left_as_found

BEFORE = 4
"""Steps that the text of a report tells of; the frames have them all."""


@dataclass(frozen=True)
class Report:
    """What was seen when a step was not finite.

    step: the optimizer's step, from 1, that was about to be made. last_finite_step: the step after which the weights in
    `checkpoint` stand. first: the first non-finite value when the batch is run again, None if it was not met again;
    backward: it is a gradient. steps: step, loss, grad_norm; layers: step, depth, layer, rms, grad_rms.
    """

    step: int
    last_finite_step: int | None
    first: First | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Symptoms
    checkpoint: Path | None
    picture: Path | None
    what: str = "is not finite"
    """What the step is; of one whose loss and gradients are finite, why it is told all the same."""

    @property
    def site(self) -> str:
        """Where it was first seen, as in `First.where`; "" if it was not met again."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        now = self.steps.iloc[-1]
        lines = [f"step {self.step} {self.what}: loss {now.loss:.4g}, norm of the gradients {now.grad_norm:.4g}"]
        if self.first is not None:
            what = "the gradient of " if self.backward else ""
            lines.append(f"first: {what}{named(self.first.site, self.first.depth, self.first.where)}")
        norms = " → ".join(f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-BEFORE - 1 :])
        lines.append(f"norm of the gradients in the last steps: {norms}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.last_finite_step}, finite: {self.checkpoint}")
        lines += [] if self.picture is None else [f"picture: {self.picture}"]
        return "\n".join([*lines, repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised in place of the optimizer's step that would have spread a non-finite gradient; `report` says the rest."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True)
class Call:
    """What a model was called with, and under which random state and autocast."""

    args: tuple
    kwargs: dict
    random: Tensor
    casts: dict

    @classmethod
    def now(cls, model: nn.Module, args: tuple, kwargs: dict) -> Call:
        kind = next((weight.device.type for weight in model.parameters()), "cpu")
        casts = dict(device_type=kind, enabled=torch.is_autocast_enabled(kind), dtype=torch.get_autocast_dtype(kind))
        return cls(args, kwargs, torch.get_rng_state(), casts)


def replay(model: nn.Module, given: Call, seed: Tensor | None, loss: float) -> Pass:
    """A batch as `diagnose` looks at it, with the same weights, autocast and dropout masks (those of the CPU; on a GPU
    dropout draws anew). seed: the gradient that the model's output had; loss: what it was then. The gradients behind a
    finite pass tell nothing where it is the loss that is not finite."""
    seen = Pass(places_of(model), None)
    with as_it_was(), left_as_found(model), seen.open(model), torch.enable_grad():
        torch.set_rng_state(given.random)
        with torch.autocast(**given.casts), eagerly():
            output = model(*given.args, **given.kwargs)
        seen.end_forward(loss)
        value = getattr(output, "loss", None)
        if not isinstance(value, Tensor):
            value = next((t for t in tensors_in(output) if t.requires_grad), None)
        whole = seen.first is None and math.isfinite(loss)
        if whole and value is not None and (seed is not None or value.numel() == 1):
            learns = [weight for weight in model.parameters() if weight.requires_grad]
            torch.autograd.grad(value, learns, grad_outputs=seed, allow_unused=True)
    return seen


def save_state(path: Path, state: dict[str, Tensor]) -> None:
    """A state dict as safetensors; tied weights stand under each of their names, so that it loads as it is."""
    with replacing(path) as temporary:
        save_tensors(temporary, {key: value.detach().cpu().clone().contiguous() for key, value in state.items()})
