"""Notebook 10: is a learned choice of norm better than LN alone, and is it more robust?"""

from collections.abc import Collection, Mapping

import pandas as pd

from mambanorm_study.answers.phrases import (
    answer_text,
    difference_text,
    join_words,
    judged_difference,
    mean_difference,
)
from mambanorm_study.tables.intervals import t_interval

SHOWS = "95 % t-intervals, not corrected for several comparisons, one learning rate for all"


def rmse_text(differences: pd.Series) -> str:
    """Return a difference of RMSE over seeds: "RMSE +0.48 [−0.67, 1.63]"."""
    low, high = t_interval(differences)
    interval = f"[{low:.2f}, {high:.2f}]" if len(differences) > 1 else "(one seed: no interval)"
    return f"RMSE {differences.mean():+.2f} {interval}".replace("-", "−")


def teacher_effect(runs: pd.DataFrame, tables: Collection[str]) -> str:
    """Return the effect of a teacher, and whether the two names of LN alone agree.

    runs: a run frame with a column `model`, the names of the students. tables: the tasks that are
    regressions.
    """
    lines = []
    students = runs[runs.model.str.contains("AutoNorm|FrozenLN|Teacher")]
    for task, rows in students.groupby("task", sort=False):
        value = "rmse" if task in tables else "test_accuracy"
        wide = rows.pivot(index="seed", columns="model", values=value)
        if "AutoNorm, student" not in wide:
            continue
        taught, teacher = wide["AutoNorm, student"] - wide["AutoNorm"], wide["Teacher"].mean()
        if task in tables:
            lines += [
                f"- taught − by itself, {task}: {rmse_text(taught)} (teacher: {teacher:.2f})",
                f"- AutoNorm − FrozenLN, {task}: {rmse_text(wide['AutoNorm'] - wide['FrozenLN'])}",
            ]
        else:
            agree = (wide["AutoNorm_DisableSelector"] == wide["FrozenLN"]).all()
            lines += [
                f"- taught − by itself, {task}: {judged_difference(mean_difference(100 * taught))}"
                f" (teacher: {100 * teacher:.1f} %)",
                "- AutoNorm_DisableSelector and FrozenLN give "
                f"{'the same' if agree else 'not the same'} accuracy with every seed, {task}",
            ]
    return "\n".join(lines)


def robustness_summary(held: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `robustness.against` for reading, with both gaps as text."""
    table = held.set_index(["task", "kind", "arm"]).rename(columns={"corrupted": "corrupted %"})
    table = table.round(1)
    for name, column in (("corrupted", "accuracy_gap"), ("change", "change_gap")):
        table[f"{name}, against FrozenLN"] = [
            _gap(gap) if len(gap) else "–" for gap in held[column]
        ]
    return table.drop(columns=["accuracy_gap", "change_gap"])


def _gap(differences: pd.Series) -> str:
    return difference_text(mean_difference(differences))


def _preferred(weights: pd.DataFrame) -> str:
    if weights.empty:
        return "No selector was watched."
    means = weights.groupby("block", sort=False).w0.mean()
    blocks = join_words(f"{w0:.2f} ({block})" for block, w0 in means.items())
    norms = {"DyT" if w0 > 0.5 else "LN" for w0 in means}
    preferred = "not the same in every layer" if len(norms) > 1 else f"all prefer {norms.pop()}"
    return f"The weight of DyT, which started at a half, ended at {blocks}: {preferred} (one run)."


def is_choice_better(
    runs: pd.DataFrame,
    steps: pd.DataFrame,
    controls: pd.DataFrame,
    crossed: pd.DataFrame,
    *,
    weights: pd.DataFrame,
    held: pd.DataFrame,
    ratios: Mapping[str, float],
) -> str:
    """Return the answer of notebook 10: what selectors prefer, and how they compare with others.

    The others are FrozenLN, random and fixed blends, and boosted trees. Any frame but `runs` may be
    empty. steps, controls, crossed: `tables.paired_steps` against FrozenLN, of the blends, and
    inside Mamba. weights: `selector_weights` of a trained model. held: `robustness.against`.
    ratios: task → RMSE over that of boosted trees.
    """
    lines = [f"- **What is chosen**: {_preferred(weights)}"]
    lines += [
        f"- **{row.step}** against FrozenLN on {row.task}: {judged_difference(row)}"
        for row in steps.itertuples()
    ]
    lines += [
        f"- **{row.step}** on {row.task}: {judged_difference(row)}" for row in controls.itertuples()
    ]
    lines += [
        f"- **Under {row.kind}**, {row.arm} against FrozenLN: {_gap(row.accuracy_gap)}; what "
        f"{row.kind} changes: {_gap(row.change_gap)}"
        for row in held[held.arm != "FrozenLN"].itertuples()
    ]
    lines += [
        f"- **{task}**: the best on validation has {ratio:.2f} × the RMSE of boosted trees"
        for task, ratio in ratios.items()
    ]
    lines += [
        f"- **Inside Mamba**, {row.step}, on {row.task}: {judged_difference(row)}"
        for row in crossed.itertuples()
    ]
    return answer_text(runs, SHOWS, lines)
