"""Tests of the static report in a browser without a network, on a wide and a narrow screen."""

import io

import numpy as np
import pytest
from PIL import Image

from mambanorm_study.basics.settings import ROOT
from tests.mambanorm_study.report import test_report

pytestmark = pytest.mark.browser

SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
report = test_report.committed
FLAT = (
    "[...document.querySelectorAll('math')]"
    ".filter(formula => formula.getBoundingClientRect().height < 4).length"
)


@pytest.fixture(scope="module", params=SIZES)
def page(browser, request):
    context = browser.new_context(
        viewport=dict(zip(("width", "height"), SIZES[request.param], strict=True)), offline=True
    )
    page = context.new_page()
    page.size = request.param
    yield page
    context.close()


PAGES = ["index", *(path.stem for path in NOTEBOOKS)]
BOTH = ["index", "04_position", "12_verdicts"]  # a page that fits a telephone fits a screen
LOOKS = [*(("narrow", name) for name in PAGES), *(("wide", name) for name in BOTH)]


@pytest.mark.parametrize(("page", "name"), LOOKS, indirect=["page"])
def test_a_page_of_the_report_fits_the_screen_and_draws_its_formulas(page, report, name, shoot):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((report / f"{name}.html").as_uri())
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(FLAT) == 0
    assert page.evaluate(
        "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    )
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    shoot(page, f"report-{page.size}-{name}")


def test_the_first_card_is_within_the_first_screens_and_a_claim_has_few_lines(page, report):
    page.goto((report / "index.html").as_uri())
    if page.size == "wide":
        assert (
            page.evaluate("document.querySelector('article').getBoundingClientRect().top")
            < 4 * SIZES["wide"][1]
        )
        lines = (
            "[...document.querySelectorAll('.verdicts tbody tr')]"
            ".map(row => row.getBoundingClientRect().height)"
        )
        assert max(page.evaluate(lines)) < 80
    page.locator(".verdicts tbody summary").first.click()
    assert page.locator(".verdicts tbody pre").first.is_visible()
    assert page.evaluate(OVERFLOW) <= 0
    page.locator(".verdicts > details > summary").first.click()  # the legend below the table
    assert page.evaluate(OVERFLOW) <= 0


CUT_OFF = """() => {
const tables = [...document.querySelectorAll('.dataframe')].filter(table => table.offsetParent);
return tables.map(table => {
  const wider = table.scrollWidth > table.clientWidth + 1;
  table.scrollLeft = 10_000;
  const end = table.getBoundingClientRect().right;
  const last = table.querySelector('tbody tr').lastElementChild.getBoundingClientRect().right;
  return [wider, last <= end + 1 && end <= window.innerWidth + 1];
})}"""


def test_all_of_a_table_that_is_wider_than_the_screen_can_be_reached(page, report):
    tables = []
    for path in NOTEBOOKS:
        page.goto((report / f"{path.stem}.html").as_uri())
        tables += page.evaluate(CUT_OFF)
    assert all(reached for _, reached in tables)
    assert any(wider for wider, _ in tables) or page.size == "wide"


def test_a_click_enlarges_a_figure_in_its_own_box_without_a_script(browser, report, shoot):
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, offline=True, java_script_enabled=False
    )
    page = context.new_page()
    for name, shown in (("index", 300), ("04_position", 300)):
        page.goto((report / f"{name}.html").as_uri())
        figure = page.locator(".figure").first
        image = figure.locator("img")
        assert shown < image.bounding_box()["width"] <= 390
        image.click()
        assert image.bounding_box()["width"] >= 950
        assert figure.bounding_box()["width"] <= 390  # the page stays as wide as it is
        shoot(page, f"report-enlarged-{name}")
        image.click(position={"x": 20, "y": 20})
        assert image.bounding_box()["width"] <= 390
    context.close()


def test_figures_turn_dark_in_a_dark_page_and_keep_their_hues(browser, report, shoot):
    """The share of bluish pixels among the coloured ones of a figure is high on both grounds."""
    blue = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, offline=True, color_scheme=scheme
        )
        page = context.new_page()
        page.goto((report / "index.html").as_uri())
        shot = page.locator(".figure img").first.screenshot()
        pixels = np.asarray(Image.open(io.BytesIO(shot)).convert("HSV"), int)
        ground = np.bincount(pixels[..., 2].ravel()).argmax()
        assert ground > 250 if scheme == "light" else ground < 60
        coloured = pixels[(pixels[..., 1] > 110) & (pixels[..., 2] > 90)]
        blue[scheme] = (abs(coloured[:, 0] - 152) < 20).mean()
        shoot(page, f"report-{scheme}-index")
        thumbnail = page.locator(".picture img").last
        thumbnail.scroll_into_view_if_needed()
        light = np.asarray(Image.open(io.BytesIO(thumbnail.screenshot())).convert("L"))
        assert (
            light.max() > 190 if scheme == "dark" else light.min() < 90
        )  # its words and axes can be seen
        context.close()
    assert blue["dark"] > 0.2 < blue["light"]
