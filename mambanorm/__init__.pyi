"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm.arms import (
    PRESETS as PRESETS,
    SITES as SITES,
    Arm as Arm,
)
from mambanorm.block import MambaBlock as MambaBlock
from mambanorm.inside import (
    record_sites as record_sites,
    singular_values as singular_values,
    token_norms as token_norms,
)
from mambanorm.loop import (
    batch_order as batch_order,
    build_optimizer as build_optimizer,
    fit as fit,
    learning_rate as learning_rate,
)
from mambanorm.models.classifier import SequenceClassifier as SequenceClassifier
from mambanorm.models.language import LanguageModel as LanguageModel
from mambanorm.norms import (
    NORMS as NORMS,
    NormVary as NormVary,
    create_norm as create_norm,
    register_norm as register_norm,
)
from mambanorm.operations import (
    conv_silu as conv_silu,
    gated as gated,
    low_rank_scan as low_rank_scan,
    scan_backend as scan_backend,
    selective_scan as selective_scan,
)

__version__: str
