"""The explorers: a norm, the block and its scan, and the 6×6 grid of recorded results."""

from functools import lru_cache, partial

import ipywidgets as w
import pandas as pd
import torch
from ipywidgets.widgets.widget_description import DescriptionStyle

from mambanorm.arms import MORE_SITES, PAPER_NORMS, PRESETS, SYMBOLS, Arm
from mambanorm.norms import NORMS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.figures.explorers import (
    fig_arm_view,
    fig_cell_view,
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
from mambanorm_study.widgets.explorer import Explorer

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
    """Pick a norm and its mode, move the channels' means and spreads: the cube of the cells that
    share a statistic, a row before and after the norm, and what leaves the output unmoved.
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


def _draw_arm(n1: str, n2: str, preset: str, **more: str) -> StudyFigure:
    published = NAMED.get(preset)
    arm = str(published.arm if published else Arm(n1, n2, more))
    weightless = bool(published and published.options)
    results = recorded_arm(arm)
    if weightless:  # only norms with weights are recorded
        results = results.iloc[:0]
    return fig_arm_view(arm_facts(arm, weightless=weightless), results, note=ABSENT)


def explore_block() -> Explorer:
    """Pick N1, N2 and the norms at further sites, or a published model instead of your own: the
    diagram, the parameters of every part, the time of a block, and the recorded accuracy of the arm.
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
    """Move Δ and the decay rate, choose an input, let Δ follow the input: what the states keep and
    forget.
    """
    log_slider = partial(w.FloatLogSlider, max=1, step=0.05, readout_format=".3g", **SLIDER)
    return Explorer(
        _draw_scan,
        source=w.Dropdown(value="two impulses", options=list(INPUTS), description="input"),
        delta=log_slider(0.2, min=-2, description="Δ"),
        a=log_slider(1.0, min=-1, description="rate |A|"),
        selective=w.Dropdown(
            options={"the same everywhere": False, "follows the input": True}, description="Δ is"
        ),
    )


# Scale → recorded tasks whose score is an accuracy and that a Mamba block learns.
TASKS = {"evening": RECORDED_TASKS[:1], "quick": ("digits", "listops", "digits_images")}
SETTINGS = {f"{task} ({scale})": (scale, task) for scale, tasks in TASKS.items() for task in tasks}
COLUMNS = ["scale", "task", "arm", "seed", "accuracy", "chance", "diverged", "run_id"]


@lru_cache(4)
def evidence(scale: str) -> Evidence:
    """Return the recorded results of a scale."""
    return Evidence(recorded(scale), scale)


def recorded_cell(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Return the recorded runs of one arm at its best learning rate, one row a seed (COLUMNS).

    Accuracy and chance are fractions. A diverged run has the accuracy of chance. The frame is empty
    if the arm is not recorded.
    """
    arm = str(Arm.parse(arm))
    runs = evidence(scale).of_arms([arm], task)
    if runs.missing:
        return pd.DataFrame(columns=COLUMNS)
    columns = {name: values[0] for name, values in runs.columns.items()}
    return pd.DataFrame(
        dict(
            scale=scale,
            task=task,
            arm=arm,
            seed=runs.seeds,
            accuracy=columns["score"] / 100,
            chance=columns["chance"] / 100,
            diverged=columns["diverged"] > 0,
            run_id=columns["run_id"],
        )
    )


def recorded_arm(arm: str) -> pd.DataFrame:
    """Return `recorded_cell` of every task of TASKS."""
    cells = [recorded_cell(scale, task, arm) for scale, task in SETTINGS.values()]
    return pd.concat([cell for cell in cells if len(cell)] or cells[:1], ignore_index=True)


@lru_cache(8)
def grid_means(scale: str, task: str) -> pd.DataFrame:
    """Return the mean recorded accuracies in per cent, N1 × N2; NaN if a pair is not recorded."""
    means = {
        n2: [
            100 * recorded_cell(scale, task, f"{n1}>SSM>{n2}").accuracy.mean() for n1 in PAPER_NORMS
        ]
        for n2 in PAPER_NORMS
    }
    return pd.DataFrame(means, index=PAPER_NORMS, dtype=float)


def _draw_cell(setting: str, n1: str, n2: str) -> StudyFigure:
    scale, task = SETTINGS[setting]
    cell = recorded_cell(scale, task, f"{n1}>SSM>{n2}")
    return fig_cell_view(n1, n2, setting, cell, grid_means(scale, task))


def explore_grid() -> Explorer:
    """Choose a cell of the grid, N1 by N2: its mean among all pairs, its seeds, and how often it
    diverged.
    """
    return Explorer(
        _draw_cell,
        setting=w.Dropdown(value="digits (quick)", options=list(SETTINGS), description="task"),
        n1=w.Dropdown(value="RMSN", options=PAPER_NORMS, description="N1"),
        n2=w.Dropdown(value="GN", options=PAPER_NORMS, description="N2"),
    )
