"""The parts of `benchmarks/gpu.py`: each is given a Setting and a clock, and yields (case, work) pairs.

`work()` measures one case and returns the columns of its row.

Glossary: B rows, L positions, D channels, N state size; times in ms are medians of several runs.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module

import torch
from torch import nn

from benchmarks.gpu_correctness import correctness
from benchmarks.gpu_setting import TINY, Cases, Clock, Setting, bytes_moved, scan, scan_inputs, short
from mambanorm import MambaBlock, base_config
from mambanorm.config import RunConfig
from mambanorm.diagnostics import WeightLog
from mambanorm.loop import build_model, train
from mambanorm.tasks import TASKS
from mambanorm.training import cuda_graph
from mambanorm.training.gradients import Gradients
from mambanorm.training.optimizer import build_optimizer

# ---------------------------------------------------------------------------------------------------------------------
# the scan beside its bytes


def scan_part(setting: Setting, clock: Clock) -> Cases:
    """First the copy that all shares are of; then each size, forward and with its backward pass, beside its peers."""
    speed: dict[str, float] = {}

    def copying() -> dict:
        source = torch.randn(setting.sizes.copied // 4, device=setting.device)
        target = torch.empty_like(source)
        found = setting.time(lambda: target.copy_(source))
        speed["bytes_per_ms"] = 2 * setting.sizes.copied / found["ms"]
        return found | {"gb_per_s": speed["bytes_per_ms"] / 1e6}

    yield "copy", copying
    for shape in setting.sizes.scan:
        for dtype in (torch.bfloat16, torch.float32):
            for name in ("triton", "mamba_ssm"):
                for backward in (False, True):
                    what = "forward + backward" if backward else "forward"
                    case = f"{name} {shape}, {short(dtype)}, {what}"
                    yield case, functools.partial(_scan_row, setting, shape, dtype, name, backward, speed)
    yield "transformers' block", functools.partial(_transformers_row, setting)
    yield "our block of that size", functools.partial(_our_block_row, setting)
    for name in ("triton", "reference", "reference compiled"):
        case = f"{name} {setting.sizes.unrolled}, float32, forward + backward"
        yield case, functools.partial(_unrolled_row, setting, name)


def _scan_row(setting: Setting, shape: tuple, dtype: torch.dtype, name: str, backward: bool, speed: dict) -> dict:
    if name == "mamba_ssm":
        import_module("mamba_ssm.ops.selective_scan_interface")  # missing: said so
    leaves = scan_inputs(shape, setting.device, dtype)
    direction = torch.randn(shape[:3], device=setting.device).to(dtype)
    inputs = list(leaves.values())
    if backward:
        run = lambda: torch.autograd.grad(scan(leaves, name), inputs, direction)  # noqa: E731
    else:
        run = torch.no_grad()(lambda: scan(leaves, name))
    found = setting.time(run) | {"peak_mb": setting.peak_mb(lambda: run)}
    least = bytes_moved(shape, dtype.itemsize, backward)
    share = least / found["ms"] / speed["bytes_per_ms"] if speed else ""
    return found | {"mb_moved": least / 1e6, "share_of_copy": share}


def _unrolled_row(setting: Setting, name: str) -> dict:
    leaves = scan_inputs(setting.sizes.unrolled, setting.device, torch.float32)
    direction = torch.randn(setting.sizes.unrolled[:3], device=setting.device)
    one = functools.partial(scan, backend="triton" if name == "triton" else "reference")
    if not name.endswith("compiled"):
        return setting.time(lambda: torch.autograd.grad(one(leaves), list(leaves.values()), direction))
    compiled = torch.compile(one)
    with _of_others(), ExitStack() as after:
        after.callback(torch._dynamo.reset)
        return setting.time(lambda: torch.autograd.grad(compiled(leaves), list(leaves.values()), direction))


@contextmanager
def _of_others() -> Iterator[None]:
    """What fails in somebody else's code is no failure of ours: the row says that it is missing, and why."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        raise ImportError(f"{type(error).__name__}: {error}") from error


def _block_size(setting: Setting) -> tuple[int, int, int, int]:
    batch, length, channels, size = setting.sizes.scan[0]
    return batch, min(length, 512), channels // 2, size  # transformers loops over the positions in Python


def _transformers_row(setting: Setting) -> dict:
    """The block of `transformers` as it runs without packages beside it: a loop over the positions."""
    batch, length, width, size = _block_size(setting)
    torch.manual_seed(0)
    with _of_others():
        module = import_module("transformers.models.mamba.modeling_mamba")
        config = import_module("transformers.models.mamba").MambaConfig
        block = module.MambaBlock(config(hidden_size=width, state_size=size, num_hidden_layers=1), 0)
        return _time_block(setting, block.to(setting.device), batch, length, width)


def _our_block_row(setting: Setting) -> dict:
    batch, length, width, size = _block_size(setting)
    torch.manual_seed(0)
    block = MambaBlock(width, "RMSN", "None", d_state=size).to(setting.device)
    return _time_block(setting, block, batch, length, width)


def _time_block(setting: Setting, block: nn.Module, batch: int, length: int, width: int) -> dict:
    x = torch.randn(batch, length, width, device=setting.device, requires_grad=True)
    learned = [p for p in block.parameters() if p.requires_grad]

    def run() -> None:
        out = block(x)
        out = out[0] if isinstance(out, tuple) else out
        torch.autograd.grad(out.square().sum(), [x, *learned], allow_unused=True)

    return setting.time(run) | {"shape": f"{batch} × {length}, d {width}"}


# ---------------------------------------------------------------------------------------------------------------------
# the whole step


