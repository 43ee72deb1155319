"""A step as a CUDA graph: hundreds of small kernels that the GPU is asked for once instead of one by one from Python.

    obstacle     why the steps of a run cannot be recorded, None if they can
    Graphed      Gradients that replay a recorded forward and backward pass

The first step of each shape is recorded, the others replay it with their own batch in the same memory. The optimizer
stays outside: it is one fused kernel, and it must not run before the loss has been looked at. Rows with padding are cut
to the longest of their batch, so their length is rounded up to a multiple of ROUND: a graph for each, not one for
each batch. Results are those of the plain step within rounding, and the config does not know the difference.

Source: Nguyen et al. 2021, "Accelerating PyTorch with CUDA Graphs"; torch.cuda.CUDAGraph.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mambanorm.training.config import RunConfig
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
    found = [name for name in CHANGING if getattr(config, name)]
    return f"{found[0]}={getattr(config, found[0])!r} makes steps that are not alike" if found else None


class Recorded(NamedTuple):
    """A graph, and the memory that it reads and writes."""

    replay: Callable[[], None]
    batch: tuple[Tensor, Tensor | None, Tensor]
    numbers: Tensor  # loss and gradient norm, (2,)
    outputs: Tensor  # of the blocks, see WeightLog


def record(work: Callable[[], Any], warm_ups: Callable[[], None]) -> tuple[Callable[[], None], Any]:
    """A function that repeats the work on the GPU, and what the work returns: tensors that each replay fills anew."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        warm_ups()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = work()
    return graph.replay, found


class Graphed(Gradients):
    """Gradients by CUDA graphs, one for each shape of a batch. Where a recording fails, a warning says why and the run
    goes on without."""

    def __init__(self, *args: Any, record: Callable[..., tuple[Callable[[], None], Any]] = record):
        super().__init__(*args)
        self.record, self.recorded, self.failed = record, {}, False
        self.learning = None  # the parameters that have gradients, once the first recording has shown them

    def fill(
        self, step: int, inputs: Tensor, lengths: Tensor | None, labels: Tensor, lesson: Lesson = NOTHING_ELSE
    ) -> tuple[float, float]:
        batch = _rounded(inputs, lengths), lengths, labels
        if (found := self._find(batch)) is None:
            return super().fill(step, inputs, lengths, labels, lesson)
        for own, given in zip(found.batch, batch, strict=True):
            if own is not None:
                own.copy_(given, non_blocking=True)
        found.replay()
        self.log.outputs = found.outputs.clone()  # the next replay writes over them
        loss, norm = found.numbers.tolist()
        return loss, norm

    def _find(self, batch: tuple[Tensor, Tensor | None, Tensor]) -> Recorded | None:
        """The recording for batches of this shape, made where it is missing; None if no recording can be made."""
        key = tuple(None if part is None else (part.shape, part.dtype) for part in batch)
        if key not in self.recorded and not self.failed:
            try:
                self.recorded[key] = self._record(tuple(None if part is None else part.clone() for part in batch))
            except RuntimeError as error:
                self.failed, self.learning = True, None
                self.recorded.clear()
                self.optimizer.zero_grad()
                warnings.warn(f"no CUDA graph, the run goes on without: {_first_line(error)}", stacklevel=2)
        return self.recorded.get(key)

    def _record(self, batch: tuple[Tensor, Tensor | None, Tensor]) -> Recorded:
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]

        def warm_ups() -> None:
            for _ in range(WARM_UPS):
                self._pass(batch)
            for buffer, before in buffers:  # a norm's running statistics have not seen these passes
                buffer.copy_(before)
            if self.learning is None:
                self.learning = [p for p in self.learned if p.grad is not None]

        replay, (numbers, outputs) = self.record(lambda: self._pass(batch), warm_ups)
        return Recorded(replay, batch, numbers, outputs)

    def _pass(self, batch: tuple[Tensor, Tensor | None, Tensor]) -> tuple[Tensor, Tensor]:
        """Forward and backward; all graphs add to the same gradients, which are set to zero first."""
        if self.learning is None:
            self.optimizer.zero_grad()
        else:
            torch._foreach_zero_([p.grad for p in self.learning])
        with self.log.watching():
            loss = torch.stack(backward(self.model, *batch, self.config)).sum()
        return torch.stack([loss.float(), gradient_norm(self.learned).float()]), self.log.outputs


def _rounded(inputs: Tensor, lengths: Tensor | None) -> Tensor:
    """The inputs, filled up at the end where rows have padding anyway."""
    if lengths is None:
        return inputs
    more = -inputs.shape[1] % ROUND
    return F.pad(inputs, (0, 0) * (inputs.dim() - 2) + (0, more)) if more else inputs


def _first_line(error: RuntimeError) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
