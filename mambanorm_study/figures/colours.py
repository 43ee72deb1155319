"""Every colour of the kit, and the marker and dash of each norm and arm.

The colours of the paper's norms are those of Okabe & Ito 2008, which colour-blind readers can
distinguish. No meaning depends on colour alone: a marker, dash or hatch shows it too.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mambanorm.arms import Arm

# Name of a norm → colour, and marker for readers who do not see the colour. No two norms have the
# same marker. Any two colours differ by at least 10 in CIEDE2000, for normal colour vision and for
# each dichromacy as simulated by Machado et al. 2009. A test computes the distances.
LOOKS = {
    "None": ("#5F5F5F", r"$\emptyset$"),
    "BN": ("#0072B2", "o"),
    "IN": ("#56B4E9", "s"),
    "LN": ("#009E73", "^"),
    "RMSN": ("#E69F00", "v"),
    "GN": ("#D55E00", "P"),
    "NormVary": ("#CC79A7", "*"),
    "LN-DL": ("#004D3C", "<"),
    "RMSN-DL": ("#F0E442", ">"),
    "GN-token": ("#7A2B00", "p"),
    "Lp": ("#486078", "H"),
    "Scale": ("#B4A8A0", "X"),
    "Constant": ("#767FF7", "|"),
    "NormVary-fixed": ("#E6BFD0", "D"),
    "NormVary-token": ("#4B0F4C", "d"),
    "SwitchNorm": ("#440000", (6, 1, 0)),
    "DyT": ("#7A6545", "h"),
    "Derf": ("#BFDCA0", (4, 1, 0)),
    "NormSelector": ("#2A2AA8", "$w$"),
    "adaLN": ("#3611FB", "$c$"),
}
PALETTE = {name: colour for name, (colour, _) in LOOKS.items()}
MARKERS = {name: marker for name, (_, marker) in LOOKS.items()}

INDIGO, TEAL = "#5D5FA8", "#3E7D7A"
# Colours for norms without an entry in LOOKS, and for labels that are neither a norm nor an arm.
SPARE_COLOURS = (INDIGO, "#7A5C3E", TEAL, "#A23B4B", "#6B8E23")

# The red, yellow and blue of the paper's Figure 1, for arms with no norm, one type of norm and two
# types. The yellow is darker than the paper's yellow, because RMSN is drawn in yellow.
NO_NORM, SINGLE, COMBINATION = "#C8443C", "#946500", "#2F6DB5"
BEST = "#C2188F"

WHITE, INK, GREY, PALE = "#FFFFFF", "#2B2B2B", "#767676", "#E9E9E9"
AXIS_GREY, BOX_GREY, BAR_GREY = "#9A9A9A", "#8A8A8A", "#B9B9B9"
DARK_GREY, SSM_GREY, CELL_GREY = "#505050", "#3B3F46", "#F6F6F4"

# Word of a verdict (its outcome) → a colour that is readable as text on white and as background of
# white text.
WORD_COLOURS = {
    "supported": COMBINATION,
    "no gain": "#6B4FA0",
    "opposite": NO_NORM,
    "cannot tell": SINGLE,
    "no word": "#3F4A54",
}

# The colours of the report's pages and slides; templates/look.css declares them as CSS variables.
PAGE_LIGHT = {
    "page": "#F6F5F1",
    "card": WHITE,
    "ink": "#1D2129",
    "soft": "#5D6573",
    "line": "#E2E0D8",
    "accent": "#2C5F8A",
    "wash": "#EEF3F7",
    "good": "#2F7D4F",
    "bad": "#B3362B",
    "bad-wash": "#FBEEEC",
    "plate": WHITE,
}
PAGE_DARK = {
    "page": "#14171C",
    "card": "#1D2128",
    "ink": "#E6E8EC",
    "soft": "#9AA3B0",
    "line": "#2E343E",
    "accent": "#86B8E0",
    "wash": "#222B35",
    "good": "#6CC492",
    "bad": "#FF8D80",
    "bad-wash": "#34211F",
    "plate": "#1D2128",
}

DASHES = ("-", "--", ":", "-.", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)))


def norm_colour(name: str) -> str:
    """Return the colour of a norm; for a norm without an entry in LOOKS, a spare colour that
    depends on the norm's name.
    """
    return PALETTE.get(name) or SPARE_COLOURS[sum(map(ord, name)) % len(SPARE_COLOURS)]


def norm_marker(name: str) -> str | tuple[int, int, int]:
    """Return the marker of a norm; "o" for a norm without an entry in LOOKS."""
    return MARKERS.get(name, "o")


def arm_styles(labels: Sequence[str]) -> dict[str, dict]:
    """Return the line style (colour, marker, dash) of each label, for `Axes.plot`.

    An arm has the colour and marker of its N2, or of its N1 if N2 is None. Labels with the same
    marker have different dashes. Arms with norms at further sites have hollow markers. A label that
    is the name of a norm has that norm's colour and marker; any other label has a spare colour and
    marker.
    """
    styles, uses = {}, Counter()
    for i, label in enumerate(labels):
        style = _colour_and_marker(label, i)
        marker = style["marker"]
        styles[label] = {**style, "linestyle": dash(uses[marker])}
        uses[marker] += 1
    return styles


def _colour_and_marker(label: str, i: int) -> dict:
    try:
        arm = Arm.parse(label)
    except ValueError:
        colours, markers = (*SPARE_COLOURS, *PALETTE.values()), list(MARKERS.values())[1:]
        spare = colours[i % len(colours)], markers[i % len(markers)]
        colour, marker = LOOKS.get(label, spare)
        return dict(color=colour, marker=marker)
    norm = next((name for name in (arm.n2, arm.n1, *arm.norms) if name != "None"), "None")
    style = dict(color=norm_colour(norm), marker=norm_marker(norm))
    return {**style, "markerfacecolor": "white"} if arm.more else style


def dash(i: int) -> str | tuple[int, tuple[float, ...]]:
    """Return the dash pattern of the i-th line of one colour; every i has a different pattern."""
    return DASHES[i] if i < len(DASHES) else (0, (i, 1.5, 1, 1.5))


def ink_on(colour: str) -> str:
    """Return the text colour, white or INK, with the higher contrast (WCAG 2) on `colour`."""
    ground = luminance(colour) + 0.05
    return "white" if 1.05 / ground > ground / (luminance(INK) + 0.05) else INK


def luminance(colour: str) -> float:
    """Return the relative luminance of `#RRGGBB`, from 0 (black) to 1 (white), as in WCAG 2."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def fresh_marker(colour: str = INK, size: float = 6) -> dict:
    """Return the marker style of the reader's own runs, a white diamond with a coloured edge."""
    return dict(
        marker="D",
        markersize=size,
        markerfacecolor="white",
        markeredgecolor=colour,
        markeredgewidth=1.2,
        linestyle="",
        zorder=6,
    )
