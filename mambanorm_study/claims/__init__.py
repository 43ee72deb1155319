"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md states the rule and every prediction; benchmarks/protocol.py writes its tables.

rule.py         the rule: from the differences of a comparison to a word
claim.py        the classes Claim and Comparison; the claims are in hypotheses.py (the paper's),
                said_in_passing.py (its remarks) and other_sources.py
evidence.py     from a run frame to the runs of each arm at its learning rate
verdict.py      from a claim and a run frame to a Verdict
plan.py         lists the runs that the verdicts need, and trains them
pages.py        the verdicts as text and tables
calibration.py  error rates of the rule in simulated studies
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
