"""Runs that somebody watches: `train` in threads of their own, with what they look like now, and a way to stop them.

LiveRun     one run, and what was last seen of it
LiveRuns    several at once, under one thread that restores torch's settings when all have ended
warm_up     loads what they need, so that their start is one
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import nn

from mambanorm.config import RunConfig
from mambanorm.diagnostics import blocks_of, left_as_found, mixtures_of, token_norms
from mambanorm.kernels.threads import exactly_threads, plain_torch
from mambanorm.tasks import load_task
from mambanorm.training.grid import base_config
from mambanorm.training.run import train

LOOK_EVERY = 5  # steps
ROWS = 128
"""Validation rows that are looked at: enough for a moving picture, too few for a result."""
GRADIENT_BINS = np.linspace(-9, 1, 41)
"""Edges of the histogram, log₁₀ |gradient|."""


@cache
def warm_up(task: str, scale: str, arm: str) -> None:
    """One step of such a run, thrown away. It loads data and kernels, 2 s in a new process, and compiles what this
    machine has not compiled yet. What is there then is taken out of the garbage collector's rounds (`gc.freeze`), which
    are 0.3 s of each start after that."""
    train(base_config(task, scale, arm=arm, device="cpu", steps=1, warmup_steps=1))
    gc.collect()
    gc.freeze()


class Stopped(Exception):
    """Somebody pressed stop."""


class LiveRun:
    """What was last seen of a run. All of it is written by the run's thread and read by whoever draws.

    steps, losses: of every step. looked: the steps at which the rest was looked at, with accuracies (of ROWS validation
    rows, fractions) and mixtures (`diagnostics.mixtures_of` each). l2 (layers,): median token ‖y‖₂ after each block;
    gradients: shares of the parameters in GRADIENT_BINS. status: waiting, running, done, stopped, diverged, an error.
    """

    def __init__(self, config: RunConfig):
        self.config, self.status = config, "waiting"
        self.steps, self.losses, self.looked, self.accuracies, self.mixtures = [], [], [], [], []
        self.l2, self.gradients = np.full(config.n_layers, np.nan), np.zeros(len(GRADIENT_BINS) - 1)
        self.stop = threading.Event()

    def train(self) -> None:
        """Trains until the end or until `stop` is set; an error becomes the status."""
        self.status = "running"
        try:
            data = load_task(self.config.task, self.config.scale, self.config.seed)
            self._batch = data.val.batch(slice(0, min(ROWS, len(data.val))))
            result = train(self.config, on_step=self._see)
            self.status = "done" if result.status == "ok" else result.status
        except Stopped:
            self.status = "stopped"
        except (ValueError, RuntimeError) as error:
            self.status = str(error)

    def _see(self, step: int, model: nn.Module, loss: float) -> None:
        if self.stop.is_set():
            raise Stopped
        self.steps.append(step)
        self.losses.append(loss)
        if step == 1 or step % LOOK_EVERY == 0:
            self._look(model)
            self.looked.append(step)

    @torch.no_grad()
    def _look(self, model: nn.Module) -> None:
        found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        sizes = torch.cat(found).abs().clamp(min=1e-30).log10().numpy()
        self.gradients = np.histogram(sizes.clip(GRADIENT_BINS[0], GRADIENT_BINS[-1]), GRADIENT_BINS)[0] / len(sizes)
        inputs, lengths, labels = self._batch
        with left_as_found(model):
            model.eval()
            logits = model(inputs) if lengths is None else model(inputs, lengths)
            tokens = token_norms(model, inputs[:16], None if lengths is None else lengths[:16])
        self.accuracies.append(float((logits.argmax(-1) == labels).float().mean()))
        self.l2 = tokens[tokens.site == "residual"].groupby("depth").l2.median().to_numpy()
        self.mixtures.append(mixtures_of(block for _, block in blocks_of(model)))


class LiveRuns:
    """Runs side by side, a thread each. `changed` is called before they start, now and then while they run, and when
    all have ended, from the thread that watches them."""

    def __init__(self, configs: Sequence[RunConfig], changed: Callable[[], None], every_s: float = 0.4):
        self.runs = [LiveRun(config) for config in configs]
        self._changed, self._every_s = changed, every_s
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> LiveRuns:
        """Returns at once."""
        self._watcher.start()
        return self

    def stop(self, wait_s: float = 10.0) -> None:
        """Stops all runs after the step that they are in, and waits for that."""
        for run in self.runs:
            run.stop.set()
        if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
            self._watcher.join(wait_s)

    @property
    def running(self) -> bool:
        return self._watcher.is_alive()

    def _watch(self) -> None:
        threads = [threading.Thread(target=run.train, daemon=True) for run in self.runs]
        self._changed()  # before they compete with it for the interpreter
        with exactly_threads(1), plain_torch():  # outside of theirs: the last to end must not leave torch as it had it
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                for thread in threads:
                    thread.join(self._every_s / len(threads))
                if any(thread.is_alive() for thread in threads):
                    self._changed()
        self._changed()
