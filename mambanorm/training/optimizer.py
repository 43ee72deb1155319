"""The optimizer of a run. OPTIMIZERS is the one place to add another; training/language.py has its own AdamW.

OPTIMIZERS        name, as `RunConfig.optimizer` has it → the function that makes it
build_optimizer   a model and its config → its optimizer, weight decay only where it belongs
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from mambanorm.norms.base import is_norm

Groups = list[dict[str, Any]]  # of parameters, as torch's optimizers take them


class Numbers(Protocol):
    """The fields of a RunConfig that an optimizer uses."""

    optimizer: str
    lr: float
    weight_decay: float
    betas: tuple[float, float]


def adamw(groups: Groups, config: Numbers) -> torch.optim.Optimizer:
    """Loshchilov & Hutter 2019, in one fused loop over all parameters."""
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


OPTIMIZERS: dict[str, Callable[[Groups, Numbers], torch.optim.Optimizer]] = {"adamw": adamw}
"""Name → a function of the parameter groups and the config. If it needs a new setting, add a field to
RunConfig with `since` (config.py), so that stored runs keep their ids."""


def build_optimizer(model: nn.Module, config: Numbers) -> torch.optim.Optimizer:
    """The optimizer that the config names. No weight decay for A_log, D, biases, and this kit's and torch's norms."""
    in_norms = {id(p) for module in model.modules() if is_norm(module) for p in module.parameters()}
    decay, no_decay = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.dim() < 2 or name.endswith(("A_log", "A_logs", "bias")) or id(parameter) in in_norms
            (no_decay if spared else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": no_decay, "weight_decay": 0.0}]
    return OPTIMIZERS[config.optimizer](groups, config)
