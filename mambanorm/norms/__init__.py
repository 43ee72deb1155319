"""Normalization layers on (B, L, D) and their registry.

    registry.py   NORMS, create_norm: names, equations, axes, causality, sources
    moments.py    per-channel moments and their pooling: the only reduction over L, the only mask
    fused.py      the same reduction and the standardising line as fused loops on the CPU
    base.py       checks, γ, β and ε
    classic.py    None, BN, IN, GN, LN, RMSN and the other scopes LN-DL, RMSN-DL, GN-token
    adaptive.py   NormVary (Appendix D)
    catalog.py    the registry as tables: what each norm is and costs

Glossary: B rows, L positions, D channels, G groups, γ `weight`/`gamma`, β `bias`/`beta`, ε `eps`, 1 − α `momentum`.
"""

from mambanorm.norms import adaptive, classic  # noqa: F401  (importing them fills the registry, in this order)
from mambanorm.norms.adaptive import NormVary
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
