"""Explorers for the notebooks: a few controls above a figure. Where nobody can click, the first picture is shown.

JupyterLab shows the widget. GitHub, the report and a notebook that is not trusted show the PNG that goes with it.
"""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as w
from IPython.display import display

from mambanorm.figures.diagrams import fig_block
from mambanorm.figures.lessons import example_batch, fig_effect
from mambanorm.figures.style import StudyFigure
from mambanorm.norms import NORMS


class Explorer(w.VBox):
    """Controls above the figure that `draw` makes of their values."""

    def __init__(self, draw: Callable[..., StudyFigure], **controls: w.Widget):
        self.first, picture = draw(**_values(controls)), w.Output()

        def redraw(*_) -> None:
            with picture:
                picture.clear_output(wait=True)
                display(draw(**_values(controls)))

        for control in controls.values():
            control.observe(redraw, "value")
        with picture:
            display(self.first)
        # controls wrap to a second row: squeezed into one row, sliders lose their tracks
        row = w.Layout(flex_flow="row wrap")
        super().__init__([w.HBox(list(controls.values()), layout=row), picture])

    def _repr_mimebundle_(self, **options):
        data, metadata = self.first._repr_mimebundle_()
        return super()._repr_mimebundle_(**options) | data, metadata


def _values(controls: dict[str, w.Widget]) -> dict[str, object]:
    return {name: control.value for name, control in controls.items()}


def _slider(value: float, to: float, name: str) -> w.FloatSlider:
    layout = w.Layout(width="380px", max_width="100%")  # its name and its number take half, the track the rest
    return w.FloatSlider(value=value, min=0, max=to, step=0.5, description=name, continuous_update=False, layout=layout)


def explore_norms() -> Explorer:
    """Pick a norm, move the channels' means and spreads, see what is left of them."""

    def draw(norm: str, offset: float, spread: float, groups: int) -> StudyFigure:
        return fig_effect(example_batch(offset=offset, spread=spread), [norm, "None"], groups=groups)

    return Explorer(
        draw,
        norm=w.Dropdown(options=list(NORMS), value="LN", description="norm"),
        offset=_slider(2, 10, "means"),
        spread=_slider(3, 6, "spreads"),
        groups=w.Dropdown(options=[1, 2, 4, 8, 16], value=4, description="groups"),
    )


def explore_block() -> Explorer:
    """Pick N1 and N2, see the block."""
    return Explorer(
        lambda n1, n2: fig_block(f"{n1}>SSM>{n2}"),
        n1=w.Dropdown(options=list(NORMS), value="RMSN", description="N1"),
        n2=w.Dropdown(options=list(NORMS), value="GN", description="N2"),
    )
