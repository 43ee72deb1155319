"""The registry of norms: one entry each, from which tables, tests and figures are made.

`NORMS` maps a name to its entry: how to make it, its equation, where it comes from, over which axes
it takes its statistics, whether it is causal and what it learns. The table of docs/norms.md, the
notebook table, the cube of axes, the tests and the plot legends are all made from it.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from torch import nn

from mambanorm.checks import check_flag
from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm.norms.base import check_values
from mambanorm.norms.behaviour import CHANNELS, contradiction, measured

COMMON_OPTIONS: dict[str, Any] = {"eps": 1e-5, "affine": True, "groups": 4, "momentum": 0.1}
"""Options that every norm accepts (and uses where they mean something), so that two norms can share
one set."""


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
    """True if an output depends on no later position (I3): the condition for language models and
    step mode."""
    learnable: str
    use: str = ""
    """When it is the one to take, in a few words: for the sheet of the norms."""
    doubt: str = ""
    """In what it is not what it declares, where it was registered all the same."""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `create_norm` accepts for this norm: the common ones and its
        own."""
        return tuple(dict.fromkeys([*COMMON_OPTIONS, *self.own]))

    @property
    def built_in(self) -> bool:
        """True for a norm of this distribution, False for one of yours."""
        return comes_with_the_kit(self.factory)

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the options that its factory takes, after the number of channels."""
        return tuple(inspect.signature(self.factory).parameters)[1:]


NORMS: dict[str, NormEntry] = {}


@cache
def load_plugins() -> None:
    """Import what installed packages list under the entry point `mambanorm.norms`, once."""
    for plugin in entry_points(group="mambanorm.norms"):
        with suppress(ImportError):  # its dependencies are not installed
            plugin.load()


LATE_REGISTRATION: list[Callable[[], object]] = [load_plugins]
"""Called before a name is refused as unknown: they import modules that may register it."""


def register_norm(
    name: str,
    *,
    equation: str,
    source: str,
    axes: tuple[str, ...],
    causal: bool,
    learnable: str,
    use: str = "",
    check: bool = True,
):
    """Decorator: enters a factory `(d, **options) -> nn.Module` into NORMS, if the norm is what it
    declares.

    A norm is tried first (behaviour.py). ValueError, with the position that shows it, for one that
    is declared causal and looks ahead, takes other axes than it says, lets padding into its
    statistics, has a gradient that is not that of its output, returns another dtype, keeps from
    batch to batch what is not in its state dict, or fails on (3, 6, 8) in float64; `check=False`
    registers it all the same, and pages that name it say what was found. ValueError too if the name
    is taken or cannot be written in an arm, and for a `causal` that is no bool: "no" counts as
    true.
    """
    check_word("a norm's name", name)
    check_flag(f"causal of norm {name!r}", causal)

    def enter(factory: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in NORMS:
            raise ValueError(
                f"norm {name!r} is registered already: choose another name (taken: {', '.join(NORMS)})"
            )
        if not callable(factory) or not inspect.signature(factory).parameters:
            raise ValueError(f"norm {name!r} needs a class or function of d, got {shown(factory)}")
        entry = NormEntry(name, factory, equation, source, tuple(axes), causal, learnable, use)
        if not comes_with_the_kit(factory):  # the tests try those
            entry = replace(entry, doubt=_doubt(entry))
        if entry.doubt and check:
            raise ValueError(
                f"norm {name!r} is not registered: {entry.doubt}. (check=False registers it all the same, and says so "
                "wherever it is named)"
            )
        NORMS[name] = entry
        return factory

    return enter


def comes_with_the_kit(factory: Callable[..., nn.Module]) -> bool:
    """Return True for a norm of this distribution's packages, False for one of yours."""
    package = getattr(factory, "__module__", "").partition(".")[0]
    return package.partition("_")[0] == __name__.partition(".")[0]


def _doubt(entry: NormEntry) -> str:
    """What was found when the norm was tried, "" where it is what it declares."""
    try:
        found = measured(lambda: _made(entry, CHANNELS))
    except Exception as error:  # anything that a norm of a user's own may raise
        return f"trying it ended in {type(error).__name__}: {str(error)[:120]}"
    return contradiction(found, entry.axes, entry.causal)


def norm_name(name: str | None) -> str:
    """The registered name; Python's None means "None". ValueError for an unknown one:
    NotRegistered."""
    name = "None" if name is None else name
    if not isinstance(name, str):
        raise unknown("norm", name, NORMS)
    if name not in NORMS:
        for register in LATE_REGISTRATION:
            register()
    if name not in NORMS:
        raise NotRegistered("norm", name, NORMS)
    return name


def create_norm(name: str | None, d: int, **options: Any) -> nn.Module:
    """A norm for d channels whose `forward(x, lengths=None)` maps (B, L, D) to (B, L, D).

    Options: eps=1e-5, affine=True, groups=4, momentum=0.1 (weight of the new statistic, 1 − α of
    Eq. 15–16), and the norm's own. Raises ValueError for an unknown name or a bad value, TypeError
    for an unknown option.
    """
    entry = NORMS[norm_name(name)]
    for option in options:
        if option not in entry.options:
            raise unknown(f"option of norm {entry.name}", option, entry.options, TypeError)
    return _made(entry, d, **options)


def _made(entry: NormEntry, d: int, **options: Any) -> nn.Module:
    merged = {**COMMON_OPTIONS, **options}
    check_values(d=d, **{key: merged[key] for key in COMMON_OPTIONS})
    norm = entry.factory(d, **{key: value for key, value in merged.items() if key in entry.own})
    if not isinstance(norm, nn.Module):
        raise ValueError(
            f"the factory of norm {entry.name!r} must return an nn.Module, got {shown(norm)}"
        )
    return norm


def known_options(names: Sequence[str | None], options: dict[str, Any] | None) -> dict[str, Any]:
    """Those of the options that at least one of the norms knows: two norms can share one set of
    options."""
    if options is not None and not isinstance(options, dict):
        raise ValueError(
            f"norm_options must be a dict such as {{'groups': 8}}, got {shown(options)}"
        )
    known = {option for name in names for option in NORMS[norm_name(name)].options}
    return {key: value for key, value in (options or {}).items() if key in known}


def check_options(names: Sequence[str | None], options: dict[str, Any] | None) -> None:
    """Raises TypeError for an option that none of the norms knows."""
    known = known_options(names, options)
    for option in options or {}:
        if option not in known:
            valid = dict.fromkeys(
                known for name in names for known in NORMS[norm_name(name)].options
            )
            raise unknown(f"option of {', '.join(map(str, names))}", option, valid, TypeError)


def check_causal(names: Sequence[str | None], reason: str) -> None:
    """Raises ValueError for a norm whose output depends on later positions (I3). `reason`: a
    clause, "which …".

    BN is refused in eval too. Its running statistics do not look ahead then, but the training
    behind them did.
    """
    for name in map(norm_name, names):
        if not NORMS[name].causal:
            causal = ", ".join(entry.name for entry in NORMS.values() if entry.causal)
            raise ValueError(
                f"norm {name!r} sees the future: in training at least, its statistics over "
                f"{' · '.join(NORMS[name].axes)} hold later positions, {reason}; "
                f"choose a causal norm: {causal}"
            )
