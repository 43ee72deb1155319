"""Every accuracy that the paper prints, as data: Table 1, Table 2, and the numbers of Figures 5 and 7 (§4.2, §4.4);
Table 3 as printed; and the places where the paper contradicts itself, each with its code.

Accuracies are fractions here, per cent in the paper. Arms are in this kit's notation, whatever the paper's label: the
first "LN" row of each block of Table 1 is IN (I1), and `printed` keeps what the page says.

The paper's "sequence" is Breakfast (features of videos), its "vision" is ImageNet-100 with VMamba. This kit's small
tasks are neither, so only the *pattern* can be compared (which arm beats which), never the level (PATTERN_ONLY).
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.basics.errors import unknown

PATTERN_ONLY = "the pattern, not the level, is comparable"

MAIN_TASKS = {"sequence": "Breakfast", "vision": "ImageNet-100"}
"""What the paper's two kinds of experiment are trained on (§4.1)."""

COLUMNS = ("kind", "task", "arm", "accuracy", "sd", "source", "section", "printed", "note")

SECTIONS = {"Table 1": "§4.3", "Table 2": "§4.5", "Figure 5": "§4.2", "Figure 7": "§4.4"}
"""Where the numbers of each source are printed: those of the two figures stand in the text."""

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
TABLE_2_NOTE = "N1 and N2 change at once (I7); read as the sequence arms, for no row is named vision (I4e)"

