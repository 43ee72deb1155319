"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.answers.autonorm import (
    answer_on_choice as answer_on_choice,
    teacher_effect as teacher_effect,
)
from mambanorm_study.answers.fresh_runs import replication_text as replication_text
from mambanorm_study.answers.inside import (
    growth_factors as growth_factors,
    run_end as run_end,
    treatment_table as treatment_table,
    what_cures as what_cures,
    why_it_works as why_it_works,
)
from mambanorm_study.answers.one_norm import (
    before_or_after as before_or_after,
    type_of_norm as type_of_norm,
)
from mambanorm_study.answers.sentences import (
    gap as gap,
    seen as seen,
)
from mambanorm_study.answers.two_norms import (
    answer_on_normvary as answer_on_normvary,
    guesses_on_pairs as guesses_on_pairs,
    proposal_or_original as proposal_or_original,
    which_pair as which_pair,
)
from mambanorm_study.answers.verdicts import (
    authors_and_runs as authors_and_runs,
    float16_headroom as float16_headroom,
    guesses_on_card as guesses_on_card,
    what_a_site_brings as what_a_site_brings,
)
from mambanorm_study.answers.vision import (
    accuracy_by_n2 as accuracy_by_n2,
    answer_on_images as answer_on_images,
)
