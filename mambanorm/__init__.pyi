"""Public names, imported on first use: see mambanorm/lazy.py."""

from mambanorm.arms import (
    PRESETS as PRESETS,
)
from mambanorm.arms import (
    SITES as SITES,
)
from mambanorm.arms import (
    Arm as Arm,
)
from mambanorm.block import MambaBlock as MambaBlock
from mambanorm.inside import (
    record_sites as record_sites,
)
from mambanorm.inside import (
    singular_values as singular_values,
)
from mambanorm.inside import (
    token_norms as token_norms,
)
from mambanorm.loop import (
    batch_order as batch_order,
)
from mambanorm.loop import (
    build_optimizer as build_optimizer,
)
from mambanorm.loop import (
    fit as fit,
)
from mambanorm.loop import (
    learning_rate as learning_rate,
)
from mambanorm.models.classifier import SequenceClassifier as SequenceClassifier
from mambanorm.models.language import LanguageModel as LanguageModel
from mambanorm.norms import (
    NORMS as NORMS,
)
from mambanorm.norms import (
    NormVary as NormVary,
)
from mambanorm.norms import (
    create_norm as create_norm,
)
from mambanorm.norms import (
    register_norm as register_norm,
)
from mambanorm.operations import (
    conv_silu as conv_silu,
)
from mambanorm.operations import (
    gated as gated,
)
from mambanorm.operations import (
    low_rank_scan as low_rank_scan,
)
from mambanorm.operations import (
    scan_backend as scan_backend,
)
from mambanorm.operations import (
    selective_scan as selective_scan,
)

__version__: str
