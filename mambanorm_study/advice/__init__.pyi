"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.advice.experiments import (
    EXPERIMENTS as EXPERIMENTS,
    measure as measure,
)
from mambanorm_study.advice.first_page import (
    HOW_TO_READ as HOW_TO_READ,
    findings_table as findings_table,
    hero_grids as hero_grids,
)
from mambanorm_study.advice.mistakes import (
    MISTAKES as MISTAKES,
    answers_to_guesses as answers_to_guesses,
    claimed_and_measured as claimed_and_measured,
    mistake_runs as mistake_runs,
    mistake_table as mistake_table,
    mistakes_in_words as mistakes_in_words,
)
from mambanorm_study.advice.recommendation import (
    Recommendation as Recommendation,
)
from mambanorm_study.advice.rules import (
    recommend as recommend,
)
from mambanorm_study.advice.what_to_take import (
    READERS as READERS,
    advice_in_detail as advice_in_detail,
    advice_table as advice_table,
    what_to_do as what_to_do,
)
from mambanorm_study.advice.which_arm import (
    compare as compare,
    leading_arms as leading_arms,
    ranking as ranking,
    rankings as rankings,
)
