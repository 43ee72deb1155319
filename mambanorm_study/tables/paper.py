"""Every accuracy that the paper prints, read from `paper.csv`: Tables 1 and 2, and the numbers of
Figures 5 and 7, which the paper's text states. TABLE_3 is the paper's Table 3 as printed.

Arms are written in this kit's notation, e.g. RMSN>SSM>GN for RMSN before and GN after the SSM; the
column `printed` has the paper's own label. Two rows of Table 1 are both labelled "LN"; the first of
them means IN. docs/paper.md lists such contradictions in the paper, this one as I1.

The paper's "sequence" task is Breakfast (features of videos), and its "vision" task is ImageNet-100
with VMamba. Our small tasks differ from both, so only the pattern of accuracies (which arm beats
which) can be compared, not their level (PATTERN_ONLY).
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pandas as pd

from mambanorm.errors import unknown

FILE = Path(__file__).with_name("paper.csv")
PATTERN_ONLY = "the pattern, not the level, is comparable"

# Kind of the paper's experiments → main task of this kind (§4.1 of the paper).
MAIN_TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}

# The paper's Table 3. Norm → (NAP, NOP, NRR): the partition Π(X) as S₁ × S₂, the operation, and
# what is learned, with the symbols of `taxonomy_table` (norm_catalog.py).
TABLE_3 = {
    "BN": ("D × m·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "IN": ("m·D × L", "standardizing", "γ, β ∈ ℝᴰ"),
    "GN": ("m·g_D × s_D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "LN": ("m × D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "RMSN": ("m × D·L", "scaling", "γ ∈ ℝᴰ"),
}


def paper_values(kind: str | None = None) -> pd.DataFrame:
    """Return one row for each accuracy that the paper prints.

    kind: the kind of experiments, "sequence" or "vision"; None means both kinds. Columns: kind;
    task, under the paper's name; arm; accuracy and sd, fractions (sd is NaN if the paper prints
    none); source (table or figure of the paper) and section; printed, the paper's label of the arm;
    note. Raises ValueError for an unknown kind.
    """
    if kind is not None and kind not in MAIN_TASKS:
        raise unknown("kind of the paper's experiments", kind, MAIN_TASKS)
    values = pd.read_csv(FILE).fillna({"note": ""})
    fractions = ["accuracy", "sd"]
    values[fractions] = (values[fractions] / 100).round(6)  # printed in per cent
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


@lru_cache(maxsize=16)
def _accuracies(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed_weighted_sum(weights: Mapping[str, float], kind: str, task: str) -> float:
    """Return a weighted sum of the accuracies that the paper prints for several arms on one of its
    tasks, in percentage points; NaN if the paper does not print an accuracy for every arm.

    weights: arm → weight, such as {a: 1, b: −1} for a − b. kind: see `paper_values`. task: the
    paper's name of the task.
    """
    known = _accuracies(kind, task)
    if not set(weights) <= set(known):
        return float("nan")
    return round(100 * sum(weight * known[arm] for arm, weight in weights.items()), 4)
