"""The five mistakes of the guide (S4), each a failing demo beside its mended twin: two sets of rows of one experiment.

MISTAKES         number → Mistake: the guide's words, the experiment, which rows are wrong and which are right
mistake_runs     the rows of both, told apart by the column `twin`
mistake_table    all five: mean ± sd of both, the difference with its interval, and whether the demo fails here
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from mambanorm.advice.evidence import Gap
from mambanorm.advice.experiments import measure
from mambanorm.basics.errors import unknown


@dataclass(frozen=True)
class Mistake:
    """wrong, right: which rows of the experiment's frame; labels: their names, {depth} being filled in from the rows.
    condition: under which both are trained or tested. value: what is measured; better: 1 if more is, else −1."""

    words: str
    experiment: str
    wrong: Callable[[pd.DataFrame], pd.Series]
    right: Callable[[pd.DataFrame], pd.Series]
    labels: tuple[str, str]
    condition: str
    value: str = "accuracy"
    better: int = 1
    unit: str = "accuracy (%)"


def _deepest(frame: pd.DataFrame, place: str) -> pd.Series:
    return (frame.depth == frame.depth.max()) & (frame.norm == "LN") & (frame.place == place)


def _forgotten(frame: pd.DataFrame, mode: str) -> pd.Series:
    return (frame.norm == "BN") & (frame["rows"] == "sorted") & (frame.batch == 32) & (frame["mode"] == mode)


def _counted(frame: pd.DataFrame, norm: str) -> pd.Series:
    return (frame.norm == norm) & (frame.lengths == "four") & (frame["mode"] == "eval")


MISTAKES = {
    1: Mistake(
        "BatchNorm with small batches", "dense",
        lambda f: (f.norm == "BN") & (f.batch == 2), lambda f: (f.norm == "GN") & (f.batch == 2),
        ("BN, batch 2, linear layers", "GN, batch 2, linear layers"), "a net of linear layers alone, digits",
    ),
    2: Mistake(
        "BatchNorm in RNN", "counting", lambda f: _counted(f, "BN"), lambda f: _counted(f, "LN"),
        ("BN on the LSTM's outputs", "LN on the LSTM's outputs"),
        "counting pulses, four lengths, each batch of one, tested in eval mode", "error", -1, "RMSE (pulses)",
    ),
    3: Mistake(
        "Forgetting model.eval()", "inference", lambda f: _forgotten(f, "train"), lambda f: _forgotten(f, "eval"),
        ("BN in train mode, sorted rows", "BN in eval mode, sorted rows"), "a small CNN, digits, test batches of 32",
    ),
    4: Mistake(
        "Post-norm for deep Transformers", "depth", lambda f: _deepest(f, "post"), lambda f: _deepest(f, "pre"),
        ("post-norm, {depth:.0f} layers", "pre-norm, {depth:.0f} layers"),
        "a Transformer on digits, {steps} training steps without warm-up",
    ),
    5: Mistake(
        "Wrong normalization for style transfer", "style", lambda f: f.norm == "BN", lambda f: f.norm == "IN",
        ("BN", "IN"), "painting digits in one style, contrasts beyond those of training",
        "error_beyond", -1, "RMSE, unseen contrasts",
    ),
}  # fmt: skip


def mistake_runs(number: int, scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """The rows of a mistake and of its mended twin: twin ("wrong" or "right"), label, condition, measured, seed, scale,
    losses. ValueError for a number that is none of 1 to 5."""
    if number not in MISTAKES:
        raise unknown("mistake", number, MISTAKES)
    mistake = MISTAKES[number]
    frame = measure(mistake.experiment, scale, seeds, runs_dir)
    twins = zip(("wrong", "right"), (mistake.wrong, mistake.right), mistake.labels, strict=True)
    rows = pd.concat([frame[which(frame)].assign(twin=twin, label=label) for twin, which, label in twins])
    facts = dict(depth=rows.depth.max() if "depth" in rows else 0, steps=rows.losses.map(len).max())
    rows = rows.assign(
        measured=rows[mistake.value],
        label=[label.format(**facts) for label in rows.label],
        condition=mistake.condition.format(**facts),
    )
    return rows[["twin", "label", "condition", "measured", "seed", "scale", "losses"]].reset_index(drop=True)


def mistake_table(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a mistake: number, mistake, what is measured, wrong, right (mean ± sd), better by (right's advantage,
    low, high: 95 % t-interval of the paired seeds), n, fails, wrong_is, right_is, condition. fails: what the interval
    says of the demo; the last three: what is compared, and under which condition."""
    rows, told = [], {"above zero": "yes", "below zero": "no, the twin is worse"}
    for number, mistake in MISTAKES.items():
        runs = mistake_runs(number, scale, seeds, runs_dir)
        gap = Gap(runs.assign(measured=mistake.better * runs.measured), "twin", "right", "wrong", "measured")
        by_twin = runs.groupby("twin")
        facts = dict(number=number, mistake=mistake.words, measured=mistake.unit)
        facts |= {twin: _mean_sd(by_twin.measured.get_group(twin)) for twin in ("wrong", "right")}
        facts |= dict(advantage=gap.mean, low=gap.low, high=gap.high, n=len(gap.by_seed))
        facts |= dict(fails=told.get(gap.says, "not told"))
        facts |= {f"{twin}_is": label for twin, label in by_twin.label.first().items()}
        rows.append(facts | dict(condition=runs.condition.iloc[0]))
    return pd.DataFrame(rows)


def _mean_sd(values: pd.Series) -> str:
    return f"{values.mean():.3g} ± {values.std():.2g}" if len(values) > 1 else f"{values.mean():.3g}"
