"""What the experiments say, as the sentences of notebook 11: every number is read off the frames given."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from mambanorm.advice.evidence import paired_by_seed
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import interval_says, points

SAID = {"yes": "it fails", "no, the twin is worse": "**the twin is worse**", "not told": "not told apart"}
"""Short, for the first lines stand on the notebook's card in the report."""


def in_words(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """Lines of Markdown: each mistake with its twin, then what is at odds with the guide.

    mistakes: mistake_table(). found: name → measure(name), of batch_size, recurrent, counting, style and gan.
    """
    lines = [
        f"- **{row.mistake}**: {SAID[row.fails]} here; {row.wrong_is}: {row.wrong}, {row.right_is}: {row.right} "
        f"({row.measured}; {row.condition})."
        for row in mistakes.itertuples()
    ]
    others = (_batch(found["batch_size"]), _recurrent(found["recurrent"]), _counting(found["counting"]))
    return "\n".join([*lines, *others, _style(found["style"]), _gan(found["gan"])])


def guesses_tested(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """The three guesses of notebook 11, as lines of Markdown. mistakes, found: as for `in_words`."""
    fails = mistakes.set_index("number").fails.map(SAID)
    gan = "; ".join(_in_a_gan(found["gan"], "discriminator", "generator"))
    nets = {"a small CNN": found["batch_size"], "a net of linear layers": found["dense"]}
    behind = "; ".join(f"{net}: {_behind(frame)}" for net, frame in nets.items())
    lines = (
        f"Batch sizes at which BN is behind GN beyond the spread of the seeds: {behind}.",
        _survives(found["style"]),
        f"BatchNorm behind the LSTM that counts: {fails[2]}. Post-norm: {fails[4]}. Energy distance of the GAN "
        f"against no norm (lower is better): {gan}.",
    )
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


def _behind(frame: pd.DataFrame) -> str:
    """The batch sizes at which BN is behind GN beyond the spread of the seeds."""
    sizes = sorted(frame.batch.unique())
    gaps = {n: paired_by_seed(frame[frame.batch == n], "norm", "BN", "GN", "accuracy") for n in sizes}
    behind = [n for n, gap in gaps.items() if interval_says(*t_interval(gap)) == "below zero"]
    return f"{', '.join(map(str, behind)) or 'none'} of {', '.join(map(str, sizes))} rows"


def _batch(frame: pd.DataFrame) -> str:
    told = []
    for n in (frame.batch.min(), frame.batch.max()):
        gap = paired_by_seed(frame[frame.batch == n], "norm", "BN", "GN", "accuracy")
        interval = t_interval(gap)
        told.append(f"{points(gap.mean(), *interval)} at batch {n}, {interval_says(*interval)}")
    return f"- **BN − GN in a small CNN**: {'; '.join(told)}."


def _recurrent(frame: pd.DataFrame) -> str:
    """What another LSTM says of "never BatchNorm"."""
    gap = paired_by_seed(frame, "norm", "LN", "BN", "accuracy")
    interval = t_interval(gap)
    what = {"below zero": "BN is the better one", "above zero": "LN is the better one"}
    told = what.get(interval_says(*interval), "the two are not told apart")
    return f"- **LN − BN behind an LSTM that reads digits**: {points(gap.mean(), *interval)}; {told}."


def _counting(frame: pd.DataFrame) -> str:
    """Whether LN, which mends BN behind the counting LSTM, does better than no norm there."""
    here = frame[(frame.lengths == "four") & (frame["mode"] == "eval")]
    means, gap = here.groupby("norm").error.mean(), paired_by_seed(here, "norm", "LN", "None", "error")
    low, high = t_interval(gap)
    what = {"above zero": "LN is worse than no norm", "below zero": "LN is better than no norm"}
    told = what.get(interval_says(low, high), "not told apart")
    amount = f"{gap.mean():+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−")
    errors = f"RMSE {means.LN:.2f} and {means['None']:.2f}, {amount} pulses"
    return f"- **LN against no norm behind the LSTM that counts**: {errors}; {told}."


def _style(frame: pd.DataFrame) -> str:
    return f"- **Whose style survives?** {_survives(frame)}"


def _survives(frame: pd.DataFrame) -> str:
    left = 100 * frame.groupby("norm").survives.mean()
    return f"{left.IN:.0f} % of each image's own style can be read behind IN, {left.BN:.0f} % behind BN."


def _gan(frame: pd.DataFrame) -> str:
    """Each measured norm of a GAN against none in both networks."""
    both = (("generator", "discriminator"), ("discriminator", "generator"))
    told = [words for component, other in both for words in _in_a_gan(frame, component, other)]
    return f"- **A norm in a GAN**, energy distance against no norm (lower is better): {', '.join(told)}."


def _in_a_gan(frame: pd.DataFrame, component: str, other: str) -> list[str]:
    """What each norm changes in one network, the other one without a norm."""
    here, told = frame[frame[other] == "None"], []
    for norm in (name for name in ("BN", "IN") if name in set(here[component])):
        gap = paired_by_seed(here, component, norm, "None", "distance")
        low, high = t_interval(gap)
        told.append(f"{norm} in the {component} {gap.mean():+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−"))
    return told
