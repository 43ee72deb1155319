"""explore_mixture: the weights of NormVary or SwitchNorm over layers and time, of a stored run or some seconds here."""

from __future__ import annotations

import numpy as np

from mambanorm.config import RunConfig
from mambanorm.diagnostics.weights import MIXTURES
from mambanorm.figures.mixture_view import fig_mixture_view
from mambanorm.figures.style import StudyFigure
from mambanorm.training.grid import base_config
from mambanorm.training.live import LiveRuns, warm_up
from mambanorm.training.store import find_run
from mambanorm.widgets.explorer import Explorer, begin_and_end, buttons, choice, slider

TASK, SCALE = "digits", "quick"
ARMS = (
    *("NormVary>SSM>None", "NormVary>SSM>GN", "None>SSM>NormVary", "NormVary>SSM>NormVary"),
    *("SwitchNorm>SSM>None", "SwitchNorm>SSM>SwitchNorm"),
)
NOTHING = "the recorded results\nhold no weights:\npress train"


class MixtureExplorer(Explorer):
    """A button trains the arm here, unless the run store of this machine has it."""

    def __init__(self, steps: int | None = None):
        warm_up(TASK, SCALE, ARMS[0])
        self.live, self._steps = None, steps
        super().__init__(
            self._show,
            remember=False,
            beside=begin_and_end("train", self.begin, self.end),
            at=slider(1.0, 0, 1, "time", step=0.05),
            part=buttons("mean", ("mean", "variance"), "part"),
            arm=choice(ARMS[0], list(ARMS), "arm"),
            seed=choice(0, list(range(8)), "seed"),
        )

    def config(self, arm: str, seed: int) -> RunConfig:
        steps = {} if self._steps is None else dict(steps=self._steps, warmup_steps=min(20, self._steps))
        return base_config(TASK, SCALE, arm=arm, seed=seed, device="cpu", **steps)

    def begin(self, *_) -> None:
        """Trains the arm of the controls in a thread of its own."""
        self.end(wait_s=10)
        self.live = LiveRuns([self.config(self.values["arm"], self.values["seed"])], self.redraw).start()

    def end(self, *_, wait_s: float = 0) -> None:
        """Stops what runs after the step that it is in; a click need not wait for that."""
        if self.live is not None:
            self.live.stop(wait_s)

    def _show(self, at: float, part: str, arm: str, seed: int) -> StudyFigure:
        name = next(name for name in ("mixture_SwitchNorm", "mixture") if MIXTURES[name].__name__ in arm)
        steps, mixture, source = self._found(self.config(arm, seed), name)
        caption = f"{TASK}, {SCALE} scale, seed {seed}: one seed, a sketch · {source}"
        how = dict(at=at, part=part, arm=arm, caption=caption, note=NOTHING, norm=MIXTURES[name])
        return fig_mixture_view(steps, mixture, **how)

    def _found(self, config: RunConfig, name: str) -> tuple[np.ndarray, np.ndarray, str]:
        """Steps and mixture (T, norms, 2, members) of the run trained here just now, else of the stored one."""
        run = self.live.runs[0] if self.live is not None else None
        if run is not None and run.config == config and run.looked:
            n = min(len(run.looked), len(run.mixtures))
            mixtures = np.stack([kinds[name] for kinds in run.mixtures[:n]])
            return np.array(run.looked[:n]), mixtures, f"trained here, {run.status}"
        stored = find_run(config.but(device="auto"))
        if stored is not None and name in stored.diagnostics:
            return stored.diagnostics["step"], stored.diagnostics[name], "from the run store of this machine"
        return np.empty(0, int), np.empty((0, 0, 2, 0)), "nothing recorded, nothing stored"


def explore_mixture(steps: int | None = None) -> MixtureExplorer:
    """Pick an arm with NormVary or SwitchNorm, train it for some seconds, and move through time: the weight of each
    member for the mean and for the variance, layer by layer.

    steps: None = those of scale quick."""
    return MixtureExplorer(steps)
