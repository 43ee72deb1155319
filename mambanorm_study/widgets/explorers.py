"""The explorers: a norm, the block and its scan, and the 6×6 grid of recorded results."""

from functools import lru_cache, partial

import ipywidgets as w
import matplotlib
import numpy as np
import pandas as pd
import torch
from ipywidgets.widgets.widget_description import DescriptionStyle
from matplotlib.colors import to_hex

from mambanorm.arms import MORE_SITES, PAPER_NORMS, PRESETS, SYMBOLS, Arm
from mambanorm.norms import NORMS
from mambanorm_study.claims.evidence import Evidence
from mambanorm_study.figures.colours import BEST, BUTTON_GREY, INK, WHITE
from mambanorm_study.figures.explorers import (
    fig_arm_view,
    fig_cell_view,
    fig_norm_view,
    fig_scan_view,
)
from mambanorm_study.figures.lessons import example_batch
from mambanorm_study.figures.style import StudyFigure
from mambanorm_study.lessons.invariance import CHANGES, output_change, prepared_norm
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import RECORDED_TASKS
from mambanorm_study.tables.norm_catalog import arm_parameters
from mambanorm_study.tables.scan_by_hand import INPUTS, scan_by_hand
from mambanorm_study.widgets.explorer import Explorer, buttons, log_slider, menu, slider

# a norm

GROUPS = (1, 2, 4, 8, 16)


def _offer_groups(controls: dict[str, w.Widget]) -> None:
    has_groups = "groups" in NORMS[controls["norm"].value].factory_options
    controls["groups"].layout.display = "flex" if has_groups else "none"


def _draw_norm(norm: str, training: bool, groups: int, offset: float, spread: float) -> StudyFigure:
    x, how = example_batch(offset=offset, spread=spread), dict(groups=groups, training=training)
    prepared = prepared_norm(norm, x, **how)
    with torch.no_grad():
        y = prepared(x)
    return fig_norm_view(
        norm, x, y, {name: output_change(prepared, name, x) for name in CHANGES}, **how
    )


def explore_norms() -> Explorer:
    """Pick a norm and its mode, move the channels' means and spreads: the cube of the cells that
    share a statistic, a row before and after, and what leaves the output unmoved.
    """
    return Explorer(
        _draw_norm,
        arrange=_offer_groups,
        norm=menu("LN", list(NORMS), "norm"),
        training=buttons(True, {"train": True, "eval": False}, "mode"),
        groups=menu(4, GROUPS, "groups"),
        offset=slider(2, 0, 10, "means"),
        spread=slider(3, 0, 6, "spreads"),
    )


# the block

ABSENT = "this arm is not recorded:\nmambanorm sweep --arms trains it"
CUSTOM = "your own"
# Mamba's original arm, the paper's proposals, and published models with norms at further sites.
NAMED = {
    name: preset for name, preset in PRESETS.items() if preset.arm.more or preset.section == "4.5"
}


def _draw_arm(n1: str, n2: str, weights: bool, **more: str) -> StudyFigure:
    arm = str(Arm(n1, n2, more))
    results = recorded_arm(arm)
    return fig_arm_view(
        arm,
        arm_parameters(arm, weightless=not weights),
        results if weights else results.iloc[:0],
        note=ABSENT,
    )


class BlockExplorer(Explorer):
    """A menu for each site, and a menu of named arms that sets all others."""

    def __init__(self):
        self.preset = menu(CUSTOM, [CUSTOM, *NAMED], "start from")
        # all menus share one layout and one style, because a notebook stores the state of each
        layout = w.Layout(width="180px")
        style = DescriptionStyle(description_width="64px")
        site_menu = partial(w.Dropdown, options=list(NORMS), layout=layout, style=style)
        more = {
            site: site_menu(description=SYMBOLS.get(site, site), tooltip=tip)
            for site, tip in MORE_SITES.items()
        }
        super().__init__(
            _draw_arm,
            beside=(self.preset,),
            n1=site_menu(value="RMSN", description="N1"),
            n2=site_menu(value="GN", description="N2"),
            **more,
            weights=w.Checkbox(value=True, description="with weights", indent=False, layout=layout),
        )
        self.preset.observe(self._use_preset, "value")

    def _use_preset(self, *_) -> None:
        if self.preset.value != CUSTOM:
            preset = NAMED[self.preset.value]
            norms = {**dict.fromkeys(MORE_SITES, "None"), **preset.arm.sites}
            self.set_values(**norms, weights=not preset.options)


def explore_block() -> BlockExplorer:
    """Pick N1, N2 and the norms at further sites, or start from a published model: the diagram, the
    parameters of every place, the time of a block, and the recorded accuracy of the arm.
    """
    return BlockExplorer()


# the scan


def _draw_scan(source: str, delta: float, a: float, selective: bool) -> StudyFigure:
    return fig_scan_view(
        scan_by_hand(INPUTS[source], delta, a, selective=selective), delta=delta, a=a
    )


def explore_scan() -> Explorer:
    """Move Δ and the decay rate, choose an input, let Δ follow the input: what the states keep and
    forget.
    """
    return Explorer(
        _draw_scan,
        source=menu("two impulses", list(INPUTS), "input"),
        delta=log_slider(0.2, 0.01, 10, "Δ"),
        a=log_slider(1.0, 0.1, 10, "rate |A|"),
        selective=buttons(True, {"the same everywhere": False, "follows the input": True}, "Δ is"),
    )


# the grid

