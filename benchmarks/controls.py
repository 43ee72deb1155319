"""Simulate how often the verdicts are wrong: a second, independent check of the rule.

    python -m benchmarks.controls

Frames of made-up accuracies are built for the runs that `mambanorm_study.needed` names, and judged
by `mambanorm_study.judge`. Nothing else of the package is used but the paper's numbers. `mambanorm
calibrate` prints the whole table; this is its short twin, which can be read in a minute.

    positive control    the paper's printed means, sd 0.5 points; arms that it does not print are
                        in its favour
    negative control    all arms equal
    boundaries          a proposal exactly at a mark, 0 or +1 point (H8s): without diverged runs, or
                        with 5 or 10 % of its test runs diverged and so much better in the others
                        that its mean, with chance for diverged runs, is at the mark
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from itertools import product

import numpy as np
import pandas as pd

import mambanorm_study as study
from mambanorm_study.tables.paper import paper_values

CHANCE = 0.1
PRINTED = ["H1s", "H2s", "H3s", "H4s", "H5s", "H1v", "H2v", "H3v", "H4v", "H5v"]


def runs_of(claim: str, seeds: int) -> pd.DataFrame:
    """Return the tuning runs and test runs of a claim; the tuning runs choose the learning rates of
    the test runs.
    """
    task = "digits" if claim.endswith("s") else "digits_images"
    names = ("run_id", "task", "arm", "seed", "role", "scale", "lr")
    frame = None
    for _ in ("tuning", "test"):
        configs = study.needed(claim, seeds, [task], "quick", frame)
        runs = pd.DataFrame([{name: getattr(config, name) for name in names} for config in configs])
        frame = made_up(runs, dict.fromkeys(runs.arm, 50.0), 0.1, np.random.default_rng(0))
    return runs


def made_up(
    runs: pd.DataFrame,
    means: dict[str, float],
    sd: float,
    rng: np.random.Generator,
    failure_rates: dict[str, float] | None = None,
) -> pd.DataFrame:
    """Return the runs with accuracies, in points: the arm's mean, an effect of the seed that all
    arms share, and noise. The middle learning rate is 4 points better than the others. Tuning runs
    never diverge.
    """
    lr_rank = runs.lr.rank(method="dense").to_numpy()
    seed_effect = 2 * rng.standard_normal(200)[runs.seed]
    level = runs.arm.map(means).to_numpy() - 4 * (lr_rank != 2) + seed_effect
    test, validation = np.clip((level + sd * rng.standard_normal((2, len(runs)))) / 100, 0.0, 1.0)
    p = np.where(runs.seed < 100, runs.arm.map(failure_rates or {}).fillna(0.0), 0.0)
    status = np.where(rng.random(len(runs)) < p, "diverged", "ok")
    return runs.assign(
        status=status, test_accuracy=test, best_val_accuracy=validation, chance=CHANCE
    )


def print_words(title: str, claim: str, frames: Iterable[pd.DataFrame]) -> None:
    """Judge the frames and print the share of each word."""
    words = Counter(study.judge(claim, frame, scale="quick").word for frame in frames)
    shares = [f"{word} {100 * n / words.total():.1f} %" for word, n in words.most_common()]
    print(f"{claim + ' ' + title:<44}{', '.join(shares)}")


def paper_means(claim: str) -> dict[str, float]:
    """Return the paper's printed means of the claim's arms, in per cent. Arms that it does not
    print are 5 points beyond the printed ones, in the claim's favour.
    """
    hypothesis, kind = study.CLAIMS[claim], "sequence" if claim.endswith("s") else "vision"
    values = paper_values(kind).drop_duplicates("arm").set_index("arm").accuracy * 100
    printed = values[values.index.isin(hypothesis.arms)]
    deciding = [comparison for comparison in hypothesis.comparisons if comparison.decides]
    means = {}
    for arm in hypothesis.arms:
        favoured = sum(comparison.weights.get(arm, 0) for comparison in deciding) > 0
        beyond = min(printed.max() + 5, 95.0) if favoured else max(printed.min() - 5, 5.0)
        means[arm] = printed.get(arm, beyond)
    return means


def main() -> None:
    """Print the three controls."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--studies", type=int, default=200)
    studies, rng = parser.parse_args().studies, np.random.default_rng(0)
    for seeds in (8, 16):
        for claim in PRINTED:
            runs, means = runs_of(claim, seeds), paper_means(claim)
            frames = [made_up(runs, means, 0.5, rng) for _ in range(max(studies // 10, 1))]
            print_words(f"the paper's numbers, {seeds} seeds", claim, frames)
    for claim in [*PRINTED, "H6s", "H7s", "H8s"]:
        runs, means = runs_of(claim, 8), dict.fromkeys(study.CLAIMS[claim].arms, 50.0)
        frames = [made_up(runs, means, 1.4, rng) for _ in range(studies // 10)]
        print_words("all arms equal", claim, frames)
    proposal, runs = "NormVary>SSM>GN", runs_of("H8s", 8)
    for mark, p in product((0.0, 1.0), (0.0, 0.05, 0.10)):
        converged = (50.0 + mark - 100 * CHANCE * p) / (1 - p)
        means = {**dict.fromkeys(study.CLAIMS["H8s"].arms, 50.0), proposal: converged}
        frames = [made_up(runs, means, 1.4, rng, {proposal: p}) for _ in range(studies)]
        print_words(f"at {mark:+.0f} points, diverging in {100 * p:.0f} %", "H8s", frames)


if __name__ == "__main__":
    main()
