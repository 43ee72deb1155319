"""The arm notation: which norm stands where in a Mamba block, written `N1>SSM>N2`.

`"RMSN>SSM>GN"` is the config value, the row label and the legend entry at once, and it is parsed here only. `→` is
accepted for `>`. `"preset:VMamba"` names a published variant instead: PRESETS is the paper's survey (§2.3, §3.2) as a
table, variant → arm.

Further norms follow with `+`, each at a site of MORE_SITES: `"RMSN>SSM>None+B:RMSN+gated:RMSN"`.

A Transformer's block has two norms as well, one at its attention and one at its feed-forward: `"LN>MHA>LN"`, or the
name of one of AUTONORM, the models of source S2.

This file holds only names. The registry of norms, and torch with it, is imported where an arm names one of your own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mambanorm.basics.errors import nearest, unknown
from mambanorm.basics.published import PUBLISHED
from mambanorm.basics.settings import KIT_NORMS

PAPER_NORMS = ("None", "BN", "IN", "LN", "RMSN", "GN")
"""The six choices of the paper's grid, in the order of its Table 1."""


class Site(NamedTuple):
    """A place in a block. `width`: of which size its values are, of a block's `widths`; "" = no norm stands there."""

    width: str
    what: str


SITES = {
    "x": Site("", "the block's input"),
    "n1": Site("D", "what feeds both branches"),
    "conv": Site("E", "what the scan reads: after convolution and SiLU"),
    "B": Site("N", "the SSM's input vector B"),
    "C": Site("N", "the SSM's output vector C"),
    "delta": Site("R", "Δ's R numbers, before their projection"),
    "delta_after": Site("E", "Δ's E numbers, after their projection, before bias and softplus"),
    "step_size": Site("", "Δ itself, behind bias and softplus"),
    "scan": Site("", "the scan's output, D·u included"),
    "n2": Site("E", "what goes to the gate"),
    "z": Site("E", "the gate, before its SiLU"),
    "gated": Site("E", "the scan's output after the gate"),
    "branch": Site("D", "the block's output, before the residual is added"),
    "residual": Site("D", "the residual stream, after the sum"),
}
"""Every place of a block, in the order of computation. Each is shown to the observer; behind its norm, if it has one.
Widths: D = d_model, E = d_inner, N = d_state, R = dt_rank."""

MORE_SITES = {name: site.what for name, site in SITES.items() if site.width and name not in ("n1", "n2")}
"""Where a norm can stand besides N1 and N2."""
SYMBOLS = {"delta": "Δ", "delta_after": "Δ′"}


