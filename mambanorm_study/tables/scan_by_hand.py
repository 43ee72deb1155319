"""A scan small enough to follow by hand: one channel, a few states and example inputs, for notebook
02 and the explorer in it.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from mambanorm.operations import selective_scan

LENGTH, STATES = 32, 4

# Name of an example input → its values.
INPUTS: dict[str, list[float]] = {
    "one impulse": [0.0] * 4 + [1.0] + [0.0] * 27,
    "two impulses": [0.0] * 4 + [1.0] + [0.0] * 11 + [-1.0] + [0.0] * 15,
    "a step": [0.0] * 8 + [1.0] * 16 + [0.0] * 8,
    "a wave": [math.sin(2 * math.pi * t / 16) for t in range(LENGTH)],
    "a word, then noise": [1.0] * 2 + [0.25 * (-1) ** (t * t // 3) for t in range(30)],
}


class HandScan(NamedTuple):
    """The tensors of a scan of one channel: its input u (L,), the step sizes delta (L,), the states
    (N, L), and y (L,), the mean over the states.

    half_life (N,): the number of steps after which state k (1 … N) has decayed to one half if Δ
    stays at its largest value: log 2 / (Δ·k·a).
    """

    u: Tensor
    delta: Tensor
    states: Tensor
    y: Tensor
    half_life: Tensor


def scan_by_hand(
    u: list[float], delta: float, a: float, *, selective: bool = False, n: int = STATES
) -> HandScan:
    """Return the scan of one channel u with B = C = 1: h_t = exp(−Δ_t·k·a)·h_(t−1) + Δ_t·u_t for
    the states k = 1 … n (Equation 2 of Gu & Dao 2023). The states decay at the rates
    a, 2a, …, n·a, like the states of an untrained Mamba block (S4D-real).

    u: L values. delta: the step size Δ. selective: use Δ_t = Δ·|u_t| / max|u| instead of the
    constant Δ, so that the states do not change at steps where u is 0. A Mamba block instead
    computes Δ_t from its input by a linear layer.
    """
    x = torch.tensor(u, dtype=torch.float64)
    steps = torch.full_like(x, delta)  # (L,)
    if selective:
        size = x.abs()
        steps = delta * size / size.max().clamp(min=1e-12)
    rates = a * torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]  # (N, 1)
    one = torch.ones_like(rates)
    # one channel for each state, so that the scan's outputs are the states
    channels, deltas = x.expand(1, n, -1), steps.expand(1, n, -1)
    states = selective_scan(channels, deltas, -rates, one, one, backend="reference")[0]  # (N, L)
    half_life = math.log(2) / (float(steps.max().clamp(min=1e-12)) * rates[:, 0])
    return HandScan(x, steps, states, states.mean(0), half_life)
