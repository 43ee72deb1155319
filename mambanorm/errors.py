"""Error messages that say what was given, what is allowed, and the nearest match."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

# This environment variable lists Python files to import; they register norms or tasks of yours.
VARIABLE = "MAMBANORM_IMPORT"
# Pattern of names that can be used in arms, file names, tables, pages and terminals.
WORD = r"\w[\w.-]{0,63}"


def nearest(given: object, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to `given`, ignoring case; None if no name is similar."""
    by_lower_case = {str(name).lower(): str(name) for name in valid}
    match = get_close_matches(str(given).lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[match[0]] if match else None


def unknown(
    kind: str, given: object, valid: Iterable[str], error: type[Exception] = ValueError
) -> Exception:
    """Return an `error` that lists the valid names, to be raised for the unknown name `given`.

    `kind` is the noun for such names in the message: "task", "norm", …
    """
    names = [str(name) for name in valid]
    text = f"unknown {kind} {brief(given)}: valid are {', '.join(names)}"
    guess = nearest(given, names)
    return error(text + (f"; did you mean {guess!r}?" if guess else ""))


def brief(value: object) -> str:
    """Return `repr(value)`, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def shown(value: object) -> str:
    """Return `brief(value)` for a number, text or None, and "a TYPE" for any other value."""
    if value is None or isinstance(value, bool | int | float | str):
        return brief(value)
    return f"a {type(value).__name__}"


def check_name(what: str, value: object) -> None:
    """Raise ValueError unless the value is a text that matches WORD; the message names `what`."""
    if not isinstance(value, str) or not re.fullmatch(WORD, value):
        raise ValueError(
            f"{what} must be a word of at most 64 letters, digits and _ . -, got {shown(value)}"
        )


class NotRegistered(ValueError):
    """The name of a norm, task or other item is not registered in this process.

    A stored run that contains this name is still valid.
    """

    def __init__(self, kind: str, given: object, valid: Iterable[str]):
        hint = f"one of your own needs --import FILE, or {VARIABLE}=FILE"
        super().__init__(f"{unknown(kind, given, valid)}; {hint}")
        self.kind, self.given = kind, given
