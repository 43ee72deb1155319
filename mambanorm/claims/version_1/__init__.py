"""Version 1 of the protocol, frozen: the verdicts that it gave can be computed for as long as its runs are kept.

A later version of the protocol changes hypotheses, tuning and rules. The verdicts of this one are then shown beside the
current ones, wherever the two differ, and nobody has to take the older ones on trust. So nothing here may change:
these files import no other file of `claims/`, they write out every setting of version 1 instead of asking the study
for its present one, and `tests/test_version_1.py` holds all verdicts on the frame that was recorded under version 1.

hypotheses.py   HYPOTHESES: the claims as data, and the settings of their runs
judge.py        judge_version_1: a hypothesis and a run frame → a FirstVerdict
"""

from mambanorm.claims.version_1.hypotheses import HYPOTHESES
from mambanorm.claims.version_1.judge import FirstVerdict, judge_version_1

__all__ = ["HYPOTHESES", "FirstVerdict", "judge_version_1"]
