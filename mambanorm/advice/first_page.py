"""What was found, in plain sentences: the first thing that README, report and docs/index.html say.

Each finding is one comparison of one claim on the recorded trained models. Its first words follow the row's state
(claims/rule.py), so a finding that other runs turn over turns its sentence over too.

`python -m mambanorm.advice.first_page` writes docs/index.html from the recorded results: findings, advice and picture,
which print on one sheet, and every claim in one line. GitHub Pages shows it when told to serve docs/.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pandas as pd

from mambanorm.advice.which_arm import ADVISED_ON, rankings
from mambanorm.basics.atomic import write_text
from mambanorm.basics.settings import ROOT, STUDY_SCALE
from mambanorm.basics.text import plural
from mambanorm.claims.evidence import Evidence, label, shared_rows
from mambanorm.claims.hypotheses import find_claim
from mambanorm.claims.pages import basis, headline, verdict_html
from mambanorm.claims.verdict import judge, k_of_n
from mambanorm.runs.recorded_results import recorded, recorded_path
from mambanorm.study.tables import points

HOW_TO_READ = """N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the paper's learned
mixture of batch, instance, layer, group and root-mean-square normalization (BN, IN, LN, GN, RMSN). Brackets hold 95 %
intervals, in points of test accuracy unless a unit stands there. Nothing was run at the paper's size."""
"""What a reader has to know before the findings; the README says it in its own words."""
PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"
"""What notebook 12 draws, and the README shows."""


@dataclass(frozen=True)
class Sentence:
    """One comparison of a claim, and the words for it: if it holds, if it fails, if we cannot tell."""

    notebook: str  # which shows it
    claim: str
    comparison: str
    holds: str
    fails: str
    open: str
    compared: str
    each: str = ""  # how many of the comparisons beside the mean hold by themselves, filled in


SENTENCES = (
    Sentence(
        *("03_type", "H1s", "GN→GN − None→None"),
        holds="Without any norm Mamba learns badly.",
        fails="Mamba learns as well without a norm.",
        open="We cannot tell whether Mamba needs a norm.",
        compared="GN on both sides (GN→GN) against no norm at all (None→None)",
    ),
    Sentence(
        *("04_position", "H3s", "mean over 5 norms: None→N − N→None"),
        holds="After the scan is a better place for a norm than before the block.",
        fails="After the scan is no better a place for a norm than before the block.",
        open="We cannot tell which place is better for a norm.",
        compared="The same norm moved from before (N→None) to after (None→N), the mean of five norms",
        each="of the norms one by one, {} of {} clearly gain more than a point",
    ),
    Sentence(
        *("08_validation", "H8s", "NormVary→GN − RMSN→None"),
        holds="The paper's proposal beats the original Mamba.",
        fails="The paper's proposal does not beat the original Mamba.",
        open="We cannot tell whether the paper's proposal beats the original Mamba.",
        compared="NormVary→GN against RMSN→None",
    ),
    Sentence(
        *("06_normvary", "H8s", "NormVary→GN − NormVary-fixed→GN"),
        holds="Learning its mixture of norms is part of NormVary's gain.",
        fails="Learning its mixture of norms brings NormVary nothing that counts.",
        open="We cannot tell whether NormVary has to learn its mixture of norms.",
        compared="The proposal against itself with fixed equal weights",
    ),
    Sentence(
        *("05_combination", "H6s", "mean of ·→GN − mean of ·→IN"),
        holds="GN, the second norm that the paper prefers, is better than IN.",
        fails="GN, the second norm that the paper prefers, is not the best one.",
        open="We cannot tell whether GN or IN is the better second norm.",
        compared="GN after the scan against IN after the scan, averaged over the norms before the block",
    ),
    Sentence(
        *("09_vision", "H8v", "NormVary→LN − LN→LN"),
        holds="The proposal for images beats the original.",
        fails="The proposal for images does not beat the original.",
        open="We cannot tell whether the proposal for images beats the original.",
        compared="NormVary→LN against LN→LN",
    ),
)


def findings(frame: pd.DataFrame | None = None, links: str | None = None) -> list[str]:
    """A sentence in Markdown for each finding that has runs, with its effect and interval, and how often a side
    diverged if one did. frame: runs of trained models; None = the recorded results. links: the folder of the notebooks,
    such as "" or "notebooks/", if each sentence is to name the one that shows it."""
    read = _read(frame)
    told = [(one.notebook, _said(one, read)) for one in SENTENCES]
    see = "." if links is None else f" ([{{0:.2}}]({links}{{0}}.ipynb))."
    return [text.removesuffix(".") + see.format(notebook) for notebook, text in told if text]


