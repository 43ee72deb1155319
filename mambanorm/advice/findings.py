"""What a check of a model found, as data, as a table and as text.

Finding     one thing: how bad, where, what with its number, what to try, which line of the guide
Findings    all of a model, the worst first
Exam        what the checks look at: a copy of the model, some batches, what a pass through it has shown
NotSeen     raised by a check that cannot be made
"""

from __future__ import annotations

import copy
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

import pandas as pd
from torch import Tensor, nn

from mambanorm.advice.trace import Trace
from mambanorm.basics.text import plural

SEVERITIES = ("serious", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """severity: SEVERITIES. where: the module's path in the model ("" = the model itself). check: the guide's line."""

    severity: str
    where: str
    found: str
    try_this: str
    check: str


class Findings(Sequence[Finding]):
    """The findings of a model, the worst first; shows itself as a table. `frame` has them as a data frame."""

    LAST = "in the guide"
    """What the last column says."""

    def __init__(self, found: Sequence[Finding], skipped: Sequence[str] = ()):
        self.found = sorted(found, key=lambda f: SEVERITIES.index(f.severity))
        self.skipped = tuple(skipped)
        """What could not be looked at, and why."""

    def __getitem__(self, i):
        return self.found[i]

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.found)

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.found, columns=[field.name for field in fields(Finding)])

    @property
    def _lines(self) -> list[str]:
        count = plural(len(self.found), "finding") if self.found else "nothing found"
        return [count, *(f"not looked at: {why}" for why in self.skipped)]

    def __repr__(self) -> str:
        told = [
            f"{f.severity}: {f.where or 'the model'}: {f.found}\n    try: {f.try_this} ({f.check})" for f in self.found
        ]
        return "\n".join([*told, *self._lines])

    def _repr_html_(self) -> str:
        cells = [(f.severity, f.where or "the model", f.found, f.try_this, f.check) for f in self.found]
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        head = "".join(f"<th>{name}</th>" for name in ("", "where", "what was found", "what to try", self.LAST))
        table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._lines)


class NotSeen(Exception):
    """A check could not be made; its text says why, and goes to `skipped`."""


@dataclass
class Exam:
    """A copy of the model and what is known of it. trace and batches are empty where no batch was given.

    The copy is never run: a check runs a copy of its own, `twin` in the mode in which the model was handed in, or
    `learner` in train mode, in which what was frozen in a model that was handed in in train mode stays frozen.
    """

    model: nn.Module
    batches: list
    trace: Trace | None
    forward: Callable[[nn.Module, object], object]
    rows: int | None = None  # of the first batch
    batch_size: int | None = None  # as the caller says
    loss: Callable[[object, object], Tensor] | None = None
    lr: float | None = None
    task: str | None = None
    component: str | None = None
    evaluating: bool = False
    training: bool = True  # the mode in which the model was handed in

    def twin(self) -> nn.Module:
        return copy.deepcopy(self.model)

    def learner(self) -> nn.Module:
        return self.twin() if self.training else self.twin().train()
