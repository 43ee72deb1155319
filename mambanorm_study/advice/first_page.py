"""The five findings at the start of README, notebook 12, report and docs/index.html.

The lines are written by hand. A test computes every number in them from the recorded runs.

`python -m mambanorm_study.advice.first_page` writes docs/index.html with these lines, the advice
(what_to_take.py) and the picture of the README. GitHub Pages can serve this page.
"""

import base64
from dataclasses import dataclass
from io import BytesIO

import pandas as pd

from mambanorm_study.advice.what_to_take import advice_in_detail, advice_table, what_to_do
from mambanorm_study.advice.which_arm import (
    ADVISED_ON,
    ORIGINAL,
    RECOMMENDED_BY,
    accuracy,
    ranking,
)
from mambanorm_study.answers.sentences import without_braces
from mambanorm_study.basics.settings import ROOT, STUDY_SCALE
from mambanorm_study.claims import CLAIMS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.claims.verdict import verdicts
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables import experiments

HOW_TO_READ = (
    "N1→N2 is norm N1 before the block and norm N2 after its scan (the SSM); None is no norm. The "
    "models are small, and train in seconds to minutes on a laptop."
)

PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"  # notebook 12 draws the picture, the README shows it


@dataclass(frozen=True)
class Finding:
    """A statement of the paper, and what the recorded runs show about it."""

    paper: str
    seen: str
    notebook: str  # the notebook that shows it


# The numbers in braces are computed by tests/mambanorm_study/advice/test_first_page.py.
FINDINGS = (
    Finding(
        "The right norm lifts the accuracy from 7 to 69 % (on video).",
        "A norm helps: on curves GN→GN beats no norm by {30.2} points.",
        "03_type",
    ),
    Finding(
        "A norm works better after the scan than before the block.",
        "On curves it does, by {4.3} points on average and mostly through BN. In a language model "
        "it is the other way round.",
        "04_position",
    ),
    Finding(
        "GN is the best norm after the scan.",
        "On curves BN is better there than GN, by {1.3} points on average over the norm in front.",
        "05_combination",
    ),
    Finding(
        "The proposal, NormVary→GN, beats the original Mamba.",
        "On curves it does, by {3.1} points, but so does None→GN. On nested lists (ListOps) it "
        "does not gain a point.",
        "08_validation",
    ),
    Finding(
        "A norm after the scan keeps the outputs flat over depth.",
        "Not BN: with BN there and no other norm, the largest token grows by {5.5} powers of ten "
        "in eight blocks.",
        "07_diagnostics",
    ),
)


def findings_table(links: str | None = None) -> str:
    """Return the findings as a Markdown table.

    links: the folder of the notebooks, such as "" or "notebooks/"; None means no links.
    """
    lines = ["| the paper says | we saw | notebook |", "|---|---|---|"]
    for finding in FINDINGS:
        link = finding.notebook[:2]
        if links is not None:
            link = f"[{link}]({links}{finding.notebook}.ipynb)"
        lines.append(f"| {finding.paper} | {without_braces(finding.seen)} | {link} |")
    return "\n".join(lines)


def hero_grids(evidence: Evidence) -> dict[str, pd.DataFrame]:
    """Return the grids of `figures.fig_hero`: title → the accuracies of the 36 pairs of norms.

    Without recorded runs of a pair the pair is left out.
    """
    grids = {}
    for kind, title in (("sequence", "sequences (curves)"), ("vision", "images (glyphs)")):
        task = ADVISED_ON[kind]
        table = ranking(evidence, task)
        chosen, rows = table.arm.iloc[0], []
        for arm in experiments.GRID_ARMS:
            facts = accuracy(str(arm), task, evidence)
            if facts["n"]:
                who = RECOMMENDED_BY[kind].get(str(arm))
                marks = {"is_original": who == ORIGINAL, "is_chosen": str(arm) == chosen}
                rows.append({"n1": arm.n1, "n2": arm.n2, **facts, **marks})
        grids[title] = pd.DataFrame(rows)
    return grids


def findings_page() -> str:
    """Return the page docs/index.html as HTML, made from the recorded results.

    Raises ValueError if there are no recorded results.
    """
    # imported here, because the functions above need neither templates nor images
    from PIL import Image

    from mambanorm_study.claims.pages import basis
    from mambanorm_study.report.page import enlarge_on_click, markdown, page, template
    from mambanorm_study.report.verdict_page import verdict_html

    frame = recorded(STUDY_SCALE)
    judged, advice = verdicts(frame, CLAIMS, scale=STUDY_SCALE), what_to_do(frame)
    webp = BytesIO()
    Image.open(PICTURE).save(webp, format="webp", lossless=True, quality=100, method=6)
    picture = f"data:image/webp;base64,{base64.b64encode(webp.getvalue()).decode()}"
    body = template(
        "findings.html",
        found=markdown(findings_table()),
        note=HOW_TO_READ,
        advice=markdown(advice_table(advice)),
        details=markdown(advice_in_detail(advice)),
        picture=f'<img alt="The Mamba block, and the accuracy of 36 pairs" src="{picture}">',
        claims=verdict_html(judged, caption=basis(judged, "recorded"), pictures=False),
    )
    return page(
        "Normalization in Mamba: what was found", enlarge_on_click(body), template("index.css")
    )


if __name__ == "__main__":
    PAGE.write_text(findings_page(), "utf-8")
    print(PAGE)
