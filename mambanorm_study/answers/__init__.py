"""Functions that write the answers in the notebooks from the results of the runs.

The numbers are those of the notebooks.

    first_steps.py   00 to 02: the small experiments of mambanorm_study.lessons
    one_norm.py      03 and 04: which norm leads, and at which site it is better
    two_norms.py     05, 06 and 08: the pair that validation chooses, NormVary, the paper's proposal
    inside.py        07 and 14: growth inside a model, how runs without norms end, what cures them
    vision.py        09: the same norms on images
    autonorm.py      10: the learned choice of a norm compared with LN
    verdicts.py      13 and 15: norms at further sites, a norm's card
    fresh_runs.py    03 and later: whether runs on new seeds agree with the recorded runs
    sentences.py     sentences by hand under a figure, whose numbers are checked
    phrases.py       phrases that several answers share

The functions take data frames and return Markdown or a table. They train nothing and do not read
the run store. A norm's card is a summary of one norm, see `mambanorm card`.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
