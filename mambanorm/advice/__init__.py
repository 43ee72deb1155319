"""Which norm when, and which mistakes? The guide (source S4) as functions, and what this kit measures of it.

framework.py               recommend: the decision framework;   rules.py: its steps;   mamba.py: from recorded verdicts
recommendation.py          what is asked, and what comes back
evidence.py                what the stored runs of the experiments say of a recommendation
blocks.py                  ConvBlock, TransformerLayer, ConvNet, SequenceNet, …: the guide's blocks, small
experiments.py             small real runs;   fitting.py: their loop and their cache
mistakes.py                the five mistakes, each a failing demo beside its mended twin; what came out, in sentences
numbers.py                 every number that the guide claims, beside the one measured here
"""

from mambanorm.advice.experiments import EXPERIMENTS, measure, spread
from mambanorm.advice.framework import recommend
from mambanorm.advice.mistakes import MISTAKES, guesses_tested, in_words, mistake_runs, mistake_table
from mambanorm.advice.numbers import claimed_and_measured, memory_table, overhead_table
from mambanorm.advice.recommendation import Reason, Recommendation

__all__ = [
    "EXPERIMENTS",
    "MISTAKES",
    "Reason",
    "Recommendation",
    "claimed_and_measured",
    "guesses_tested",
    "in_words",
    "measure",
    "memory_table",
    "mistake_runs",
    "mistake_table",
    "overhead_table",
    "recommend",
    "spread",
]
