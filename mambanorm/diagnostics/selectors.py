"""What a NormSelector chooses: w₀, the weight of DyT; 1 − w₀ is LN's (S2, §IV.A).

selector_weights    a model on a split → w₀ by layer, class and position
SelectorLog         the same while a model trains: train(config, on_step=SelectorLog(split, every=20))
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import nn

from mambanorm.diagnostics.recording import left_as_found, record_sites
from mambanorm.tasks import Split

ROWS = 256  # of a split are looked at, the first ones


@torch.no_grad()
def selector_weights(model: nn.Module, split: Split, by: str = "label", rows: int = ROWS) -> pd.DataFrame:
    """One row a selector and class (`by="label"`) or position (`by="position"`): block (its name), depth, that column,
    w0 (mean over tokens, of no padding), sd. In eval mode; the model is left as it was found.

    ValueError for another `by`, for classes of a regression, and for a model without a NormSelector."""
    if by not in ("label", "position"):
        raise ValueError(f"by must be 'label' or 'position', got {by!r}")
    if by == "label" and split.is_regression:
        raise ValueError("a regression has no classes: say by='position'")
    inputs, lengths, labels = split.batch(slice(0, min(rows, len(split))))
    device = next(model.parameters()).device
    with left_as_found(model), record_sites(model, ["selector"]) as seen:
        model.eval()
        model(inputs.to(device), None if lengths is None else lengths.to(device))
    if not seen.seen:
        raise ValueError(f"{type(model).__name__} has no NormSelector in its blocks: choose an arm with one")
    tables = []
    for name, depth, _, w in seen.seen:
        w0 = w[..., 0].double().cpu()
        B, L = w0.shape
        valid = torch.ones(B, L, dtype=torch.bool) if lengths is None else torch.arange(L) < lengths[:, None]
        key = labels[:, None].expand(B, L) if by == "label" else torch.arange(L).expand(B, L)
        frame = pd.DataFrame({by: key[valid].numpy(), "w0": w0[valid].numpy()}).groupby(by).w0.agg(w0="mean", sd="std")
        tables.append(frame.reset_index().assign(block=name, depth=depth))
    return pd.concat(tables, ignore_index=True)[["block", "depth", by, "w0", "sd"]]


class SelectorLog:
    """Keeps `selector_weights` every few steps, and at the first. `frame()`: with the column step."""

    def __init__(self, split: Split, every: int = 20, by: str = "label"):
        self.split, self.every, self.by, self.tables = split, every, by, []

    def __call__(self, step: int, model: nn.Module, loss: float) -> None:
        if step == 1 or step % self.every == 0:
            self.tables.append(selector_weights(model, self.split, self.by).assign(step=step))

    def frame(self) -> pd.DataFrame:
        """ValueError before the first step."""
        if not self.tables:
            raise ValueError("no step was seen yet: give it to train(config, on_step=…)")
        return pd.concat(self.tables, ignore_index=True)
