"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md        the rule on its first page, every hypothesis, and the versions of both
rule.py            the rule as code: per-seed differences → states → a word
claim.py           what a claim and a comparison are;   hypotheses.py: CLAIMS, those of the paper;   other_sources.py:
                   those of AutoNorm and of later models (BEYOND), and on language models
evidence.py        the runs that a claim rests on, looked up in a run frame (frames.py: those of its rows that count)
rows.py            claim and evidence → its comparisons as rows, and who diverged
verdict.py         claim and run frame → a Verdict
needed.py          which runs a claim needs, and training them;   recording.py: the recorded results, part by part
summaries.py       what stored checkpoints and diagnostics add to the frame (growth, spectra, weight norms)
protocol.py        the version, the seeds and tasks that are planned, the hypotheses as text
calibration.py     how often the rule is wrong, by made-up studies
budget.py          a claim over the training budget, and over the size of the model
ranking.py         which arm to take, and how sure that is; any arm against any other
pages.py           verdicts as tables and lines;   verdict_html.py: as one HTML table
findings.py        what was found, in a few plain sentences, and docs/index.html, which shows them
"""

from mambanorm.claims.budget import over_budget, over_size, still_rising
from mambanorm.claims.findings import findings, what_to_do
from mambanorm.claims.frames import recorded_under
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.needed import VERDICT_TASKS, chosen_lr, missing, needed, runs_behind, train_verdicts, verdict_runs
from mambanorm.claims.pages import (
    NOT_RECORDED,
    basis,
    describe,
    headline,
    lines_of_runs,
    one_line,
    runs_to_judge,
    task_by_task,
    trained_inside,
    verdict_table,
    words_of,
)
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.ranking import against_chosen, compare, leading, not_ranked, ranking, rankings
from mambanorm.claims.recording import known_runs, manifest, parts, record_results, recorded_before, recorded_configs
from mambanorm.claims.rule import VERDICTS
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.verdict import Verdict, judge
from mambanorm.claims.verdict_html import verdict_html

__all__ = [
    "CLAIMS",
    "NOT_RECORDED",
    "VERDICTS",
    "VERDICT_TASKS",
    "VERSION",
    "Claim",
    "Verdict",
    "against_chosen",
    "basis",
    "chosen_lr",
    "compare",
    "describe",
    "find_claim",
    "findings",
    "headline",
    "judge",
    "known_runs",
    "leading",
    "lines_of_runs",
    "manifest",
    "missing",
    "needed",
    "not_ranked",
    "one_line",
    "over_budget",
    "over_size",
    "parts",
    "ranking",
    "rankings",
    "record_results",
    "recorded_before",
    "recorded_configs",
    "recorded_under",
    "runs_behind",
    "runs_to_judge",
    "still_rising",
    "task_by_task",
    "train_verdicts",
    "trained_inside",
    "verdict_html",
    "verdict_runs",
    "verdict_table",
    "what_to_do",
    "with_summaries",
    "words_of",
]
