"""A norm, the block and its scan: what can be seen of them without training. The 6×6 grid of
recorded results: a click on a cell shows its seeds and learning rates."""

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
from mambanorm_study.claims.evidence import Evidence, Runs
from mambanorm_study.figures.colours import BEST, INK
from mambanorm_study.figures.explorers import (
    fig_arm_view,
    fig_cell_view,
    fig_norm_view,
    fig_scan_view,
)
from mambanorm_study.figures.lessons import example_batch
from mambanorm_study.figures.style import StudyFigure
from mambanorm_study.lessons.invariance import CHANGES, FELT, felt, prepared_norm
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.recorded_results import recorded
from mambanorm_study.tables.experiments import RECORDED_TASKS
from mambanorm_study.tables.norm_catalog import arm_facts
from mambanorm_study.tables.scan_by_hand import INPUTS, scan_by_hand
from mambanorm_study.widgets.explorer import Explorer, buttons, choice, log_slider, show, slider

GROUPS = (1, 2, 4, 8, 16)


def _offer_groups(controls: dict[str, w.Widget]) -> None:
    """Only where they mean something."""
    show(controls["groups"], "groups" in NORMS[controls["norm"].value].own)


def _draw_norm(norm: str, training: bool, groups: int, offset: float, spread: float) -> StudyFigure:
    x, how = example_batch(offset=offset, spread=spread), dict(groups=groups, training=training)
    prepared = prepared_norm(norm, x, **how)
    with torch.no_grad():
        y = prepared(x)
    moved = {change: felt(prepared, change, x) for change in CHANGES}
    return fig_norm_view(norm, x, y, moved, FELT, **how)


def explore_norms() -> Explorer:
    """Pick a norm and its mode, move the channels' means and spreads: the cube of the cells that
    share a statistic, a row before and after, and what leaves the output unmoved."""
    return Explorer(
        _draw_norm,
        arrange=_offer_groups,
        norm=choice("LN", list(NORMS), "norm"),
        training=buttons(True, {"train": True, "eval": False}, "mode"),
        groups=choice(4, GROUPS, "groups"),
        offset=slider(2, 0, 10, "means"),
        spread=slider(3, 0, 6, "spreads"),
    )


ABSENT = "this arm is not recorded:\nmambanorm sweep --arms trains it"
OWN = "your own"
NAMED = {
    name: preset for name, preset in PRESETS.items() if preset.arm.more or preset.section == "4.5"
}
"""The originals, the paper's proposals, and the published models that have norms at further
sites."""


def _draw_arm(n1: str, n2: str, weights: bool, **more: str) -> StudyFigure:
    arm = str(Arm(n1, n2, more))
    results = recorded_arm(arm)
    return fig_arm_view(
        arm_facts(arm, weightless=not weights),
        results if weights else results.iloc[:0],
        note=ABSENT,
    )


class BlockExplorer(Explorer):
    """A menu for each site, and one with the names of arms: choosing a name sets all the others."""

    def __init__(self):
        self.preset = choice(OWN, [OWN, *NAMED], "start from")
        # one layout and one style for all: a notebook keeps the state of each
        small = dict(
            layout=w.Layout(width="180px"), style=DescriptionStyle(description_width="64px")
        )
        menu = partial(w.Dropdown, options=list(NORMS), **small)
        more = {site: menu(description=SYMBOLS.get(site, site)) for site in MORE_SITES}
        super().__init__(
            _draw_arm,
            beside=(self.preset,),
            n1=menu(value="RMSN", description="N1"),
            n2=menu(value="GN", description="N2"),
            **more,
            weights=w.Checkbox(
                value=True, description="with weights", indent=False, layout=small["layout"]
            ),
        )
        for site, control in more.items():
            control.tooltip = MORE_SITES[site]
        self.preset.observe(self._take, "value")

    def _take(self, *_) -> None:
        """Puts the norms of the preset where they stand."""
        if self.preset.value != OWN:
            preset = NAMED[self.preset.value]
            self.put(
                **dict.fromkeys(MORE_SITES, "None") | preset.arm.sites, weights=not preset.options
            )


