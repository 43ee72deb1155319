"""Arms from their notation, and the norm options of published variants."""

from mambanorm.arms import PRESETS, Arm


def arms(*texts: str) -> list[Arm]:
    """Return the arms that these texts name."""
    return [Arm.parse(text) for text in texts]


def preset_options(text: object) -> dict[str, dict[str, object]]:
    """Return the norm options of `"preset:Falcon-Mamba"`, by site; {} for any other arm."""
    if not isinstance(text, str) or not text.startswith("preset:"):
        return {}
    name = text.removeprefix("preset:").strip()
    if name not in PRESETS:
        return {}
    return {site: dict(options) for site, options in PRESETS[name].options.items()}
