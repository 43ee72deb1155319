"""A visitor: a server in a process of its own, every control of an explorer moved, and its picture seen to follow."""

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mambanorm.basics.settings import ROOT

CONTROLS = ".widget-slider, .widget-dropdown, .widget-toggle-buttons, .widget-text"
PICTURE = "img.mambanorm-picture"
CHANGED = "([image, before]) => image.src !== before && image.complete && image.naturalWidth > 0"
WAIT = 120_000  # ms; a machine that does other things as well is slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(*command: str, ready: str, seconds: float = 120, cwd: Path = ROOT) -> Iterator[str]:
    """Runs a Python module as a server and gives its first line that holds `ready`; ended as Ctrl-C does."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield _line(process, ready, time.monotonic() + seconds)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()


def _line(process: subprocess.Popen, ready: str, until: float) -> str:
    said = []
    for line in process.stdout:
        said.append(line)
        if ready in line:
            return line
        if time.monotonic() > until:
            break
    raise AssertionError(f"no line with {ready!r}: {''.join(said)[-2000:]}")


def seconds_until_changed(explorer, act) -> float:
    """Does something and waits for another picture."""
    image = explorer.locator(PICTURE).element_handle()
    before, start = image.get_attribute("src"), time.perf_counter()
    act()
    explorer.page.wait_for_function(CHANGED, arg=[image, before], timeout=WAIT)
    return time.perf_counter() - start


def moves(explorer) -> Iterator[tuple[str, float]]:
    """Moves each visible control of an explorer by one step: its name, and the seconds until the picture changed."""
    controls = explorer.locator(CONTROLS)
    for i in range(controls.count()):
        control = controls.nth(i)
        if control.is_visible():
            name = control.locator(".widget-label").first.inner_text()
            yield name, seconds_until_changed(explorer, lambda control=control: move(control))


def move(control) -> None:
    """One step of a slider (back to its start from its end), the next entry of a menu, another button, or what a
    field asks for."""
    kind = control.get_attribute("class")
    if "widget-slider" in kind:
        handle = control.locator(".noUi-handle")
        at_its_end = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        handle.focus()
        control.page.keyboard.press("Home" if at_its_end else "ArrowRight")
    elif "widget-dropdown" in kind:
        menu = control.locator("select")
        entries = menu.locator("option").count()
        menu.select_option(index=(menu.evaluate("menu => menu.selectedIndex") + 1) % entries)
    elif "widget-toggle-buttons" in kind:
        control.locator("button:not(.mod-active)").first.click()
    else:
        field = control.locator("input")
        asked = field.get_attribute("placeholder") or ""
        field.fill(asked.removeprefix("such as ") or "0 1 0 0 -1 0")
        field.press("Enter")


def play(explorer) -> str:
    """Does what a visitor can do with an explorer, and says how long its answers took: moves every control, clicks a
    cell of the grid."""
    times = list(moves(explorer))
    assert len(times) >= 3
    cells = explorer.locator(".widget-gridbox button")
    if cells.count():
        assert cells.count() == 36
        times.append(("a cell", seconds_until_changed(explorer, cells.nth(14).click)))
    slow = max(times, key=lambda one: one[1])
    median = statistics.median(seconds for _, seconds in times)
    return f"{len(times)} controls, median answer {1e3 * median:.0f} ms, slowest {slow[0]} {1e3 * slow[1]:.0f} ms"
