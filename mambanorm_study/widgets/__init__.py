"""Explorers for the notebooks and for `mambanorm explore`: a few controls above one picture.

explorer.py      Explorer: the controls, the picture that follows them, and its first state where
                 nobody can click
block.py         explore_norms: what a norm does, over which cells, and what leaves it unmoved;
                 explore_block: a norm at every site of the model, what it costs and what it was
                 worth; explore_scan: what the states keep; explore_grid: the 6×6 grid of recorded
                 results, a click for its details
page.py          all of them on one page, served to this machine
"""

from mambanorm_study.widgets.block import explore_block, explore_grid, explore_norms, explore_scan
from mambanorm_study.widgets.explorer import Explorer

EXPLORERS = {
    "What a norm does": explore_norms,
    "A norm at every site": explore_block,
    "What a scan keeps": explore_scan,
    "Every pair of norms": explore_grid,
}
"""Title → the function that makes the explorer, in the order of `mambanorm explore`."""

__all__ = ["EXPLORERS", "Explorer", *(make.__name__ for make in EXPLORERS.values())]