def explore_block() -> BlockExplorer:
    """Pick N1, N2 and the norms at further sites, or start from a published model: the diagram, the
    parameters of every place, the time of a block, and the recorded accuracy of the arm."""
    return BlockExplorer()


def _draw_scan(source: str, delta: float, a: float, selective: bool) -> StudyFigure:
    return fig_scan_view(
        scan_by_hand(INPUTS[source], delta, a, selective=selective), delta=delta, a=a
    )


def explore_scan() -> Explorer:
    """Move Δ and the decay rate, choose an input, let Δ follow the input: what the states keep and
    forget."""
    return Explorer(
        _draw_scan,
        source=choice("two impulses", list(INPUTS), "input"),
        delta=log_slider(0.2, 0.01, 10, "Δ"),
        a=log_slider(1.0, 0.1, 10, "rate |A|"),
        selective=buttons(True, {"the same everywhere": False, "follows the input": True}, "Δ is"),
    )


# the grid

TASKS = {"evening": RECORDED_TASKS[:1], "quick": ("digits", "listops", "digits_images")}
"""Scale → the recorded tasks whose score is an accuracy and that a Mamba block learns; trained
models first."""
COLUMNS = ["scale", "task", "arm", "seed", "accuracy", "chance", "diverged", "lr", "run_id"]


_frame = lru_cache(4)(recorded)


@lru_cache(4)
def evidence(scale: str) -> Evidence:
    """The recorded results of a scale."""
    return Evidence(_frame(scale), scale)


@lru_cache(512)
def recorded_runs(scale: str, task: str, arm: str) -> Runs:
    """Return the recorded runs of one arm at its learning rate."""
    return evidence(scale).of_arms([arm], task)


