"""Models that mambanorm itself does not have, and the registry of all models for `RunConfig`.

| file | contents |
|---|---|
| registry.py | MODELS, register_model |
| mamba2.py | Mamba2Block |
| vision.py | VSSBlock, which scans an image in four directions, and ImageClassifier |
| transformer.py | TransformerBlock and TransformerClassifier (source S2 in docs/sources.md) |
| attention_arms.py | arms of a Transformer, `N1>MHA>N2` |
"""

from mambanorm_study.models import mamba2, transformer, vision
from mambanorm_study.models.registry import MODELS, ModelEntry, register_model
