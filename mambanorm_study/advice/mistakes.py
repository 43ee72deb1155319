"""Claims of the guide (S4) that a laptop can test: its five mistakes, each as failing runs beside
mended runs, and its numbers beside ours.

The models and data differ from those of the guide, which names none for most of its numbers.
Compare the pattern, not the level. What a norm costs in time is in notebook 01.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from mambanorm.errors import unknown
from mambanorm_study.advice.experiments import REACHED, measure
from mambanorm_study.answers.phrases import numbered_list
from mambanorm_study.tables.intervals import t_interval
from mambanorm_study.tables.run_tables import CANNOT_TELL, interval_says, points, seeds_text


class Gap:
    """The paired difference of two groups of rows over the seeds, with its 95 % t-interval.

    The difference is the mean of `value` in the rows where `column` is a, minus its mean where it
    is b. `by_seed` has one difference for each seed.
    """

    def __init__(self, frame: pd.DataFrame, column: str, a: str, b: str, value: str = "accuracy"):
        wide = frame.pivot_table(index="seed", columns=column, values=value)
        self.by_seed, self.value = (wide[a] - wide[b]).dropna(), value
        self.mean = self.by_seed.mean()
        self.low, self.high = t_interval(self.by_seed)

    @property
    def says(self) -> str:
        """What the interval says: "clearly above zero", "clearly below zero", or that we cannot
        tell.
        """
        return interval_says(self.low, self.high)

    def __str__(self) -> str:
        if self.value == "accuracy":
            return points(self.mean, self.low, self.high)
        return f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "−")


@dataclass(frozen=True)
class Mistake:
    """A mistake of the guide, as two queries of the rows of an experiment."""

    words: str
    experiment: str
    wrong: str  # query of the failing runs
    right: str  # query of the mended runs
    labels: tuple[str, str]  # names of wrong and right
    condition: str  # how both are trained or tested
    value: str = "accuracy"  # the column that is compared
    better: int = 1  # 1 if more is better, −1 if less is
    unit: str = "accuracy (%)"


# The number of a mistake in the guide → the mistake.
MISTAKES = {
    1: Mistake(
        "BatchNorm with small batches",
        "dense",
        wrong="norm == 'BN' and batch == 2",
        right="norm == 'GN' and batch == 2",
        labels=("BN, batch 2, linear layers", "GN, batch 2, linear layers"),
        condition="a net of linear layers alone, digits",
    ),
    2: Mistake(
        "BatchNorm in RNN",
        "counting",
        wrong="lengths == 'four' and mode == 'eval' and norm == 'BN'",
        right="lengths == 'four' and mode == 'eval' and norm == 'LN'",
        labels=("BN on the LSTM's outputs", "LN on the LSTM's outputs"),
        condition="counting pulses, four lengths, each batch of one, tested in eval mode",
        value="error",
        better=-1,
        unit="RMSE (pulses)",
    ),
    3: Mistake(
        "Forgetting model.eval()",
        "inference",
        wrong="norm == 'BN' and rows == 'sorted' and batch == 32 and mode == 'train'",
        right="norm == 'BN' and rows == 'sorted' and batch == 32 and mode == 'eval'",
        labels=("BN in train mode, sorted rows", "BN in eval mode, sorted rows"),
        condition="a small CNN, digits, test batches of 32",
    ),
    4: Mistake(
        "Post-norm for deep Transformers",
        "depth",
        wrong="norm == 'LN' and place == 'post' and depth == depth.max()",
        right="norm == 'LN' and place == 'pre' and depth == depth.max()",
        labels=("post-norm", "pre-norm"),
        condition=("a Transformer of 24 layers (at smoke 2), digits, few steps without warm-up"),
    ),
    5: Mistake(
        "Wrong normalization for style transfer",
        "style",
        wrong="norm == 'BN'",
        right="norm == 'IN'",
        labels=("BN", "IN"),
        condition="painting digits in one style, contrasts beyond those of training",
        value="error_beyond",
        better=-1,
        unit="RMSE, unseen contrasts",
    ),
}


def mistake_runs(number: int, scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """Return the failing and the mended runs of a mistake: twin ("wrong" or "right"), label,
    condition, measured, seed, scale, losses. ValueError for a number other than 1 to 5.
    """
    if number not in MISTAKES:
        raise unknown("mistake", number, MISTAKES)
    mistake = MISTAKES[number]
    frame = measure(mistake.experiment, scale, seeds, runs_dir)
    wrong = frame.query(mistake.wrong).assign(twin="wrong", label=mistake.labels[0])
    right = frame.query(mistake.right).assign(twin="right", label=mistake.labels[1])
    rows = pd.concat([wrong, right], ignore_index=True)
    rows = rows.assign(measured=rows[mistake.value], condition=mistake.condition)
    return rows[["twin", "label", "condition", "measured", "seed", "scale", "losses"]]


# Values of the column `fails`; the third one is CANNOT_TELL.
FAILS, TWIN_IS_WORSE = "yes", "no, the twin is worse"


def mistake_table(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """Return one row for each mistake: number, mistake, measured (the unit), wrong and right (mean
    ± sd), advantage of right (with low and high, the 95 % t-interval of the paired seeds), n, fails
    (what the interval says of the mistake), wrong_is, right_is, condition.
    """
    rows = []
    for number, mistake in MISTAKES.items():
        runs = mistake_runs(number, scale, seeds, runs_dir)
        signed = runs.assign(measured=mistake.better * runs.measured)
        gap = Gap(signed, "twin", "right", "wrong", "measured")
        values = {twin: group.measured for twin, group in runs.groupby("twin")}
        rows.append(
            dict(
                number=number,
                mistake=mistake.words,
                measured=mistake.unit,
                wrong=_mean_sd(values["wrong"]),
                right=_mean_sd(values["right"]),
                advantage=gap.mean,
                low=gap.low,
                high=gap.high,
                n=len(gap.by_seed),
                fails=_fails(gap),
                wrong_is=mistake.labels[0],
                right_is=mistake.labels[1],
                condition=mistake.condition,
            )
        )
    return pd.DataFrame(rows)


def _fails(gap: Gap) -> str:
    if gap.low > 0:
        return FAILS
    return TWIN_IS_WORSE if gap.high < 0 else CANNOT_TELL


def _mean_sd(values: pd.Series) -> str:
    sd = f" ± {values.std():.2g}" if len(values) > 1 else ""
    return f"{values.mean():.3g}{sd}"


# ------------------------------------------------------------------------------------- answers

# The column `fails` → the words of an answer, short enough for the card of the notebook.
FAILS_WORDS = {
    FAILS: "it fails",
    TWIN_IS_WORSE: "**the twin is worse**",
    CANNOT_TELL: CANNOT_TELL,
}


def in_words(mistakes: pd.DataFrame, measured: Mapping[str, pd.DataFrame]) -> str:
    """Return lines of Markdown: each mistake with its mended twin, then BN − GN at the smallest and
    at the largest batch.

    mistakes: mistake_table(). measured: name → measure(name).
    """
    lines = [
        f"- **{row.mistake}**: {FAILS_WORDS[row.fails]} here; {row.wrong_is}: {row.wrong}, "
        f"{row.right_is}: {row.right} ({row.measured}; {row.condition})."
        for row in mistakes.itertuples()
    ]
    gaps = batch_gaps(measured["batch_size"])
    ends = [(n, gaps[n]) for n in (min(gaps), max(gaps))]
    words = "; ".join(f"{gap} at batch {n}, {gap.says}" for n, gap in ends)
    return "\n".join([*lines, f"- **BN − GN in a small CNN**: {words}."])


def batch_gaps(frame: pd.DataFrame) -> dict[int, Gap]:
    """Return batch size → accuracy with BN minus that with GN. frame: `batch_size` or `dense`."""
    return {n: Gap(rows, "norm", "BN", "GN") for n, rows in frame.groupby("batch")}


def guesses_tested(mistakes: pd.DataFrame, measured: Mapping[str, pd.DataFrame]) -> str:
    """Return the answers to the three guesses of notebook 11, as lines of Markdown. Arguments: see
    `in_words`.
    """
    fails = mistakes.set_index("number").fails.map(FAILS_WORDS)
    cnn, linear = _sizes_behind(measured["batch_size"]), _sizes_behind(measured["dense"])
    survives = 100 * measured["style"].groupby("norm").survives.mean()
    return numbered_list(
        [
            "Batch sizes at which BN is behind GN beyond the spread of the seeds: "
            f"a small CNN: {cnn}; a net of linear layers: {linear}.",
            f"{survives.IN:.0f} % of each image's own style can be read behind IN, "
            f"{survives.BN:.0f} % behind BN.",
            f"BatchNorm behind the LSTM that counts: {fails[2]}. Post-norm: {fails[4]}.",
        ]
    )


def _sizes_behind(frame: pd.DataFrame) -> str:
    """Return the batch sizes at which BN is clearly behind GN: `2, 4 of 2, 4, 8, 16 rows`."""
    gaps = batch_gaps(frame)
    behind = [str(n) for n, gap in gaps.items() if gap.high < 0]
    return f"{', '.join(behind) or 'none'} of {', '.join(map(str, gaps))} rows"


# ------------------------------------------------------------------------- the guide's numbers

# Batch → accuracy of BN and of GN that the guide prints (ResNet-50, ImageNet), as of “He et al.”.
IMAGENET = {32: (76.5, 76.3), 8: (75.8, 76.1), 2: (72.1, 75.3)}


def claimed_and_measured(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """Return one row for each number of the guide: claim, claimed, measured, setting."""
    batch = measure("batch_size", scale, seeds, runs_dir)
    rates = measure("rates", scale, seeds, runs_dir)
    depth = measure("depth", scale, seeds, runs_dir)
    rows = [*_batch_rows(batch), *_rate_rows(rates), *_depth_rows(depth)]
    table = pd.DataFrame(rows, columns=["claim", "claimed", "measured", "setting"])
    basis = f", {batch.scale.iloc[0]} scale, {seeds_text([batch.seed.nunique()])}"
    return table.assign(setting=table.setting + basis)


def _batch_rows(frame: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    rows, gaps = [], batch_gaps(frame)
    means = frame.groupby(["batch", "norm"]).accuracy.mean()
    for n, (bn, gn) in IMAGENET.items():
        if n in gaps:
            measured = f"{means[n].BN:.1f} / {means[n].GN:.1f} % (BN − GN: {gaps[n]})"
            claimed = f"{bn:.1f} / {gn:.1f} %"
            rows.append((f"BN / GN at batch {n}", claimed, measured, "a small CNN, digits"))
    return rows


def _rate_rows(frame: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    """Return the steps to REACHED per cent of accuracy, each norm at its best learning rate."""
    steps = {}
    for norm, runs in frame.groupby("norm"):
        best_lr = runs.groupby("lr").accuracy.mean().idxmax()
        reached = runs[runs.lr == best_lr].reached.median()
        steps[norm] = f"more than {runs.limit.iloc[0]}" if pd.isna(reached) else f"{reached:.0f}"
    counts = f"no norm {steps['None']}, BN {steps['BN']}, GN {steps['GN']}"
    measured = f"steps to {REACHED:.0f} %: {counts}"
    return [("a norm converges faster", "10 × (100 → 10 epochs)", measured, "the same CNN, SGD")]


def _depth_rows(frame: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    ln, rms = frame[frame.norm == "LN"], frame[frame.norm == "RMSN"]
    gaps = {n: Gap(rows, "place", "pre", "post") for n, rows in ln.groupby("depth")}
    by_depth = "; ".join(f"{n} layers: pre − post {gap}" for n, gap in gaps.items())
    pre = frame[(frame.depth == rms.depth.iloc[0]) & (frame.place == "pre")]
    by_norm = f"RMSN − LN {Gap(pre, 'norm', 'RMSN', 'LN')}"
    setting = "a Transformer, digits, no warm-up"
    return [
        ("post-norm is hard to train above", "12 layers", by_depth, setting),
        ("RMSN in place of LN, accuracy", "the same", by_norm, setting),
    ]
