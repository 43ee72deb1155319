"""The registry of norms as tables, the costs of norms on this machine, and how many parameters the
model of an arm has. An arm names the norms before and after the SSM, e.g. RMSN>SSM>GN.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from timeit import timeit

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.norms.registry import NORMS, create_norm
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tasks import load_task

# Input shapes (B, L, D) on which the costs of one norm are measured.
INPUT_SHAPES = ((8, 64, 32), (16, 128, 64), (2, 1024, 256))


def norm_table() -> pd.DataFrame:
    """Return the registry as a table, one row for each norm.

    Columns: "statistics over" (axes), causal (bool), learns (what is learned), parameters and
    buffers (how many values the norm has of each for 64 channels), source.
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
                "parameters": _count(norm),
                "buffers": sum(b.numel() for b in norm.buffers() if b.is_floating_point()),
                "source": f"{entry.source}{doubt}",
            }
        )
    return pd.DataFrame(rows).set_index("norm")


def taxonomy_table() -> pd.DataFrame:
    """Return the registry in the terms of the paper's Table 3, one row for each norm.

    Columns: NAP, the partition Π(X) of the input, written S₁ × S₂ for S₁ statistics that are each
    taken over S₂ values; NOP, the operation; NRR, what is learned to recover the representation.
    Symbols: m rows, D channels, L positions, g_D groups of s_D channels. A mixture of norms has no
    partition, so its NAP lists the norms that it mixes.
    """
    rows = []
    for name, entry in NORMS.items():
        norm = create_norm(name, 8)
        members = getattr(norm, "members", ())
        if "L" in entry.axes:  # then "LN" in a mixture means "LN-DL"
            members = [f"{n}-DL" if f"{n}-DL" in NORMS else n for n in members]
        if members:
            nap, nop = f"a mixture: {', '.join(members)}", "a mixture of both"
        else:
            nap, nop = partition(entry.axes), _operation(norm, entry)
        nrr = re.sub("^γ(, β)?", r"\g<0> ∈ ℝᴰ", entry.learnable)
        rows.append({"norm": name, "NAP": nap, "NOP": nop, "NRR": nrr})
    return pd.DataFrame(rows).set_index("norm")


def _operation(norm: nn.Module, entry) -> str:
    """Return the name of a norm's operation: "standardizing" if the norm subtracts the mean, which
    is tested by comparing its outputs for x and for x + 1; else "scaling". Without statistics: "a
    function of each value", or "–" for a norm that learns nothing.
    """
    if not entry.axes:
        return "–" if entry.learnable == "nothing" else "a function of each value"
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        subtracts_mean = torch.allclose(norm(x), norm(x + 1), atol=1e-4)
    return "standardizing" if subtracts_mean else "scaling"


def partition(axes: Sequence[str]) -> str:
    """Return the partition Π(X) of a norm with statistics over these axes, in the notation of
    `taxonomy_table`: "D × m·L" for ("B", "L"); "–" for no axes.
    """
    if not axes:
        return "–"
    apart = {"B": "m", "D": "g_D" if "D/G" in axes else "D", "L": "L"}
    within = {"B": "m", "D": "D", "D/G": "s_D", "L": "L"}
    sides = (
        [symbol for axis, symbol in apart.items() if axis not in axes],
        [symbol for axis, symbol in within.items() if axis in axes],
    )
    return " × ".join("·".join(side) or "1" for side in sides)


# --------------------------------------------------------------------------------------------------
# the costs of norms


