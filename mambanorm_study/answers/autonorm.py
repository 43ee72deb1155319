"""Notebook 10: is a learned choice between norms better than LN alone, and is it more robust?

AutoNorm is a Transformer whose norms are NormSelectors, which blend DyT and LN with learned weights
for each token. FrozenLN is the same Transformer with LN.
"""

from collections.abc import Collection, Mapping

import pandas as pd

from mambanorm_study.answers.phrases import (
    answer_text,
    difference_text,
    join_words,
    judged_difference,
    mean_difference,
)


def rmse_text(differences: pd.Series) -> str:
    """Return the mean of `differences` (one RMSE difference per seed) with its 95 % t-interval, as
    text: "RMSE +0.48 [−0.67, 1.63]".
    """
    mean, low, high = mean_difference(differences)
    interval = f"[{low:.2f}, {high:.2f}]" if len(differences) > 1 else "(one seed: no interval)"
    return f"RMSE {mean:+.2f} {interval}".replace("-", "−")


def teacher_effect(runs: pd.DataFrame, regression_tasks: Collection[str]) -> str:
    """Return lines of Markdown for each task on which AutoNorm was also trained with a teacher: the
    result with a teacher minus the result without one, and for a regression task also the result of
    AutoNorm (without a teacher) minus that of FrozenLN.

    The result is the RMSE on `regression_tasks`, the test accuracy on all other tasks. runs: a run
    frame with a column `model`: "AutoNorm", "AutoNorm, student" (with a teacher), "FrozenLN" or
    others.
    """
    lines = []
    students = runs[runs.model.str.contains("AutoNorm|FrozenLN")]
    for task, rows in students.groupby("task", sort=False):
        value = "rmse" if task in regression_tasks else "test_accuracy"
        wide = rows.pivot(index="seed", columns="model", values=value)
        if "AutoNorm, student" not in wide:
            continue
        gains = wide["AutoNorm, student"] - wide["AutoNorm"]
        if task in regression_tasks:
            gain = rmse_text(gains)
            lines.append(
                f"- AutoNorm − FrozenLN, {task}: {rmse_text(wide.AutoNorm - wide.FrozenLN)}"
            )
        else:
            gain = judged_difference(mean_difference(100 * gains))
        lines.append(f"- AutoNorm with a teacher − AutoNorm without a teacher, {task}: {gain}")
    return "\n".join(lines)


def _gap_text(differences: pd.Series) -> str:
    return difference_text(mean_difference(differences))


def _weights_text(weights: pd.DataFrame) -> str:
    if weights.empty:
        return "No selector was recorded."
    means = weights.groupby("block", sort=False).w0.mean()
    blocks = join_words(f"{w0:.2f} ({block})" for block, w0 in means.items())
    return (
        f"The weight of DyT started at 0.5 and ended at {blocks} (one run). LN has one minus this "
        "weight."
    )


def _lines_by_task(heading: str, steps: pd.DataFrame) -> list[str]:
    """Return one line of Markdown for each task, with all differences of `steps` on this task."""
    lines = []
    for task, rows in steps.groupby("task", sort=False) if len(steps) else ():
        texts = [f"{row.step} {judged_difference(row)}" for row in rows.itertuples()]
        lines.append(f"- **{heading}**, {task}: {'; '.join(texts)}")
    return lines


def answer_on_choice(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    controls: pd.DataFrame,
    crossed: pd.DataFrame,
    *,
    weights: pd.DataFrame,
    corrupted: pd.DataFrame,
    ratios: Mapping[str, float],
) -> str:
    """Return the answer of notebook 10: the weights that selectors choose, and how models with a
    selector compare with FrozenLN, with random and fixed blends of DyT and LN, and with boosted
    trees.

    All frames except `runs` may be empty. steps, controls and crossed are frames of
    `run_tables.paired_steps`. steps: each model − FrozenLN. controls: AutoNorm − a random blend,
    and AutoNorm − a fixed blend. crossed: Mamba with NormSelector − Mamba with another norm.
    weights: the frame of `weight_log.selector_weights` for a trained model. corrupted: the frame of
    `robustness.against_reference`, on corrupted images. ratios: task → RMSE of the model that is
    best on validation, divided by the RMSE of boosted trees.
    """
    lines = [f"- **What is chosen**: {_weights_text(weights)}"]
    lines += _lines_by_task("Against FrozenLN", steps)
    lines += _lines_by_task("AutoNorm", controls)
    for kind, rows in corrupted[corrupted.arm != "FrozenLN"].groupby("kind", sort=False):
        gaps = [
            f"{row.arm} {_gap_text(row.accuracy_gap)} (difference in the change from clean images "
            f"{_gap_text(row.change_gap)})"
            for row in rows.itertuples()
            if len(row.accuracy_gap)
        ]
        if gaps:
            lines.append(f"- **Under {kind}**, against FrozenLN: {'; '.join(gaps)}")
    lines += [
        f"- **{task}**: the best model on validation has {ratio:.2f} times the RMSE of boosted "
        "trees"
        for task, ratio in ratios.items()
    ]
    lines += _lines_by_task("NormSelector inside Mamba", crossed)
    shows = "95 % t-intervals, not corrected for several comparisons, one learning rate for all"
    return answer_text(runs, shows, lines)
