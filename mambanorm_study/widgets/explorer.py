"""Explorer: controls above one picture that follows them.

JupyterLab and voila show the widget. GitHub, the report and an untrusted notebook show a PNG of the
first values instead.
"""

import gc
import io
import math
from collections.abc import Callable, Sequence
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

    arrange: called with the controls before each picture, to show or hide some of them. beside:
    further widgets in the row of the controls. If `draw` raises ValueError, its message is shown
    and the last picture stays.
    """

    def __init__(
        self,
        draw: Callable[..., StudyFigure],
        *,
        arrange: Callable[[dict[str, w.Widget]], None] | None = None,
        beside: Sequence[w.Widget] = (),
        **controls: w.Widget,
    ):
        self.controls, self._draw, self._arrange = controls, draw, arrange
        self._is_setting = False
        self.first = self._figure()
        self.picture = Picture(
            value=self.first._repr_png_(1.0), format="png", layout=w.Layout(max_width="100%")
        )
        self.picture.add_class("mambanorm-picture")
        self.picture.tooltip = self.first.get_label()
        self.message = w.HTML()
        for control in controls.values():
            control.observe(self.redraw, "value")
        # controls wrap to a second row, because sliders in one row would lose their tracks
        row = w.HBox([*controls.values(), *beside], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.message, self.picture])
        self.add_class("mambanorm-explorer")

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def set_values(self, **values: object) -> None:
        """Set several controls and draw once."""
        self._is_setting = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._is_setting = False
        self.redraw()

    def _figure(self) -> StudyFigure:
        if self._arrange:
            self._arrange(self.controls)
        return self._draw(**self.values)

    def redraw(self, *_) -> None:
        """Show the picture of the current values."""
        if self._is_setting:
            return
        png = io.BytesIO()
        gc.disable()  # drawing triggers the collector often, 0.4 s each after torch is imported
        try:
            figure = self._figure()
            # little compression makes a large file, but quickly
            figure.savefig(png, dpi=figure.dpi, pil_kwargs={"compress_level": 1})
        except ValueError as error:
            self.message.value = f"<p>{escape(str(error))}</p>"
            return
        finally:
            gc.enable()
        self.update_controls()
        self.message.value = ""
        with self.picture.hold_sync():
            self.picture.value, self.picture.tooltip = png.getvalue(), figure.get_label()

    def update_controls(self) -> None:
        """Update widgets beside the picture that show the values, once a picture is drawn."""

    def _repr_mimebundle_(self, **options):
        png, metadata = self.first._repr_mimebundle_()
        return {**super()._repr_mimebundle_(**options), **png}, metadata


def wide_layout() -> w.Layout:
    """Return the layout of a slider; its name and its number take half of the width."""
    return w.Layout(width="380px", max_width="100%")


def slider(value: float, low: float, high: float, name: str) -> w.FloatSlider:
    """Return a wide slider with steps of 0.5."""
    return w.FloatSlider(
        value=value,
        min=low,
        max=high,
        step=0.5,
        description=name,
        continuous_update=False,
        layout=wide_layout(),
    )


def log_slider(value: float, low: float, high: float, name: str) -> w.FloatLogSlider:
    """Return a wide logarithmic slider with 20 steps for every factor of ten."""
    return w.FloatLogSlider(
        value=value,
        min=math.log10(low),
        max=math.log10(high),
        step=0.05,
        readout_format=".3g",
        description=name,
        continuous_update=False,
        layout=wide_layout(),
    )


def menu(value: object, options, name: str) -> w.Dropdown:
    """Return a menu."""
    return w.Dropdown(
        options=options, value=value, description=name, layout=w.Layout(width="240px")
    )


def buttons(value: object, options, name: str) -> w.ToggleButtons:
    """Return a few buttons, one of which is pressed, beside their name."""
    letters = sum(len(str(option)) for option in options)
    return w.ToggleButtons(
        options=options,
        value=value,
        description=name,
        style=w.ToggleButtonsStyle(button_width="auto", description_width="80px"),
        layout=w.Layout(
            display="flex",
            flex_flow="row",
            align_items="center",
            width=f"{130 + 32 * len(options) + 8 * letters}px",
            max_width="100%",
        ),
    )
