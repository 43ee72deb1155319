"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md has the rule, every hypothesis, and the versions of both. rule.py is the rule as code: per-seed differences
→ states → a word. A claim (claim.py, hypotheses.py, other_sources.py) and its runs (needed.py, evidence.py) become
comparisons (rows.py), and these a Verdict (verdict.py). recording.py says what data/results holds, calibration.py how
often the rule is wrong, ranking.py which arm to take; pages.py and findings.py are what a reader sees.
"""

from mambanorm.claims.findings import HOW_TO_READ, findings, what_to_do
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
from mambanorm.claims.ranking import against_chosen, compare, leading, ranking, rankings
from mambanorm.claims.recording import known_runs, manifest, parts, record_results, recorded_before, recorded_configs
from mambanorm.claims.rule import VERDICTS
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.verdict import Verdict, judge
