"""explore_grid: the 6×6 grid of recorded results; click a cell for its seeds, learning rates and curves."""

from __future__ import annotations

from functools import lru_cache

import ipywidgets as w
import matplotlib
import numpy as np
import pandas as pd
from matplotlib.colors import to_hex

from mambanorm.arms import PAPER_NORMS
from mambanorm.figures.cell_view import fig_cell_view
from mambanorm.figures.style import INK, StudyFigure
from mambanorm.training.store import load_runs, stored_run
from mambanorm.widgets.explorer import Explorer, choice
from mambanorm.widgets.recorded import TASKS, grid_means, recorded_cell, recorded_rates

SETTINGS = {f"{task} ({scale})": (scale, task) for scale, tasks in TASKS.items() for task in tasks}


@lru_cache(64)
def _curves(scale: str, task: str, arm: str) -> pd.DataFrame | None:
    """The curve of a run of this arm in the run store of this machine, None where there is none."""
    runs = load_runs(scale=scale, task=task, arm=arm, model="mamba")
    run = stored_run(runs.run_id.iloc[0]) if len(runs) else None
    return None if run is None else run.curves


def _draw(setting: str, n1: str, n2: str) -> StudyFigure:
    (scale, task), arm = SETTINGS[setting], f"{n1}>SSM>{n2}"
    cell, rates = recorded_cell(scale, task, arm), recorded_rates(scale, task, arm)
    return fig_cell_view(arm, task, scale, cell, rates, grid_means(scale, task), _curves(scale, task, arm))


class GridExplorer(Explorer):
    """Between the menus and the picture stand 36 buttons, the heat map: a click chooses that pair."""

    def __init__(self):
        # 36 buttons share two layouts: a notebook keeps the state of each widget, and a layout is its largest part
        self._plain, self._framed = (_cell_layout(border) for border in ("1px solid #CCCCCC", "2px solid #F08A00"))
        self.cells = {(n1, n2): self._cell(n1, n2) for n1 in PAPER_NORMS for n2 in PAPER_NORMS}
        super().__init__(
            _draw,
            setting=choice(next(name for name in SETTINGS if "digits (" in name), list(SETTINGS), "task"),
            n1=choice("RMSN", list(PAPER_NORMS), "N1"),
            n2=choice("GN", list(PAPER_NORMS), "N2"),
        )
        row, *rest = self.children
        self.children = [row, self._table(), *rest]
        self.follow()

    def _cell(self, n1: str, n2: str) -> w.Button:
        cell = w.Button(layout=self._plain, tooltip=f"{n1} before, {n2} after")
        cell.on_click(lambda _: self.choose(n1, n2))
        return cell

    def _table(self) -> w.GridBox:
        """The buttons with the names of their rows (N1) and columns (N2)."""
        name = w.Layout()
        lines = [w.HTML("N1 ↓ N2 →", layout=name), *(w.HTML(f"<b>{n2}</b>", layout=name) for n2 in PAPER_NORMS)]
        for n1 in PAPER_NORMS:
            lines += [w.HTML(f"<b>{n1}</b>", layout=name), *(self.cells[n1, n2] for n2 in PAPER_NORMS)]
        layout = w.Layout(grid_template_columns="80px repeat(6, 76px)", overflow="auto", margin="6px 0 6px 12px")
        return w.GridBox(lines, layout=layout)

    def choose(self, n1: str, n2: str) -> None:
        """Shows the cell of this pair, drawn once."""
        self.put(n1=n1, n2=n2)

    def follow(self) -> None:
        """Each button as dark as its mean accuracy, with the number on it; the chosen one is framed."""
        means, colours = grid_means(*SETTINGS[self.values["setting"]]), matplotlib.colormaps["YlGnBu"]
        known = [mean for mean in means.values() if np.isfinite(mean)] or [0.0]
        for pair, cell in self.cells.items():
            mean = means["{}>SSM>{}".format(*pair)]
            share = 0.9 * (mean - min(known)) / max(max(known) - min(known), 1e-9)
            chosen = pair == (self.values["n1"], self.values["n2"])
            with cell.hold_sync(), cell.style.hold_sync():  # a message each: a browser shows them one by one
                cell.description = f"{100 * mean:.1f}" if np.isfinite(mean) else "–"
                cell.style.button_color = to_hex(colours(share)) if np.isfinite(mean) else "#FFFFFF"
                cell.style.text_color = "#FFFFFF" if share > 0.55 else INK
                cell.layout = self._framed if chosen else self._plain


def _cell_layout(border: str) -> w.Layout:
    return w.Layout(width="72px", height="30px", margin="1px", border=border)


def explore_grid() -> GridExplorer:
    """Click a cell of the grid, N1 by N2: its seeds among all arms, its learning rates, how often it diverged, and its
    curve where this machine has one."""
    return GridExplorer()
