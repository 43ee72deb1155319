"""mambanorm_study: what re-runs and judges the paper's study with the blocks of mambanorm.

A run passes through these stages, in this order:

    config → task → model → train → run store → frame → figure → notebook → report

    config.py, norms/, models/, tasks/   what a run is made of
    runs/                                grid, train, sweep, the run store, recorded results
    tables/, claims/                     frames and verdicts from runs
    figures/, answers/, lessons/, widgets/   what notebooks show and say
    report/, advice/, cli/               the report, which norm to take, the command line

Codes in brackets: I1…I14 are the paper's inconsistencies, listed in docs/paper.md; H1…H16 are its
claims (claims/).
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
