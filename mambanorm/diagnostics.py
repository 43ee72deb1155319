"""Looking inside: hooks in, data out. Nothing here trains, plots or prints.

- `record(model)` sees every site of every block (block.SITES) while it is open, and gives a frame or raw tensors.
- `token_norms` is the data of Figure 9, `WeightLog` that of Figure 10 and Appendix B, kept by every training run.
- `weight_table` describes each parameter, `spike_score` a loss curve.

Glossary: σ_i singular values, stable rank ‖W‖_F²/σ_1², effective rank exp(entropy of σ_i/Σσ).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.block import SITES, MambaBlock
from mambanorm.norms import NormVary
from mambanorm.vision import VSSBlock

BLOCK_PARTS = {
    "in_proj": ("in_proj.weight",),
    "conv1d": ("conv1d.weight", "conv1d.bias"),
    "SSM": ("x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D"),
    "out_proj": ("out_proj.weight",),
}
"""The four parts whose weights Appendix B measures."""

IMAGE_BLOCK_PARTS = BLOCK_PARTS | {
    "conv1d": ("conv2d.weight", "conv2d.bias"),
    "SSM": ("x_proj_weight", "dt_projs_weight", "dt_projs_bias", "A_logs", "Ds"),
}
"""The same parts of a VSS block."""


def blocks_of(model: nn.Module) -> list[tuple[str, MambaBlock | VSSBlock]]:
    """Names and blocks in order of depth."""
    return [(name, module) for name, module in model.named_modules() if isinstance(module, MambaBlock | VSSBlock)]


class Recorder:
    """What `record` has seen: one entry a block and site, in the order of computation."""

    def __init__(self, sites: Iterable[str]):
        self.sites = frozenset(sites)
        self.seen: list[tuple[str, int, str, Tensor]] = []

    def watch(self, name: str, depth: int):
        """The observer of one block."""

        def observe(site: str, value: Tensor) -> None:
            if site in self.sites:
                self.seen.append((name, depth, site, value.detach()))

        return observe

    def tensors(self, site: str) -> list[Tensor]:
        """That site's tensors, by depth."""
        return [value for _, _, seen, value in self.seen if seen == site]

    def frame(self, lengths: Tensor | None = None) -> pd.DataFrame:
        """One row a block and site: rms, max_abs, p999, kurtosis (normal = 3), nonfinite (fraction).

        With `lengths` the padding is left out. The first four describe the finite values.
        """
        rows = []
        for name, depth, site, value in self.seen:
            valid = value if lengths is None else torch.cat([row[:n] for row, n in zip(value, lengths, strict=True)])
            rows.append({"block": name, "depth": depth, "site": site, **describe(valid)})
        return pd.DataFrame(rows)

    def first_nonfinite(self) -> str | None:
        """`blocks.3.scan`: the first site in the order of computation that holds a non-finite value."""
        return next((f"{name}.{site}" for name, _, site, value in self.seen if not value.isfinite().all()), None)


@contextmanager
def record(model: nn.Module, sites: Iterable[str] = SITES) -> Iterator[Recorder]:
    """Records the named sites of every block while open; the blocks run their unfused twin meanwhile.

    Raises ValueError if the model has no Mamba or VSS block or a site is unknown.
    """
    sites = tuple(sites)
    unknown_sites = set(sites) - set(SITES)
    if unknown_sites:
        raise ValueError(f"unknown sites {sorted(unknown_sites)}: valid are {', '.join(SITES)}")
    blocks = blocks_of(model)
    if not blocks:
        raise ValueError(f"{type(model).__name__} holds no MambaBlock or VSSBlock: there is nothing to record")
    recorder = Recorder(sites)
    before = [block.observer for _, block in blocks]
    for depth, (name, block) in enumerate(blocks, start=1):
        block.observer = recorder.watch(name, depth)
    try:
        yield recorder
    finally:
        for (_, block), observer in zip(blocks, before, strict=True):
            block.observer = observer


