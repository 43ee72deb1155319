"""The registry of norms as tables, and the costs of norms and arms on this machine."""

import re
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.kernels.threads import exactly_threads
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.norms.registry import NORMS, create_norm
from mambanorm_study.runs.grid import base_config

# (B, L, D) at which the costs are measured.
SIZES = ((8, 64, 32), (16, 128, 64), (2, 1024, 256))


def norm_table() -> pd.DataFrame:
    """Return the registry as a table: norm, axes, causal, learnable, parameters and buffers for 64
    channels, source.
    """
    rows = []
    for name, entry in NORMS.items():
        norm = create_norm(name, 64)
        doubt = f" (not what it declares: {entry.doubt})" if entry.doubt else ""
        rows.append(
            {
                "norm": name,
                "statistics over": " · ".join(entry.axes) or "–",
                "causal": entry.causal,
                "learns": entry.learnable,
                "parameters": sum(p.numel() for p in norm.parameters() if p.requires_grad),
                "buffers": sum(b.numel() for b in norm.buffers() if b.is_floating_point()),
                "source": f"{entry.source}{doubt}",
            }
        )
    return pd.DataFrame(rows).set_index("norm")


def taxonomy_table() -> pd.DataFrame:
    """Return the registry in the terms of Table 3, one row a norm.

    NAP: the partition of x (Π(X), S₁ × S₂: one statistic for each of S₁, taken over S₂ values).
    NOP: the operation. NRR: what is learned to recover the representation. Symbols are Table 3's: m
    rows, D channels, L positions, g_D groups of s_D channels. The row of a mixture of norms names
    its members, because it has no partition and no operation.
    """
    rows = []
    for name, entry in NORMS.items():
        norm = create_norm(name, 8)
        members = getattr(norm, "members", ())
        if members:
            nap, nop = f"a mixture: {_member_names(members, entry.axes)}", "a mixture of both"
        else:
            nap, nop = partition(entry.axes), _operation(norm, entry)
        nrr = re.sub("^γ(, β)?", r"\g<0> ∈ ℝᴰ", entry.learnable)
        rows.append({"norm": name, "NAP": nap, "NOP": nop, "NRR": nrr})
    return pd.DataFrame(rows).set_index("norm")


def _member_names(members: Sequence[str], axes: Sequence[str]) -> str:
    """Return the registry's names of a mixture's members; in a mixture along L, those with
    statistics over D·L.
    """
    if "L" not in axes:
        return ", ".join(members)
    return ", ".join(f"{n}-DL" if f"{n}-DL" in NORMS else n for n in members)


def _operation(norm: nn.Module, entry) -> str:
    """Return the operation of a norm: tried, because one that subtracts the mean gives the same for
    x and x + 1.
    """
    if not entry.axes:
        return "–" if entry.learnable == "nothing" else "a function of each value"
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        subtracts_mean = torch.allclose(norm(x), norm(x + 1), atol=1e-4)
    return "standardizing" if subtracts_mean else "scaling"


def partition(axes: Sequence[str]) -> str:
    """Return Π(X) of a norm with those axes: ("B", "L") → "D × m·L"; "–" without a statistic."""
    if not axes:
        return "–"
    channels = ("", "D") if "D" in axes else ("D", "")
    if "D/G" in axes:
        channels = ("g_D", "s_D")
    apart = ("" if "B" in axes else "m", channels[0], "" if "L" in axes else "L")
    within = ("m" if "B" in axes else "", channels[1], "L" if "L" in axes else "")
    return " × ".join("·".join(filter(None, side)) or "1" for side in (apart, within))


# --------------------------------------------------------------------------------------------------
# the costs of norms


def norm_costs(
    rows: int = 16, length: int = 128, channels: int = 64, repeats: int = 15
) -> pd.DataFrame:
    """Return the cost of each norm on this machine, cheapest first; forward plus backward on (rows,
    length, channels).

    Columns: norm; ms (median) and its ratio to LN with the quartiles low and high; parameters and
    buffers. All norms are timed in turn, `repeats` times, so that a busy moment slows all.
    """
    x = torch.randn(rows, length, channels, requires_grad=True)
    times = in_turn({name: create_norm(name, channels) for name in NORMS}, x, repeats)
    table = pd.DataFrame({"ms": 1e3 * times.median()})
    table[["ratio", "low", "high"]] = times.div(times["LN"].median()).quantile([0.5, 0.25, 0.75]).T
    table = table.join(norm_table()[["parameters", "buffers"]])
    return table.sort_values("ratio").rename_axis("norm").reset_index()


