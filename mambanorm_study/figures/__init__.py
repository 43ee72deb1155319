"""Functions that take data and return a matplotlib Figure, one function per figure.

    accuracy.py       Figures 1 and 5 to 8, Table 2, IN and its two halves
    panels.py         panels of test accuracy, which several figures use
    comparisons.py    the 6×6 grid, paired differences, gains at further sites, one norm among all
    lines.py          lines over learning rates, depths and severities; training curves; mistakes
    inside.py         Figures 9 and 10, Appendix B, the weights that NormVary learns
    lessons.py        the small experiments of mambanorm_study.lessons
    diagrams.py       Figures 2, 3 and 4, the cross-scan
    hero.py           the picture at the start of README and report: the block and two grids
    sheet.py          the norms on one A4 page
    verdicts.py       verdicts on the claims
    colours.py        all colours, markers and dashes
    style.py          sizes, titles and captions, and the class StudyFigure

These functions train nothing, and only `save_sheet` writes a file. Each `fig_…` function returns a
Figure, which a notebook displays as the value of a cell. A file is imported when one of its
functions is first used, so that figures without seaborn need not wait for its import.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
