"""The explorers: controls above one picture, which is drawn again when a control changes.

JupyterLab and voila show the widget. GitHub, the report and an untrusted notebook show the picture
alone, as a PNG. Each explorer has two functions: `draw_…` returns the figure for given values of
the controls, `explore_…` makes the controls. The figures must be drawn quickly, so they are made by
`quick_figure`.
"""

import gc
from collections.abc import Callable
from functools import lru_cache, partial
from html import escape

import ipywidgets as w
import matplotlib
import numpy as np
import pandas as pd
from ipywidgets.widgets.widget_description import DescriptionStyle
from traitlets import Unicode

from mambanorm.arms import MORE_SITES, PRESETS, SYMBOLS, Arm
from mambanorm.norms import NORMS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.figures.colours import COMBINATION, GREY, INDIGO, INK, norm_colour
from mambanorm_study.figures.diagrams import draw_block, draw_cells, influencing_cells
from mambanorm_study.figures.lessons import draw_row, example_batch, mean_sd
from mambanorm_study.figures.style import StudyFigure, finish, jitter, quick_figure, styled
from mambanorm_study.lessons.invariance import CHANGE_LIMIT, CHANGES, output_change, prepared_norm
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import RECORDED_TASKS
from mambanorm_study.tables.norm_catalog import arm_parameters
from mambanorm_study.tables.scan_by_hand import INPUTS, scan_by_hand


class Picture(w.Image):
    """An image whose `tooltip` is its alternative text.

    `ipywidgets.Image` has no description, and ipywidgets shows a tooltip only if a widget has one.
    """

    description = Unicode("").tag(sync=True)


class Explorer(w.VBox):
    """Controls above a figure, which the function `draw` makes from the values of the controls.

    draw: gets the value of each control as a keyword argument. If `draw` raises ValueError, the
    error's message is shown and the last picture stays.
    """

    def __init__(self, draw: Callable[..., StudyFigure], **controls: w.Widget):
        self.controls, self._draw = controls, draw
        self.picture = Picture(format="png", layout=w.Layout(max_width="100%"))
        self.picture.add_class("mambanorm-picture")
        self.message = w.HTML()
        for control in controls.values():
            control.observe(self._redraw, "value")
        # The controls wrap to a second row, because sliders in one row would lose their tracks.
        row = w.HBox(list(controls.values()), layout=w.Layout(flex_flow="row wrap"))
        super().__init__([row, self.message, self.picture])
        self.add_class("mambanorm-explorer")
        # Existing objects, such as those of torch, are excluded from garbage collection, so that
        # the collector does not visit them during a drawing.
        gc.freeze()
        self._redraw()

    @property
    def values(self) -> dict[str, object]:
        """A map from the name of each control to the control's value."""
        return {name: control.value for name, control in self.controls.items()}

    def _redraw(self, *_) -> None:
        """Draw and show the picture for the current values, or show the message of a ValueError."""
        try:
            self.figure = self._draw(**self.values)
        except ValueError as error:
            self.message.value = f"<p>{escape(str(error))}</p>"
            return
        self.message.value = ""
        png, alt_text = self.figure._repr_png_(1.0), self.figure.get_label()
        with self.picture.hold_sync():
            self.picture.value, self.picture.tooltip = png, alt_text

    def _repr_mimebundle_(self, **options):
        png, metadata = self.figure._repr_mimebundle_()
        return {**super()._repr_mimebundle_(**options), **png}, metadata


# Options of every slider. Half of the width is for the slider's name and number.
SLIDER = dict(continuous_update=False, layout=dict(width="380px", max_width="100%"))


@styled
def draw_norm(norm: str, training: bool, offset: float, spread: float) -> StudyFigure:
    """Return a figure of a norm on a made-up batch: the cells that share a statistic, one row
    before and after the norm, and which changes of the input move the output.

    training: True for train mode, False for eval mode. offset: factor of the means of the channels.
    spread: how much the scales of the channels differ.
    """
    x = example_batch(offset=offset, spread=spread)
    prepared = prepared_norm(norm, x, training=training)
    changes = {change: output_change(prepared, change, x) for change in CHANGES}
    table_rows = [
        (change, f"moves by {size:.0%}" if size >= CHANGE_LIMIT else "unmoved")
        for change, size in changes.items()
    ]
    margins = dict(left=0.02, right=0.985, top=0.85, bottom=0.2, hspace=0.3, wspace=0.24)
    layout = [["cube", "before", "after"], ["trials", "before", "after"]]
    fig, axes = quick_figure(layout, height=4.2, margins=margins, width_ratios=(0.95, 1, 1))
    cells = influencing_cells(norm, training=training)
    draw_cells(axes["cube"], cells, norm_colour(norm))
    axes["cube"].set_title("shares a statistic" if cells.any() else "shares nothing", loc="center")
    axes["trials"].set_axis_off()
    axes["trials"].set_title("what moves the output of row 1?")
    axes["trials"].table(
        table_rows, cellLoc="left", colWidths=(0.68, 0.42), edges="open", bbox=(-0.05, 0, 1.1, 1)
    )
    for key, values in (("before", x), ("after", prepared(x).detach())):
        limit = draw_row(axes[key], values[0])
        axes[key].set(
            title=f"{key}: row 1, colours ±{limit:.1f}",
            xlabel=f"position\nall values: {mean_sd(values)}",
            ylabel="channel",
        )
    rows, length, channels = x.shape
    return finish(
        fig,
        f"{norm}, {'train' if training else 'eval'} mode",
        f"a made-up batch of {rows} rows, {length} positions, {channels} channels (seed 0)",
        "cube: the cells on which the front cell, top right, depends",
        "table: how much the output of row 1's first half moves, relative to its size; "
        f"unmoved: less than {CHANGE_LIMIT:.0%}",
    )


