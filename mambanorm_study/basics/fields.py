"""Fields of a frozen dataclass that declare what values they allow.

    checked                       a field of any kind
    count, number, text, choice   fields of common kinds; several: a tuple of them
    keep_checked                  checks and converts all fields of an object

Metadata of a field:

    allows   function: is a value allowed?
    rule     the same in words: a field must be …
    keep     function that converts a value to its stored form; None = unchanged
    choices  allowed names; a registry (a dict) if a user's file may add to them
    since    the day on which the field was added; "" = before the first recorded run

Neither pydantic nor attrs is shorter: their errors name no nearest match, and `since` and the
registries need the same functions.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, field, fields
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
    """Return a field with this metadata. Without `allows`, `keep` may raise for a wrong value."""
    metadata = dict(rule=rule, allows=allows, keep=keep, choices=choices, since=since)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def count(default: int, *, least: int = 1, most: float = inf, since: str = "") -> Any:
    """Return a field for a whole number.

    most: a limit beyond which a model could not be built or would take hours to build.
    """
    rule = f"a whole number of at least {least}"
    if most < inf:
        rule += f" and at most {most:,}"

    def allows(value: object) -> bool:
        return type(value) is int and least <= value <= most

    return checked(default, rule, allows, since=since)


def number(
    default: float,
    *,
    above: float | None = None,
    most: float = inf,
    below: float = inf,
    since: str = "",
) -> Any:
    """Return a field for a finite number, kept as a float.

    It is at least 0, or greater than `above`; at most `most`; less than `below`.
    """
    if most < inf:
        rule = f"a number from 0 to {most:g}"
    elif below < inf:
        rule = f"a number from 0 to below {below:g}"
    elif above is None:
        rule = "a finite number of at least 0"
    else:
        rule = f"a finite number above {above:g}"

    def allows(value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return (value >= 0 if above is None else value > above) and value <= most and value < below

    return checked(default, rule, allows, float, since=since)


def several(
    default: tuple, each: Field, rule: str, *, n: int | None = None, since: str = ""
) -> Any:
    """Return a field for a tuple of values that the field `each` allows.

    n: the number of values; None = any. JSON has the tuple as a list.
    """
    item_allowed, keep_item = each.metadata["allows"], each.metadata["keep"]

    def allows(value: object) -> bool:
        return (
            isinstance(value, list | tuple)
            and n in (None, len(value))
            and all(map(item_allowed, value))
        )

    def keep(values: list | tuple) -> tuple:
        return tuple(map(keep_item, values) if keep_item else values)

    return checked(default, rule, allows, keep, since=since)


def text(
    default: str, rule: str, pattern: str, *, choices: Sequence[str] = (), since: str = ""
) -> Any:
    """Return a field for a text that matches a pattern; `choices` are examples for the error."""

    def allows(value: object) -> bool:
        return isinstance(value, str) and re.fullmatch(pattern, value) is not None

    return checked(default, rule, allows, choices=choices, since=since)


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
        allows, keep = one.metadata["allows"], one.metadata["keep"]
        if allows is not None and not allows(values[one.name]):
            raise _refusal(one, values[one.name])
        if keep is not None:
            values[one.name] = keep(values[one.name])


def _refusal(one: Field, value: object) -> Exception:
    """Return the exception for a value that a field does not allow."""
    choices = one.metadata["choices"]
    if not choices:
        return ValueError(f"{one.name} must be {one.metadata['rule']}, got {brief(value)}")
    if isinstance(choices, Mapping) and isinstance(value, str):
        return NotRegistered(one.name, value, choices)
    return unknown(one.name, value, choices)


class Frozen(dict):
    """A dict that raises TypeError instead of changing. Lists in it become tuples."""

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
    """Return a frozen copy of a dict of options, as JSON would give it back."""
    try:
        return json.loads(json.dumps(value), object_hook=Frozen)
    except RecursionError:
        raise ValueError(
            "the options are nested too deep: a dict such as {'groups': 8} is needed"
        ) from None
