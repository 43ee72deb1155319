"""Builds the model of a config, with initial weights that depend on the seed alone.

Two arms (e.g. RMSN>SSM>None and RMSN>SSM>GN: the norms before and after the SSM) with the same seed
start from the same weights in every parameter that they share (a paired comparison).

A field of RunConfig is passed to the model if the class of the model or of its blocks has a
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
from mambanorm_study.runs import ssm_parameters
from mambanorm_study.tasks import Shape, TaskData

# Fields that a task's settings may contain although the task's model ignores them. `_check_fields`
# accepts them at any value.
IGNORED_FIELDS = ("d_state", "d_conv", "n_heads")


def build_model(config: RunConfig, data: TaskData | Shape) -> nn.Module:
    """Return the model of a config, on the CPU. The caller's random state does not change.

    Raises ValueError if a field that the model does not use differs from its default.
    """
    model_class, block_class = _model_and_block_class(config, data)
    arguments = _argument_names(model_class, block_class)
    _check_fields(config, model_class, arguments)
    values = {**vars(config), **vars(data)}
    values["positions"] = data.positions if config.positional == "learned" else None
    options = {name: values[name] for name in arguments & values.keys()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = model_class(**options)
    ssm_parameters.set_initial_values(model, config.dt_init, config.a_init)
    return model


def _model_and_block_class(
    config: RunConfig, data: TaskData | Shape
) -> tuple[type[nn.Module], type[nn.Module]]:
    """Return the class of the model and the class of its blocks."""
    entry = MODELS[config.model]
    if data.per_position and entry.classifier is not None:
        raise ValueError(
            f"{config.task} needs a language model, and model={config.model!r} is a classifier"
        )
    if data.per_position:
        return LanguageModel, entry.block
    if entry.classifier is not None:
        return entry.classifier, entry.block
    if data.in_channels is not None:
        return ImageClassifier, VSSBlock
    return SequenceClassifier, entry.block


@cache
def _argument_names(model_class: type[nn.Module], block_class: type[nn.Module]) -> frozenset[str]:
    """Return the names of the arguments of a model's constructor.

    A constructor with `**` parameters passes them to the blocks, so the names of the blocks'
    arguments are included.
    """
    parameters = inspect.signature(model_class).parameters
    names = set(parameters)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        names |= set(inspect.signature(block_class).parameters) - {"n1", "n2", "more"}
    return frozenset(names)


@cache
def _model_fields() -> frozenset[str]:
    """Return the names of the config fields that at least one model takes, minus IGNORED_FIELDS."""
    arguments = set(_argument_names(ImageClassifier, VSSBlock))
    for entry in MODELS.values():
        arguments |= _argument_names(entry.classifier or SequenceClassifier, entry.block)
    return frozenset(arguments.intersection(NAMES).difference(IGNORED_FIELDS))


def _check_fields(
    config: RunConfig, model_class: type[nn.Module], arguments: frozenset[str]
) -> None:
    """Raise ValueError if a config field that the model does not take differs from its default.

    arguments: names of the arguments of the model.
    """
    used_fields = set(arguments)
    if model_class is MODELS[config.model].classifier:
        used_fields.add("model")
    for name in sorted(_model_fields() - used_fields, key=NAMES.index):
        value, default = getattr(config, name), getattr(DEFAULTS, name)
        if value != default:
            raise ValueError(
                f"{name}={value!r} has no effect on the {model_class.__name__} that {config.task} "
                f"needs: leave it at {default!r}"
            )
