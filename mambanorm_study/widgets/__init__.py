"""Explorers for the notebooks and for `mambanorm explore`: a few controls above one picture.

explorers.py   Explorer: controls, the picture that they change, and a PNG for static pages
               explore_norms: what a norm does, which elements it uses, and its invariances
               explore_block: an arm with norms at any site, its parameters and recorded accuracy
               explore_scan: what the states of an SSM keep of the input
recorded.py    explore_failing_run: the values of a run that ends in NaN, step by step
               explore_larger_weights: which arms explode, over depth and gain
               explore_seed_lottery: what a study with few seeds would say
               explore_neighbours: one row's prediction while its batch changes
guess.py       Guess: questions with menus, and the reader's score
page.py        all explorers on one page, served to this machine only
"""

from mambanorm_study.widgets.explorers import (
    Explorer,
    explore_block,
    explore_norms,
    explore_scan,
)
from mambanorm_study.widgets.guess import Guess
from mambanorm_study.widgets.recorded import (
    explore_failing_run,
    explore_larger_weights,
    explore_neighbours,
    explore_seed_lottery,
)

# Title → the function that makes the explorer, in the order of `mambanorm explore`.
EXPLORERS = {
    "What a norm does": explore_norms,
    "A norm at every site": explore_block,
    "What a scan keeps": explore_scan,
    "A run that ends in NaN": explore_failing_run,
    "Depth and larger weights": explore_larger_weights,
    "A lottery of seeds": explore_seed_lottery,
    "Whose neighbours?": explore_neighbours,
}

__all__ = ["EXPLORERS", "Explorer", "Guess", *(make.__name__ for make in EXPLORERS.values())]
