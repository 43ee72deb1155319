"""The registry as tables: what each norm is, and what it costs on this machine."""

from __future__ import annotations

import time

import pandas as pd
import torch

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


def norm_costs(rows: int = 16, length: int = 128, channels: int = 64, repeats: int = 15) -> pd.DataFrame:
    """Time of each norm, forward plus backward, on this machine: norm, ms (median), ratio to LN, low and high.

    The norms are timed in turn, `repeats` times over, so that a busy moment meets them all; low and high are the
    quartiles of the ratio. Cheapest first.
    """
    x = torch.randn(rows, length, channels, requires_grad=True)
    norms = {name: create_norm(name, channels) for name in NORMS}
    times = pd.DataFrame([{name: _one_pass(norm, x) for name, norm in norms.items()} for _ in range(repeats + 2)])[2:]
    ratios = times.div(times["LN"].median())
    quartiles = ratios.quantile([0.25, 0.75])
    table = pd.DataFrame({"ms": 1e3 * times.median(), "ratio": ratios.median(), "low": quartiles.loc[0.25]})
    return table.assign(high=quartiles.loc[0.75]).sort_values("ratio").rename_axis("norm").reset_index()


def _one_pass(norm: torch.nn.Module, x: torch.Tensor) -> float:
    start = time.perf_counter()
    norm(x).sum().backward()
    return time.perf_counter() - start