# Scale → recorded tasks whose score is an accuracy and that a Mamba block learns.
TASKS = {"evening": RECORDED_TASKS[:1], "quick": ("digits", "listops", "digits_images")}
SETTINGS = {f"{task} ({scale})": (scale, task) for scale, tasks in TASKS.items() for task in tasks}
COLUMNS = ["scale", "task", "arm", "seed", "accuracy", "chance", "diverged", "lr", "run_id"]


read_recorded = lru_cache(4)(recorded)


@lru_cache(4)
def evidence(scale: str) -> Evidence:
    """Return the recorded results of a scale."""
    return Evidence(read_recorded(scale), scale)


@lru_cache(512)
def recorded_cell(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Return the recorded runs of one arm at its learning rate, one row a seed (COLUMNS).

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
            lr=runs.lrs[0],
            run_id=columns["run_id"],
        )
    )


def recorded_arm(arm: str) -> pd.DataFrame:
    """Return `recorded_cell` of every task of TASKS."""
    cells = [recorded_cell(scale, task, arm) for scale, task in SETTINGS.values()]
    return pd.concat([cell for cell in cells if len(cell)] or cells[:1], ignore_index=True)


def runs_by_rate(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Return every recorded run of an arm at the scale's settings: lr, seed, accuracy, diverged."""
    frame, config = read_recorded(scale), base_config(task, scale)
    runs = frame[(frame.task == task) & (frame.arm == arm) & (frame.role == "test")]
    run_ids = [
        config.but(arm=arm, seed=int(run.seed), lr=run.lr).run_id for run in runs.itertuples()
    ]
    runs = runs[runs.run_id == run_ids]
    runs = runs.assign(accuracy=runs.test_accuracy, diverged=runs.status == "diverged")
    return runs[["lr", "seed", "accuracy", "diverged"]].reset_index(drop=True)


@lru_cache(8)
def grid_means(scale: str, task: str) -> dict[str, float]:
    """Return pair of the paper's norms → mean recorded accuracy; NaN if it is not recorded."""
    arms = [f"{n1}>SSM>{n2}" for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
    return {arm: float(recorded_cell(scale, task, arm).accuracy.mean()) for arm in arms}


def _draw_cell(setting: str, n1: str, n2: str) -> StudyFigure:
    (scale, task), arm = SETTINGS[setting], f"{n1}>SSM>{n2}"
    cell, runs = recorded_cell(scale, task, arm), runs_by_rate(scale, task, arm)
    return fig_cell_view(arm, task, scale, cell, runs, grid_means(scale, task))


class GridExplorer(Explorer):
    """A heat map of 36 buttons between the menus and the picture; a click chooses that pair."""

    def __init__(self):
        # the buttons share two layouts, because a notebook stores the state of each
        size = dict(width="72px", height="30px", margin="1px")
        self._plain = w.Layout(border=f"1px solid {BUTTON_GREY}", **size)
        self._framed = w.Layout(border=f"2px solid {BEST}", **size)
        self.cells = {(n1, n2): self._cell(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS}
        super().__init__(
            _draw_cell,
            setting=menu("digits (quick)", list(SETTINGS), "task"),
            n1=menu("RMSN", list(PAPER_NORMS), "N1"),
            n2=menu("GN", list(PAPER_NORMS), "N2"),
        )
        controls, *others = self.children
        self.children = [controls, self._table(), *others]
        self.update_controls()

    def _cell(self, n1: str, n2: str) -> w.Button:
        cell = w.Button(layout=self._plain, tooltip=f"{n1} before, {n2} after")
        cell.on_click(lambda _: self.set_values(n1=n1, n2=n2))
        return cell

    def _table(self) -> w.GridBox:
        name = partial(w.HTML, layout=w.Layout())
        widgets = [name("N1 ↓ N2 →"), *(name(f"<b>{n2}</b>") for n2 in PAPER_NORMS)]
        for n1 in PAPER_NORMS:
            widgets += [name(f"<b>{n1}</b>"), *(self.cells[n1, n2] for n2 in PAPER_NORMS)]
        return w.GridBox(
            widgets,
            layout=w.Layout(
                margin="6px 0 6px 12px",
                grid_template_columns="80px repeat(6, 76px)",
                overflow="auto",
            ),
        )

    def update_controls(self) -> None:
        """Colour each button by its mean accuracy, write the number on it, and frame the choice."""
        means, ramp = grid_means(*SETTINGS[self.values["setting"]]), matplotlib.colormaps["YlGnBu"]
        known = [mean for mean in means.values() if np.isfinite(mean)] or [0.0]
        span = max(max(known) - min(known), 1e-9)
        for (n1, n2), cell in self.cells.items():
            mean = means[f"{n1}>SSM>{n2}"]
            is_known = np.isfinite(mean)
            share = 0.9 * (mean - min(known)) / span
            is_chosen = (n1, n2) == (self.values["n1"], self.values["n2"])
            with cell.hold_sync(), cell.style.hold_sync():  # one message each, for a quick browser
                cell.description = f"{100 * mean:.1f}" if is_known else "–"
                cell.style.button_color = to_hex(ramp(share)) if is_known else WHITE
                cell.style.text_color = WHITE if share > 0.55 else INK
                cell.layout = self._framed if is_chosen else self._plain


def explore_grid() -> GridExplorer:
    """Click a cell of the grid, N1 by N2: its seeds among all arms, its learning rates, how often
    it diverged.
    """
    return GridExplorer()
