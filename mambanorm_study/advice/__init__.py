"""Advice on norms from the guide *Normalization Techniques* and from runs of this kit.

`references("S4")` returns the source of the guide.

recommendation.py   Question and Recommendation, the input and the output of `recommend`
rules.py            recommend: the norm for a model, by the decision framework of the guide
mamba.py            the recommendation for a Mamba block, from recorded runs
which_arm.py        `ranking` finds the best arm, `compare` the better of two arms
first_page.py       what was found, in five lines for README, report and docs/index.html
what_to_take.py     the advice for the same pages, computed from runs
step_times.py       how long a training step of each arm takes
blocks.py           small versions of the guide's models: ConvBlock, ConvNet, SequenceNet, …
experiments.py      small runs that test the guide's advice; the results are stored
mistakes.py         the five mistakes and the numbers of the guide, compared with runs of this kit
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
