"""The explorers in JupyterLab, as a learner meets them: open the notebook, run all, move every control."""

from __future__ import annotations

import nbformat
import pytest
from browser.visit import free_port, play, server

from mambanorm.widgets import EXPLORERS
from mambanorm.widgets.page import explorers_notebook

pytestmark = pytest.mark.browser

TOKEN = "for-this-test-only"
LONG = 180_000  # ms; a machine that does other things as well is slow
TAKEN = 2_000  # ms until a cell that is told to run says so
EXPLORER = ".mambanorm-explorer"
IDLE = '.jp-NotebookPanel-toolbar [data-status="idle"]'


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory) -> str:
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed: make setup")
    folder = tmp_path_factory.mktemp("lab")
    nbformat.write(explorers_notebook(), folder / "explorers.ipynb")
    port = str(free_port())
    options = (f"--port={port}", "--ip=127.0.0.1", "--port-retries=0", f"--IdentityProvider.token={TOKEN}")
    root = ("--allow-root", "--no-browser", f"--ServerApp.root_dir={folder}")
    with server("jupyterlab", *options, *root, ready="is running at"):
        yield f"http://127.0.0.1:{port}/lab/workspaces/test/tree/explorers.ipynb?reset&token={TOKEN}"


@pytest.fixture(scope="module")
def page(browser, address):
    """The notebook, opened, and told to run from its first cell to its last."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(address, timeout=LONG)
    page.locator(IDLE).wait_for(timeout=LONG)
    run_all(page)
    return page


def run_all(page) -> None:
    """Run all cells, again where it was dropped: on a slow machine JupyterLab calls a kernel idle that is not connected
    yet, and then does nothing; and it shows a still picture where its part for widgets is not loaded yet."""
    cells = page.locator(".jp-CodeCell")
    for _ in range(LONG // TAKEN):
        if cells.nth(1).locator(EXPLORER).count():
            return
        if page.locator(IDLE).count() and not page.locator(".jp-InputPrompt", has_text="*").count():
            page.get_by_role("menuitem", name="Run", exact=True).click()
            page.locator('[data-command="runmenu:run-all"]').click()
        page.wait_for_timeout(TAKEN)
    pytest.fail(f"JupyterLab shows no explorer; its first cells: {[cell.inner_text() for cell in cells.all()[:2]]}")


@pytest.mark.parametrize("number", range(len(EXPLORERS)), ids=list(EXPLORERS))
def test_every_control_changes_its_picture_in_jupyterlab(page, number, shoot, capsys):
    cell = page.locator(".jp-CodeCell").nth(number + 1)
    cell.scroll_into_view_if_needed(timeout=LONG)  # JupyterLab draws only what is near the screen
    explorer = cell.locator(EXPLORER)
    explorer.locator("img.mambanorm-picture").wait_for(timeout=LONG)
    said = play(explorer)
    shoot(page, f"lab-{number}")
    with capsys.disabled():
        print(f"\n{list(EXPLORERS)[number]}: {said}")


def test_nothing_runs_any_more_and_no_cell_failed(page):
    page.locator(IDLE).wait_for(timeout=LONG)
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"], .jp-RenderedText .ansi-red-fg').count() == 0
