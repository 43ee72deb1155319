"""The registry of norms as tables, and what norms and arms cost on this machine."""

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

SIZES = ((8, 64, 32), (16, 128, 64), (2, 1024, 256))
"""(B, L, D) at which the costs are measured."""


def norm_table() -> pd.DataFrame:
    """The registry as a table: norm, axes, causal, learnable, parameters and buffers for 64
    channels, source."""
    rows = []
    for name, entry in NORMS.items():
        norm = create_norm(name, 64)
        row = {
            "norm": name,
            "statistics over": " · ".join(entry.axes) or "–",
            "causal": entry.causal,
        }
        row |= {
            "learns": entry.learnable,
            "parameters": sum(p.numel() for p in norm.parameters() if p.requires_grad),
        }
        row["buffers"] = sum(b.numel() for b in norm.buffers() if b.is_floating_point())
        rows.append(
            row
            | {
                "source": f"{entry.source} (not what it declares: {entry.doubt})"
                if entry.doubt
                else entry.source
            }
        )
    return pd.DataFrame(rows).set_index("norm")


def taxonomy_table() -> pd.DataFrame:
    """The registry as Table 3 sees a norm, one row a norm: NAP, how x is partitioned (Π(X), S₁ ×
    S₂: one statistic for each of S₁, taken over S₂ values); NOP, the operation; NRR, what is
    learned to recover the representation.

    Symbols are Table 3's: m rows, D channels, L positions, g_D groups of s_D channels. A mixture of
    norms has neither partition nor operation of its own: the row names its members.
    """
    rows, x = [], torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    for name, entry in NORMS.items():
        norm, operation = (
            create_norm(name, 8),
            "–" if entry.learnable == "nothing" else "a function of each value",
        )
        if entry.axes:  # tried: one that subtracts the mean gives the same for x and x + 1
            with torch.no_grad():
                shifts = torch.allclose(norm(x), norm(x + 1), atol=1e-4)
            operation = "standardizing" if shifts else "scaling"
        row = dict(norm=name, NAP=partition(entry.axes), NOP=operation)
        if members := getattr(
            norm, "members", ()
        ):  # those of a norm along L with their statistics over D·L
            wide = [f"{member}-DL" if "L" in entry.axes else member for member in members]
            mixed = ", ".join(
                name if name in NORMS else member
                for name, member in zip(wide, members, strict=True)
            )
            row |= dict(NAP=f"a mixture: {mixed}", NOP="a mixture of both")
        rows.append(row | dict(NRR=re.sub("^γ(, β)?", r"\g<0> ∈ ℝᴰ", entry.learnable)))
    return pd.DataFrame(rows).set_index("norm")


def partition(axes: Sequence[str]) -> str:
    """Π(X) of a norm with those axes: ("B", "L") → "D × m·L"; "–" where there is no statistic."""
    if not axes:
        return "–"
    group, members = ("g_D", "s_D") if "D/G" in axes else ("", "D") if "D" in axes else ("D", "")
    apart = ("" if "B" in axes else "m", group, "" if "L" in axes else "L")
    within = ("m" if "B" in axes else "", members, "L" if "L" in axes else "")
    return " × ".join("·".join(filter(None, side)) or "1" for side in (apart, within))


# --------------------------------------------------------------------------------------------------
# what norms cost


def norm_costs(
    rows: int = 16, length: int = 128, channels: int = 64, repeats: int = 15
) -> pd.DataFrame:
    """What each norm costs on this machine, cheapest first; forward plus backward on (rows, length,
    channels).

    Columns: norm; ms (median) and its ratio to LN with the quartiles low and high; parameters and
    buffers. All norms are timed in turn, `repeats` times over, so that a busy moment slows all.
    """
    x = torch.randn(rows, length, channels, requires_grad=True)
    times = in_turn({name: create_norm(name, channels) for name in NORMS}, x, repeats)
    table = pd.DataFrame({"ms": 1e3 * times.median()})
    table[["ratio", "low", "high"]] = times.div(times["LN"].median()).quantile([0.5, 0.25, 0.75]).T
    table = table.join(norm_table()[["parameters", "buffers"]])
    return table.sort_values("ratio").rename_axis("norm").reset_index()


