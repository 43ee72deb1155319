"""What a claim is: a source's sentence, the comparisons that would show it, and how they are judged."""

from __future__ import annotations

from dataclasses import dataclass

from mambanorm.claims.comparisons import Comparison
from mambanorm.study.paper import MAIN_TASKS

SMALLEST_EFFECT = 1.0
"""The smallest effect of interest of every accuracy claim, in percentage points."""

SMALLEST_BITS = 0.01
"""That of every claim about language models, in bits a character: about half a percent of what a small model needs."""

KINDS = {"s": "sequence", "v": "vision", "l": "language"}
"""The last letter of a claim's id → the kind of task that it is about."""


@dataclass(frozen=True)
class Claim:
    """One claim of the paper; its sentences, its comparisons, and how they are judged (see hypotheses.py)."""

    id: str
    words: str  # what the paper claims, in our words
    quote: str  # the paper's own sentence
    where: str  # and its place
    quantity: str
    direction: str
    paper: str  # the numbers that the paper prints
    comparisons: tuple[Comparison, ...]
    threshold: float = SMALLEST_EFFECT
    runs: str = "tuned"
    at_least: int | None = None
    select: str = ""
    reference: str = ""  # the arm that Fisher's test compares the divergence of the others with
    needs_grid: bool = False  # every pair of norms, not only single ones and types
    paper_task: str = ""  # where the paper prints the numbers of these arms; "" = its main experiment
    note: str = ""

    @property
    def kind(self) -> str:
        return KINDS[self.id[-1]]

    @property
    def beyond(self) -> bool:
        """Whether it is about later models, and no claim of a source of the study (beyond.py)."""
        return self.id.startswith("E")

    @property
    def unit(self) -> str:
        """The unit of its first comparison; the claim on growth (H10) has comparisons in two units."""
        return "% of runs" if self.runs == "failure" else self.comparisons[0].unit

    @property
    def printed_on(self) -> str:
        """On which of its tasks the paper prints numbers; "" if it has none of this kind."""
        if self.beyond:
            return ""
        return self.paper_task or MAIN_TASKS.get(self.kind, "")

    @property
    def arms(self) -> tuple[str, ...]:
        """Every arm the claim compares, once each."""
        return tuple(dict.fromkeys(arm for comparison in self.comparisons for arm in comparison.weights))

    def threshold_of(self, comparison: Comparison) -> float:
        return self.threshold if comparison.threshold is None else comparison.threshold
