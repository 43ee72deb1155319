"""The parts of `benchmarks/gpu.py`: each is given a Setting and a clock, and yields (case, work) pairs.

`work()` measures one case and returns the columns of its row.

Glossary: B rows, L positions, D or E channels, N state size, K taps; times in ms are medians of several runs.
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
from benchmarks.gpu_setting import Cases, Clock, Setting, bytes_moved, conv, conv_inputs, scan, scan_inputs, short
from mambanorm import MambaBlock, base_config
from mambanorm.study.plan import measure, plan, shape_of
from mambanorm.training.run import train

TAPS = 4  # of the convolution, the study's d_conv

# ---------------------------------------------------------------------------------------------------------------------
# scan and convolution beside their bytes


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
    for batch, length, channels, _ in setting.sizes.scan:
        for name in ("triton", "torch"):
            case = f"convolution by {name} {(batch, length, channels, TAPS)}, bfloat16, forward + backward"
            yield case, functools.partial(_conv_row, setting, (batch, length, channels, TAPS), name, speed)
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
    return _beside_bytes(setting, run, bytes_moved(shape, dtype.itemsize, backward), speed)


def _conv_row(setting: Setting, shape: tuple, name: str, speed: dict) -> dict:
    """The fewest bytes: u is read and the result written; backward, u and its gradient are read and du written."""
    leaves = conv_inputs(shape, setting.device, torch.bfloat16)
    direction = torch.randn(shape[:3], device=setting.device).bfloat16()

    def run() -> object:
        return torch.autograd.grad(conv(leaves, name), list(leaves.values()), direction)

    return _beside_bytes(setting, run, 5 * direction.nbytes, speed)


def _beside_bytes(setting: Setting, run: Callable[[], object], least: int, speed: dict) -> dict:
    found = setting.time(run) | {"peak_mb": setting.peak_mb(run)}
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
    """A step of the paper's runs, on random data of their shape."""
    for task in setting.sizes.step:
        for precision in ("bf16", "float32"):
            case = f"{task} at {setting.sizes.scale}, {precision}"
            yield case, functools.partial(_step_row, setting, task, precision)


def _step_row(setting: Setting, task: str, precision: str) -> dict:
    config = base_config(task, setting.sizes.scale, precision=precision, device=setting.device.type)
    found, shape = plan(config), shape_of(config)
    return {
        "ms": 1e3 * found["seconds_per_step"],
        "tokens_per_s": config.batch_size * shape.length / found["seconds_per_step"],
        "hours_of_a_run": found["hours"],
        "steps": config.steps,
        "peak_mb": setting.peak_mb(lambda: measure(config, shape)),
    }


# ---------------------------------------------------------------------------------------------------------------------
# whole runs


class Enough(Exception):
    """The time for a run is over; its curve so far is kept."""


def runs(setting: Setting, clock: Clock) -> Cases:
    """Whole runs; the last one for as long as there is time."""
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
        result = train(config, on_step=see)
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
    "runs": runs,
}
