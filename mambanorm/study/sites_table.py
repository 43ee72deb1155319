"""What a norm at one more site of Mamba's block brings, seed by seed.

site_gains    run frame → one row a task, site and norm: the gain over Mamba's own arm
"""

from __future__ import annotations

import math

import pandas as pd

from mambanorm.arms import Arm
from mambanorm.study.experiments import OWN
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import by_seed, check_frame
from mambanorm.training.presets import LANGUAGE_TASKS


def site_gains(frame: pd.DataFrame) -> pd.DataFrame:
    """The gain of each arm with one further site over OWN, over shared seeds, one row a task, norm and site.

    Columns: task, site, norm, arm, gain (mean), low, high (95 % t-interval), n, per_seed (list), unit. More is better:
    points of test accuracy; of a language model bits a character that the test loss is lower. A run that diverged
    counts as chance. ValueError for a frame without runs, and on a task without OWN.
    """
    check_frame(frame, ("task", "arm", "seed", "test_accuracy", "status"))
    rows = []
    for task, here in frame.groupby("task", sort=False):
        scored, unit = _scored(here, task in LANGUAGE_TASKS)
        own = by_seed(scored, str(task), str(OWN), "worth")
        for arm in dict.fromkeys(scored.arm):
            parsed = Arm.parse(arm)
            if parsed[:2] == OWN[:2] and len(parsed.more) == 1:
                gains = (by_seed(scored, str(task), arm, "worth") - own).dropna()
                low, high = t_interval(gains)
                (site, norm), facts = parsed.more[0], dict(gain=gains.mean(), low=low, high=high, n=len(gains))
                rows.append(dict(task=task, site=site, norm=norm, arm=arm, **facts, per_seed=gains.tolist(), unit=unit))
    return pd.DataFrame(rows)


def _scored(runs: pd.DataFrame, language: bool) -> tuple[pd.DataFrame, str]:
    """The runs with a column `worth`, more of which is better, and its unit."""
    lost = runs.status == "diverged"
    if not language:
        return runs.assign(worth=100 * runs.test_accuracy.where(~lost, runs.chance)), "points"
    return runs.assign(worth=-runs.test_loss.where(~lost, runs.chance_loss) / math.log(2)), "fewer bits a character"
