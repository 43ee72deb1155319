"""The claims of the paper and of other sources, and a verdict on each claim from a run frame.

A run frame is a DataFrame with one row per run. PROTOCOL.md states the rule of the verdicts and
every prediction; benchmarks/protocol.py writes the tables of PROTOCOL.md.

rule.py             the rule: the differences of a comparison → a verdict, such as "supported"
claim.py            the classes Claim and Comparison
hypotheses.py       the claims of the paper that rest on experiments
said_in_passing.py  the claims that the paper makes without an experiment
other_sources.py    the claims of other sources
evidence.py         a run frame → the runs of each arm at its best learning rate
verdict.py          a claim and a run frame → a Verdict
plan.py             lists of the runs that the verdicts need, and functions that train these runs
pages.py            the verdicts as text and tables
question.py         questions of practitioners: cells that are compared, predictions, answers
field.py            the questions of notebook 16
calibration.py      error rates of the rule in simulated studies
"""

from mambanorm_study.claims.evidence import VERSION, Evidence
from mambanorm_study.claims.hypotheses import BEYOND, CLAIMS, find_claim
from mambanorm_study.claims.pages import judge_differences
from mambanorm_study.claims.plan import (
    TRAINED_TASKS,
    VERDICT_TASKS,
    needed,
    planned_seeds,
    train_verdicts,
    verdict_runs,
)
from mambanorm_study.claims.question import Prediction, Question, ask
from mambanorm_study.claims.rule import WORDS
from mambanorm_study.claims.verdict import Verdict, judge, verdicts
