"""The registry of norms: one line each, and that line is the curriculum.

`NORMS` maps a name to its entry: how to make it, its equation, where it comes from, over which axes it takes its
statistics, whether it is causal and what it learns. The README table, the notebook table, the axes cube, the test
parametrisation and the plot legends are all made from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mambanorm.errors import NotRegistered, unknown
from mambanorm.extensions import load_imports

COMMON_OPTIONS: dict[str, Any] = {"eps": 1e-5, "affine": True, "groups": 4, "momentum": 0.1}
"""Options that every norm accepts (and uses where they mean something), so that two norms can share one set."""


@dataclass(frozen=True)
class NormEntry:
    """What the kit knows about one norm."""

    name: str
    factory: Callable[..., nn.Module]
    equation: str
    """LaTeX, with x at row n, position l, channel c."""
    source: str
    axes: tuple[str, ...]
    """Axes of (B, L, D) over which one statistic is taken; "D/G" is a group of channels."""
    causal: bool
    """True if an output depends on no later position (I3): the condition for language models and step mode."""
    learnable: str

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `create_norm` accepts for this norm: the common ones and its own."""
        own = [name for name in inspect.signature(self.factory).parameters if name != "d"]
        return tuple(dict.fromkeys([*COMMON_OPTIONS, *own]))


NORMS: dict[str, NormEntry] = {}


def register_norm(name: str, *, equation: str, source: str, axes: tuple[str, ...], causal: bool, learnable: str):
    """Decorator: enters a factory `(d, **options) -> nn.Module` into NORMS. ValueError if the name is taken."""

    def enter(factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in NORMS:
            raise ValueError(f"norm {name!r} is registered already: choose another name (taken: {', '.join(NORMS)})")
        NORMS[name] = NormEntry(name, factory, equation, source, axes, causal, learnable)
        return factory

    return enter


def norm_name(name: str | None) -> str:
    """The registered name; Python's None means "None". ValueError for an unknown one: NotRegistered."""
    name = "None" if name is None else name
    if not isinstance(name, str):
        raise unknown("norm", name, NORMS)
    if name not in NORMS:
        load_imports()  # it may be one of yours
    if name not in NORMS:
        raise NotRegistered("norm", name, NORMS)
    return name


def create_norm(name: str | None, d: int, **options: Any) -> nn.Module:
    """A norm for d channels whose `forward(x, lengths=None)` maps (B, L, D) to (B, L, D).

    Options: eps=1e-5, affine=True, groups=4, momentum=0.1 (weight of the new statistic: the paper's α = 0.9), and
    the norm's own. Raises ValueError for an unknown name or a bad value, TypeError for an unknown option.
    """
    entry = NORMS[norm_name(name)]
    for option in options:
        if option not in entry.options:
            raise unknown(f"option of norm {entry.name}", option, entry.options, TypeError)
    if not isinstance(d, int) or d < 1:
        raise ValueError(f"d must be a positive whole number of channels, got {d!r}")
    accepted = inspect.signature(entry.factory).parameters
    merged = {**COMMON_OPTIONS, **options}
    check_values(merged)
    return entry.factory(d, **{key: value for key, value in merged.items() if key in accepted})


def known_options(names: Sequence[str | None], options: dict[str, Any] | None) -> dict[str, Any]:
    """Those of the options that at least one of the norms knows: two norms can share one set of options."""
    known = {option for name in names for option in NORMS[norm_name(name)].options}
    return {key: value for key, value in (options or {}).items() if key in known}


def check_options(names: Sequence[str | None], options: dict[str, Any] | None) -> None:
    """Raises TypeError for an option that none of the norms knows."""
    for option in options or {}:
        if option not in known_options(names, options):
            valid = dict.fromkeys(known for name in names for known in NORMS[norm_name(name)].options)
            raise unknown(f"option of {', '.join(map(str, names))}", option, valid, TypeError)


def check_causal(names: Sequence[str | None], reason: str) -> None:
    """Raises ValueError for a norm whose output depends on later positions (I3), "which …": the reason against them.

    BN is refused in eval too, where its running statistics look nowhere: the training behind them saw the future.
    """
    for name in map(norm_name, names):
        if not NORMS[name].causal:
            causal = ", ".join(entry.name for entry in NORMS.values() if entry.causal)
            raise ValueError(
                f"norm {name!r} sees the future: in training at least, its statistics over "
                f"{' · '.join(NORMS[name].axes)} hold later positions, {reason}; "
                f"choose a causal norm: {causal}"
            )


def check_values(options: dict[str, Any]) -> None:
    """Raises ValueError for an eps, momentum or number of groups that no norm could use."""
    for name in ("eps", "momentum"):
        if not isinstance(options[name], int | float):
            raise ValueError(f"{name} must be a number, got {options[name]!r}")
    if not options["eps"] > 0:
        raise ValueError(f"eps must be above 0, got {options['eps']!r}")
    if not 0 <= options["momentum"] <= 1:
        raise ValueError(f"momentum is the weight of the new statistic, 0..1, got {options['momentum']!r}")
    if not isinstance(options["groups"], int) or options["groups"] < 1:
        raise ValueError(f"groups must be a positive whole number, got {options['groups']!r}")
