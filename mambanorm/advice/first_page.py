"""What was found, in plain sentences: the first thing that README, report and docs/index.html say.

Each finding is one claim on the recorded trained models, by the comparison on which its verdict turns, or one of its
comparisons. Its first words follow the state of that (claims/rule.py): other runs turn a sentence over.

`python -m mambanorm.advice.first_page` writes docs/index.html, which GitHub Pages can serve: findings, advice, picture.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from io import BytesIO

import pandas as pd

from mambanorm.advice.which_arm import ADVISED_ON, rankings
from mambanorm.basics.atomic import write_text
from mambanorm.basics.settings import ROOT, STUDY_SCALE
from mambanorm.basics.text import plural
from mambanorm.claims.evidence import Evidence, shared_rows
from mambanorm.claims.pages import basis, headline, verdict_html
from mambanorm.claims.rows import Row
from mambanorm.claims.rule import RISING, SAID, VERDICTS
from mambanorm.claims.verdict import Verdict, judge, k_of_n
from mambanorm.runs.recorded_results import recorded, recorded_path
from mambanorm.study.tables import label, points

HOW_TO_READ = """N1→N2 is norm N1 before the block and norm N2 after the scan (the SSM). NormVary is the paper's learned
mixture of batch, instance, layer, group and root-mean-square normalization (BN, IN, LN, GN, RMSN). A plus favours what
is named first; better is by more than a point of test accuracy (of text: 0.01 bits less). Brackets hold 95 % intervals,
one side of them wider where several comparisons decide."""
"""What a reader has to know before the findings; the README says it in its own words."""
PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # notebook 12 draws it, the README shows it


@dataclass(frozen=True)
class Sentence:
    """A claim, or one of its comparisons, and the words for what may come out; `reverse`: the opposite, by as much.
    {where}: the task that is shown, or "sequences" where several decide."""

    notebook: str  # which shows it
    claim: str
    compared: str
    holds: str
    fails: str
    open: str
    reverse: str = ""
    comparison: str = ""  # "": the one on which the verdict turns
    on_images: str = ""  # the same claim of images, told beside


NEAR = "One gains about the least that counts over the other."
SENTENCES = (
    Sentence(
        *("03_type", "H1s", "{} against {}, no norm at all"),
        holds="With the right norm Mamba learns better than without one.",
        fails="No norm makes Mamba better by more than a point.",
        open="We cannot tell whether some norm makes Mamba better.",
    ),
    Sentence(
        *("04_position", "H3s", "A norm after the scan (None→N) against the same one before (N→None), on average"),
        holds="On {where} after the scan is a better place for a norm than before the block.",
        fails="On {where} a norm gains nothing that counts by standing after the scan.",
        open="On {where} we cannot tell whether a norm is better after the scan.",
        reverse="On {where} before the block is a better place for a norm than after the scan.",
        on_images="H3v",
    ),
    Sentence(
        *("12_verdicts", "H3l", "The same, of norms that do not look ahead"),
        holds="In a language model after the scan is the better place.",
        fails="In a language model a norm gains nothing that counts by standing after the scan.",
        open="In a language model we cannot tell whether a norm is better after the scan.",
        reverse="In a language model before the block is the better place.",
    ),
    Sentence(
        *("05_combination", "H5s", "{} (its first norm chosen by validation) against {}"),
        holds="Two different norms are always better than the same one twice.",
        fails="Two different norms are not always better than the same one twice.",
        open="We cannot tell whether two different norms are always better than the same one twice.",
    ),
    Sentence(
        *("08_validation", "H8s", "{} against {}"),
        holds="On {where} the paper's proposal beats the original Mamba.",
        fails="On {where} the paper's proposal does not beat the original Mamba by more than a point.",
        open="On {where} we cannot tell whether the paper's proposal beats the original Mamba.",
        reverse="On {where} the original Mamba beats the paper's proposal.",
    ),
    Sentence(
        *("08_validation", "H8s", "{} against {}"),
        holds="On {where} the paper's proposal is better than GN after the scan alone.",
        fails="On {where} GN after the scan alone does at least as well as the paper's proposal, to within a point.",
        open="On {where} we cannot tell whether the paper's proposal is better than GN after the scan alone.",
        reverse="On {where} GN after the scan alone does better than the paper's proposal.",
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
    row = next(named, None) if one.comparison else told.turns_on
    if row is None or row["n"] < 2:
        return ""
    shown, left_out, beside = _apart(told, row)
    fails = one.reverse if one.reverse and _reversed(shown) else one.fails
    words = dict(zip(SAID, (one.holds, fails, NEAR), strict=True)) | dict(zip(VERDICTS, (one.holds, fails, NEAR)))
    bold = words.get(shown["state"] if one.comparison or left_out else told.verdict, one.open).removesuffix(".") + (
        f", on average without {left_out}." if left_out else "."
    )
    bold = bold.format(where="sequences" if len(told.tasks) > 1 and not one.comparison else shown["task"])
    hides = told.uneven.replace(" pp", "") if told.uneven and told.turns_on is shown else ""
    one_side, other = (k_of_n(*shown["finish"][i : i + 2]) for i in (0, 2))
    diverged = f"diverged: {one_side} against {other}" if shown["finish"][0] or shown["finish"][2] else ""
    alike = (r for r in told.records if r["comparison"] == row["comparison"] and r is not row and r["n"] > 1)
    besides = [beside, diverged, hides, _silent(shown).removeprefix(", ")]
    besides += [f"on {r['task']} {_amount(r)}{_silent(r)}" for r in alike]
    if one.on_images and (images := judge(one.on_images, read, scale=STUDY_SCALE)).n_seeds:
        mean, _, without = _apart(images, images.turns_on)
        besides.append(", ".join(filter(None, (f"on images {_amount(mean)}{_silent(mean)}", without))))
    what = one.compared.format(*row["comparison"].split(" − "))
    aside = f" ({'; '.join(filter(None, besides))})" if any(besides) else ""
    return f"**{bold}** {what}, {shown['task']}: {_amount(shown)}{aside}."


def _apart(told: Verdict, row: Row) -> tuple[Row, str, str]:
    """Of a mean over norms: the row to show, the norm that it leaves out, and what stands beside it where the lowest
    mean without one norm (of a claim that fails, the highest) says something else; it is shown if judged alone."""
    rows = [r for r in told.records if r["task"] == row["task"] and r["n"] > 1]
    means = {norm: r for r in rows if (norm := r["comparison"].partition("the mean without ")[2])}
    pick = max if row["state"] == "fails" else min
    norm, other = pick(means.items(), key=lambda item: item[1]["effect"], default=("", row))
    if other["state"] == row["state"] and _reversed(other) == _reversed(row):
        return row, "", ""
    if row["state"] == "not judged" and other["state"] in SAID:
        return other, norm, f"with {norm} {_amount(row)}{_silent(row)}"
    return row, "", f"without {norm} {_amount(other)}{_silent(other)}"


def _reversed(row: Row) -> bool:
    return row["high"] < -row["threshold"]


def _silent(row: Row) -> str:
    return f", not judged: {row['why'].partition(': ')[0]}" if row["state"] == "not judged" else ""


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
    if not ends.failed:
        return told
    nan = "**If training goes NaN**, let `mambanorm diagnose` say where it begins, and try a norm on both sides of the"
    return [*told, f"{nan} scan: on {ends.turns_on['task']}, {ends.failed}. The claim, H9s, is {ends.verdict}."]


def _take(kind: str, task: str, table: pd.DataFrame) -> str:
    chosen, others = table.iloc[0], table.iloc[1:]
    shared = f", which share {shared}" if (shared := shared_rows(task, STUDY_SCALE)) else ""
    rising = f", {100 * chosen.late:.0f} % of its runs still improve at their end" if chosen.late > RISING else ""
    said = f"take {label(chosen.arm)} ({task}, chosen by validation, {plural(chosen.n, 'seed')}{rising}{shared})"
    for row in others[others.who == "the original"].itertuples():
        unit, digits = ("points", 1) if chosen.unit == "pp" else (chosen.unit, 3)
        amount = f"{row.behind:.{digits}f} {unit} [{row.low:.{digits}f}, {row.high:.{digits}f}]".replace("-", "−")
        if row.told == "behind":
            said += f": it is {amount} ahead of {label(row.arm)}, the original"
        elif row.told == "ahead":
            said = f"keep {label(row.arm)}, the original: against it {label(chosen.arm)} has {amount} ({task})"
        else:
            said = f"keep {label(row.arm)}, the original, or {said}: whether that is better we cannot tell, {amount}"
    behind = f"{(others.told == 'behind').sum()} of {len(others)} others lie behind (interval above zero)"
    return f"**If you {READERS[kind]}**, {said}; {behind}."


def findings_page() -> str:
    """The page, from the recorded results. ValueError where none are recorded."""
    from PIL import Image

    from mambanorm.report.page import figures, markdown, page, template  # here: the sentences are told without it

    verdicts = headline(recorded(STUDY_SCALE))
    Image.open(PICTURE).save(small := BytesIO(), format="webp", lossless=True, quality=100, method=6)
    picture = base64.b64encode(small.getvalue()).decode()
    body = template(
        "findings.html",
        note=HOW_TO_READ,
        found=markdown("\n".join(f"- {sentence}" for sentence in findings())),
        advice=markdown("\n".join(f"- {sentence}" for sentence in what_to_do())),
        picture=f'<img alt="The judged claims, their verdicts and intervals" src="data:image/webp;base64,{picture}">',
        claims=verdict_html(verdicts, caption=basis(verdicts, "recorded"), pictures=False),
    )
    return page("Normalization in Mamba: what was found", figures(body), template("index.css"))


if __name__ == "__main__":
    write_text(PAGE, findings_page())
    write_text(PAGE.with_name(".nojekyll"), "")  # GitHub Pages serves the folder as it is
    print(PAGE)
