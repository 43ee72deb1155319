"""Settings for the parameters of the SSM, for all Mamba blocks: initial values, decay and a floor.

The parameters A_log = log(−A), D and the bias of Δ are found by their names, because MambaBlock,
Mamba2Block and VSSBlock name them differently.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

A_LOG_NAMES, D_NAMES, DT_BIAS_NAMES = (
    ("A_log", "A_logs"),
    ("D", "Ds"),
    ("dt_proj.bias", "dt_projs_bias", "dt_bias"),
)


def parameters_named(
    parameters: Iterable[tuple[str, Tensor]], names: tuple[str, ...]
) -> list[Tensor]:
    """Return the parameters whose names end in one of `names`: `blocks.0.A_log` in A_LOG_NAMES.

    parameters: pairs of name and value, such as `model.named_parameters()`.
    """
    endings = tuple(f".{name}" for name in names)
    return [value for name, value in parameters if name.endswith(endings)]


@torch.no_grad()
def set_initial_values(model: nn.Module, dt_init: str, a_init: str) -> None:
    """Set Δ's bias to zero if `dt_init` is "zero", and −A to 1 if `a_init` is "ones"."""
    parameters = list(model.named_parameters())
    for bias in parameters_named(parameters, DT_BIAS_NAMES) if dt_init == "zero" else ():
        bias.zero_()
    for A_log in parameters_named(parameters, A_LOG_NAMES) if a_init == "ones" else ():
        A_log.zero_()


def add_weight_decay(
    optimizer: torch.optim.Optimizer, model: nn.Module, weight_decay: float
) -> None:
    """Move A_log and D to a parameter group of the optimizer with this weight decay."""
    moved = parameters_named(model.named_parameters(), A_LOG_NAMES + D_NAMES)
    ids = set(map(id, moved))
    for group in optimizer.param_groups:
        group["params"] = [value for value in group["params"] if id(value) not in ids]
    optimizer.add_param_group({"params": moved, "weight_decay": weight_decay})


@torch.no_grad()
def apply_floor(model: nn.Module, floor: float) -> None:
    """Set every |A| below `floor` to `floor`."""
    for A_log in parameters_named(model.named_parameters(), A_LOG_NAMES):
        A_log.clamp_(min=math.log(floor))
