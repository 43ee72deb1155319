"""What is found wrong with a model, as data, as a table and as text: Symptom, one thing; Symptoms, all of a model."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import pandas as pd

from mambanorm.basics.text import plural

SEVERITIES = ("serious", "warning", "note")


@dataclass(frozen=True)
class Symptom:
    """How bad, where, what with its number, what to try, and the line of the guide or where this kit measured it.

    severity: SEVERITIES. where: the module's path in the model ("" = the model itself).
    """

    severity: str
    where: str
    found: str
    try_this: str
    check: str


class Symptoms(Sequence[Symptom]):
    """The symptoms of a model, the worst first; shows itself as a table. `frame` has them as a data frame.

    skipped: what could not be looked at, and why. source: what the table's last column says.
    """

    def __init__(self, found: Sequence[Symptom], skipped: Sequence[str] = (), source: str = "in the guide"):
        self.found = sorted(found, key=lambda one: SEVERITIES.index(one.severity))
        self.skipped, self.source = tuple(skipped), source

    def __getitem__(self, i):
        return self.found[i]

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[Symptom]:
        return iter(self.found)

    @property
    def frame(self) -> pd.DataFrame:
        return pd.DataFrame(self.found, columns=[field.name for field in fields(Symptom)])

    @property
    def _lines(self) -> list[str]:
        count = plural(len(self.found), "finding") if self.found else "nothing found"
        return [count, *(f"not looked at: {why}" for why in self.skipped)]

    def __repr__(self) -> str:
        told = [
            f"{one.severity}: {one.where or 'the model'}: {one.found}\n    try: {one.try_this} ({one.check})"
            for one in self.found
        ]
        return "\n".join([*told, *self._lines])

    def _repr_html_(self) -> str:
        cells = [(one.severity, one.where or "the model", one.found, one.try_this, one.check) for one in self.found]
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        head = "".join(f"<th>{name}</th>" for name in ("", "where", "what was found", "what to try", self.source))
        table = f"<table><tr>{head}</tr>{rows}</table>" if rows else ""
        return table + "".join(f"<p>{html.escape(line)}</p>" for line in self._lines)
