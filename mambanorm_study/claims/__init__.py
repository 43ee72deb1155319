"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md states the rule and every prediction; benchmarks/protocol.py writes its tables.

rule.py         differences, one a seed → a word
claim.py        the classes Claim and Comparison; hypotheses.py, said_in_passing.py and
                other_sources.py: the claims
evidence.py     a run frame → the runs of each arm at its learning rate
verdict.py      a claim on a task → a Verdict
plan.py         the runs that are needed, and training them
pages.py        the verdicts as text and tables
calibration.py  error rates of the rule
"""

from mambanorm_study.claims.evidence import VERSION
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS, find_claim
from mambanorm_study.claims.plan import (
    TRAINED_TASKS,
    VERDICT_TASKS,
    needed,
    planned_seeds,
    train_verdicts,
    verdict_runs,
)
from mambanorm_study.claims.rule import WORDS
from mambanorm_study.claims.verdict import Verdict, judge, verdicts
