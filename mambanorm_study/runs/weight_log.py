"""What happens to the weights while a model trains: the data of Figure 10 and of Appendix B. σ_i:
singular values."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.block import Block
from mambanorm.inside import blocks_of, preserve_state, record_sites, singular_values
from mambanorm.norms.normvary import NormVary
from mambanorm_study.models.mamba2 import Mamba2Block
from mambanorm_study.models.transformer import TransformerBlock
from mambanorm_study.models.vision import VSSBlock
from mambanorm_study.norms import NormSelector
from mambanorm_study.tasks import Split

BLOCK_PARTS = {
    "in_proj": ("in_proj.weight",),
    "conv1d": ("conv1d.weight", "conv1d.bias"),
    "SSM": ("x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D"),
    "out_proj": ("out_proj.weight",),
}
"""The four parts whose weights Appendix B measures."""

MAMBA2_PARTS = BLOCK_PARTS | {"SSM": ("dt_bias", "A_log", "D")}
"""The same parts of a Mamba-2 block, whose Δ, B and C come out of in_proj."""

IMAGE_BLOCK_PARTS = BLOCK_PARTS | {
    "conv1d": ("conv2d.weight", "conv2d.bias"),
    "SSM": ("x_proj_weight", "dt_projs_weight", "dt_projs_bias", "A_logs", "Ds"),
}
"""The same parts of a VSS block."""

TRANSFORMER_PARTS = {
    "in_proj": ("attention.qkv.weight", "attention.qkv.bias"),
    "feed_forward in": ("feed_forward.0.weight", "feed_forward.0.bias"),
    "feed_forward out": ("feed_forward.2.weight", "feed_forward.2.bias"),
    "out_proj": ("attention.out_proj.weight", "attention.out_proj.bias"),
}
"""The four parts of a Transformer block."""


def marchenko_pastur(shape: tuple[int, int], std: float) -> tuple[float, float]:
    """Smallest and largest singular value to expect of a random matrix whose entries have this std
    (large sizes)."""
    rows, columns = shape
    return tuple(float(std * abs(np.sqrt(rows) + sign * np.sqrt(columns))) for sign in (-1, 1))


def sigma_history(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All that a run kept of out_proj's spectrum, snapshots and ring together: steps (T,), values
    (T, layers, k)."""
    steps, sigma = arrays["step"], arrays["singular_values"]
    if "ring_step" in arrays:
        steps = np.concatenate([steps, arrays["ring_step"]])
        sigma = np.concatenate([sigma, arrays["ring_singular_values"]])
    steps, first = np.unique(steps, return_index=True)
    return steps, sigma[first]


def spectrum_at(arrays: Mapping[str, np.ndarray], step: float) -> np.ndarray:
    """Singular values (layers, k) of the kept step nearest to this one."""
    steps, sigma = sigma_history(arrays)
    return sigma[np.abs(steps - step).argmin()]


def spectrum_spread(sigma: np.ndarray) -> dict[str, float]:
    """Variance of the singular values (layers, k): within a layer (mean over layers), between
    layers (of their means), and σ_1 of the first and the last block."""
    within, between = float(np.nanvar(sigma, axis=1).mean()), float(np.nanmean(sigma, axis=1).var())
    return dict(
        within=within,
        between=between,
        sigma_1_first=float(sigma[0, 0]),
        sigma_1_last=float(sigma[-1, 0]),
    )


def part_norms(block: Block) -> list[float]:
    """L2 norms of in_proj, convolution, SSM and out_proj (Appendix B), each over all the part's
    weights; of a Transformer block those of TRANSFORMER_PARTS."""
    own = {
        VSSBlock: IMAGE_BLOCK_PARTS,
        Mamba2Block: MAMBA2_PARTS,
        TransformerBlock: TRANSFORMER_PARTS,
    }
    parts = next((found for kind, found in own.items() if isinstance(block, kind)), BLOCK_PARTS)
    parameters = dict(block.named_parameters())
    return [
        float(torch.stack([parameters[name].detach().norm() for name in names]).norm())
        for names in parts.values()
    ]


def mixtures_of(blocks: Iterable[Block]) -> dict[str, np.ndarray]:
    """`mixture`: NormVary's weights of the means and of the variances at N1 and N2, (norms, 2,
    members), by depth; empty where none is there."""
    mixtures = [
        torch.stack(n.mixture())
        for block in blocks
        for n in (block.n1, block.n2)
        if isinstance(n, NormVary)
    ]
    return {"mixture": torch.stack(mixtures).detach().cpu().numpy()} if mixtures else {}


