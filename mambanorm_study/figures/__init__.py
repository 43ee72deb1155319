"""Data → figures, one function a figure; nothing here trains, and nothing is shown or saved by
itself.

    accuracy.py      Figures 1 and 5–8, Table 2, IN taken apart, accuracy against time: from the run
    frame comparisons.py   the 6×6 grid, differences with their intervals, effects over the budget
    lines.py         lines over steps, rates, severities and blocks: training, Figures 9 and 10,
    NormVary's mixture lessons.py       from mambanorm_study.lessons: descent, invariances, memory,
    a block without a part clinic.py        what one batch shows of a model, the steps before a
    failure, and what cures it diagrams.py      Figures 2, 3, 4, the cross-scan, the norms on one A4
    page: from the registry and the arm notation verdicts.py      every claim with its verdict, the
    comparisons of one claim: from mambanorm_study.claims explorers.py     the pictures of the
    explorers (mambanorm_study/widgets/) colours.py       how norms and arms are told apart;
    style.py: sizes, captions, how a figure shows itself

Every function returns a matplotlib Figure that a notebook displays as the value of a cell. A
figure's file is imported when the figure is first asked for, so that nobody waits for seaborn who
draws without it.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
