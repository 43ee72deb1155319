"""The explorers: controls above one picture that follows them.

JupyterLab and voila show the widget. GitHub, the report and an untrusted notebook show the picture
alone, as a PNG.
"""

import gc
from collections.abc import Callable
from functools import lru_cache, partial
from html import escape

import ipywidgets as w
import pandas as pd
import torch
from ipywidgets.widgets.widget_description import DescriptionStyle
from traitlets import Unicode

from mambanorm.arms import MORE_SITES, PRESETS, SYMBOLS, Arm
from mambanorm.norms import NORMS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.figures.explorers import (
    fig_arm_view,
    fig_norm_view,
    fig_scan_view,
)
from mambanorm_study.figures.lessons import example_batch
from mambanorm_study.figures.style import StudyFigure
from mambanorm_study.lessons.invariance import CHANGES, output_change, prepared_norm
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import RECORDED_TASKS
from mambanorm_study.tables.norm_catalog import arm_facts
from mambanorm_study.tables.scan_by_hand import INPUTS, scan_by_hand


class Picture(w.Image):
    """An image whose `tooltip` is its alternative text.

    Image lacks a description, and ipywidgets shows tooltips only of widgets that have one.
    """

    description = Unicode("").tag(sync=True)


class Explorer(w.VBox):
    """Controls above the figure that `draw` makes of their values.

    draw: called with the value of each control by name. If it raises ValueError, its message is
    shown and the last picture stays.
    """

    def __init__(self, draw: Callable[..., StudyFigure], **controls: w.Widget):
        self.controls, self._draw = controls, draw
        self.picture = Picture(format="png", layout=w.Layout(max_width="100%"))
        self.picture.add_class("mambanorm-picture")
        self.message = w.HTML()
        for control in controls.values():
            control.observe(self._redraw, "value")
        # controls wrap to a second row, because sliders in one row would lose their tracks
        row = w.HBox(list(controls.values()), layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.message, self.picture])
        self.add_class("mambanorm-explorer")
        gc.freeze()  # drawing triggers the garbage collector, which would visit all of torch
        self._redraw()

    @property
    def values(self) -> dict[str, object]:
        """The value of each control, by name."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, *_) -> None:
        """Show the picture of the current values."""
        try:
            self.figure = self._draw(**self.values)
        except ValueError as error:
            self.message.value = f"<p>{escape(str(error))}</p>"
            return
        self.message.value = ""
        png, words = self.figure._repr_png_(1.0), self.figure.get_label()
        with self.picture.hold_sync():
            self.picture.value, self.picture.tooltip = png, words

    def _repr_mimebundle_(self, **options):
        png, metadata = self.figure._repr_mimebundle_()
        return {**super()._repr_mimebundle_(**options), **png}, metadata


# Options of every slider: its name and its number take half of the width.
SLIDER = dict(continuous_update=False, layout=dict(width="380px", max_width="100%"))


def _draw_norm(norm: str, training: bool, offset: float, spread: float) -> StudyFigure:
    x = example_batch(offset=offset, spread=spread)
    prepared = prepared_norm(norm, x, training=training)
    with torch.no_grad():
        y = prepared(x)
    changes = {name: output_change(prepared, name, x) for name in CHANGES}
    return fig_norm_view(norm, x, y, changes, training=training)


def explore_norms() -> Explorer:
    """Choose a norm and its mode, and the means and spreads of the channels. The picture shows
    which cells share a statistic, one row of the batch before and after the norm, and which changes
    of the input change the output.
    """
    return Explorer(
        _draw_norm,
        norm=w.Dropdown(value="LN", options=list(NORMS), description="norm"),
        training=w.Dropdown(options={"train": True, "eval": False}, description="mode"),
        offset=w.FloatSlider(2, min=0, max=10, step=0.5, description="means", **SLIDER),
        spread=w.FloatSlider(3, min=0, max=6, step=0.5, description="spreads", **SLIDER),
    )


ABSENT = "this arm is not recorded:\nmambanorm sweep --arms trains it"
CUSTOM = "your own"
# Mamba's original arm, the paper's proposals, and published models with norms at further sites.
NAMED = {
    name: preset for name, preset in PRESETS.items() if preset.arm.more or preset.section == "4.5"
}


# (scale, task): recorded tasks whose score is an accuracy and that a Mamba block learns.
TASKS = (
    ("evening", RECORDED_TASKS[0]),
    ("quick", "digits"),
    ("quick", "listops"),
    ("quick", "digits_images"),
)
COLUMNS = ["score", "chance", "diverged", "run_id"]


@lru_cache(4)
def evidence(scale: str) -> Evidence:
    """Return the recorded results of a scale."""
    return Evidence(recorded(scale), scale)


def recorded_arm(arm: str) -> pd.DataFrame:
    """Return the recorded runs of an arm at its best learning rate, one row per task and seed.

    Columns: scale, task and COLUMNS. score: test accuracy in per cent; that of a diverged run is
    `chance`. The frame is empty if the arm is not recorded.
    """
    tasks = []
    for scale, task in TASKS:
        runs = evidence(scale).of_arms([arm], task)
        if not runs.missing:
            values = {name: runs.columns[name][0] for name in COLUMNS}
            tasks.append(pd.DataFrame(values).assign(scale=scale, task=task))
    return pd.concat(tasks) if tasks else pd.DataFrame(columns=["scale", "task", *COLUMNS])


def _draw_arm(n1: str, n2: str, preset: str, **more: str) -> StudyFigure:
    published = NAMED.get(preset)
    arm = str(published.arm if published else Arm(n1, n2, more))
    weightless = bool(published and published.options)
    results = recorded_arm(arm)
    if weightless:  # only norms with weights are recorded
        results = results.iloc[:0]
    return fig_arm_view(arm_facts(arm, weightless=weightless), results, note=ABSENT)


def explore_block() -> Explorer:
    """Choose N1, N2 and the norms at further sites, or a published model. The picture shows the
    block and the recorded accuracy of its arm; the caption gives the parameters of every part and
    the time of one block.
    """
    # all menus share one layout and one style, because a notebook stores the state of each
    layout, style = w.Layout(width="180px"), DescriptionStyle(description_width="64px")
    menu = partial(w.Dropdown, layout=layout, style=style)
    sites = {
        site: menu(options=list(NORMS), description=SYMBOLS.get(site, site), tooltip=tip)
        for site, tip in MORE_SITES.items()
    }
    return Explorer(
        _draw_arm,
        n1=menu(value="RMSN", options=list(NORMS), description="N1"),
        n2=menu(value="GN", options=list(NORMS), description="N2"),
        **sites,
        preset=menu(options=[CUSTOM, *NAMED], description="model"),
    )


def _draw_scan(source: str, delta: float, a: float, selective: bool) -> StudyFigure:
    scan = scan_by_hand(INPUTS[source], delta, a, selective=selective)
    return fig_scan_view(scan, delta=delta, a=a)


def explore_scan() -> Explorer:
    """Choose an input, Δ and the decay rate, and whether Δ follows the input. The picture shows
    what the states keep of the input and what they forget.
    """
    log_slider = partial(w.FloatLogSlider, max=1, step=0.05, readout_format=".3g", **SLIDER)
    return Explorer(
        _draw_scan,
        source=w.Dropdown(value="two impulses", options=list(INPUTS), description="input"),
        delta=log_slider(0.2, min=-2, description="Δ"),
        a=log_slider(1.0, min=-1, description="rate |A|"),
        selective=w.Dropdown(
            options={"follows the input": True, "the same everywhere": False}, description="Δ is"
        ),
    )