def step(setting: Setting, clock: Clock) -> Cases:
    """A step of a training run, with everything that a run does in it but the loading of its batch."""
    for task in setting.sizes.step:
        for precision in ("bf16", "float32"):
            for graphs in (False, True):
                case = f"{task} at {setting.sizes.scale}, {precision}{', CUDA graph' if graphs else ''}"
                yield case, functools.partial(_step_row, setting, task, precision, graphs)


def _step_row(setting: Setting, task: str, precision: str, graphs: bool) -> dict:
    config = base_config(task, setting.sizes.scale, precision=precision, device=setting.device.type)
    shape, rows = TASKS[task].shape(config.scale), config.batch_size
    if graphs and (reason := cuda_graph.obstacle(config, setting.device)):
        raise ImportError(reason)
    inputs, labels = (part.to(setting.device) for part in (shape.batch(rows), shape.labels(rows)))

    def make() -> Callable[[], Gradients]:
        model = build_model(config, shape).to(setting.device)
        optimizer, log = build_optimizer(model, config), WeightLog(model)
        gradients = (cuda_graph.Graphed if graphs else Gradients)(model, optimizer, config, log)

        def run() -> Gradients:
            gradients.fill(1, inputs, None, labels)
            optimizer.step()
            log.turn(1)
            return gradients

        return run

    memory = {"peak_mb": setting.peak_mb(make)}
    run = make()
    found, gradients = setting.time(run, seconds=2.0, host=True), run()
    if graphs and gradients.recordings.failed:
        raise RuntimeError("the step could not be recorded, see the warning above")
    tokens = inputs.shape[0] * inputs.shape[1]
    hours = {"tokens_per_s": 1e3 * tokens / found["ms"], "hours_of_a_run": config.steps * found["ms"] / 3.6e6}
    return found | hours | {"steps": config.steps} | memory


# ---------------------------------------------------------------------------------------------------------------------
# many small runs, and whole ones


def stacked(setting: Setting, clock: Clock) -> Cases:
    """All seeds and rates of one arm of digits as one model; one run alone for comparison."""
    scale = "smoke" if setting.sizes is TINY else "evening"
    for arm in setting.sizes.stacked:
        base = base_config("digits", scale, arm=arm, device=setting.device.type)
        configs = [base.but(seed=s, lr=base.lr * f) for s in range(setting.sizes.seeds) for f in setting.sizes.rates]
        yield f"{len(configs)} runs of {arm}", functools.partial(_stack_row, setting, configs)
        yield f"one run of {arm} alone", functools.partial(_alone_row, setting, configs)


def _stack_row(setting: Setting, configs: list[RunConfig]) -> dict:
    from mambanorm.training.stacked import train_stacked

    train_stacked([config.but(steps=3, eval_every=3, warmup_steps=1) for config in configs])  # compiles
    start = time.perf_counter()
    results = train_stacked(configs)
    took = time.perf_counter() - start
    return _runs_facts(results, took) | {"projected_minutes": setting.sizes.arms * took / 60}


def _alone_row(setting: Setting, configs: list[RunConfig]) -> dict:
    train(configs[0].but(steps=3, eval_every=3, warmup_steps=1))  # compiles
    start = time.perf_counter()
    results = [train(configs[0], graphs=setting.device.type == "cuda")]
    took = time.perf_counter() - start
    return _runs_facts(results, took) | {"projected_minutes": setting.sizes.arms * len(configs) * took / 60}


def _runs_facts(results: list, took: float) -> dict:
    scores = [result.test_accuracy for result in results]
    return {
        "seconds": took,
        "runs": len(results),
        "diverged": sum(result.status == "diverged" for result in results),
        "test_accuracy_mean": statistics.fmean(scores),
    }


class Enough(Exception):
    """The time for a run is over; its curve so far is kept."""


def runs(setting: Setting, clock: Clock) -> Cases:
    """Whole runs with CUDA graphs where they can be had; the last one for as long as there is time."""
    for task, scale in setting.sizes.runs:
        yield f"{task} at {scale}", functools.partial(_run_row, setting, task, scale, clock)


def _run_row(setting: Setting, task: str, scale: str, clock: Clock) -> dict:
    """To the end, or until ten seconds are left. `curve`: mean training loss of each hundredth of the steps."""
    precision = "bf16" if scale == "paper" else "float32"
    config = base_config(task, scale, device=setting.device.type, precision=precision)
    losses: list[float] = []

    def see(_step: int, _model: nn.Module, loss: float) -> None:
        losses.append(loss)
        if clock() < 10:
            raise Enough

    if (task, scale) == ("listops", "paper"):
        setting.take_rows()
    start = time.perf_counter()
    facts = {"steps": config.steps, "done": 0, "test_accuracy": "", "chance": ""}
    try:
        result = train(config, on_step=see, graphs=setting.device.type == "cuda")
        facts |= {"test_accuracy": result.test_accuracy, "chance": result.chance, "backend": result.backend}
    except Enough:
        facts |= {"test_accuracy": "not reached: the time was over"}
    took, part = time.perf_counter() - start, max(1, config.steps // 100)
    means = [statistics.fmean(losses[i : i + part]) for i in range(0, len(losses), part)]
    last = means[-1] if means else ""
    return facts | {"done": len(losses), "seconds": took, "first_loss": losses[0], "last_loss": last, "curve": means}


PARTS: dict[str, Callable[[Setting, Clock], Cases]] = {
    "correctness": correctness,
    "scan": scan_part,
    "step": step,
    "stacked": stacked,
    "runs": runs,
}
