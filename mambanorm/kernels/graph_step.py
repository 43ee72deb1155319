"""Replay a training step as two CUDA graphs, so that the GPU does not wait for Python.

A step of a small model launches about a thousand short kernels. Python takes longer to launch them
than the GPU takes to run them. A CUDA graph is a recording of such launches: one call starts all of
them.

    first graph     zero_grad, forward pass, loss, backward pass, norm of the gradients
    second graph    clipping, optimizer step

Between the two graphs, `fit` (mambanorm/loop.py) reads the loss and the norm, as it does without
graphs. So training ends at the same step if a loss or gradient is not finite, and the optimizer
does not use that gradient. Reading waits for the GPU once per micro-batch and once for the norm.

- The first WARM_UP steps are ordinary steps of the training. They compile the kernels and create
  the optimizer's state. Capturing runs nothing on the GPU. So there are no extra steps whose effect
  on weights, buffers, optimizer or random numbers would have to be undone.
- A graph reads and writes fixed addresses. Each batch is copied into the tensors `inputs`, the
  learning rate into the tensor `lr`; losses, norm and gradients are overwritten by each step.
- A graph repeats the kernels, not the Python code. A step whose Python code must run each time, or
  that waits for the GPU, cannot be replayed: then all steps are ordinary ones, and a warning says
  why. The reason is found before the capture if possible, because a failed capture disturbs torch's
  allocator. After the capture, weights must be changed in place, and new hooks, `requires_grad` and
  the optimizer's settings other than the rate have no effect.

Source: PyTorch's documentation, "CUDA semantics", section "CUDA Graphs".
"""

import functools
import warnings
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

WARM_UP = 3  # ordinary steps before the capture, as many as in PyTorch's documentation
DEVICE_TYPE = "cuda"  # tests on the CPU replace this
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def graphed(model, optimizer, backward, update):
    """Return the two functions of a training step as functions that replay CUDA graphs.

    See GraphStep for the arguments.
    """
    step = GraphStep(model, optimizer, backward, update)
    return step.backward, step.update


