"""What `watch` says of a step that is not finite: a Report, as data and as text, and the error that carries it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mambanorm.advice.findings import Findings
from mambanorm.diagnostics.nonfinite import First, place

BEFORE = 4
"""Steps that the text of a report tells of; the frames have them all."""


@dataclass(frozen=True)
class Report:
    """What was seen when a step was not finite.

    step: the optimizer's step, from 1, that was about to be made. last_finite_step: the step after which the weights in
    `checkpoint` stand. first: the first non-finite value when the batch is run again, None if it was not met again;
    backward: it is a gradient. steps: step, loss, grad_norm; layers: step, depth, layer, rms, grad_rms.
    """

    step: int
    last_finite_step: int | None
    first: First | None
    backward: bool
    steps: pd.DataFrame
    layers: pd.DataFrame
    findings: Findings
    checkpoint: Path | None
    picture: Path | None
    what: str = "is not finite"
    """What the step is; of one whose loss and gradients are finite, why it is told all the same."""

    @property
    def site(self) -> str:
        """Where it was first seen, as in `First.where`; "" if it was not met again."""
        return "" if self.first is None else self.first.where

    def __str__(self) -> str:
        now = self.steps.iloc[-1]
        lines = [f"step {self.step} {self.what}: loss {now.loss:.4g}, norm of the gradients {now.grad_norm:.4g}"]
        if self.first is not None:
            what = "the gradient of " if self.backward else ""
            lines.append(f"first: {what}{place(self.first.site, self.first.depth, self.first.where)}")
        norms = " → ".join(f"{norm:.3g}" for norm in self.steps.grad_norm.iloc[-BEFORE - 1 :])
        lines.append(f"norm of the gradients in the last steps: {norms}")
        if self.checkpoint is not None:
            lines.append(f"weights after step {self.last_finite_step}, finite: {self.checkpoint}")
        lines += [] if self.picture is None else [f"picture: {self.picture}"]
        return "\n".join([*lines, repr(self.findings)])


class NonFinite(FloatingPointError):
    """Raised in place of the optimizer's step that would have spread a non-finite gradient; `report` says the rest."""

    def __init__(self, report: Report):
        super().__init__(str(report))
        self.report = report
