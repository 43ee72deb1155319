"""explore_scan: Δ, the decay rate and the input by hand; see the states and the output follow."""

from __future__ import annotations

import ipywidgets as w

from mambanorm.figures.scan_view import fig_scan_view
from mambanorm.figures.style import StudyFigure
from mambanorm.study.inside import INPUTS, parse_numbers, scan_by_hand
from mambanorm.widgets.explorer import Explorer, buttons, choice, log_slider, show

BY_HAND = "by hand"


def _arrange(controls: dict[str, w.Widget]) -> None:
    show(controls["numbers"], controls["source"].value == BY_HAND)


def _draw(source: str, numbers: str, delta: float, a: float, selective: bool) -> StudyFigure:
    u = parse_numbers(numbers) if source == BY_HAND else INPUTS[source]
    return fig_scan_view(scan_by_hand(u, delta, a, selective=selective), delta=delta, a=a)


def explore_scan() -> Explorer:
    """Move Δ and the decay rate, choose or type an input, let Δ follow the input: what the states keep and forget."""
    wide = w.Layout(width="480px", max_width="100%")
    return Explorer(
        _draw,
        arrange=_arrange,
        source=choice("two impulses", [*INPUTS, BY_HAND], "input"),
        numbers=w.Text("0 0 1 0 0 0 0 -2 0 0 0 0", description="numbers", continuous_update=False, layout=wide),
        delta=log_slider(0.2, 0.01, 10, "Δ"),
        a=log_slider(1.0, 0.1, 10, "rate |A|"),
        selective=buttons(False, {"the same everywhere": False, "follows the input": True}, "Δ is"),
    )
