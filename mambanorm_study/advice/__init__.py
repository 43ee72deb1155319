"""Advice on norms: the guide *Normalization Techniques* (source S4), tested by our measurements.

recommendation.py   Question and Recommendation, the input and the output of `recommend`
rules.py            recommend: the norm for a model, by the decision framework of the guide
mamba.py            the recommendation for a Mamba block, from recorded runs
which_arm.py        ranking: which arm is best? compare: which of two arms is better?
first_page.py       the findings and the advice for README, report and docs/index.html
blocks.py           small versions of the guide's models: ConvBlock, ConvNet, SequenceNet, …
experiments.py      small runs that test the guide's advice; the results are stored
mistakes.py         the five mistakes and the numbers of the guide, compared with our runs
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
