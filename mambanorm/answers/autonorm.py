"""Notebook 10: does the learned choice of a norm beat LN alone, a random blend, a fixed one? Is it more robust?"""

from collections.abc import Collection, Mapping

import pandas as pd

from mambanorm.answers.words import answer, gained, listed, numbered, over_seeds, told
from mambanorm.study.intervals import t_interval

SHOWS = "95 % t-intervals, not corrected for several comparisons, one learning rate for all"


def rmse_said(values: pd.Series) -> str:
    """A difference of RMSE over seeds: "RMSE +0.48 [−0.67, 1.63]"."""
    low, high = t_interval(values)
    interval = f"[{low:.2f}, {high:.2f}]" if len(values) > 1 else "(one seed: no interval)"
    return f"RMSE {values.mean():+.2f} {interval}".replace("-", "−")


def controls_and_teacher(runs: pd.DataFrame, controls: pd.DataFrame, tables: Collection[str]) -> str:
    """A line for each control, and for what a teacher brings. `runs`: the run frame with a column `model`, which names
    the students. `controls`: `tables.paired_steps` of AutoNorm against them. `tables`: the tasks that are regressions.
    """
    lines = [f"- {row.step}, {row.task}: {told(row)}" for row in controls.itertuples()]
    mine = runs[runs.model.str.contains("AutoNorm|FrozenLN|Teacher")]
    for task, here in mine.groupby("task", sort=False):
        wide = here.pivot(index="seed", columns="model", values="rmse" if task in tables else "test_accuracy")
        if "AutoNorm, student" not in wide:
            continue
        taught, teacher = wide["AutoNorm, student"] - wide["AutoNorm"], wide["Teacher"].mean()
        if task in tables:
            lines.append(f"- taught − by itself, {task}: {rmse_said(taught)} (teacher: {teacher:.2f})")
            lines.append(f"- AutoNorm − FrozenLN, {task}: {rmse_said(wide['AutoNorm'] - wide['FrozenLN'])}")
        else:
            same = "the same" if (wide["AutoNorm_DisableSelector"] == wide["FrozenLN"]).all() else "not the same"
            lines.append(
                f"- taught − by itself, {task}: {told(over_seeds(100 * taught))} (teacher: {100 * teacher:.1f} %)"
            )
            lines.append(f"- AutoNorm_DisableSelector and FrozenLN give {same} accuracy with every seed, {task}")
    return "\n".join(lines)


def robustness_said(held: pd.DataFrame) -> pd.DataFrame:
    """The rows of `robustness.against` as a table to read: both gaps as text with their intervals."""
    table = held.set_index(["task", "kind", "arm"]).rename(columns={"corrupted": "corrupted %"}).round(1)
    for name, column in (("corrupted", "accuracy_gap"), ("change", "change_gap")):
        table[f"{name}, against FrozenLN"] = [gained(over_seeds(gap)) if len(gap) else "–" for gap in held[column]]
    return table.drop(columns=["accuracy_gap", "change_gap"])


def guesses_on_choice(weights: pd.DataFrame, controls: pd.DataFrame, held: pd.DataFrame) -> str:
    """The three guesses of notebook 10: what the selectors prefer, what random and fixed blends lose, and whether DyT
    is the more robust. `weights`: `selector_weights` of a trained model; `held`: `robustness.against`. Each may be
    empty."""
    blends = [f"{row.step} on {row.task}: {told(row)}" for row in controls.itertuples()]
    lost = f"Points that the blends lose: {'; '.join(blends)}." if blends else "No blend was run."
    dyt = [
        f"under {row.kind} its accuracy minus FrozenLN's is {gained(over_seeds(row.accuracy_gap))}, of what corruption "
        f"changes {gained(over_seeds(row.change_gap))}"
        for row in held.itertuples()
        if row.arm == "FrozenDyT"
    ]
    robust = f"FrozenDyT: {'; '.join(dyt)}. A model that learned little has little to lose."
    return numbered([_preferred(weights), lost, robust if dyt else "Corrupted rows were not looked at."])


def _preferred(weights: pd.DataFrame) -> str:
    if weights.empty:
        return "No selector was watched."
    last = weights.groupby("block", sort=False).w0.mean()
    said = listed(f"{w0:.2f} in block {block}" for block, w0 in last.items())
    prefers = {"DyT" if w0 > 0.5 else "LN" for w0 in last}
    same = f"all prefer {prefers.pop()}" if len(prefers) == 1 else "not the same in every layer"
    return f"The weight of DyT, which started at a half, ended at {said}: {same} (one run)."


def rivals_said(table: pd.DataFrame) -> str:
    """For each table how many times the RMSE of the trees the best arm has. `table`: `classical.beside_rivals`."""
    lines = []
    for task, ratio in ratios_of(table).items():
        within = "within" if ratio <= 1.5 else "not within"
        lines.append(
            f"- {task}: {table.best[task]}, best on validation, has {ratio:.2f} × the RMSE of the trees, {within} 1.5 ×"
        )
    return "\n".join(lines)


def ratios_of(table: pd.DataFrame) -> dict[str, float]:
    return {task: row[row.best] / row["boosted trees"] for task, row in table.iterrows()}


def is_choice_better(
    runs: pd.DataFrame, steps: pd.DataFrame, controls: pd.DataFrame, crossed: pd.DataFrame, *,
    weights: pd.DataFrame, held: pd.DataFrame, ratios: Mapping[str, float],
) -> str:  # fmt: skip
    """The answer of notebook 10: each model against FrozenLN, the controls, what is chosen, corrupted rows, the
    classical rivals, and the selector inside Mamba. Any frame but `runs` may be empty."""
    lines = [f"- **{r.step}** against FrozenLN on {r.task}: {told(r)}" for r in steps.itertuples()]
    lines += [f"- **{r.step}** on {r.task}: {told(r)}" for r in controls.itertuples()]
    lines += [f"- **What is chosen**: {_preferred(weights)}"] if len(weights) else []
    for row in held[held.arm == "AutoNorm"].itertuples():
        level, change = gained(over_seeds(row.accuracy_gap)), gained(over_seeds(row.change_gap))
        lines.append(f"- **Under {row.kind}**, AutoNorm against FrozenLN: {level}; what it changes: {change}")
    lines += [f"- **{task}**: {ratio:.2f} × the RMSE of boosted trees" for task, ratio in ratios.items()]
    lines += [f"- **Inside Mamba**, {r.step}, on {r.task}: {told(r)}" for r in crossed.itertuples()]
    return answer(runs, SHOWS, lines)
