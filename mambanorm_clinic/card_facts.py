"""The facts about a norm that its card shows."""

from dataclasses import dataclass, field

import pandas as pd

from mambanorm_clinic.card_checks import Trial
from mambanorm_study.claims import rule

# Mamba's original arm, with which every other one is compared.
REFERENCE = "RMSN>SSM>None"
PLACES = {
    "before the block": "{0}>SSM>None",
    "after the scan": "None>SSM>{0}",
    "on both sides": "{0}>SSM>{0}",
}


@dataclass(frozen=True)
class CardFacts:
    """The facts about a norm.

    seeds: task → the seeds to train. against: the arm that the norm is compared with. file: the
    file that registers it, "" for a registered name. trial: `card_checks.try_norm`. checks: group,
    question, answer, mark. costs: one row a size (norm_catalog.costs_of). same: the norm of the kit
    that it equals, "" if there is none. training: one row a place (`training_table`). verdicts: one
    row for each place, task and other arm: the columns of `compare`, and place, arm, against, best
    (it is the best recorded arm). scores: task → every tuned arm with its mean. notes: what could
    not be measured. untrained: what could not be trained, () if all was.
    """

    name: str
    scale: str
    tasks: tuple[str, ...]
    seeds: dict[str, list[int]]
    against: str = REFERENCE
    file: str = ""
    trial: Trial = field(default_factory=lambda: Trial(""))
    checks: pd.DataFrame = field(default_factory=pd.DataFrame)
    costs: pd.DataFrame = field(default_factory=pd.DataFrame)
    same: str = ""
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    verdicts: pd.DataFrame = field(default_factory=pd.DataFrame)
    scores: dict[str, pd.DataFrame] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()

    @property
    def arms(self) -> dict[str, str]:
        """Return place → arm; a norm that equals one of the kit's has its arms, because their runs
        are recorded.
        """
        places = {"nowhere": "None>SSM>None"} if self.name == "None" else PLACES
        return {place: arm.format(self.same or self.name) for place, arm in places.items()}

    @property
    def sketch(self) -> bool:
        """Return True if there are too few seeds for a word."""
        return max(map(len, self.seeds.values())) < rule.FEWEST

    def command(self, task: str) -> str:
        """Return the command that makes this card on one task."""
        against = "" if self.against == REFERENCE else f' --against "{self.against}"'
        return f"mambanorm card {self.file or self.name} --tasks {task}{against}"
