"""What the experiments say, as the sentences of notebook 11's answer: every number is read off the frames given."""

from __future__ import annotations

import pandas as pd

from mambanorm.advice.evidence import paired_by_seed
from mambanorm.study.intervals import t_interval
from mambanorm.study.tables import points

SAID = {"yes": "it fails", "no, the twin is worse": "**the twin is worse**", "not told": "not told apart"}
"""Short, for the first lines stand on the notebook's card in the report."""


def in_words(mistakes: pd.DataFrame, style: pd.DataFrame, gan: pd.DataFrame, batch: pd.DataFrame) -> str:
    """Lines of Markdown: each mistake with its twin, then what is at odds with the guide.

    mistakes: mistake_table(); style, gan, batch: measure("style"), measure("gan"), measure("batch_size").
    """
    lines = [
        f"- **{row.mistake}**: {row.wrong}, mended {row.right}, {row.measured}; {SAID[row.fails]}."
        for row in mistakes.itertuples()
    ]
    return "\n".join([*lines, _style(style), _gan(gan), _batch(batch)])


def _style(frame: pd.DataFrame) -> str:
    left = 100 * frame.groupby("norm").survives.mean()
    return f"- **Whose style survives?** {left.IN:.0f} % of it can be read behind IN, {left.BN:.0f} % behind BN."


def _gan(frame: pd.DataFrame) -> str:
    told = []
    for component, other in (("generator", "discriminator"), ("discriminator", "generator")):
        gap = paired_by_seed(frame[frame[other] == "None"], component, "BN", "None", "distance")
        low, high = t_interval(gap)
        told.append(f"in the {component} {gap.mean():+.2f} [{low:.2f}, {high:.2f}]".replace("-", "−"))
    return f"- **BN in a GAN**, energy distance against no norm (lower is better): {', '.join(told)}."


def _batch(frame: pd.DataFrame) -> str:
    told = []
    for n in (frame.batch.min(), frame.batch.max()):
        gap = paired_by_seed(frame[frame.batch == n], "norm", "BN", "GN", "accuracy")
        told.append(f"{points(gap.mean(), *t_interval(gap))} at batch {n}")
    return f"- **BN − GN** in a small CNN: {', '.join(told)}."
