"""The paper's claims as hypotheses, and a verdict for each from a run frame.

PROTOCOL.md        the rule, every hypothesis and every version of both, in words
protocol.py        the versions and their numbers
hypotheses.py      CLAIMS: each claim as data, with autonorm.py and language.py;   comparisons.py: what is compared
beyond.py          BEYOND: what the authors of later models say
evidence.py        the runs that a claim rests on, looked up in a run frame (frames.py: those of its rows that count)
needed.py          which runs those are
tuning.py          each seed's learning rate, chosen on the other seeds
summaries.py       what stored checkpoints and diagnostics add to the frame (growth, spectra, weight norms)
effects.py         claim and evidence → comparisons with intervals and states
verdict.py         claim and run frame → a Verdict;   cautions.py: what its reader should know besides
calibrate.py       how often the rule is wrong, by made-up studies;   calibration.py: the table of it
verdict_runs.py    trains what the claims lack;   recording.py: the recorded results, part by part
budget.py          a claim over the training budget, and over the size of the model
headline.py        which verdict stands first, that of trained models
findings.py        what was found, in a few plain sentences;   findings_page.py: docs/index.html, which shows them
ranking.py         which arm to take, and how sure that is
verdict_table.py   verdicts as text;   verdict_html.py: as one HTML table
verdict_page.py    the runs, small tables and lines of notebook 12
"""

from mambanorm.claims.budget import over_budget, over_size, still_rising
from mambanorm.claims.findings import findings
from mambanorm.claims.frames import recorded_under
from mambanorm.claims.headline import NOT_RECORDED, headline, headline_scales, trained_inside
from mambanorm.claims.hypotheses import CLAIMS, Claim, find_claim
from mambanorm.claims.needed import chosen_lr, missing, needed, runs_behind
from mambanorm.claims.protocol import VERSION
from mambanorm.claims.ranking import against_chosen, leading, not_ranked, ranking, rankings
from mambanorm.claims.recording import known_runs, manifest, parts, record_results, recorded_before, recorded_configs
from mambanorm.claims.summaries import with_summaries
from mambanorm.claims.verdict import VERDICTS, Verdict, judge
from mambanorm.claims.verdict_html import verdict_html
from mambanorm.claims.verdict_page import basis, lines_of_runs, runs_to_judge, splits_table, task_by_task, words_of
from mambanorm.claims.verdict_runs import VERDICT_TASKS, train_verdicts, verdict_runs
from mambanorm.claims.verdict_table import describe, one_line, verdict_table

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
    "describe",
    "find_claim",
    "findings",
    "headline",
    "headline_scales",
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
    "splits_table",
    "still_rising",
    "task_by_task",
    "train_verdicts",
    "trained_inside",
    "verdict_html",
    "verdict_runs",
    "verdict_table",
    "with_summaries",
    "words_of",
]
