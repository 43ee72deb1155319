"""The overhead of a norm: time and memory of a CNN, an LSTM and a Transformer with and without it.

S4 has a table of "normalization overhead (relative to no normalization)" at inference, without a
model, a device or a batch (CLAIMED). Here each norm is in three small models, where S4 puts it, and
is timed in inference and in training. S4 counts a norm's parameters as its memory; here its memory
is that of the activations, which a training step keeps from the forward to the backward pass.

The norms are torch's own layers, as in S4. All norms of a model are timed in turn, in a new order
in each round, so that a machine that slows down slows all norms down. An overhead is the time with
a norm relative to the time without one in the same round.

`python -m mambanorm_study.lessons.overheads` measures for about two minutes, on one thread, and
writes data/results/overheads.csv.

Symbols: B rows, C channels, H × W pixels, L positions, D width.
"""

import random
from functools import partial
from time import perf_counter

import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.kernels.threads import exactly_threads
from mambanorm_study.models.transformer import Attention
from mambanorm_study.runs.machine import machine, versions
from mambanorm_study.runs.recorded_results import RESULTS
from mambanorm_study.tables.norm_catalog import saved_bytes

RECORDED, ROUNDS = RESULTS / "overheads.csv", 30
# Norm → the smallest and the largest overhead at inference, in per cent (S4, "Performance Impact").
CLAIMED = {"BN": (2, 2), "LN": (3, 5), "RMSN": (2, 3), "GN": (5, 8), "IN": (3, 5)}
C, SIZE = 64, 32  # channels, and height and width, of the CNN's feature maps
L, D, GROUPS = 128, 256, 32  # positions and width of the sequences; groups of GN, as in S4


class Transpose(nn.Module):
    """Exchanges positions and channels: (B, L, D) → (B, D, L), and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mT


# Norm → a function that returns torch's layer: IMAGE_NORMS for feature maps (B, C, SIZE, SIZE),
# SEQUENCE_NORMS for sequences (B, L, D). On sequences LN and RMSN normalize each position, and GN
# and IN include two transpositions, because torch's layers need (B, D, L).
IMAGE_NORMS = {
    "None": nn.Identity,
    "BN": lambda: nn.BatchNorm2d(C),
    "LN": lambda: nn.LayerNorm((C, SIZE, SIZE)),
    "RMSN": lambda: nn.RMSNorm((C, SIZE, SIZE)),
    "GN": lambda: nn.GroupNorm(GROUPS, C),
    "IN": lambda: nn.InstanceNorm2d(C, affine=True),
}
SEQUENCE_NORMS = {
    "None": nn.Identity,
    "BN": lambda: nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(D), nn.Unflatten(0, (-1, L))),
    "LN": lambda: nn.LayerNorm(D),
    "RMSN": lambda: nn.RMSNorm(D),
    "GN": lambda: nn.Sequential(Transpose(), nn.GroupNorm(GROUPS, D), Transpose()),
    "IN": lambda: nn.Sequential(Transpose(), nn.InstanceNorm1d(D, affine=True), Transpose()),
}


class LstmOutputs(nn.LSTM):
    """An LSTM layer that returns its outputs alone: (B, L, D) → (B, L, D)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


