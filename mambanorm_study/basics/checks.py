"""Checks and errors of the study."""

from mambanorm.errors import shown


def check_kind(name: str, value: object, kind: type, made_by: str) -> None:
    """Raise TypeError unless a value is of a type. `made_by` names the function that makes one."""
    if not isinstance(value, kind):
        raise TypeError(
            f"{name} must be a {kind.__name__}, as {made_by} makes it, got {shown(value)}"
        )


class ImportFailed(ValueError):
    """A file named by --import or MAMBANORM_IMPORT cannot be imported. Stored runs are intact."""
