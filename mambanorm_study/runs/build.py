"""Builds the model of a config, with initial weights that depend on the seed alone.

Two arms with the same seed start from the same weights in every parameter that they share (a paired
comparison). A field of RunConfig is passed to the model if the model's class, or its block, has a
parameter of the same name.
"""

import inspect
from functools import cache

import torch
from torch import nn

from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm_study.config import DEFAULTS, NAMES, RunConfig
from mambanorm_study.models import MODELS
from mambanorm_study.models.vision import ImageClassifier, VSSBlock
from mambanorm_study.tasks import Shape, TaskData

# Fields that tasks set for one kind of model, and that other kinds ignore.
IGNORED = ("d_state", "d_conv", "n_heads")


def build_model(config: RunConfig, data: TaskData | Shape) -> nn.Module:
    """Return the model of a config, on the CPU. The caller's random state does not change.

    Raises ValueError for a field that the model does not have, unless it has its default.
    """
    kind, block = _classes(config, data)
    arguments = _arguments(kind, block)
    _check_fields(config, kind, arguments)
    values = {**vars(config), **vars(data)}
    values["positions"] = data.positions if config.positional == "learned" else None
    options = {name: values[name] for name in arguments & values.keys()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return kind(**options)


def _classes(config: RunConfig, data: TaskData | Shape) -> tuple[type[nn.Module], type[nn.Module]]:
    """Return the class of the model and of its blocks."""
    entry = MODELS[config.model]
    if data.per_position and entry.classifier is not None:
        raise ValueError(
            f"{config.task} needs a language model, and there is none of {config.model!r}"
        )
    if data.per_position:
        return LanguageModel, entry.block
    if entry.classifier is not None:
        return entry.classifier, entry.block
    if data.in_channels is not None:
        return ImageClassifier, VSSBlock
    return SequenceClassifier, entry.block


@cache
def _arguments(kind: type[nn.Module], block: type[nn.Module]) -> frozenset[str]:
    """Return the names of a model's arguments, with its block's if it passes them on."""
    parameters = inspect.signature(kind).parameters
    names = set(parameters)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        names |= set(inspect.signature(block).parameters) - {"n1", "n2", "more"}
    return frozenset(names)


@cache
def _model_fields() -> frozenset[str]:
    """Return the config fields that some model takes."""
    arguments = set(_arguments(ImageClassifier, VSSBlock))
    for entry in MODELS.values():
        arguments |= _arguments(entry.classifier or SequenceClassifier, entry.block)
    return frozenset(arguments.intersection(NAMES).difference(IGNORED))


def _check_fields(config: RunConfig, kind: type[nn.Module], arguments: frozenset[str]) -> None:
    """Raise ValueError for a field that the model does not take, unless it has its default."""
    used = set(arguments)
    if kind is MODELS[config.model].classifier:
        used.add("model")
    for name in sorted(_model_fields() - used, key=NAMES.index):
        value, default = getattr(config, name), getattr(DEFAULTS, name)
        if value != default:
            raise ValueError(
                f"{name}={value!r} has no effect on the {kind.__name__} that {config.task} needs: "
                f"leave it at {default!r}"
            )
