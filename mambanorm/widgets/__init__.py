"""Explorers for the notebooks and for `mambanorm explore`: a few controls above one picture.

explorer.py      Explorer: the controls, the picture that follows them, and its first state where nobody can click
norms.py         explore_norms: what a norm does, over which cells, and what leaves it unmoved
block.py         explore_block: a norm at every site of the model, what it costs and what it was worth
scan.py          explore_scan: Δ, the decay rate and the input by hand; what the states keep
failure.py       explore_failure: depth × gain, and where a model with fresh weights explodes
recorded.py      what the recorded results say of one arm
"""

from mambanorm.widgets.block import explore_block
from mambanorm.widgets.explorer import Explorer
from mambanorm.widgets.failure import explore_failure
from mambanorm.widgets.norms import explore_norms
from mambanorm.widgets.scan import explore_scan

EXPLORERS = {
    "What a norm does": explore_norms,
    "A norm at every site": explore_block,
    "What a scan keeps": explore_scan,
    "Where a deep model explodes": explore_failure,
}
"""Title → the function that makes the explorer, in the order of `mambanorm explore`."""

__all__ = ["EXPLORERS", "Explorer", *(make.__name__ for make in EXPLORERS.values())]
