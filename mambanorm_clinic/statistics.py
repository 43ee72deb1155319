"""`update_statistics`: recompute the running statistics of a trained model."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mambanorm_clinic.calling import call_model, map_tensors


@torch.no_grad()
def update_statistics(
    loader: Iterable, model: nn.Module, device: torch.device | str | None = None
) -> None:
    """Recompute the running statistics of all norms as averages over the batches of a loader.

    Call this function after averaging weights (SWA, EMA). `torch.optim.swa_utils.update_bn` only
    updates torch's own norms; this function also updates this kit's BN, NormVary and SwitchNorm.
    The model runs in train mode. Afterwards the earlier modes and momenta are restored.

    loader: yields batches. A batch is the model's input, a tuple or list that begins with the
    input, or a dict of keyword arguments. device: the device to which each batch is moved; None
    means that batches are not moved.

    Raises ValueError if the loader yields no batch; the running statistics are reset even then.
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(getattr(module, "running_mean", None), Tensor)
        and hasattr(module, "momentum")  # a norm without momentum has frozen statistics
    ]
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1)
    batches = 0
    try:
        model.train()
        for batches, batch in enumerate(loader, start=1):
            for norm in norms:
                norm.momentum = 1 / batches  # makes the running average a plain average
            call_model(model, map_tensors(lambda x: x.to(device), batch))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if not batches:
        raise ValueError(
            "the loader yields no batches (is it an exhausted generator?), and the running "
            "statistics are now reset: call update_statistics again with batches"
        )
