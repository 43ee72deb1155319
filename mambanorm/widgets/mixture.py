"""explore_mixture: the weights of NormVary or SwitchNorm over layers and time, of a stored run or some seconds here."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from functools import cache

import numpy as np
from torch import nn

from mambanorm.config import RunConfig
from mambanorm.diagnostics import blocks_of, mixtures_of
from mambanorm.diagnostics.weights import MIXTURES
from mambanorm.figures.style import StudyFigure
from mambanorm.figures.weights import fig_mixture_view
from mambanorm.kernels.threads import exactly_threads
from mambanorm.training.grid import base_config
from mambanorm.training.run import train
from mambanorm.training.store import find_run
from mambanorm.widgets.explorer import Explorer, begin_and_end, buttons, choice, slider

TASK, SCALE = "digits", "quick"
ARMS = (
    *("NormVary>SSM>None", "NormVary>SSM>GN", "None>SSM>NormVary", "NormVary>SSM>NormVary"),
    *("SwitchNorm>SSM>None", "SwitchNorm>SSM>SwitchNorm"),
)
NOTHING = "the recorded results\nhold no weights:\npress train"
LOOK_EVERY, TELL_EVERY_S = 5, 0.4  # steps, seconds


@cache
def warm_up() -> None:
    """One step of such a run, thrown away. It loads data and kernels, 2 s in a new process, and compiles what this
    machine has not compiled yet. What is there then is taken out of the garbage collector's rounds (`gc.freeze`), which
    are 0.3 s of each start after that."""
    train(base_config(TASK, SCALE, arm=ARMS[0], device="cpu", steps=1, warmup_steps=1))
    gc.collect()
    gc.freeze()


class Stopped(Exception):
    """Somebody pressed stop."""


class LiveRun(threading.Thread):
    """`train` in a thread of its own, with what its norms mix meanwhile; `changed` is called now and
    then, and at the end.

    looked, mixtures: the steps at which was looked, and `diagnostics.mixtures_of` each. status: waiting, running, done,
    stopped, diverged, or an error. Set `stop`, and it ends after the step that it is in.
    """

    def __init__(self, config: RunConfig, changed: Callable[[], None]):
        super().__init__(daemon=True)
        self.config, self.status, self.looked, self.mixtures = config, "waiting", [], []
        self.stop, self._changed, self._told = threading.Event(), changed, 0.0

    def run(self) -> None:
        self.status = "running"
        try:
            with exactly_threads(1):
                result = train(self.config, on_step=self._see)
            self.status = "done" if result.status == "ok" else result.status
        except Stopped:
            self.status = "stopped"
        except (ValueError, RuntimeError) as error:
            self.status = str(error)
        self._changed()

    def _see(self, step: int, model: nn.Module, loss: float) -> None:
        if self.stop.is_set():
            raise Stopped
        if step == 1 or step % LOOK_EVERY == 0:
            self.mixtures.append(mixtures_of(block for _, block in blocks_of(model)))
            self.looked.append(step)
            if time.monotonic() > self._told + TELL_EVERY_S:
                self._told = time.monotonic()
                self._changed()


class MixtureExplorer(Explorer):
    """A button trains the arm here, unless the run store of this machine has it."""

    def __init__(self, steps: int | None = None):
        warm_up()
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
        """Trains the arm of the controls in a thread of its own; an earlier one is stopped."""
        self.end()
        if self.live is not None:
            self.live.join(10)
        self.live = LiveRun(self.config(self.values["arm"], self.values["seed"]), self.redraw)
        self.live.start()

    def end(self, *_) -> None:
        """Stops what runs after the step that it is in; a click need not wait for that."""
        if self.live is not None:
            self.live.stop.set()

    def _show(self, at: float, part: str, arm: str, seed: int) -> StudyFigure:
        name = next(name for name in ("mixture_SwitchNorm", "mixture") if MIXTURES[name].__name__ in arm)
        steps, mixture, source = self._found(self.config(arm, seed), name)
        caption = f"{TASK}, {SCALE} scale, seed {seed}: one seed, a sketch · {source}"
        how = dict(at=at, part=part, arm=arm, caption=caption, note=NOTHING, norm=MIXTURES[name])
        return fig_mixture_view(steps, mixture, **how)

    def _found(self, config: RunConfig, name: str) -> tuple[np.ndarray, np.ndarray, str]:
        """Steps and mixture (T, norms, 2, members) of the run trained here just now, else of the stored one."""
        if self.live is not None and self.live.config == config and (looked := list(self.live.looked)):
            mixture = np.stack([kinds[name] for kinds in self.live.mixtures[: len(looked)]])
            return np.array(looked), mixture, f"trained here, {self.live.status}"
        stored = find_run(config.but(device="auto"))
        if stored is not None and name in stored.diagnostics:
            return stored.diagnostics["step"], stored.diagnostics[name], "from the run store of this machine"
        return np.empty(0, int), np.empty((0, 0, 2, 0)), "nothing recorded, nothing stored"


def explore_mixture(steps: int | None = None) -> MixtureExplorer:
    """Pick an arm with NormVary or SwitchNorm, train it for some seconds, and move through time: the weight of each
    member for the mean and for the variance, layer by layer.

    steps: None = those of scale quick."""
    return MixtureExplorer(steps)
