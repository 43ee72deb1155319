"""The optimizer of a run, by its name: OPTIMIZERS is where another one is added."""

from __future__ import annotations

import torch
from torch import nn

from mambanorm.norms.base import is_norm
from mambanorm.training.config import RunConfig


def build_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """AdamW; A_log, D, biases and everything that belongs to a norm get no weight decay."""
    in_norms = {id(p) for module in model.modules() if is_norm(module) for p in module.parameters()}
    decay, keep = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            spared = parameter.dim() < 2 or name.endswith(("A_log", "A_logs", "bias")) or id(parameter) in in_norms
            (keep if spared else decay).append(parameter)
    groups = [{"params": decay, "weight_decay": config.weight_decay}, {"params": keep, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
