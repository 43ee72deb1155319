"""Records a model's weights during training, for Figure 10 and Appendix B of the paper.

A snapshot of all blocks is made at each evaluation. For each of the last steps, a ring buffer,
`ring`, holds the weights of out_proj and the sizes of the blocks' outputs. The spectrum of a weight
matrix is the list of its singular values σ_1 ≥ σ_2 ≥ …
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

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
from mambanorm_study.runs.result import StoredRun
from mambanorm_study.tasks import Split

# Part of a block → names of the part's parameters. Appendix B of the paper measures the weights of
# these four parts.
BLOCK_PARTS = {
    "in_proj": ("in_proj.weight",),
    "conv1d": ("conv1d.weight", "conv1d.bias"),
    "SSM": ("x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D"),
    "out_proj": ("out_proj.weight",),
}

# Class of a block → the four parts of such a block and their parameters.
PARTS: dict[type[nn.Module], dict[str, tuple[str, ...]]] = {
    # Δ, B and C of a Mamba-2 block come from in_proj
    Mamba2Block: {**BLOCK_PARTS, "SSM": ("dt_bias", "A_log", "D")},
    VSSBlock: {
        **BLOCK_PARTS,
        "conv1d": ("conv2d.weight", "conv2d.bias"),
        "SSM": ("x_proj_weight", "dt_projs_weight", "dt_projs_bias", "A_logs", "Ds"),
    },
    TransformerBlock: {
        "in_proj": ("attention.qkv.weight", "attention.qkv.bias"),
        "feed_forward in": ("feed_forward.0.weight", "feed_forward.0.bias"),
        "feed_forward out": ("feed_forward.2.weight", "feed_forward.2.bias"),
        "out_proj": ("attention.out_proj.weight", "attention.out_proj.bias"),
    },
    Block: BLOCK_PARTS,
}


def marchenko_pastur(shape: tuple[int, int], std: float) -> tuple[float, float]:
    """Return the smallest and largest expected singular value of a large random matrix.

    The entries of the matrix are independent, with standard deviation `std` (Marchenko & Pastur
    1967).
    """
    smaller, larger = sorted(math.sqrt(size) for size in shape)
    return std * (larger - smaller), std * (larger + smaller)


def sigma_history(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return all recorded spectra of out_proj: the steps (T,) and singular values (T, layers, k).

    arrays: `WeightLog.arrays()` or the diagnostics of a stored run.
    """
    prefixes = ("", "ring_") if "ring_step" in arrays else ("",)
    sigma = np.concatenate([arrays[f"{prefix}singular_values"] for prefix in prefixes])
    steps, first = np.unique(
        np.concatenate([arrays[f"{prefix}step"] for prefix in prefixes]), return_index=True
    )
    return steps, sigma[first]


def spectrum_at(arrays: Mapping[str, np.ndarray], step: float) -> np.ndarray:
    """Return out_proj's singular values (layers, k) at the recorded step nearest to `step`."""
    steps, sigma = sigma_history(arrays)
    return sigma[np.abs(steps - step).argmin()]


def part_norms(block: Block) -> list[float]:
    """Return the L2 norms of the weights of a block's four parts (Appendix B of the paper)."""
    parts = next(parts for kind, parts in PARTS.items() if isinstance(block, kind))
    return [
        float(torch.stack([block.get_parameter(name).detach().norm() for name in names]).norm())
        for names in parts.values()
    ]


