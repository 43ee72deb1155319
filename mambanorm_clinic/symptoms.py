"""Classes for the clinic's results: a fault, all faults of a model, the first non-finite value."""

import html
import math
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from mambanorm_study.basics.text import plural

SEVERITIES = ("serious", "warning", "note")
# Sources of symptoms: the notebooks that measured the faults.
GROWTH_SOURCE = "notebook 07, Figure 9 (H10)"
FAILURE_SOURCE = "notebook 07, failures (H9)"
BIAS_SOURCE, SMALL_A_SOURCE = "notebook 16, Q2", "notebook 16, Q3"
# About float32's machine epsilon. A number below this value counts as 0.
NEGLIGIBLE = 1.2e-7


@dataclass(frozen=True)
class Symptom:
    """One fault of a model.

    severity: one of SEVERITIES. where: the path of the module, site, weight or buffer with the
    fault, "" for the model as a whole. message: a description of the fault with measured numbers.
    advice: what to try. source: the check of the guide S4 (docs/sources.md) that finds the
    fault, or the notebook that measured this kind of fault.
    """

    severity: str
    where: str
    message: str
    advice: str
    source: str


class Symptoms(list[Symptom]):
    """The list of a model's faults, the worst first; a notebook shows the list as a table.

    skipped: texts on what was not examined and why.
    """

    def __init__(self, symptoms: Iterable[Symptom], skipped: Iterable[str] = ()):
        super().__init__(sorted(symptoms, key=lambda symptom: SEVERITIES.index(symptom.severity)))
        self.skipped = tuple(skipped)

    @property
    def _summary(self) -> list[str]:
        count = plural(len(self), "finding") if self else "nothing found"
        return [count, *(f"not examined: {reason}" for reason in self.skipped)]

    def __repr__(self) -> str:
        lines = [
            f"{symptom.severity}: {symptom.where or 'the model'}: {symptom.message}\n"
            f"    try: {symptom.advice} ({symptom.source})"
            for symptom in self
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

    where: the path of the tensor that contains the value. This is the path of a module, followed by
    ":input" if the tensor is the module's input, or the path of a site in a block of this kit.
    site, depth: the tensor's site and depth, as in the table of a Diagnosis; "" and 0 if the tensor
    is not a site. before: the path of the last finite tensor that was computed earlier, "" if there
    is none. before_max, before_site: that tensor's largest magnitude, and its site or "". nan: True
    if the tensor contains NaN, False if it contains only infinities. half: True if the tensor
    is in float16. in_gradient: True if the value is in the tensor's gradient; nan and half are not
    set then.
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
        name = tensor_name(self.site, self.depth, self.where)
        return f"the gradient of {name}" if self.in_gradient else name


def tensor_name(site: str, depth: int, where: str) -> str:
    """Return a name for a tensor in messages, such as `scan of layer 3 (blocks.2.scan)`.

    where: the path of the tensor. If `site` is "", the name is only the path.
    """
    where = {"": "the model's output", ":input": "the model's input"}.get(where, where)
    return f"{site} of layer {depth} ({where})" if site else where
