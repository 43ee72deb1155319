"""Norms that mambanorm itself does not have. Importing this package registers them.

| file | contents |
|---|---|
| adaptive.py | adaLN, whose scale and shift depend on the model's input (S3 in docs/sources.md) |
| beyond_the_paper.py | Lp, Scale, Constant, NormVary-token, SwitchNorm |
| autonorm.py | DyT, Derf, and NormSelector, which blends DyT and LN (S2) |
"""

from mambanorm.norms.registry import LATE_REGISTRATION
from mambanorm_study.basics.extensions import load_imports

# in this order, because NORMS lists the norms in the order of registration
from mambanorm_study.norms import adaptive, beyond_the_paper
from mambanorm_study.norms.autonorm import NormSelector

LATE_REGISTRATION.append(load_imports)  # a file given with --import may register more norms

__all__ = ["NormSelector"]