def describe(value: Tensor) -> dict[str, float]:
    """RMS, largest magnitude, 99.9 % quantile of the magnitude, kurtosis and share of non-finite values."""
    flat = value.detach().double().flatten().cpu().numpy()
    finite = flat[np.isfinite(flat)]
    nonfinite = 1.0 - finite.size / max(flat.size, 1)
    if not finite.size:
        return dict(rms=np.nan, max_abs=np.nan, p999=np.nan, kurtosis=np.nan, nonfinite=nonfinite)
    centred = finite - finite.mean()
    var = np.mean(centred**2)
    return dict(
        rms=float(np.sqrt(np.mean(finite**2))),
        max_abs=float(np.abs(finite).max()),
        p999=float(np.quantile(np.abs(finite), 0.999)),
        kurtosis=float(np.mean(centred**4) / var**2) if var > 0 else np.nan,
        nonfinite=nonfinite,
    )


@torch.no_grad()
def token_norms(model: nn.Module, x: Tensor, lengths: Tensor | None = None) -> pd.DataFrame:
    """Per-token L2 norms by depth (Figure 9): columns depth, site (branch | residual), l2; one row a valid token.

    The model keeps its mode: call `.train()` or `.eval()` first, for with BN they differ. Buffers are left as found.
    """
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with record(model, ("branch", "residual")) as seen:
        model(x, lengths)
    for name, value in model.named_buffers():
        value.copy_(buffers[name])
    rows = []
    for _, depth, site, value in seen.seen:
        l2 = value.double().norm(dim=-1)
        l2 = l2.flatten() if lengths is None else torch.cat([row[:n] for row, n in zip(l2, lengths, strict=True)])
        rows.append(pd.DataFrame({"depth": depth, "site": site, "l2": l2.cpu().numpy()}))
    return pd.concat(rows, ignore_index=True)


def norms_by_depth(
    models: Mapping[str, nn.Module], x: Tensor, lengths: Tensor | None = None, *, phase: str = "initial"
) -> pd.DataFrame:
    """`token_norms` of several models (by arm) in train and in eval mode: adds arm, mode, phase, n_layers.

    This is what `figures.fig_token_norms` draws. Every model keeps its mode and its buffers.
    """
    frames = []
    for arm, model in models.items():
        was, n_layers = model.training, len(blocks_of(model))
        for mode in ("train", "eval"):
            frame = token_norms(model.train(mode == "train"), x, lengths)
            frames.append(frame.assign(arm=arm, mode=mode, phase=phase, n_layers=n_layers))
        model.train(was)
    return pd.concat(frames, ignore_index=True)


GROWTH_LAWS = {
    "flat": lambda d: np.zeros_like(d),
    "exponential (log y ~ l)": lambda d: d,
    "power law (log y ~ log l)": np.log,
    "faster (log y ~ l²)": np.square,
}


def growth_fits(depth: np.ndarray, log_y: np.ndarray) -> pd.DataFrame:
    """How log y grows with depth l: least squares of log y on nothing, l, log l and l², compared by AIC.

    Returns one row a law, best first: law, slope, r2, aic, and delta_aic from the best. Needs at least four depths.
    """
    depth, log_y = np.asarray(depth, float), np.asarray(log_y, float)
    if len(np.unique(depth)) < 4:
        raise ValueError(f"a growth law needs at least 4 depths to be told from another, got {len(np.unique(depth))}")
    rows = []
    for law, transform in GROWTH_LAWS.items():
        t = transform(depth)
        columns = np.stack([np.ones_like(t), t], 1)[:, : 1 if law == "flat" else 2]
        coefficients, *_ = np.linalg.lstsq(columns, log_y, rcond=None)
        residual = max(float(np.sum((log_y - columns @ coefficients) ** 2)), 1e-300)
        total = float(np.sum((log_y - log_y.mean()) ** 2))
        aic = len(log_y) * np.log(residual / len(log_y)) + 2 * (columns.shape[1] + 1)
        slope = 0.0 if law == "flat" else float(coefficients[1])
        rows.append({"law": law, "slope": slope, "r2": 1 - residual / total if total else np.nan, "aic": aic})
    fits = pd.DataFrame(rows).sort_values("aic", ignore_index=True)
    return fits.assign(delta_aic=fits.aic - fits.aic.iloc[0])


