"""The findings in plain sentences: the first text of README, report and docs/index.html.

A finding is the verdict on one claim from the recorded models. Its sentence depends on the word of
the comparison that decides the claim, so that other runs change the sentence.

`python -m mambanorm_study.advice.first_page` writes docs/index.html with findings, advice and
picture; GitHub Pages can serve it.
"""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

import pandas as pd

from mambanorm_study.advice.which_arm import (
    ADVISED_ON,
    AHEAD,
    BEHIND,
    CHOSEN,
    ORIGINAL,
    SAME,
    failures_in_words,
    rankings,
)
from mambanorm_study.answers.phrases import join_words
from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import ROOT, STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Row, Verdict, judge, verdicts
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.tables.run_tables import CANNOT_TELL, label, points

# What a reader must know before the findings.
HOW_TO_READ = (
    "N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the "
    "paper's learned mixture of batch, instance, layer, group and root-mean-square normalization "
    "(BN, IN, LN, GN, RMSN). A plus favours the arm that is named first, in points of test "
    "accuracy (of text: bits a character). Brackets hold 95 % intervals."
)

PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # drawn by notebook 12, shown by the README


@dataclass(frozen=True)
class Finding:
    """A claim, or one of its comparisons, with a sentence for each word of the rule.

    {task} in a sentence is the task; {a} and {b} in `compared` are the sides of the comparison.
    """

    notebook: str  # the notebook that shows it
    claim: str
    compared: str
    supported: str
    opposite: str
    no_gain: str
    cannot_tell: str
    comparison: str = ""  # "" = the comparison that decides the claim
    on_images: str = ""  # the same claim about images, whose word is added

    def sentence(self, word: str) -> str:
        """Return the sentence for a word of the rule."""
        sentences = {
            rule.SUPPORTED: self.supported,
            rule.OPPOSITE: self.opposite,
            rule.NO_GAIN: self.no_gain,
            rule.CANNOT_TELL: self.cannot_tell,
            rule.NO_WORD: self.cannot_tell,
        }
        return sentences[word]


FINDINGS = (
    Finding(
        notebook="03_type",
        claim="H1s",
        compared="{a} against {b}, no norm at all",
        supported="With the right norm Mamba learns better than without one.",
        opposite="Every norm makes Mamba worse.",
        no_gain="No norm improves Mamba by a point.",
        cannot_tell="We cannot tell whether a norm makes Mamba better.",
    ),
    Finding(
        notebook="04_position",
        claim="H3s",
        compared=(
            "A norm after the scan (None→N) against the same norm before the block (N→None), mean "
            "over the norms"
        ),
        supported="On {task} a norm works better after the scan than before the block.",
        opposite="On {task} a norm works better before the block than after the scan.",
        no_gain=(
            "On {task} moving a norm from before the block to after the scan does not gain a point."
        ),
        cannot_tell="On {task} we cannot tell whether a norm works better after the scan.",
        on_images="H3v",
    ),
    Finding(
        notebook="12_verdicts",
        claim="H3l",
        compared="The same comparison, for causal norms",
        supported="In a language model a norm works better after the scan than before the block.",
        opposite="In a language model a norm works better before the block than after the scan.",
        no_gain=(
            "In a language model moving a norm to after the scan does not gain 0.01 bits a "
            "character."
        ),
        cannot_tell=(
            "In a language model we cannot tell whether a norm works better after the scan."
        ),
    ),
    Finding(
        notebook="05_combination",
        claim="H5s",
        compared="{a} (first norm chosen by validation) against {b}",
        supported=(
            "Two different norms are better than the same norm twice, whichever comes second."
        ),
        opposite="Two different norms can be worse than the same norm twice.",
        no_gain="Two different norms do not always gain a point over the same norm twice.",
        cannot_tell=(
            "We cannot tell whether two different norms are always better than the same norm twice."
        ),
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        supported="On {task} the paper's proposal beats the original Mamba.",
        opposite="On {task} the original Mamba beats the paper's proposal.",
        no_gain="On {task} the paper's proposal does not beat the original Mamba by a point.",
        cannot_tell=(
            "On {task} we cannot tell whether the paper's proposal beats the original Mamba."
        ),
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        supported="On {task} the paper's proposal is better than GN after the scan alone.",
        opposite="On {task} GN after the scan alone is better than the paper's proposal.",
        no_gain=(
            "On {task} the paper's proposal does not gain a point over GN after the scan alone."
        ),
        cannot_tell=(
            "On {task} we cannot tell whether the paper's proposal is better than GN after the "
            "scan alone."
        ),
        comparison="NormVary→GN − None→GN",
    ),
)