def norm_costs(
    rows: int = 16,
    length: int = 128,
    channels: int = 64,
    repeats: int = 15,
    names: Iterable[str] = tuple(NORMS),
) -> pd.DataFrame:
    """Return the time that each norm takes for a forward and a backward pass on an input of shape
    (rows, length, channels), the fastest norm first.

    Columns: norm; ms, the median time; ratio, low and high, the median and the quartiles of the
    norm's time divided by LN's median time; parameters and buffers, how many values the norm has of
    each for 64 channels. Each of the `repeats` rounds times every norm once, so that a busy moment
    of the machine slows all norms. names: the norms to time, which must include LN.
    """
    x = torch.randn(rows, length, channels, requires_grad=True)
    weight = torch.randn_like(x)
    norms = {name: create_norm(name, channels) for name in names}

    def step(norm: nn.Module) -> None:
        norm(x).backward(weight)

    rounds = []
    for _ in range(2 + repeats):
        rounds.append({name: timeit(partial(step, norm), number=1) for name, norm in norms.items()})
    times = pd.DataFrame(rounds)[2:]  # the first rounds may compile a kernel
    table = pd.DataFrame({"ms": 1e3 * times.median()})
    table[["ratio", "low", "high"]] = times.div(times["LN"].median()).quantile([0.5, 0.25, 0.75]).T
    table = table.join(norm_table()[["parameters", "buffers"]])
    return table.sort_values("ratio").rename_axis("norm").reset_index()


def costs_by_shape(names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """Return a map from each of these norms to its costs, with one row for each shape in
    INPUT_SHAPES.

    Columns: shape; ms, the median time of a forward and a backward pass; kept, the bytes that the
    forward pass saves for the backward pass, divided by the bytes of the input; kept_rmsn, this
    ratio for RMSN; over_rmsn and over_ln, the norm's time divided by the time of RMSN and of LN.
    """
    names = list(names)
    timed = dict.fromkeys([*names, "RMSN", "LN"])
    tables = []
    for shape in INPUT_SHAPES:
        x = torch.randn(shape, requires_grad=True)
        kept = {n: saved_bytes(partial(create_norm(n, shape[-1]), x)) / x.nbytes for n in timed}
        costs = norm_costs(*shape, repeats=7, names=timed).set_index("norm")[["ms"]]
        ms = costs.ms
        tables.append(
            costs.assign(
                shape=" × ".join(map(str, shape)),
                kept=pd.Series(kept),
                kept_rmsn=kept["RMSN"],
                over_rmsn=ms / ms["RMSN"],
                over_ln=ms / ms["LN"],
            )
        )
    costs = pd.concat(tables)
    return {name: costs.loc[[name]].reset_index(drop=True) for name in names}


def saved_bytes(forward: Callable[[], object], parameters: Iterable[Tensor] = ()) -> int:
    """Return the number of bytes of the tensors that `forward()` saves for the backward pass.

    A storage that several tensors share is counted once. The storages of `parameters` are not
    counted.
    """
    bytes_of_storage: dict[int, int] = {}

    def pack(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        bytes_of_storage[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        forward()
    known = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    return sum(n for address, n in bytes_of_storage.items() if address not in known)


# --------------------------------------------------------------------------------------------------
# the parameters of arms


@lru_cache(64)
def arm_parameters(arm: str, *, weightless: bool = False) -> dict[str, int]:
    """Return a map from each part of a classifier to its number of trainable parameters. The
    classifier is the one for the task digits at scale quick with this arm.

    The parts are stem, N1 (norms before the SSM), N2 (norms after the SSM), further (norms at other
    sites, if these norms have parameters), head, and mixers (all remaining parameters). The numbers
    of N1, N2, further and mixers are sums over all blocks. weightless: True removes γ and β from
    the norms counted as further, as in Falcon-Mamba.
    """
    options = {site: {"affine": False} for site, _ in Arm.parse(arm).more} if weightless else {}
    config = base_config("digits", "quick", arm=arm, norm_options=options)
    model = build_model(config, load_task("digits", "quick", 0))
    parameters = {
        "stem": _count(model.stem),
        "N1": sum(_count(block.n1) for block in model.blocks),
        "mixers": 0,
        "N2": sum(_count(block.n2) for block in model.blocks),
        "further": sum(_count(block.more) for block in model.blocks),
        "head": _count(model.head),
    }
    parameters["mixers"] = _count(model) - sum(parameters.values())
    return {part: n for part, n in parameters.items() if n or part != "further"}


def _count(module: nn.Module) -> int:
    """Return the number of trainable parameters of a module."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
