"""Normalization layers on (B, L, D) and their registry.

    registry.py         NORMS, create_norm, register_norm: name, equation, axes, causality, source
    base.py             base classes TokenNorm and SequenceNorm: checks, γ, β and ε
    classic.py          None, BN, IN, LN, RMSN, GN, and LN-DL, RMSN-DL, GN-token (over other axes)
    normvary.py         NormVary (Appendix D)
    masked_moments.py   moments of each channel along L, without padding, and their pooling
    behaviour.py        measures what a norm does, to check its declaration

A norm is called as `norm(x, lengths)`. kernels/norm.py has fused CPU loops for these norms.

Glossary: B rows, L positions, D channels, G groups; `weight` or `gamma` is γ, `bias` or `beta` is
β, `eps` is ε, and `momentum` is 1 − α.
"""

from mambanorm.norms.normvary import NormVary
from mambanorm.norms.registry import (
    NORMS,
    NormEntry,
    check_causal,
    check_options,
    create_norm,
    known_options,
    register_norm,
    registered_name,
)

__all__ = [
    "NORMS",
    "NormEntry",
    "NormVary",
    "check_causal",
    "check_options",
    "create_norm",
    "known_options",
    "register_norm",
    "registered_name",
]
