"""Normalization layers on (B, L, D) and their registry.

    registry.py         NORMS, create_norm, register_norm: name, equation, axes, causality, source
    base.py             checks, γ, β and ε; TokenNorm and SequenceNorm
    classic.py          None, BN, IN, LN, RMSN, GN, and the other scopes LN-DL, RMSN-DL, GN-token
    normvary.py         NormVary (Appendix D)
    masked_moments.py   moments of each channel along L, without padding, and their pooling
    behaviour.py        measures what a norm does, to check what it declares

A norm is called as `norm(x, lengths)`. kernels/norm.py has the same norms as fused CPU loops.

Glossary: B rows, L positions, D channels, G groups, γ `weight`/`gamma`, β `bias`/`beta`, ε `eps`,
1 − α `momentum`.
"""

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

__all__ = [
    "NORMS",
    "NormEntry",
    "NormVary",
    "check_causal",
    "check_options",
    "create_norm",
    "known_options",
    "norm_name",
    "register_norm",
]
