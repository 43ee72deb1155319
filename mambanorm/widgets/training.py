"""explore_training: two arms learn the digits side by side, for some seconds, until stopped."""

from __future__ import annotations

from html import escape

import ipywidgets as w

from mambanorm.arms import PRESETS, Arm
from mambanorm.config import RunConfig
from mambanorm.figures.live_view import fig_live_view
from mambanorm.figures.style import StudyFigure
from mambanorm.norms import NORMS
from mambanorm.training.grid import base_config
from mambanorm.training.live import GRADIENT_BINS, ROWS, LiveRuns, warm_up
from mambanorm.widgets.explorer import Explorer, begin_and_end, choice

TASK, SCALE = "digits", "quick"


class TrainingExplorer(Explorer):
    """Start and stop beside the controls; the picture moves while the runs do."""

    def __init__(self, steps: int | None = None):
        warm_up(TASK, SCALE, "RMSN>SSM>IN")
        self.live, self._asked, self._steps = None, None, steps
        self.start, self.halt = begin_and_end("start", self.begin, self.end)
        self.halt.disabled = True
        names, seeds = list(NORMS), list(range(8))
        super().__init__(
            self._show,
            remember=False,
            beside=(self.start, self.halt),
            a1=choice("RMSN", names, "first N1"),
            a2=choice("None", names, "N2"),
            a_more=further("further"),
            b1=choice("None", names, "second N1"),
            b2=choice("IN", names, "N2"),
            b_more=further("further"),
            seed=choice(0, seeds, "seed"),
        )
        row, *rest = self.children
        rows = (row.children[:3], row.children[3:6], row.children[6:])  # an arm a row, however wide the page is
        self.children = [*(w.HBox(some, layout=row.layout) for some in rows), *rest]

    def configs(self) -> list[RunConfig]:
        """The two runs that the controls ask for. ValueError for one arm twice."""
        v = self.values
        arms = _arms(v)
        if arms[0] == arms[1]:
            raise ValueError(f"both arms are {arms[0]}: change one of them")
        steps = {} if self._steps is None else dict(steps=self._steps, warmup_steps=min(20, self._steps))
        return [base_config(TASK, SCALE, arm=arm, seed=v["seed"], device="cpu", **steps) for arm in arms]

    def begin(self, *_) -> None:
        """Starts both runs in threads of their own; earlier ones are stopped."""
        self.end(wait_s=10)
        try:
            configs = self.configs()
        except ValueError as error:
            self.said.value = f"<p>{escape(str(error))}</p>"
            return
        self._asked = self.values
        self.live = LiveRuns(configs, self._moved)
        self.start.disabled, self.halt.disabled = True, False
        self.live.start()

    def end(self, *_, wait_s: float = 0) -> None:
        """Stops what runs after the step that it is in; a click need not wait for that."""
        if self.live is not None:
            self.live.stop(wait_s)
        self.start.disabled, self.halt.disabled = False, True

    def _moved(self) -> None:
        self.redraw()
        if all(run.status not in ("waiting", "running") for run in self.live.runs):
            self.start.disabled, self.halt.disabled = False, True

    def _show(self, **values: object) -> StudyFigure:
        """The runs, if they are those of the controls; else what the controls ask for, before its start."""
        mine = self.live.runs if self.live is not None and values == self._asked else []
        runs = [(run.config.arm, run) for run in mine]
        how = dict(task=TASK, scale=SCALE, seed=values["seed"], rows=ROWS)
        return fig_live_view(runs, GRADIENT_BINS, arms=_arms(values), **how)


def _arms(values: dict[str, object]) -> list[str]:
    """Both arms. ValueError for what is written among the further sites and is none."""
    ends = ((values[f"{x}1"], values[f"{x}2"], str(values[f"{x}_more"]).strip(" +")) for x in "ab")
    return [str(Arm.parse(f"{n1}>SSM>{n2}{more and f'+{more}'}")) for n1, n2, more in ends]


def further(name: str) -> w.Combobox:
    """Norms at further sites, written as in an arm; offered are those of published models."""
    known = dict.fromkeys(preset.arm.further for preset in PRESETS.values() if preset.arm.more)
    words = dict(placeholder="such as +B:RMSN", description=name, continuous_update=False)
    return w.Combobox(options=tuple(known), layout=w.Layout(width="240px"), **words)


def explore_training(steps: int | None = None) -> TrainingExplorer:
    """Pick two arms, with norms at further sites if you like, and press start: loss, accuracy, sizes by depth and
    gradients while both learn the digits from the same weights and batches.

    steps: None = those of scale quick."""
    return TrainingExplorer(steps)
