"""A visitor of the explorers: starts a server, moves every control, and waits for the picture."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mambanorm_study.basics.settings import ROOT

CONTROLS = ".widget-slider, .widget-dropdown, .widget-toggle-buttons, .widget-text"
PICTURE = "img.mambanorm-picture"
CHANGED = "([image, before]) => image.src !== before && image.complete && image.naturalWidth > 0"
WAIT = 120_000  # ms; long, because a busy machine is slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def server(*command: str, ready: str) -> Iterator[str]:
    """Run a Python module as a server, yield its first line with `ready`, and end it as Ctrl-C."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = dict(
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=ROOT, env=environment, **pipes)
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if ready in line:
                break
        else:
            raise AssertionError(f"no line with {ready!r}: {''.join(lines)[-2000:]}")
        yield line
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()


def changes(explorer, act) -> None:
    """Call `act` and wait for another picture."""
    image = explorer.locator(PICTURE).element_handle()
    before = image.get_attribute("src")
    act()
    explorer.page.wait_for_function(CHANGED, arg=[image, before], timeout=WAIT)


def move(control) -> None:
    """Move a control: a slider by one step, a menu to its next entry, or press another button."""
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


def play(explorer) -> int:
    """Move every control of an explorer and wait for each picture; return the number of controls."""
    controls = [control for control in explorer.locator(CONTROLS).all() if control.is_visible()]
    for control in controls:
        changes(explorer, lambda control=control: move(control))
    return len(controls)
