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
BUILDING = threading.Lock()  # the random state is the process's: two threads of a worker must not share it


def build_model(
    config: RunConfig, data: TaskData | Shape
) -> SequenceClassifier | ImageClassifier | TransformerClassifier | LanguageModel:
    """The model of a config, on the CPU, its weights decided by the seed; the caller's random state is left alone."""
    if data.per_position:
        return build_language_model(config, data.vocab_size)
    options = {name: getattr(config, name) for name in FIELDS_OF[config.model]}
    options["positions"] = data.positions if config.positional == "learned" else None
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        if config.model == "transformer":
            if config.down_sample:
                raise ValueError(
                    f"down_sample={config.down_sample} halves the images of a Mamba: a Transformer has none"
                )
            stem = {name: getattr(data, name) for name in ("vocab_size", "in_features", "in_channels", "patch")}
            return TransformerClassifier(data.n_classes, **stem, **options)
        if data.in_channels is not None:
            if config.model == "mamba2":
                raise ValueError(f"model='mamba2' reads sequences, and {config.task} has images: leave it at 'mamba'")
            options |= {name: getattr(config, name) for name in IMAGE_FIELDS}
            return ImageClassifier(data.n_classes, in_channels=data.in_channels, patch=data.patch, **options)
        if config.down_sample:
            raise ValueError(f"down_sample={config.down_sample} halves images, and {config.task} has sequences")
        return SequenceClassifier(data.n_classes, vocab_size=data.vocab_size, in_features=data.in_features, **options)


NOT_OF_TEXT = dict(stem_norm="None", positional="none", drop_path=0.0, down_sample=(), head_steps=0)
"""Fields that a language model does not have, and the only value that they may have."""
OF_TEXT = {model: [name for name in FIELDS_OF[model] if name not in NOT_OF_TEXT] for model in ("mamba", "mamba2")}
"""The models that a language model may be of, and their fields."""


def build_language_model(config: RunConfig, vocab_size: int) -> LanguageModel:
    """As `build_model`, where the next token is to be predicted. ValueError for a norm that sees later ones."""
    wrong = [] if config.model in OF_TEXT else [("model", "mamba")]
    for name, only in wrong + [pair for pair in NOT_OF_TEXT.items() if getattr(config, pair[0]) != pair[1]]:
        given = getattr(config, name)
        raise ValueError(
            f"{name}={given!r} is no part of a language model, and {config.task} needs one: leave it at {only!r}"
        )
    with BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LanguageModel(vocab_size, **{name: getattr(config, name) for name in OF_TEXT[config.model]})
