"""Which norm when, and which mistakes? The guide (source S4) as functions, and what this kit measures of it.

framework.py               recommend: the decision framework;   rules.py: its steps;   mamba.py: from recorded verdicts
recommendation.py          what is asked, and what comes back
evidence.py                what the stored runs of the experiments say of a recommendation
model_check.py             check_model: the checklist on a real model;   findings.py, trace.py: what it sees and says
given.py                   a copy of the model, the first batches of a loader, the input and the targets of a batch
checks_of_structure.py     the checks of what a model is made of;   checks_of_behaviour.py: of what it does
blocks.py                  ConvBlock, TransformerLayer, ConvNet, SequenceNet, …: the guide's blocks, small
experiments.py             small real runs;   fitting.py: their loop and their cache
mistakes.py                the five mistakes, each a failing demo beside its mended twin
numbers.py                 every number that the guide claims, beside the one measured here
answers.py                 what came out, in sentences
"""

from mambanorm.advice.answers import guesses_tested, in_words
from mambanorm.advice.experiments import EXPERIMENTS, measure, spread
from mambanorm.advice.findings import Finding, Findings
from mambanorm.advice.framework import recommend
from mambanorm.advice.mistakes import MISTAKES, mistake_runs, mistake_table
from mambanorm.advice.model_check import CHECKS, check_model
from mambanorm.advice.numbers import claimed_and_measured, memory_table, overhead_table
from mambanorm.advice.recommendation import Reason, Recommendation

__all__ = [
    "CHECKS",
    "EXPERIMENTS",
    "MISTAKES",
    "Finding",
    "Findings",
    "Reason",
    "Recommendation",
    "check_model",
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
