"""The results of the clinic: a fault, all faults of a model, the first non-finite value."""

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from mambanorm_study.basics.text import plural

SEVERITIES = ("serious", "warning", "note")
# The notebooks that measured a fault.
GROWTH_SOURCE = "notebook 07, Figure 9 (H10)"
FAILURE_SOURCE = "notebook 07, failures (H9)"
# A smaller number does not change 1 when it is added in float32.
NEGLIGIBLE = 1.2e-7


@dataclass(frozen=True)
class Symptom:
    """A fault of a model.

    severity: one of SEVERITIES. where: the path of the module, "" for the model itself. message:
    the fault, with its number. advice: what to try. source: the check of the guide (source S4), or
    the notebook that measured the fault.
    """

    severity: str
    where: str
    message: str
    advice: str
    source: str


class Symptoms(list[Symptom]):
    """The faults of a model, the worst first; a notebook shows them as a table.

    skipped: what was not examined, and why.
    """

    def __init__(self, symptoms: Iterable[Symptom], skipped: Iterable[str] = ()):
        super().__init__(sorted(symptoms, key=lambda one: SEVERITIES.index(one.severity)))
        self.skipped = tuple(skipped)

    @property
    def _summary(self) -> list[str]:
        count = plural(len(self), "finding") if self else "nothing found"
        return [count, *(f"not examined: {reason}" for reason in self.skipped)]

    def __repr__(self) -> str:
        lines = [
            f"{one.severity}: {one.where or 'the model'}: {one.message}\n"
            f"    try: {one.advice} ({one.source})"
            for one in self
        ]
        return "\n".join([*lines, *self._summary])

    def _repr_html_(self) -> str:
        text = "".join(f"<p>{html.escape(line)}</p>" for line in self._summary)
        if not self:
            return text
        table = pd.DataFrame(self).replace({"where": {"": "the model"}})
        table.columns = ["", "where", "what was found", "what to try", "source"]
        with pd.option_context("display.max_colwidth", None):
            return table.to_html(index=False, border=0) + text


@dataclass(frozen=True)
class NonFiniteValue:
    """The first non-finite value of a forward or backward pass.

    where: the path of the module (with ":input" if the value is in its input) or of the site of a
    block of this kit. site, depth: as in the table of a Diagnosis; "" and 0 for a tensor that is
    not a site. before: the path of the last finite tensor before this one, "" if there is none.
    before_max: its largest magnitude. before_site: its site, or "". nan: True if the value is NaN,
    False if it is infinite. half: True if the tensor is in float16. in_gradient: True if the value
    is in the gradient of the tensor.
    """

    where: str
    site: str = ""
    depth: int = 0
    before: str = ""
    before_max: float = math.nan
    before_site: str = ""
    nan: bool = False
    half: bool = False
    in_gradient: bool = False

    def __str__(self) -> str:
        place = place_text(self.site, self.depth, self.where)
        return f"the gradient of {place}" if self.in_gradient else place


def place_text(site: str, depth: int, where: str) -> str:
    """Return the name of a tensor for messages, such as `scan of layer 3 (blocks.2.scan)`.

    It is the path alone if `site` is "".
    """
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where
