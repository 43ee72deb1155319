"""`norm_options` of blocks and models: options for every norm, and options for single sites.

    {"eps": 1e-6, "B": {"affine": False}}      eps for all norms; affine for the norm at site B only

An option for every norm is passed to each norm that accepts it, so that different norms can share
one dict.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from mambanorm.arms import MORE_SITES, Arm
from mambanorm.errors import shown
from mambanorm.norms import check_options, known_options

# The keys of norm_options that name a site.
SITES_WITH_OPTIONS = ("n1", "n2", *MORE_SITES)


def common_options(norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options for every norm, without those for single sites.

    Raises ValueError if norm_options is neither a dict nor None.
    """
    known_options((), norm_options)  # only checks the type
    return {k: v for k, v in (norm_options or {}).items() if k not in SITES_WITH_OPTIONS}


def site_options(site: str, name: str, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of the norm `name` at a site; the site's options override the common ones.

    Common options that this norm does not accept are left out.
    """
    options = known_options([name], common_options(norm_options))
    options.update((norm_options or {}).get(site, {}))
    return options


def options_of_blocks(arm: Arm, norm_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of a model's norm_options that applies to the norms of its blocks."""
    return known_options(arm.norms, common_options(norm_options)) | {
        site: options
        for site, options in (norm_options or {}).items()
        if site in SITES_WITH_OPTIONS
    }


def check_arm_options(
    arm: Arm, norm_options: Mapping[str, Any] | None, norms_outside: Sequence[str | None] = ()
) -> None:
    """Check the options of an arm's norms and of the model's norms outside its blocks.

    norms_outside: names of the norms outside the blocks. Raises TypeError for an option that none
    of all these norms accepts and for options of a site without a norm, and ValueError if the
    options of a site are not a dict.
    """
    check_options((*norms_outside, *arm.norms), common_options(norm_options))
    for site, options in (norm_options or {}).items():
        if site not in SITES_WITH_OPTIONS:
            continue
        if site not in arm.sites:
            raise TypeError(
                f"norm_options for {site!r}, but arm {arm} has no norm there: "
                f"add +{site}:NORM to the arm"
            )
        if not isinstance(options, dict):
            raise ValueError(
                f"norm_options for {site!r} must be a dict such as {{'affine': False}}, "
                f"got {shown(options)}"
            )
        check_options([arm.sites[site]], options)
