"""docs/index.html: what was found, its picture, and every claim in one line, as one page to be published as it is.

`python -m mambanorm.claims.findings_page` writes it from the recorded results. GitHub Pages shows it when told to
serve docs/.
"""

from __future__ import annotations

import base64
from pathlib import Path

from mambanorm.basics.atomic import write_text
from mambanorm.basics.settings import ROOT
from mambanorm.claims.findings import findings
from mambanorm.claims.headline import headline
from mambanorm.claims.verdict_html import verdict_html
from mambanorm.claims.verdict_page import basis, runs_to_judge
from mambanorm.report.page import figures, markdown, page, template

PAGE = ROOT / "docs" / "index.html"
PICTURE = ROOT / "data" / "readme.png"
"""What notebook 12 draws, and the README shows."""


def findings_page() -> str:
    """The page, from the recorded results. ValueError where none are recorded."""
    judged = runs_to_judge("quick", "recorded")
    verdicts = headline(judged.frame, judged.scales)
    picture = base64.b64encode(PICTURE.read_bytes()).decode()
    body = template(
        "findings.html",
        found=markdown("\n".join(f"- {sentence}" for sentence in findings())),
        picture=f'<img alt="Every claim with its verdict and interval" src="data:image/png;base64,{picture}">',
        claims=verdict_html(verdicts, caption=basis(verdicts, judged.scales[0], judged.source), pictures=False),
    )
    return page("Normalization in Mamba: what was found", figures(body), template("index.css"))


def write_findings_page(path: Path = PAGE) -> Path:
    """Writes the page, and beside it what tells GitHub Pages to serve the folder as it is."""
    write_text(path, findings_page())
    write_text(path.with_name(".nojekyll"), "")
    return path


if __name__ == "__main__":
    print(write_findings_page())
