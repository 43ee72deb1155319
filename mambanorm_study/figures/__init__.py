"""Figures: data in, a matplotlib Figure out, one function per figure.

    accuracy.py       Figures 1 and 5 to 8, Table 2, the halves of IN, latency
    panels.py         the panels of test accuracy that these share
    comparisons.py    the 6×6 grid, paired differences, gains of further sites, the card of a norm
    lines.py          lines over steps, learning rates and severities; training curves; mistakes
    inside.py         Figures 9 and 10, Appendix B, NormVary's mixture
    lessons.py        the small experiments of mambanorm_study.lessons
    diagrams.py       Figures 2, 3 and 4, the cross-scan
    sheet.py          the norms on one A4 page
    verdicts.py       claims with their verdicts
    colours.py        all colours, markers and dashes
    style.py          sizes, captions, how a figure shows itself

Nothing here trains, shows or saves. Every function returns a Figure that a notebook displays as the
value of a cell. A figure's file is imported on first use, so that drawing without seaborn does not
wait for it.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
