"""Every accuracy that the paper prints, from `paper.csv`: Tables 1 and 2, and the numbers of
Figures 5 and 7, which are in its text. Table 3 is here as printed.

docs/paper.md lists where the paper contradicts itself, with codes such as I1. Arms are in this
kit's notation. The first "LN" row of each block of Table 1 is IN (I1); `printed` has the paper's
label.

The paper's "sequence" is Breakfast (features of videos), its "vision" is ImageNet-100 with VMamba.
Our small tasks are neither, so only the pattern can be compared (which arm beats which), not the
level (PATTERN_ONLY).
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pandas as pd

from mambanorm.errors import unknown

FILE = Path(__file__).with_name("paper.csv")
PATTERN_ONLY = "the pattern, not the level, is comparable"

# The tasks of the paper's two kinds of experiments (§4.1).
MAIN_TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}

# norm → Π(X) as S₁ × S₂ (NAP), the operation (NOP), what is learned (NRR); m rows, D channels, L
# positions
TABLE_3 = {
    "BN": ("D × m·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "IN": ("m·D × L", "standardizing", "γ, β ∈ ℝᴰ"),
    "GN": ("m·g_D × s_D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "LN": ("m × D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "RMSN": ("m × D·L", "scaling", "γ ∈ ℝᴰ"),
}


def paper_values(kind: str | None = None) -> pd.DataFrame:
    """Return one row for each printed number, for one kind of experiments if `kind` is given.

    Columns: kind, "sequence" or "vision"; task, arm; accuracy and sd, fractions (sd is NaN if none
    is printed); source and section; printed, the paper's label; note. Raises ValueError for another
    kind.
    """
    if kind is not None and kind not in MAIN_TASKS:
        raise unknown("kind of the paper's experiments", kind, MAIN_TASKS)
    values = pd.read_csv(FILE).fillna({"note": ""})
    fractions = ["accuracy", "sd"]
    values[fractions] = (values[fractions] / 100).round(6)  # the file has per cent, as printed
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


@lru_cache(maxsize=16)
def _accuracies(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed_difference(weights: Mapping[str, float], kind: str, task: str) -> float:
    """Return a weighted sum, in points, of the accuracies that the paper prints for these arms on
    its task; NaN if it does not print all of them.
    """
    known = _accuracies(kind, task)
    if not set(weights) <= set(known):
        return float("nan")
    return round(100 * sum(weight * known[arm] for arm, weight in weights.items()), 4)