def explore_norms() -> Explorer:
    """Choose a norm and its mode, and the means and spreads of the channels. The picture shows
    which cells share a statistic, one row of the batch before and after the norm, and which changes
    of the input change the output.
    """
    return Explorer(
        draw_norm,
        norm=w.Dropdown(value="LN", options=list(NORMS), description="norm"),
        training=w.Dropdown(options={"train": True, "eval": False}, description="mode"),
        offset=w.FloatSlider(2, min=0, max=10, step=0.5, description="means", **SLIDER),
        spread=w.FloatSlider(3, min=0, max=6, step=0.5, description="spreads", **SLIDER),
    )


# Pairs (scale, task) with recorded runs that are scored by accuracy and in which Mamba blocks learn
# the task.
TASKS = (
    ("evening", RECORDED_TASKS[0]),
    ("quick", "digits"),
    ("quick", "listops"),
    ("quick", "digits_images"),
)
COLUMNS = ["score", "chance", "diverged", "run_id"]


@lru_cache(4)
def evidence(scale: str) -> Evidence:
    """Return the recorded runs of a scale as an `Evidence`."""
    return Evidence(recorded(scale), scale)


def recorded_runs(arm: str) -> pd.DataFrame:
    """Return the recorded runs of an arm at its best learning rate, one row per task and seed.

    Columns: scale, task, score (the test accuracy in per cent; a diverged run has the score of
    chance), chance (the accuracy of chance in per cent), diverged (1 or 0), run_id. The DataFrame
    is empty if the arm is not recorded.
    """
    tasks = []
    for scale, task in TASKS:
        runs = evidence(scale).runs_of_arms([arm], task)
        if not runs.missing:
            values = {name: runs.columns[name][0] for name in COLUMNS}
            tasks.append(pd.DataFrame(values).assign(scale=scale, task=task))
    return pd.concat(tasks) if tasks else pd.DataFrame(columns=["scale", "task", *COLUMNS])


CUSTOM = "your own"
# Name → preset: Mamba's original arm, the paper's proposals, and published models with norms at
# further sites.
PRESET_MODELS = {
    name: preset for name, preset in PRESETS.items() if preset.arm.more or preset.section == "4.5"
}


