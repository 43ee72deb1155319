"""The registry as tables: what each norm is, and what it costs on this machine."""

from __future__ import annotations

import time

import pandas as pd
import torch

from mambanorm.block import MambaBlock
from mambanorm.norms.registry import NORMS, create_norm


def norm_table() -> pd.DataFrame:
    """The registry as a table: norm, axes, causal, learnable, parameters and buffers for 64 channels, source."""
    rows = []
    for name, entry in NORMS.items():
        norm = create_norm(name, 64)
        row = {"norm": name, "statistics over": " · ".join(entry.axes) or "–", "causal": entry.causal}
        row |= {"learns": entry.learnable, "parameters": sum(p.numel() for p in norm.parameters() if p.requires_grad)}
        row["buffers"] = sum(b.numel() for b in norm.buffers() if b.is_floating_point())
        rows.append(row | {"source": entry.source})
    return pd.DataFrame(rows).set_index("norm")


def readme_table() -> str:
    """The registry as the README's Markdown table; a test holds the two together."""
    lines = ["| norm | statistics over | causal | learns | source |", "|---|---|---|---|---|"]
    for name, entry in NORMS.items():
        cells = (
            f"`{name}`",
            " · ".join(entry.axes) or "–",
            "yes" if entry.causal else "no",
            entry.learnable,
            entry.source,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


GUIDE_CLAIMS = {
    "BN": "+2 %",
    "LN": "+3–5 %",
    "RMSN": "+2–3 %, and 15–20 % faster than LN",
    "GN": "+5–8 %",
    "IN": "+3–5 %",
}
"""What a widely read guide to normalization gives as the overhead of a norm over none, without saying of what model."""


def norm_costs(rows: int = 16, length: int = 128, channels: int = 64, repeats: int = 15) -> pd.DataFrame:
    """What each norm costs on this machine, cheapest first; forward plus backward on (rows, length, channels).

    Columns: norm; ms (median) and its ratio to LN with the quartiles low and high; parameters and buffers; overhead, by
    how much the norm as N1 makes a Mamba block of that width slower than none does (a fraction, with its quartiles);
    claimed, what the guide says. All norms are timed in turn, `repeats` times over, so that a busy moment meets all.
    """
    x = torch.randn(rows, length, channels, requires_grad=True)
    norms = {name: create_norm(name, channels) for name in NORMS}
    with torch.random.fork_rng(devices=[]):
        blocks = {name: MambaBlock(channels, name, "None") for name in NORMS}
    alone, steps = (_in_turn(modules, x, repeats) for modules in (norms, blocks))
    table = pd.DataFrame({"ms": 1e3 * alone.median()})
    table[["ratio", "low", "high"]] = _middle(alone.div(alone["LN"].median()))
    table = table.join(norm_table()[["parameters", "buffers"]])
    table[["overhead", "overhead_low", "overhead_high"]] = _middle(steps.div(steps["None"], axis=0) - 1)
    table["claimed"] = pd.Series(GUIDE_CLAIMS).reindex(table.index).fillna("–")
    return table.sort_values("ratio").rename_axis("norm").reset_index()


def _in_turn(modules: dict[str, torch.nn.Module], x: torch.Tensor, repeats: int) -> pd.DataFrame:
    """Seconds of each module's forward and backward pass, a row a round; the first two rounds are left out."""
    weight = torch.randn_like(x)
    rounds = [{name: _one_pass(m, x, weight) for name, m in modules.items()} for _ in range(repeats + 2)]
    return pd.DataFrame(rounds)[2:]


def _middle(times: pd.DataFrame) -> pd.DataFrame:
    """Median and quartiles of each column."""
    return times.quantile([0.5, 0.25, 0.75]).T


def _one_pass(module: torch.nn.Module, x: torch.Tensor, weight: torch.Tensor) -> float:
    start = time.perf_counter()
    module(x).backward(weight)
    return time.perf_counter() - start
