"""Fields of a frozen dataclass that declare their allowed values.

    checked                              a field with any check
    count, number, share, text, choice   fields for common types of values
    tuple_field                          a field for a tuple of such values
    check_and_convert                    checks and converts the values of all fields

Metadata of a field:

    allows   function that returns True for an allowed value
    rule     the allowed values in words, which follow "must be" in the error message
    convert  function that converts a value to the stored one; may raise an error for a wrong value
    choices  valid names, listed in the error message; a dict if a user's file may register more
    since    date on which the field was added; "" for a field that the first recorded runs had

pydantic and attrs would not make this shorter: their error messages suggest no nearest name, and
`since` and the registries would need the same functions.
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
    convert: Callable[[Any], Any] = lambda value: value,
    *,
    choices: Collection[str] = (),
    since: str = "",
) -> Any:
    """Return a dataclass field with a default and metadata. The module's docstring explains the
    metadata.
    """
    metadata = dict(rule=rule, allows=allows, convert=convert, choices=choices, since=since)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def count(default: int, *, least: int = 1, most: float = inf, since: str = "") -> Any:
    """Return a dataclass field for a whole number from `least` to `most`.

    `most` excludes numbers with which a model could not be built or would take hours to build.
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
    """Return a dataclass field for a number, stored as a float.

    allows: function that returns True for an allowed number. rule: the allowed numbers in words,
    for the error message.
    """
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
    """Return a dataclass field for a number from 0 to below 1, stored as a float."""
    return number(default, "a number from 0 to below 1", lambda value: 0 <= value < 1, since=since)


def tuple_field(
    default: tuple, element: Field, rule: str, *, n: int | None = None, since: str = ""
) -> Any:
    """Return a dataclass field for a tuple (a list in JSON).

    element: the field that checks and converts each value of the tuple. n: length of the tuple;
    None allows any length.
    """
    allows, convert = element.metadata["allows"], element.metadata["convert"]
    return checked(
        default,
        rule,
        lambda values: (
            isinstance(values, list | tuple)
            and n in (None, len(values))
            and all(map(allows, values))
        ),
        lambda values: tuple(map(convert, values)),
        since=since,
    )


def text(
    default: str, rule: str, pattern: str, *, choices: Collection[str] = (), since: str = ""
) -> Any:
    """Return a dataclass field for a text that matches a regular expression (`pattern`).

    choices: valid texts that the error message lists; without choices the message states `rule`.
    """
    return checked(
        default,
        rule,
        lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)),
        choices=choices,
        since=since,
    )


def choice(default: str, choices: Collection[str], *, since: str = "") -> Any:
    """Return a dataclass field for one of the names in `choices`, a collection to which names may
    be added later.
    """
    return checked(default, "", lambda value: value in choices, choices=choices, since=since)


def check_and_convert(instance: object, names: Collection[str]) -> None:
    """Check the value of each named field of a dataclass instance and convert it to the stored
    form.

    Raises ValueError for a value that is not allowed. Raises NotRegistered for an unknown name in a
    field for which a user's file may register more names.
    """
    values = vars(instance)  # changed directly, because a frozen dataclass refuses setattr
    for spec in fields(instance):
        if spec.name not in names:
            continue
        value, choices = values[spec.name], spec.metadata["choices"]
        if spec.metadata["allows"](value):
            values[spec.name] = spec.metadata["convert"](value)
        elif isinstance(choices, dict) and isinstance(value, str):
            raise NotRegistered(spec.name, value, choices)
        elif choices:
            raise unknown(spec.name, value, choices)
        else:
            raise ValueError(f"{spec.name} must be {spec.metadata['rule']}, got {brief(value)}")


class FrozenDict(dict):
    """A dict that cannot be changed: each method that would change it raises TypeError."""

    def _refuse(self, *_: object, **__: object) -> None:
        raise TypeError(
            "the options of a config cannot be changed, because its run_id is made from them: "
            "use config.but(…)"
        )

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple:
        return FrozenDict, (dict(self),)


def frozen_options(value: Mapping[str, Any]) -> FrozenDict:
    """Return a dict of options as a FrozenDict, with every value as JSON would return it."""
    return json.loads(json.dumps(dict(value)), object_hook=FrozenDict)
