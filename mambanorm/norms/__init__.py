"""Normalization layers on (B, L, D) and their registry.

    registry.py         NORMS, create_norm: names, equations, axes, causality, sources
    masked_moments.py   per-channel moments and their pooling: the readable reduction over L, the only mask
    behaviour.py        what a norm does, measured: asked of every norm of your own when it is registered
    base.py             checks, γ, β and ε; TokenNorm and SequenceNorm
    classic.py          None, BN, IN, GN, LN, RMSN, and the other scopes LN-DL, RMSN-DL, GN-token
    normvary.py         NormVary (Appendix D)
    more.py             beyond the paper: Lp, Scale, Constant, NormVary-token, SwitchNorm
    selector.py         DyT, Derf and the NormSelector between DyT and LN (source S2)
    statistics.py       running statistics computed anew, after weights were averaged
    outside.py          not in the registry: adaLN and adaLN-zero, weight standardization

A norm is called `norm(x, lengths)` and nothing else. The same norms as fused loops on the CPU are in
kernels/norm.py. The registry as tables is study/norm_catalog.py.

Glossary: B rows, L positions, D channels, G groups, γ `weight`/`gamma`, β `bias`/`beta`, ε `eps`, 1 − α `momentum`.
"""

from mambanorm.basics.settings import KIT_NORMS
from mambanorm.norms import more
from mambanorm.norms.normvary import NormVary
from mambanorm.norms.registry import (
    NORMS,
    NormEntry,
    check_causal,
    check_options,
    create_norm,
    known_options,
    norm_name,
    register_norm,
)
from mambanorm.norms.selector import NormSelector

for name in KIT_NORMS:  # in the order of all tables
    NORMS[name] = NORMS.pop(name)

__all__ = [
    "NORMS",
    "NormEntry",
    "NormSelector",
    "NormVary",
    "check_causal",
    "check_options",
    "create_norm",
    "known_options",
    "norm_name",
    "register_norm",
]
