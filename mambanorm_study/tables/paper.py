"""Every accuracy that the paper prints, as data: Tables 1 and 2, and the numbers of Figures 5 and 7
(§4.2, §4.4). Table 3 is here as printed.

docs/paper.md lists where the paper contradicts itself, with codes such as I1. Accuracies are
fractions here and per cent in the paper. Arms are in this kit's notation. The first "LN" row of
each block of Table 1 is IN (I1); `printed` has the paper's label.

The paper's "sequence" is Breakfast (features of videos), its "vision" is ImageNet-100 with VMamba.
Our small tasks are neither, so only the pattern can be compared (which arm beats which), not the
level (PATTERN_ONLY).
"""

import math
from collections.abc import Mapping
from functools import lru_cache

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown

PATTERN_ONLY = "the pattern, not the level, is comparable"

# The tasks of the paper's two kinds of experiments (§4.1).
MAIN_TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}

COLUMNS = ("kind", "task", "arm", "accuracy", "sd", "source", "section", "printed", "note")

# The section that prints the numbers of each source. The numbers of the two figures are in the
# text.
SECTIONS = {"Table 1": "§4.3", "Table 2": "§4.5", "Figure 5": "§4.2", "Figure 7": "§4.4"}

RELABELLED = 'printed "LN", IN by the order of the rows (I1)'

# kind → norm → accuracy in per cent with the norm before the SSM, and after it
TABLE_1 = {
    "sequence": {
        "BN": (28.4, 28.4),
        "IN": (10.9, 7.0),
        "LN": (57.1, 59.1),
        "RMSN": (58.7, 60.5),
        "GN": (20.5, 70.1),
    },
    "vision": {
        "BN": (20.5, 67.8),
        "IN": (70.2, 83.8),
        "LN": (86.5, 86.7),
        "RMSN": (86.3, 84.2),
        "GN": (66.1, 86.8),
    },
}
TABLE_1_NOTES = {
    ("sequence", "BN"): "the same number twice",
    ("sequence", "IN"): RELABELLED,
    ("vision", "IN"): RELABELLED,
    ("sequence", "GN"): "the text: +49.6 points after the SSM",
    ("vision", "GN"): "the text: +20.7 points after the SSM",
}

# kind → arm → per cent, for the bars whose numbers the paper prints
FIGURE_5 = {
    "sequence": {"None>SSM>None": 7.0, "GN>SSM>GN": 68.8, "LN>SSM>LN": 58.9},
    "vision": {"None>SSM>None": 10.7, "LN>SSM>LN": 86.6, "GN>SSM>GN": 86.3},
}
FIGURE_7 = {
    "sequence": {"BN>SSM>BN": 41.4, "LN>SSM>BN": 52.1},
    "vision": {"BN>SSM>BN": 74.6, "RMSN>SSM>BN": 87.3},
}

# task → (original, our method), each mean and standard deviation over three seeds, in per cent
TABLE_2 = {
    "ListOps": ((37.90, 0.23), (40.27, 0.15)),
    "IMDB": ((81.27, 0.75), (83.71, 0.37)),
    "CIFAR-100": ((58.33, 0.22), (62.20, 0.28)),
    "Path-64": ((83.26, 0.21), (84.02, 0.34)),
}
TABLE_2_ARMS = {"Original": "RMSN>SSM>None", "Our Method": "NormVary>SSM>GN"}
TABLE_2_NOTE = (
    "N1 and N2 change at once (I7); read as the sequence arms, for no row is named vision (I4e)"
)

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
    """Return one row for each printed number, with the columns COLUMNS.

    kind: "sequence" or "vision". accuracy and sd: fractions; sd is NaN if none is printed. printed:
    the paper's label. If `kind` is given, only its rows are returned. Raises ValueError for another
    kind.
    """
    if kind is not None and kind not in MAIN_TASKS:
        raise unknown("kind of the paper's experiments", kind, MAIN_TASKS)
    rows = [row for one in MAIN_TASKS for row in _table_1(one)]
    for source, bars in (("Figure 5", FIGURE_5), ("Figure 7", FIGURE_7)):
        for one, accuracies in bars.items():
            for arm, percent in accuracies.items():
                printed = Arm.parse(arm).label
                rows.append((one, MAIN_TASKS[one], arm, percent, math.nan, source, printed, ""))
    for task, means_and_sds in TABLE_2.items():
        for (printed, arm), numbers in zip(TABLE_2_ARMS.items(), means_and_sds, strict=True):
            rows.append(("sequence", task, arm, *numbers, "Table 2", printed, TABLE_2_NOTE))
    values = pd.DataFrame(
        rows, columns=["kind", "task", "arm", "accuracy", "sd", "source", "printed", "note"]
    )
    values["accuracy"] = (values.accuracy / 100).round(6)
    values["sd"] /= 100
    values["section"] = values.source.map(SECTIONS)
    values = values[list(COLUMNS)]
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


def _table_1(kind: str) -> list[tuple]:
    """Return the rows of Table 1 for one kind of experiments."""
    rows = []
    for norm, (before, after) in TABLE_1[kind].items():
        printed = "LN" if norm == "IN" else norm
        note = after_note = TABLE_1_NOTES.get((kind, norm), "")
        if after == FIGURE_5[kind]["None>SSM>None"]:
            after_note += "; equals no norm at all"
        facts, source = (kind, MAIN_TASKS[kind]), (math.nan, "Table 1")
        rows += [
            (*facts, f"{norm}>SSM>None", before, *source, f"{printed}→SSM→None", note),
            (*facts, f"None>SSM>{norm}", after, *source, f"None→SSM→{printed}", after_note),
        ]
    return rows


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