def in_turn(modules: dict[str, nn.Module], x: Tensor, repeats: int) -> pd.DataFrame:
    """Return the seconds of each module's forward and backward pass, one row a round. The first two
    rounds are omitted.
    """
    weight = torch.randn_like(x)
    rounds = []
    for _ in range(repeats + 2):
        seconds = {}
        for name, module in modules.items():
            start = time.perf_counter()
            module(x).backward(weight)
            seconds[name] = time.perf_counter() - start
        rounds.append(seconds)
    return pd.DataFrame(rounds)[2:]


def costs_of(name: str, repeats: int = 7) -> pd.DataFrame:
    """Return the costs of one norm, one row a size of SIZES.

    Columns: shape, ms (forward and backward, median), kept, the bytes kept for the gradient over
    those of x, kept_rmsn, RMSN's, and how many times the time of RMSN and of LN. All are timed in
    turn.
    """
    rows = []
    for shape in SIZES:
        x = torch.randn(shape, requires_grad=True)
        norms = {n: create_norm(n, shape[-1]) for n in dict.fromkeys((name, "RMSN", "LN"))}
        norms[name](x, None)  # the first pass may have compiled something
        times = in_turn(norms, x, repeats).median()
        rows.append(
            {
                "shape": " × ".join(map(str, shape)),
                "ms": 1e3 * times[name],
                "kept": _kept(norms[name], x),
                "kept_rmsn": _kept(norms["RMSN"], x),
                "over_rmsn": times[name] / times["RMSN"],
                "over_ln": times[name] / times["LN"],
            }
        )
    return pd.DataFrame(rows)


def _kept(norm: nn.Module, x: Tensor) -> float:
    """Return the bytes that a forward pass keeps for the backward pass, each memory counted once,
    over those of x.
    """
    bytes_of_storage: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        bytes_of_storage[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        norm(x, None)
    return sum(bytes_of_storage.values()) / (x.numel() * x.element_size())


# --------------------------------------------------------------------------------------------------
# the costs of arms

# Child of a block → its place in `ArmFacts`.
PLACES = {"n1": "N1", "n2": "N2", "more": "further"}


class ArmFacts(NamedTuple):
    """Parameters and times of a model with an arm.

    parameters: place → number, all blocks together (stem, N1, mixers, N2, further if the arm has
    norms at further sites, head). block_ms: median time of one block, forward and backward, on (16,
    64, d_model); plain_ms: of one without norms.
    """

    arm: str
    n_layers: int
    d_model: int
    parameters: dict[str, int]
    block_ms: float
    plain_ms: float

    @property
    def total(self) -> int:
        """The number of parameters."""
        return sum(self.parameters.values())


@lru_cache(64)
def arm_facts(arm: str, *, weightless: bool = False) -> ArmFacts:
    """Return the facts of a classifier of the digits at scale quick with this arm.

    weightless: norms at further sites have no γ and β, as Falcon-Mamba's. The caller's random state
    is left alone.
    """
    parsed = Arm.parse(arm)
    config = base_config("digits", "quick", arm=str(parsed))
    with torch.random.fork_rng(devices=[]):
        model = SequenceClassifier(
            10,
            in_features=1,
            arm=parsed,
            norm_options=_further_options(parsed, weightless),
            d_model=config.d_model,
            n_layers=config.n_layers,
            d_state=config.d_state,
            expand=config.expand,
            d_conv=config.d_conv,
        )
    further = ("further",) if parsed.more else ()
    counts = dict.fromkeys(("stem", "N1", "mixers", "N2", *further, "head"), 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place, *inside = name.split(".")
            if place == "blocks":  # `blocks.0.n1.weight` is at N1
                place = PLACES.get(inside[1], "mixers")
            counts[place] += parameter.numel()
    return ArmFacts(
        arm=str(parsed),
        n_layers=config.n_layers,
        d_model=config.d_model,
        parameters=counts,
        block_ms=block_ms(str(parsed), config.d_model, weightless),
        plain_ms=block_ms("None>SSM>None", config.d_model),
    )


def _further_options(arm: Arm, weightless: bool) -> dict[str, dict[str, bool]]:
    """Return the norm options of an arm whose further norms have weights or not."""
    return {site: {"affine": False} for site, _ in arm.more} if weightless else {}


@lru_cache(64)
def block_ms(arm: str, d_model: int, weightless: bool = False) -> float:
    """Return the milliseconds of one block, forward and backward: the median of seven, with one
    thread.
    """
    parsed = Arm.parse(arm)
    with torch.random.fork_rng(devices=[]), exactly_threads(1):
        block = MambaBlock(d_model, *parsed, norm_options=_further_options(parsed, weightless))
        x = torch.randn(16, 64, d_model, requires_grad=True)
        return 1e3 * float(in_turn({arm: block}, x, 7)[arm].median())
