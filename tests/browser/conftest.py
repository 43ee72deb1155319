"""Fixtures for tests in a real browser: Chromium, driven by Playwright, with pages on 127.0.0.1.

MAMBANORM_CHROMIUM names another browser. Screenshots are kept in tests/browser/screenshots, which
git ignores.
"""

import os
import shutil
from pathlib import Path

import pytest

SCREENSHOTS = Path(__file__).parent / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser():
    """Return Chromium for the tests of one file, as Playwright keeps an event loop running."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make test"
    )
    paths = [os.environ.get("MAMBANORM_CHROMIUM"), *map(shutil.which, NAMES)]
    path = next((path for path in paths if path), None)
    if path is None:
        pytest.skip(
            "there is no Chromium here: apt-get install chromium, or name one in MAMBANORM_CHROMIUM"
        )
    with playwright.sync_playwright() as engine:
        chromium = engine.chromium.launch(executable_path=path, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture
def shoot():
    """Return a function that keeps a screenshot: shoot(page, "name")."""
    SCREENSHOTS.mkdir(exist_ok=True)
    return lambda page, name, **options: page.screenshot(
        path=SCREENSHOTS / f"{name}.png", **options
    )
