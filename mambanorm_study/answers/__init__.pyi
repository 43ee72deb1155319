"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.answers.autonorm import (
    is_choice_better as is_choice_better,
)
from mambanorm_study.answers.autonorm import (
    robustness_summary as robustness_summary,
)
from mambanorm_study.answers.autonorm import (
    teacher_effect as teacher_effect,
)
from mambanorm_study.answers.fresh_runs import replicated as replicated
from mambanorm_study.answers.inside import (
    guesses_on_growth as guesses_on_growth,
)
from mambanorm_study.answers.inside import (
    how_spectra_moved as how_spectra_moved,
)
from mambanorm_study.answers.inside import (
    how_they_ended as how_they_ended,
)
from mambanorm_study.answers.inside import (
    run_end as run_end,
)
from mambanorm_study.answers.inside import (
    what_cures as what_cures,
)
from mambanorm_study.answers.inside import (
    why_it_works as why_it_works,
)
from mambanorm_study.answers.one_norm import (
    before_or_after as before_or_after,
)
from mambanorm_study.answers.one_norm import (
    difference as difference,
)
from mambanorm_study.answers.one_norm import (
    type_of_norm as type_of_norm,
)
from mambanorm_study.answers.two_norms import (
    guesses_on_pairs as guesses_on_pairs,
)
from mambanorm_study.answers.two_norms import (
    learned_norm as learned_norm,
)
from mambanorm_study.answers.two_norms import (
    proposal_or_original as proposal_or_original,
)
from mambanorm_study.answers.two_norms import (
    which_pair as which_pair,
)
from mambanorm_study.answers.verdicts import (
    authors_and_runs as authors_and_runs,
)
from mambanorm_study.answers.verdicts import (
    card_in_short as card_in_short,
)
from mambanorm_study.answers.verdicts import (
    float16_headroom as float16_headroom,
)
from mambanorm_study.answers.verdicts import (
    guesses_on_card as guesses_on_card,
)
from mambanorm_study.answers.verdicts import (
    model_norms as model_norms,
)
from mambanorm_study.answers.verdicts import (
    what_a_site_brings as what_a_site_brings,
)
from mambanorm_study.answers.verdicts import (
    what_holds as what_holds,
)
from mambanorm_study.answers.vision import (
    by_n2 as by_n2,
)
from mambanorm_study.answers.vision import (
    does_it_hold as does_it_hold,
)
