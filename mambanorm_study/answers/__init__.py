"""Answers: what the runs show, in sentences, for the answer cells of the notebooks.

    first_steps.py   00 to 02: the small experiments of mambanorm_study.lessons
    one_norm.py      03 and 04: which norm leads, and before or after the SSM
    two_norms.py     05, 06 and 08: the pair that validation chooses, NormVary, the proposal
    inside.py        07 and 14: growth inside a model, the end of a run without norms, the cures
    vision.py        09: the same norms on images
    autonorm.py      10: the learned choice of a norm against LN
    verdicts.py      12, 13 and 15: the claims that hold, further sites, the card of a norm
    fresh_runs.py    are the reader's fresh runs as the recorded runs predict?
    phrases.py       phrases that several answers share

Functions take frames and return Markdown. Every sentence is computed from the frames, in the order
of the questions under "Predict first". Nothing here trains or reads the run store.
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
