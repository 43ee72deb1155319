"""What the runs say, in words: the answer cells of the notebooks. Frames in, Markdown out.

    first_steps.py    00 to 02: the small experiments of mambanorm.lessons
    one_norm.py       03, 04: which norm leads, what its halves do, after against before
    two_norms.py      05, 06, 08: the pair that two steps choose, Table 2's step taken apart, the proposal
    inside.py         07, 14: what grows inside, how a run without norms ends, which treatment keeps it finite
    vision.py         09: the same norms on images
    autonorm.py       10: is the learned choice better than LN?
    verdicts.py       12, 15: how many claims hold, and which arm to take; the card of a norm
    beyond.py         13: further sites and norms, and what their authors say
    seeds.py          03 to 10, 13: what more seeds change, and whether the reader's own runs are as expected
    words.py          pieces of sentences that several share

Every sentence is computed from the frames it is given. `guesses_…` answers the questions under "Predict first", in
their order. Nothing here trains or reads the store.
"""

from mambanorm.basics.settings import names_of

PLACES, __getattr__, __dir__ = names_of(
    __name__,
    {
        "one_norm": "before_or_after difference guesses_on_halves guesses_on_place guesses_on_type order_beside_paper "
        "told_from_none type_of_norm",
        "two_norms": "guesses_on_learning guesses_on_pairs guesses_on_steps learned_norm proposal_or_original "
        "search_or_normvary which_pair",
        "inside": "growth_in_short guesses_on_cures guesses_on_growth have_learned how_spectra_moved how_they_ended "
        "its_end what_cures why_it_works",
        "vision": "by_n2 does_it_hold does_rank_carry_over guesses_on_images ranks_of with_and_without",
        "autonorm": "controls_and_teacher guesses_on_choice is_choice_better ratios_of rivals_said rmse_said "
        "robustness_said",
        "verdicts": "card_in_short guess_on_claims guesses_on_card how_well_trained two_looks_told what_holds",
        "beyond": "authors_and_runs guesses_beyond of_models room_said what_a_site_brings",
        "seeds": "decided replicated",
    },
)
"""What this room offers → the file that has it."""

__all__ = sorted(PLACES)
