"""Tests of `mambanorm explore` in a browser: one page with every explorer, and working controls."""

import re
import urllib.request

import pytest

from mambanorm_study.widgets import EXPLORERS
from tests.browser.visit import free_port, play, server

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(browser) -> str:
    with server(
        "mambanorm_study", "explore", "--no-browser", "--port", str(free_port()), ready="http://"
    ) as line:
        yield re.search(r"http://\S+", line)[0]


@pytest.fixture(scope="module")
def page(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.requests = []  # to other servers
    page.on(
        "request",
        lambda request: (
            page.requests.append(request) if "//127.0.0.1:" not in request.url else None
        ),
    )
    page.goto(
        address, wait_until="commit", timeout=60_000
    )  # the page comes when all of its cells have run
    page.locator("img.mambanorm-picture").nth(len(EXPLORERS) - 1).wait_for(timeout=180_000)
    return page


def test_the_page_is_on_this_machine_only_and_needs_its_token(address):
    assert address.startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address.partition("?")[0]) as answer:
        assert "/login" in answer.url
        assert b"mambanorm" not in answer.read().partition(b"<body")[2]


def test_the_page_loads_nothing_from_other_servers(page):
    """The browser blocks the requests of voila's template by the content security policy."""
    sent = [
        request.url
        for request in page.requests
        if request.url.startswith("http") and request.failure != "csp"
    ]
    assert sent == []


def test_the_page_has_every_explorer_under_its_title(page, shoot):
    assert page.locator(".mambanorm-explorer").count() == len(EXPLORERS)
    assert page.locator("h2").all_inner_texts() == list(EXPLORERS)
    assert "rror" not in page.locator("body").inner_text()
    shoot(page, "explore-1280", full_page=True)


@pytest.mark.parametrize("number", range(len(EXPLORERS)), ids=list(EXPLORERS))
def test_every_control_changes_its_picture(page, number, shoot):
    explorer = page.locator(".mambanorm-explorer").nth(number)
    explorer.scroll_into_view_if_needed()
    assert play(explorer) == len(list(EXPLORERS.values())[number]().controls)
    shoot(explorer, f"explore-{number}")


def test_nothing_overflows_on_a_telephone(page, shoot):
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(300)
    pictures = page.locator("img.mambanorm-picture")
    for number in range(len(EXPLORERS)):
        box = pictures.nth(number).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 391
    shoot(page, "explore-390", full_page=True)
    page.set_viewport_size({"width": 1280, "height": 900})
