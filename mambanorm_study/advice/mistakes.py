"""What the guide (S4) says and a laptop can try: its five mistakes, each a failing demo beside its
mended twin, and its numbers, each beside ours; rows of an experiment, or arithmetic.

Models and data differ from the guide's, which names none for most of its numbers: compare the
pattern, not the level. What a norm costs in time is in notebook 01.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from mambanorm.errors import unknown
from mambanorm_study.advice.experiments import REACHED, measure
from mambanorm_study.answers.words import numbered
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import interval_says, points, seeds_text


class Gap:
    """value of the rows where column is a, minus value where it is b, seed by seed. low, high: the
    95 % t-interval of the mean; says: what it says of zero."""

    def __init__(self, frame: pd.DataFrame, column: str, a: str, b: str, value: str = "accuracy"):
        wide = frame.pivot_table(index="seed", columns=column, values=value)
        self.by_seed, self.value = (wide[a] - wide[b]).dropna(), value
        self.low, self.high = t_interval(self.by_seed)
        self.says = interval_says(self.low, self.high)

    @property
    def mean(self) -> float:
        return self.by_seed.mean()

    def __str__(self) -> str:
        if self.value == "accuracy":
            return points(self.mean, self.low, self.high)
        return f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "−")


@dataclass(frozen=True)
class Mistake:
    """wrong, right: queries of the experiment's frame; labels: their names. condition: under which
    both are trained or tested. value: what is measured; better: 1 if more is, else −1."""

    words: str
    experiment: str
    wrong: str
    right: str
    labels: tuple[str, str]
    condition: str
    value: str = "accuracy"
    better: int = 1
    unit: str = "accuracy (%)"


MISTAKES = {
    1: Mistake(
        "BatchNorm with small batches", "dense", "norm == 'BN' and batch == 2", "norm == 'GN' and batch == 2",
        ("BN, batch 2, linear layers", "GN, batch 2, linear layers"), "a net of linear layers alone, digits",
    ),
    2: Mistake(
        "BatchNorm in RNN", "counting", "lengths == 'four' and mode == 'eval' and norm == 'BN'",
        "lengths == 'four' and mode == 'eval' and norm == 'LN'",
        ("BN on the LSTM's outputs", "LN on the LSTM's outputs"),
        "counting pulses, four lengths, each batch of one, tested in eval mode", "error", -1, "RMSE (pulses)",
    ),
    3: Mistake(
        "Forgetting model.eval()", "inference", "norm == 'BN' and rows == 'sorted' and batch == 32 and mode == 'train'",
        "norm == 'BN' and rows == 'sorted' and batch == 32 and mode == 'eval'",
        ("BN in train mode, sorted rows", "BN in eval mode, sorted rows"), "a small CNN, digits, test batches of 32",
    ),
    4: Mistake(
        "Post-norm for deep Transformers", "depth", "norm == 'LN' and place == 'post' and depth == depth.max()",
        "norm == 'LN' and place == 'pre' and depth == depth.max()", ("post-norm", "pre-norm"),
        "a Transformer of 24 layers (at smoke 2), digits, few steps without warm-up",
    ),
    5: Mistake(
        "Wrong normalization for style transfer", "style", "norm == 'BN'", "norm == 'IN'", ("BN", "IN"),
        "painting digits in one style, contrasts beyond those of training",
        "error_beyond", -1, "RMSE, unseen contrasts",
    ),
}  # fmt: skip


def mistake_runs(number: int, scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """The rows of a mistake and of its mended twin: twin ("wrong" or "right"), label, condition,
    measured, seed, scale, losses. ValueError for a number that is none of 1 to 5."""
    if number not in MISTAKES:
        raise unknown("mistake", number, MISTAKES)
    mistake = MISTAKES[number]
    frame = measure(mistake.experiment, scale, seeds, runs_dir)
    twins = zip(("wrong", "right"), (mistake.wrong, mistake.right), mistake.labels, strict=True)
    rows = pd.concat(
        [frame.query(which).assign(twin=twin, label=label) for twin, which, label in twins]
    )
    rows = rows.assign(measured=rows[mistake.value], condition=mistake.condition)
    return rows[["twin", "label", "condition", "measured", "seed", "scale", "losses"]].reset_index(
        drop=True
    )


def mistake_table(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a mistake: number, mistake, what is measured, wrong, right (mean ± sd), better by
    (right's advantage, low, high: 95 % t-interval of the paired seeds), n, fails, wrong_is,
    right_is, condition. fails: what the interval says of the demo; the last three: what is
    compared, and under which condition."""
    rows, told = [], {"clearly above zero": "yes", "clearly below zero": "no, the twin is worse"}
    for number, mistake in MISTAKES.items():
        runs = mistake_runs(number, scale, seeds, runs_dir)
        gap = Gap(
            runs.assign(measured=mistake.better * runs.measured),
            "twin",
            "right",
            "wrong",
            "measured",
        )
        by_twin = runs.groupby("twin")
        facts = dict(number=number, mistake=mistake.words, measured=mistake.unit)
        for twin in ("wrong", "right"):
            values = by_twin.measured.get_group(twin)
            facts[twin] = f"{values.mean():.3g}" + (
                f" ± {values.std():.2g}" if len(values) > 1 else ""
            )
        facts |= dict(advantage=gap.mean, low=gap.low, high=gap.high, n=len(gap.by_seed))
        facts |= dict(fails=told.get(gap.says, "we cannot tell"))
        facts |= {f"{twin}_is": label for twin, label in by_twin.label.first().items()}
        rows.append(facts | dict(condition=runs.condition.iloc[0]))
    return pd.DataFrame(rows)