@styled
def draw_arm(n1: str, n2: str, preset: str, **more: str) -> StudyFigure:
    """Return a figure of an arm's block and recorded accuracy. The caption gives the number of
    parameters of each part of the arm's model.

    n1, n2: the norms before and after the SSM. more: a map from each further site to the norm
    there. preset: CUSTOM for the arm with these norms, or a key of PRESET_MODELS, whose arm is
    drawn instead.
    """
    published = PRESET_MODELS.get(preset)
    arm = published.arm if published else Arm(n1, n2, more)
    weightless = bool(published and published.options)
    results = recorded_runs(str(arm))
    if weightless:  # no results are shown, because all recorded runs have norms with weights
        results = results.iloc[:0]
    margins = dict(left=0.13, right=0.985, top=0.93, bottom=0.24, hspace=0.2)
    fig, axes = quick_figure([["block"], ["results"]], height=5.4, margins=margins)
    draw_block(axes["block"], arm, fontsize=9)
    ax, tasks = axes["results"], list(results.groupby(["scale", "task"], sort=False))
    for y, (_, runs) in enumerate(tasks):
        runs = runs.assign(y=y + jitter(len(runs), 0.5))
        for diverged, dots in runs.groupby("diverged"):
            marker = "X" if diverged else "o"
            ax.plot(dots.score, dots.y, marker, color=INK, alpha=0.6, markersize=4)
        ax.vlines(runs.score.mean(), y - 0.35, y + 0.35, color=COMBINATION, linewidth=2.2)
        ax.vlines(runs.chance.mean(), y - 0.2, y + 0.2, color=GREY, linewidth=1)
    ax.grid(visible=True, axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_yticks(range(len(tasks)), [f"{task}\n({scale})" for (scale, task), _ in tasks])
    ax.set(xlim=(0, 100), ylim=(max(len(tasks), 1) - 0.4, -0.6), ylabel="task (scale)")
    ax.set(title="recorded test accuracy", xlabel="test accuracy (%)")
    if not tasks:
        absent = "this arm is not recorded:\nmambanorm sweep --arms trains it"
        ax.text(0.5, 0.5, absent, color=GREY, transform=ax.transAxes, ha="center", va="center")
    parameters = arm_parameters(str(arm), weightless=weightless)
    total = sum(parameters.values())
    norms = total - sum(parameters[part] for part in ("stem", "mixers", "head"))
    return finish(
        fig,
        f"The model of arm {arm.label if arm.more else arm}",
        "model of the digits at scale quick",
        f"{norms:,} of {total:,} parameters are norms' ({100 * norms / total:.2g} %)",
        *(f"{part}: {count:,}" for part, count in parameters.items()),
        "results: recorded, one dot per seed, line: mean, tick: chance, × diverged",
    )


def explore_block() -> Explorer:
    """Choose N1, N2 and the norms at further sites, or a published model. The picture shows the
    block and the recorded accuracy of its arm; the caption gives the number of parameters of every
    part of the model.
    """
    # All menus share one layout and one style, because a notebook stores the state of every layout
    # and of every style.
    layout, style = w.Layout(width="180px"), DescriptionStyle(description_width="64px")
    menu = partial(w.Dropdown, layout=layout, style=style)
    sites = {
        site: menu(options=list(NORMS), description=SYMBOLS.get(site, site), tooltip=tip)
        for site, tip in MORE_SITES.items()
    }
    return Explorer(
        draw_arm,
        n1=menu(value="RMSN", options=list(NORMS), description="N1"),
        n2=menu(value="GN", options=list(NORMS), description="N2"),
        **sites,
        preset=menu(options=[CUSTOM, *PRESET_MODELS], description="model"),
    )


@styled
def draw_scan(source: str, delta: float, a: float, selective: bool) -> StudyFigure:
    """Return a figure with four panels: the input u, the step size Δ, the states h and the output y
    of a scan, each against the position.

    source: the name of the input, a key of INPUTS. delta: the step size Δ. a: the decay rate of the
    first state. selective: True if Δ follows the input, False if Δ is constant.
    """
    scan = scan_by_hand(INPUTS[source], delta, a, selective=selective)
    margins = dict(left=0.07, right=0.985, top=0.87, bottom=0.19, hspace=0.5, wspace=0.2)
    fig, axes = quick_figure([["u", "Δ"], ["h", "y"]], height=4.8, margins=margins, sharex=True)
    position = np.arange(1, len(scan.u) + 1)
    for key, values, colour in (("u", scan.u, GREY), ("Δ", scan.delta, INDIGO)):
        stems = axes[key].stem(position, values, linefmt=colour, basefmt=GREY)
        stems.markerline.set_markersize(3)
    states = [f"state {n}, rate {n * a:.2g}" for n in range(1, len(scan.states) + 1)]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(states)))
    axes["h"].set_prop_cycle(color=colours)
    axes["h"].plot(position, scan.states.T, label=states)
    axes["h"].legend(loc="upper right", fontsize=7.5)
    axes["y"].plot(position, scan.y, color=INK, linewidth=1.8)
    titles = "input u", "step size Δ", "states h", "output y, the mean of the states"
    for (key, ax), title in zip(axes.items(), titles, strict=True):
        ax.set(title=title, xlabel="position", ylabel=f"{key} (a.u.)")
    slow, fast = float(scan.half_life[0]), float(scan.half_life[-1])
    return finish(
        fig,
        "A scan by hand",
        f"h ← exp(−Δ·rate)·h + Δ·u, with Δ = {delta:.3g} at most",
        f"each position keeps exp(−Δ·rate) of a state: at {'the largest' if selective else 'this'}"
        f" Δ half is gone after {slow:.3g} steps (state 1) to {fast:.3g}",
        "where Δ is 0 the states stay as they are" if selective else "",
        "no seed",
    )


def explore_scan() -> Explorer:
    """Choose an input, Δ and the decay rate, and whether Δ follows the input. The picture shows
    what the states keep of the input and what they forget.
    """
    log_slider = partial(w.FloatLogSlider, max=1, step=0.05, readout_format=".3g", **SLIDER)
    return Explorer(
        draw_scan,
        source=w.Dropdown(value="two impulses", options=list(INPUTS), description="input"),
        delta=log_slider(0.2, min=-2, description="Δ"),
        a=log_slider(1.0, min=-1, description="rate |A|"),
        selective=w.Dropdown(
            options={"follows the input": True, "the same everywhere": False}, description="Δ is"
        ),
    )
