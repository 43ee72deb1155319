"""torch's settings while a run is trained."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def plain_torch() -> Iterator[None]:
    """Reset torch's settings to their defaults while open, whatever the caller has set.

    New tensors are float32 on the CPU, gradients are recorded, nothing is autocast, oneDNN
    computes, and float32 is not rounded to TensorFloat-32, which cuDNN does by default.
    """
    settings = (
        (torch.backends.cudnn, "allow_tf32", False),
        (torch.backends.mkldnn, "enabled", True),
    )
    with ExitStack() as stack:
        for owner, name, value in settings:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        for kind in ("cpu", "cuda", "mps"):
            stack.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
            torch.set_autocast_enabled(kind, False)
        # a cached cast outlives its step inside the caller's autocast
        stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(False)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.get_default_device().type != "cpu":  # a default device makes every call slower
            stack.enter_context(torch.device("cpu"))
        yield