# --------------------------------------------------------------------------------------------------
# in words: every number is read off the frames given

SAID = {
    "yes": "it fails",
    "no, the twin is worse": "**the twin is worse**",
    "we cannot tell": "we cannot tell",
}
"""Short, for the first lines stand on the notebook's card in the report."""


def in_words(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """Lines of Markdown: each mistake with its twin, then BN − GN at the smallest and at the
    largest batch.

    mistakes: mistake_table(). found: name → measure(name)."""
    lines = [
        f"- **{row.mistake}**: {SAID[row.fails]} here; {row.wrong_is}: {row.wrong}, {row.right_is}: {row.right} "
        f"({row.measured}; {row.condition})."
        for row in mistakes.itertuples()
    ]
    batch = found["batch_size"]
    ends = (
        (n, Gap(batch[batch.batch == n], "norm", "BN", "GN"))
        for n in (batch.batch.min(), batch.batch.max())
    )
    told = "; ".join(f"{gap} at batch {n}, {gap.says}" for n, gap in ends)
    return "\n".join([*lines, f"- **BN − GN in a small CNN**: {told}."])


def guesses_tested(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """The three guesses of notebook 11, as lines of Markdown. mistakes, found: as for
    `in_words`."""
    fails = mistakes.set_index("number").fails.map(SAID)
    nets = {"a small CNN": found["batch_size"], "a net of linear layers": found["dense"]}
    behind = "; ".join(f"{net}: {_behind(frame)}" for net, frame in nets.items())
    left = 100 * found["style"].groupby("norm").survives.mean()
    lines = (
        f"Batch sizes at which BN is behind GN beyond the spread of the seeds: {behind}.",
        f"{left.IN:.0f} % of each image's own style can be read behind IN, {left.BN:.0f} % behind BN.",
        f"BatchNorm behind the LSTM that counts: {fails[2]}. Post-norm: {fails[4]}.",
    )
    return numbered(lines)


def _behind(frame: pd.DataFrame) -> str:
    """The batch sizes at which BN is behind GN beyond the spread of the seeds."""
    sizes = sorted(frame.batch.unique())
    behind = [
        n
        for n in sizes
        if Gap(frame[frame.batch == n], "norm", "BN", "GN").says == "clearly below zero"
    ]
    return f"{', '.join(map(str, behind)) or 'none'} of {', '.join(map(str, sizes))} rows"


# -------------------------------------------------------------------------------------- the numbers


IMAGENET = {32: (76.5, 76.3), 8: (75.8, 76.1), 2: (72.1, 75.3)}
"""Batch → accuracy of BN and of GN that the guide prints (ResNet-50, ImageNet), as of “He et
al.”."""


def claimed_and_measured(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a number: claim, claimed, here, setting."""
    batch, rates, depth = (
        measure(name, scale, seeds, runs_dir) for name in ("batch_size", "rates", "depth")
    )
    where = f"{batch.scale.iloc[0]} scale, {seeds_text([batch.seed.nunique()])}"
    measured = [*_batch_rows(batch), *_rate_rows(rates), *_depth_rows(depth)]
    rows = [(*row, f"{setting}, {where}") for *row, setting in measured]
    return pd.DataFrame(rows, columns=["claim", "claimed", "here", "setting"])


def _batch_rows(batch: pd.DataFrame) -> list[tuple]:
    rows = []
    for n in sorted(set(IMAGENET) & set(batch.batch), reverse=True):
        here = batch[batch.batch == n]
        means, gap = here.groupby("norm").accuracy.mean(), Gap(here, "norm", "BN", "GN")
        ours = f"{means.BN:.1f} / {means.GN:.1f} % (BN − GN: {gap})"
        rows.append(
            (
                f"BN / GN at batch {n}",
                "{:.1f} / {:.1f} %".format(*IMAGENET[n]),
                ours,
                "a small CNN, digits",
            )
        )
    return rows


def _rate_rows(frame: pd.DataFrame) -> list[tuple]:
    """Steps to an accuracy, each norm at its best rate."""
    steps = {}
    for norm in ("None", "BN", "GN"):
        mine = frame[frame.norm == norm]
        mean = mine.groupby("lr").accuracy.mean()
        soon = mine[mine.lr == mean.idxmax()].reached.median()
        steps[norm] = f"more than {mine.limit.iloc[0]}" if soon != soon else f"{soon:.0f}"
    told = f"steps to {REACHED:.0f} %: no norm {steps['None']}, BN {steps['BN']}, GN {steps['GN']}"
    return [("a norm converges faster", "10 × (100 → 10 epochs)", told, "the same CNN, SGD")]


def _depth_rows(frame: pd.DataFrame) -> list[tuple]:
    ln, rms = frame[frame.norm == "LN"], frame[frame.norm == "RMSN"]
    gaps = {n: Gap(ln[ln.depth == n], "place", "pre", "post") for n in sorted(ln.depth.unique())}
    told = "; ".join(f"{n} layers: pre − post {gap}" for n, gap in gaps.items())
    pre = frame[(frame.depth == rms.depth.iloc[0]) & (frame.place == "pre")]
    setting = "a Transformer, digits, no warm-up"
    return [
        ("post-norm is hard to train above", "12 layers", told, setting),
        (
            "RMSN in place of LN, accuracy",
            "the same",
            f"RMSN − LN {Gap(pre, 'norm', 'RMSN', 'LN')}",
            setting,
        ),
    ]
