"""Further norms, which are registered when this package is imported.

| file | contents |
|---|---|
| per_token.py | Lp, Scale, Constant, NormVary-token |
| switch_norm.py | SwitchNorm |
| autonorm.py | DyT, Derf, and NormSelector, which chooses between DyT and LN (source S2) |
"""

from mambanorm.norms.registry import LATE_REGISTRATION
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.norms import per_token, switch_norm  # the order of import is that of NORMS
from mambanorm_study.norms.autonorm import NormSelector

LATE_REGISTRATION.append(load_imports)  # a file of --import may register an unknown norm

__all__ = ["NormSelector"]
