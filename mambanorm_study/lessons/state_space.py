"""One state of a state space model: its continuous equation, its discrete steps, its memory.

    h'(t) = a·h(t) + b·u(t)                          continuous, a < 0
    h_k = exp(Δa)·h_{k−1} + (exp(Δa) − 1)/a · b·u_k  zero-order hold: exact if u(t) is constant
                                                     during each step of length Δ
    h_k = exp(Δa)·h_{k−1} + Δ·b·u_k                  the step in Mamba's code

Source: Gu & Dao 2023 (Mamba), Eq. 1–4, and the code of Mamba for the last equation.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

# Name of a rule → function of the step length delta and of a that returns the factor of b·u_k
RULES = {
    "zero-order hold": lambda delta, a: np.expm1(delta * a) / a,
    "Mamba": lambda delta, a: delta,
}


def coefficients(delta: float | np.ndarray, a: float, b: float = 1.0, rule: str = "Mamba") -> tuple:
    """Return the factor of h_{k−1} and the factor of u_k in a step of length delta, for a < 0.

    rule: a key of RULES.
    """
    return np.exp(delta * a), RULES[rule](delta, a) * b


def simulate(
    u: Sequence[float], delta: float, a: float, b: float = 1.0, rule: str = "Mamba"
) -> np.ndarray:
    """Return the states h_1 … h_L (L,) for inputs u (L,) and step length delta, from h_0 = 0."""
    decay, gain = coefficients(delta, a, b, rule)
    states = itertools.accumulate(u, lambda h, value: decay * h + gain * value, initial=0.0)
    return np.array(list(states)[1:])


def state_decay() -> pd.DataFrame:
    """Return the decay of a state with a = −1 after an input of 1 at step 0 and 0 at later steps.

    The DataFrame has one row per step length and step. Columns: delta (four step lengths), step (0
    to 39), h (the state), share (h divided by h at step 0).
    """
    impulse, frames = np.eye(40)[0], []
    for delta in (0.01, 0.1, 0.3, 1.0):
        h = simulate(impulse, delta, a=-1.0)
        frames.append(pd.DataFrame(dict(delta=delta, step=range(40), h=h, share=h / h[0])))
    return pd.concat(frames, ignore_index=True)


def discretization_error(sizes: Sequence[float]) -> pd.DataFrame:
    """Return the relative error of Mamba's factor of the input, Δ·b, one row per size Δ·|a|.

    Columns: size (Δ·|a|), excess (Mamba's factor divided by the factor of the zero-order hold,
    minus 1).
    """
    exact, mamba = ([coefficients(size, -1.0, rule=rule)[1] for size in sizes] for rule in RULES)
    return pd.DataFrame(dict(size=sizes, excess=np.divide(mamba, exact) - 1))
