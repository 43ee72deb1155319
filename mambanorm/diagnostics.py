"""Looking inside: hooks in, data out. Nothing here trains, plots or prints.

- `record(model)` sees every site of every block (block.SITES) while it is open, and gives a frame or raw tensors.
- `token_norms` is the data of Figure 9, `WeightLog` that of Figure 10 and Appendix B, kept by every training run.
- `norm_quantiles`, `growth` and `growth_table` say what those norms do over depth; the verdicts use the same functions.
- `weight_table` describes each parameter, `spike_score` a loss curve.

Glossary: σ_i singular values, stable rank ‖W‖_F²/σ_1², effective rank exp(entropy of σ_i/Σσ).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.model.block import SITES, MambaBlock
from mambanorm.model.language import LanguageModel
from mambanorm.model.vision import VSSBlock
from mambanorm.norms import NormVary

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
        raise ValueError(
            f"{type(model).__name__} holds no MambaBlock or VSSBlock, so there is nothing to record: a Mamba language "
            "model of mamba-ssm or transformers becomes one of this kit by load_mamba_checkpoint(model.state_dict())"
        )
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


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Gives the model its mode and its buffers back, whatever happens inside."""
    training = {module: module.training for module in model.modules()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
        for name, value in model.named_buffers():
            value.copy_(buffers[name])


@torch.no_grad()
def token_norms(model: nn.Module, x: Tensor, lengths: Tensor | None = None) -> pd.DataFrame:
    """Per-token L2 norms by depth (Figure 9): columns depth, site (branch | residual), l2; one row a valid token.

    Takes every model of the kit and its inputs. A LanguageModel is run without `lengths`, for its norms are causal and
    so padding behind a text changes nothing; the padding is left out of the rows all the same. The model keeps its
    mode: call `.train()` or `.eval()` first, for with BN they differ. Buffers are left as found.
    """
    with left_as_found(model), record(model, ("branch", "residual")) as seen:
        model(x) if lengths is None or isinstance(model, LanguageModel) else model(x, lengths)
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
        facts = dict(arm=arm, phase=phase, n_layers=len(blocks_of(model)))
        with left_as_found(model):
            for mode in ("train", "eval"):
                frames.append(token_norms(model.train(mode == "train"), x, lengths).assign(mode=mode, **facts))
    return pd.concat(frames, ignore_index=True)


# ---------------------------------------------------------------------------------------------------------------------
# What the norms do over depth
# ---------------------------------------------------------------------------------------------------------------------

EXPONENTIAL = "exponential (log y ~ l)"
GROWTH_LAWS = {
    "flat": lambda d: np.zeros_like(d),
    EXPONENTIAL: lambda d: d,
    "power law (log y ~ log l)": np.log,
    "faster (log y ~ l²)": np.square,
}

FLAT = 0.25
"""Decades in 8 blocks (a factor of 1.8) up to which a slope is negligible: outputs are flat, and no law is named.

No block need multiply what it gets for so little: a plain sum of independent, equally large branches grows as √l, which
is 0.27 decades in 8 blocks over 16 blocks and 0.19 over 24. The verdict on Figure 9 has the same threshold.
"""

FLOAT32_DECADES = 38.0
"""Above 1, float32 ends after so many: a growth that left its range was at least as large."""

TAILS = {"90 %": 0.9, "99.9 %": 0.999, "largest": 1.0}


def norm_quantiles(tokens: pd.DataFrame) -> pd.DataFrame:
    """‖y‖₂ by depth of the tokens of one site: columns median, 90 %, 99.9 %, largest, and nonfinite (share of tokens).

    A token that is not finite counts as infinitely large, NaN as well: leaving it out would describe the survivors. The
    tails are norms of tokens that are there, nothing is interpolated.
    """
    l2 = tokens.l2.where(np.isfinite(tokens.l2), np.inf).groupby(tokens.depth)
    tails = {name: l2.quantile(q, interpolation="higher") for name, q in TAILS.items()}
    return pd.DataFrame({"median": l2.median(), **tails, "nonfinite": l2.agg(lambda norms: np.isinf(norms).mean())})


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


def growth(y: pd.Series) -> dict[str, str | float]:
    """How a norm grows with depth, its index: law, r2, decades_per_8, margin.

    law            the best by AIC (GROWTH_LAWS), r2 its fit. Otherwise no law is named, and r2 is NaN: "flat" where the
                   slope is negligible (FLAT) and no block lies far off, "no trend" where one does or no law beats a
                   constant, "explodes (non-finite from block k)", "vanishes (0 in block k)", "–" below four blocks
    decades_per_8  slope of log₁₀ y on depth, times 8 blocks. Where a block is not finite: float32's whole range over
                   the blocks, which is a lower bound
    margin         AIC of the best other law minus that of the exponential: above 0 = exponential; 0 = cannot be told
    """
    if not (finite := np.isfinite(y)).all():
        law = f"explodes (non-finite from block {y.index[~finite][0]})"
        return dict(law=law, r2=np.nan, decades_per_8=8 * FLOAT32_DECADES / len(y), margin=0.0)
    if (y == 0).any():
        return dict(law=f"vanishes (0 in block {y.index[y == 0][0]})", r2=np.nan, decades_per_8=np.nan, margin=0.0)
    log_y = np.log10(y)
    if len(y) < 4:
        slope = np.polyfit(y.index, log_y, 1)[0] if len(y) > 1 else np.nan
        return dict(law="–", r2=np.nan, decades_per_8=float(8 * slope), margin=0.0)
    fits = growth_fits(log_y.index, log_y)
    best, by_law = fits.iloc[0], fits.set_index("law")
    decades = float(8 * by_law.slope[EXPONENTIAL])
    margin = float(by_law.aic.drop(EXPONENTIAL).min() - by_law.aic[EXPONENTIAL])
    law = best.law if best.law != "flat" and abs(decades) > FLAT else "no trend"
    if abs(decades) <= FLAT and np.ptp(log_y) <= FLAT * max(len(y) / 8, 1):
        law = "flat"
    return dict(law=law, r2=best.r2 if law == best.law != "flat" else np.nan, decades_per_8=decades, margin=margin)


MODEL_KEYS = ("task", "phase", "arm", "mode", "n_layers", "site")


def growth_table(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a phase, arm, mode, n_layers and site (and task, if the frame has that column) of `norms_by_depth`.

    Columns: `growth` of the median token's norm (law, r2, decades_per_8), log₁₀ of the median's and of the largest
    token's norm in the first and in the last block (inf where not finite), nonfinite (share of all tokens).
    """
    keys = [key for key in MODEL_KEYS if key in frame]
    rows = []
    for key, tokens in frame.groupby(keys, sort=False):
        norms = norm_quantiles(tokens)
        facts = growth(norms["median"])
        del facts["margin"]
        with np.errstate(divide="ignore"):  # a norm of 0 is −inf decades
            ends = np.log10(norms.iloc[[0, -1]])
        for name in ("median", "largest"):
            facts |= {f"{name}_first": ends[name].iloc[0], f"{name}_last": ends[name].iloc[-1]}
        rows.append(dict(zip(keys, key, strict=True)) | facts | {"nonfinite": 1 - np.isfinite(tokens.l2).mean()})
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


def spectra(weights: Sequence[Tensor]) -> np.ndarray:
    """Singular values of each matrix, (layers, k); behind those of a smaller matrix, as down-sampling has, NaN."""
    rows = [singular_values(weight) for weight in weights]
    k = max(map(len, rows))
    return np.stack([np.pad(row, (0, k - len(row)), constant_values=np.nan) for row in rows])


def spectrum_spread(sigma: np.ndarray) -> dict[str, float]:
    """Variance of the singular values (layers, k): within a layer (mean over layers), between layers (of their means),
    and σ_1 of the first and the last block."""
    within, between = float(np.nanvar(sigma, axis=1).mean()), float(np.nanmean(sigma, axis=1).var())
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
                "singular_values": spectra([block.out_proj.weight for block in self.blocks]),
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
            arrays["ring_singular_values"] = np.stack([spectra(weights) for _, weights in self.ring])
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
