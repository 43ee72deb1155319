"""Settings for the parameters of the SSM, for all Mamba blocks: initial values, decay and a floor.

The parameters A_log = log(−A), D and the bias of Δ are found by their names, because MambaBlock,
Mamba2Block and VSSBlock name them differently.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

A_LOG, SKIP, DT_BIAS = (
    ("A_log", "A_logs"),
    ("D", "Ds"),
    ("dt_proj.bias", "dt_projs_bias", "dt_bias"),
)


def named(parameters: Iterable[tuple[str, Tensor]], names: tuple[str, ...]) -> list[Tensor]:
    """Return the parameters whose names end in one of `names`, e.g. `blocks.0.A_log` for A_LOG.

    parameters: pairs of name and value, such as `model.named_parameters()`.
    """
    endings = tuple(f".{name}" for name in names)
    return [value for name, value in parameters if name.endswith(endings)]


@torch.no_grad()
def set_initial_values(model: nn.Module, dt_init: str, a_init: str) -> None:
    """Set Δ's bias to zero if `dt_init` is "zero", and −A to 1 if `a_init` is "ones"."""
    parameters = list(model.named_parameters())
    for bias in named(parameters, DT_BIAS) if dt_init == "zero" else ():
        bias.zero_()
    for A_log in named(parameters, A_LOG) if a_init == "ones" else ():
        A_log.zero_()


def add_weight_decay(
    optimizer: torch.optim.Optimizer, model: nn.Module, weight_decay: float
) -> None:
    """Move A_log and D to a parameter group of the optimizer with this weight decay."""
    moved = named(model.named_parameters(), A_LOG + SKIP)
    ids = set(map(id, moved))
    for group in optimizer.param_groups:
        group["params"] = [value for value in group["params"] if id(value) not in ids]
    optimizer.add_param_group({"params": moved, "weight_decay": weight_decay})


@torch.no_grad()
def apply_floor(model: nn.Module, floor: float) -> None:
    """Set every |A| below `floor` to `floor`."""
    for A_log in named(model.named_parameters(), A_LOG):
        A_log.clamp_(min=math.log(floor))
