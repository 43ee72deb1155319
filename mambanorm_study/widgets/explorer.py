"""Explorer: controls above one picture that follows them.

JupyterLab and voila show the widget. GitHub, the report and an untrusted notebook show a PNG of the
first values instead.
"""

import gc
import io
from collections.abc import Callable
from html import escape

import ipywidgets as w
from traitlets import Unicode

from mambanorm_study.figures.style import StudyFigure


class Picture(w.Image):
    """An image whose `tooltip` is its alternative text.

    The front end of ipywidgets shows a tooltip only for widgets with a description, which Image
    lacks.
    """

    description = Unicode("").tag(sync=True)


class Explorer(w.VBox):
    """Controls above the figure that `draw` makes of their values.

    draw: called with the value of each control by name. If it raises ValueError, its message is
    shown and the last picture stays.
    """

    def __init__(self, draw: Callable[..., StudyFigure], **controls: w.Widget):
        self.controls, self._draw = controls, draw
        gc.freeze()  # drawing triggers the garbage collector, which would visit all of torch
        self.first = draw(**self.values)
        self.picture = Picture(
            value=self.first._repr_png_(1.0), format="png", layout=w.Layout(max_width="100%")
        )
        self.picture.add_class("mambanorm-picture")
        self.picture.tooltip = self.first.get_label()
        self.message = w.HTML()
        for control in controls.values():
            control.observe(self._redraw, "value")
        # controls wrap to a second row, because sliders in one row would lose their tracks
        row = w.HBox(list(controls.values()), layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.message, self.picture])
        self.add_class("mambanorm-explorer")

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, _) -> None:
        """Show the picture of the current values."""
        try:
            figure = self._draw(**self.values)
        except ValueError as error:
            self.message.value = f"<p>{escape(str(error))}</p>"
            return
        png = io.BytesIO()
        # little compression makes a large file, but quickly
        figure.savefig(png, dpi=figure.dpi, pil_kwargs={"compress_level": 1})
        self.message.value = ""
        with self.picture.hold_sync():
            self.picture.value, self.picture.tooltip = png.getvalue(), figure.get_label()

    def _repr_mimebundle_(self, **options):
        png, metadata = self.first._repr_mimebundle_()
        return {**super()._repr_mimebundle_(**options), **png}, metadata
