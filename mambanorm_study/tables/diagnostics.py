"""Tables of measurements inside models: the gate, train and eval mode, growth over depth, how runs
end, Figure 10, and what happens before a failure.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock
from mambanorm.inside import blocks_of, record_sites
from mambanorm_study.basics.settings import STUDY_SCALE
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import recorded_results, store, weight_log
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.result import RunResult, StoredRun
from mambanorm_study.runs.run import train
from mambanorm_study.tables import experiments, growth, intervals
from mambanorm_study.tables.robustness import stored_model
from mambanorm_study.tables.run_tables import label, percent
from mambanorm_study.tasks import load_task

# --------------------------------------------------------------------------------------------------
# The gate. In Eq. 1–2 of the paper a norm before the SSM feeds both branches of the block: the
# branch with the scan and the branch of the gate. A norm after the SSM acts only on the branch with
# the scan.

GATE_SITES = ["n2", "z", "branch"]
INPUT_SHAPE = (8, 64, 32)


def rms_inside_block(
    arms: Iterable[str], factors: Sequence[float] = (1, 10, 100), seed: int = 0
) -> pd.DataFrame:
    """Return the root mean square of the values at three sites inside an untrained Mamba block, for
    each arm and for each factor by which the block's input is multiplied.

    The index is (arm, factor). Columns, one for each site: n2 (the output of the norm after the
    SSM), z (the gate's input, before SiLU), branch (what the block adds to the residual stream).
    Before the multiplication the input is standard normal, of shape (8, 64, 32). Raises ValueError
    for an unknown arm.
    """
    rows = []
    for arm in map(Arm.parse, arms):
        for factor in factors:
            torch.manual_seed(seed)  # every arm gets the same weights and the same input
            block, x = MambaBlock(INPUT_SHAPE[-1], *arm), torch.randn(INPUT_SHAPE)
            with torch.no_grad(), record_sites(block, GATE_SITES) as sites:
                block(factor * x)
            sizes = {row["site"]: row["rms"] for row in sites.rows()}
            rows.append({"arm": str(arm), "factor": factor, **sizes})
    return pd.DataFrame(rows).set_index(["arm", "factor"])[GATE_SITES]


# --------------------------------------------------------------------------------------------------
# train and eval mode: the accuracy that BN loses by using running averages in eval mode


@torch.no_grad()
def mode_accuracies(
    configs: Iterable[RunConfig], runs_dir: str | Path | None = None
) -> pd.DataFrame:
    """Return the accuracy on the validation split in train and in eval mode, one row for each
    config whose run is stored.

    Columns: task, arm, seed; rows, the number of rows in the validation split, which is evaluated
    as one batch; eval and train, the accuracy in each mode as a fraction; points_lost, the accuracy
    in train mode minus that in eval mode in percentage points.
    """
    rows = []
    for run in filter(None, (store.find_run(config, runs_dir) for config in configs)):
        config, model = run.config, stored_model(run)
        data = load_task(config.task, config.scale, config.seed)
        inputs, lengths, labels = data.val.batch(slice(None))
        row = dict(task=config.task, arm=config.arm, seed=config.seed, rows=len(labels))
        for mode in ("eval", "train"):  # train last, because train mode updates running averages
            outputs = model.train(mode == "train")(inputs, lengths)
            row[mode] = (outputs.argmax(-1) == labels).float().mean().item()
        rows.append(row | {"points_lost": 100 * (row["train"] - row["eval"])})
    columns = ["task", "arm", "seed", "rows", "eval", "train", "points_lost"]
    return pd.DataFrame(rows, columns=columns)


# --------------------------------------------------------------------------------------------------
# growth over depth

# The number of rows of the training split on which L2 norms over depth are measured.
ROWS = 32
# The columns that together identify a model and its mode: `task`, and columns of `norms_by_depth`.
MODEL_KEYS = ("task", "phase", "arm", "mode", "n_layers")


@torch.no_grad()
def amplified_model(config: RunConfig, gain: float) -> nn.Module:
    """Return the untrained model of a config with every `in_proj` and `out_proj` weight multiplied
    by `gain`.
    """
    model = build_model(config, load_task(config.task, config.scale, config.seed))
    for _, block in blocks_of(model):
        block.in_proj.weight *= gain
        block.out_proj.weight *= gain
    return model


def residual_growth(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how the L2 norm of the residual stream grows over depth: one row for each model and
    mode (train or eval).

    frame: a table of `norms_by_depth`. Columns: those of MODEL_KEYS that `frame` has, with the
    short name of the arm; law, r2 and decades_per_8, the results of `growth` for the median L2 norm
    over tokens; median_first and median_last, log₁₀ of the median L2 norm over tokens in the first
    and in the last block, inf if this norm is not finite; largest_first and largest_last, the same
    for the largest L2 norm; nonfinite, the share of non-finite L2 norms among all tokens and
    blocks.
    """
    keys = [key for key in MODEL_KEYS if key in frame]
    rows = []
    for key, tokens in frame[frame.site == "residual"].groupby(keys, sort=False):
        norms = growth.norm_quantiles(tokens)
        row = dict(zip(keys, key, strict=True)) | growth.growth(norms["median"])
        with np.errstate(divide="ignore"):  # a norm of 0 is −inf decades
            ends = np.log10(norms.iloc[[0, -1]])
        for name in ("median", "largest"):
            row[f"{name}_first"], row[f"{name}_last"] = ends[name]
        row["nonfinite"] = 1 - np.isfinite(tokens.l2).mean()
        rows.append(row)
    table = pd.DataFrame(rows).drop(columns="margin")
    return table.assign(arm=table.arm.map(label))


def norms_of_stored(runs: Sequence[StoredRun], phase: str) -> pd.DataFrame:
    """Return the table of `norms_by_depth` for the models of stored runs, with the additional
    column task. All runs must have the same task and seed. phase: the text for the column phase.
    """
    config = runs[0].config
    x, lengths, _ = load_task(config.task, config.scale, config.seed).train.batch(slice(0, ROWS))
    models = {run.config.arm: stored_model(run) for run in runs}
    return growth.norms_by_depth(models, x, lengths, phase=phase).assign(task=config.task)


# --------------------------------------------------------------------------------------------------
# how stored runs end


def stored_accuracies(runs: Iterable[StoredRun]) -> pd.DataFrame:
    """Return the test accuracies of stored runs, one row for each run.

    Columns: task; blocks (number of blocks); steps; arm (short name); test_accuracy (fraction); low
    and high (its exact 95 % interval); n (number of test rows); chance (accuracy of chance);
    beats_chance (True if the run did not diverge and the whole interval lies above chance).
    """
    rows = []
    for run in runs:
        correct = run.predictions["label"] == run.predictions["predicted"]
        low, high = intervals.clopper_pearson(int(correct.sum()), len(correct))
        chance = run.facts["chance"]
        rows.append(
            {
                "task": run.config.task,
                "blocks": run.config.n_layers,
                "steps": run.config.steps,
                "arm": label(run.config.arm),
                "test_accuracy": correct.mean(),
                "low": low,
                "high": high,
                "n": len(correct),
                "chance": chance,
                "beats_chance": run.facts["status"] == "ok" and low > chance,
            }
        )
    return pd.DataFrame(rows)


def run_endings(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a table that says how the runs of a run frame ended: one row for each learning rate
    and arm. All cells are texts.

    Columns: "ended non-finite" (how many runs did, with the exact 95 % interval of their share),
    "at step (median)" (the step at which these runs ended), "accuracy of the others" and "lowest"
    (mean and lowest test accuracy of the runs that finished), chance (accuracy of chance).
    """
    rows = []
    for (lr, arm), group in runs.groupby(["lr", "arm"], sort=False):
        diverged = group[group.status == "diverged"]
        accuracy = group.test_accuracy[group.status == "ok"]
        rows.append(
            {
                "lr": lr,
                "arm": label(arm),
                "ended non-finite": intervals.count_with_interval(len(diverged), len(group)),
                "at step (median)": diverged.first_nonfinite_step.median(),
                "accuracy of the others": accuracy.mean(),
                "lowest": accuracy.min(),
                "chance": group.chance.mean(),
            }
        )
    table = pd.DataFrame(rows).set_index(["lr", "arm"])
    steps = table["at step (median)"].map("{:.0f}".format).replace("nan", "–")
    accuracies = table[["accuracy of the others", "lowest", "chance"]].map(percent)
    return table.assign(**{steps.name: steps}, **accuracies)


# --------------------------------------------------------------------------------------------------
# Figure 10 of the paper


class _StopTraining(Exception):
    """Raised by a callback to end a training."""


def train_until(
    config: RunConfig,
    on_step: Callable[[int, nn.Module], None],
    last_step: int | None,
    runs_dir: str | Path | None = None,
) -> RunResult | None:
    """Train a config without storing the run, and call `on_step(step, model)` after each step.
    Return the result of the run, or None if the training was stopped.

    last_step: the step after which the training is stopped; None means that it is not stopped.
    """

    def call_and_stop(step: int, model: nn.Module, _: float) -> None:
        on_step(step, model)
        if step == last_step:
            raise _StopTraining

    with suppress(_StopTraining):
        return train(config, on_step=call_and_stop, runs_dir=runs_dir)
    return None


def train_watched(
    config: RunConfig, until: int | None = None
) -> tuple[RunResult | None, dict[str, np.ndarray]]:
    """Train a config without storing the run. Return (run, arrays): the result of the run, and
    the singular values of each block's out_proj at every step.

    until: the step after which the training is stopped; run is then None. None means that the
    training is not stopped. arrays: a dictionary of step (T,), which starts at 0 (before the first
    training step), and singular_values (T, layers, k).
    """
    values: list[np.ndarray] = []

    def record(_: int, model: nn.Module) -> None:
        values.append(weight_log.spectra([block.out_proj.weight for _, block in blocks_of(model)]))

    record(0, build_model(config, load_task(config.task, config.scale, config.seed)))
    run = train_until(config, record, until)
    return run, {"step": np.arange(len(values)), "singular_values": np.stack(values)}


def singular_value_phases(
    arrays: Mapping, end_step: int, last_phase: str
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Return two maps for a run that ended at `end_step`: one from each phase to a step, and one
    from each phase to the singular values (layers, k) of out_proj at this step.

    The phases are "early" (step 0), "normal" (the recorded step nearest to end_step / 2) and
    `last_phase` (the last recorded step). arrays: the run's diagnostics, see `sigma_history`.
    """
    steps, values = weight_log.sigma_history(arrays)
    index = {"early": 0, "normal": np.abs(steps - end_step / 2).argmin(), last_phase: -1}
    step_of_phase = {phase: int(steps[t]) for phase, t in index.items()}
    return step_of_phase, {phase: values[t] for phase, t in index.items()}


def out_proj_edges(config: RunConfig) -> tuple[float, float]:
    """Return the smallest and the largest expected singular value of the untrained `out_proj` of a
    config (the Marchenko–Pastur edges). The weights of `out_proj` are drawn from
    U(−1/√columns, 1/√columns) and divided by √n_layers.
    """
    rows, columns = config.d_model, config.d_model * config.expand
    return weight_log.marchenko_pastur((rows, columns), 1 / np.sqrt(3 * columns * config.n_layers))


# --------------------------------------------------------------------------------------------------
# the recorded runs for §4.6 of the paper


def recorded_diagnostics(norm: str = "BN") -> tuple[pd.DataFrame, dict[str, dict[str, np.ndarray]]]:
    """Return (frame, arrays): the run frame (one row per run) of the recorded runs, and a map from
    run_id to the arrays that were measured inside the run.

    Only the runs of `failure_runs`, `growth_runs(norm=norm)` and `failing_runs` are in `frame`.
    """
    frame = recorded_results.recorded(STUDY_SCALE)
    seeds = sorted({int(seed) for seed in frame.seed})
    configs = [
        *experiments.failure_runs(STUDY_SCALE, seeds),
        *experiments.growth_runs(STUDY_SCALE, norm, seeds),
        *experiments.failing_runs(STUDY_SCALE, seeds),
    ]
    run_ids = {config.run_id for config in configs}
    path = recorded_results.recorded_path(STUDY_SCALE)
    inside_runs = frame[frame.run_id.isin(run_ids)].reset_index(drop=True)
    return inside_runs, recorded_results.read_diagnostics(path)


# --------------------------------------------------------------------------------------------------
# the largest output of the scan (claim E1)

# The number of test rows that `headroom_facts` uses, and of validation rows that
# `entropy_and_fragility` uses.
SUMMARY_ROWS = 256


@torch.no_grad()
def headroom_facts(run: StoredRun) -> dict[str, float]:
    """Return {"headroom": h}. h is log₁₀ of float16's largest number minus log₁₀ of the largest |y|
    of the scan, over all blocks and the first SUMMARY_ROWS test rows, in the model with the tested
    weights; 0 for a run that ended non-finite.
    """
    if run.facts["status"] == "diverged":
        return {"headroom": 0.0}
    config, model = run.config, stored_model(run)
    data = load_task(config.task, config.scale, config.seed)
    inputs, lengths, _ = data.test.batch(slice(0, SUMMARY_ROWS))
    with record_sites(model, "scan") as sites:
        model(inputs, lengths)
    largest = max(float(value.abs().amax()) for *_, value in sites.values)
    largest = max(largest, torch.finfo(torch.float32).tiny)
    return {"headroom": math.log10(torch.finfo(torch.float16).max) - math.log10(largest)}


# --------------------------------------------------------------------------------------------------
# measurements near a failure (claim H16)

# DISTURBANCE: the standard deviation of the random relative change of each disturbed weight. DRAWS:
# the number of random disturbances. SMALLEST_CHANGE: the smallest reported change of a loss; the
# largest reported change is 1 / SMALLEST_CHANGE.
DISTURBANCE, DRAWS, SMALLEST_CHANGE = 0.05, 8, 1e-6


def failing_facts(run: StoredRun, failing: StoredRun | None) -> dict[str, float]:
    """Return {"sharpening": s, "fragility": f}: how much the entropy of `entropy_and_fragility`
    falls and how much the fragility rises in `run`, from half way to the last finite step of
    `failing`. For this, `run` is trained again up to that last finite step.

    failing: the run without norms that has the settings and the seed of `run`. Returns {} if
    `failing` is None, did not fail or had too few finite steps, or if `run` fails before `failing`.
    """
    if failing is None or failing.facts["status"] != "diverged" or failing.facts["steps"] < 3:
        return {}
    end = failing.facts["steps"] - 1  # the loss of step end + 1 is the last finite loss
    measured: dict[int, tuple[float, float]] = {}

    def measure(step: int, model: nn.Module) -> None:
        if step in (end // 2, end):
            measured[step] = entropy_and_fragility(model, run.config)

    train_until(run.config, measure, end, run.path.parent)
    if len(measured) < 2:
        return {}
    entropy_before, fragility_before = measured[end // 2]
    entropy, fragility = measured[end]
    return {"sharpening": entropy_before - entropy, "fragility": fragility - fragility_before}


@torch.no_grad()
def entropy_and_fragility(model: nn.Module, config: RunConfig) -> tuple[float, float]:
    """Return the entropy and the fragility of a model during its training, both measured on the
    first SUMMARY_ROWS validation rows.

    The entropy is that of the class probabilities in nats, averaged over rows with finite outputs.
    The fragility is log₁₀ of the change of a row's loss when the weights of the last two blocks are
    disturbed, minus log₁₀ of the change when the weights of the first two blocks are disturbed.

    Each change is a median over rows and disturbances, because outputs of single rows reach 10¹⁵
    near a failure. The same random disturbances are used at every training step.
    """
    data = load_task(config.task, config.scale, config.seed)
    inputs, lengths, labels = data.val.batch(slice(0, SUMMARY_ROWS))

    def losses(weights: dict[str, Tensor]) -> Tensor:
        logits = torch.func.functional_call(model, weights, (inputs, lengths))
        return nn.functional.cross_entropy(logits.double(), labels, reduction="none")

    def log_change(blocks: nn.ModuleList) -> float:
        generator = torch.Generator().manual_seed(config.seed)
        disturbed = set(blocks.parameters())
        changes = []
        for _ in range(DRAWS):
            weights = {
                name: p * (1 + DISTURBANCE * torch.randn(p.shape, generator=generator))
                for name, p in model.named_parameters()
                if p in disturbed
            }
            changes.append((losses(weights) - undisturbed).abs().nan_to_num(nan=math.inf))
        return math.log10(
            np.clip(float(torch.cat(changes).median()), SMALLEST_CHANGE, 1 / SMALLEST_CHANGE)
        )

    model.eval()
    undisturbed = losses({})
    logits = model(inputs, lengths).double()
    probabilities = logits[logits.isfinite().all(-1)].softmax(-1)
    entropy = float(torch.special.entr(probabilities).sum(-1).mean())
    return entropy, log_change(model.blocks[-2:]) - log_change(model.blocks[:2])
