"""A scan small enough to follow: a few numbers in, a few states, one output.

INPUTS          name → the numbers of a ready-made input
parse_numbers   the numbers that somebody has typed
scan_by_hand    Δ, the decay rate and the input → every state at every position, and the output

Glossary: u input, Δ step size, h state, a the slowest state's decay rate |A|; state n decays at the rate n·a, as the
states of a new Mamba block do (S4D-real).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mambanorm.operations import selective_scan

LENGTH, STATES = 32, 4
LONGEST = 64
WAVE = [math.sin(2 * math.pi * t / 16) for t in range(LENGTH)]
INPUTS: dict[str, list[float]] = {
    "one impulse": [0.0] * 4 + [1.0] + [0.0] * 27,
    "two impulses": [0.0] * 4 + [1.0] + [0.0] * 11 + [-1.0] + [0.0] * 15,
    "a step": [0.0] * 8 + [1.0] * 16 + [0.0] * 8,
    "a wave": WAVE,
    "a word, then noise": [1.0] * 2 + [0.25 * (-1) ** (t * t // 3) for t in range(30)],
}


@dataclass(frozen=True)
class HandScan:
    """u and delta (L,), states (N, L), y (L,): the mean of the states. half_life (N,): steps until a state has decayed
    to half at the largest Δ, log 2 / (Δ·n·a)."""

    u: Tensor
    delta: Tensor
    states: Tensor
    y: Tensor
    half_life: Tensor


def parse_numbers(text: str) -> list[float]:
    """`"0 0 1, -2"` → the numbers. ValueError for none, for more than LONGEST, and for what is no finite number."""
    numbers = []
    for word in text.replace(",", " ").split():
        try:
            numbers.append(float(word))
        except ValueError:
            numbers.append(math.nan)
        if not math.isfinite(numbers[-1]):
            raise ValueError(f"{word!r} is no number: write them with blanks between, such as 0 0 1 0.5 -2")
    if not 1 <= len(numbers) <= LONGEST:
        raise ValueError(f"{len(numbers)} numbers are given: 1 to {LONGEST} can be drawn")
    return numbers


def scan_by_hand(u: list[float], delta: float, a: float, *, selective: bool = False, n: int = STATES) -> HandScan:
    """Equation 2 of Gu & Dao 2023 for one channel, B = C = 1: h_t = exp(−Δ_t·n·a)·h_(t−1) + Δ_t·u_t.

    `selective`: Δ_t = Δ·|u_t| / max|u| instead of Δ everywhere, so that the state holds still where nothing comes in.
    It stands for the linear layer by which a Mamba block makes Δ from its input. ValueError for a Δ or a that is not
    above zero.
    """
    for name, value in (("delta", delta), ("a", a)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be above 0, got {value!r}")
    x = torch.tensor(u, dtype=torch.float64)
    size = x.abs() / x.abs().max().clamp(min=1e-12)
    steps = delta * (size if selective else torch.ones_like(x))  # (L,)
    rates = a * torch.arange(1.0, n + 1, dtype=torch.float64)[:, None]  # (N, 1)
    one = torch.ones_like(rates)
    wide = x.expand(1, n, -1), steps.expand(1, n, -1)  # a channel a state, so that the scan's outputs are the states
    states = selective_scan(*wide, -rates, one, one, backend="reference")[0]  # (N, L)
    half_life = math.log(2) / (float(steps.max().clamp(min=1e-12)) * rates[:, 0])
    return HandScan(x, steps, states, states.mean(0), half_life)
