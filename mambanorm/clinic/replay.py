"""The batch at which a training failed, once more: `replay`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mambanorm.advice.model_check import as_it_was
from mambanorm.clinic.passing import Pass, eagerly
from mambanorm.clinic.sites import places_of
from mambanorm.diagnostics import left_as_found
from mambanorm.diagnostics.nonfinite import tensors_in


@dataclass(frozen=True)
class Given:
    """What a model was called with, and under which random state and autocast."""

    args: tuple
    kwargs: dict
    random: Tensor
    casts: dict

    @classmethod
    def now(cls, model: nn.Module, args: tuple, kwargs: dict) -> Given:
        kind = next((weight.device.type for weight in model.parameters()), "cpu")
        casts = dict(device_type=kind, enabled=torch.is_autocast_enabled(kind), dtype=torch.get_autocast_dtype(kind))
        return cls(args, kwargs, torch.get_rng_state(), casts)


def replay(model: nn.Module, given: Given, seed: Tensor | None, loss: float) -> Pass:
    """A batch under the hooks of `diagnose`, with the same weights, autocast and dropout masks (those of the CPU; on a
    GPU dropout draws anew). seed: the gradient that the model's output had; loss: what it was then. The gradients
    behind a finite pass tell nothing where it is the loss that is not finite."""
    seen = Pass(places_of(model))
    with as_it_was(), left_as_found(model), seen.open(model), torch.enable_grad():
        torch.set_rng_state(given.random)
        with torch.autocast(**given.casts), eagerly():
            output = model(*given.args, **given.kwargs)
        seen.end_forward(loss)
        value = getattr(output, "loss", None)
        if not isinstance(value, Tensor):
            value = next((t for t in tensors_in(output) if t.requires_grad), None)
        learns = [weight for weight in model.parameters() if weight.requires_grad]
        whole = seen.first is None and math.isfinite(loss)
        if whole and value is not None and (seed is not None or value.numel() == 1):
            torch.autograd.grad(value, learns, grad_outputs=seed, allow_unused=True)
    return seen
