"""Tests on a GPU: `make test-gpu`. Elsewhere they are skipped.

MAMBANORM_TEST_DEVICE names the device: "cuda", or "cpu" to try the tests without a GPU, with the
Triton kernels in their slow interpreter.
"""

import os

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    """Return the device of the tests, or skip them."""
    name = os.environ.get("MAMBANORM_TEST_DEVICE")
    if name not in ("cuda", "cpu"):
        pytest.skip("the GPU is hidden from `make test`: run `make test-gpu`")
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return torch.device(name)
