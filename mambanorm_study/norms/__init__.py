"""Further norms, which are registered when this package is imported.

| file | contents |
|---|---|
| beyond_the_paper.py | Lp, Scale, Constant, NormVary-token, SwitchNorm |
| autonorm.py | DyT, Derf, and NormSelector, which chooses between DyT and LN (source S2) |
"""

from mambanorm.norms.registry import LATE_REGISTRATION
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.norms import beyond_the_paper  # first, because the import orders NORMS
from mambanorm_study.norms.autonorm import NormSelector

LATE_REGISTRATION.append(load_imports)  # a file of --import may register an unknown norm

__all__ = ["NormSelector"]