def recorded_cell(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Return a row a seed of one arm (COLUMNS; accuracy and chance are fractions); no row if it is
    not recorded. A diverged run has the accuracy of chance."""
    arm = str(Arm.parse(arm))
    runs = recorded_runs(scale, task, arm)
    if runs.missing:
        return pd.DataFrame(columns=COLUMNS)
    return pd.DataFrame(
        dict(
            scale=scale,
            task=task,
            arm=arm,
            seed=runs.seeds,
            accuracy=runs.columns["score"][0] / 100,
            chance=runs.columns["chance"][0] / 100,
            diverged=runs.columns["diverged"][0] > 0,
            lr=runs.lrs[0],
            run_id=runs.columns["run_id"][0],
        )
    )


def recorded_arm(arm: str) -> pd.DataFrame:
    """`recorded_cell` of every task of TASKS."""
    cells = [recorded_cell(scale, task, arm) for scale, tasks in TASKS.items() for task in tasks]
    return pd.concat([cell for cell in cells if len(cell)] or cells[:1], ignore_index=True)


def recorded_rates(scale: str, task: str, arm: str) -> pd.DataFrame:
    """Every recorded run of an arm in the setting of the scale: lr, seed, accuracy, diverged."""
    frame, own = _frame(scale), base_config(task, scale)
    runs = frame[(frame.task == task) & (frame.arm == arm) & (frame.role == "test")]
    runs = runs[
        runs.run_id.isin(
            {own.but(arm=arm, seed=int(run.seed), lr=run.lr).run_id for run in runs.itertuples()}
        )
    ]
    found = runs.assign(accuracy=runs.test_accuracy, diverged=runs.status == "diverged")
    return found[["lr", "seed", "accuracy", "diverged"]].reset_index(drop=True)


@lru_cache(8)
def grid_means(scale: str, task: str) -> dict[str, float]:
    """Every pair of the paper's norms → its mean recorded accuracy; NaN where it is not
    recorded."""
    arms = [f"{n1}>SSM>{n2}" for n1 in PAPER_NORMS for n2 in PAPER_NORMS]
    cells = {arm: recorded_cell(scale, task, arm).accuracy for arm in arms}
    return {
        arm: float(accuracy.mean()) if len(accuracy) else float("nan")
        for arm, accuracy in cells.items()
    }


SETTINGS = {f"{task} ({scale})": (scale, task) for scale, tasks in TASKS.items() for task in tasks}


def _draw(setting: str, n1: str, n2: str) -> StudyFigure:
    (scale, task), arm = SETTINGS[setting], f"{n1}>SSM>{n2}"
    cell, rates = recorded_cell(scale, task, arm), recorded_rates(scale, task, arm)
    return fig_cell_view(arm, task, scale, cell, rates, grid_means(scale, task))


class GridExplorer(Explorer):
    """Between the menus and the picture stand 36 buttons, the heat map: a click chooses that
    pair."""

    def __init__(self):
        # 36 buttons share two layouts: a notebook keeps the state of each widget, and a layout is
        # its largest part
        size, borders = (
            dict(width="72px", height="30px", margin="1px"),
            ("1px solid #CCCCCC", f"2px solid {BEST}"),
        )
        self._plain, self._framed = (w.Layout(border=border, **size) for border in borders)
        self.cells = {(n1, n2): self._cell(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS}
        super().__init__(
            _draw,
            setting=choice(
                next(name for name in SETTINGS if "digits (" in name), list(SETTINGS), "task"
            ),
            n1=choice("RMSN", list(PAPER_NORMS), "N1"),
            n2=choice("GN", list(PAPER_NORMS), "N2"),
        )
        row, *rest = self.children
        self.children = [row, self._table(), *rest]
        self.follow()

    def _cell(self, n1: str, n2: str) -> w.Button:
        cell = w.Button(layout=self._plain, tooltip=f"{n1} before, {n2} after")
        cell.on_click(lambda _: self.put(n1=n1, n2=n2))
        return cell

    def _table(self) -> w.GridBox:
        """The buttons with the names of their rows (N1) and columns (N2)."""
        name = w.Layout()
        lines = [
            w.HTML("N1 ↓ N2 →", layout=name),
            *(w.HTML(f"<b>{n2}</b>", layout=name) for n2 in PAPER_NORMS),
        ]
        for n1 in PAPER_NORMS:
            lines += [
                w.HTML(f"<b>{n1}</b>", layout=name),
                *(self.cells[n1, n2] for n2 in PAPER_NORMS),
            ]
        layout = w.Layout(
            grid_template_columns="80px repeat(6, 76px)", overflow="auto", margin="6px 0 6px 12px"
        )
        return w.GridBox(lines, layout=layout)

    def follow(self) -> None:
        """Each button as dark as its mean accuracy, with the number on it; the chosen one is
        framed."""
        means, colours = (
            grid_means(*SETTINGS[self.values["setting"]]),
            matplotlib.colormaps["YlGnBu"],
        )
        known = [mean for mean in means.values() if np.isfinite(mean)] or [0.0]
        for pair, cell in self.cells.items():
            mean = means["{}>SSM>{}".format(*pair)]
            share = 0.9 * (mean - min(known)) / max(max(known) - min(known), 1e-9)
            chosen = pair == (self.values["n1"], self.values["n2"])
            with (
                cell.hold_sync(),
                cell.style.hold_sync(),
            ):  # a message each: a browser shows them one by one
                cell.description = f"{100 * mean:.1f}" if np.isfinite(mean) else "–"
                cell.style.button_color = to_hex(colours(share)) if np.isfinite(mean) else "#FFFFFF"
                cell.style.text_color = "#FFFFFF" if share > 0.55 else INK
                cell.layout = self._framed if chosen else self._plain


def explore_grid() -> GridExplorer:
    """Click a cell of the grid, N1 by N2: its seeds among all arms, its learning rates, how often
    it diverged."""
    return GridExplorer()
