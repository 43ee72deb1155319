"""The decision framework of the guide (S4) as a function: the rules of rules.py, and mamba.py for a Mamba block."""

from __future__ import annotations

from mambanorm.advice.mamba import mamba
from mambanorm.advice.recommendation import (
    ARCHITECTURES,
    COMPONENTS,
    Question,
    Recommendation,
    check,
    meant,
    parameters,
    tasks_of,
    whole,
)
from mambanorm.advice.rules import RULES, never
from mambanorm.basics.settings import check_scale, default_scale


def recommend(
    architecture: str,
    *,
    batch_size: int | None = None,
    task: str | None = None,
    causal: bool = False,
    size: float | str | None = None,
    component: str | None = None,
    depth: int | None = None,
    scale: str | None = None,
    runs_dir=None,
) -> Recommendation:
    """The norm for an architecture and its place, with reasons (the guide's decision framework, S4).

    batch_size: rows of a training batch on one device. causal: no output may depend on a later position. size:
    parameters, a number or such as "7B". component: "generator" or "discriminator" (a GAN needs one), or "output" for
    the last layer. depth: layers. For "mamba", task may also name a task of this kit, such as "digits", and the reasons
    are recorded verdicts. Runs of `advice.measure` that the run store holds (at a scale, in a folder; None = the
    environment's) are named where they speak to the question.
    Names may be spelt in other ways: "Transformers", "language model". ValueError for an unknown value, with the valid
    ones.
    """
    architecture, component = meant(architecture, ARCHITECTURES), meant(component, COMPONENTS)
    task = meant(task, tasks_of(architecture))
    question = Question(architecture, whole(batch_size), task, causal, parameters(size), component, whole(depth))
    check(question)
    store = dict(scale=default_scale() if scale is None else check_scale(scale), runs_dir=runs_dir)
    if refused := never(question):
        return refused
    return mamba(question) if architecture == "mamba" else RULES[architecture](question, store)
