"""What an arm costs: its parameters, site by site, and how long one of its blocks takes on this machine."""

from __future__ import annotations

import statistics
import time
from functools import lru_cache
from typing import NamedTuple

import torch

from mambanorm.kernels.threads import exactly_threads
from mambanorm.model.arms import Arm
from mambanorm.model.block import MambaBlock
from mambanorm.model.classifier import SequenceClassifier
from mambanorm.training.config import base_config

ROWS, LENGTH = 16, 64
CLASSES = 10


class ArmFacts(NamedTuple):
    """parameters: place → how many, all blocks together (stem, stem norm, N1, mixers, N2, final norm, head).
    block_ms: median time of one block, forward and backward, on (16, 64, d_model); plain_ms: of one without norms."""

    arm: str
    n_layers: int
    d_model: int
    parameters: dict[str, int]
    block_ms: float
    plain_ms: float

    @property
    def total(self) -> int:
        return sum(self.parameters.values())


@lru_cache(64)
def arm_facts(arm: str, stem_norm: str = "None", final_norm: str = "None") -> ArmFacts:
    """The facts of a classifier of the digits at scale quick with this arm, its norms outside the blocks included.
    ValueError for an unknown norm or arm. The caller's random state is left alone."""
    config = base_config("digits", "quick", arm=str(Arm.parse(arm)), stem_norm=stem_norm, final_norm=final_norm)
    sizes = dict(d_model=config.d_model, n_layers=config.n_layers, d_state=config.d_state, expand=config.expand)
    outside = dict(stem_norm=stem_norm, final_norm=final_norm)
    with torch.random.fork_rng(devices=[]):
        model = SequenceClassifier(CLASSES, in_features=1, arm=arm, d_conv=config.d_conv, **outside, **sizes)
    counts = dict.fromkeys(("stem", "stem norm", "N1", "mixers", "N2", "final norm", "head"), 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            counts[_place(name)] += parameter.numel()
    return ArmFacts(
        str(Arm.parse(arm)),
        config.n_layers,
        config.d_model,
        counts,
        block_ms(str(Arm.parse(arm)), config.d_model),
        block_ms("None>SSM>None", config.d_model),
    )


def _place(name: str) -> str:
    """Where in the model a parameter stands: `blocks.0.n1.weight` → N1."""
    parts = name.split(".")
    if parts[0] == "blocks":
        return {"n1": "N1", "n2": "N2"}.get(parts[2], "mixers")
    return parts[0].replace("_", " ")


@lru_cache(64)
def block_ms(arm: str, d_model: int, repeats: int = 7) -> float:
    """Milliseconds of one block, forward and backward, median of `repeats` after two that are left out; one thread."""
    with torch.random.fork_rng(devices=[]):
        block, x = MambaBlock(d_model, *Arm.parse(arm)), torch.randn(ROWS, LENGTH, d_model, requires_grad=True)
    times = []
    with exactly_threads(1):
        for _ in range(repeats + 2):
            start = time.perf_counter()
            block(x).sum().backward()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])