class WeightLog:
    """What every run keeps of its inside: a snapshot of the weights now and then, and a ring of the
    last few steps.

    A failure is known only afterwards, so the ring is kept in every run. When a run ends or fails,
    its last steps are there: out_proj after each (Figure 10), and what the blocks gave in its
    forward pass (Figure 9).
    """

    def __init__(self, model: nn.Module, ring: int = 8):
        self.blocks = [block for _, block in blocks_of(model)]
        self.snapshots: list[dict[str, np.ndarray]] = []
        self.ring: deque[tuple[int, list[Tensor], Tensor]] = deque(maxlen=ring)
        self.outputs = torch.full(
            (len(self.blocks),), math.nan, dtype=torch.float64
        )  # NaN = not seen

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sees every block's output while open, of the last micro-batch: the largest token's ‖y‖₂.

        Padding counts as tokens. A token that is not finite counts as infinitely large, NaN as
        well. Nothing here waits for the device.
        """
        norms: dict[nn.Module, Tensor] = {}

        def see(
            block: nn.Module, _given: tuple, output: Tensor
        ) -> None:  # in float64, where squares do not overflow
            norms[block] = torch.linalg.vector_norm(output.detach(), dim=-1, dtype=torch.float64)

        hooks = [block.register_forward_hook(see) for block in self.blocks]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        self.outputs = torch.stack(
            [norms[block].nan_to_num_(math.inf, math.inf).amax() for block in self.blocks]
        )

    def turn(self, step: int) -> None:
        """Remembers out_proj as it is after this step, and the outputs that the step saw, dropping
        the oldest."""
        weights = [block.out_proj.weight.detach().clone() for block in self.blocks]
        self.ring.append((step, weights, self.outputs))

    def snapshot(self, step: int) -> None:
        """Spectra, part norms and mixture weights at this step."""
        self.snapshots.append(
            {
                "step": np.array(step),
                "singular_values": spectra([block.out_proj.weight for block in self.blocks]),
                "part_norms": np.array([part_norms(block) for block in self.blocks]),
                **mixtures_of(self.blocks),
            }
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """step (T,), singular_values (T, layers, k), part_norms (T, layers, 4), with a NormVary
        mixture (T, norms, 2, members); ring_step (R,), ring_singular_values (R, layers, k),
        ring_outputs (R, layers): the largest token's ‖y‖₂ after each block, residual stream
        included; NaN where a checkpoint of an earlier version did not keep it."""
        arrays = {
            key: np.stack([shot[key] for shot in self.snapshots]) for key in self.snapshots[0]
        }
        if self.ring:
            steps, weights, outputs = zip(*self.ring, strict=True)
            arrays["ring_step"] = np.array(steps)
            arrays["ring_singular_values"] = np.stack([spectra(step) for step in weights])
            arrays["ring_outputs"] = torch.stack(outputs).cpu().numpy()
        return arrays


def mixture_moves(runs: Mapping[tuple[str, int], object]) -> pd.DataFrame:
    """How far NormVary's weights got from 1/5: one row a task and norm by depth, over the seeds.

    runs: (task, seed) → StoredRun with a mixture. Columns: mean_weights, var_weights (largest
    departure at the last snapshot, any seed), largest (of both), reach: the departure of one weight
    if its logit rose, and the others fell, by the sum of the learning rates, which is about as far
    as Adam can carry a logit.
    """
    rows = []
    for (task, _), run in runs.items():
        moves = np.abs(run.diagnostics["mixture"][-1] - 0.2).max(axis=-1)  # (norms, 2)
        travel = float(run.curves.lr.sum())
        reach = 1 / (1 + 4 * np.exp(-2 * travel)) - 0.2
        rows += [
            dict(task=task, norm=i, mean_weights=m, var_weights=v, largest=max(m, v), reach=reach)
            for i, (m, v) in enumerate(moves, start=1)
        ]
    return pd.DataFrame(rows).groupby(["task", "norm"], sort=False).max().reset_index()


# --------------------------------------------------------------------------------------------------
# What a NormSelector chooses: w₀, the weight of DyT; 1 − w₀ is LN's (S2, §IV.A)
# --------------------------------------------------------------------------------------------------

ROWS = 256  # of a split are looked at, the first ones


@torch.no_grad()
def selector_weights(model: nn.Module, split: Split, rows: int = ROWS) -> pd.DataFrame:
    """One row a selector and class: block (its name), depth, label, w0 (mean over tokens, of no
    padding), sd. In eval mode; the model is left as it was found. ValueError for a regression and
    for a model without a NormSelector."""
    if split.is_regression:
        raise ValueError("a regression has no classes")
    inputs, lengths, labels = split.batch(slice(0, min(rows, len(split))))
    device = next(model.parameters()).device
    if not any(isinstance(part, NormSelector) for part in model.modules()):
        raise ValueError(
            f"{type(model).__name__} has no NormSelector in its blocks: choose an arm with one"
        )
    with preserve_state(model), record_sites(model, ["selector"]) as seen:
        model.eval()
        model(inputs.to(device), None if lengths is None else lengths.to(device))
    tables = []
    for name, depth, _, w in seen.seen:
        w0 = w[..., 0].double().cpu()
        B, L = w0.shape
        valid = (
            torch.ones(B, L, dtype=torch.bool)
            if lengths is None
            else torch.arange(L) < lengths[:, None]
        )
        frame = pd.DataFrame(
            {"label": labels[:, None].expand(B, L)[valid].numpy(), "w0": w0[valid].numpy()}
        )
        frame = frame.groupby("label").w0.agg(w0="mean", sd="std").reset_index()
        tables.append(frame.assign(block=name, depth=depth))
    return pd.concat(tables, ignore_index=True)[["block", "depth", "label", "w0", "sd"]]


def spectra(weights: Sequence[Tensor]) -> np.ndarray:
    """Return the singular values of each matrix, (layers, k); smaller matrices end in NaN."""
    rows = [singular_values(weight) for weight in weights]
    k = max(map(len, rows))
    return np.stack([np.pad(row, (0, k - len(row)), constant_values=np.nan) for row in rows])