class Arm(NamedTuple("Arm", [("n1", str), ("n2", str), ("more", tuple[tuple[str, str], ...])])):
    """The norm before the SSM (Eq. 1: N1, feeding both branches) and the one after it (N2, before the gate).

    more: (site, norm) pairs of MORE_SITES, or a dict; kept in their order, without "None". ValueError for all else.
    """

    def __new__(cls, n1: str, n2: str, more: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Arm:
        return super().__new__(cls, norm_name(n1), norm_name(n2), further_norms(more))

    @classmethod
    def parse(cls, text: str | Arm) -> Arm:
        """`"RMSN>SSM>GN"`, `"RMSN→SSM→GN"`, `"RMSN>SSM>None+B:RMSN"` or `"preset:VMamba"` → Arm; `"LN>MHA>LN"` or
        `"AutoNorm"` → AttentionArm. ValueError for anything else, and for a site that is named twice."""
        if isinstance(text, Arm):
            return text
        if not isinstance(text, str):
            raise ValueError(f"an arm is text such as 'RMSN>SSM>GN', got {text!r}")
        if text.startswith("preset:"):
            return preset(text.removeprefix("preset:").strip())
        if text in ATTENTION:
            return AttentionArm.named(text)
        main, *further = text.split("+")
        parts = [part.strip() for part in main.replace("→", ">").split(">")]
        if len(parts) != 3 or parts[1] not in ("SSM", "MHA"):
            from mambanorm.norms import NORMS

            guess = nearest(text, [*AUTONORM, *(f"{a}>SSM>{b}" for a in NORMS for b in NORMS)])
            hint = f"; did you mean {guess!r}?" if guess else ""
            raise ValueError(
                f"unknown arm {text!r}: an arm is written N1>SSM>N2 with N1 and N2 among {', '.join(NORMS)}, "
                f"further sites follow as +SITE:NORM; or preset:NAME; of a Transformer N1>MHA>N2, or one of "
                f"{', '.join(AUTONORM)}{hint}"
            )
        if parts[1] == "MHA" and further:
            extra = "+".join(["", *further])
            raise ValueError(f"arm {text!r}: a Transformer's block has no further sites, leave out {extra}")
        kind = AttentionArm if parts[1] == "MHA" else Arm
        return kind(parts[0], parts[2], map(_site_and_norm, further))

    def __str__(self) -> str:
        return f"{self.n1}>SSM>{self.n2}{self.further}"

    @property
    def sites(self) -> dict[str, str]:
        """Site → its norm: "n1", "n2", and the further ones."""
        return {"n1": self.n1, "n2": self.n2, **dict(self.more)}

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of all its norms."""
        return tuple(self.sites.values())

    @property
    def label(self) -> str:
        """For figures: `RMSN→GN`, `RMSN→None + RMSN at B, C`."""
        by_norm: dict[str, list[str]] = {}
        for site, norm in self.more:
            by_norm.setdefault(norm, []).append(SYMBOLS.get(site, site))
        words = (f" + {norm} at {', '.join(sites)}" for norm, sites in by_norm.items())
        return f"{self.n1}→{self.n2}{''.join(words)}"

    @property
    def further(self) -> str:
        """The further sites as they are written: `+B:RMSN+gated:LN`, or ""."""
        return "".join(f"+{site}:{norm}" for site, norm in self.more)


def norm_name(name: str | None) -> str:
    """As that of the registry, which a norm of the kit need not wait for."""
    if isinstance(name, str) and name in KIT_NORMS:
        return name
    from mambanorm import norms

    return norms.norm_name(name)


def _site_and_norm(text: str) -> tuple[str, str]:
    """`"B:RMSN"` → its two halves."""
    site, colon, norm = (part.strip() for part in text.partition(":"))
    if not colon:
        raise ValueError(f"a further site is written SITE:NORM, such as B:RMSN, got {text!r}")
    return site, norm


def further_norms(more: Mapping[str, str] | Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The norms at further sites, in the order of MORE_SITES and without those that are "None".

    ValueError for a site that is none or stands there twice, and for an unknown norm.
    """
    found: dict[str, str] = {}
    for site, norm in more.items() if isinstance(more, Mapping) else more:
        if site in ("n1", "n2", "x", "scan"):
            raise ValueError(f"{site!r} is no further site: an arm names what stands around the SSM as N1>SSM>N2")
        if site not in MORE_SITES:
            raise unknown("site", site, MORE_SITES)
        if site in found:
            raise ValueError(f"site {site!r} stands there twice, with {found[site]} and {norm}: name it once")
        found[site] = norm_name(norm)
    return tuple((site, found[site]) for site in MORE_SITES if found.get(site, "None") != "None")


class AttentionArm(Arm):
    """The norms of a Transformer's block, at its attention and at its feed-forward. `name`: that of AUTONORM, or ""."""

    name = ""

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
        return self.name or f"{self.n1}>MHA>{self.n2}"

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
    "AutoNorm_DisableSelector": Variant("NormSelector", {"mode": "disable"}, "the selector switched off: LN alone"),
    "AutoNorm_RandomSelector": Variant("NormSelector", {"mode": "random"}, "random weights, new ones each step"),
    "AutoNorm_FixedSelector": Variant("NormSelector", {"mode": "fixed"}, "half of each, always: our control, not S2's"),
    "FrozenDyT": Variant("DyT", {}, "DyT alone"),
    "FrozenLN": Variant("LN", {}, "LN alone"),
    "Teacher": Variant("LN", {}, "LN alone, in a smaller model, to distil from"),
}
"""S2, §IV.B and §IV.C.2: the models that it compares. What makes a Teacher smaller is the business of its config."""

ATTENTION: dict[str, Variant] = AUTONORM | {
    "AutoNorm_Linear": Variant("NormSelector", {"linear": True}, "AutoNorm with DyT as x ⊙ α"),
    "AutoNorm_Linear_RandomSelector": Variant(
        "NormSelector", {"linear": True, "mode": "random"}, "the same, random weights"
    ),
}
"""Every arm of a Transformer that has a name of its own; x ⊙ α is how S2 writes DyT."""


def arms(*texts: str) -> list[Arm]:
    """Arms from their notation, those with SSM."""
    parts = ([*text.split("+")] for text in texts)
    return [Arm(*main.split(">SSM>"), tuple(tuple(site.split(":")) for site in more)) for main, *more in parts]


PRESETS = {name: variant._replace(arm=arms(variant.arm)[0]) for name, variant in PUBLISHED.items()}
"""Published variants by name, see basics/published.py; `arm` is an Arm."""


def preset(name: str) -> Arm:
    """The arm of a published variant. ValueError for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].arm


def preset_options(text: object) -> dict[str, dict[str, object]]:
    """The norm options that belong to an arm by its name, `"preset:Falcon-Mamba"`; {} for any other arm."""
    name = text.removeprefix("preset:").strip() if isinstance(text, str) and text.startswith("preset:") else ""
    return {site: dict(options) for site, options in PRESETS[name].options.items()} if name in PRESETS else {}


NORM_CHOICES = PAPER_NORMS[1:]  # without None, in the order of Table 1
