"""A real browser for these tests: Debian's Chromium, driven by Playwright; its pages talk to
127.0.0.1 alone.

MAMBANORM_CHROMIUM names another one. What the tests see is kept in tests/browser/screenshots (git
ignores it).
"""

import os
import shutil
from pathlib import Path

import pytest

SCREENSHOTS = Path(__file__).parent / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"
)  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    """Chromium, closed when the file's tests are done: Playwright keeps an event loop running
    meanwhile."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make setup"
    )
    found = os.environ.get("MAMBANORM_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if found is None:
        pytest.skip(
            "there is no Chromium here: apt-get install chromium, or name one in MAMBANORM_CHROMIUM"
        )
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=found, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def shoot():
    """Keeps what a page shows: shoot(page, "name")."""
    SCREENSHOTS.mkdir(exist_ok=True)
    return lambda page, name, **options: page.screenshot(
        path=SCREENSHOTS / f"{name}.png", **options
    )
