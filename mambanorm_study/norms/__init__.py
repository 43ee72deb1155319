"""Further norms, which importing this package registers.

controls.py   Lp, Scale, Constant, NormVary-token, SwitchNorm
selector.py   DyT, Derf, and NormSelector, which chooses between DyT and LN (source S2)
adaln.py      not in the registry: adaLN, adaLN-zero, weight standardization
"""

from mambanorm.norms.registry import LATE_REGISTRATION
from mambanorm_study.basics.extensions import load_imports
from mambanorm_study.norms import controls
from mambanorm_study.norms.selector import NormSelector

LATE_REGISTRATION.append(load_imports)  # a norm of yours may stand in a file of --import

__all__ = ["NormSelector"]