class Residual(nn.Sequential):
    """Adds the input to the output of a sequence of layers."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def transformer_block(norm: str) -> nn.Module:
    """Return a Transformer layer with pre-norm and four heads: (B, L, D) → the same shape."""
    feed_forward = nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)
    attention = Residual(SEQUENCE_NORMS[norm](), Attention(D, 4))
    return nn.Sequential(attention, Residual(SEQUENCE_NORMS[norm](), *feed_forward))


# Model → a function of the norm that returns one of its blocks (input and output have one shape),
# the number of blocks, and the shape of the input.
MODELS = {
    "CNN": (
        lambda norm: nn.Sequential(nn.Conv2d(C, C, 3, padding=1), IMAGE_NORMS[norm](), nn.ReLU()),
        4,
        (16, C, SIZE, SIZE),
    ),
    "LSTM": (
        lambda norm: nn.Sequential(LstmOutputs(D, D, batch_first=True), SEQUENCE_NORMS[norm]()),
        2,
        (8, L, D),
    ),
    "Transformer": (transformer_block, 2, (8, L, D)),
}


def seconds(model: nn.Module, x: Tensor, *, training: bool) -> float:
    """Return the seconds of a forward pass in eval mode without gradients; with `training`, those
    of a forward pass in train mode and a backward pass.
    """
    model.train(training).zero_grad()
    start = perf_counter()
    with torch.set_grad_enabled(training):
        loss = model(x).square().mean()
    if training:
        loss.backward()
    return perf_counter() - start


def measure_overheads(name: str, rounds: int = ROUNDS) -> pd.DataFrame:
    """Measure a model of MODELS with each norm. Return a DataFrame with one row per norm.

    Columns: norm; model; inference and training, the median overhead over the rounds in per cent,
    each with its quartiles (inference_low, inference_high, …); megabytes, the tensors other than
    parameters that a forward pass saves for the backward pass (activations, running statistics,
    and in an LSTM torch's workspace, which is most of it); memory, their overhead
    in per cent; versions; machine.
    """
    block, depth, shape = MODELS[name]
    x, models = torch.randn(shape), {}
    for norm in IMAGE_NORMS:
        models[norm] = nn.Sequential(*(block(norm) for _ in range(depth)))
    table = pd.DataFrame({"model": name}, index=pd.Index(models, name="norm"))
    for mode in ("inference", "training"):
        times = []
        for _ in range(rounds + 1):
            turns = random.sample(list(models.items()), len(models))
            times.append({n: seconds(m, x, training=mode == "training") for n, m in turns})
        timed = pd.DataFrame(times)[1:]  # the first round allocates memory
        overhead = 100 * (timed.div(timed["None"], axis=0) - 1)
        quartiles = overhead.quantile([0.5, 0.25, 0.75]).T.round(1)
        table[[mode, f"{mode}_low", f"{mode}_high"]] = quartiles
    table["megabytes"] = [
        saved_bytes(partial(model.train(), x), model.parameters()) / 1e6
        for model in models.values()
    ]
    memory = (100 * (table.megabytes / table.megabytes["None"] - 1)).round(1)
    return table.assign(memory=memory, versions=versions(), machine=machine()).reset_index()


def recorded_overheads() -> pd.DataFrame:
    """Return the recorded rows of `measure_overheads` for all models, but not those without a norm.

    Two more columns have S4's numbers: claimed_low and claimed_high, in per cent.
    """
    claimed = pd.DataFrame.from_dict(CLAIMED, "index", columns=["claimed_low", "claimed_high"])
    # "None" is read as text, not as a missing value; `merge` leaves it out, since S4 claims nothing
    return pd.read_csv(RECORDED, keep_default_na=False).merge(
        claimed, left_on="norm", right_index=True
    )


def overhead_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the overheads of `recorded_overheads` as text, in per cent, one row for each model and
    norm. Brackets have the quartiles over the rounds.
    """
    claimed = [
        f"{low}–{high}" if low < high else f"{low}"
        for low, high in zip(frame.claimed_low, frame.claimed_high, strict=True)
    ]
    columns = {
        "inference, the guide, %": claimed,
        "inference, %": _with_quartiles(frame, "inference"),
        "training, %": _with_quartiles(frame, "training"),
        "memory for activations, %": frame.memory.map("{:+.0f}".format).tolist(),
    }
    return pd.DataFrame(columns, pd.MultiIndex.from_frame(frame[["model", "norm"]]))


def _with_quartiles(frame: pd.DataFrame, mode: str) -> list[str]:
    values = frame[[mode, f"{mode}_low", f"{mode}_high"]].to_numpy() + 0.0  # −0.0 becomes 0.0
    return ["{:+.1f} [{:.1f}, {:.1f}]".format(*row).replace("-", "−") for row in values]


def overheads_in_words(frame: pd.DataFrame) -> str:
    """Return as Markdown which overheads are outside of S4's range, and which are the largest.

    An overhead is outside if its median is. frame: that of `recorded_overheads`.
    """
    above = frame[frame.inference > frame.claimed_high]
    below = frame[frame.inference < frame.claimed_low]
    slow, large = frame.loc[frame.training.idxmax()], frame.loc[frame.memory.idxmax()]
    return (
        f"At inference the medians of {len(above)} of {len(frame)} overheads lie above the guide's "
        f"range ({_by_model(above)}), and {len(below)} below it ({_by_model(below)}). In "
        f"training {slow.norm} in the {slow.model} costs most time, {slow.training:+.0f} %. "
        f"{large.norm} in the {large.model} costs most memory: the activations grow by "
        f"{large.memory:.0f} %."
    )


def _by_model(frame: pd.DataFrame) -> str:
    """Return the norms of each model as text: "CNN: RMSN, IN; LSTM: BN", or "none"."""
    norms = frame.groupby("model", sort=False).norm.agg(", ".join)
    return "; ".join(f"{model}: {names}" for model, names in norms.items()) or "none"


if __name__ == "__main__":
    with exactly_threads(1):
        pd.concat([measure_overheads(name) for name in MODELS]).to_csv(RECORDED, index=False)