def growth_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a phase, arm, mode, n_layers and site of a `norms_by_depth` frame: how the median token's norm grows.

    Columns: law (best by AIC; "–" below four blocks or where a block is not finite), r2 of it, decades_per_8 (slope of
    log10 of the median, times 8 blocks, over the finite blocks), nonfinite (share of all tokens).
    """
    rows = []
    for key, tokens in frame.groupby(["phase", "arm", "mode", "n_layers", "site"], sort=False):
        median = tokens.groupby("depth").l2.median()
        median = np.log10(median[median > 0])
        finite = median[np.isfinite(median)]
        fits = growth_fits(finite.index, finite) if len(finite) == len(median) >= 4 else None
        facts = {"law": "–", "r2": np.nan} if fits is None else fits.loc[0, ["law", "r2"]].to_dict()
        facts["decades_per_8"] = 8 * np.polyfit(finite.index, finite, 1)[0] if len(finite) > 1 else np.nan
        facts["nonfinite"] = 1 - np.isfinite(tokens.l2).mean()
        rows.append(dict(zip(("phase", "arm", "mode", "n_layers", "site"), key, strict=True)) | facts)
    return pd.DataFrame(rows)


def singular_values(weight: Tensor) -> np.ndarray:
    """Sorted singular values, largest first; NaN where the weight is not finite."""
    weight = weight.detach().double().cpu()
    if not weight.isfinite().all():
        return np.full(min(weight.shape), np.nan)
    return torch.linalg.svdvals(weight).numpy()


def marchenko_pastur(shape: tuple[int, int], std: float) -> tuple[float, float]:
    """Smallest and largest singular value to expect of a random matrix with entries of that spread (large sizes)."""
    rows, columns = shape
    return tuple(float(std * abs(np.sqrt(rows) + sign * np.sqrt(columns))) for sign in (-1, 1))


def spectrum_facts(sigma: np.ndarray) -> dict[str, float]:
    """σ_1, Frobenius norm, stable rank and effective rank (exp of the entropy) from singular values."""
    total = sigma.sum()
    share = sigma[sigma > 0] / total if total > 0 else np.array([1.0])
    frobenius = float(np.sqrt(np.sum(sigma**2)))
    return dict(
        sigma_1=float(sigma[0]),
        frobenius=frobenius,
        stable_rank=(frobenius / sigma[0]) ** 2 if sigma[0] > 0 else np.nan,
        effective_rank=float(np.exp(-np.sum(share * np.log(share)))),
    )


def sigma_history(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """All that a run kept of out_proj's spectrum, snapshots and ring together: steps (T,), values (T, layers, k)."""
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
    """Variance of the singular values (layers, k): within a layer (mean over layers), between layers (of their means),
    and σ_1 of the first and the last block."""
    within, between = float(sigma.var(axis=1).mean()), float(sigma.mean(axis=1).var())
    return dict(within=within, between=between, sigma_1_first=float(sigma[0, 0]), sigma_1_last=float(sigma[-1, 0]))


def weight_table(model: nn.Module, before: dict[str, Tensor] | None = None) -> pd.DataFrame:
    """One row a parameter: Frobenius norm, gradient norm, and for matrices σ_1, stable and effective rank.

    `before` (an earlier state_dict) adds relative_update = ‖W − W_before‖/‖W_before‖.
    """
    rows = []
    for name, parameter in model.named_parameters():
        matrix = parameter.detach().flatten(1) if parameter.dim() > 1 else None
        row = {"parameter": name, "frobenius": float(parameter.detach().norm())}
        row["gradient_norm"] = float(parameter.grad.norm()) if parameter.grad is not None else np.nan
        if matrix is not None:
            row |= spectrum_facts(singular_values(matrix))
        if before is not None:
            old = before[name].to(parameter)
            row["relative_update"] = float((parameter.detach() - old).norm() / old.norm().clamp(min=1e-30))
        rows.append(row)
    return pd.DataFrame(rows)


