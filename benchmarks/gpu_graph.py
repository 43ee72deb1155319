"""The part `graph` of benchmarks.gpu: training steps with and without CUDA graphs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu_times import FEW_STEPS
from benchmarks.gpu_workers import Cases, Setting
from mambanorm.kernels.threads import exactly_threads
from mambanorm.loop import fit
from mambanorm_study import base_config
from mambanorm_study.basics.torch_defaults import plain_torch
from mambanorm_study.config import RunConfig
from mambanorm_study.runs import regimen
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.evaluation import Batch, to_device
from mambanorm_study.runs.training_state import TrainingState
from mambanorm_study.tables.plan import shape_of

GRAPH_STEPS = 120  # the second half of them is timed
TASKS = (("listops", "lab"), ("curves", "evening"))  # and their scales


def graph_times(setting: Setting) -> Cases:
    """Yield a training step of small models, which wait for Python without CUDA graphs."""
    for task, scale in (("curves", "smoke"),) if setting.tiny else TASKS:
        config = base_config(task, scale, device=setting.device.type)
        yield f"{task} at scale {scale}", partial(graph_row, setting, config)


def graph_row(setting: Setting, config: RunConfig) -> dict:
    """Return the time of a step with and without CUDA graphs, and why graphs were not used."""
    steps = GRAPH_STEPS if setting.seconds else FEW_STEPS
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph_ms = fit_ms(config, steps, setting.device, cuda_graph=True)
    reasons = [str(w.message) for w in caught if "without a CUDA graph" in str(w.message)]
    ms = fit_ms(config, steps, setting.device, cuda_graph=False)
    return {
        "note": "; ".join(reasons),
        "ms": ms,
        "graph_ms": graph_ms,
        "graph_of_ordinary": graph_ms / ms,
    }


@plain_torch()
def fit_ms(config: RunConfig, steps: int, device: torch.device, *, cuda_graph: bool) -> float:
    """Train on random batches as `train` does. Return the milliseconds per step, on the clock, of
    the second half of the steps.
    """
    with exactly_threads(config.threads):
        model = build_model(config, shape_of(config)).to(device)
        state, times = TrainingState(model, config, by_loss=False), [0.0]

        def after_step(step: int) -> None:
            state.log.record_step(step)
            if step in (steps // 2, steps):
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                times.append(time.perf_counter())

        fit(
            model,
            state.optimizer,
            random_batches(config, steps, device),
            partial(regimen.loss_parts, config, None, None, state.log.recording_outputs),
            lr_of=lambda step: config.lr,
            curve=state.curve,
            callbacks=[after_step],
            cuda_graph=cuda_graph,
        )
    return 1e3 * (times[-1] - times[-2]) / (steps - steps // 2)


def random_batches(config: RunConfig, steps: int, device: torch.device) -> Iterator[Batch]:
    """Yield random batches of the shape of a task's data, copied to the device one by one. Batches
    of ids have padding.
    """
    shape, random = shape_of(config), torch.Generator().manual_seed(0)
    rows = config.batch_size
    inputs, labels = shape.random_inputs(rows), shape.random_labels(rows)
    lengths = None
    if shape.vocab_size is not None:
        lengths = torch.randint(shape.length // 2, shape.length + 1, (rows,), generator=random)
        lengths[0] = shape.length
    for _ in range(steps):
        yield to_device((inputs, lengths, labels), device)