def in_turn(modules: dict[str, torch.nn.Module], x: torch.Tensor, repeats: int) -> pd.DataFrame:
    """Seconds of each module's forward and backward pass, a row a round; the first two rounds are
    left out."""
    weight = torch.randn_like(x)

    def one_pass(module: torch.nn.Module) -> float:
        start = time.perf_counter()
        module(x).backward(weight)
        return time.perf_counter() - start

    return pd.DataFrame(
        [{name: one_pass(m) for name, m in modules.items()} for _ in range(repeats + 2)]
    )[2:]


def costs_of(name: str, repeats: int = 7) -> pd.DataFrame:
    """One row a size: shape, ms (forward and backward, median), and how many times that of RMSN and
    of LN; kept, the bytes kept for the gradient over those of x, beside RMSN's. All are timed in
    turn."""
    rows = []
    for shape in SIZES:
        x = torch.randn(shape, requires_grad=True)
        norms = {one: create_norm(one, shape[-1]) for one in dict.fromkeys((name, "RMSN", "LN"))}
        norms[name](x, None)  # the first pass may have compiled something
        times = in_turn(norms, x, repeats).median()
        kept = {one: _kept(norms[one], x) for one in (name, "RMSN")}
        rows.append(
            dict(
                shape=" × ".join(map(str, shape)), ms=1e3 * times[name], kept=kept[name], kept_rmsn=kept["RMSN"],
                over_rmsn=times[name] / times["RMSN"], over_ln=times[name] / times["LN"],
            )
        )  # fmt: skip
    return pd.DataFrame(rows)


def _kept(norm: nn.Module, x: Tensor) -> float:
    """Bytes that a forward pass keeps for the backward one, each memory counted once, over those of
    x."""
    seen: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        norm(x, None)
    return sum(seen.values()) / (x.numel() * x.element_size())


# --------------------------------------------------------------------------------------------------
# what arms cost


class ArmFacts(NamedTuple):
    """parameters: place → how many, all blocks together (stem, N1, mixers, N2, further if the arm
    has norms at further sites, head). block_ms: median time of one block, forward and backward, on
    (16, 64, d_model); plain_ms: of one without norms."""

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
def arm_facts(arm: str, *, weightless: bool = False) -> ArmFacts:
    """The facts of a classifier of the digits at scale quick with this arm. weightless: norms at
    further sites have no γ and β, as Falcon-Mamba's. The caller's random state is left alone."""
    parsed = Arm.parse(arm)
    config = base_config("digits", "quick", arm=str(parsed))
    sizes = {
        name: getattr(config, name)
        for name in ("d_model", "n_layers", "d_state", "expand", "d_conv")
    }
    options = {site: {"affine": False} for site, _ in parsed.more} if weightless else {}
    with torch.random.fork_rng(devices=[]):
        model = SequenceClassifier(10, in_features=1, arm=parsed, norm_options=options, **sizes)
    further = ("further",) if parsed.more else ()
    counts = dict.fromkeys(("stem", "N1", "mixers", "N2", *further, "head"), 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            place, *inside = name.split(".")  # `blocks.0.n1.weight` stands at N1
            block = (
                {"n1": "N1", "n2": "N2", "more": "further"}.get(inside[1], "mixers")
                if place == "blocks"
                else ""
            )
            counts[block or place] += parameter.numel()
    times = (
        block_ms(str(parsed), config.d_model, weightless),
        block_ms("None>SSM>None", config.d_model),
    )
    return ArmFacts(str(parsed), config.n_layers, config.d_model, counts, *times)


@lru_cache(64)
def block_ms(arm: str, d_model: int, weightless: bool = False) -> float:
    """Milliseconds of one block, forward and backward, the median of seven; one thread."""
    with torch.random.fork_rng(devices=[]), exactly_threads(1):
        parsed = Arm.parse(arm)
        options = {site: {"affine": False} for site, _ in parsed.more} if weightless else {}
        block = MambaBlock(d_model, *parsed, norm_options=options)
        return 1e3 * float(
            in_turn({arm: block}, torch.randn(16, 64, d_model, requires_grad=True), 7)[arm].median()
        )
