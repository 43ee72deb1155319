"""explore_mixture: the weights of NormVary over layers and time, of a run of this machine's store."""

import ipywidgets as w
import numpy as np

from mambanorm.config import RunConfig
from mambanorm.figures.style import StudyFigure
from mambanorm.figures.weights import fig_mixture_view
from mambanorm.training.grid import base_config
from mambanorm.training.store import find_run
from mambanorm.training.sweep import sweep
from mambanorm.widgets.explorer import Explorer, buttons, choice, slider

TASK, SCALE = "digits", "quick"
ARMS = ("NormVary>SSM>None", "NormVary>SSM>GN", "None>SSM>NormVary", "NormVary>SSM>NormVary")
NOTHING = "the recorded results\nhold no weights:\npress train"


class MixtureExplorer(Explorer):
    """A button trains the arm of the controls here, unless the run store of this machine has it."""

    def __init__(self, steps: int | None = None):
        self._steps, layout = (
            {} if steps is None else dict(steps=steps, warmup_steps=min(20, steps)),
            dict(width="90px"),
        )
        self.button = w.Button(description="train", icon="play", layout=w.Layout(**layout))
        self.button.add_class("mambanorm-start").on_click(self.train)
        super().__init__(
            self._show,
            beside=(self.button,),
            at=slider(1.0, 0, 1, "time", step=0.05),
            part=buttons("mean", ("mean", "variance"), "part"),
            arm=choice(ARMS[0], list(ARMS), "arm"),
            seed=choice(0, list(range(8)), "seed"),
        )

    def config(self, arm: str, seed: int) -> RunConfig:
        return base_config(TASK, SCALE, arm=arm, seed=seed, **self._steps)

    def train(self, *_) -> None:
        """Trains the arm of the controls, which takes some seconds, and keeps the run in the store."""
        self.button.description, self.button.disabled = "training", True
        sweep([self.config(self.values["arm"], self.values["seed"])], source="trained", workers=0, progress=False)
        self.button.description, self.button.disabled = "train", False
        self.redraw()

    def _show(self, at: float, part: str, arm: str, seed: int) -> StudyFigure:
        run, source = find_run(self.config(arm, seed)), "nothing recorded, nothing stored"
        steps, mixture = np.empty(0, int), np.empty((0, 0, 2, 5))
        if run is not None and "mixture" in run.diagnostics:
            steps, mixture = run.diagnostics["step"], run.diagnostics["mixture"]
            source = "from the run store of this machine"
        caption = f"{TASK}, {SCALE} scale, seed {seed}: one seed, a sketch · {source}"
        return fig_mixture_view(steps, mixture, at=at, part=part, arm=arm, caption=caption, note=NOTHING)


def explore_mixture(steps: int | None = None) -> MixtureExplorer:
    """Pick an arm with NormVary, train it for some seconds, and move through time: the weight of each member for the
    mean and for the variance, layer by layer.

    steps: None = those of scale quick."""
    return MixtureExplorer(steps)
