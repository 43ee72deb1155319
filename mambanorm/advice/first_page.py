"""What was found, in plain sentences: the first thing that README, report and docs/index.html say.

Each finding is one claim on the recorded trained models, by the comparison on which its verdict turns, or one of its
comparisons. Its first words follow the state of that (claims/rule.py): other runs turn a sentence over.

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
from mambanorm.claims.pages import basis, headline, verdict_html
from mambanorm.claims.rows import Row
from mambanorm.claims.rule import SAID
from mambanorm.claims.verdict import Verdict, judge, k_of_n
from mambanorm.runs.recorded_results import recorded, recorded_path
from mambanorm.study.tables import points

HOW_TO_READ = """N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the paper's learned
mixture of batch, instance, layer, group and root-mean-square normalization (BN, IN, LN, GN, RMSN). Brackets hold 95 %
intervals, in points of test accuracy unless a unit stands there. Nothing was run at the paper's size."""
"""What a reader has to know before the findings; the README says it in its own words."""
PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # notebook 12 draws it, the README shows it


@dataclass(frozen=True)
class Sentence:
    """A claim, or one of its comparisons, and the words for what may come out; `reverse`: the opposite, by as much."""

    notebook: str  # which shows it
    claim: str
    compared: str
    holds: str
    fails: str
    open: str
    comparison: str = ""  # "": the one on which the verdict turns
    reverse: str = ""
    on_images: str = ""  # the same claim of images, told beside


MOVED = "The same norm moved from before (N→None) to after (None→N), the mean of {} norms"
SENTENCES = (
    Sentence(
        *("03_type", "H1s", "The same norm on both sides ({}) against no norm at all ({})"),
        holds="Without any norm Mamba learns badly.",
        fails="Mamba learns as well without a norm.",
        open="We cannot tell whether Mamba needs a norm.",
    ),
    Sentence(
        *("04_position", "H3s", MOVED.format("five")),
        holds="After the scan is a better place for a norm than before the block.",
        fails="After the scan is no better a place for a norm than before the block.",
        open="We cannot tell which place is better for a norm.",
        on_images="H3v",
    ),
    Sentence(
        *("12_verdicts", "H3l", MOVED.format("three causal")),
        holds="So it is in a language model.",
        fails="In a language model after the scan is no better a place.",
        open="In a language model we cannot tell which place is better.",
        reverse="In a language model it is the other way round.",
    ),
    Sentence(
        *("05_combination", "H5s", "The best other norm before, by validation, against the same one ({} against {})"),
        holds="Another norm before the scan than after it is always better.",
        fails="A combination of two norms is not always better than one norm twice.",
        open="We cannot tell whether a combination of two norms is always better than one norm twice.",
    ),
    Sentence(
        *("08_validation", "H8s", "{} against {}"),
        holds="The paper's proposal beats the original Mamba.",
        fails="The paper's proposal does not beat the original Mamba.",
        open="We cannot tell whether the paper's proposal beats the original Mamba.",
    ),
    Sentence(
        *("08_validation", "H8s", "The proposal against its norm after the scan alone (None→GN)"),
        holds="NormVary, its learned mixture of norms, is part of that gain.",
        fails="NormVary, its learned mixture of norms, adds nothing that counts to the norm after the scan.",
        open="We cannot tell whether NormVary, its learned mixture of norms, is part of that gain.",
        comparison="NormVary→GN − None→GN",
    ),
)


def findings(frame: pd.DataFrame | None = None, links: str | None = None) -> list[str]:
    """A sentence in Markdown for each finding that has runs. frame: runs of trained models; None = the recorded ones.
    links: the folder of the notebooks, such as "" or "notebooks/", where each is to name the one that shows it."""
    read = _read(frame)
    told = [(one.notebook, _said(one, read)) for one in SENTENCES]
    see = "." if links is None else f" ([{{0:.2}}]({links}{{0}}.ipynb))."
    return [text.removesuffix(".") + see.format(notebook) for notebook, text in told if text]


def _read(frame: pd.DataFrame | None) -> Evidence:
    if frame is None and recorded_path(STUDY_SCALE).is_file():
        frame = recorded(STUDY_SCALE)
    return Evidence(frame, STUDY_SCALE)


def _said(one: Sentence, read: Evidence) -> str:
    told = judge(one.claim, read, scale=STUDY_SCALE)
    named = (row for row in told.records if row["comparison"] == one.comparison)
    row = min(named, key=lambda row: row["state"] not in SAID, default=None) if one.comparison else told.turns_on
    if row is None or row["n"] < 2:
        return ""
    shown, beside = _apart(told, row)
    words = dict(holds=one.holds, fails=one.reverse if one.reverse and row["high"] < -row["threshold"] else one.fails)
    hides = told.uneven.replace(" pp", "") if told.uneven and told.turns_on is shown else ""
    one_side, other = (k_of_n(*shown["finish"][i : i + 2]) for i in (0, 2))
    either = "on either side" if one_side == other else f"against {other}"
    diverged = f"diverged: {one_side} {either}" if shown["finish"][0] or shown["finish"][2] else ""
    besides = [beside, diverged, hides, shown["why"] if shown["state"] == "not judged" else ""]
    if one.on_images and (images := judge(one.on_images, read, scale=STUDY_SCALE)).n_seeds:
        mean, without = _apart(images, images.turns_on)
        besides.append(", ".join(filter(None, (f"on images {_amount(mean)}", without))))
    what = one.compared.format(*row["comparison"].split(" − ")) + _without(shown)
    aside = f" ({'; '.join(filter(None, besides))})" if any(besides) else ""
    return f"**{words.get(shown['state'], one.open)}** {what}, {shown['task']}: {_amount(shown)}{aside}."


def _apart(told: Verdict, row: Row) -> tuple[Row, str]:
    """Of a mean over norms: the row to show, and what stands beside it where the lowest of the means that leave one
    norm out says something else. That one is shown where the mean over all is not judged."""
    rows = [r for r in told.records if r["task"] == row["task"] and r["n"] > 1 and _without(r)]
    least = min(rows, key=lambda r: r["effect"], default=row)
    if least["state"] == row["state"]:
        return row, ""
    if row["state"] == "not judged" and least["state"] in SAID:
        return least, f"with it {_amount(row)}, not judged: {row['why']}"
    return row, f"{_without(least).strip()} {_amount(least)}"


def _without(row: Row) -> str:
    """` without BN`, of the mean without BN; "" of another comparison."""
    return row["comparison"].removeprefix("the mean") if row["comparison"].startswith("the mean without") else ""


def _amount(row: Row) -> str:
    return points(row["effect"], row["low"], row["high"], row["unit"])


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
