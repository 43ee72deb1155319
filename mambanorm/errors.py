"""Error messages that say what was given, what is allowed, and the nearest match."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

VARIABLE = "MAMBANORM_IMPORT"
"""The environment variable that names files to import, which register norms or tasks of yours."""
WORD = r"\w[\w.-]{0,63}"
"""A name that can stand in an arm, a file name, a table, a page and a terminal."""


def nearest(given: object, valid: Iterable[str]) -> str | None:
    """Return the valid name closest to the given one, ignoring case; None if nothing is close."""
    by_lower_case = {str(name).lower(): str(name) for name in valid}
    match = get_close_matches(str(given).lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[match[0]] if match else None


def unknown(
    kind: str, given: object, valid: Iterable[str], error: type[Exception] = ValueError
) -> Exception:
    """Return the exception to raise for an unknown name. `kind`: "task", "norm", …"""
    names = [str(name) for name in valid]
    text = f"unknown {kind} {brief(given)}: valid are {', '.join(names)}"
    guess = nearest(given, names)
    return error(text + (f"; did you mean {guess!r}?" if guess else ""))


def brief(value: object) -> str:
    """Return `repr(value)`, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def shown(value: object) -> str:
    """Return `brief(value)` for a number, a text or None, and the name of the type for the rest."""
    if value is None or isinstance(value, bool | int | float | str):
        return brief(value)
    return f"a {type(value).__name__}"


def check_word(what: str, value: object) -> None:
    """Raise ValueError unless a name is a word (WORD)."""
    if not isinstance(value, str) or not re.fullmatch(WORD, value):
        raise ValueError(
            f"{what} must be a word of at most 64 letters, digits and _ . -, got {shown(value)}"
        )


def check_kind(name: str, value: object, kind: type, made_by: str) -> None:
    """Raise TypeError unless a value is of a type. `made_by` names the function that makes one."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, as {made_by} makes it, got {shown(value)}"
        )


class ImportFailed(ValueError):
    """A file named by --import or MAMBANORM_IMPORT cannot be imported. Stored runs are intact."""


class NotRegistered(ValueError):
    """A norm, a task or another name is not registered in this process.

    A stored run that names it is intact.
    """

    def __init__(self, kind: str, given: object, valid: Iterable[str]):
        how = f"one of your own needs --import FILE, or {VARIABLE}=FILE"
        super().__init__(f"{unknown(kind, given, valid)}; {how}")
        self.kind, self.given = kind, given
