"""`trainer_callback`: `watch` for Hugging Face's Trainer."""

from __future__ import annotations

from pathlib import Path

from mambanorm.clinic.reports import Report
from mambanorm.clinic.watching import Watched, new_watch


def trainer_callback(*, ring: int = 64, every: int = 100, folder: str | Path = "clinic"):
    """`watch` for Hugging Face: Trainer(…, callbacks=[mn.trainer_callback()]).

    At the first step that is not finite it prints the report, drops that step's gradients, so that the model keeps its
    finite weights, and ends the training. `callback.report` is None until then. Needs transformers.
    """
    from transformers import TrainerCallback

    class ClinicCallback(TrainerCallback):
        watch: Watched | None = None

        @property
        def report(self) -> Report | None:
            return None if self.watch is None else self.watch.report

        def on_train_begin(self, args, state, control, model=None, **_):
            self.watch = new_watch(model, None, ring, every, folder).__enter__()

        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            if (report := self.watch.check()) is not None:
                print(report)
                self.watch.model.zero_grad(set_to_none=True)
                control.should_training_stop = True
            return control

        def on_train_end(self, args, state, control, **_):
            self.watch.__exit__()

    return ClinicCallback()
