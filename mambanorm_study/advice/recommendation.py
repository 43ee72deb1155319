"""The input of `recommend` (Question) and its output (Recommendation)."""

from dataclasses import dataclass
from typing import NamedTuple

from mambanorm_study.basics.settings import SMALL_BATCH

SMALL_BATCH_TASKS = ("detection", "segmentation", "reinforcement_learning")


class Question(NamedTuple):
    """The arguments of `recommend`, which explains them.

    None means that an argument is not given. size: the number of parameters of the model. depth:
    the number of layers.
    """

    architecture: str
    batch_size: int | None = None
    task: str | None = None
    causal: bool = False
    size: float | None = None
    component: str | None = None
    depth: int | None = None

    @property
    def words(self) -> str:
        """The question as a text of one line, such as `cnn, batch_size=4`."""
        options = [
            f"{name}={value:,.0f}" if name == "size" else f"{name}={value}"
            for name, value in zip(self._fields[1:], self[1:], strict=True)
            if value
        ]
        return ", ".join([self.architecture, *options])

    @property
    def has_small_batch(self) -> bool:
        """True if `batch_size` is less than SMALL_BATCH rows.

        If `batch_size` is not given, True if the task is one of SMALL_BATCH_TASKS.
        """
        return self.batch_size < SMALL_BATCH if self.batch_size else self.task in SMALL_BATCH_TASKS

    @property
    def is_causal(self) -> bool:
        """True if no output may depend on a later position, as in a language model."""
        return self.causal or self.task == "language_model"


@dataclass(frozen=True)
class Recommendation:
    """The norm that `recommend` recommends, where in the model to put the norm, and why.

    Each text in `reasons` and `contradictions` ends with its source in brackets.
    """

    norm: str  # the name of the norm in this kit; "None" means no norm
    place: str  # where in the model to put the norm
    code: str  # a line of Python that makes the norm
    reasons: tuple[str, ...] = ()
    # what other sources, or runs of this kit, say against the recommendation
    contradictions: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()  # norms to try next
    question: Question | None = None  # what the recommendation answers; `recommend` sets it

    def _repr_markdown_(self) -> str:
        norm = "no norm" if self.norm == "None" else self.norm
        text = f"**{self.question.words}: {norm}, {self.place}**\n\n    {self.code}"
        sections = {
            "Why": self.reasons,
            "What contradicts this": self.contradictions,
            "To try next": self.alternatives,
        }
        for title, entries in sections.items():
            if entries:
                text += f"\n\n{title}:\n\n" + "\n".join(f"- {entry}" for entry in entries)
        return text

    __repr__ = _repr_markdown_
