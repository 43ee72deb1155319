"""The registry of norms: one entry each, from which tables, tests and figures are made.

A norm is one class, or function, under one decorator: `@register_norm`. `NORMS` maps a name to its
entry. The table of docs/norms.md, the tables in notebooks, the cube of axes, the tests and the
legends of figures are made from it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from torch import nn

from mambanorm.checks import check_flag
from mambanorm.errors import NotRegistered, check_word, shown, unknown
from mambanorm.norms.base import check_values
from mambanorm.norms.behaviour import CHANNELS, contradiction, measure

Factory = Callable[..., nn.Module]
AnyFactory = TypeVar("AnyFactory", bound=Factory)

# Options that every norm accepts, so that two norms can share one dict of options.
COMMON_OPTIONS: dict[str, Any] = {"eps": 1e-5, "affine": True, "groups": 4, "momentum": 0.1}


@dataclass(frozen=True)
class NormEntry:
    """What the registry knows about one norm."""

    name: str
    factory: Factory
    # LaTeX, with x at row n, position l, channel c.
    equation: str
    source: str
    # Axes of (B, L, D) over which one statistic is taken; "D/G" is a group of channels.
    axes: tuple[str, ...]
    # True if no output depends on a later position (I3), as language models and `step` need.
    causal: bool
    learnable: str
    # When to choose it, in a few words.
    use: str = ""
    # How it contradicts its declaration, if it was registered with check=False; else "".
    doubt: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `create_norm` accepts for this norm."""
        return tuple(dict.fromkeys([*COMMON_OPTIONS, *self.factory_options]))

    @property
    def factory_options(self) -> tuple[str, ...]:
        """Names of the options that its factory takes, after the number of channels."""
        return tuple(inspect.signature(self.factory).parameters)[1:]

    @property
    def built_in(self) -> bool:
        """True for a norm of mambanorm's packages, False for one of yours."""
        package = getattr(self.factory, "__module__", "").partition(".")[0]
        return package.partition("_")[0] == __name__.partition(".")[0]


NORMS: dict[str, NormEntry] = {}


@cache
def load_plugins() -> None:
    """Import what installed packages list under the entry point `mambanorm.norms`, once."""
    for plugin in entry_points(group="mambanorm.norms"):
        with suppress(ImportError):  # its dependencies are not installed
            plugin.load()


# Functions that import modules which may register norms; called before a name is refused.
LATE_REGISTRATION: list[Callable[[], object]] = [load_plugins]


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
) -> Callable[[AnyFactory], AnyFactory]:
    """Decorate a factory `(d, **options) -> nn.Module` to enter it into NORMS.

    A norm of yours is measured first (behaviour.py). Raises ValueError, with what was seen, if it
    is declared causal and looks ahead, uses other axes than declared, lets padding into its
    statistics, has a wrong gradient, returns another dtype, keeps state outside its state dict, or
    fails on (3, 6, 8) in float64. `check=False` registers it all the same; pages that name it then
    show what was seen.

    Raises ValueError, too, if the name is taken or cannot be written in an arm, and if `causal` is
    not a bool.
    """
    check_word("a norm's name", name)
    check_flag(f"causal of norm {name!r}", causal)

    def register(factory: AnyFactory) -> AnyFactory:
        if name in NORMS:
            raise ValueError(
                f"norm {name!r} is registered already: choose another name "
                f"(taken: {', '.join(NORMS)})"
            )
        if not callable(factory) or not inspect.signature(factory).parameters:
            raise ValueError(f"norm {name!r} needs a class or function of d, got {shown(factory)}")
        entry = NormEntry(name, factory, equation, source, tuple(axes), causal, learnable, use)
        if not entry.built_in:  # the tests measure those
            entry = replace(entry, doubt=_doubt(entry))
        if entry.doubt and check:
            raise ValueError(
                f"norm {name!r} is not registered: {entry.doubt}. (check=False registers it all "
                "the same, and says so wherever it is named)"
            )
        NORMS[name] = entry
        return factory

    return register


def _doubt(entry: NormEntry) -> str:
    """Measure a norm. Return how it contradicts its declaration, or ""."""
    try:
        behaviour = measure(lambda: _make(entry, CHANNELS))
    except Exception as error:  # a norm of yours may raise anything
        return f"trying it ended in {type(error).__name__}: {str(error)[:120]}"
    return contradiction(behaviour, entry.axes, entry.causal)


def norm_name(name: str | None) -> str:
    """Return the registered name; Python's None means "None".

    Raises NotRegistered, a ValueError, for an unknown name.
    """
    name = "None" if name is None else name
    if not isinstance(name, str):
        raise unknown("norm", name, NORMS)
    if name not in NORMS:
        for import_more in LATE_REGISTRATION:
            import_more()
    if name not in NORMS:
        raise NotRegistered("norm", name, NORMS)
    return name


def create_norm(name: str | None, d: int, **options: Any) -> nn.Module:
    """Return a norm for d channels; its `forward(x, lengths=None)` maps (B, L, D) to (B, L, D).

    Options: eps=1e-5, affine=True, groups=4, momentum=0.1 (weight of the new statistic, 1 − α of
    Eq. 15–16), and those of the norm. Raises ValueError for an unknown name or a bad value, and
    TypeError for an unknown option.
    """
    entry = NORMS[norm_name(name)]
    for option in options:
        if option not in entry.options:
            raise unknown(f"option of norm {entry.name}", option, entry.options, TypeError)
    return _make(entry, d, **options)


def _make(entry: NormEntry, d: int, **options: Any) -> nn.Module:
    merged = {**COMMON_OPTIONS, **options}
    check_values(d=d, **{option: merged[option] for option in COMMON_OPTIONS})
    known = {option: v for option, v in merged.items() if option in entry.factory_options}
    norm = entry.factory(d, **known)
    if not isinstance(norm, nn.Module):
        raise ValueError(
            f"the factory of norm {entry.name!r} must return an nn.Module, got {shown(norm)}"
        )
    return norm


def known_options(names: Sequence[str | None], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options that at least one of the norms knows.

    Raises ValueError if `options` is not a dict.
    """
    if options is not None and not isinstance(options, dict):
        raise ValueError(
            f"norm_options must be a dict such as {{'groups': 8}}, got {shown(options)}"
        )
    known = {option for name in names for option in NORMS[norm_name(name)].options}
    return {option: value for option, value in (options or {}).items() if option in known}


def check_options(names: Sequence[str | None], options: Mapping[str, Any] | None) -> None:
    """Raise TypeError for an option that none of the norms knows."""
    known = known_options(names, options)
    for option in options or {}:
        if option not in known:
            valid = [option for name in names for option in NORMS[norm_name(name)].options]
            norms = ", ".join(map(str, names))
            raise unknown(f"option of {norms}", option, dict.fromkeys(valid), TypeError)


def check_causal(names: Sequence[str | None], reason: str) -> None:
    """Raise ValueError for a norm whose output depends on later positions (I3).

    `reason` ends the sentence: "which …". BN is refused in eval mode, too: its running statistics
    do not look ahead, but they were trained with statistics that did.
    """
    for name in map(norm_name, names):
        if not NORMS[name].causal:
            causal = ", ".join(entry.name for entry in NORMS.values() if entry.causal)
            raise ValueError(
                f"norm {name!r} sees the future: in training at least, its statistics over "
                f"{' · '.join(NORMS[name].axes)} hold later positions, {reason}; "
                f"choose a causal norm: {causal}"
            )
