"""Explorer: controls above one picture, which follows them in place.

JupyterLab and voila show the widget. GitHub, the report and a notebook that is not trusted show the
PNG that goes with it, the picture of the first values.
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
    """An image with words for those who cannot see it: `tooltip`. The browser's side of ipywidgets
    shows a tooltip only of a widget that has a description, if an empty one; an Image has none."""

    description = Unicode("").tag(sync=True)


class Explorer(w.VBox):
    """Controls above the figure that `draw` makes of their values.

    `arrange(controls)` is called before each picture: it shows, hides or fills controls that depend
    on others. A ValueError of `draw` is shown in words, and the last picture stays. `beside`: what
    stands behind the controls and is none of them.
    """

    def __init__(
        self,
        draw: Callable[..., StudyFigure],
        *,
        arrange: Callable[[dict[str, w.Widget]], None] | None = None,
        beside: Sequence[w.Widget] = (),
        **controls: w.Widget,
    ):
        self.controls, self._arrange = controls, arrange or (lambda controls: None)
        self._draw, self._putting = draw, False
        self._arrange(controls)
        self.first = draw(**self.values)
        self.picture = Picture(
            value=self.first._repr_png_(1.0), format="png", layout=w.Layout(max_width="100%")
        )
        self.picture.add_class("mambanorm-picture")
        self.picture.tooltip = self.first.get_label()  # what a reader hears who cannot see it
        self.said = w.HTML()
        for control in controls.values():
            control.observe(self.redraw, "value")
        # controls wrap to a second row: squeezed into one row, sliders lose their tracks
        row = w.HBox([*controls.values(), *beside], layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.said, self.picture])
        self.add_class("mambanorm-explorer")

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def put(self, **values: object) -> None:
        """Gives several controls their values and draws once."""
        self._putting = True
        try:
            for name, value in values.items():
                self.controls[name].value = value
        finally:
            self._putting = False
        self.redraw()

    def redraw(self, *_) -> None:
        """Shows the picture of the values as they are now."""
        if self._putting:
            return
        # a figure calls for the collector many times while it is drawn: after torch is imported,
        # 0.4 s each
        gc.disable()
        try:
            self._arrange(self.controls)
            figure = self._draw(**self.values)
            figure.savefig(
                png := io.BytesIO(), dpi=figure.dpi, pil_kwargs={"compress_level": 1}
            )  # large, but soon
        except ValueError as error:
            self.said.value = f"<p>{escape(str(error))}</p>"
            return
        finally:
            gc.enable()
        self.follow()
        self.said.value = ""
        with self.picture.hold_sync():
            self.picture.value, self.picture.tooltip = png.getvalue(), figure.get_label()

    def follow(self) -> None:
        """Changes what stands beside the picture and shows the values, too, once their picture is
        drawn."""

    def _repr_mimebundle_(self, **options):
        alone, words = self.first._repr_mimebundle_()
        return super()._repr_mimebundle_(**options) | alone, words


def slider(
    value: float, low: float, high: float, name: str, *, step: float = 0.5, **options
) -> w.FloatSlider:
    """A wide slider: of its 380 pixels its name and its number take half, the track the rest."""
    layout = w.Layout(width="380px", max_width="100%")
    given = dict(
        min=low, max=high, step=step, description=name, continuous_update=False, layout=layout
    )
    return w.FloatSlider(value=value, **given | options)


def log_slider(
    value: float, low: float, high: float, name: str, *, step: float = 0.05
) -> w.FloatLogSlider:
    """A wide slider on which every tenfold takes the same way; `step` is the part of one that a
    step goes."""
    layout = w.Layout(width="380px", max_width="100%")
    ends = dict(min=math.log10(low), max=math.log10(high), step=step, readout_format=".3g")
    return w.FloatLogSlider(
        value=value, description=name, continuous_update=False, layout=layout, **ends
    )


def choice(value: object, options, name: str) -> w.Dropdown:
    """A menu."""
    return w.Dropdown(
        options=options, value=value, description=name, layout=w.Layout(width="240px")
    )


def buttons(value: object, options, name: str) -> w.ToggleButtons:
    """A few buttons of which one is pressed, beside their name."""
    style, words = (
        w.ToggleButtonsStyle(button_width="auto", description_width="80px"),
        "".join(map(str, options)),
    )
    width = f"{130 + 32 * len(options) + 8 * len(words)}px"
    layout = w.Layout(
        display="flex", flex_flow="row", align_items="center", width=width, max_width="100%"
    )
    return w.ToggleButtons(
        options=options, value=value, description=name, style=style, layout=layout
    )


def show(control: w.Widget, yes: bool) -> None:
    """Shows a control, or leaves it out of the row."""
    control.layout.display = "flex" if yes else "none"  # as buttons have it from the start
