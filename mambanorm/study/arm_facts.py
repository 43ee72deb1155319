"""What an arm costs: its parameters, site by site, and how long one of its blocks takes on this machine."""

from __future__ import annotations

import statistics
import time
from functools import lru_cache
from typing import NamedTuple

import torch

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.kernels.threads import exactly_threads
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.training.grid import base_config

ROWS, LENGTH = 16, 64
CLASSES = 10


class ArmFacts(NamedTuple):
    """parameters: place → how many, all blocks together (stem, stem norm, N1, mixers, N2, further if the arm has
    norms at further sites, final norm, head).
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
def arm_facts(arm: str, stem_norm: str = "None", final_norm: str = "None", *, weightless: bool = False) -> ArmFacts:
    """The facts of a classifier of the digits at scale quick with this arm, its norms outside the blocks included.
    weightless: those at further sites have no γ and β, as Falcon-Mamba's. ValueError for an unknown norm or arm, and
    for a norm that does not fit its site. The caller's random state is left alone."""
    parsed = Arm.parse(arm)
    config = base_config("digits", "quick", arm=str(parsed), stem_norm=stem_norm, final_norm=final_norm)
    sizes = dict(d_model=config.d_model, n_layers=config.n_layers, d_state=config.d_state, expand=config.expand)
    outside = dict(stem_norm=stem_norm, final_norm=final_norm)
    with torch.random.fork_rng(devices=[]):
        sizes |= dict(d_conv=config.d_conv, norm_options=_options(parsed, weightless))
        model = SequenceClassifier(CLASSES, in_features=1, arm=parsed, **outside, **sizes)
    further = ("further",) if parsed.more else ()
    counts = dict.fromkeys(("stem", "stem norm", "N1", "mixers", "N2", *further, "final norm", "head"), 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            counts[_place(name)] += parameter.numel()
    return ArmFacts(
        str(parsed),
        config.n_layers,
        config.d_model,
        counts,
        block_ms(str(parsed), config.d_model, weightless=weightless),
        block_ms("None>SSM>None", config.d_model),
    )


def _place(name: str) -> str:
    """Where in the model a parameter stands: `blocks.0.n1.weight` → N1."""
    parts = name.split(".")
    if parts[0] == "blocks":
        return {"n1": "N1", "n2": "N2", "more": "further"}.get(parts[2], "mixers")
    return parts[0].replace("_", " ")


def _options(arm: Arm, weightless: bool) -> dict[str, dict[str, bool]]:
    """norm_options; weightless: with which the norms at further sites learn no γ and β."""
    return {site: {"affine": False} for site, _ in arm.more} if weightless else {}


@lru_cache(64)
def block_ms(arm: str, d_model: int, repeats: int = 7, *, weightless: bool = False) -> float:
    """Milliseconds of one block, forward and backward, median of `repeats` after two that are left out; one thread."""
    with torch.random.fork_rng(devices=[]):
        parsed = Arm.parse(arm)
        block = MambaBlock(d_model, *parsed, norm_options=_options(parsed, weightless))
        x = torch.randn(ROWS, LENGTH, d_model, requires_grad=True)
    times = []
    with exactly_threads(1):
        for _ in range(repeats + 2):
            start = time.perf_counter()
            block(x).sum().backward()
            times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[2:])
