"""Explorers for the notebooks: a few controls over a figure. Where no one can click, the first picture stays."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as w
from IPython.display import display
from matplotlib.figure import Figure

from mambanorm.figures.diagrams import fig_block
from mambanorm.figures.lessons import example_batch, fig_effect
from mambanorm.norms import NORMS


def _explorer(draw: Callable[..., Figure], **controls: w.Widget) -> w.VBox:
    """The controls above the figure that `draw` makes of their values."""
    picture = w.Output()

    def redraw(*_) -> None:
        values = {name: control.value for name, control in controls.items()}
        with picture:
            picture.clear_output(wait=True)
            display(draw(**values))

    for control in controls.values():
        control.observe(redraw, "value")
    redraw()
    return w.VBox([w.HBox(list(controls.values())), picture])


def explore_norms() -> w.VBox:
    """Pick a norm, move the channels' means and spreads, see what is left of them."""

    def draw(norm: str, offset: float, spread: float, groups: int) -> Figure:
        return fig_effect(example_batch(offset=offset, spread=spread), [norm, "None"], groups=groups)

    return _explorer(
        draw,
        norm=w.Dropdown(options=list(NORMS), value="LN", description="norm"),
        offset=w.FloatSlider(value=2, min=0, max=10, step=0.5, description="means", continuous_update=False),
        spread=w.FloatSlider(value=3, min=0, max=6, step=0.5, description="spreads", continuous_update=False),
        groups=w.Dropdown(options=[1, 2, 4, 8, 16], value=4, description="groups"),
    )


def explore_block() -> w.VBox:
    """Pick N1 and N2, see the block."""
    return _explorer(
        lambda n1, n2: fig_block(f"{n1}>SSM>{n2}"),
        n1=w.Dropdown(options=list(NORMS), value="RMSN", description="N1"),
        n2=w.Dropdown(options=list(NORMS), value="GN", description="N2"),
    )
