"""One state of a state space model: the continuous equation, its steps, and its memory.

    h'(t) = a·h(t) + b·u(t)                          continuous, a < 0
    h_k = exp(Δa)·h_{k−1} + (exp(Δa) − 1)/a · b·u_k  zero-order hold: exact if u is constant for Δ
    h_k = exp(Δa)·h_{k−1} + Δ·b·u_k                  as Mamba's code computes it

Source: Gu & Dao 2023 (Mamba), Eq. 1–4, and its code (third line).
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

# Rule → factor of b·u_k for a step of length delta.
RULES = {
    "zero-order hold": lambda delta, a: np.expm1(delta * a) / a,
    "Mamba": lambda delta, a: delta,
}


def coefficients(delta: float | np.ndarray, a: float, b: float = 1.0, rule: str = "Mamba") -> tuple:
    """Return the factor of the previous state and the factor of the input, for a step of length
    delta and a < 0. rule: a key of RULES.
    """
    return np.exp(delta * a), RULES[rule](delta, a) * b


def run(
    u: Sequence[float], delta: float, a: float, b: float = 1.0, rule: str = "Mamba"
) -> np.ndarray:
    """Return the states h_1 … h_L for the inputs u (L,), starting at h_0 = 0."""
    decay, gain = coefficients(delta, a, b, rule)
    states = itertools.accumulate(u, lambda h, value: decay * h + gain * value, initial=0.0)
    return np.array(list(states)[1:])


def memory() -> pd.DataFrame:
    """Return the response of a state with a = −1 to a single 1 at step 0, for four step lengths.

    Columns: delta, step (0 to 39), h, share (h divided by its first value).
    """
    impulse, frames = np.eye(40)[0], []
    for delta in (0.01, 0.1, 0.3, 1.0):
        h = run(impulse, delta, a=-1.0)
        frames.append(pd.DataFrame(dict(delta=delta, step=range(40), h=h, share=h / h[0])))
    return pd.concat(frames, ignore_index=True)


def shortcut_error(sizes: Sequence[float]) -> pd.DataFrame:
    """Return by how much Mamba's factor Δ·b exceeds the exact factor of the zero-order hold, as a
    fraction of the latter: columns size (Δ·|a|) and excess.
    """
    exact, mamba = ([coefficients(size, -1.0, rule=rule)[1] for size in sizes] for rule in RULES)
    return pd.DataFrame(dict(size=sizes, excess=np.divide(mamba, exact) - 1))
