"""Checks of arguments."""

import operator

from mambanorm.errors import brief, shown


def check_kind(name: str, value: object, kind: type, made_by: str) -> None:
    """Raise TypeError unless a value has the type `kind`.

    The message names the argument (`name`) and a function that makes such values (`made_by`).
    """
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, as {made_by} makes it, got {shown(value)}"
        )


def check_whole(what: str, value: object, least: int, most: int) -> int:
    """Return a value as an int. Raise ValueError unless the value is a whole number from `least` to
    `most`.

    what: the name of the value in the error message.
    """
    is_whole = hasattr(type(value), "__index__") and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        raise ValueError(
            f"{what} must be a whole number from {least} to {most:,}, got {brief(value)}"
        )
    return operator.index(value)
