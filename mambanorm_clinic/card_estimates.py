"""How long the runs of a card take, from recorded runs."""

from collections.abc import Sequence

from mambanorm_study.config import RunConfig
from mambanorm_study.runs.grid import base_config, relative_cost
from mambanorm_study.runs.recorded_results import recorded, recorded_path

# Seconds of a unit of `relative_cost` for tasks without recorded runs.
USUAL_SECONDS = 4e-6


def run_seconds(configs: Sequence[RunConfig]) -> float:
    """Return about how many seconds the runs take one after the other."""
    kinds = {(config.scale, config.task) for config in configs}
    units = {(scale, task): _unit_seconds(scale, task) for scale, task in kinds}
    return sum(units[config.scale, config.task] * relative_cost(config) for config in configs)


def _unit_seconds(scale: str, task: str) -> float:
    """Return the seconds of a unit of `relative_cost`: the median over arms of each arm's fastest
    run, because some runs were recorded while the machine did other work.
    """
    if not recorded_path(scale).is_file():
        return USUAL_SECONDS
    runs = recorded(scale)
    runs = runs[(runs.task == task) & (runs.status == "ok")]
    if runs.empty:
        return USUAL_SECONDS
    batch_size = base_config(task, scale).batch_size
    work = runs.steps * runs.n_layers * (runs.d_model + 16) * batch_size
    return float((runs.wall_s / work).groupby(runs.arm).min().median())
