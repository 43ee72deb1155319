"""The registry of models: the names that `RunConfig.model` accepts.

A model is built from the config fields that its class and its block take as arguments of the same
name (runs/build.py), so a new model needs no list of fields.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from mambanorm.block import MambaBlock
from mambanorm.models.parts import BLOCKS


@dataclass(frozen=True)
class ModelEntry:
    """A model that a config can name.

    block: the class of its blocks for sequences. mixer: the operation between the norms in its
    arms, "SSM" or "MHA". check(config): raises ValueError for fields that do not fit together.
    classifier: the model class, if it is not SequenceClassifier, ImageClassifier or LanguageModel.
    """

    block: type[nn.Module]
    mixer: str = "SSM"
    check: Callable[[Any], object] = lambda config: None
    classifier: type[nn.Module] | None = None


MODELS: dict[str, ModelEntry] = {}


def register_model(name: str, block: type[nn.Module], **options: Any) -> None:
    """Add a model to MODELS. options: further fields of `ModelEntry`. Raises ValueError if the name
    is taken.
    """
    if name in MODELS:
        raise ValueError(f"model {name!r} is registered already (taken: {', '.join(MODELS)})")
    MODELS[name] = ModelEntry(block, **options)
    if MODELS[name].classifier is None:
        BLOCKS[name] = block


register_model("mamba", MambaBlock)
