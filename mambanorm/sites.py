"""The norms of a block at its sites: N1 and N2, which every block has, and the further ones of an arm.

SitedBlock      base of the blocks: makes the norms, and closes a block behind its SSM
site_options    the norm options of one site;   options_of_blocks: what of a model's options its blocks need

Options. `norm_options={"eps": 1e-6}` goes to every norm that knows it; an entry under the name of a site is for the
norm there alone: `{"B": {"affine": False}}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.arms import MORE_SITES, Arm, further_norms
from mambanorm.basics.checks import shown
from mambanorm.basics.errors import unknown
from mambanorm.norms import check_options, create_norm, known_options, norm_name

SITES = ("x", "n1", "conv", "B", "C", "delta", "scan", "n2", "z", "gated", "branch", "residual")
"""What diagnostics can see of a block, in the order of computation. Behind a norm at a site they see its output."""
OWN_OPTIONS = ("n1", "n2", *MORE_SITES)
"""Under these names norm_options hold the options of one site."""


class SitedBlock(nn.Module):
    """Base of a block with the norms `n1` and `n2` and those of `more`, by site.

    A subclass has `out_proj` and calls `_make_norms` last, since a norm must never shift the random stream.
    """

    n1: nn.Module
    n2: nn.Module
    observer: Callable[[str, Tensor], None] | None = None

    def _make_norms(self, arm: Arm, norm_options: Mapping[str, Any] | None, widths: Mapping[str, int]) -> None:
        """widths: site → channels there. ValueError for a site that this block does not have."""
        if missing := [site for site, _ in arm.more if site not in widths]:
            raise unknown(f"site of {type(self).__name__}", missing[0], [s for s in MORE_SITES if s in widths])
        check_arm_options(arm, norm_options)
        self.arm, self.site_widths = arm, dict(widths)

        def make(site: str, name: str) -> nn.Module:
            return self.new_norm(site, name, site_options(site, name, norm_options))

        with torch.random.fork_rng(devices=[]):  # all arms start equal
            self.n1, self.n2 = make("n1", arm.n1), make("n2", arm.n2)
            self.more = nn.ModuleDict({site: make(site, name) for site, name in arm.more})
        self._plan()

    def new_norm(self, site: str, name: str, options: Mapping[str, Any]) -> nn.Module:
        """A norm as this block has it at a site."""
        return create_norm(name, self.site_widths[site], **options)

    def _plan(self) -> None:
        """What the fused version makes of the norms that are there; a subclass has more to say."""
        self.n1_forks, self.n2_gates = takes(self.n1, "fork"), takes(self.n2, "gate")

    def put_norm(self, site: str, name: str, norm: nn.Module | None) -> nn.Module | None:
        """Puts a norm, and its name into the arm, at a site of `site_widths`; returns what stood there. For further
        sites None means none."""
        if site in ("n1", "n2"):
            before = getattr(self, site)
            setattr(self, site, norm)
            self.arm = self.arm._replace(**{site: name})
        else:
            before = dict(self.more).get(site)
            if norm is not None:
                self.more[site] = norm
            elif before is not None:
                del self.more[site]
            self.arm = self.arm._replace(more=further_norms({**dict(self.arm.more), site: name}))
        self._plan()
        return before

    def _at(self, site: str, value: Tensor, lengths: Tensor | None = None) -> Tensor:
        """What goes on from a further site, (B, L, …): the value, behind its norm if the arm has one there."""
        return self.more[site](value, lengths) if site in self.more else value

    def _see(self, site: str, value: Tensor) -> Tensor:
        """Shows a value to the observer, if there is one."""
        if self.observer is not None:
            self.observer(site, value)
        return value

    def _close(self, x: Tensor, y: Tensor, z: Tensor, lengths: Tensor | None = None) -> Tensor:
        """From the scan's output y and the gate z, (B, L, E) each, to the block's output, (B, L, D): step by step."""
        f = self._see("n2", self.n2(self._see("scan", y), lengths))  # Eq. 1
        p = F.silu(self._see("z", self._at("z", z, lengths)))  # Eq. 2
        return self._add(x, f * p, lengths)

    def _add(self, x: Tensor, gated: Tensor, lengths: Tensor | None = None) -> Tensor:
        """From the gated output of the scan, (B, L, E), to the block's."""
        branch = self.out_proj(self._see("gated", self._at("gated", gated, lengths)))
        branch = self._see("branch", self._at("branch", branch, lengths))
        return self._see("residual", self._at("residual", x + branch, lengths))  # Eq. 3

    def _close_fused(self, x: Tensor, y: Tensor, z: Tensor | None, lengths: Tensor | None = None) -> Tensor:
        """The same in as few passes as the norms allow; z is None where the scan has gated y already."""
        if z is not None:
            y = self.n2(y, lengths, gate=z) if self.n2_gates else self.n2(y, lengths) * F.silu(z)
        y = self._at("gated", y, lengths)
        if "branch" not in self.more and not torch.is_autocast_enabled(
            x.device.type
        ):  # product and sum in one; autocast
            # would take the residual stream down to its dtype
            out = torch.addmm(x.flatten(0, 1), y.flatten(0, 1), self.out_proj.weight.t()).view_as(x)
        else:
            out = x + self._at("branch", self.out_proj(y), lengths)
        return self._at("residual", out, lengths)


