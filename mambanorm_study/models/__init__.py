"""Models beyond the core's, and the registry of all models that a config can name.

| file | contents |
|---|---|
| registry.py | MODELS, register_model |
| mamba2.py | Mamba2Block |
| vision.py | an image as four sequences, VSSBlock, ImageClassifier |
| transformer.py | TransformerClassifier (S2) |
| attention_arms.py | the arms of a Transformer |
"""

from mambanorm_study.models import mamba2, transformer, vision
from mambanorm_study.models.registry import MODELS, ModelEntry, register_model
