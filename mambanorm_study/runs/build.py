"""From a config to its model, with initial weights that follow from the seed alone.

Two arms with the same seed start from the same weights in every parameter that they share (a paired
comparison). A field of RunConfig reaches the model if the model's class, or its block, takes an
argument of the same name.
"""

from __future__ import annotations

import inspect
import threading
from functools import cache
from typing import Any

import torch
from torch import nn

from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm_study.config import DEFAULTS, NAMES, RunConfig
from mambanorm_study.models import MODELS
from mambanorm_study.models.vision import ImageClassifier, VSSBlock
from mambanorm_study.tasks import Shape, TaskData

IGNORED = ("d_state", "d_conv", "n_heads")
"""Fields that a model without them ignores: a task sets them for Mambas, and a Transformer of the
same task has none."""
TRAINED_LATER = ("head_steps",)
"""Fields of the training that need a classifier's head."""
BUILDING = threading.Lock()  # two threads of a worker must not share the process's random state


def build_model(config: RunConfig, data: TaskData | Shape) -> nn.Module:
    """Return the model of a config, on the CPU. The caller's random state is left alone.

    Raises ValueError for a field that the model does not have, unless it has its default.
    """
    kind, block = _classes(config, data)
    names = _arguments(kind, block)
    _check_fields(config, kind, names)
    options: dict[str, Any] = {name: getattr(config, name) for name in NAMES if name in names}
    inputs = dict(
        n_classes=data.n_classes,
        vocab_size=data.vocab_size,
        in_features=data.in_features,
        in_channels=data.in_channels,
        patch=data.patch,
        positions=data.positions if config.positional == "learned" else None,
    )
    options.update({name: value for name, value in inputs.items() if name in names})
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return kind(**options)


def _classes(config: RunConfig, data: TaskData | Shape) -> tuple[type[nn.Module], type[nn.Module]]:
    """Return the class of the model and of its blocks."""
    entry = MODELS[config.model]
    if data.per_position:
        if entry.classifier is not None:
            raise ValueError(
                f"{config.task} needs a language model, and there is none of {entry.name!r}"
            )
        return LanguageModel, entry.block
    if entry.classifier is not None:
        return entry.classifier, entry.block
    if data.in_channels is not None:
        return ImageClassifier, VSSBlock
    return SequenceClassifier, entry.block


@cache
def _arguments(kind: type[nn.Module], block: type[nn.Module]) -> frozenset[str]:
    """Return the names of the arguments that a model takes; those of its block if it passes them
    on."""
    own = inspect.signature(kind).parameters
    names = set(own)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in own.values()):
        names |= set(inspect.signature(block).parameters) - {"n1", "n2", "more"}
    return frozenset(names)


@cache
def _fields_of_models() -> frozenset[str]:
    """Return the config fields that some model takes."""
    taken = set(_arguments(ImageClassifier, VSSBlock))
    for entry in MODELS.values():
        taken |= _arguments(entry.classifier or SequenceClassifier, entry.block)
    return frozenset({*taken & {*NAMES}, *TRAINED_LATER} - {*IGNORED})


def _check_fields(config: RunConfig, kind: type[nn.Module], names: frozenset[str]) -> None:
    known = set(names)
    if kind is not LanguageModel:
        known.update(TRAINED_LATER)
    if kind is MODELS[config.model].classifier:
        known.add("model")
    for name in NAMES:
        given, default = getattr(config, name), getattr(DEFAULTS, name)
        if name in _fields_of_models() and name not in known and given != default:
            raise ValueError(
                f"{name}={given!r} has no effect on the {kind.__name__} that {config.task} needs: "
                f"leave it at {default!r}"
            )