def site_widths(d_model: int, d_inner: int, d_state: int, dt_rank: int) -> dict[str, int]:
    """How many channels there are at each site of a block with one selective scan."""
    widths = dict.fromkeys(("n1", "branch", "residual"), d_model) | dict(B=d_state, C=d_state, delta=dt_rank)
    return widths | dict.fromkeys(("n2", "conv", "delta_after", "z", "gated"), d_inner)


def common_options(norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options for every norm, without those of single sites. ValueError for what is no dict."""
    known_options((), norm_options)  # raises for what is no dict
    return {key: value for key, value in (norm_options or {}).items() if key not in OWN_OPTIONS}


def site_options(site: str, name: str, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of the norm `name` at a site: the common ones that it knows, then the site's own."""
    return known_options([name], common_options(norm_options)) | dict((norm_options or {}).get(site, {}))


def check_arm_options(arm: Arm, norm_options: Mapping[str, Any] | None, outside: Sequence[str | None] = ()) -> None:
    """Raises TypeError for an option that no norm of the arm (or `outside` the blocks) knows and for options of a site
    without a norm, ValueError for options of a site that are no dict."""
    check_options((*outside, *arm.norms), common_options(norm_options))
    for site in filter(OWN_OPTIONS.__contains__, norm_options or {}):
        if site not in arm.sites:
            raise TypeError(f"norm_options for {site!r}, but arm {arm} has no norm there: add +{site}:NORM to the arm")
        if not isinstance(norm_options[site], dict):
            given = shown(norm_options[site])
            raise ValueError(f"norm_options for {site!r} must be a dict such as {{'affine': False}}, got {given}")
        check_options([arm.sites[site]], norm_options[site])


def options_of_blocks(arm: Arm, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of a model's norm options those that its blocks need."""
    own = {site: options for site, options in (norm_options or {}).items() if site in OWN_OPTIONS}
    return known_options(arm.norms, common_options(norm_options)) | own


def arm_of(n1: str | None, n2: str | None, more: Mapping[str, str] | Iterable[tuple[str, str]]) -> Arm:
    """The arm of a block's arguments. ValueError for a norm or site that is not known."""
    return Arm(norm_name(n1), norm_name(n2), further_norms(more))


def takes(norm: nn.Module, option: str) -> bool:
    """Whether a norm's call has this option, as this kit's own norms do; others are called as plain modules."""
    return option in inspect.signature(norm.forward).parameters
