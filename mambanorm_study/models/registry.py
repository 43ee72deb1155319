"""The registry of models: the names that `RunConfig.model` accepts.

runs/build.py passes a config field to the model if the model's class or its block has an argument
of the same name. So a new model need not list the config fields that it uses.
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

    block: the class of the model's blocks for sequences. mixer: the operation between the norms in
    the model's arms, "SSM" or "MHA". check(config): raises ValueError for fields that do not fit
    together. classifier: the model class; None means SequenceClassifier, ImageClassifier or
    LanguageModel, depending on the task.
    """

    block: type[nn.Module]
    mixer: str = "SSM"
    check: Callable[[Any], object] = lambda config: None
    classifier: type[nn.Module] | None = None


MODELS: dict[str, ModelEntry] = {}


def register_model(name: str, block: type[nn.Module], **options: Any) -> None:
    """Add a model to MODELS. options: the fields of `ModelEntry` other than `block`. Raises
    ValueError if the name is registered already.
    """
    if name in MODELS:
        raise ValueError(f"model {name!r} is registered already, see MODELS: {', '.join(MODELS)}")
    MODELS[name] = ModelEntry(block, **options)
    if MODELS[name].classifier is None:
        BLOCKS[name] = block


register_model("mamba", MambaBlock)
