"""The numbers of the guide (S4) that can be tried on a laptop, each beside ours: rows of an experiment, or arithmetic.

Models and data differ from the guide's, which names none for most of its numbers: compare the pattern, not the level.
What a norm costs in time is in notebook 01.
"""

import pandas as pd

from mambanorm.advice.evidence import Gap
from mambanorm.advice.experiments import REACHED, measure
from mambanorm.study.tables import seeds_text

IMAGENET = {32: (76.5, 76.3), 8: (75.8, 76.1), 2: (72.1, 75.3)}
"""Batch → accuracy of BN and of GN that the guide prints (ResNet-50, ImageNet), as of “He et al.”."""
SUMS = [
    ("RMSNorm saves, where LayerNorm adds 3–5 %", "15–20 %", f"at most {100 * (1 - 1 / 1.05):.1f} %, all that LN costs",
     "arithmetic"),
    ("seconds saved over 1 million tokens, 1,000 → 1,180 a second", "180 s",
     f"{1e6 / 1000 - 1e6 / 1180:.0f} s", "arithmetic"),
]  # fmt: skip
"""Two numbers of the guide that its other numbers contradict."""


def claimed_and_measured(scale: str | None = None, seeds=None, runs_dir=None) -> pd.DataFrame:
    """One row a number: claim, claimed, here, setting."""
    batch, rates, depth = (measure(name, scale, seeds, runs_dir) for name in ("batch_size", "rates", "depth"))
    where = f"{batch.scale.iloc[0]} scale, {seeds_text([batch.seed.nunique()])}"
    measured = [*_batch_rows(batch), *_rate_rows(rates), *_depth_rows(depth)]
    rows = [(*row, f"{setting}, {where}") for *row, setting in measured] + SUMS
    return pd.DataFrame(rows, columns=["claim", "claimed", "here", "setting"])


def _batch_rows(batch: pd.DataFrame) -> list[tuple]:
    rows = []
    for n in sorted(set(IMAGENET) & set(batch.batch), reverse=True):
        here = batch[batch.batch == n]
        means, gap = here.groupby("norm").accuracy.mean(), Gap(here, "norm", "BN", "GN")
        ours = f"{means.BN:.1f} / {means.GN:.1f} % (BN − GN: {gap})"
        rows.append((f"BN / GN at batch {n}", "{:.1f} / {:.1f} %".format(*IMAGENET[n]), ours, "a small CNN, digits"))
    return rows


def _rate_rows(frame: pd.DataFrame) -> list[tuple]:
    """Steps to an accuracy, each norm at its best rate; and the largest rate that brings half of the best rate's
    accuracy (and more than 20 %)."""
    steps, largest = {}, {}
    for norm in ("None", "BN", "GN"):
        mine = frame[frame.norm == norm]
        mean = mine.groupby("lr").accuracy.mean()
        soon = mine[mine.lr == mean.idxmax()].reached.median()
        steps[norm] = f"more than {mine.limit.iloc[0]}" if soon != soon else f"{soon:.0f}"
        trains = mean[(mean >= mean.max() / 2) & (mean > 20)]
        largest[norm] = f"{trains.index.max():g}" if len(trains) else "none"
    setting = "the same CNN, SGD"
    return [
        ("a norm converges faster", "10 × (100 → 10 epochs)", f"steps to {REACHED:.0f} %: {_listed(steps)}", setting),
        ("a norm allows larger rates", "10 × (0.001 → 0.01)",
         f"the largest of up to {frame.lr.max():g} that trains: {_listed(largest)}", setting),
    ]  # fmt: skip


def _listed(found: dict[str, str]) -> str:
    return ", ".join(f"{'no norm' if norm == 'None' else norm} {value}" for norm, value in found.items())


def _depth_rows(frame: pd.DataFrame) -> list[tuple]:
    ln, rms = frame[frame.norm == "LN"], frame[frame.norm == "RMSN"]
    gaps = {n: Gap(ln[ln.depth == n], "place", "pre", "post") for n in sorted(ln.depth.unique())}
    told = "; ".join(f"{n} layers: pre − post {gap}" for n, gap in gaps.items())
    pre = frame[(frame.depth == rms.depth.iloc[0]) & (frame.place == "pre")]
    setting = "a Transformer, digits, no warm-up"
    return [
        ("post-norm is hard to train above", "12 layers", told, setting),
        ("RMSN in place of LN, accuracy", "the same", f"RMSN − LN {Gap(pre, 'norm', 'RMSN', 'LN')}", setting),
    ]
