"""The findings and the advice in plain sentences, for the start of README, report and
docs/index.html.

A finding says in one sentence what the recorded runs show about a claim. The comparison that
decides the claim has a result, such as "supported" or "no gain", by the rule in claims/rule.py. The
result selects the sentence, so the sentence changes with the runs.

`python -m mambanorm_study.advice.first_page` writes docs/index.html with the findings, the advice
and the picture of the README. GitHub Pages can serve this page.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
from mambanorm_study.basics.settings import ROOT, STUDY_SCALE
from mambanorm_study.basics.text import plural
from mambanorm_study.claims import CLAIMS, rule
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.verdict import Row, Verdict, judge, verdicts
from mambanorm_study.runs.recorded_results import recorded, recorded_path
from mambanorm_study.tables.run_tables import CANNOT_TELL, difference_with_interval, label

# What a reader must know before the findings.
HOW_TO_READ = (
    "N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the "
    "paper's learned mixture of batch, instance, layer, group and root-mean-square normalization "
    "(BN, IN, LN, GN, RMSN). A plus favours the arm that is named first, in points of test "
    "accuracy (of text: bits a character). Brackets hold 95 % intervals."
)

PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # notebook 12 draws the picture, the README shows it


@dataclass(frozen=True)
class Finding:
    """A claim, or one comparison of a claim, with a sentence for each result of the rule.

    A result of the rule (claims/rule.py) is a word such as "supported". {task} in a sentence stands
    for the task. {a} and {b} in `compared` stand for the two sides of the comparison.
    """

    notebook: str  # the notebook that shows the comparison
    claim: str  # the key of the claim in CLAIMS
    compared: str  # what is compared, in words
    sentences: Mapping[str, str]  # result of the rule → sentence
    comparison: str = ""  # the comparison's name; "" means the comparison that decides the claim
    on_images: str = ""  # key of the same claim about images; the result is added in brackets


FINDINGS = (
    Finding(
        notebook="03_type",
        claim="H1s",
        compared="{a} against {b}, no norm at all",
        sentences={
            rule.SUPPORTED: "With the right norm Mamba learns better than without one.",
            rule.OPPOSITE: "Every norm makes Mamba worse.",
            rule.NO_GAIN: "No norm improves Mamba by a point.",
            rule.CANNOT_TELL: "We cannot tell whether a norm makes Mamba better.",
        },
    ),
    Finding(
        notebook="04_position",
        claim="H3s",
        compared=(
            "A norm after the scan (None→N) against the same norm before the block (N→None), mean "
            "over the norms"
        ),
        sentences={
            rule.SUPPORTED: "On {task} a norm works better after the scan than before the block.",
            rule.OPPOSITE: "On {task} a norm works better before the block than after the scan.",
            rule.NO_GAIN: (
                "On {task} moving a norm from before the block to after the scan does not gain a "
                "point."
            ),
            rule.CANNOT_TELL: (
                "On {task} we cannot tell whether a norm works better after the scan."
            ),
        },
        on_images="H3v",
    ),
    Finding(
        notebook="12_verdicts",
        claim="H3l",
        compared="The same comparison, for causal norms",
        sentences={
            rule.SUPPORTED: (
                "In a language model a norm works better after the scan than before the block."
            ),
            rule.OPPOSITE: (
                "In a language model a norm works better before the block than after the scan."
            ),
            rule.NO_GAIN: (
                "In a language model moving a norm to after the scan does not gain 0.01 bits a "
                "character."
            ),
            rule.CANNOT_TELL: (
                "In a language model we cannot tell whether a norm works better after the scan."
            ),
        },
    ),
    Finding(
        notebook="05_combination",
        claim="H5s",
        compared="{a} (first norm chosen by validation) against {b}",
        sentences={
            rule.SUPPORTED: (
                "Two different norms are better than the same norm twice, whichever comes second."
            ),
            rule.OPPOSITE: "Two different norms can be worse than the same norm twice.",
            rule.NO_GAIN: (
                "Two different norms do not always gain a point over the same norm twice."
            ),
            rule.CANNOT_TELL: (
                "We cannot tell whether two different norms are always better than the same norm "
                "twice."
            ),
        },
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        sentences={
            rule.SUPPORTED: "On {task} the paper's proposal beats the original Mamba.",
            rule.OPPOSITE: "On {task} the original Mamba beats the paper's proposal.",
            rule.NO_GAIN: (
                "On {task} the paper's proposal does not beat the original Mamba by a point."
            ),
            rule.CANNOT_TELL: (
                "On {task} we cannot tell whether the paper's proposal beats the original Mamba."
            ),
        },
    ),
    Finding(
        notebook="08_validation",
        claim="H8s",
        compared="{a} against {b}",
        sentences={
            rule.SUPPORTED: (
                "On {task} the paper's proposal is better than GN after the scan alone."
            ),
            rule.OPPOSITE: "On {task} GN after the scan alone is better than the paper's proposal.",
            rule.NO_GAIN: (
                "On {task} the paper's proposal does not gain a point over GN after the scan alone."
            ),
            rule.CANNOT_TELL: (
                "On {task} we cannot tell whether the paper's proposal is better than GN after the "
                "scan alone."
            ),
        },
        comparison="NormVary→GN − None→GN",
    ),
)


def findings(frame: pd.DataFrame | None = None, links: str | None = None) -> list[str]:
    """Return one Markdown sentence per finding that has runs.

    frame: a run frame (one row per run); None means the recorded runs. links: the folder of the
    notebooks, such as "" or "notebooks/"; each sentence then ends with a link to the notebook of
    the finding. None means no links.
    """
    evidence, sentences = _evidence(frame), []
    for finding in FINDINGS:
        rows = _judged_rows(finding, evidence)
        if rows:
            link = f" ([{finding.notebook[:2]}]({links}{finding.notebook}.ipynb))"
            text = _sentence(finding, rows) + (link if links is not None else "")
            sentences.append(f"{text}.")
    return sentences


def not_fresh_note(frame: pd.DataFrame | None = None) -> str:
    """Return a remark that names the tasks on which findings are not fresh.

    A finding is fresh if its runs are on test seeds and no earlier version of the protocol has
    judged the runs. Returns "" if all findings are fresh. frame: as in `findings`.
    """
    evidence = _evidence(frame)
    rows = [row for finding in FINDINGS for row, _ in _judged_rows(finding, evidence)]
    tasks = dict.fromkeys(row.task for row in rows if not row.fresh)
    if not tasks:
        return ""
    seeds = "the learning rates were chosen on the seeds that are compared"
    return f"Not fresh: on {join_words(tasks)} {seeds}."


def _evidence(frame: pd.DataFrame | None) -> Evidence:
    path = recorded_path(STUDY_SCALE)
    if frame is None and path.is_file():
        return _recorded_evidence(path.stat().st_mtime_ns)
    return Evidence(frame, STUDY_SCALE)


@lru_cache(maxsize=1)  # a changed file has another time
def _recorded_evidence(_mtime_ns: int) -> Evidence:
    return Evidence(recorded(STUDY_SCALE), STUDY_SCALE)


def _judged_rows(finding: Finding, evidence: Evidence) -> list[tuple[Row, Verdict]]:
    """Return a finding's comparisons on two or more seeds, each with the verdict on the claim.

    The first comparison is that of `finding.claim` on the main task, and its effect is printed.
    Then come the comparisons on further tasks and the comparison of `finding.on_images`.
    """
    rows = []
    for verdict in verdicts(evidence, filter(None, [finding.claim, finding.on_images])):
        by_name = {row.comparison: row for row in verdict.rows}
        row = by_name.get(finding.comparison, verdict.main_row)
        if row.n > 1:
            rows.append((row, verdict))
    return rows


def _sentence(finding: Finding, rows: list[tuple[Row, Verdict]]) -> str:
    """Return the sentence of a finding as Markdown, without a full stop.

    rows: the result of `_judged_rows`, which must not be empty.

    An example is `**On curves …** NormVary→GN against RMSN→None, curves: +3.4 points [2.6, 4.2]
    (listops: no gain of a point)`.
    """
    row, verdict = rows[0]
    word = rule.CANNOT_TELL if row.word == rule.NO_WORD else row.word
    bold = finding.sentences[word].format(task=row.task)
    a, _, b = row.comparison.partition(" − ")
    details = [row.why] if row.word == rule.NO_WORD else []
    if row.failed and len(row.failed) == 2:  # a mean over many arms has no counts of failures
        details += failures_in_words(row)
    details += _means_without_a_norm(verdict)
    for image_row, image_verdict in rows[1:]:
        words = [f"{image_row.task}: {image_row.as_text}", *_means_without_a_norm(image_verdict)]
        details.append(", but ".join(words))
    bracket = f" ({'; '.join(details)})" if details else ""
    return f"**{bold}** {finding.compared.format(a=a, b=b)}, {row.task}: {row.amount}{bracket}"


def _means_without_a_norm(verdict: Verdict) -> list[str]:
    """Return the results of means that leave out a norm, if they differ from the verdict's result.

    Each result is a text such as `without BN: cannot tell`.
    """
    norm_left_out = {c.name: c.left_out_norm for c in verdict.claim.comparisons}
    return [
        f"without {norm_left_out[row.comparison]}: {row.as_text}"
        for row in verdict.rows
        if norm_left_out.get(row.comparison) and row.n and row.word != verdict.main_row.word
    ]


# ------------------------------------------------------------------------------------- what to do

# Kind of task → what a reader of the advice wants to do.
READERS = {
    "sequence": "classify sequences",
    "vision": "classify images",
    "language": "model language",
}

# Standing of the original arm in the ranking, relative to the chosen arm → the advice. {arm} is the
# chosen arm, and {lead} is the difference "chosen arm minus original arm".
ADVICE = {
    BEHIND: "take {arm}: {lead} over {original}",
    AHEAD: "keep {original}: {arm}, which validation chooses, is worse, {lead}",
    SAME: "keep {original}, or take {arm}: they are about the same, {lead}",
    CANNOT_TELL: "keep {original}, or take {arm}: we cannot tell which is better, {lead}",
}


def what_to_do(frame: pd.DataFrame | None = None) -> list[str]:
    """Return the advice as Markdown sentences: one per kind of task, and one about NaN in training.

    The advice for a kind of task follows from the `ranking` on the task that ADVISED_ON names for
    this kind. frame: as in `findings`.
    """
    evidence = _evidence(frame)
    tables = rankings(evidence, ADVISED_ON.values())
    advice = [
        _advice_sentence(kind, ADVISED_ON[kind], tables[ADVISED_ON[kind]])
        for kind in READERS
        if ADVISED_ON[kind] in tables
    ]
    failing = judge("H9s", evidence)
    if failing.n:
        failed = failing.main_row.failed.items()
        counts = [f"{label(arm)} failed in {k} of {n} runs" for arm, (k, n) in failed]
        advice.append(
            "**If training goes NaN**, let `mambanorm diagnose` say where it begins, and try a "
            f"norm on both sides of the scan: on {failing.task} {', '.join(counts)} "
            f"(claim H9s: {failing.as_text})."
        )
    return advice


def _advice_sentence(kind: str, task: str, table: pd.DataFrame) -> str:
    """Return the advice for one kind of task, from the ranking `table` on `task`.

    An example is `**If you classify images**, take LN→BN: +2.8 points [2.0, 3.6] over LN→LN, the
    original (…).`
    """
    chosen = table.iloc[0]
    basis = f"({task}, chosen by validation, {plural(chosen.n, 'seed')})"
    advice = f"take {label(chosen.arm)}"
    for row in table[(table.who == ORIGINAL) & (table.standing != CHOSEN)].itertuples():
        advice = ADVICE[row.standing].format(
            arm=label(chosen.arm),
            original=f"{label(row.arm)}, the original",
            lead=difference_with_interval(row.behind, row.low, row.high, row.unit),
        )
    return f"**If you {READERS[kind]}**, {advice} {basis}."


def findings_page() -> str:
    """Return the page docs/index.html as HTML, made from the recorded results.

    Raises ValueError if there are no recorded results.
    """
    # imported here, because the functions above need neither templates nor images
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
        note=" ".join([HOW_TO_READ, not_fresh_note()]).strip(),
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
    PAGE.write_text(findings_page(), "utf-8")
    print(PAGE)
