"""A question to `recommend`, and its answer."""

from dataclasses import dataclass
from typing import NamedTuple

from mambanorm_study.basics.settings import SMALL_BATCH

SMALL_BATCH_TASKS = ("detection", "segmentation", "reinforcement_learning")


class Question(NamedTuple):
    """The arguments of `recommend`. None = not given; size: parameters; depth: layers."""

    architecture: str
    batch_size: int | None = None
    task: str | None = None
    causal: bool = False
    size: float | None = None
    component: str | None = None
    depth: int | None = None

    @property
    def words(self) -> str:
        """The question in one line, such as `cnn, batch_size=4`."""
        words = [self.architecture]
        for name, value in self._asdict().items():
            if value and name != "architecture":
                words.append(f"{name}={value:,.0f}" if name == "size" else f"{name}={value}")
        return ", ".join(words)

    @property
    def has_small_batch(self) -> bool:
        """True for a small `batch_size`; without one, for a task whose batches are often small."""
        return self.batch_size < SMALL_BATCH if self.batch_size else self.task in SMALL_BATCH_TASKS

    @property
    def is_causal(self) -> bool:
        """True if no output may depend on a later position, as in a language model."""
        return self.causal or self.task == "language_model"


@dataclass(frozen=True)
class Recommendation:
    """A norm with its place and the reasons for it; each text ends with its source in brackets."""

    norm: str  # its name in the kit; "None" = no norm
    place: str
    code: str  # a line of Python that makes it
    reasons: tuple[str, ...] = ()
    at_odds: tuple[str, ...] = ()  # what other sources, or runs of this kit, say against it
    instead: tuple[str, ...] = ()  # norms to try next
    undecided: tuple[str, ...] = ()  # verdicts of this kit that decide nothing
    question: Question | None = None  # set by `recommend`

    def _repr_markdown_(self) -> str:
        norm = "no norm" if self.norm == "None" else self.norm
        lines = [f"**{self.question.words}: {norm}, {self.place}**", "", f"    {self.code}"]
        sections = {
            "Why": self.reasons,
            "What is at odds": self.at_odds,
            "Not decided by this kit's runs": self.undecided,
            "To try next": self.instead,
        }
        for title, entries in sections.items():
            if entries:
                lines += ["", f"{title}:", "", *(f"- {entry}" for entry in entries)]
        return "\n".join(lines)

    __repr__ = _repr_markdown_
