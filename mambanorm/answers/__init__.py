"""What the runs say, in words: the answer cells of the notebooks. Frames in, Markdown out.

    first_steps.py    00 to 02: the small experiments of mambanorm.lessons
    type.py           03: which norm leads, and what its halves do
    position.py       04: after against before, norm by norm
    combination.py    05: the pair that two steps choose, beside others
    normvary.py       06: Table 2's step taken apart
    diagnostics.py    07: what grows inside, and how a run without norms ends
    validation.py     08: the proposal against the original
    vision.py         09: the same norms on images
    autonorm.py       10: is the learned choice better than LN?
    beyond.py         13: further sites and norms, and what their authors say
    verdicts.py       12: how many claims hold, and which arm to take
    clinic.py         14: what leaves the range, and which treatment keeps it finite and lets it learn
    replication.py    03 to 10, 13: whether the reader's own runs are what the recorded ones let expect
    exercises.py      what more seeds change: which differences are told from zero

Every sentence is computed from the frames it is given. `guesses_…` answers the questions under "Predict first", in
their order; the other function of a file is the notebook's answer. Nothing here trains or reads the store.
"""

from mambanorm.answers.autonorm import (
    controls_and_teacher,
    guesses_on_choice,
    is_choice_better,
    ratios_of,
    rivals_said,
    rmse_said,
    robustness_said,
)
from mambanorm.answers.beyond import authors_and_runs, guesses_beyond, of_models, room_said, what_a_site_brings
from mambanorm.answers.clinic import guesses_on_cures, how_they_ended, what_cures
from mambanorm.answers.combination import guesses_on_pairs, search_or_normvary, which_pair
from mambanorm.answers.diagnostics import (
    growth_in_short,
    guesses_on_growth,
    have_learned,
    hidden_growth,
    how_spectra_moved,
    how_the_gains_differ,
    in_models_that_train,
    its_end,
    why_it_works,
)
from mambanorm.answers.exercises import decided
from mambanorm.answers.normvary import guesses_on_learning, learned_norm
from mambanorm.answers.position import before_or_after, guesses_on_place
from mambanorm.answers.replication import replicated
from mambanorm.answers.type import (
    difference,
    guesses_on_halves,
    guesses_on_type,
    order_beside_paper,
    told_from_none,
    type_of_norm,
)
from mambanorm.answers.validation import guesses_on_steps, proposal_or_original
from mambanorm.answers.verdicts import guess_on_claims, how_well_trained, two_looks_told, what_holds
from mambanorm.answers.vision import (
    by_n2,
    does_it_hold,
    does_rank_carry_over,
    guesses_on_images,
    ranks_of,
    with_and_without,
)

__all__ = [
    "authors_and_runs",
    "before_or_after",
    "by_n2",
    "controls_and_teacher",
    "decided",
    "difference",
    "does_it_hold",
    "does_rank_carry_over",
    "growth_in_short",
    "guess_on_claims",
    "guesses_beyond",
    "guesses_on_choice",
    "guesses_on_cures",
    "guesses_on_growth",
    "guesses_on_halves",
    "guesses_on_images",
    "guesses_on_learning",
    "guesses_on_pairs",
    "guesses_on_place",
    "guesses_on_steps",
    "guesses_on_type",
    "have_learned",
    "hidden_growth",
    "how_spectra_moved",
    "how_the_gains_differ",
    "how_they_ended",
    "how_well_trained",
    "in_models_that_train",
    "is_choice_better",
    "its_end",
    "learned_norm",
    "of_models",
    "order_beside_paper",
    "proposal_or_original",
    "ranks_of",
    "ratios_of",
    "replicated",
    "rivals_said",
    "rmse_said",
    "robustness_said",
    "room_said",
    "search_or_normvary",
    "told_from_none",
    "two_looks_told",
    "type_of_norm",
    "what_a_site_brings",
    "what_cures",
    "what_holds",
    "which_pair",
    "why_it_works",
    "with_and_without",
]
