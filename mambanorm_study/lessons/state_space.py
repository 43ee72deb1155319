"""One state of a state space model: the continuous equation, its steps, and its memory.

    h'(t) = a·h(t) + b·u(t)                          continuous, a < 0
    h_k = exp(Δa)·h_{k−1} + (exp(Δa) − 1)/a · b·u_k  zero-order hold: exact if u is constant for Δ
    h_k = exp(Δa)·h_{k−1} + Δ·b·u_k                  as Mamba's code computes it

Source: Gu & Dao 2023 (Mamba), Eq. 1–4; the third line is that of its code.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mambanorm.errors import unknown

RULES = ("zero-order hold", "Mamba")


def coefficients(delta: float | np.ndarray, a: float, b: float = 1.0, rule: str = "Mamba") -> tuple:
    """Return the factors of the old state and of the input in a step of length delta.

    Raises ValueError for another rule, and for a ≥ 0, because such a state does not decay.
    """
    if rule not in RULES:
        raise unknown("rule", rule, RULES)
    if not a < 0:
        raise ValueError(f"a must be below 0, so that the state decays, got {a!r}")
    gain = np.expm1(delta * a) / a if rule == "zero-order hold" else delta
    return np.exp(delta * a), gain * b


def run(
    u: Sequence[float], delta: float, a: float, b: float = 1.0, rule: str = "Mamba"
) -> np.ndarray:
    """Return the states h_1 … h_L for the inputs u (L,), starting at h_0 = 0."""
    decay, gain = coefficients(delta, a, b, rule)
    h, states = 0.0, []
    for value in u:
        h = decay * h + gain * value
        states.append(h)
    return np.array(states)


def memory(
    deltas: Sequence[float] = (0.01, 0.1, 0.3, 1.0), a: float = -1.0, steps: int = 40
) -> pd.DataFrame:
    """Return the response to a single 1 at step 0: columns delta, step, h, and share = h / h[0]."""
    impulse = np.eye(steps)[0]
    frames = []
    for delta in deltas:
        h = run(impulse, delta, a)
        frames.append(pd.DataFrame(dict(delta=delta, step=range(steps), h=h, share=h / h[0])))
    return pd.concat(frames, ignore_index=True)


def shortcut_error(sizes: Sequence[float]) -> pd.DataFrame:
    """Return the relative excess of Mamba's gain Δ·b over the zero-order hold's, by Δ·|a|."""
    gains = [[coefficients(size, -1.0, rule=rule)[1] for rule in RULES] for size in sizes]
    return pd.DataFrame(dict(size=sizes, excess=[mamba / exact - 1 for exact, mamba in gains]))