def findings(frame: pd.DataFrame | None = None, links: str | None = None) -> list[str]:
    """Return a sentence in Markdown for each finding that has runs.

    frame: runs of trained models; None = the recorded runs. links: the folder of the notebooks,
    such as "" or "notebooks/", to which each sentence links; None = no links.
    """
    evidence, sentences = _evidence(frame), []
    for finding in FINDINGS:
        text = _sentence(finding, evidence)
        if text and links is not None:
            number, path = finding.notebook[:2], f"{links}{finding.notebook}.ipynb"
            text = f"{text} ([{number}]({path}))"
        if text:
            sentences.append(f"{text}.")
    return sentences


def not_fresh(frame: pd.DataFrame | None = None) -> str:
    """Return a remark on the findings whose test seeds are not recorded yet; "" if there are none.
    frame: see `findings`.
    """
    evidence = _evidence(frame)
    rows = [row for finding in FINDINGS for row, _ in _rows(finding, evidence)]
    tasks = dict.fromkeys(row.task for row in rows if not row.fresh)
    if not tasks:
        return ""
    seeds = "the learning rates were chosen on the seeds that are compared"
    return f"Not fresh: on {join_words(tasks)} {seeds}."


def _evidence(frame: pd.DataFrame | None) -> Evidence:
    if frame is None and recorded_path(STUDY_SCALE).is_file():
        frame = recorded(STUDY_SCALE)
    return Evidence(frame, STUDY_SCALE)


def _rows(finding: Finding, evidence: Evidence) -> list[tuple[Row, Verdict]]:
    """Return the comparisons of a finding that have runs, with their verdicts; the first one is
    the comparison that is shown.
    """
    rows = []
    for verdict in verdicts(evidence, filter(None, [finding.claim, finding.on_images])):
        by_name = {row.comparison: row for row in verdict.rows}
        row = by_name.get(finding.comparison, verdict.turns_on)
        if row.n > 1:
            rows.append((row, verdict))
    return rows


def _sentence(finding: Finding, evidence: Evidence) -> str:
    """Return `**On curves …** NormVary→GN against RMSN→None, curves: +3.4 points [2.6, 4.2]
    (listops: no gain of a point)`; "" without runs.
    """
    rows = _rows(finding, evidence)
    if not rows:
        return ""
    row, verdict = rows[0]
    bold = finding.sentence(row.word).format(task=row.task)
    a, _, b = row.comparison.partition(" − ")
    details = [row.why] if row.word == rule.NO_WORD else []
    if row.failed and len(row.failed) == 2:  # none for a mean over many arms
        details += failures_in_words(row)
    details += _carried_by_one_norm(verdict)
    for other, its_verdict in rows[1:]:
        words = [f"{other.task}: {other.said}", *_carried_by_one_norm(its_verdict)]
        details.append(", but ".join(words))
    bracket = f" ({'; '.join(details)})" if details else ""
    return f"**{bold}** {finding.compared.format(a=a, b=b)}, {row.task}: {row.amount}{bracket}"


def _carried_by_one_norm(verdict: Verdict) -> list[str]:
    """Return `without BN: cannot tell` for each norm without which the mean over the norms has
    another word.
    """
    left_out = {comparison.name: comparison.without for comparison in verdict.claim.comparisons}
    return [
        f"without {left_out[row.comparison]}: {row.said}"
        for row in verdict.rows
        if left_out.get(row.comparison) and row.n and row.word != verdict.turns_on.word
    ]


