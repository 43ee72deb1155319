"""What the runs say, in words: the answer cells of the notebooks. Frames in, Markdown out.

    first_steps.py    00 to 02: the small experiments of mambanorm.lessons
    one_norm.py       03, 04: which norm leads, after against before
    two_norms.py      05, 06, 08: the pair that two steps choose, Table 2's step taken apart, the proposal
    inside.py         07, 14: what grows inside, how a run without norms ends, which treatment keeps it finite
    vision.py         09: the same norms on images
    autonorm.py       10: is the learned choice better than LN?
    verdicts.py       12, 13, 15: how many claims hold, which arm to take; further sites; the card of a norm
    words.py          pieces of sentences that several share, and whether own runs are as expected

Every sentence is computed from the frames it is given, in the order of the questions under "Predict first". Nothing
here trains or reads the store. `gained`, `told`: a row of `tables.paired` in words.
"""

from mambanorm.basics.settings import names_of

PLACES, __getattr__, __dir__ = names_of(
    __name__,
    {
        "one_norm": "before_or_after difference type_of_norm",
        "two_norms": "guesses_on_pairs learned_norm proposal_or_original which_pair",
        "inside": "guesses_on_growth how_spectra_moved how_they_ended its_end what_cures why_it_works",
        "vision": "by_n2 does_it_hold",
        "autonorm": "is_choice_better robustness_said teacher_said",
        "verdicts": "authors_and_runs card_in_short guesses_on_card of_models room_said what_a_site_brings what_holds",
        "words": "replicated",
    },
)
"""What this room offers → the file that has it."""

__all__ = sorted(PLACES)
