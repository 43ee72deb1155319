"""Which norm when, and which mistakes? The guide (source S4) as functions, and what this kit measures of it.

rules.py                   recommend: the decision framework, one rule an architecture
recommendation.py          what is asked, and what comes back
evidence.py                what the stored runs and the recorded verdicts say of a recommendation
blocks.py                  ConvBlock, TransformerLayer, ConvNet, SequenceNet, …: the guide's blocks, small
experiments.py             small real runs, their loop and their cache
mistakes.py                the five mistakes, each a failing demo beside its mended twin; what came out, in sentences
numbers.py                 every number that the guide claims, beside the one measured here
"""

from mambanorm.advice.experiments import EXPERIMENTS, measure, spread
from mambanorm.advice.mistakes import MISTAKES, guesses_tested, in_words, mistake_runs, mistake_table
from mambanorm.advice.numbers import claimed_and_measured
from mambanorm.advice.recommendation import Reason, Recommendation
from mambanorm.advice.rules import recommend

__all__ = [
    "EXPERIMENTS",
    "MISTAKES",
    "Reason",
    "Recommendation",
    "claimed_and_measured",
    "guesses_tested",
    "in_words",
    "measure",
    "mistake_runs",
    "mistake_table",
    "recommend",
    "spread",
]
