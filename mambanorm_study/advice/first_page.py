"""What was found, in plain sentences: the first thing that README, report and docs/index.html say.

A finding is one claim on the recorded trained models. Its first words follow the word of the
comparison that decides the claim, so other runs change the sentence.

`python -m mambanorm_study.advice.first_page` writes docs/index.html, which GitHub Pages can serve:
findings, advice, picture.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

import pandas as pd

from mambanorm_study.advice.which_arm import ADVISED_ON, rankings
from mambanorm_study.basics.atomic import write_text
from mambanorm_study.basics.settings import ROOT, STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import rule
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.hypotheses import CLAIMS
from mambanorm_study.claims.verdict import Row, Verdict, judge, verdicts
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.tables.run_tables import CANNOT_TELL, label, points

HOW_TO_READ = """N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the paper's learned
mixture of batch, instance, layer, group and root-mean-square normalization (BN, IN, LN, GN, RMSN). A plus favours the
arm that is named first, in points of test accuracy (of text: bits a character). Brackets hold 95 % intervals."""
"""What a reader has to know before the findings; the README says it in its own words."""

PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # notebook 12 draws it, the README shows it


@dataclass(frozen=True)
class Finding:
    """A claim, or one of its comparisons, and the sentence for each word of the rule; {task} is the
    task shown."""

    notebook: str  # the notebook that shows it
    claim: str
    compared: str  # {a} and {b}: the two sides of the comparison
    supported: str
    opposite: str
    no_gain: str
    cannot_tell: str
    comparison: str = ""  # "" = the comparison that decides the claim
    on_images: str = ""  # the same claim of images, whose word is added

    def sentence(self, word: str) -> str:
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
        compared="A norm after the scan (None→N) against the same norm before the block (N→None), mean over the norms",
        supported="On {task} a norm works better after the scan than before the block.",
        opposite="On {task} a norm works better before the block than after the scan.",
        no_gain="On {task} moving a norm from before the block to after the scan does not gain a point.",
        cannot_tell="On {task} we cannot tell whether a norm works better after the scan.",
        on_images="H3v",
    ),
    Finding(
        notebook="12_verdicts",
        claim="H3l",
        compared="The same comparison, for causal norms",
        supported="In a language model a norm works better after the scan than before the block.",
        opposite="In a language model a norm works better before the block than after the scan.",
        no_gain="In a language model moving a norm to after the scan does not gain 0.01 bits a character.",
        cannot_tell="In a language model we cannot tell whether a norm works better after the scan.",
    ),
    Finding(
        notebook="05_combination",
        claim="H5s",
        compared="{a} (first norm chosen by validation) against {b}",
        supported="Two different norms are better than the same norm twice, whichever comes second.",
        opposite="Two different norms can be worse than the same norm twice.",
        no_gain="Two different norms do not always gain a point over the same norm twice.",
        cannot_tell="We cannot tell whether two different norms are always better than the same norm twice.",
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        supported="On {task} the paper's proposal beats the original Mamba.",
        opposite="On {task} the original Mamba beats the paper's proposal.",
        no_gain="On {task} the paper's proposal does not beat the original Mamba by a point.",
        cannot_tell="On {task} we cannot tell whether the paper's proposal beats the original Mamba.",
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        supported="On {task} the paper's proposal is better than GN after the scan alone.",
        opposite="On {task} GN after the scan alone is better than the paper's proposal.",
        no_gain="On {task} the paper's proposal does not gain a point over GN after the scan alone.",
        cannot_tell="On {task} we cannot tell whether the paper's proposal is better than GN after the scan alone.",
        comparison="NormVary→GN − None→GN",
    ),
)


def findings(frame: pd.DataFrame | None = None, links: str | None = None) -> list[str]:
    """Return a sentence in Markdown for each finding that has runs.

    frame: runs of trained models; None = the recorded ones. links: the folder of the notebooks,
    such as "" or "notebooks/", if each sentence is to link the notebook that shows it.
    """
    evidence, sentences = _evidence(frame), []
    for finding in FINDINGS:
        if text := _sentence(finding, evidence):
            link = (
                ""
                if links is None
                else f" ([{finding.notebook[:2]}]({links}{finding.notebook}.ipynb))"
            )
            sentences.append(f"{text}{link}.")
    return sentences


def not_fresh(frame: pd.DataFrame | None = None) -> str:
    """Return the remark on findings whose test seeds are not recorded yet; "" if there are none.
    `frame`: see `findings`."""
    evidence = _evidence(frame)
    rows = [row for finding in FINDINGS for row in _rows(finding, evidence)]
    tasks = list(dict.fromkeys(row.task for row in rows if not row.fresh))
    if not tasks:
        return ""
    where = " and ".join(filter(None, [", ".join(tasks[:-1]), tasks[-1]]))
    return f"Not fresh: on {where} the learning rates were chosen on the seeds that are compared."


def _evidence(frame: pd.DataFrame | None) -> Evidence:
    if frame is None and recorded_path(STUDY_SCALE).is_file():
        frame = recorded(STUDY_SCALE)
    return Evidence(frame, STUDY_SCALE)


def _verdicts(finding: Finding, evidence: Evidence) -> list[Verdict]:
    """Return the verdicts that a finding rests on, the one that is shown first."""
    claims = [finding.claim, finding.on_images] if finding.on_images else [finding.claim]
    return verdicts(evidence, claims)


def _row(finding: Finding, verdict: Verdict) -> Row:
    named = [row for row in verdict.rows if row.comparison == finding.comparison]
    return named[0] if named else verdict.turns_on


def _rows(finding: Finding, evidence: Evidence) -> list[Row]:
    rows = [_row(finding, verdict) for verdict in _verdicts(finding, evidence)]
    return [row for row in rows if row.n > 1]


def _sentence(finding: Finding, evidence: Evidence) -> str:
    """Return `**On curves …** NormVary→GN against RMSN→None, curves: +3.4 points [2.6, 4.2]
    (listops: no gain of a point)`; "" without runs."""
    judged = [verdict for verdict in _verdicts(finding, evidence) if _row(finding, verdict).n > 1]
    if not judged:
        return ""
    shown = _row(finding, judged[0])
    bold = finding.sentence(shown.word).format(task=shown.task)
    a, _, b = shown.comparison.partition(" − ")
    details = [shown.why, _failures(shown)] if shown.word == rule.NO_WORD else [_failures(shown)]
    details += _carried_by_one_norm(judged[0])
    for verdict in judged[1:]:
        other = _row(finding, verdict)
        details.append(
            ", but ".join([f"{other.task}: {other.said}", *_carried_by_one_norm(verdict)])
        )
    bracket = "; ".join(detail for detail in details if detail)
    compared = finding.compared.format(a=a, b=b)
    return (
        f"**{bold}** {compared}, {shown.task}: {shown.amount}{f' ({bracket})' if bracket else ''}"
    )


def _failures(row: Row) -> str:
    """Return `failed: NormVary→GN 2 of 12 runs`; "" for a mean of many arms."""
    failed = row.failed or {}
    counts = [f"{label(arm)} {k} of {n} runs" for arm, (k, n) in failed.items() if k]
    return f"failed: {', '.join(counts)}" if counts and len(failed) == 2 else ""


def _carried_by_one_norm(verdict: Verdict) -> list[str]:
    """Return `without BN: cannot tell` for each norm without which the mean over the norms has
    another word."""
    means = [row for row in verdict.rows if row.comparison.startswith("the mean without ")]
    return [
        f"{row.comparison.removeprefix('the mean ')}: {row.said}"
        for row in means
        if row.n and row.word != verdict.turns_on.word
    ]


# --------------------------------------------------------------------------------------- what to do

READERS = {
    "sequence": "classify sequences",
    "vision": "classify images",
    "language": "model language",
}
"""The kind of a task → what its reader does."""


def what_to_do(frame: pd.DataFrame | None = None) -> list[str]:
    """Return what to do with a model of each kind, a sentence each in Markdown, from `ranking` on
    the first recorded task of its kind; and what to do about NaN. `frame`: see `findings`."""
    evidence = _evidence(frame)
    tables = rankings(evidence, ADVISED_ON.values())
    advice = [
        _take(kind, ADVISED_ON[kind], tables[ADVISED_ON[kind]])
        for kind in READERS
        if ADVISED_ON[kind] in tables
    ]
    failing = judge("H9s", evidence)
    if failing.n:
        counts = [
            f"{label(arm)} failed in {k} of {n} runs"
            for arm, (k, n) in failing.turns_on.failed.items()
        ]
        nan = "**If training goes NaN**, let `mambanorm diagnose` say where it begins, and try a norm on both sides"
        advice.append(
            f"{nan} of the scan: on {failing.task} {', '.join(counts)} (claim H9s: {failing.said})."
        )
    return advice


def _take(kind: str, task: str, table: pd.DataFrame) -> str:
    """Return `**If you classify images**, take LN→BN: +2.8 points [2.0, 3.6] over LN→LN, the
    original (…).`"""
    chosen = table.iloc[0]
    arm, how = label(chosen.arm), f"({task}, chosen by validation, {plural(chosen.n, 'seed')})"
    originals = table[(table.who == "the original") & (table.told != "chosen")]
    if originals.empty:
        return f"**If you {READERS[kind]}**, take {arm} {how}."
    row = originals.iloc[0]
    original, lead = (
        f"{label(row.arm)}, the original",
        points(row.behind, row.low, row.high, row.unit),
    )
    sentences = {
        "behind": f"take {arm}: {lead} over {original}",
        "ahead": f"keep {original}: {arm}, which validation chooses, is worse, {lead}",
        "about the same": f"keep {original}, or take {arm}: they are about the same, {lead}",
        CANNOT_TELL: f"keep {original}, or take {arm}: we cannot tell which is better, {lead}",
    }
    return f"**If you {READERS[kind]}**, {sentences[row.told]} {how}."


def findings_page() -> str:
    """Return the page, from the recorded results. ValueError if none are recorded."""
    from PIL import Image

    from mambanorm_study.claims.pages import basis  # here, because the sentences do not need them
    from mambanorm_study.report.page import figures, markdown, page, template
    from mambanorm_study.report.verdict_page import verdict_html

    judged = verdicts(recorded(STUDY_SCALE), CLAIMS, scale=STUDY_SCALE)
    Image.open(PICTURE).save(
        small := BytesIO(), format="webp", lossless=True, quality=100, method=6
    )
    picture = base64.b64encode(small.getvalue()).decode()
    body = template(
        "findings.html",
        note=" ".join([HOW_TO_READ, not_fresh()]).strip(),
        found=markdown(_bullets(findings())),
        advice=markdown(_bullets(what_to_do())),
        picture=f'<img alt="The claims, their words and intervals" src="data:image/webp;base64,{picture}">',
        claims=verdict_html(judged, caption=basis(judged, "recorded"), pictures=False),
    )
    return page("Normalization in Mamba: what was found", figures(body), template("index.css"))


def _bullets(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


if __name__ == "__main__":
    write_text(PAGE, findings_page())
    write_text(PAGE.with_name(".nojekyll"), "")  # GitHub Pages serves the folder as it is
    print(PAGE)
