"""A step as a CUDA graph: hundreds of small kernels that the GPU is asked for once instead of one by one from Python.

    obstacle     why the steps of a run cannot be recorded, None if they can
    Recordings   work on a batch that is recorded once for each shape and then replayed
    Graphed      Gradients by a recorded forward and backward pass; a stack's whole step is recorded by stacked.py

The first step of each shape is recorded, the others replay it with their own batch in the same memory. The optimizer of
a single run stays outside: it is one fused kernel, and it must not run before the loss has been looked at. Where rows
are padded they are cut to the longest of their batch, so their length is rounded up to a multiple of ROUND: a graph for
each, not one for each batch. Results are those of the plain step within rounding,
and no part of the config.

Source: torch.cuda.CUDAGraph, and its notes on whole-network capture.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mambanorm.config import RunConfig
from mambanorm.training.gradients import Gradients, backward, gradient_norm
from mambanorm.training.regimen import NOTHING_ELSE, Lesson

ROUND = 128  # positions
WARM_UPS = 3  # passes before the recording, as torch asks for: libraries choose their kernels in the first ones
CHANGING = ("micro_batch", "mixup", "cutmix", "drop_path", "head_steps", "teacher")
"""Fields of a config whose steps are not alike: parts, shares or random numbers that change from one to the next."""


def obstacle(config: RunConfig, device: torch.device) -> str | None:
    """Why the steps of this run cannot be recorded, None if they can."""
    if device.type != "cuda":
        return f"CUDA graphs need CUDA, and this run is on {device.type}"
    if draws(config):
        return "a NormSelector of mode='random' draws other numbers in each step"
    found = [name for name in CHANGING if getattr(config, name)]
    return f"{found[0]}={getattr(config, found[0])!r} makes steps that are not alike" if found else None


def draws(config: RunConfig) -> bool:
    """Whether a norm of the run draws random numbers as it trains: a NormSelector of mode="random", at any site."""
    options = config.norm_options
    return "random" in [some.get("mode") for some in (options, *options.values()) if isinstance(some, dict)]


Batch = tuple[Tensor, Tensor | None, Tensor]  # inputs, lengths, labels


def record(
    work: Callable[[], Any], warm_ups: Callable[[], None], device: torch.device, pool: Any = None
) -> tuple[Callable[[], None], Any, Any]:
    """A function that repeats the work on the GPU, what the work returns, tensors that each replay fills anew, and the
    pool of memory, which a further recording may share if its results are taken before the next replay.

    On that device and no other: what is launched elsewhere is not recorded. Whatever fails, the current stream is the
    one of before, and waits for what was launched.
    """
    with torch.cuda.device(device):
        before, aside, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
        aside.wait_stream(before)
        try:
            with torch.cuda.stream(aside):
                warm_ups()
            before.wait_stream(aside)
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                found = work()
        finally:
            torch.cuda.set_stream(before)
            before.wait_stream(aside)
    return graph.replay, found, graph.pool()


class Recordings:
    """Recordings of one kind of work on a batch, one for each shape that a batch has.

    `kept()`: the tensors that the work changes and that the passes before a recording must leave as they were. Where a
    recording fails, a warning says why, and there are none.
    """

    def __init__(self, work: Callable[..., Any], kept: Callable[[], Iterable[Tensor]], record: Callable = record):
        self.work, self.kept, self.record = work, kept, record
        self.found: dict[tuple, tuple[Batch, Callable[[], None], Any]] = {}
        self.failed, self.pool = False, None

    def replay(self, inputs: Tensor, lengths: Tensor | None, labels: Tensor) -> tuple[bool, Any]:
        """Whether the work was replayed, and what it returned: tensors that the next replay writes over."""
        batch = _rounded(inputs, lengths), lengths, labels
        key = tuple(None if part is None else (part.shape, part.dtype) for part in batch)
        if key not in self.found and not self.failed:
            try:
                self.found[key] = self._record(tuple(None if part is None else part.clone() for part in batch))
            except RuntimeError as error:
                self.failed = True
                self.found.clear()
                warnings.warn(f"no CUDA graph, the run goes on without: {_first_line(error)}", stacklevel=3)
        if self.failed:
            return False, None
        own, replay, returned = self.found[key]
        for mine, given in zip(own, batch, strict=True):
            if mine is not None:
                mine.copy_(given, non_blocking=True)
        replay()
        return True, returned

    def _record(self, batch: Batch) -> tuple[Batch, Callable[[], None], Any]:
        before = [(tensor, tensor.clone()) for tensor in self.kept()]

        def warm_ups() -> None:
            try:
                for _ in range(WARM_UPS):
                    self.work(*batch)
            finally:  # the plain step that comes instead of a recording that fails begins where this one did
                with torch.no_grad():
                    for tensor, value in before:
                        tensor.copy_(value)

        replay, found, self.pool = self.record(lambda: self.work(*batch), warm_ups, batch[2].device, self.pool)
        return batch, replay, found


class Graphed(Gradients):
    """Gradients by CUDA graphs; those of all graphs are added up in the same tensors, which are set to zero first."""

    def __init__(self, *args: Any, record: Callable = record):
        super().__init__(*args)
        self.recordings = Recordings(self._pass, self.model.buffers, record)
        self.learning: list[nn.Parameter] | None = None  # those that have a gradient, once the first pass has shown it

    def fill(
        self, step: int, inputs: Tensor, lengths: Tensor | None, labels: Tensor, lesson: Lesson = NOTHING_ELSE
    ) -> tuple[float, float]:
        replayed, found = self.recordings.replay(inputs, lengths, labels)
        if not replayed:
            return super().fill(step, inputs, lengths, labels, lesson)
        numbers, outputs = found
        self.log.outputs = outputs.clone()
        loss, norm = numbers.tolist()
        return loss, norm

    def _pass(self, inputs: Tensor, lengths: Tensor | None, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Forward and backward: loss and gradient norm, (2,), and the outputs of the blocks, see WeightLog."""
        if self.learning is None:
            self.optimizer.zero_grad()
        else:
            torch._foreach_zero_([p.grad for p in self.learning])
        with self.log.watching():
            loss = torch.stack(backward(self.model, inputs, lengths, labels, self.config)).sum()
        if self.learning is None:
            self.learning = [p for p in self.learned if p.grad is not None]
        return torch.stack([loss.float(), gradient_norm(self.learned).float()]), self.log.outputs


def _rounded(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """The inputs (B, L, …) or (S, B, L, …), filled up at the end where rows have padding anyway."""
    if lengths is None:
        return inputs
    axis = lengths.dim()
    more = -inputs.shape[axis] % ROUND
    return F.pad(inputs, (0, 0) * (inputs.dim() - axis - 1) + (0, more)) if more else inputs


def _first_line(error: RuntimeError) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
