"""Which norm when, and which mistakes? The guide (source S4) as functions, and what this kit measures of it.

rules.py                   recommend: the decision framework, one rule an architecture
recommendation.py          what is asked, and what comes back
evidence.py                what the stored runs and the recorded verdicts say of a recommendation
blocks.py                  ConvBlock, TransformerLayer, ConvNet, SequenceNet, …: the guide's blocks, small
experiments.py             small real runs, their loop and their cache
mistakes.py                the five mistakes, each a failing demo beside its mended twin; what came out, in sentences
card.py                    norm_card: all about a norm on one page;   card_checks.py: what it does, measured;
                           card_page.py: the words and the page
numbers.py                 every number that the guide claims, beside the one measured here
"""

from mambanorm.advice.card import NormCard, kit_cards, norm_card
from mambanorm.advice.card_page import cards_html
from mambanorm.advice.experiments import EXPERIMENTS, measure, spread
from mambanorm.advice.mistakes import MISTAKES, guesses_tested, in_words, mistake_runs, mistake_table
from mambanorm.advice.numbers import claimed_and_measured
from mambanorm.advice.recommendation import Reason, Recommendation
from mambanorm.advice.rules import recommend

__all__ = [
    "EXPERIMENTS",
    "MISTAKES",
    "NormCard",
    "Reason",
    "Recommendation",
    "cards_html",
    "claimed_and_measured",
    "guesses_tested",
    "in_words",
    "kit_cards",
    "measure",
    "mistake_runs",
    "mistake_table",
    "norm_card",
    "recommend",
    "spread",
]
