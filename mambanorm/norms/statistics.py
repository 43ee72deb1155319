"""Running statistics of a trained model, computed anew: `update_statistics`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mambanorm.checks import shown


@torch.no_grad()
def update_statistics(
    loader: Iterable, model: nn.Module, device: torch.device | str | None = None
) -> None:
    """Recompute the running statistics of every norm: plain averages over the batches of a loader,
    in train mode.

    Needed after weights were averaged (SWA, EMA). It does for this kit's BN, NormVary and
    SwitchNorm, and for torch's norms, what `torch.optim.swa_utils.update_bn` does for torch's
    alone. A batch is the model's input, a tuple or list that begins with it, or a dict of the
    model's keyword arguments. device: where each batch is moved first. The modes and momenta of the
    model stay as they were. ValueError for a loader without batches; the statistics are then reset.
    """
    tracked = [
        module
        for module in model.modules()
        if isinstance(getattr(module, "running_mean", None), Tensor)
    ]
    norms = [
        module for module in tracked if hasattr(module, "momentum")
    ]  # without one it is frozen, and stays so
    modes = {module: module.training for module in model.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1)
        if isinstance(count := getattr(norm, "num_batches_tracked", None), Tensor):
            count.zero_()
    seen = 0
    try:
        model.train()
        for seen, batch in enumerate(loader, start=1):
            for norm in norms:
                norm.momentum = 1 / seen  # of exponential averages this makes plain ones
            _run(model, batch, device)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if norms and not seen:
        raise ValueError(
            "the loader has no batches: a generator that was used up? Running statistics are reset"
        )


def _run(model: nn.Module, batch: object, device: torch.device | str | None) -> None:
    if isinstance(batch, dict):
        model(
            **{
                name: value.to(device) if isinstance(value, Tensor) else value
                for name, value in batch.items()
            }
        )
        return
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if not isinstance(inputs, Tensor):
        raise ValueError(
            f"a batch is a tensor, a tuple or list that begins with one, or a dict, got {shown(batch)}"
        )
    model(inputs.to(device))
