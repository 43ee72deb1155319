"""From a config to its model: which fields each kind of model takes, and weights that the seed alone decides.

Paired by construction: two arms with one seed start from the same weights in every parameter that they share.
"""

from __future__ import annotations

import threading

import torch

from mambanorm.config import RunConfig
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm.models.transformer import TransformerClassifier
from mambanorm.models.vision import ImageClassifier
from mambanorm.tasks import Shape, TaskData

COMMON_FIELDS = (
    "d_model", "n_layers", "arm", "stem_norm", "final_norm", "expand", "norm_options", "positional", "drop_path",
)  # fmt: skip
"""The fields of a config that every model takes as they are."""
MODEL_FIELDS = (*COMMON_FIELDS, "d_state", "d_conv")
MAMBA2_FIELDS = (*MODEL_FIELDS, "model", "head_dim", "n_groups")
TRANSFORMER_FIELDS = (*COMMON_FIELDS, "n_heads", "norm_position", "squeeze_excite")
FIELDS_OF = {"mamba": MODEL_FIELDS, "mamba2": MAMBA2_FIELDS, "transformer": TRANSFORMER_FIELDS}
IMAGE_FIELDS = ("down_sample", "down_norm")
"""Those that models of images take in addition."""
NOT_OF_TEXT = ("stem_norm", "positional", "drop_path", "down_sample", "head_steps")
"""Those that a language model does not have."""
BUILDING = threading.Lock()  # the random state is the process's: two threads of a worker must not share it


def build_model(
    config: RunConfig, data: TaskData | Shape
) -> SequenceClassifier | ImageClassifier | TransformerClassifier | LanguageModel:
    """The model of a config, on the CPU, its weights decided by the seed; the caller's random state is left alone."""
    _check_fields(config, data)
    names = [name for name in FIELDS_OF[config.model] if not (data.per_position and name in NOT_OF_TEXT)]
    options = {name: getattr(config, name) for name in names}
    if not data.per_position:
        options["positions"] = data.positions if config.positional == "learned" else None
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if data.per_position:
            return LanguageModel(data.vocab_size, **options)
        if config.model == "transformer":
            stem = {name: getattr(data, name) for name in ("vocab_size", "in_features", "in_channels", "patch")}
            return TransformerClassifier(data.n_classes, **stem, **options)
        if data.in_channels is not None:
            options |= {name: getattr(config, name) for name in IMAGE_FIELDS}
            return ImageClassifier(data.n_classes, in_channels=data.in_channels, patch=data.patch, **options)
        return SequenceClassifier(data.n_classes, vocab_size=data.vocab_size, in_features=data.in_features, **options)


def _check_fields(config: RunConfig, data: TaskData | Shape) -> None:
    """ValueError for a field that the model which the task needs does not have, unless it is at its default."""
    transformer, images = config.model == "transformer", data.in_channels is not None
    if data.per_position:
        kind, foreign = "language model", (*["model"] * transformer, *NOT_OF_TEXT)
    elif images and not transformer:
        kind, foreign = "Mamba of images", ["model"]
    else:
        kind, foreign = "Transformer" if transformer else "Mamba of sequences", ["down_sample"]
    for name in foreign:
        given, default = getattr(config, name), RunConfig.__dataclass_fields__[name].default
        if given != default:
            told = f"{name}={given!r} is no part of a {kind}, and {config.task} needs one: leave it at {default!r}"
            raise ValueError(told)
