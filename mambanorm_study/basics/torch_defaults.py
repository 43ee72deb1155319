"""torch's settings while a run is trained."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Reset torch's settings to their defaults while open, whatever the caller has set.

    New tensors are float32 on the CPU, gradients are recorded, nothing is autocast, and float32 is
    not rounded to TensorFloat-32, which cuDNN does by default.
    """
    with ExitStack() as stack:
        stack.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.backends.cudnn.allow_tf32 = False
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for kind in ("cpu", "cuda", "mps"):
            # inside the caller's autocast, a cached cast of a weight would outlive its step
            stack.enter_context(torch.autocast(kind, enabled=False, cache_enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # a default device makes every call slower
            stack.enter_context(torch.device("cpu"))
        yield
