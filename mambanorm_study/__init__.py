"""mambanorm_study: repeats the paper's study with the blocks of mambanorm and judges its claims.

A run passes through these stages, in this order:

    config → task → model → train → run store → frame → figure → notebook → report

    config.py, norms/, models/, tasks/   the parts of a run
    runs/                                grid, train, sweep, the run store, recorded results
    tables/, claims/                     data frames and verdicts, computed from runs
    figures/, answers/, lessons/, widgets/   figures, answers and experiments of the notebooks
    report/, advice/, cli/               the report, advice on norms, the command line

Codes in brackets: I1…I14 are the paper's inconsistencies, listed in docs/paper.md; H1…H16 are the
paper's claims (claims/); S1…S5 are sources (docs/sources.md).
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
