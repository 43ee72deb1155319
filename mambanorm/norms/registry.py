"""The registry of norms, NORMS: name → entry.

A norm is one class or function, decorated with `@register_norm`. The table of docs/norms.md, the
tables in notebooks, the figure of the axes, the tests and the legends of figures are made from
NORMS.
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
from mambanorm.errors import NotRegistered, check_name, shown, unknown
from mambanorm.norms.base import check_values
from mambanorm.norms.behaviour import CHANNELS, contradiction, measure

Factory = Callable[..., nn.Module]
AnyFactory = TypeVar("AnyFactory", bound=Factory)

# Options that every norm accepts, so that two norms can share one dict of options.
COMMON_OPTIONS: dict[str, Any] = {"eps": 1e-5, "affine": True, "groups": 4, "momentum": 0.1}


@dataclass(frozen=True)
class NormEntry:
    """A norm's entry in the registry: its factory and its declared properties."""

    name: str
    factory: Factory
    # The norm's equation in LaTeX; x is the value at row n, position l and channel c.
    equation: str
    source: str
    # Axes of (B, L, D) over which one statistic is taken; "D/G" is a group of channels.
    axes: tuple[str, ...]
    # True if no output depends on a later position (I3 in docs/paper.md). Language models and
    # `step` need such norms.
    causal: bool
    learnable: str
    # When to choose this norm, in a few words.
    use: str = ""
    # How the norm contradicts its declaration; "" if `register_norm` measured no contradiction. A
    # norm with a contradiction is registered only with check=False.
    doubt: str = ""

    @property
    def options(self) -> tuple[str, ...]:
        """Names of all options that `create_norm` accepts for this norm."""
        return tuple(dict.fromkeys([*COMMON_OPTIONS, *self.factory_options]))

    @property
    def factory_options(self) -> tuple[str, ...]:
        """Names of the factory's arguments except the first, the number of channels."""
        return tuple(inspect.signature(self.factory).parameters)[1:]

    @property
    def built_in(self) -> bool:
        """True for a norm of mambanorm's packages, False for one of yours."""
        package = getattr(self.factory, "__module__", "").partition(".")[0]
        return package.partition("_")[0] == __name__.partition(".")[0]


NORMS: dict[str, NormEntry] = {}


@cache
def load_plugins() -> None:
    """Import the modules that installed packages list under the entry point `mambanorm.norms`.

    Later calls do nothing.
    """
    for plugin in entry_points(group="mambanorm.norms"):
        with suppress(ImportError):  # the plugin's dependencies may not be installed
            plugin.load()


# Functions that import modules which may register norms. They are called when a name is unknown,
# before an error is raised.
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
    """Decorate a factory `(d, **options) -> nn.Module` to enter its norm into NORMS.

    A norm of yours is measured first (behaviour.py). Raises ValueError, which says what was
    measured, if the norm looks ahead although it is declared causal, its axes are not the declared
    ones, padding enters its statistics, its gradient is wrong, its output does not have x's dtype,
    it keeps state outside its state dict, or it fails on an x of shape (3, 6, 8) in float64.
    `check=False` registers such a norm anyway; tables and reports that name it then show what was
    measured.

    Also raises ValueError if the name is registered already or cannot be written in an arm, and if
    `causal` is not a bool.
    """
    check_name("a norm's name", name)
    check_flag(f"causal of norm {name!r}", causal)

    def register(factory: AnyFactory) -> AnyFactory:
        if name in NORMS:
            raise ValueError(
                f"norm {name!r} is registered already: choose another name "
                f"(taken: {', '.join(NORMS)})"
            )
        if not callable(factory) or not inspect.signature(factory).parameters:
            raise ValueError(
                f"norm {name!r} must be a class or function of d, got {shown(factory)}"
            )
        entry = NormEntry(name, factory, equation, source, tuple(axes), causal, learnable, use)
        if not entry.built_in:  # built-in norms are measured by the tests
            entry = replace(entry, doubt=_measured_contradiction(entry))
        if entry.doubt and check:
            raise ValueError(
                f"norm {name!r} is not registered: {entry.doubt}. (check=False registers it "
                "anyway; pages that name it then show this text)"
            )
        NORMS[name] = entry
        return factory

    return register


