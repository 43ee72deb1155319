"""Explorers for the notebooks and for `mambanorm explore`: a few controls above one picture.

explorers.py   Explorer: controls, the picture that they change, and a PNG for static pages
               explore_norms: what a norm does, which elements it uses, and its invariances
               explore_block: an arm with norms at any site, its parameters and recorded accuracy
               explore_scan: what the states of an SSM keep of the input
page.py        all explorers on one page, served to this machine only
"""

from mambanorm_study.widgets.explorers import (
    Explorer,
    explore_block,
    explore_norms,
    explore_scan,
)

# Title → the function that makes the explorer, in the order of `mambanorm explore`.
EXPLORERS = {
    "What a norm does": explore_norms,
    "A norm at every site": explore_block,
    "What a scan keeps": explore_scan,
}

__all__ = ["EXPLORERS", "Explorer", *(make.__name__ for make in EXPLORERS.values())]
