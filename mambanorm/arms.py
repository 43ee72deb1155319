"""The arm: the norms of a Mamba block and their sites, written `N1>SSM>N2`.

Configs, row labels and legends all use this notation, such as `"RMSN>SSM>GN"`. Only this module
parses it. `→` may be written for `>`.

Norms at further sites (MORE_SITES) follow with `+`: `"RMSN>SSM>None+B:RMSN+gated:RMSN"`.
`"preset:VMamba"` names a published variant; PRESETS lists the variants of the paper's survey
(§2.3, §3.2) and of later models.

Other packages can add blocks that have another mixer of positions, such as attention, instead of
the SSM: see MIXERS and NAMED_ARMS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from mambanorm.errors import nearest, unknown
from mambanorm.norms import NORMS, registered_name
from mambanorm.published import PUBLISHED

# The six norms of the paper's experiments, in the order of its Table 1.
PAPER_NORMS = ("None", "BN", "IN", "LN", "RMSN", "GN")


class Site(NamedTuple):
    """A named place in a block's forward pass, with a description of the value there.

    `width`: symbol of the size of the value's last axis; "" at a site where no norm is allowed.
    """

    width: str
    description: str


# The sites of a block, in the order of computation. An observer gets the value at a site after the
# site's norm has been applied. Widths: D = d_model, E = d_inner, N = d_state, R = dt_rank.
SITES = {
    "x": Site("", "the block's input"),
    "n1": Site("D", "the input of both branches"),
    "conv": Site("E", "the scan's input, after convolution and SiLU"),
    "B": Site("N", "the SSM's input vector B"),
    "C": Site("N", "the SSM's output vector C"),
    "delta": Site("R", "the R values from which Δ is projected"),
    "delta_after": Site("E", "Δ after the projection, before bias and softplus"),
    "step_size": Site("", "Δ itself, after bias and softplus"),
    "scan": Site("", "the scan's output, D·u included"),
    "n2": Site("E", "the main branch, before it is multiplied by the gate"),
    "z": Site("E", "the gate, before its SiLU"),
    "gated": Site("E", "the scan's output after the gate"),
    "branch": Site("D", "the block's output, before the residual is added"),
    "residual": Site("D", "the residual stream, after the sum"),
}

# Sites other than n1 and n2 at which a norm can be placed → description of the value there.
MORE_SITES = {
    name: site.description
    for name, site in SITES.items()
    if site.width and name not in ("n1", "n2")
}
# Site → symbol that figures show instead of the site's name.
SYMBOLS = {"delta": "Δ", "delta_after": "Δ′"}

MoreNorms = Mapping[str, str] | Iterable[tuple[str, str]]


class _Fields(NamedTuple):
    n1: str
    n2: str
    more: tuple[tuple[str, str], ...]


class Arm(_Fields):
    """The norms of a block: n1 before the SSM, n2 after the SSM, `more` at further sites.

    The output of n1 feeds both branches (Eq. 1 of the paper); n2 is applied before the gate. more:
    (site, norm) pairs or a dict, stored as pairs in the order of MORE_SITES, without pairs whose
    norm is "None". Raises ValueError for an unknown norm or site.
    """

    mixer = "SSM"

    def __new__(cls, n1: str | None, n2: str | None, more: MoreNorms = ()) -> Self:
        """Return an arm. Raise ValueError for an unknown name. A norm of None becomes "None"."""
        return super().__new__(cls, registered_name(n1), registered_name(n2), further_norms(more))

    @classmethod
    def parse(cls, text: str | Arm) -> Arm:
        """Return the arm that a text denotes; an Arm is returned as it is.

        Examples: `"RMSN>SSM>GN"`, `"RMSN→SSM→GN"`, `"RMSN>SSM>None+B:RMSN"`, `"preset:VMamba"` and
        the names in NAMED_ARMS. Raises ValueError for any other text and for a repeated site.
        """
        if isinstance(text, Arm):
            return text
        if not isinstance(text, str):
            raise ValueError(f"an arm is text such as 'RMSN>SSM>GN', got {text!r}")
        if text.startswith("preset:"):
            return preset(text.removeprefix("preset:").strip())
        if text in NAMED_ARMS:
            return NAMED_ARMS[text]
        main, *further = text.split("+")
        parts = [part.strip() for part in main.replace("→", ">").split(">")]
        if len(parts) != 3 or parts[1] not in MIXERS:
            raise _unknown_arm(text)
        return MIXERS[parts[1]](parts[0], parts[2], map(_site_and_norm, further))

    def __str__(self) -> str:
        return f"{self.n1}>{self.mixer}>{self.n2}{self.further_notation}"

    @property
    def sites(self) -> dict[str, str]:
        """A dict site → name of its norm, for n1, n2 and the further sites that have a norm."""
        return {"n1": self.n1, "n2": self.n2, **dict(self.more)}

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the norms at the arm's sites, in the order of `sites`."""
        return tuple(self.sites.values())

    @property
    def label(self) -> str:
        """The arm as figures label it: `RMSN→GN`, `RMSN→None + RMSN at B, C`."""
        by_norm: dict[str, list[str]] = {}
        for site, norm in self.more:
            by_norm.setdefault(norm, []).append(SYMBOLS.get(site, site))
        further = (f" + {norm} at {', '.join(sites)}" for norm, sites in by_norm.items())
        return f"{self.n1}→{self.n2}{''.join(further)}"

    @property
    def further_notation(self) -> str:
        """The norms at sites other than N₁ and N₂, such as `+B:RMSN+gated:LN`; "" if none."""
        return "".join(f"+{site}:{norm}" for site, norm in self.more)


