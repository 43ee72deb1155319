"""Every accuracy that the paper prints, as data: Table 1, Table 2, and the numbers of Figures 5 and
7 (§4.2, §4.4); Table 3 as printed.

Codes such as I1 are those of docs/paper.md, which lists where the paper contradicts itself.
Accuracies are fractions here, per cent in the paper. Arms are in this kit's notation: the first
"LN" row of each block of Table 1 is IN (I1), and `printed` keeps the page's label.

The paper's "sequence" is Breakfast (features of videos), its "vision" is ImageNet-100 with VMamba.
This kit's small tasks are neither, so only the pattern can be compared (which arm beats which), not
the level (PATTERN_ONLY).
"""

from collections.abc import Mapping
from functools import lru_cache

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown

PATTERN_ONLY = "the pattern, not the level, is comparable"

# What the paper's two kinds of experiment are trained on (§4.1).
MAIN_TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}

COLUMNS = ("kind", "task", "arm", "accuracy", "sd", "source", "section", "printed", "note")

# Where the numbers of each source are printed: those of the two figures stand in the text.
SECTIONS = {"Table 1": "§4.3", "Table 2": "§4.5", "Figure 5": "§4.2", "Figure 7": "§4.4"}

RELABELLED = 'printed "LN", IN by the order of the rows (I1)'

# kind → norm → accuracy in per cent with the norm before, and after, the SSM
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

# kind → arm → per cent; the paper draws more bars than it prints numbers
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
    """Return one row a printed number: kind (sequence | vision), task, arm, accuracy and sd
    (fractions; NaN where no sd is printed), source and its section, printed (the page's label),
    note.

    `kind` keeps one of the two. ValueError for another.
    """
    if kind is not None and kind not in MAIN_TASKS:
        raise unknown("kind of the paper's experiments", kind, MAIN_TASKS)
    rows = [row for one in MAIN_TASKS for row in _table_1(one)]
    for source, bars in (("Figure 5", FIGURE_5), ("Figure 7", FIGURE_7)):
        for one, accuracies in bars.items():
            for arm, percent in accuracies.items():
                row = _row(one, MAIN_TASKS[one], arm, percent, source)
                rows.append(row | {"printed": Arm.parse(arm).label})
    for task, means_and_sds in TABLE_2.items():
        for (printed, arm), (mean, sd) in zip(TABLE_2_ARMS.items(), means_and_sds, strict=True):
            row = _row("sequence", task, arm, mean, "Table 2", TABLE_2_NOTE)
            rows.append(row | {"printed": printed, "sd": sd / 100})
    values = pd.DataFrame(rows, columns=COLUMNS)
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


def _table_1(kind: str) -> list[dict[str, object]]:
    """Return the rows of Table 1 of one kind of experiment."""
    rows = []
    for norm, (before, after) in TABLE_1[kind].items():
        printed = "LN" if norm == "IN" else norm
        note = after_note = TABLE_1_NOTES.get((kind, norm), "")
        if after == FIGURE_5[kind]["None>SSM>None"]:
            after_note += "; equals no norm at all"
        for arm, percent, label, remark in (
            (f"{norm}>SSM>None", before, f"{printed}→SSM→None", note),
            (f"None>SSM>{norm}", after, f"None→SSM→{printed}", after_note),
        ):
            row = _row(kind, MAIN_TASKS[kind], arm, percent, "Table 1", remark)
            rows.append(row | {"printed": label})
    return rows


def _row(
    kind: str, task: str, arm: str, percent: float, source: str, note: str = ""
) -> dict[str, object]:
    return {
        "kind": kind,
        "task": task,
        "arm": arm,
        "accuracy": round(percent / 100, 6),
        "sd": float("nan"),
        "source": source,
        "section": SECTIONS[source],
        "note": note,
    }


@lru_cache(maxsize=16)
def _accuracies(kind: str, task: str) -> dict[str, float]:
    values = paper_values(kind)
    return dict(values[values.task == task].set_index("arm").accuracy)


def printed_difference(weights: Mapping[str, float], kind: str, task: str) -> float:
    """Return a weighted sum of the accuracies that the paper prints for these arms on its task, in
    points; NaN if it does not print them all.
    """
    known = _accuracies(kind, task)
    if not set(weights) <= set(known):
        return float("nan")
    return round(100 * sum(weight * known[arm] for arm, weight in weights.items()), 4)
