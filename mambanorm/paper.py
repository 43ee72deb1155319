"""Every accuracy that the paper prints, as data: Table 1, Table 2, and the numbers of Figures 5 and 7 (§4.2, §4.4).

Accuracies are fractions here, per cent in the paper. Arms are in this kit's notation, whatever the paper's label: the
first "LN" row of each block of Table 1 is IN (I1), and `printed` keeps what the page says.

The paper's "sequence" is Breakfast (features of videos), its "vision" is ImageNet-100 with VMamba. This kit's small
tasks are neither, so only the *pattern* can be set side by side, which arm beats which, never the level (PATTERN_ONLY).
"""

from __future__ import annotations

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.errors import unknown

PATTERN_ONLY = "the pattern, not the level, is comparable"

TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}
"""What the paper's two kinds of experiment are trained on (§4.1)."""

COLUMNS = ("kind", "task", "arm", "accuracy", "sd", "source", "printed", "note")

RELABELLED = 'printed "LN", IN by the order of the rows (I1)'

# kind → norm → accuracy in per cent with the norm before, and after, the SSM
TABLE_1 = {
    "sequence": {"BN": (28.4, 28.4), "IN": (10.9, 7.0), "LN": (57.1, 59.1), "RMSN": (58.7, 60.5), "GN": (20.5, 70.1)},
    "vision": {"BN": (20.5, 67.8), "IN": (70.2, 83.8), "LN": (86.5, 86.7), "RMSN": (86.3, 84.2), "GN": (66.1, 86.8)},
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
TABLE_2_NOTE = "N1 and N2 change at once (I7); read as the sequence arms, for no row is named vision (I4)"


def paper_values(kind: str | None = None) -> pd.DataFrame:
    """One row a printed number: kind (sequence | vision), task, arm, accuracy and sd (fractions; NaN where no sd is
    printed), source, printed (the page's own label), note. `kind` keeps one of the two. ValueError for another."""
    if kind is not None and kind not in TASKS:
        raise unknown("kind of the paper's experiments", kind, TASKS)
    rows = [*_table_1(), *_printed_in_text(FIGURE_5, "Figure 5"), *_printed_in_text(FIGURE_7, "Figure 7"), *_table_2()]
    values = pd.DataFrame(rows, columns=COLUMNS)
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


def _row(kind: str, task: str, arm: str, percent: float, sd: float, source: str, printed: str, note: str = "") -> dict:
    numbers = dict(accuracy=round(percent / 100, 6), sd=sd / 100)
    return dict(kind=kind, task=task, arm=str(Arm.parse(arm)), source=source, printed=printed, note=note, **numbers)


def _table_1() -> list[dict]:
    """Twenty values: five norms, before and after, sequence and vision."""
    rows = []
    for kind, norms in TABLE_1.items():
        for norm, (before, after) in norms.items():
            label = "LN" if norm == "IN" else norm
            common = dict(kind=kind, task=TASKS[kind], sd=float("nan"), source="Table 1")
            common["note"] = TABLE_1_NOTES.get((kind, norm), "")
            rows.append(_row(arm=f"{norm}>SSM>None", percent=before, printed=f"{label}→SSM→None", **common))
            if after == FIGURE_5[kind]["None>SSM>None"]:
                common["note"] += "; equals no norm at all"
            rows.append(_row(arm=f"None>SSM>{norm}", percent=after, printed=f"None→SSM→{label}", **common))
    return rows


def _printed_in_text(values: dict[str, dict[str, float]], source: str) -> list[dict]:
    """The numbers that the text gives for a figure's bars."""
    return [
        _row(kind, TASKS[kind], arm, percent, float("nan"), source, Arm.parse(arm).label)
        for kind, arms in values.items()
        for arm, percent in arms.items()
    ]


def _table_2() -> list[dict]:
    """Eight values with their spread over three seeds."""
    return [
        _row("sequence", task, arm, mean, sd, "Table 2", label, TABLE_2_NOTE)
        for task, pair in TABLE_2.items()
        for (label, arm), (mean, sd) in zip(TABLE_2_ARMS.items(), pair, strict=True)
    ]
