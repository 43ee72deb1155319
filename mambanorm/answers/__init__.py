"""What the runs say, in words: the answer cells of notebooks 03 to 06 and 08. Frames in, Markdown out.

    type.py           03: which norm leads, and what its halves do
    position.py       04: after against before, norm by norm
    combination.py    05: the pair that two steps choose, beside others
    normvary.py       06: Table 2's step taken apart
    validation.py     08: the proposal against the original
    exercises.py      what more seeds change: of overlaps between arms, of intervals around zero

Every sentence is computed from the frames it is given. `guesses_…` answers the questions under "Predict first", in
their order; the other function of a file is the notebook's answer. Nothing here trains or reads the store.
"""

from mambanorm.answers.combination import guesses_on_pairs, search_or_normvary, which_pair
from mambanorm.answers.exercises import decided, parted
from mambanorm.answers.normvary import guesses_on_learning, learned_norm
from mambanorm.answers.position import before_or_after, guesses_on_place
from mambanorm.answers.type import guesses_on_halves, guesses_on_type, type_of_norm
from mambanorm.answers.validation import guesses_on_steps, proposal_or_original

__all__ = [
    "before_or_after",
    "decided",
    "guesses_on_halves",
    "guesses_on_learning",
    "guesses_on_pairs",
    "guesses_on_place",
    "guesses_on_steps",
    "guesses_on_type",
    "learned_norm",
    "parted",
    "proposal_or_original",
    "search_or_normvary",
    "type_of_norm",
    "which_pair",
]
