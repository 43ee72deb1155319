"""Moving every control of an explorer, as a visitor does, and seeing its picture follow."""

from __future__ import annotations

import time
from collections.abc import Iterator

CONTROLS = ".widget-slider, .widget-dropdown, .widget-toggle-buttons, .widget-text"
CHANGED = "([image, before]) => image.src !== before && image.complete && image.naturalWidth > 0"


def source(explorer) -> str:
    return explorer.locator("img.mambanorm-picture").get_attribute("src")


def moves(explorer) -> Iterator[tuple[str, float]]:
    """Moves each visible control of an explorer by one step: its name, and the seconds until the picture changed."""
    controls = explorer.locator(CONTROLS)
    for i in range(controls.count()):
        control = controls.nth(i)
        if control.is_visible():
            yield control.locator(".widget-label").first.inner_text(), answer_time(explorer, control)


def answer_time(explorer, control) -> float:
    before, start = source(explorer), time.perf_counter()
    move(control)
    image = explorer.locator("img.mambanorm-picture").element_handle()
    explorer.page.wait_for_function(CHANGED, arg=[image, before], timeout=30_000)
    return time.perf_counter() - start


def move(control) -> None:
    """One step of a slider, the next entry of a menu, another button, or other numbers."""
    kind = control.get_attribute("class")
    if "widget-slider" in kind:
        control.locator(".noUi-handle").focus()
        control.page.keyboard.press("ArrowRight")
    elif "widget-dropdown" in kind:
        menu = control.locator("select")
        entries = menu.locator("option").count()
        menu.select_option(index=(menu.evaluate("menu => menu.selectedIndex") + 1) % entries)
    elif "widget-toggle-buttons" in kind:
        control.locator("button:not(.mod-active)").first.click()
    else:
        field = control.locator("input")
        field.fill("0 1 0 0 -1 0")
        field.press("Enter")
