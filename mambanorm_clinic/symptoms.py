"""The data that the clinic reports: a fault, all faults of a model, the first non-finite value."""

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from mambanorm_study.basics.text import plural

SEVERITIES = ("serious", "warning", "note")
# Where this kit measured a fault.
GROWTH_SOURCE = "notebook 07, Figure 9 (H10)"
FAILURE_SOURCE = "notebook 07, failures (H9)"
# The share of a state that float32 no longer sees beside 1.
NEGLIGIBLE = 1.2e-7


@dataclass(frozen=True)
class Symptom:
    """A fault of a model.

    severity: one of SEVERITIES. where: the path of the module, "" for the model itself. message:
    the fault, with its number. advice: what to try. source: the check of the guide, or the notebook
    that measured it. parameter: "A" or "delta" for a fault of a mixer's own parameters, else "".
    """

    severity: str
    where: str
    message: str
    advice: str
    source: str
    parameter: str = ""


class Symptoms(list[Symptom]):
    """The faults of a model, the worst first; displayed as a table.

    skipped: what could not be inspected, and why. source_heading: the heading of the last column.
    """

    def __init__(
        self,
        symptoms: Iterable[Symptom],
        skipped: Sequence[str] = (),
        source_heading: str = "in the guide",
    ):
        super().__init__(sorted(symptoms, key=lambda one: SEVERITIES.index(one.severity)))
        self.skipped = tuple(skipped)
        self.source_heading = source_heading

    @property
    def _summary(self) -> list[str]:
        count = plural(len(self), "finding") if self else "nothing found"
        return [count, *(f"not looked at: {reason}" for reason in self.skipped)]

    def __repr__(self) -> str:
        lines = [
            f"{one.severity}: {one.where or 'the model'}: {one.message}\n"
            f"    try: {one.advice} ({one.source})"
            for one in self
        ]
        return "\n".join([*lines, *self._summary])

    def _repr_html_(self) -> str:
        rows = [
            (one.severity, one.where or "the model", one.message, one.advice, one.source)
            for one in self
        ]
        columns = ["", "where", "what was found", "what to try", self.source_heading]
        table = pd.DataFrame(rows, columns=columns)
        text = "".join(f"<p>{html.escape(line)}</p>" for line in self._summary)
        if table.empty:
            return text
        with pd.option_context("display.max_colwidth", None):
            return table.to_html(index=False, border=0) + text


@dataclass(frozen=True)
class NonFiniteValue:
    """The first non-finite value of a forward or backward pass.

    where: the path of the module (":input" behind it for its input) or a site of one of this kit's
    blocks. site, depth: as in the table of a Diagnosis; "" and 0 for a tensor that is not a site.
    before: the finite tensor just before it, "" if there is none; before_max: its largest
    magnitude; before_site: its site or "". nan: the value is NaN, not infinite. half: it is in
    float16.
    """

    where: str
    site: str = ""
    depth: int = 0
    before: str = ""
    before_max: float = math.nan
    before_site: str = ""
    nan: bool = False
    half: bool = False


def place_text(site: str, depth: int, where: str) -> str:
    """Return a place in words, `scan of layer 3 (blocks.2.scan)`, or its path alone."""
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where
