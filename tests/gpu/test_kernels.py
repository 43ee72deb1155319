"""Claims about kernels and models on a GPU: they equal float64 on the CPU, as far as their precision
allows.

The checks and their limits are those of `python -m benchmarks.gpu`.
"""

from functools import partial

import pytest
import torch

import mambanorm as mn
from benchmarks import gpu_errors
from mambanorm.kernels.backends import BACKENDS
from tests.twins import sample, tokens

SCANS = [name for name in BACKENDS if name.startswith("triton")]
PRECISIONS = [torch.float32, torch.bfloat16]
LONG = (2, 1_030, 40, 16)  # (B, L, D, N): many tiles along the sequence, and an incomplete one

each_scan = pytest.mark.parametrize("backend", SCANS)
each_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


@each_scan
@each_precision
@pytest.mark.parametrize("shape", [*gpu_errors.SCAN_SHAPES, LONG], ids=str)
def test_the_scan_and_its_gradients_equal_float64(shape, dtype, backend, device):
    if device.type == "cpu" and shape[1] > 200:
        pytest.skip("takes minutes in Triton's interpreter")
    inputs = partial(gpu_errors.scan_inputs, shape, device, dtype)
    gpu_errors.kernel_error(gpu_errors.scan, inputs, backend)


@each_precision
@pytest.mark.parametrize("shape", gpu_errors.CONV_SHAPES, ids=str)
def test_the_convolution_and_its_gradients_equal_float64(shape, dtype, device):
    inputs = partial(gpu_errors.conv_inputs, shape, device, dtype)
    gpu_errors.kernel_error(gpu_errors.conv, inputs)


@each_scan
@each_precision
@pytest.mark.parametrize("arm", gpu_errors.ARMS)
def test_a_block_and_its_gradients_equal_the_block_on_the_cpu(arm, dtype, backend, device):
    make_block = partial(mn.MambaBlock, 40, *mn.Arm.parse(arm))
    gpu_errors.block_error(make_block, sample(2, 37, 40), device, dtype, backend)


@each_scan
def test_generation_step_by_step_equals_the_full_forward_pass(backend, device):
    """Each step's logits equal those of the forward pass over all ids to four digits. Of the ids
    that `generate` writes, each is the likeliest to the same precision.
    """
    torch.manual_seed(0)
    model = mn.LanguageModel(50, d_model=32, n_layers=4, scan_backend=backend).to(device)
    ids = tokens(50, 3, 40).to(device)
    with torch.no_grad():
        whole = model(ids)
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-4 * float(whole.abs().max()))
    logits, cache = model.prefill(ids[:, :7])
    close(logits, whole[:, 6])
    for t in range(7, ids.shape[1]):
        close(model.step(ids[:, t], cache), whole[:, t])

    written = model.generate(ids[:, :7], 12)
    assert torch.equal(written[:, :7], ids[:, :7])
    with torch.no_grad():
        logits = model(written)[:, 6:-1]
    chosen = logits.gather(-1, written[:, 7:, None])[..., 0]
    close(chosen, logits.amax(-1))
