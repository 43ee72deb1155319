"""Functions that write the answers in the notebooks from the results of the runs.

    first_steps.py   00 to 02: the small experiments of mambanorm_study.lessons
    one_norm.py      03 and 04: which norm leads, and before or after the SSM
    two_norms.py     05, 06 and 08: the pair that validation chooses, NormVary, the proposal
    inside.py        07 and 14: growth inside a model, how a run without norms ends, what cures it
    vision.py        09: the same norms on images
    autonorm.py      10: the learned choice of a norm compared with LN
    verdicts.py      12, 13 and 15: which claims hold, norms at further sites, a norm's card
    fresh_runs.py    do runs on new seeds agree with the recorded runs?
    phrases.py       phrases that several answers share

The functions take frames and return Markdown or a table. They train nothing and do not read the run
store. A norm's card is a summary of one norm, see `mambanorm card`.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
