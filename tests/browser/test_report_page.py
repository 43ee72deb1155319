"""The static report in a browser without a network: wide and narrow, formulas drawn, links that lead somewhere."""

from __future__ import annotations

import shutil

import nbformat
import pytest

from mambanorm.basics.settings import ROOT
from mambanorm.report.index import write_index
from mambanorm.report.notebook_page import to_html
from mambanorm.report.outcome import read_outcome

pytestmark = pytest.mark.browser

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
FLAT = "[...document.querySelectorAll('math')].filter(m => m.getBoundingClientRect().height < 4).length"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report that the committed notebooks make."""
    folder = tmp_path_factory.mktemp("report")
    for path in NOTEBOOKS:
        (folder / f"{path.stem}.html").write_text(to_html(nbformat.read(path, 4), path.stem), "utf-8")
        shutil.copy(path, folder)
    write_index([read_outcome(folder / path.name) for path in NOTEBOOKS], folder, {"Scale": "quick"})
    return folder


@pytest.fixture(scope="module", params=SIZES)
def page(browser, request):
    context = browser.new_context(viewport=dict(zip(("width", "height"), SIZES[request.param])), offline=True)
    page = context.new_page()
    page.size = request.param
    yield page
    context.close()


@pytest.mark.parametrize("name", ["index", *(path.stem for path in NOTEBOOKS)])
def test_a_page_of_the_report_fits_the_screen_and_draws_its_formulas(page, report, name, shoot):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((report / f"{name}.html").as_uri())
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(FLAT) == 0
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    shoot(page, f"report-{page.size}-{name}")


def test_every_link_of_the_report_leads_somewhere(page, report):
    found, missing = 0, []
    for path in sorted(report.glob("*.html")):
        page.goto(path.as_uri())
        links = page.evaluate("[...document.links].map(link => [link.protocol, link.pathname, link.hash])")
        for protocol, place, anchor in links:
            if protocol != "file:":
                continue
            found += 1
            target = report / place.rpartition("/")[2]
            here = target == path and anchor
            there = target.is_file() and (
                not here or page.evaluate("id => !!document.getElementById(decodeURIComponent(id))", anchor[1:])
            )
            if not there:
                missing.append((path.name, place, anchor))
    assert found > 3 * len(NOTEBOOKS)
    assert missing == []
