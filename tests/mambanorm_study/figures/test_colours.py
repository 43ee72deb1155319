"""Tests of the colours: colour-blind readers can distinguish norms, and no meaning needs colour."""

import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import same_color, to_rgba

from mambanorm import NORMS
from mambanorm_study import figures
from mambanorm_study.figures.colours import (
    INK,
    MARKERS,
    PAGE_DARK,
    PAGE_LIGHT,
    PALETTE,
    ink_on,
    luminance,
    norm_marker,
)
from tests.mambanorm_study.figures.test_figures import DRAW_ARRAYS, DRAW_FRAME, frame  # noqa: F401

# Colour vision → matrix on linear RGB (Machado et al. 2009, severity 1).
VISION = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# A difference of 1 in CIEDE2000 is just visible side by side; 10 is visible at a glance.
DISTINCT = 10.0


def lab(colour: str, vision: str = "normal") -> np.ndarray:
    """Return CIE L*a*b* (D65) of `#RRGGBB`, as seen with that colour vision."""
    rgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array(
        [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.072175],
            [0.0193339, 0.119192, 0.9503041],
        ]
    )
    xyz = to_xyz @ np.clip(np.array(VISION[vision]) @ linear, 0, 1) / to_xyz.sum(1)
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: np.ndarray, two: np.ndarray) -> float:
    """Return the colour difference ΔE₀₀ of two L*a*b* triples (Sharma et al. 2005, Eq. 2–22)."""
    chroma = (np.hypot(*one[1:]) + np.hypot(*two[1:])) / 2
    stretch = 1.5 - 0.5 * np.sqrt(chroma**7 / (chroma**7 + 25**7))
    (l1, a1, b1), (l2, a2, b2) = one, two
    c1, c2 = np.hypot(stretch * a1, b1), np.hypot(stretch * a2, b2)
    h1, h2 = (np.degrees(np.arctan2(b, stretch * a)) % 360 for a, b in ((a1, b1), (a2, b2)))
    turn = (h2 - h1 + 180) % 360 - 180 if c1 * c2 else 0.0
    lightness, chroma = (l1 + l2) / 2, (c1 + c2) / 2
    hue = (h1 + turn / 2) % 360 if c1 * c2 else h1 + h2

    def cos(degrees: float) -> float:
        return np.cos(np.radians(degrees))

    t = (
        1
        - 0.17 * cos(hue - 30)
        + 0.24 * cos(2 * hue)
        + 0.32 * cos(3 * hue + 6)
        - 0.2 * cos(4 * hue - 63)
    )
    dl = (l2 - l1) / (1 + 0.015 * (lightness - 50) ** 2 / np.sqrt(20 + (lightness - 50) ** 2))
    dc = (c2 - c1) / (1 + 0.045 * chroma)
    dh = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * chroma * t)
    rotation = 2 * np.sqrt(chroma**7 / (chroma**7 + 25**7))
    rotation *= -np.sin(np.radians(60 * np.exp(-(((hue - 275) / 25) ** 2))))
    return float(np.sqrt(dl**2 + dc**2 + dh**2 + rotation * dc * dh))


@pytest.mark.parametrize(
    ("one", "two", "difference"),  # pairs 1, 7, 17, 21 and 25 of Sharma et al. 2005, Table 1
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (50, 3.1736, 0.5854), 1.0000),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
    ],
)
def test_the_difference_of_two_colours_is_the_published_one(one, two, difference):
    assert ciede2000(np.array(one), np.array(two)) == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_norms_differ_in_colour_for_every_kind_of_colour_vision(vision):
    differences = {
        (a, b): ciede2000(lab(PALETTE[a], vision), lab(PALETTE[b], vision))
        for a, b in itertools.combinations(PALETTE, 2)
    }
    assert set(PALETTE) == set(NORMS)
    assert {pair: d for pair, d in differences.items() if d < DISTINCT} == {}


def test_no_two_norms_share_a_marker():
    assert set(MARKERS) == set(NORMS)
    assert len(set(MARKERS.values())) == len(NORMS)
    assert norm_marker("registered-tomorrow") == "o"
    assert figures.norm_colour("registered-tomorrow") == figures.norm_colour("registered-tomorrow")


def test_words_on_a_norms_colour_can_be_read():
    for name, colour in PALETTE.items():
        ink = "#FFFFFF" if ink_on(colour) == "white" else INK
        assert contrast(colour, ink) > 3.5, name  # WCAG 2 asks for 3 in large type


# ------------------------------------------------------------------------------- never colour alone


def without_colour(handle) -> tuple:
    """Return the look of a legend's handle without its colour."""
    if hasattr(handle, "get_marker"):
        face = handle.get_marker() not in ("None", "", " ") and same_color(
            handle.get_markerfacecolor(), "white"
        )
        return (
            handle.get_marker(),
            str(handle._unscaled_dash_pattern),
            round(handle.get_linewidth(), 1),
            face,
        )
    return handle.get_hatch(), round(to_rgba(handle.get_facecolor())[3], 1)


def legends(fig):
    return [*fig.legends, *(ax.get_legend() for ax in fig.axes if ax.get_legend())]


def assert_legends_need_no_colour(fig):
    """Assert that no two entries of a legend look alike without colour. Return if there is one."""
    for legend in legends(fig):
        looks = {
            text.get_text(): without_colour(h)
            for text, h in zip(legend.get_texts(), legend.legend_handles, strict=True)
        }
        assert len(set(looks.values())) == len(looks), looks
    return bool(legends(fig))


ARMS = [
    *("None>SSM>None", "RMSN>SSM>None", "LN>SSM>LN", "RMSN>SSM>GN", "BN>SSM>GN"),
    *("AutoNorm", "NormVary>SSM>GN", "IN>SSM>GN"),
]


def lines_figure():
    rows = itertools.product(ARMS, range(2), ("noise", "rotation"), (0.0, 0.1))
    table = pd.DataFrame(rows, columns=["arm", "seed", "kind", "severity"])
    return figures.fig_lines(
        table.assign(accuracy=50 + table.seed), "severity", "arm", "Corrupted", panel="kind"
    )


@pytest.mark.parametrize("name", [*DRAW_FRAME, *DRAW_ARRAYS, "lines"])
def test_no_legend_needs_colour_and_every_ground_is_white(name, frame):  # noqa: F811
    draw = {**DRAW_FRAME, **{key: lambda _, key=key: DRAW_ARRAYS[key]("") for key in DRAW_ARRAYS}}
    fig = lines_figure() if name == "lines" else draw[name](frame)
    assert assert_legends_need_no_colour(fig) == (
        name not in {"headline", "type", "grid", "pairs", "sigma1"}
    )
    assert to_rgba(fig.get_facecolor()) == (1, 1, 1, 1)
    assert all(to_rgba(ax.get_facecolor())[3] == 1 for ax in fig.axes)


# ----------------------------------------------------------------------------------- light and dark


SCHEMES = {"light": PAGE_LIGHT, "dark": PAGE_DARK}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_of_the_pages_can_be_read_on_every_ground_in_light_and_dark(scheme):
    colours = SCHEMES[scheme]
    assert (luminance(colours["page"]) > 0.5) == (scheme == "light")
    pairs = itertools.product(("ink", "soft", "accent", "good", "bad"), ("page", "card", "wash"))
    contrasts = {(text, ground): contrast(colours[text], colours[ground]) for text, ground in pairs}
    assert {pair: c for pair, c in contrasts.items() if c < 4.5} == {}  # WCAG 2 AA, small type


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)
