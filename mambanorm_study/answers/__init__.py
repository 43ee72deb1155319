"""What the runs say, in words: the answer cells of the notebooks. Frames in, Markdown out.

    first_steps.py    00 to 02: the small experiments of mambanorm_study.lessons one_norm.py
    03, 04: which norm leads, after against before two_norms.py      05, 06, 08: the pair that two
    steps choose, Table 2's step taken apart, the proposal inside.py         07, 14: what grows
    inside, how a run without norms ends, which treatment keeps it finite vision.py         09: the
    same norms on images autonorm.py       10: is the learned choice better than LN? verdicts.py
    12, 13, 15: how many claims hold, which arm to take; further sites; the card of a norm words.py
    pieces of sentences that several share, and whether own runs are as expected

Every sentence is computed from the frames it is given, in the order of the questions under "Predict
first". Nothing here trains or reads the store. `gained`, `told`: a row of `tables.paired` in words.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
