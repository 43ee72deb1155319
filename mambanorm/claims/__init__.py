"""The paper's claims as hypotheses, and a verdict for each from a run frame.

comparisons.py   what is compared: weighted sums of arms
hypotheses.py    CLAIMS: each claim as data, its thresholds written before any run
evidence.py      the runs that a claim rests on, looked up in a run frame; the tuned learning rates
summaries.py     what stored checkpoints and diagnostics add to the frame (growth, spectra, weight norms)
inference.py     intervals and tests for a handful of seeds
measures.py      claim and evidence → effects with intervals
verdict.py       … → a Verdict
training.py      trains what the claims lack, and the recorded results
choice.py        which arm to take, and how sure that is
table.py         verdicts → an HTML table
"""

from mambanorm.claims.evidence import chosen_lr, missing, needed
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.ranking import against_chosen, ranking
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.table import verdict_html
from mambanorm.claims.training import (
    TASKS,
    describe,
    one_line,
    record,
    recorded_configs,
    train_verdicts,
    verdict_runs,
)
from mambanorm.claims.verdict import VERDICTS, Verdict, judge, runs_behind, verdict_table

__all__ = [
    "CLAIMS",
    "TASKS",
    "VERDICTS",
    "Claim",
    "Verdict",
    "against_chosen",
    "chosen_lr",
    "describe",
    "find_claim",
    "judge",
    "missing",
    "needed",
    "one_line",
    "ranking",
    "record",
    "recorded_configs",
    "runs_behind",
    "train_verdicts",
    "verdict_html",
    "verdict_runs",
    "verdict_table",
    "with_summaries",
]
