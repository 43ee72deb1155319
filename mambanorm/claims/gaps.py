"""What is missing from a frame, by name: nothing is guessed in its place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mambanorm.arms import Arm


def label(arm: str) -> str:
    return Arm.parse(arm).label


def listed(seeds: Sequence[int], which: np.ndarray) -> str:
    return ", ".join(str(seed) for seed, yes in zip(seeds, which, strict=True) if yes)


def missing_rates(arms: Sequence[str], rates: Sequence[float], there: np.ndarray) -> tuple[str, ...]:
    """The arms without any run, and the learning rates that arms lack. there: (arms, rates)."""
    absent = [label(arm) for arm, row in zip(arms, there, strict=True) if not row.any()]
    texts = [f"not run: {', '.join(absent)}"] if absent else []
    run = there.any(axis=1)
    untuned = [i for i in np.flatnonzero(run) if not there[i].all()]
    if untuned and len(untuned) == run.sum() and all(there[i].sum() == 1 for i in untuned):
        return (*texts, "no arm is tuned: one learning rate for all")
    for i in untuned:
        lacks = ", ".join(f"{rate:g}" for rate, yes in zip(rates, there[i], strict=True) if not yes)
        texts.append(f"not tuned: {label(arms[i])} lacks learning rate {lacks}")
    return tuple(texts)


def missing_seeds(
    arms: Sequence[str], rates: Sequence[float], seeds: Sequence[int], there: np.ndarray
) -> tuple[str, ...]:
    """The seeds that are left out, with the first of the runs that they lack; those that lack the same in one text.
    there: (arms, rates, seeds)."""
    texts: dict[str, list[int]] = {}
    for k, seed in enumerate(seeds):
        lacking = np.argwhere(~there[:, :, k])
        if len(lacking):
            i, j = lacking[0]
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            texts.setdefault(f"{label(arms[i])} at learning rate {rates[j]:g}{more} not run", []).append(seed)
    return tuple(
        f"seed{'s' * (len(which) > 1)} {', '.join(map(str, which))} left out: {what}" for what, which in texts.items()
    )


def missing_columns(arms: Sequence[str], seeds: Sequence[int], known: dict[str, np.ndarray]) -> tuple[list, list]:
    """Of the claims of §4.6: the arms without any number, and the seeds that an arm lacks.

    known: column → (arms, seeds).
    """
    gaps, lacking = [], []
    for name, there in known.items():
        what = "not run" if name == "score" else f"no {name}"
        for arm, row in zip(arms, there, strict=True):
            if not row.any():
                gaps.append(f"{what}: {label(arm)}")
            elif not row.all():
                which = "" if name == "score" else f" ({what})"
                lacking.append(f"{label(arm)} lacks seeds {listed(seeds, ~row)}{which}")
    return list(dict.fromkeys(gaps)), list(dict.fromkeys(lacking))
