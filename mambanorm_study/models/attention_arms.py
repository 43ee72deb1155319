"""Arms of a Transformer: one norm at its attention, one at its feed-forward part, `N1>MHA>N2`.

S2's models have names instead: `"AutoNorm"` is an arm, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import mambanorm_study.norms  # noqa: F401 (registers the norms of these arms)
from mambanorm.arms import MIXERS, NAMED_ARMS, Arm


class AttentionArm(Arm):
    """The norms of a Transformer's block, at its attention and at its feed-forward. `name`: that of
    AUTONORM, or ""."""

    mixer = "MHA"
    name = ""

    def __new__(
        cls, n1: str, n2: str, more: Mapping[str, str] | Iterable[tuple[str, str]] = ()
    ) -> AttentionArm:
        arm = super().__new__(cls, n1, n2, more)
        if arm.more:
            raise ValueError(
                f"arm {n1}>MHA>{n2}{arm.further}: a Transformer block has no further sites, leave out {arm.further}"
            )
        return arm

    @classmethod
    def named(cls, name: str) -> AttentionArm:
        arm = cls(ATTENTION[name].norm, ATTENTION[name].norm)
        arm.name = name
        return arm

    @property
    def options(self) -> dict[str, object]:
        """The norm options that the name stands for."""
        return ATTENTION[self.name].options if self.name else {}

    def __str__(self) -> str:
        return self.name or super().__str__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionArm) and str(self) == str(other)

    def __ne__(self, other: object) -> bool:  # a tuple has one of its own
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def label(self) -> str:
        return self.name or super().label


class Variant(NamedTuple):
    """One of S2's models: its norm at both places, with these options."""

    norm: str
    options: dict[str, object]
    what: str


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
"""S2, §IV.B and §IV.C.2: the models that it compares. What makes a Teacher smaller is the business
of its config."""

ATTENTION: dict[str, Variant] = AUTONORM | {
    "AutoNorm_Linear": Variant("NormSelector", {"linear": True}, "AutoNorm with DyT as x ⊙ α"),
    "AutoNorm_Linear_RandomSelector": Variant(
        "NormSelector", {"linear": True, "mode": "random"}, "the same, random weights"
    ),
}
"""Every arm of a Transformer that has a name of its own; x ⊙ α is how S2 writes DyT."""


MIXERS["MHA"] = AttentionArm
NAMED_ARMS.update({name: AttentionArm.named(name) for name in ATTENTION})
