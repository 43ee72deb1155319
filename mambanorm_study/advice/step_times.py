"""The time of a training step of each tuned arm, relative to the original arm of its task.

`python -m mambanorm_study.advice.step_times` measures the times on this machine and writes
data/results/step_times.csv. All arms of a task are timed in turn, several times over, so that a
machine that slows down slows all arms down.
"""

from functools import lru_cache

import numpy as np
import pandas as pd

from mambanorm_study.advice.which_arm import ADVISED_ON, ORIGINAL, RECOMMENDED_BY, tuned_arms
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.machine import machine, versions
from mambanorm_study.runs.recorded_results import RESULTS
from mambanorm_study.tables.plan import measure, shape_of

RECORDED, ROUNDS = RESULTS / "step_times.csv", 7


def original_arm(kind: str) -> str:
    """Return the arm of the original model for a kind of task."""
    (arm,) = [arm for arm, who in RECOMMENDED_BY[kind].items() if who == ORIGINAL]
    return arm


def relative_step_time(arm: str, task: str) -> float | None:
    """Return the recorded time of a training step of an arm, divided by that of the original arm of
    the task; None if it is not recorded.
    """
    return _recorded().get((task, arm))


@lru_cache(maxsize=1)
def _recorded() -> dict[tuple[str, str], float]:
    if not RECORDED.is_file():
        return {}
    return pd.read_csv(RECORDED).set_index(["task", "arm"]).relative.to_dict()


def measure_step_times(kind: str, task: str) -> pd.DataFrame:
    """Time the training step of every tuned arm on a task.

    Returns one row per arm. Columns: task, arm, ms (median time of a step in milliseconds),
    relative (median over the rounds of the arm's time divided by the original arm's time), versions
    and machine.
    """
    arms = tuned_arms(kind)
    configs = [base_config(task, STUDY_SCALE, arm=arm) for arm in arms]
    shape = shape_of(configs[0])
    models = [build_model(config, shape) for config in configs]
    seconds = np.array(
        [
            [measure(model, c, shape)[0] for model, c in zip(models, configs, strict=True)]
            for _ in range(ROUNDS)
        ]
    )
    relative = seconds / seconds[:, [arms.index(original_arm(kind))]]
    return pd.DataFrame(
        {
            "task": task,
            "arm": arms,
            "ms": (1000 * np.median(seconds, axis=0)).round(2),
            "relative": np.median(relative, axis=0).round(3),
            "versions": versions(),
            "machine": machine(),
        }
    )


if __name__ == "__main__":
    tables = [measure_step_times(kind, task) for kind, task in ADVISED_ON.items()]
    pd.concat(tables).to_csv(RECORDED, index=False)
    print(RECORDED)
