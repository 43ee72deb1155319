"""Which norm when, and which mistakes? The guide (source S4) as functions, and what this kit
measures of it.

rules.py                   recommend: the decision framework as a table;   mamba.py: of a Mamba
                           block, by recorded runs
which_arm.py               ranking, compare: by the rule of the verdicts;   first_page.py: what the
                           study found
blocks.py                  ConvBlock, ConvNet, SequenceNet, …: the guide's blocks, small
experiments.py             small real runs, their loop and their cache
mistakes.py                the five mistakes, each a failing demo beside its mended twin; its
                           numbers beside ours
card.py                    norm_card: all about a norm on one page;   card_checks.py: what it does,
                           measured; card_rows.py: its comparisons;   card_page.py: NormCard, the
                           words and the page
"""

from mambanorm.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
