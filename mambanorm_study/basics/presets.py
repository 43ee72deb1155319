"""Arms from their notation."""

from mambanorm.arms import Arm


def arms(*texts: str) -> list[Arm]:
    """Return the arms that these texts name."""
    return [Arm.parse(text) for text in texts]
