"""Resets torch's settings while a run is trained."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Use fixed settings of torch inside the `with` block, whatever the caller has set.

    The settings are torch's defaults (new tensors are float32 on the CPU, gradients are recorded,
    autocast is off), except that cuDNN does not round float32 to TensorFloat-32.
    """
    with ExitStack() as stack:
        stack.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.backends.cudnn.allow_tf32 = False
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for kind in ("cpu", "cuda", "mps"):
            # The cache of autocast is off, because inside a caller's autocast a cast weight would
            # stay cached after the step.
            stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # only if needed, as it slows every call
            stack.enter_context(torch.device("cpu"))
        yield