def _read(frame: pd.DataFrame | None) -> Evidence:
    if frame is None and recorded_path(STUDY_SCALE).is_file():
        frame = recorded(STUDY_SCALE)
    return Evidence(frame, STUDY_SCALE)


def _said(one: Sentence, read: Evidence) -> str:
    task = ADVISED_ON[find_claim(one.claim).kind]
    told = judge(one.claim, read, scale=STUDY_SCALE, tasks=[task])
    row = next((row for row in told.records if row["comparison"] == one.comparison), None)
    if row is None or row["n"] < 2:
        return ""
    words = dict(holds=one.holds, fails=one.fails)
    hides = told.uneven.replace(" pp", "") if told.uneven and told.turns_on is row else ""
    one_side, other = (k_of_n(*row["finish"][i : i + 2]) for i in (0, 2))
    either = "on either side" if one_side == other else f"against {other}"
    diverged = f"diverged: {one_side} {either}" if row["finish"][0] or row["finish"][2] else ""
    why = row["why"] if row["state"] == "not judged" else ""
    single = (row for row in told.records if row["n"] and not row["comparison"].startswith(("mean", "the mean")))
    alone = [row["state"] for row in single]
    each = one.each.format(alone.count("holds"), len(alone)) if one.each and alone else ""
    besides = "; ".join(filter(None, (each, diverged, hides, why)))
    amount = points(row["effect"], row["low"], row["high"]) + (f" ({besides})" if besides else "")
    return f"**{words.get(row['state'], one.open)}** {one.compared}: {amount}."


READERS = {"sequence": "classify sequences", "vision": "classify images", "language": "model language"}
"""The kind of a task → what its reader does."""


def what_to_do(frame: pd.DataFrame | None = None) -> list[str]:
    """What to do with a model of each kind, a sentence each in Markdown, from `ranking` on the first recorded task of
    its kind; last, what to do about NaN. `frame` as in `findings`."""
    read = _read(frame)
    tables = rankings(read, ADVISED_ON.values(), STUDY_SCALE)
    told = [_take(kind, task, tables[task]) for kind in READERS if (task := ADVISED_ON.get(kind)) in tables]
    ends = judge("H9s", read, scale=STUDY_SCALE)
    nan = "**If training goes NaN**, let `mambanorm diagnose` say where it begins, and put a norm on both sides of the"
    return [*told, f"{nan} scan: {ends.failed}. The claim, H9s, is {ends.verdict}."] if ends.failed else told


def _take(kind: str, task: str, table: pd.DataFrame) -> str:
    chosen, others = table.iloc[0], table.iloc[1:]
    shared = f", which share {shared}" if (shared := shared_rows(task, STUDY_SCALE)) else ""
    said = f"take {label(chosen.arm)} ({task}, chosen by validation, {plural(chosen.n, 'seed')}{shared})"
    for row in others[others.who == "the original"].itertuples():
        unit, digits = ("points", 1) if chosen.unit == "pp" else (chosen.unit, 3)
        amount = f"{row.behind:.{digits}f} {unit} [{row.low:.{digits}f}, {row.high:.{digits}f}]".replace("-", "−")
        if row.told == "behind":
            said += f": it beats {label(row.arm)}, the original, by {amount}"
        else:
            said = f"keep {label(row.arm)}, the original, or {said}: whether that is better we cannot tell, {amount}"
    behind = f"{(others.told == 'behind').sum()} of the {len(others)} other arms are clearly behind"
    return f"**If you {READERS[kind]}**, {said}; {behind}."


def findings_page() -> str:
    """The page, from the recorded results. ValueError where none are recorded."""
    from mambanorm.report.page import figures, markdown, page, template  # here: the sentences are told without it

    verdicts = headline(recorded(STUDY_SCALE))
    picture = base64.b64encode(PICTURE.read_bytes()).decode()
    body = template(
        "findings.html",
        note=HOW_TO_READ,
        found=markdown("\n".join(f"- {sentence}" for sentence in findings())),
        advice=markdown("\n".join(f"- {sentence}" for sentence in what_to_do())),
        picture=f'<img alt="Every claim with its verdict and interval" src="data:image/png;base64,{picture}">',
        claims=verdict_html(verdicts, caption=basis(verdicts, "recorded"), pictures=False),
    )
    return page("Normalization in Mamba: what was found", figures(body), template("index.css"))


if __name__ == "__main__":
    write_text(PAGE, findings_page())
    write_text(PAGE.with_name(".nojekyll"), "")  # GitHub Pages serves the folder as it is
    print(PAGE)
