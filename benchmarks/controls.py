"""Are the verdicts wrong no more often than they say? A second, independent look: python -m
benchmarks.controls

Frames of made-up accuracies are built from what `mambanorm.needed` asks for and judged by
`mambanorm.judge`; nothing else of the package is used but the paper's numbers. `mambanorm
calibrate` has the whole table; this is its twin, short enough to be read in a minute.

    positive control    the paper's printed means, sd 0.5 points, arms that it does not print in its
                        favour
    negative control    all arms equal
    boundaries          a proposal exactly at a mark, 0 or +1 point (H8s), calm, or diverging in 5
                        or 10 % of its test runs and so much better in the others that its mean,
                        with chance where it diverged, is at the mark
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np
import pandas as pd

import mambanorm_study as study
from mambanorm_study.tables.paper import paper_values

CHANCE = 0.1
PRINTED = ["H1s", "H2s", "H3s", "H4s", "H5s", "H1v", "H2v", "H3v", "H4v", "H5v"]


def runs_of(claim: str, seeds: int) -> pd.DataFrame:
    """The tuning runs of a claim, and its test runs at the rates that the tuning runs choose."""
    task = "digits" if claim.endswith("s") else "digits_images"
    names = ("run_id", "task", "arm", "seed", "role", "scale", "lr")
    frame = None
    for _ in ("tuning", "test"):
        configs = study.needed(claim, seeds, [task], "quick", frame)
        runs = pd.DataFrame([{name: getattr(config, name) for name in names} for config in configs])
        frame = made_up(runs, dict.fromkeys(runs.arm, 50.0), 0.1, np.random.default_rng(0))
    return runs


def made_up(
    runs: pd.DataFrame, mean: dict[str, float], sd: float, rng: np.random.Generator, diverges=None
):
    """Accuracies in points: the arm's mean + what the seed gives to all + noise; the middle rate is
    4 points better."""
    place = runs.lr.rank(method="dense").to_numpy()
    level = (
        runs.arm.map(mean).to_numpy() - 4 * (place != 2) + 2 * rng.standard_normal(200)[runs.seed]
    )
    test, validation = np.clip((level + sd * rng.standard_normal((2, len(runs)))) / 100, 0.0, 1.0)
    p = np.where(
        runs.seed < 100, runs.arm.map(diverges or {}).fillna(0.0), 0.0
    )  # tuning runs are calm
    status = np.where(rng.random(len(runs)) < p, "diverged", "ok")
    return runs.assign(
        status=status, test_accuracy=test, best_val_accuracy=validation, chance=CHANCE
    )


def verdicts(claim: str, frames) -> Counter:
    return Counter(study.judge(claim, frame, scale="quick").word for frame in frames)


def told(name: str, found: Counter) -> None:
    print(
        f"{name:<44}"
        + ", ".join(f"{word} {100 * n / found.total():.1f} %" for word, n in found.most_common())
    )


def paper_means(claim: str) -> dict[str, float]:
    """What the paper prints for the claim's arms, per cent; the others 5 points beyond it, in the
    claim's favour."""
    hypothesis, kind = study.CLAIMS[claim], "sequence" if claim.endswith("s") else "vision"
    values = paper_values(kind).drop_duplicates("arm").set_index("arm").accuracy * 100
    known = values[values.index.isin(hypothesis.arms)]
    better = {
        arm: sum(c.weights.get(arm, 0) for c in hypothesis.comparisons if c.decides)
        for arm in hypothesis.arms
    }
    return {
        arm: known.get(
            arm, min(known.max() + 5, 95.0) if better[arm] > 0 else max(known.min() - 5, 5.0)
        )
        for arm in hypothesis.arms
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=200)
    studies, rng = parser.parse_args().studies, np.random.default_rng(0)
    for seeds in (8, 16):
        for claim in PRINTED:
            runs, mean = runs_of(claim, seeds), paper_means(claim)
            frames = (made_up(runs, mean, 0.5, rng) for _ in range(max(studies // 10, 1)))
            told(f"{claim} the paper's numbers, {seeds} seeds", verdicts(claim, frames))
    for claim in [*PRINTED, "H6s", "H7s", "H8s"]:
        runs, mean = runs_of(claim, 8), dict.fromkeys(study.CLAIMS[claim].arms, 50.0)
        told(
            f"{claim} all arms equal",
            verdicts(claim, (made_up(runs, mean, 1.4, rng) for _ in range(studies // 10))),
        )
    proposal, runs = "NormVary>SSM>GN", runs_of("H8s", 8)
    for mark, p in ((mark, p) for mark in (0.0, 1.0) for p in (0.0, 0.05, 0.10)):
        converged = (50.0 + mark - 100 * CHANCE * p) / (1 - p)
        mean = dict.fromkeys(study.CLAIMS["H8s"].arms, 50.0) | {proposal: converged}
        frames = (made_up(runs, mean, 1.4, rng, {proposal: p}) for _ in range(studies))
        told(f"H8s at {mark:+.0f} points, diverging in {100 * p:.0f} %", verdicts("H8s", frames))


if __name__ == "__main__":
    main()
