"""Notebook 14: where a Mamba of one's own leaves its range, and which treatment keeps it finite and lets it learn.

ends, the frame that all read: one row a treatment and seed: treatment, seed, failed, step (how many were made), bits
(validation, a character; NaN where the run failed).
"""

from __future__ import annotations

import pandas as pd

from mambanorm.answers.words import listed, numbered
from mambanorm.study.tables import seeds_text

COLUMNS = ("treatment", "seed", "failed", "step", "bits")


def guesses_on_cures(where: str, seat: str, largest: float, limit: float, ends: pd.DataFrame) -> str:
    """The three guesses of notebook 14: what leaves the range first, what keeps every seed finite, what learns most.

    where: the first place that is not finite; seat: the last finite one, its largest magnitude, and the limit of the
    type that was left.
    """
    table = how_they_ended(ends)
    well = table[table.failed == 0]
    last = f" Just before it `{seat}` is finite, its largest magnitude {largest:,.0f}; the type ends at {limit:,.0f}."
    best = f"{well.bits.idxmin()}, {well.bits.min():.2f} bits a character" if len(well) else "none"
    return numbered(
        [
            f"First not finite: `{where}`.{last}",
            f"Finite in every seed: {listed(well.index)}. Not in every seed: {listed(table.index[table.failed > 0])}.",
            f"Of what is finite in every seed the lowest validation loss has: {best}.",
        ]
    )


def how_they_ended(ends: pd.DataFrame) -> pd.DataFrame:
    """One row a treatment: seeds, failed (how many), fewest steps (made), bits and sd (mean and standard deviation
    over the seeds that did not fail). ValueError for a frame without these columns."""
    if missing := [name for name in COLUMNS if name not in ends.columns]:
        raise ValueError(f"ends lacks the columns {', '.join(missing)}: it needs {', '.join(COLUMNS)}")
    by = ends.groupby("treatment", sort=False)
    facts = dict(seeds=by.seed.nunique(), failed=by.failed.sum(), bits=by.bits.mean())
    return pd.DataFrame(facts | {"sd": by.bits.std(), "fewest steps": by.step.min()})


def what_cures(ends: pd.DataFrame, scale: str, unigram: float) -> str:
    """The answer: how each treatment ended, and which of the finite ones learned more than the characters' shares.

    unigram: bits a character of a model that knows only how common each is.
    """
    table = how_they_ended(ends)
    lines = [f"- **{name}**: {_ended(row)}." for name, row in table.iterrows()]
    well = table[table.failed == 0]
    idle = list(well.index[well.bits >= unigram])
    shares = f"the {unigram:.2f} bits of a model that knows only how common each character is"
    told = f"- Finite is not learned: {listed(idle)} does not get below {shares}."
    if not idle:
        told = f"- What stays finite in every seed gets below {shares}: {listed(well.index)}."
    head = f"**Answer** ({scale} scale, {seeds_text(table.seeds)}; validation bits a character, mean ± sd)."
    return "\n".join([head, "", *lines, told])


def _ended(row: pd.Series) -> str:
    if row.failed:
        left = "" if row.failed == row.seeds else f"; the others reach {_bits(row)}"
        return f"{row.failed:.0f} of {row.seeds:.0f} fail, the first after {row['fewest steps']:.0f} steps{left}"
    return f"0 of {row.seeds:.0f} fail, {_bits(row)}"


def _bits(row: pd.Series) -> str:
    return f"{row.bits:.2f} bits" + (f" ± {row.sd:.2f}" if row.sd == row.sd else "")
