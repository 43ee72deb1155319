"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.advice.experiments import (
    EXPERIMENTS as EXPERIMENTS,
    measure as measure,
)
from mambanorm_study.advice.first_page import (
    HOW_TO_READ as HOW_TO_READ,
    findings as findings,
    not_fresh as not_fresh,
    what_to_do as what_to_do,
)
from mambanorm_study.advice.mistakes import (
    MISTAKES as MISTAKES,
    claimed_and_measured as claimed_and_measured,
    guesses_tested as guesses_tested,
    in_words as in_words,
    mistake_runs as mistake_runs,
    mistake_table as mistake_table,
)
from mambanorm_study.advice.recommendation import (
    Recommendation as Recommendation,
)
from mambanorm_study.advice.rules import (
    recommend as recommend,
)
from mambanorm_study.advice.which_arm import (
    against_chosen as against_chosen,
    compare as compare,
    leading as leading,
    ranking as ranking,
    rankings as rankings,
)
