"""How norms and arms are told apart: colour, shape and dash by name.

The colours of the paper's norms are those of Okabe & Ito 2008, which colour-blind readers can tell
apart. No norm and no arm is told by colour alone: shape, dash or hatch says it as well.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from mambanorm.arms import Arm

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
}
"""Registry name → colour, and the shape of a dot for readers and printers who do not see the
colour. No two share a shape. Any two colours differ by at least 10 in CIEDE2000, for normal colour
vision and for each dichromacy as Machado et al. 2009 simulate it: a test computes the distances."""
PALETTE = {name: colour for name, (colour, _) in LOOKS.items()}
MARKERS = {name: marker for name, (_, marker) in LOOKS.items()}
SPARE_COLOURS = (
    "#5D5FA8",
    "#7A5C3E",
    "#3E7D7A",
    "#A23B4B",
    "#6B8E23",
)  # for norms registered later

NO_NORM, SINGLE, COMBINATION = "#C8443C", "#946500", "#2F6DB5"
"""Figure 1's red, yellow and blue; the yellow is darker, for RMSN has one."""
BEST = "#C2188F"

INK, GREY, PALE = "#2B2B2B", "#767676", "#E9E9E9"


def norm_colour(name: str) -> str:
    """The colour of a norm; one registered later gets a spare colour, always the same."""
    return PALETTE.get(name) or SPARE_COLOURS[sum(map(ord, name)) % len(SPARE_COLOURS)]


def norm_marker(name: str) -> str | tuple[int, int, int]:
    """The shape of a norm's dots; a norm registered later has a round one."""
    return MARKERS.get(name, "o")


DASHES = ("-", "--", ":", "-.", (0, (6, 1)), (0, (3, 1, 1, 1, 1, 1)))


def arm_styles(labels: Sequence[str]) -> dict[str, dict]:
    """Line colour, marker and dash by label: an arm takes colour and marker of its N2 (of N1 where
    N2 is None), and arms that share them differ in their dashes; hollow markers are those of arms
    with further sites. The name of a norm takes the norm's, other labels take spare colours, and
    the norms' markers in turn."""
    styles, used, shapes = {}, Counter(), list(MARKERS.values())[1:]
    for i, label in enumerate(labels):
        try:
            arm = Arm.parse(label)
            norm = next((name for name in (arm.n2, arm.n1, *arm.norms) if name != "None"), "None")
            colour, marker, hollow = norm_colour(norm), norm_marker(norm), bool(arm.more)
        except ValueError:
            spare = (*SPARE_COLOURS, *PALETTE.values())[i % (len(SPARE_COLOURS) + len(PALETTE))]
            colour, marker = LOOKS.get(label, (spare, shapes[i % len(shapes)]))
            hollow = False
        styles[label] = dict(color=colour, marker=marker, linestyle=dash(used[marker]))
        styles[label] |= dict(markerfacecolor="white") if hollow else {}
        used[marker] += 1
    return styles


def dash(i: int) -> str | tuple[int, tuple[float, ...]]:
    """The dashes of the i-th line of one colour; no two alike, however many there are."""
    return DASHES[i] if i < len(DASHES) else (0, (i, 1.5, 1, 1.5))


def ink_on(colour: str) -> str:
    """White or INK, whichever can be read better on a ground of that colour (the contrast of WCAG
    2)."""
    light = luminance(colour)
    return "white" if 1.05 / (light + 0.05) > (light + 0.05) / (luminance(INK) + 0.05) else INK


def luminance(colour: str) -> float:
    """Relative luminance of `#RRGGBB`, from 0 (black) to 1 (white), as WCAG 2 defines it for
    sRGB."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def own_run(colour: str = INK, size: float = 6) -> dict:
    """How a run of the reader's own machine is drawn beside recorded ones: a white diamond with an
    edge."""
    edge = dict(markeredgecolor=colour, markeredgewidth=1.2)
    return dict(marker="D", markersize=size, markerfacecolor="white", linestyle="", zorder=6) | edge