# norm → Π(X) as S₁ × S₂ (NAP), the operation (NOP), what is learned (NRR); m rows, D channels, L positions
TABLE_3 = {
    "BN": ("D × m·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "IN": ("m·D × L", "standardizing", "γ, β ∈ ℝᴰ"),
    "GN": ("m·g_D × s_D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "LN": ("m × D·L", "standardizing", "γ, β ∈ ℝᴰ"),
    "RMSN": ("m × D·L", "scaling", "γ ∈ ℝᴰ"),
}


class Inconsistency(NamedTuple):
    """A place where the paper is at odds with itself: what it says, and what is done here. `named` is a regular
    expression for the words that must stand beside the code wherever it is cited; a test checks this."""

    paper: str
    here: str
    named: str


INCONSISTENCIES = {
    "I1": Inconsistency(
        "Table 1 prints LN twice in each block and IN never",
        "by the order of the rows the first is IN; the printed label stands beside it",
        named="row",
    ),
    "I2": Inconsistency(
        "NormVary's Eq. 8 and 11 leave out the variance of the means",
        '`statistics="total"` has it, `"literal"` computes what is printed',
        named="variance of the means|Eq. 8 and 11",
    ),
    "I3": Inconsistency(
        "norms over the positions see the future, which a language model must not",
        "every norm says whether it is causal; `LanguageModel` refuses the others",
        named="future|later position",
    ),
    "I4a": Inconsistency(
        "§3.2 announces five methods and lists four: IN is missing",
        "all five are run",
        named="five",
    ),
    "I4b": Inconsistency(
        "§2.1 swaps M and N: it calls N the input's size, but gives x the size M and the state h the size N",
        "N is the state's size (`d_state`), as in the rest of the literature",
        named="M and N",
    ),
    "I4c": Inconsistency(
        "C.1 and C.2 are one text printed twice, so that the recipe for Breakfast is missing",
        "the recipe for Breakfast is our choice, and marked as such",
        named="Breakfast",
    ),
    "I4d": Inconsistency(
        "Appendix C refers to “Table 5”, for ImageNet-1k trained for 100 epochs; there is no Table 5 (nor 4)",
        "there are no numbers to set beside ours",
        named="Table 5",
    ),
    "I4e": Inconsistency(
        "§4.5 announces sequences and images, but no row of Table 2 is named vision",
        "its four rows are read as sequences",
        named="vision",
    ),
    "I4f": Inconsistency(
        "Bi-Mamba is cited as IN after the SSM (§2.3) and as LN on both sides (§3.2)",
        "both are kept, as two presets",
        named="Bi-Mamba",
    ),
    "I5": Inconsistency(
        "Figure 9 shows less than is concluded from it: outputs, where Appendix B speaks of weights; and four layers, "
        "where the text calls the growth exponential",
        "outputs and weights are both measured, at 4 to 24 layers",
        named="Figure 9|exponential",
    ),
    "I6": Inconsistency(
        "§4.6: without norms the SSM “consistently produces infinite values”, but §4.2 has 7.0 and 10.7 % for such "
        "models; VMamba keeps norms outside its blocks",
        "each run says whether and where it diverged; norms outside the blocks are off unless asked for",
        named="infinite|7.0 %|outside the blocks|stem_norm",
    ),
    "I7": Inconsistency(
        "Table 2 changes both norms at once",
        "the arms in between are trained as well",
        named="Table 2|at once|share|2×2",
    ),
    "I10": Inconsistency(
        "a norm after the SSM is said to keep the outputs in scale; but the gate sees the raw input, and an untrained "
        "BN in eval mode is no norm",
        "shown in notebooks 04 and 07",
        named="gate|untrained BN",
    ),
    "I14": Inconsistency(
        "Table 3 and Eq. 11–12 take LN and RMSN over all positions, Mamba's code takes them per token",
        "both are norms here: `LN` and `LN-DL`, `RMSN` and `RMSN-DL`",
        named="Table 3|per token",
    ),
}
"""Code → what is at odds: the one list of such codes (those left out belong to other texts). Notebook 00 prints it."""


def inconsistency_table() -> pd.DataFrame:
    """INCONSISTENCIES as a table: its index is the code, its columns what is at odds and what is done here."""
    rows = {code: (entry.paper, entry.here) for code, entry in INCONSISTENCIES.items()}
    columns = ["what is at odds", "what is done here"]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("code")


def paper_values(kind: str | None = None) -> pd.DataFrame:
    """One row a printed number: kind (sequence | vision), task, arm, accuracy and sd (fractions; NaN where no sd is
    printed), source and its section, printed (the page's own label), note. `kind` keeps one of the two. ValueError for
    another."""
    if kind is not None and kind not in MAIN_TASKS:
        raise unknown("kind of the paper's experiments", kind, MAIN_TASKS)
    rows = [*_table_1(), *_printed_in_text(FIGURE_5, "Figure 5"), *_printed_in_text(FIGURE_7, "Figure 7"), *_table_2()]
    values = pd.DataFrame(rows, columns=COLUMNS)
    return values if kind is None else values[values.kind == kind].reset_index(drop=True)


def _row(kind: str, task: str, arm: str, percent: float, sd: float, source: str, printed: str, note: str = "") -> dict:
    numbers = dict(accuracy=round(percent / 100, 6), sd=sd / 100)
    place = dict(source=source, section=SECTIONS[source])
    return dict(kind=kind, task=task, arm=str(Arm.parse(arm)), printed=printed, note=note, **place, **numbers)


def _table_1() -> list[dict]:
    """Twenty values: five norms, before and after, sequence and vision."""
    rows = []
    for kind, norms in TABLE_1.items():
        for norm, (before, after) in norms.items():
            label = "LN" if norm == "IN" else norm
            common = dict(kind=kind, task=MAIN_TASKS[kind], sd=float("nan"), source="Table 1")
            common["note"] = TABLE_1_NOTES.get((kind, norm), "")
            rows.append(_row(arm=f"{norm}>SSM>None", percent=before, printed=f"{label}→SSM→None", **common))
            if after == FIGURE_5[kind]["None>SSM>None"]:
                common["note"] += "; equals no norm at all"
            rows.append(_row(arm=f"None>SSM>{norm}", percent=after, printed=f"None→SSM→{label}", **common))
    return rows


def _printed_in_text(values: dict[str, dict[str, float]], source: str) -> list[dict]:
    """The numbers that the text gives for a figure's bars."""
    return [
        _row(kind, MAIN_TASKS[kind], arm, percent, float("nan"), source, Arm.parse(arm).label)
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
