"""Models beyond the core's, and the registry of all that a config may name.

registry.py         MODELS, register_model
mamba2.py           Mamba2Block
vision.py           VSSBlock, ImageClassifier;   cross_scan.py: an image in four directions
transformer.py      TransformerClassifier (S2);   attention_arms.py: its arms
"""

from mambanorm_study.models import mamba2, transformer, vision
from mambanorm_study.models.registry import MODELS, ModelEntry, register_model
