"""Tests of the five mistakes and the numbers in the guide *Normalization Techniques*.

Each mistake is shown by runs with the mistake ("wrong") and corrected runs. The guide does not say
which models and data most of its numbers come from. Our models and data differ, so compare the
direction of an effect, not its size. Notebook 01 measures how much time each norm takes.

The argument `measured` of the functions is a map from the name of an experiment to the rows that
`experiments.measure` returns.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from mambanorm_study.advice.experiments import TARGET_ACCURACY
from mambanorm_study.answers.phrases import (
    difference_text,
    judged_difference,
    mean_difference,
    numbered_list,
)
from mambanorm_study.tables.run_tables import interval_in_words, seeds_text

Measured = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Mistake:
    """A mistake that the guide names, with queries for runs with the mistake and corrected runs."""

    title: str
    experiment: str  # a key of EXPERIMENTS
    wrong: str  # query that selects the runs with the mistake
    right: str  # query that selects the runs with the correction
    labels: tuple[str, str]  # labels of the runs with the mistake and of the corrected runs
    condition: str  # how the runs are trained or tested
    value: str = "accuracy"  # the column whose values are compared
    sign: int = 1  # 1 if a larger value is better, −1 if a smaller value is better
    unit: str = "accuracy (%)"  # the unit of the value


# Number of the mistake in the guide → the mistake.
MISTAKES = {
    1: Mistake(
        "BatchNorm with small batches",
        "dense",
        wrong="norm == 'BN' and batch == 2",
        right="norm == 'GN' and batch == 2",
        labels=("BN, batch 2, linear layers", "GN, batch 2, linear layers"),
        condition="a net of linear layers only, digits",
    ),
    2: Mistake(
        "BatchNorm in RNN",
        "counting",
        wrong="lengths == 'four' and mode == 'eval' and norm == 'BN'",
        right="lengths == 'four' and mode == 'eval' and norm == 'LN'",
        labels=("BN on the LSTM's outputs", "LN on the LSTM's outputs"),
        condition="counting pulses, four lengths, each batch of one, tested in eval mode",
        value="error",
        sign=-1,
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
        condition="a Transformer of 24 layers, digits, few steps without warm-up",
    ),
    5: Mistake(
        "Wrong normalization for style transfer",
        "style",
        wrong="norm == 'BN'",
        right="norm == 'IN'",
        labels=("BN", "IN"),
        condition="painting digits in one style, contrasts beyond those of training",
        value="error_beyond",
        sign=-1,
        unit="RMSE, unseen contrasts",
    ),
}


def mistake_runs(number: int, measured: Measured) -> pd.DataFrame:
    """Return the runs with a mistake and the corrected runs, one row per run.

    number: a key of MISTAKES. Columns: twin ("wrong" for runs with the mistake, "right" for
    corrected runs), label, condition, measured (the value that is compared), seed, scale, losses.
    """
    mistake = MISTAKES[number]
    frame = measured[mistake.experiment]
    wrong = frame.query(mistake.wrong).assign(twin="wrong", label=mistake.labels[0])
    right = frame.query(mistake.right).assign(twin="right", label=mistake.labels[1])
    rows = pd.concat([wrong, right], ignore_index=True)
    rows = rows.assign(measured=rows[mistake.value], condition=mistake.condition)
    return rows[["twin", "label", "condition", "measured", "seed", "scale", "losses"]]


# Result of `interval_in_words` for the advantage of the corrected runs → outcome of the mistake.
# Any other result of `interval_in_words` is used as the outcome.
OUTCOMES = {"clearly above zero": "it fails", "clearly below zero": "**the correction is worse**"}


def mistake_table(measured: Measured) -> pd.DataFrame:
    """Return one row per mistake.

    Columns: number, mistake (its title), measured (what is measured and its unit, as text), wrong
    (mean ± sd of the runs with the mistake), right (mean ± sd of the corrected runs), advantage
    (mean difference of the corrected and the wrong runs, positive if the corrected runs are
    better), low and high (the 95 % t-interval of the advantage, paired by seed), n (number of
    seeds), outcome ("it fails" if the wrong runs are clearly worse, "the correction is worse" if
    the corrected runs are clearly worse, or else "we cannot tell"), wrong_is and right_is (the
    labels of the wrong and of the corrected runs), condition (how the runs are trained or tested).
    """
    rows = []
    for number, mistake in MISTAKES.items():
        runs = mistake_runs(number, measured)
        values = {twin: group.measured for twin, group in runs.groupby("twin")}
        signed = runs.assign(signed=mistake.sign * runs.measured)
        gap = paired_gap(signed, "twin", "right", "wrong", "signed")
        says = interval_in_words(gap.low, gap.high)
        rows.append(
            dict(
                number=number,
                mistake=mistake.title,
                measured=mistake.unit,
                wrong=_mean_sd(values["wrong"]),
                right=_mean_sd(values["right"]),
                advantage=gap.difference,
                low=gap.low,
                high=gap.high,
                n=runs.seed.nunique(),
                outcome=OUTCOMES.get(says, says),
                wrong_is=mistake.labels[0],
                right_is=mistake.labels[1],
                condition=mistake.condition,
            )
        )
    return pd.DataFrame(rows)


def paired_gap(
    frame: pd.DataFrame, column: str, a: str, b: str, value: str = "accuracy"
) -> pd.Series:
    """Return a Series: difference (mean over the seeds), low and high (95 % t-interval).

    The difference of a seed is the mean `value` of the rows where `column` is `a`, minus the mean
    `value` of the rows where `column` is `b`.
    """
    by_seed = frame.pivot_table(index="seed", columns=column, values=value)
    return mean_difference(by_seed[a] - by_seed[b])


def batch_gaps(frame: pd.DataFrame) -> dict[int, pd.Series]:
    """Return a map from batch size to the `paired_gap` "accuracy with BN minus accuracy with GN".

    frame: the rows of the experiment `batch_size` or `dense`.
    """
    return {n: paired_gap(rows, "norm", "BN", "GN") for n, rows in frame.groupby("batch")}


def _mean_sd(values: pd.Series) -> str:
    sd = f" ± {values.std():.2g}" if len(values) > 1 else ""
    return f"{values.mean():.3g}{sd}"


# ------------------------------------------------------------------------------------- answers


def mistakes_in_words(mistakes: pd.DataFrame, measured: Measured) -> str:
    """Return the outcomes of the mistakes as Markdown, one line per mistake.

    A last line has the accuracy of BN minus that of GN at the smallest and at the largest batch
    size.
    mistakes: the result of `mistake_table`.
    """
    lines = [
        f"- **{row.mistake}**: {row.outcome} here; {row.wrong_is}: {row.wrong}, "
        f"{row.right_is}: {row.right} ({row.measured}; {row.condition})."
        for row in mistakes.itertuples()
    ]
    gaps = batch_gaps(measured["batch_size"])
    ends = [f"at batch {n} {judged_difference(gaps[n])}" for n in (min(gaps), max(gaps))]
    return "\n".join([*lines, f"- **BN − GN in a small CNN**: {'; '.join(ends)}."])


def answers_to_guesses(mistakes: pd.DataFrame, measured: Measured) -> str:
    """Return the answers to the three questions at the top of notebook 11, as lines of Markdown.

    mistakes: the result of `mistake_table`.
    """
    outcomes = mistakes.set_index("number").outcome
    cnn, linear = (_batch_sizes_behind(measured[name]) for name in ("batch_size", "dense"))
    survives = 100 * measured["style"].groupby("norm").survives.mean()
    return numbered_list(
        [
            "Batch sizes at which BN is clearly behind GN (95 % interval below zero): "
            f"a small CNN: {cnn}; a net of linear layers: {linear}.",
            f"{survives.IN:.0f} % of each image's style can be read after IN, "
            f"{survives.BN:.0f} % after BN.",
            f"BatchNorm after the LSTM that counts: {outcomes[2]}. Post-norm: {outcomes[4]}.",
        ]
    )


def _batch_sizes_behind(frame: pd.DataFrame) -> str:
    """Return the batch sizes at which BN is clearly behind GN, as text.

    An example is `2, 4 of 2, 4, 8, 16 rows`. frame: as in `batch_gaps`.
    """
    gaps = batch_gaps(frame)
    behind = [str(n) for n, gap in gaps.items() if gap.high < 0]
    return f"{', '.join(behind) or 'none'} of {', '.join(map(str, gaps))} rows"


# ------------------------------------------------------------------------- the guide's numbers

# Batch size → accuracy with BN / with GN, of ResNet-50 on ImageNet. These are the guide's numbers,
# for which the guide cites “He et al.”.
IMAGENET = {32: "76.5 / 76.3 %", 8: "75.8 / 76.1 %", 2: "72.1 / 75.3 %"}


def claimed_and_measured(measured: Measured) -> pd.DataFrame:
    """Return one row per number of the guide.

    Columns, all as text: claim (what the guide's number is about), claimed (the guide's number),
    measured (our number), setting (our model, data, scale and number of seeds).
    """
    cnn, depth = measured["batch_size"], measured["depth"]
    gaps, means = batch_gaps(cnn), cnn.groupby(["batch", "norm"]).accuracy.mean()
    by_batch = {
        n: f"{means[n].BN:.1f} / {means[n].GN:.1f} % (BN − GN: {difference_text(gaps[n])})"
        for n in IMAGENET
    }
    by_depth = "; ".join(
        f"{n} layers: pre − post {difference_text(paired_gap(runs, 'place', 'pre', 'post'))}"
        for n, runs in depth[depth.norm == "LN"].groupby("depth")
    )
    pre_norm = depth.query("place == 'pre' and depth == 12")
    by_norm = f"RMSN − LN {difference_text(paired_gap(pre_norm, 'norm', 'RMSN', 'LN'))}"
    steps = _steps_to_reach(measured["rates"])
    transformer = "a Transformer, digits, no warm-up"
    rows = [
        *(
            (f"BN / GN at batch {n}", claimed, by_batch[n], "a small CNN, digits")
            for n, claimed in IMAGENET.items()
        ),
        ("a norm converges faster", "10 × (100 → 10 epochs)", steps, "the same CNN, SGD"),
        ("post-norm is hard to train above", "12 layers", by_depth, transformer),
        ("RMSN in place of LN, accuracy", "the same", by_norm, transformer),
    ]
    table = pd.DataFrame(rows, columns=["claim", "claimed", "measured", "setting"])
    basis = f", {cnn.scale.iloc[0]} scale, {seeds_text([cnn.seed.nunique()])}"
    return table.assign(setting=table.setting + basis)


def _steps_to_reach(frame: pd.DataFrame) -> str:
    """Return as text how many training steps it takes to reach TARGET_ACCURACY on validation rows.

    The text has the median over the seeds for models without a norm, with BN and with GN, each at
    the learning rate with the highest mean test accuracy. frame: the rows of the experiment
    `rates`.
    """
    by_lr = frame.groupby(["norm", "lr"]).agg({"accuracy": "mean", "reached": "median"})
    best = by_lr.loc[by_lr.groupby("norm").accuracy.idxmax()].reached.droplevel("lr")
    steps = best.map("{:.0f}".format).mask(best.isna(), f"more than {frame.limit.iloc[0]}")
    return (
        f"steps to {TARGET_ACCURACY:.0f} %: "
        f"no norm {steps['None']}, BN {steps['BN']}, GN {steps['GN']}"
    )