# Name of a mixer, as written between N1 and N2 → class of the arms with this mixer.
MIXERS: dict[str, type[Arm]] = {"SSM": Arm}
# Name → arm, for arms that are not written in the notation.
NAMED_ARMS: dict[str, Arm] = {}


def _unknown_arm(text: str) -> ValueError:
    notations = " or ".join(f"N1>{mixer}>N2" for mixer in MIXERS)
    guess = nearest(text, [*NAMED_ARMS, *(f"{a}>SSM>{b}" for a in NORMS for b in NORMS)])
    hint = f"; did you mean {guess!r}?" if guess else ""
    named = f", or one of {', '.join(NAMED_ARMS)}" if NAMED_ARMS else ""
    return ValueError(
        f"unknown arm {text!r}: an arm is written {notations} with N1 and N2 among "
        f"{', '.join(NORMS)}, norms at further sites follow as +SITE:NORM; or preset:NAME{named}"
        f"{hint}"
    )


def _site_and_norm(text: str) -> tuple[str, str]:
    """Return the pair (site, norm) that a text names: ("B", "RMSN") for `"B:RMSN"`."""
    site, colon, norm = (part.strip() for part in text.partition(":"))
    if not colon:
        raise ValueError(f"a further site is written SITE:NORM, such as B:RMSN, got {text!r}")
    return site, norm


def further_norms(more: MoreNorms) -> tuple[tuple[str, str], ...]:
    """Return the (site, norm) pairs of `more` in the order of MORE_SITES, without norms "None".

    Raises ValueError for an unknown site or norm, and for a site that is named twice.
    """
    norms: dict[str, str] = {}
    for site, norm in more.items() if isinstance(more, Mapping) else more:
        if site in ("n1", "n2", "x", "scan"):
            raise ValueError(
                f"{site!r} is no further site: +SITE:NORM adds norms to N1 and N2 of N1>SSM>N2, "
                f"at one of {', '.join(MORE_SITES)}"
            )
        if site not in MORE_SITES:
            raise unknown("site", site, MORE_SITES)
        if site in norms:
            raise ValueError(
                f"site {site!r} is named twice, with {norms[site]} and {norm}: name it once"
            )
        norms[site] = registered_name(norm)
    return tuple((site, norms[site]) for site in MORE_SITES if norms.get(site, "None") != "None")


# Name → published variant: the entries of PUBLISHED with parsed arms.
PRESETS = {name: row._replace(arm=Arm.parse(row.arm)) for name, row in PUBLISHED.items()}


def preset(name: str) -> Arm:
    """Return the arm of a published variant. Raise ValueError for an unknown name."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name].arm


NORM_CHOICES = PAPER_NORMS[1:]  # without "None", in the order of the paper's Table 1
