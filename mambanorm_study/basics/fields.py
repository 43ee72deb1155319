"""Fields of a frozen dataclass that declare what values they allow.

    checked                       a field of any kind
    count, number, text, choice   fields of common kinds; several: a tuple of them
    keep_checked                  checks and converts all fields of an object

Metadata of a field:

    allows   function: is a value allowed?
    rule     the same in words, after "must be"
    keep     function that returns the value to store; may raise for a wrong value
    choices  valid names; a registry (a dict) if a user's file may add to them
    since    the day on which the field was added; "" = before the first recorded run

Neither pydantic nor attrs is shorter: their errors name no nearest match, and `since` and the
registries need the same functions.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, field, fields
from math import inf
from typing import Any

from mambanorm.errors import NotRegistered, brief, unknown


def checked(
    default: Any,
    rule: str = "",
    allows: Callable[[Any], bool] = lambda value: True,
    keep: Callable[[Any], Any] = lambda value: value,
    *,
    choices: Collection[str] = (),
    since: str = "",
) -> Any:
    """Return a field with this metadata."""
    metadata = dict(rule=rule, allows=allows, keep=keep, choices=choices, since=since)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def count(default: int, *, least: int = 1, most: float = inf, since: str = "") -> Any:
    """Return a field for a whole number.

    most: a limit beyond which a model could not be built or would take hours to build.
    """
    limit = f" and at most {most:,}" if most < inf else ""
    return checked(
        default,
        f"a whole number of at least {least}{limit}",
        lambda value: type(value) is int and least <= value <= most,
        since=since,
    )


def number(
    default: float,
    rule: str = "a finite number of at least 0",
    allows: Callable[[float], bool] = lambda value: 0 <= value < inf,
    *,
    since: str = "",
) -> Any:
    """Return a field for a number that `allows` accepts, kept as a float."""
    return checked(
        default,
        rule,
        lambda value: (
            isinstance(value, int | float) and not isinstance(value, bool) and allows(value)
        ),
        float,
        since=since,
    )


def share(default: float, *, since: str = "") -> Any:
    """Return a field for a number from 0 to below 1, kept as a float."""
    return number(default, "a number from 0 to below 1", lambda value: 0 <= value < 1, since=since)


def several(
    default: tuple, each: Field, rule: str, *, n: int | None = None, since: str = ""
) -> Any:
    """Return a field for a tuple (in JSON: a list) of values that the field `each` allows.

    n: the number of values; None = any.
    """
    allows, keep = each.metadata["allows"], each.metadata["keep"]
    return checked(
        default,
        rule,
        lambda values: (
            isinstance(values, list | tuple)
            and n in (None, len(values))
            and all(map(allows, values))
        ),
        lambda values: tuple(map(keep, values)),
        since=since,
    )


def text(
    default: str, rule: str, pattern: str, *, choices: Collection[str] = (), since: str = ""
) -> Any:
    """Return a field for a text that matches a pattern; `choices` are examples for the error."""
    return checked(
        default,
        rule,
        lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)),
        choices=choices,
        since=since,
    )


def choice(default: str, choices: Collection[str], *, since: str = "") -> Any:
    """Return a field for one of some names. A registry is read when a value is checked."""
    return checked(default, "", lambda value: value in choices, choices=choices, since=since)


def keep_checked(owner: object) -> None:
    """Check every field of an object and convert its value to the stored form.

    Raises ValueError for a value that is not allowed, NotRegistered for a name that a user's file
    may add.
    """
    values = vars(owner)  # a frozen dataclass refuses setattr
    for one in fields(owner):
        value, choices = values[one.name], one.metadata["choices"]
        if one.metadata["allows"](value):
            values[one.name] = one.metadata["keep"](value)
        elif isinstance(choices, dict) and isinstance(value, str):
            raise NotRegistered(one.name, value, choices)
        elif choices:
            raise unknown(one.name, value, choices)
        else:
            raise ValueError(f"{one.name} must be {one.metadata['rule']}, got {brief(value)}")


class Frozen(dict):
    """A dict that raises TypeError instead of changing."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError(
            "the options of a config cannot change, its run_id is made from them: use config.but(…)"
        )

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple:
        return Frozen, (dict(self),)


def options(value: Mapping[str, Any]) -> Frozen:
    """Return a frozen copy of a dict of options, as JSON would give it back."""
    return json.loads(json.dumps(dict(value)), object_hook=Frozen)
