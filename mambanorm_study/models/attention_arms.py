"""Arms of a Transformer, `N1>MHA>N2`: norm N1 at the attention, N2 at the feed-forward part.

An arm may also be the name of a model of source S2 (docs/sources.md), such as `"AutoNorm"`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import mambanorm_study.norms  # noqa: F401 (registers the norms of these arms)
from mambanorm.arms import MIXERS, NAMED_ARMS, Arm


class Variant(NamedTuple):
    """A named arm: the one norm at both sites, the options of the norm, and a description."""

    norm: str
    options: dict[str, object]
    description: str


# Name → arm: the models that source S2 (docs/sources.md) compares in its §IV.B and §IV.C.2, and our
# control AutoNorm_FixedSelector. "Teacher" has the norms of "FrozenLN" in a smaller model, whose
# size is set in the run's config.
AUTONORM: dict[str, Variant] = {
    "AutoNorm": Variant("NormSelector", {}, "DyT and LN, blended with weights for each token"),
    "AutoNorm_DisableSelector": Variant(
        "NormSelector", {"mode": "disable"}, "the selector switched off: LN alone"
    ),
    "AutoNorm_RandomSelector": Variant(
        "NormSelector", {"mode": "random"}, "random weights, drawn again at each step"
    ),
    "AutoNorm_FixedSelector": Variant(
        "NormSelector", {"mode": "fixed"}, "both weights always ½: our control, not in S2"
    ),
    "FrozenDyT": Variant("DyT", {}, "DyT alone"),
    "FrozenLN": Variant("LN", {}, "LN alone"),
    "Teacher": Variant("LN", {}, "LN alone, in a smaller model, from which others are distilled"),
}

# Name → arm of a Transformer: three of the models with DyT as source S2 writes it, x ⊙ α
AUTONORM_LINEAR: dict[str, Variant] = {
    "AutoNorm_Linear": Variant("NormSelector", {"linear": True}, "AutoNorm with DyT as x ⊙ α"),
    "AutoNorm_Linear_RandomSelector": Variant(
        "NormSelector", {"linear": True, "mode": "random"}, "AutoNorm_Linear with random weights"
    ),
    "FrozenDyT_Linear": Variant("DyT", {"linear": True}, "x ⊙ α alone"),
}
NAMED_VARIANTS: dict[str, Variant] = {**AUTONORM, **AUTONORM_LINEAR}


class AttentionArm(Arm):
    """The norms of a Transformer block: n1 at its attention, n2 at its feed-forward part.

    name: a key of NAMED_VARIANTS, or "" for an arm that is written `N1>MHA>N2`. options: the norm
    options that belong to the name. Raises ValueError for sites other than n1 and n2, which a
    Transformer block does not have.
    """

    mixer = "MHA"
    name = ""
    options: Mapping[str, object] = {}

    def __new__(
        cls, n1: str, n2: str, more: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    ) -> AttentionArm:
        arm = super().__new__(cls, n1, n2, more)
        if arm.more:
            raise ValueError(
                f"arm {n1}>MHA>{n2}{arm.further_notation}: a Transformer block has no further "
                f"sites, so leave out {arm.further_notation}"
            )
        return arm

    @classmethod
    def named(cls, name: str) -> AttentionArm:
        """Return the arm whose name is `name`, a key of NAMED_VARIANTS."""
        norm, options, _ = NAMED_VARIANTS[name]
        arm = cls(norm, norm)
        arm.name, arm.options = name, options
        return arm

    def __str__(self) -> str:
        return self.name or super().__str__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionArm) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:  # otherwise the __ne__ of tuple would be used
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def label(self) -> str:
        """The arm as figures label it: its name, or `N1→N2` if it has no name."""
        return self.name or super().label


MIXERS["MHA"] = AttentionArm
NAMED_ARMS.update({name: AttentionArm.named(name) for name in NAMED_VARIANTS})
