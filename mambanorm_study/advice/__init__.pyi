"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm_study.advice.experiments import (
    EXPERIMENTS as EXPERIMENTS,
)
from mambanorm_study.advice.experiments import (
    measure as measure,
)
from mambanorm_study.advice.first_page import (
    HOW_TO_READ as HOW_TO_READ,
)
from mambanorm_study.advice.first_page import (
    findings as findings,
)
from mambanorm_study.advice.first_page import (
    not_fresh as not_fresh,
)
from mambanorm_study.advice.first_page import (
    what_to_do as what_to_do,
)
from mambanorm_study.advice.mistakes import (
    MISTAKES as MISTAKES,
)
from mambanorm_study.advice.mistakes import (
    claimed_and_measured as claimed_and_measured,
)
from mambanorm_study.advice.mistakes import (
    guesses_tested as guesses_tested,
)
from mambanorm_study.advice.mistakes import (
    in_words as in_words,
)
from mambanorm_study.advice.mistakes import (
    mistake_runs as mistake_runs,
)
from mambanorm_study.advice.mistakes import (
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
)
from mambanorm_study.advice.which_arm import (
    compare as compare,
)
from mambanorm_study.advice.which_arm import (
    leading as leading,
)
from mambanorm_study.advice.which_arm import (
    ranking as ranking,
)
from mambanorm_study.advice.which_arm import (
    rankings as rankings,
)
