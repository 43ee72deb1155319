"""Fields of a frozen dataclass that say once, where they are declared, what they may be.

    count, number, flag, text, choice   a field of a common kind; several: a tuple of them
    checked                             a field of any kind
    keep_checked                        the one check of all fields of an object

The metadata of a field:

    allows   whether a value may be given
    rule     the same in words: a field must be …
    keep     a function to the form in which a value is kept, None = as it is given
    choices  the names to choose from; a registry (a dict) if a file of yours may add to them
    since    the day on which the field came, "" = it was there from the first recorded run on
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
from functools import cache
from math import inf
from typing import Any

from mambanorm.errors import NotRegistered, brief, unknown


def checked(
    default: Any,
    rule: str = "",
    allows: Callable[[Any], bool] | None = None,
    keep: Callable[[Any], Any] | None = None,
    *,
    choices: Collection[str] = (),
    since: str = "",
) -> Any:
    """A field by its rule. Without `allows` whatever is given goes to `keep`, which may refuse
    it."""
    metadata = dict(rule=rule, allows=allows, keep=keep, choices=choices, since=since)
    kept = (
        dict(default_factory=default.copy) if isinstance(default, dict) else dict(default=default)
    )
    return field(**kept, metadata=metadata)


def count(default: int, *, least: int = 1, most: float = inf, since: str = "") -> Any:
    """A whole number. `most`: where more would keep a machine busy before it could say that it is
    too much."""

    rule = f"a whole number of at least {least}" + (f" and at most {most:,}" if most < inf else "")
    return checked(
        default, rule, lambda value: type(value) is int and least <= value <= most, since=since
    )


def number(
    default: float,
    *,
    above: float | None = None,
    most: float = inf,
    below: float = inf,
    since: str = "",
) -> Any:
    """A finite number from 0, or `above` one, to `most`, or `below` one; kept as a float."""
    rule = "a finite number of at least 0" if above is None else f"a finite number above {above:g}"
    if min(most, below) < inf:
        rule = "a number from 0 to " + (f"{most:g}" if most < inf else f"below {below:g}")

    def allows(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (value >= 0 if above is None else value > above) and value <= most and value < below

    return checked(default, rule, allows, float, since=since)


def several(
    default: tuple, each: Field, rule: str, *, n: int | None = None, since: str = ""
) -> Any:
    """A tuple, which JSON has as a list, of n values (None: any number) that are allowed in the
    field `each`."""
    allowed, keep = each.metadata["allows"], each.metadata["keep"]

    def allows(value: object) -> bool:
        return (
            isinstance(value, list | tuple) and n in (None, len(value)) and all(map(allowed, value))
        )

    return checked(
        default, rule, allows, lambda value: tuple(map(keep, value) if keep else value), since=since
    )


def flag(default: bool, *, since: str = "") -> Any:
    """True or False: a text such as "no" would count as True."""
    return checked(default, "True or False", lambda value: isinstance(value, bool), since=since)


def text(
    default: str, rule: str, pattern: str, *, choices: Sequence[str] = (), since: str = ""
) -> Any:
    """A text of a pattern; `choices` are then examples of it."""
    fits = re.compile(pattern).fullmatch
    allows = lambda value: isinstance(value, str) and fits(value) is not None
    return checked(default, rule, allows, choices=choices, since=since)


def choice(default: str, choices: Collection[str], *, since: str = "") -> Any:
    """Return a field with one of some names. A registry is looked at when a value is checked."""
    return checked(default, "", lambda value: value in choices, choices=choices, since=since)


def keep_checked(owner: object) -> None:
    """Checks every field of an object, and keeps its value in the form that the field says.

    Raises ValueError for a value that is not allowed, NotRegistered for a name that another file
    may add.
    """
    values = vars(owner)  # a frozen object takes them nowhere else
    for name, rule, allows, keep in _rules(type(owner)):
        if allows is not None and not allows(values[name]):
            raise _refused(name, values[name], rule)
        if keep is not None:
            values[name] = keep(values[name])


@cache
def _rules(owner: type) -> list[tuple]:
    return [
        (one.name, one.metadata, one.metadata["allows"], one.metadata["keep"])
        for one in fields(owner)
    ]


def _refused(name: str, value: object, rule: Mapping[str, Any]) -> Exception:
    if not rule["choices"]:
        return ValueError(f"{name} must be {rule['rule']}, got {brief(value)}")
    registered = isinstance(rule["choices"], Mapping) and isinstance(value, str)
    return (NotRegistered if registered else unknown)(name, value, rule["choices"])


class Frozen(dict):
    """A dict that raises TypeError instead of changing. The lists in it are tuples."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]]):
        super().__init__({name: _frozen(value) for name, value in dict(values).items()})

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError(
            "the options of a config cannot change, its run_id is made from them: use config.but(…)"
        )

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple:
        return Frozen, (dict(self),)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def options(value: Any) -> Frozen:
    """Return a dict of options as it is kept: what JSON makes of it, so that lists and tuples are
    the same, frozen."""
    try:
        return json.loads(json.dumps(value), object_hook=Frozen)
    except RecursionError:
        raise ValueError(
            "the options are nested too deep: a dict such as {'groups': 8} is needed"
        ) from None
