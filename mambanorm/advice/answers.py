"""What the experiments say, as the sentences of notebook 11: every number is read off the frames given."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from mambanorm.advice.evidence import Gap

SAID = {"yes": "it fails", "no, the twin is worse": "**the twin is worse**", "not told": "not told apart"}
"""Short, for the first lines stand on the notebook's card in the report."""


def in_words(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """Lines of Markdown: each mistake with its twin, then what is at odds with the guide.

    mistakes: mistake_table(). found: name → measure(name), of batch_size, recurrent, counting and style.
    """
    lines = [
        f"- **{row.mistake}**: {SAID[row.fails]} here; {row.wrong_is}: {row.wrong}, {row.right_is}: {row.right} "
        f"({row.measured}; {row.condition})."
        for row in mistakes.itertuples()
    ]
    batch, here = found["batch_size"], counted(found["counting"])
    ends = ((n, Gap(batch[batch.batch == n], "norm", "BN", "GN")) for n in (batch.batch.min(), batch.batch.max()))
    told = "; ".join(f"{gap} at batch {n}, {gap.says}" for n, gap in ends)
    lines.append(f"- **BN − GN in a small CNN**: {told}.")
    gap = Gap(found["recurrent"], "norm", "LN", "BN")
    told = _better(gap, "BN is the better one", "LN is the better one")
    lines.append(f"- **LN − BN behind an LSTM that reads digits**: {gap}; {told}.")
    gap, means = Gap(here, "norm", "LN", "None", "error"), here.groupby("norm").error.mean()
    told = _better(gap, "LN is better than no norm", "LN is worse than no norm")
    errors = f"RMSE {means.LN:.2f} and {means['None']:.2f}, {gap} pulses"
    lines.append(f"- **LN against no norm behind the LSTM that counts**: {errors}; {told}.")
    return "\n".join([*lines, f"- **Whose style survives?** {_survives(found['style'])}"])


def guesses_tested(mistakes: pd.DataFrame, found: Mapping[str, pd.DataFrame]) -> str:
    """The three guesses of notebook 11, as lines of Markdown. mistakes, found: as for `in_words`."""
    fails = mistakes.set_index("number").fails.map(SAID)
    nets = {"a small CNN": found["batch_size"], "a net of linear layers": found["dense"]}
    behind = "; ".join(f"{net}: {_behind(frame)}" for net, frame in nets.items())
    lines = (
        f"Batch sizes at which BN is behind GN beyond the spread of the seeds: {behind}.",
        _survives(found["style"]),
        f"BatchNorm behind the LSTM that counts: {fails[2]}. Post-norm: {fails[4]}.",
    )
    return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, start=1))


def counted(frame: pd.DataFrame, lengths: str = "four") -> pd.DataFrame:
    """The rows of `counting` as the models are used: in eval mode, at one number of lengths."""
    return frame[(frame.lengths == lengths) & (frame["mode"] == "eval")]


def _better(gap: Gap, below: str, above: str) -> str:
    return {"below zero": below, "above zero": above}.get(gap.says, "not told apart")


def _behind(frame: pd.DataFrame) -> str:
    """The batch sizes at which BN is behind GN beyond the spread of the seeds."""
    sizes = sorted(frame.batch.unique())
    behind = [n for n in sizes if Gap(frame[frame.batch == n], "norm", "BN", "GN").says == "below zero"]
    return f"{', '.join(map(str, behind)) or 'none'} of {', '.join(map(str, sizes))} rows"


def _survives(frame: pd.DataFrame) -> str:
    left = 100 * frame.groupby("norm").survives.mean()
    return f"{left.IN:.0f} % of each image's own style can be read behind IN, {left.BN:.0f} % behind BN."
