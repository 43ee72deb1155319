"""What is asked of `recommend` and what it hands back."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

from mambanorm.basics.checks import check_flag, check_size, shown
from mambanorm.basics.errors import unknown

ARCHITECTURES = ("cnn", "rnn", "lstm", "gru", "transformer", "gan", "mamba", "mlp")
TASKS = (
    "classification", "regression", "detection", "segmentation", "style_transfer", "image_translation", "generation",
    "language_model", "reinforcement_learning", "debugging",
)  # fmt: skip
IMAGES = ("style_transfer", "image_translation")
"""Tasks that turn an image into an image."""
COMPONENTS = ("generator", "discriminator", "output")
"""Parts of a model: those of a GAN, and the last layer of any."""
UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}
LARGE = 1e9
"""Parameters from which the guide calls a Transformer large."""
UNDECIDED = "Not decided by this kit's runs"
"""Title of the list of what was measured here and decides nothing, or was not measured."""


@dataclass(frozen=True)
class Question:
    """What is asked; None where it is left open."""

    architecture: str
    batch_size: int | None = None
    task: str | None = None
    causal: bool = False
    size: float | None = None
    component: str | None = None
    depth: int | None = None

    @property
    def sees_no_future(self) -> bool:
        """A language model predicts the next token, so that it is causal without being called so."""
        return self.causal or self.task == "language_model"

    @property
    def words(self) -> str:
        """`cnn, batch_size=4`"""
        given = {name: value for name, value in vars(self).items() if value and name != "architecture"}
        said = (f"{name}={value:,.0f}" if name == "size" else f"{name}={value}" for name, value in given.items())
        return ", ".join([self.architecture, *said])


def meant(given: object, names: Iterable[str]) -> object:
    """The one of the names that a text stands for, whatever its capitals, hyphens and plural; else as it is."""
    plain = lambda text: re.sub(r"[\W_]", "", text).lower().removesuffix("s")  # noqa: E731
    return {plain(name): name for name in names}.get(plain(given), given) if isinstance(given, str) else given


def check_question(q: Question, tasks: Iterable[str]) -> None:
    """ValueError for an unknown value, for a size below 1, and for a GAN without its component."""
    for name, valid in (("architecture", ARCHITECTURES), ("task", tasks), ("component", COMPONENTS)):
        if (value := getattr(q, name)) not in valid and (name == "architecture" or value is not None):
            raise unknown(name, value, valid)
    if q.architecture == "gan" and q.component is None:
        raise ValueError(f"a GAN has two networks: component is needed, valid are {', '.join(COMPONENTS)}")
    for name in ("batch_size", "depth"):
        if (value := getattr(q, name)) is not None:
            check_size(name, value)
    check_flag("causal", q.causal)


def parameters(size: float | str | None) -> float | None:
    """A number of parameters, from a number or a text such as "7B" or "350M". ValueError for anything else."""
    if size is None:
        return None
    try:
        text = str(size).strip().lower()
        number = float(text[:-1]) * UNITS[text[-1]] if text[-1:] in UNITS else float(text)
    except ValueError:
        number = 0.0
    if not 1 <= number < float("inf") or isinstance(size, bool):
        raise ValueError(f"size must be a number of parameters such as 3e8, '350M' or '7B', got {shown(size)}")
    return number


@dataclass(frozen=True)
class Reason:
    """A sentence and its source."""

    text: str
    source: str

    def __str__(self) -> str:
        return f"{self.text} [{self.source}]"


@dataclass(frozen=True)
class Recommendation:
    """A norm by its name in the kit ("None" for none), its place in words, the line of code, and why.

    at_odds: where sources contradict each other, themselves, or the runs of this kit. instead: norms to try next.
    undecided: runs of this kit that speak to the question and do not decide it, or that are missing.
    """

    question: Question
    norm: str
    place: str
    code: str
    reasons: tuple[Reason, ...] = ()
    at_odds: tuple[Reason, ...] = ()
    instead: tuple[str, ...] = ()
    undecided: tuple[Reason, ...] = ()

    @property
    def headline(self) -> str:
        return f"{self.question.words}: {'no norm' if self.norm == 'None' else self.norm}, {self.place}"

    def __repr__(self) -> str:
        lines = [self.headline, f"    {self.code}"]
        for title, entries in self._lists:
            lines += [title, *(f"  - {entry}" for entry in entries)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def listed(title: str, entries: list) -> str:
            return f"<p>{title}:</p><ul>{''.join(f'<li>{html.escape(str(entry))}</li>' for entry in entries)}</ul>"

        lists = "".join(listed(title, entries) for title, entries in self._lists)
        return f"<p><b>{html.escape(self.headline)}</b></p><p><code>{html.escape(self.code)}</code></p>{lists}"

    @property
    def _lists(self) -> list[tuple[str, list]]:
        lists = [("Why", self.reasons), ("What is at odds", self.at_odds), (UNDECIDED, self.undecided)]
        lists.append(("To try next", self.instead))
        return [(title, list(entries)) for title, entries in lists if entries]