def _measured_contradiction(entry: NormEntry) -> str:
    """Measure a norm. Return how it contradicts its declaration, or "" if it does not."""
    try:
        behaviour = measure(lambda: _build_norm(entry, CHANNELS))
    except Exception as error:  # a norm of yours may raise anything
        return f"a trial pass raised {type(error).__name__}: {str(error)[:120]}"
    return contradiction(behaviour, entry.axes, entry.causal)


def registered_name(name: str | None) -> str:
    """Return the name if a norm is registered under it; return "None" for Python's None.

    Raises NotRegistered, a ValueError, for an unknown name.
    """
    name = "None" if name is None else name
    if not isinstance(name, str):
        raise unknown("norm", name, NORMS)
    if name not in NORMS:
        for register_more in LATE_REGISTRATION:
            register_more()
    if name not in NORMS:
        raise NotRegistered("norm", name, NORMS)
    return name


def create_norm(name: str | None, d: int, **options: Any) -> nn.Module:
    """Return a norm for d channels; its `forward(x, lengths=None)` maps (B, L, d) to (B, L, d).

    Every norm accepts the options eps=1e-5, affine=True, groups=4 and momentum=0.1 (weight of the
    new statistic, 1 − α of the paper's Eq. 15–16), and ignores those that it does not use; a norm
    may have further options. Raises ValueError for an unknown name or an invalid value, and
    TypeError for an unknown option.
    """
    entry = NORMS[registered_name(name)]
    for option in options:
        if option not in entry.options:
            raise unknown(f"option of norm {entry.name}", option, entry.options, TypeError)
    return _build_norm(entry, d, **options)


def _build_norm(entry: NormEntry, d: int, **options: Any) -> nn.Module:
    merged = {**COMMON_OPTIONS, **options}
    check_values(d=d, **{option: merged[option] for option in COMMON_OPTIONS})
    used = {option: v for option, v in merged.items() if option in entry.factory_options}
    norm = entry.factory(d, **used)
    if not isinstance(norm, nn.Module):
        raise ValueError(
            f"the factory of norm {entry.name!r} must return an nn.Module, got {shown(norm)}"
        )
    return norm


def known_options(names: Sequence[str | None], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of `options` that at least one of the named norms accepts.

    Raises ValueError if `options` is neither a dict nor None.
    """
    if options is not None and not isinstance(options, dict):
        raise ValueError(
            f"norm_options must be a dict such as {{'groups': 8}}, got {shown(options)}"
        )
    known = {option for name in names for option in NORMS[registered_name(name)].options}
    return {option: value for option, value in (options or {}).items() if option in known}


def check_options(names: Sequence[str | None], options: Mapping[str, Any] | None) -> None:
    """Raise TypeError for an option that none of the named norms accepts."""
    known = known_options(names, options)
    for option in options or {}:
        if option not in known:
            valid = [option for name in names for option in NORMS[registered_name(name)].options]
            raise unknown(
                f"option of {', '.join(map(str, names))}", option, dict.fromkeys(valid), TypeError
            )


def check_causal(names: Sequence[str | None], reason: str) -> None:
    """Raise ValueError for a norm whose output depends on later positions (I3 in docs/paper.md).

    `reason` is a clause "which …" about these positions, for the message. BN is refused even for
    eval mode: its running statistics do not look ahead, but training used batch statistics, which
    do.
    """
    for name in map(registered_name, names):
        if not NORMS[name].causal:
            causal = ", ".join(entry.name for entry in NORMS.values() if entry.causal)
            raise ValueError(
                f"norm {name!r} sees the future: at least in training, its statistics over "
                f"{' · '.join(NORMS[name].axes)} contain later positions, {reason}; "
                f"choose a causal norm: {causal}"
            )
