"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md has the rule, every hypothesis, and the versions of both; rule.py is the rule as code: per-seed differences
→ states → a word. Claims (claim.py, hypotheses.py, …) and their runs (needed.py, evidence.py) become comparisons
(rows.py), these a Verdict (verdict.py; pages.py). recording.py fills data/results, calibration.py tests the rule.
"""

from mambanorm.claims.frames import recorded_under
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.needed import VERDICT_TASKS, chosen_lr, needed, runs_behind, train_verdicts, verdict_runs
from mambanorm.claims.pages import (
    NOT_RECORDED,
    basis,
    describe,
    headline,
    over_budget,
    runs_to_judge,
    still_rising,
    trained_inside,
    verdict_html,
    verdict_table,
)
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.recording import known_runs, manifest, parts, record_results, recorded_before, recorded_configs
from mambanorm.claims.rule import VERDICTS
from mambanorm.claims.verdict import Verdict, judge
