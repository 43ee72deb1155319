"""Which norm when, and which mistakes? The guide (source S4) as functions, and our measurements.

recommendation.py   Question and Recommendation
rules.py            recommend: the decision framework of the guide as a table
mamba.py            the recommendation for a Mamba block, from recorded runs
which_arm.py        ranking and compare, by the rule of the verdicts
first_page.py       the findings and the advice of README, report and docs/index.html
blocks.py           ConvBlock, ConvNet, SequenceNet, …: the models of the guide, small
experiments.py      small runs that test the advice, and their store
mistakes.py         the five mistakes of the guide, and its numbers next to ours
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
