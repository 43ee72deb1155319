"""Errors that speak the user's language: what was given, what is allowed, the nearest match."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

VARIABLE = "MAMBANORM_IMPORT"
"""The environment variable that names files to import (see extensions.py)."""


def nearest(given: object, valid: Iterable[str]) -> str | None:
    """The valid name closest to the one given (case is ignored), or None when nothing is close."""
    folded = {str(name).lower(): str(name) for name in valid}
    match = get_close_matches(str(given).lower(), folded, n=1, cutoff=0.5)
    return folded[match[0]] if match else None


def unknown(
    kind: str, given: object, valid: Iterable[str], error: type[Exception] = ValueError
) -> Exception:
    """The exception to raise for an unknown name; `kind` says what was named ("task", "norm",
    …)."""
    valid = [str(name) for name in valid]
    text = f"unknown {kind} {brief(given)}: valid are {', '.join(valid)}"
    guess = nearest(given, valid)
    return error(text + (f"; did you mean {guess!r}?" if guess else ""))


def brief(value: object) -> str:
    """A value as text for an error message, at most 60 characters of it."""
    return text if len(text := repr(value)) <= 60 else text[:57] + "…"


def shown(value: object) -> str:
    """As `brief`; of a list or an array only its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return brief(value)
    return f"a {type(value).__name__}"


WORD = r"\w[\w.-]{0,63}"
"""A name: it can stand in an arm, a file's name, a table, a page and a terminal as it is."""


def check_word(what: str, value: object) -> None:
    """Raises ValueError unless a name is a word."""
    if not isinstance(value, str) or not re.fullmatch(WORD, value):
        raise ValueError(
            f"{what} must be a word of at most 64 letters, digits and _ . -, got {shown(value)}"
        )


def check_kind(name: str, value: object, kind: type, made_by: str) -> None:
    """Raises TypeError unless a value is of its kind; `made_by` names what makes one."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, as {made_by} makes it, got {shown(value)}"
        )


class ImportFailed(ValueError):
    """A file that --import or the environment names cannot be imported. No run is damaged by
    that."""


class NotRegistered(ValueError):
    """A norm, a task or another name that is not registered in this process. What names it, such as
    a stored run, is not damaged."""

    def __init__(self, kind: str, given: object, valid: Iterable[str]):
        super().__init__(
            f"{unknown(kind, given, valid)}; one of your own needs --import FILE, or {VARIABLE}=FILE"
        )
        self.kind, self.given = kind, given
