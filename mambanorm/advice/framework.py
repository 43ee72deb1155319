"""The decision framework of the guide (S4) as a function: the rules of rules.py, and mamba.py for a Mamba block."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from mambanorm.advice.mamba import mamba
from mambanorm.advice.recommendation import ARCHITECTURES, COMPONENTS, IMAGES, TASKS, Question, Recommendation
from mambanorm.advice.rules import RULES, never
from mambanorm.basics.checks import check_flag, check_size, shown
from mambanorm.basics.errors import unknown
from mambanorm.basics.settings import check_scale, default_scale
from mambanorm.tasks import TASKS as KIT

SAID = {
    "cnn": "convnet, convolutional network, resnet",
    "transformer": "attention, bert, gpt, llm, vit",
    "gan": "generative adversarial network",
    "mamba": "mamba 2, ssm, state space model",
    "mlp": "dense, feed forward, multilayer perceptron",
    "classification": "classifier, image classification, sequence classification, text classification",
    "detection": "object detection",
    "segmentation": "image segmentation, semantic segmentation",
    "image_translation": "image to image",
    "generation": "image generation",
    "language_model": "causal lm, language modeling, language modelling, llm, lm, text generation",
    "reinforcement_learning": "rl",
    "debugging": "debug",
    "output": "head, last layer, output layer",
}
"""Name → other words for it. Capitals, hyphens and a plural's s are no difference."""
UNITS = {"k": 1e3, "m": 1e6, "b": 1e9}


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
    tasks = (*TASKS, *KIT) if architecture == "mamba" else TASKS
    task = meant(task, tasks)
    batch_size, depth = (n.item() if isinstance(n, np.integer) else n for n in (batch_size, depth))
    question = Question(architecture, batch_size, task, causal, parameters(size), component, depth)
    check(question, tasks)
    store = dict(scale=default_scale() if scale is None else check_scale(scale), runs_dir=runs_dir)
    if refused := never(question):
        return refused
    return mamba(question) if architecture == "mamba" else RULES[architecture](question, store)


def meant(given: object, names: Iterable[str]) -> object:
    """The one of the names that a text stands for, however it is spelt; anything else as it is."""
    if not isinstance(given, str) or given in (names := tuple(names)):
        return given
    words = {_plain(name): name for name in names}
    words |= {_plain(word): name for name in names for word in SAID.get(name, "").split(",")}
    return words.get(_plain(given) or None, given)


def _plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower().removesuffix("s")


def check(q: Question, tasks: Iterable[str]) -> None:
    """ValueError for an unknown value, for a size below 1, and for a component that the architecture does not have."""
    for name, valid in (("architecture", ARCHITECTURES), ("task", tasks), ("component", COMPONENTS)):
        if (value := getattr(q, name)) not in valid and (name == "architecture" or value is not None):
            raise unknown(name, value, valid)
    if q.architecture == "gan" and q.component is None:
        raise ValueError(f"a GAN has two networks: component is needed, valid are {', '.join(COMPONENTS)}")
    if q.architecture != "gan" and q.component in COMPONENTS[:2]:
        raise ValueError(f"component={q.component!r} is a part of a GAN, and architecture is {q.architecture!r}")
    for name in ("batch_size", "depth"):
        if (value := getattr(q, name)) is not None:
            check_size(name, value)
    check_flag("causal", q.causal)
    if q.causal and q.task in IMAGES and q.architecture in ("cnn", "gan"):
        raise ValueError(f"causal=True with task={q.task!r}: an image has no later positions, leave out one of the two")


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
