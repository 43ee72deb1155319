"""Arms of a Transformer, `N1>MHA>N2`: a norm at the attention and one at the feed-forward part.

The models of source S2 have names instead: `"AutoNorm"` is also an arm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import mambanorm_study.norms  # noqa: F401 (registers the norms of these arms)
from mambanorm.arms import MIXERS, NAMED_ARMS, Arm


class Variant(NamedTuple):
    """One of S2's models: the norm at both sites, the options of the norm, and a description."""

    norm: str
    options: dict[str, object]
    what: str


# The models that S2 compares (§IV.B and §IV.C.2). The config of a Teacher makes it smaller.
AUTONORM: dict[str, Variant] = {
    "AutoNorm": Variant("NormSelector", {}, "DyT and LN, blended by a selector on each token"),
    "AutoNorm_DisableSelector": Variant(
        "NormSelector", {"mode": "disable"}, "the selector switched off: LN alone"
    ),
    "AutoNorm_RandomSelector": Variant(
        "NormSelector", {"mode": "random"}, "random weights, new ones each step"
    ),
    "AutoNorm_FixedSelector": Variant(
        "NormSelector", {"mode": "fixed"}, "half of each, always: our control, not S2's"
    ),
    "FrozenDyT": Variant("DyT", {}, "DyT alone"),
    "FrozenLN": Variant("LN", {}, "LN alone"),
    "Teacher": Variant("LN", {}, "LN alone, in a smaller model, to distil from"),
}

# All named arms of a Transformer; S2 writes DyT as x ⊙ α
NAMED: dict[str, Variant] = {
    **AUTONORM,
    "AutoNorm_Linear": Variant("NormSelector", {"linear": True}, "AutoNorm with DyT as x ⊙ α"),
    "AutoNorm_Linear_RandomSelector": Variant(
        "NormSelector", {"linear": True, "mode": "random"}, "the same, random weights"
    ),
}


class AttentionArm(Arm):
    """The norms of a Transformer block, at its attention and at its feed-forward part.

    name: a key of NAMED, or "" for an arm in the notation. options: the norm options that belong to
    the name. Raises ValueError for further sites, which a Transformer block does not have.
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
                f"arm {n1}>MHA>{n2}{arm.further}: a Transformer block has no further sites, "
                f"leave out {arm.further}"
            )
        return arm

    @classmethod
    def named(cls, name: str) -> AttentionArm:
        """Return the arm that NAMED lists under a name."""
        norm, options, _ = NAMED[name]
        arm = cls(norm, norm)
        arm.name, arm.options = name, options
        return arm

    def __str__(self) -> str:
        return self.name or super().__str__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionArm) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:  # tuple defines it separately
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def label(self) -> str:
        """Text for figures: the name, or `N1→N2`."""
        return self.name or super().label


MIXERS["MHA"] = AttentionArm
NAMED_ARMS.update({name: AttentionArm.named(name) for name in NAMED})