def part_norms(block: MambaBlock | VSSBlock) -> list[float]:
    """L2 norms of in_proj, convolution, SSM and out_proj (Appendix B), each over all the part's weights."""
    parts = IMAGE_BLOCK_PARTS if isinstance(block, VSSBlock) else BLOCK_PARTS
    parameters = dict(block.named_parameters())
    return [float(torch.stack([parameters[name].detach().norm() for name in names]).norm()) for names in parts.values()]


class WeightLog:
    """What every run keeps of its weights: a snapshot now and then, and a ring of the last few steps.

    Failure is known only afterwards, so the ring always turns: when a run ends, wanted or not, the steps just before
    the end are there (Figure 10).
    """

    def __init__(self, model: nn.Module, ring: int = 8):
        self.blocks = [block for _, block in blocks_of(model)]
        self.adaptive = [m for block in self.blocks for m in (block.n1, block.n2) if isinstance(m, NormVary)]
        self.snapshots: list[dict[str, np.ndarray]] = []
        self.ring: deque[tuple[int, list[Tensor]]] = deque(maxlen=ring)

    def turn(self, step: int) -> None:
        """Remembers out_proj as it is at this step, dropping the oldest."""
        self.ring.append((step, [block.out_proj.weight.detach().clone() for block in self.blocks]))

    def snapshot(self, step: int) -> None:
        """Spectra, part norms and mixture weights at this step."""
        mixtures = [torch.stack(norm.mixture()).detach().cpu().numpy() for norm in self.adaptive]
        self.snapshots.append(
            {
                "step": np.array(step),
                "singular_values": np.stack([singular_values(block.out_proj.weight) for block in self.blocks]),
                "part_norms": np.array([part_norms(block) for block in self.blocks]),
                **({"mixture": np.stack(mixtures)} if mixtures else {}),
            }
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """step (T,), singular_values (T, layers, k), part_norms (T, layers, 4), mixture (T, norms, 2, 5) if any;
        ring_step (R,), ring_singular_values (R, layers, k)."""
        arrays = {key: np.stack([shot[key] for shot in self.snapshots]) for key in self.snapshots[0]}
        if self.ring:
            arrays["ring_step"] = np.array([step for step, _ in self.ring])
            arrays["ring_singular_values"] = np.stack(
                [np.stack([singular_values(weight) for weight in weights]) for _, weights in self.ring]
            )
        return arrays


def mixture_moves(runs: Mapping[tuple[str, int], object]) -> pd.DataFrame:
    """How far NormVary's weights got from 1/5: one row a task and norm by depth, over the seeds.

    runs: (task, seed) → StoredRun with a mixture. Columns: mean_weights, var_weights (largest departure at the last
    snapshot, any seed), largest (of both), reach: the departure of one weight if its logit rose, and the others fell,
    by the sum of the learning rates, which is about as far as Adam can carry a logit.
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


def spike_score(loss: np.ndarray, window: int = 50, sigmas: float = 7.0) -> float:
    """Share of steps whose loss lies more than `sigmas` standard deviations above the trailing window's mean.

    After the spike score of OLMo 2 (2024), whose window is 1,000. A non-finite loss is a spike; the first window is
    not judged.
    """
    loss = np.asarray(loss, float)
    judged = range(window, len(loss))
    spikes = [not loss[i] <= loss[i - window : i].mean() + sigmas * loss[i - window : i].std() for i in judged]
    return float(np.mean(spikes)) if spikes else 0.0
