"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md states the rule, and every prediction. rule.py: differences, one a seed → a word.
claim.py, hypotheses.py, said_in_passing.py, other_sources.py: the claims as data. evidence.py: a
run frame → the runs of each arm at its rate. verdict.py: a claim on a task → a Verdict. plan.py:
which runs are needed, and training them. pages.py: the verdicts as text and tables. calibration.py:
error rates of the rule. benchmarks/protocol.py writes PROTOCOL.md's tables.
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
