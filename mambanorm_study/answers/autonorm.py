"""Notebook 10: does the learned choice of a norm beat LN alone, a random blend, a fixed one? Is it
more robust?"""

from collections.abc import Collection, Mapping

import pandas as pd

from mambanorm_study.answers.words import answer, gained, listed, over_seeds, told
from mambanorm_study.tables.intervals import t_interval

SHOWS = "95 % t-intervals, not corrected for several comparisons, one learning rate for all"


def rmse_said(values: pd.Series) -> str:
    """A difference of RMSE over seeds: "RMSE +0.48 [−0.67, 1.63]"."""
    low, high = t_interval(values)
    interval = f"[{low:.2f}, {high:.2f}]" if len(values) > 1 else "(one seed: no interval)"
    return f"RMSE {values.mean():+.2f} {interval}".replace("-", "−")


def teacher_said(runs: pd.DataFrame, tables: Collection[str]) -> str:
    """What a teacher brings, and whether the two names of LN alone agree. `runs`: the run frame
    with a column `model`, which names the students. `tables`: the tasks that are regressions."""
    lines = []
    mine = runs[runs.model.str.contains("AutoNorm|FrozenLN|Teacher")]
    for task, here in mine.groupby("task", sort=False):
        wide = here.pivot(
            index="seed", columns="model", values="rmse" if task in tables else "test_accuracy"
        )
        if "AutoNorm, student" not in wide:
            continue
        taught, teacher = wide["AutoNorm, student"] - wide["AutoNorm"], wide["Teacher"].mean()
        if task in tables:
            lines.append(
                f"- taught − by itself, {task}: {rmse_said(taught)} (teacher: {teacher:.2f})"
            )
            lines.append(
                f"- AutoNorm − FrozenLN, {task}: {rmse_said(wide['AutoNorm'] - wide['FrozenLN'])}"
            )
        else:
            same = (
                "the same"
                if (wide["AutoNorm_DisableSelector"] == wide["FrozenLN"]).all()
                else "not the same"
            )
            lines.append(
                f"- taught − by itself, {task}: {told(over_seeds(100 * taught))} (teacher: {100 * teacher:.1f} %)"
            )
            lines.append(
                f"- AutoNorm_DisableSelector and FrozenLN give {same} accuracy with every seed, {task}"
            )
    return "\n".join(lines)


def robustness_said(held: pd.DataFrame) -> pd.DataFrame:
    """The rows of `robustness.against` as a table to read: both gaps as text with their
    intervals."""
    table = (
        held.set_index(["task", "kind", "arm"])
        .rename(columns={"corrupted": "corrupted %"})
        .round(1)
    )
    for name, column in (("corrupted", "accuracy_gap"), ("change", "change_gap")):
        table[f"{name}, against FrozenLN"] = [
            gained(over_seeds(gap)) if len(gap) else "–" for gap in held[column]
        ]
    return table.drop(columns=["accuracy_gap", "change_gap"])


def _preferred(weights: pd.DataFrame) -> str:
    if weights.empty:
        return "No selector was watched."
    last = weights.groupby("block", sort=False).w0.mean()
    said = listed(f"{w0:.2f} ({block})" for block, w0 in last.items())
    prefers = {"DyT" if w0 > 0.5 else "LN" for w0 in last}
    same = f"all prefer {prefers.pop()}" if len(prefers) == 1 else "not the same in every layer"
    return f"The weight of DyT, which started at a half, ended at {said}: {same} (one run)."


def is_choice_better(
    runs: pd.DataFrame, steps: pd.DataFrame, controls: pd.DataFrame, crossed: pd.DataFrame, *,
    weights: pd.DataFrame, held: pd.DataFrame, ratios: Mapping[str, float],
) -> str:  # fmt: skip
    """The answer of notebook 10: what the selectors prefer, each model against FrozenLN, what
    random and fixed blends lose, corrupted rows, the classical rivals, and the selector inside
    Mamba. `weights`: `selector_weights` of a trained model; `held`: `robustness.against`. Any frame
    but `runs` may be empty."""
    lines = [f"- **What is chosen**: {_preferred(weights)}"]
    lines += [f"- **{r.step}** against FrozenLN on {r.task}: {told(r)}" for r in steps.itertuples()]
    lines += [f"- **{r.step}** on {r.task}: {told(r)}" for r in controls.itertuples()]
    for row in held[held.arm != "FrozenLN"].itertuples():
        level, change = gained(over_seeds(row.accuracy_gap)), gained(over_seeds(row.change_gap))
        lines.append(
            f"- **Under {row.kind}**, {row.arm} against FrozenLN: {level}; what {row.kind} changes: {change}"
        )
    lines += [
        f"- **{t}**: the best on validation has {r:.2f} × the RMSE of boosted trees"
        for t, r in ratios.items()
    ]
    lines += [f"- **Inside Mamba**, {r.step}, on {r.task}: {told(r)}" for r in crossed.itertuples()]
    return answer(runs, SHOWS, lines)