class GraphStep:
    """Calls the two functions of a training step, or replays them once they are captured.

    backward(batch, step): sets the gradients; returns the list of losses and the gradients' norm.
    update(lr, total_norm): makes the optimizer's step; `lr` may be a tensor.
    """

    def __init__(self, model, optimizer, backward, update):
        self.model, self.optimizer = model, optimizer
        self.ordinary_backward, self.ordinary_update = backward, update
        self.device = next(model.parameters()).device
        self.lr = torch.zeros((), dtype=torch.float32, device=self.device)
        self.ordinary_steps, self.blocking_lines, self.graphs, self.is_disabled = 0, [], None, False

    def backward(self, batch, step):
        """Return what `backward` returns, from an ordinary call or from a replay."""
        reason = None if self.is_disabled else self._prepare(batch, step)
        if reason is not None:
            report(reason)
            self.is_disabled, self.graphs = True, None
        if self.is_disabled:
            return self.ordinary_backward(batch, step)
        if self.graphs is None:
            self.ordinary_steps += 1
            observe = record_blocking_lines if self.ordinary_steps == WARM_UP else nullcontext
            with observe(self.blocking_lines):
                return self._on_capture_stream(self.ordinary_backward, batch, step)
        for static, part in zip(self.inputs, batch):
            if part is not None:
                static.copy_(part, non_blocking=True)
        self.graphs[0].replay()
        return self.outputs

    def update(self, lr, total_norm):
        """Do what `update` does, by an ordinary call or by a replay."""
        if self.is_disabled:
            self.ordinary_update(lr, total_norm)
            return
        self.lr.fill_(lr)
        if self.graphs is None:
            self._on_capture_stream(self.ordinary_update, self.lr, total_norm)
        else:
            self.graphs[1].replay()
        for group in self.optimizer.param_groups:  # a checkpoint holds a number, as without graphs
            group["lr"] = lr

    def _prepare(self, batch, step):
        """Capture the step if WARM_UP steps are over. Return why it cannot be replayed, or None."""
        if self.graphs is not None:
            is_same = shapes(batch) == shapes(self.inputs)
            return (
                None if is_same else f"the batch of step {step} has another shape than earlier ones"
            )
        reason = obstacle(self.model, self.optimizer, batch, self.device)
        if reason is not None or self.ordinary_steps < WARM_UP:
            return reason
        return self.blocking_lines[0] if self.blocking_lines else self._capture(batch, step)

    def _capture(self, batch, step):
        """Capture both graphs. Return None, or why the capture failed."""
        self.inputs = tuple(None if part is None else part.clone() for part in batch)
        graphs = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        stream, groups = capture_stream(self.device), self.optimizer.param_groups
        flags = [group["capturable"] for group in groups]
        try:
            # the outer `with` restores the current stream also after a capture that failed
            with torch.cuda.stream(stream):
                with torch.cuda.graph(graphs[0], stream=stream):
                    self.outputs = self.ordinary_backward(self.inputs, step)
                for group in groups:  # torch demands it; a fused optimizer computes the same
                    group["capturable"] = True
                with torch.cuda.graph(graphs[1], stream=stream):
                    self.ordinary_update(self.lr, self.outputs[1])
        except Exception as error:  # code of other packages may raise any error
            first = error.__context__ or error  # ending a capture that failed raises another error
            return f"the capture failed, {type(first).__name__}: {str(first).partition(chr(10))[0]}"
        finally:
            for group, flag in zip(groups, flags):
                group["capturable"] = flag
        self.graphs = graphs
        return None

    def _on_capture_stream(self, function, *arguments):
        """Call a function on the capture's stream, after all work before and before all work after.

        Ordinary steps and capture share a stream, so that the capture finds the workspaces of
        cuBLAS there, and autograd does not remember another stream.
        """
        current, stream = torch.cuda.current_stream(self.device), capture_stream(self.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            result = function(*arguments)
        current.wait_stream(stream)
        return result


@functools.cache
def capture_stream(device):
    """Return the stream on which steps are captured.

    There is one stream per device, so that cuBLAS allocates its workspace once.
    """
    return torch.cuda.Stream(device)


def shapes(batch):
    """Return the shape and dtype of each part of a batch."""
    return [None if part is None else (part.shape, part.dtype) for part in batch]


def obstacle(model, optimizer, batch, device):
    """Return why the steps of a training cannot be replayed, or None if nothing is in the way."""
    if device.type != DEVICE_TYPE:
        return f"the model is on {device}, and CUDA graphs run on CUDA"
    if not all(group.get("fused") and "capturable" in group for group in optimizer.param_groups):
        return "it needs a fused Adam or AdamW"
    tensors = [part for part in batch if part is not None] if isinstance(batch, tuple) else [None]
    if not all(isinstance(part, torch.Tensor) and part.device == device for part in tensors):
        return f"a batch must be a tuple of tensors on {device} or None"
    hooks_of_steps = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
    if any(getattr(optimizer, hooks, None) for hooks in hooks_of_steps):
        return "a hook of the optimizer reads each training step"
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return f"a hook of {name} reads each training step"
    for name, module in model.named_modules():
        if any(getattr(module, hooks) for hooks in HOOKS) or getattr(module, "observer", None):
            return f"a hook or an observer at {name or 'the model'} reads each training step"
    return None


@contextmanager
def record_blocking_lines(waits):
    """Append to `waits` each line that waits for the GPU inside the `with` block.

    A wait, such as for `.item()` or for an index of bools, cannot be captured. Other warnings in
    the `with` block are dropped; earlier steps have shown them.
    """
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waits += [
        f"line {one.lineno} of {Path(one.filename).name} waits for the GPU"
        for one in caught
        if "called a synchronizing CUDA operation" in str(one.message)
    ]


def report(reason):
    """Warn that the steps of a training are not replayed, and why."""
    warnings.warn(f"training without a CUDA graph: {reason}", stacklevel=2)