# ------------------------------------------------------------------------------------- what to do

# Kind of task → what its reader does.
READERS = {
    "sequence": "classify sequences",
    "vision": "classify images",
    "language": "model language",
}

# Standing of the original arm in the ranking → the advice.
ADVICE = {
    BEHIND: "take {arm}: {lead} over {original}",
    AHEAD: "keep {original}: {arm}, which validation chooses, is worse, {lead}",
    SAME: "keep {original}, or take {arm}: they are about the same, {lead}",
    CANNOT_TELL: "keep {original}, or take {arm}: we cannot tell which is better, {lead}",
}


def what_to_do(frame: pd.DataFrame | None = None) -> list[str]:
    """Return the advice for a model of each kind, a sentence each in Markdown, from `ranking` on
    the first recorded task of its kind; then the advice about NaN. frame: see `findings`.
    """
    evidence = _evidence(frame)
    tables = rankings(evidence, ADVISED_ON.values())
    advice = [
        _take(kind, ADVISED_ON[kind], tables[ADVISED_ON[kind]])
        for kind in READERS
        if ADVISED_ON[kind] in tables
    ]
    failing = judge("H9s", evidence)
    if failing.n:
        failed = failing.turns_on.failed.items()
        counts = [f"{label(arm)} failed in {k} of {n} runs" for arm, (k, n) in failed]
        advice.append(
            "**If training goes NaN**, let `mambanorm diagnose` say where it begins, and try a "
            f"norm on both sides of the scan: on {failing.task} {', '.join(counts)} "
            f"(claim H9s: {failing.said})."
        )
    return advice


def _take(kind: str, task: str, table: pd.DataFrame) -> str:
    """Return `**If you classify images**, take LN→BN: +2.8 points [2.0, 3.6] over LN→LN, the
    original (…).`
    """
    chosen = table.iloc[0]
    basis = f"({task}, chosen by validation, {plural(chosen.n, 'seed')})"
    advice = f"take {label(chosen.arm)}"
    for row in table[(table.who == ORIGINAL) & (table.standing != CHOSEN)].itertuples():
        advice = ADVICE[row.standing].format(
            arm=label(chosen.arm),
            original=f"{label(row.arm)}, the original",
            lead=points(row.behind, row.low, row.high, row.unit),
        )
    return f"**If you {READERS[kind]}**, {advice} {basis}."


def findings_page() -> str:
    """Return docs/index.html, from the recorded results. ValueError if none are recorded."""
    # here, because the sentences need none of these
    from PIL import Image

    from mambanorm_study.claims.pages import basis
    from mambanorm_study.report.page import enlarge_on_click, markdown, page, template
    from mambanorm_study.report.verdict_page import verdict_html

    judged = verdicts(recorded(STUDY_SCALE), CLAIMS, scale=STUDY_SCALE)
    webp = BytesIO()
    Image.open(PICTURE).save(webp, format="webp", lossless=True, quality=100, method=6)
    picture = f"data:image/webp;base64,{base64.b64encode(webp.getvalue()).decode()}"
    body = template(
        "findings.html",
        note=" ".join([HOW_TO_READ, not_fresh()]).strip(),
        found=markdown(_bullets(findings())),
        advice=markdown(_bullets(what_to_do())),
        picture=f'<img alt="The claims, their words and intervals" src="{picture}">',
        claims=verdict_html(judged, caption=basis(judged, "recorded"), pictures=False),
    )
    return page(
        "Normalization in Mamba: what was found", enlarge_on_click(body), template("index.css")
    )


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


if __name__ == "__main__":
    write_text(PAGE, findings_page())
    write_text(PAGE.with_name(".nojekyll"), "")  # GitHub Pages then serves the folder as it is
    print(PAGE)