class WeightLog:
    """Records snapshots of the weights during a run, and the last `ring_steps` steps in `ring`.

    The ring buffer shows the steps before a failure: for each step, the weights of out_proj after
    the step (Figure 10 of the paper) and the size of the blocks' outputs in the step's forward pass
    (Figure 9).
    """

    def __init__(self, model: nn.Module, ring_steps: int = 8):
        self.blocks = [block for _, block in blocks_of(model)]
        self.snapshots: list[dict[str, Tensor]] = []
        self.ring: deque[tuple[int, list[Tensor], Tensor]] = deque(maxlen=ring_steps)
        self.outputs = torch.full((len(self.blocks),), math.nan, dtype=torch.float64)

    @contextmanager
    def recording_outputs(self) -> Iterator[None]:
        """Inside the `with`, record the largest L2 norm of a token in each block's output.

        Each forward pass overwrites the values of the previous one, such as those of the previous
        micro-batch. Padding counts as tokens. The norm of a token with a non-finite value counts as
        infinite. Does not synchronize the device.
        """
        norms: dict[nn.Module, Tensor] = {}

        def record(block: nn.Module, _inputs: tuple, output: Tensor) -> None:
            # in float64, because squares may overflow in float32
            norms[block] = torch.linalg.vector_norm(output.detach(), dim=-1, dtype=torch.float64)

        with ExitStack() as hooks:
            for block in self.blocks:
                hooks.enter_context(block.register_forward_hook(record))
            yield
        self.outputs = torch.stack(
            [norms[block].nan_to_num_(math.inf, math.inf).amax() for block in self.blocks]
        )

    def record_step(self, step: int) -> None:
        """Append the step, out_proj's weights and the sizes of the blocks' outputs to `ring`.

        A full ring buffer drops its oldest step.
        """
        weights = [block.out_proj.weight.detach().clone() for block in self.blocks]
        # a copy, because a replayed CUDA graph writes each step's sizes into the same tensor
        self.ring.append((step, weights, self.outputs.clone()))

    def snapshot(self, step: int) -> None:
        """Append a snapshot: out_proj's spectra, `part_norms` and NormVary's mixture weights."""
        sigma = spectra([block.out_proj.weight for block in self.blocks])
        snapshot = {
            "step": torch.tensor(step),
            "singular_values": torch.from_numpy(sigma),
            "part_norms": torch.tensor(list(map(part_norms, self.blocks)), dtype=torch.float64),
        }
        mixtures = [
            torch.stack(norm.mixture_weights()).detach().cpu()
            for block in self.blocks
            for norm in (block.n1, block.n2)
            if isinstance(norm, NormVary)
        ]
        if mixtures:
            snapshot["mixture"] = torch.stack(mixtures)
        self.snapshots.append(snapshot)

    def state_dict(self) -> dict[str, Any]:
        """Return the snapshots and the ring buffer for a checkpoint."""
        return {"snapshots": self.snapshots, "ring": list(self.ring)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the snapshots and the ring buffer."""
        self.snapshots = state["snapshots"]
        self.ring.extend(state["ring"])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return everything recorded as named arrays, with T snapshots and R steps of the ring.

        Snapshots: step (T,), singular_values (T, layers, k), part_norms (T, layers, 4); with
        NormVary also mixture (T, norms, 2, members), the weights of the means and those of the
        variances. Ring: ring_step (R,), ring_singular_values (R, layers, k) and ring_outputs
        (R, layers), the largest L2 norm of a token in the block's output with the residual.
        """
        arrays = {
            name: torch.stack([snapshot[name].cpu() for snapshot in self.snapshots]).numpy()
            for name in self.snapshots[0]
        }
        if self.ring:
            steps, weights, outputs = zip(*self.ring, strict=True)
            arrays["ring_step"] = np.array(steps)
            arrays["ring_singular_values"] = np.stack([spectra(step) for step in weights])
            arrays["ring_outputs"] = torch.stack(outputs).cpu().numpy()
        return arrays


def mixture_moves(runs: Mapping[tuple[str, int], StoredRun]) -> pd.DataFrame:
    """Return how far NormVary's mixture weights moved from 1/5: one row per task and norm.

    runs: a map from (task, seed) to a run with NormVary. Columns: task; norm (its number in order
    of depth); mean_weights and var_weights (largest change of a weight of the means, and of a
    weight of the variances, from the start to the last snapshot, over the seeds); largest (the
    larger of these two); reach (change of a weight whose logit rises by the sum of all steps'
    learning rates while the four other logits fall by this sum: about the most that Adam can do).
    """
    rows = []
    for (task, _), run in runs.items():
        moves = np.abs(run.diagnostics["mixture"][-1] - 0.2).max(axis=-1)  # (norms, 2)
        reach = 1 / (1 + 4 * np.exp(-2 * run.curves.lr.sum())) - 0.2
        for depth, (mean, var) in enumerate(moves, start=1):
            rows.append(
                {
                    "task": task,
                    "norm": depth,
                    "mean_weights": mean,
                    "var_weights": var,
                    "largest": max(mean, var),
                    "reach": reach,
                }
            )
    return pd.DataFrame(rows).groupby(["task", "norm"], sort=False).max().reset_index()


# --------------------------------------------------------------------------------------------------
# the weights of a NormSelector: w₀ for DyT and 1 − w₀ for LN (source S2 of docs/sources.md, §IV.A)


@torch.no_grad()
def selector_weights(model: nn.Module, split: Split, rows: int = 256) -> pd.DataFrame:
    """Return a DataFrame of the weight w₀ of DyT, with one row per NormSelector and class.

    Columns: block (name of the norm that has the selector), depth (number of the block, from 1),
    label, w0 and sd (mean and standard deviation of w₀ over the tokens, without padding, of all
    rows with this label). The first `rows` rows of the split are used. The model runs in eval mode;
    its state is restored afterwards.
    """
    inputs, lengths, labels = split.batch(slice(0, min(rows, len(split))))
    device = next(model.parameters()).device
    with preserve_state(model), record_sites(model, ["selector"]) as recorder:
        model.eval()
        model(inputs.to(device), None if lengths is None else lengths.to(device))
    tables = []
    for name, depth, _, weights in recorder.values:
        w0 = weights[..., 0].double().cpu()  # (B, L)
        n_tokens = torch.full_like(labels, w0.shape[1]) if lengths is None else lengths
        is_token = torch.arange(w0.shape[1]) < n_tokens[:, None]
        row, _ = is_token.nonzero(as_tuple=True)
        tokens = pd.DataFrame({"label": labels[row].numpy(), "w0": w0[is_token].numpy()})
        tables.append(
            tokens.groupby("label")
            .w0.agg(w0="mean", sd="std")
            .reset_index()
            .assign(block=name, depth=depth)
        )
    return pd.concat(tables, ignore_index=True)[["block", "depth", "label", "w0", "sd"]]


def spectra(weights: Sequence[Tensor]) -> np.ndarray:
    """Return the singular values (layers, k) of one matrix per layer; NaN pads shorter spectra."""
    rows = [singular_values(weight) for weight in weights]
    k = max(map(len, rows))
    return np.stack([np.pad(row, (0, k - len(row)), constant_values=np.nan) for row in rows])
