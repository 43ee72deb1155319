"""Claims about the fused step in Triton: convolution, scan with Δ's projection, norm with gate, and the whole mixer
equal their readable twins, forward and every gradient.

Without a GPU the kernels run in Triton's interpreter (conftest.py asks for it): the sizes are small. With a GPU the
same tests run there.
"""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mambanorm as mn
from mambanorm import block as block_module
from mambanorm.kernels import scan_triton
from mambanorm.kernels.scan_triton import obstacle
from mambanorm.operations import selective_scan
from mambanorm.operations.reference import causal_conv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(obstacle(DEVICE) is not None, reason=f"backend 'triton' {obstacle(DEVICE)}")

if obstacle(DEVICE) is None:
    from mambanorm.kernels import norm_token_triton
    from mambanorm.kernels.conv_triton import conv_silu_triton
    from mambanorm.kernels.norm_token_triton import token_norm_triton

BFLOAT_ULP = 2**-7
"""The last place of bfloat16. A cast is off by half of it, in Triton's interpreter, which cuts off, by all of it."""


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def strided(x):
    """The same values, (B, L, D), cut out of a wider tensor whose other half is NaN."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), math.nan, dtype=x.dtype)
    wide[..., x.shape[-1] :] = x
    return wide[..., x.shape[-1] :]


def run(function, inputs, dtype, place=lambda x: x, low=()):
    """Results and the gradients of all inputs, in float64; inputs by name in `dtype`, None stays None."""
    given = {}
    for name, value in inputs.items():
        if value is None:
            given[name] = None
            continue
        kept = value.to(dtype)
        device = "cpu" if dtype == torch.float64 else DEVICE
        leaf = place(kept).to(device) if value.dim() == 3 and name in ("x", "z") else kept.to(device)
        given[name] = leaf.detach().requires_grad_()
    found = function(**given)
    found = found if isinstance(found, tuple) else (found,)
    loss = sum((y * sample(*y.shape, seed=90 + i).to(y)).sum() for i, y in enumerate(found))
    grads = torch.autograd.grad(loss, [v for v in given.values() if v is not None])
    names = [name for name, v in given.items() if v is not None]
    outputs = {f"out {i}": y.detach() for i, y in enumerate(found)} | dict(zip(names, grads, strict=True))
    return {name: value.cpu().double() for name, value in outputs.items()}


def largest_difference(ours, theirs):
    """Per result, relative to its largest number."""
    return {name: float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max().clamp(min=1e-3))
            for name in theirs}  # fmt: skip


def assert_equal(kernel, twin, inputs, dtype, bound, place=lambda x: x):
    """The kernel in `dtype` against the twin in float64, on the very numbers that `dtype` holds."""
    held = {name: None if v is None else v.to(dtype).double() for name, v in inputs.items()}
    errors = largest_difference(run(kernel, held, dtype, place), run(twin, held, torch.float64))
    assert max(errors.values()) <= bound, errors


# --------------------------------------------------------------------------------------------------------- convolution
def conv_twin(x, weight, bias):
    return F.silu(causal_conv(x, weight, bias))


def conv_inputs(batch, length, channels, taps):
    return {"x": sample(batch, length, channels), "weight": sample(channels, 1, taps, seed=1),
            "bias": sample(channels, seed=2)}  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "length", "channels", "taps"),
    [(1, 1, 1, 1), (2, 1, 3, 4), (2, 2, 5, 3), (1, 17, 64, 4), (2, 31, 67, 2), (1, 300, 3, 4), (2, 16, 8, 5)],
)
def test_the_convolution_equals_its_twin_at_every_size(batch, length, channels, taps):
    assert_equal(conv_silu_triton, conv_twin, conv_inputs(batch, length, channels, taps), torch.float32, 2e-6)


def test_the_convolution_reads_any_strides():
    assert_equal(conv_silu_triton, conv_twin, conv_inputs(2, 9, 6, 4), torch.float32, 2e-6, strided)


def test_the_convolution_in_bfloat16_is_off_by_one_cast():
    """Computed in float32 from what bfloat16 holds; the result and each gradient are cast once."""
    assert_equal(conv_silu_triton, conv_twin, conv_inputs(2, 19, 6, 4), torch.bfloat16, BFLOAT_ULP)


# ---------------------------------------------------------------------------------------------------------------- norm
def norm_twin(centred, groups, gated, fork):
    def twin(x, weight, bias, z):
        parts = x.unflatten(-1, (groups, -1))
        parts = parts - parts.mean(-1, keepdim=True) if centred else parts
        y = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(-2)
        y = y if weight is None else y * weight
        y = y if bias is None else y + bias
        y = y * F.silu(z) if gated else y
        return (y, x * 1) if fork else y

    return twin


def norm_inputs(batch, length, channels, gated, weight=True, bias=True):
    return {
        "x": 2 + sample(batch, length, channels),
        "weight": sample(channels, seed=1) if weight else None,
        "bias": sample(channels, seed=2) if bias else None,
        "z": sample(batch, length, channels, seed=3) if gated else None,
    }


def norm_kernel(centred, groups, fork):
    return lambda x, weight, bias, z: token_norm_triton(x, weight, bias, 1e-5, centred, groups, z, fork)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("fork", [True, False])
@pytest.mark.parametrize("place", [lambda x: x, strided], ids=["contiguous", "strided"])
def test_the_norm_equals_its_twin_with_gate_and_fork(centred, gated, fork, place):
    inputs = norm_inputs(2, 7, 20, gated)
    assert_equal(norm_kernel(centred, 1, fork), norm_twin(centred, 1, gated, fork), inputs, torch.float32, 5e-6, place)


@pytest.mark.parametrize(
    ("batch", "length", "channels", "groups"),
    [(1, 1, 3, 1), (3, 5, 12, 4), (1, 37, 67, 1), (2, 3, 2100, 1), (2, 600, 16, 2)],
)
def test_the_norm_equals_its_twin_at_every_size(batch, length, channels, groups):
    inputs = norm_inputs(batch, length, channels, True)
    assert_equal(norm_kernel(True, groups, False), norm_twin(True, groups, True, False), inputs, torch.float32, 5e-6)


def test_a_program_of_the_norms_backward_pass_goes_through_many_tiles(monkeypatch):
    monkeypatch.setattr(norm_token_triton, "PROGRAMS", 2)
    monkeypatch.setattr(norm_token_triton, "CELLS", 64)
    inputs = norm_inputs(2, 23, 20, True)  # 23 tiles of 2 tokens: 2 programs of 12 tiles, the last of one padded
    assert_equal(norm_kernel(True, 1, True), norm_twin(True, 1, True, True), inputs, torch.float32, 5e-6)


@pytest.mark.parametrize(("weight", "bias"), [(True, False), (False, False)])
def test_a_norm_without_scale_or_shift(weight, bias):
    inputs = norm_inputs(2, 3, 9, True, weight, bias)
    assert_equal(norm_kernel(True, 1, True), norm_twin(True, 1, True, True), inputs, torch.float32, 5e-6)


def test_the_norm_in_bfloat16_is_off_by_one_cast():
    inputs = norm_inputs(2, 7, 20, True)
    assert_equal(norm_kernel(False, 1, True), norm_twin(False, 1, True, True), inputs, torch.bfloat16, 2 * BFLOAT_ULP)


# ---------------------------------------------------------------------------------------- the scan from Δ's low rank
def low_twin(u, dt, W, A, B, C, D, bias, z):
    """u, z (B, L, E), dt (B, G, L, R), W (E, R), B and C (B, G, L, N): Δ is made first, in float64."""
    groups = dt.shape[1]
    delta = torch.einsum("bglr,ger->blge", dt, W.unflatten(0, (groups, -1))).flatten(2)
    rows = [None if x is None else x.transpose(1, 2) for x in (u, delta, z)]
    B, C = (m.transpose(2, 3) for m in (B, C))
    y = selective_scan(*rows[:2], A, B, C, D, rows[2], bias, True, backend="reference")
    return y.transpose(1, 2)


class LowScan(torch.autograd.Function):
    """The kernels with Δ's two factors and groups, as a mixer of stacked runs calls them."""

    @staticmethod
    def given(u, dt, W, A, B, C, D, bias, z):
        u, z = (None if x is None else x.transpose(1, 2) for x in (u, z))
        dt, B, C = (m.transpose(2, 3) for m in (dt, B, C))
        return scan_triton.Given(u, dt, B, C, z, W, A, D, bias, True, False)

    @staticmethod
    def forward(ctx, *tensors):
        given = LowScan.given(*tensors)
        y, states, _ = scan_triton.forward_pass(given, given.plan(), True, False)
        ctx.save_for_backward(states, *tensors)
        return y

    @staticmethod
    def backward(ctx, grad):
        states, *tensors = ctx.saved_tensors
        given = LowScan.given(*tensors)
        plan, groups = given.plan(), given.delta.shape[1]
        grads = scan_triton.backward_pass(given, plan, grad.transpose(1, 2), states)
        narrow = grads.partial.unflatten(1, (groups, -1)).sum(2)
        ddt, dB, dC = narrow.split([plan.rank, plan.size, plan.size], -1)
        return grads.u, ddt, grads.low, grads.A, dB, dC, grads.D, grads.bias, grads.z


def low_inputs(batch, length, channels, size, rank, groups=1, gate=True):
    shapes = dict(u=(batch, length, channels), dt=(batch, groups, length, rank), W=(channels, rank), A=(channels, size),
                  B=(batch, groups, length, size), C=(batch, groups, length, size), D=(channels,), bias=(channels,),
                  z=(batch, length, channels))  # fmt: skip
    inputs = {name: sample(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}
    return inputs | {"A": -inputs["A"].exp(), "z": inputs["z"] if gate else None}


@pytest.mark.parametrize(
    ("batch", "length", "channels", "size", "rank", "groups"),
    [(1, 1, 1, 1, 1, 1), (2, 7, 5, 3, 3, 1), (1, 8, 16, 4, 4, 1), (1, 37, 18, 2, 5, 1), (2, 9, 12, 4, 2, 3)],
)
def test_the_scan_makes_delta_from_its_low_rank(batch, length, channels, size, rank, groups):
    inputs = low_inputs(batch, length, channels, size, rank, groups)
    assert_equal(LowScan.apply_named, low_twin, inputs, torch.float32, 1e-5)


def test_the_scan_from_its_low_rank_without_a_gate():
    assert_equal(LowScan.apply_named, low_twin, low_inputs(1, 11, 6, 3, 2, gate=False), torch.float32, 1e-5)


LowScan.apply_named = staticmethod(lambda **named: LowScan.apply(*named.values()))


def test_same_inputs_give_the_same_bits():
    inputs = {name: v.float().to(DEVICE) for name, v in low_inputs(2, 9, 36, 2, 2).items()}
    found = []
    for _ in range(2):
        leaves = {name: v.clone().requires_grad_() for name, v in inputs.items()}
        y = LowScan.apply_named(**leaves)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(leaves.values()))])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


# --------------------------------------------------------------------------------------------------------- whole block
ARMS = ("None>SSM>None", "RMSN>SSM>None", "None>SSM>LN", "RMSN>SSM>RMSN", "None>SSM>None+B:RMSN",
        "LN>SSM>GN-token+delta:RMSN+gated:RMSN", "RMSN>SSM>None+z:LN+conv:RMSN+branch:LN", "None>SSM>IN")  # fmt: skip


def block_of(arm, backend, dtype=torch.float32, d_model=12, **options):
    torch.manual_seed(0)
    n1, n2, more = mn.Arm.parse(arm)
    block = mn.MambaBlock(d_model, n1, n2, more, **(dict(d_state=4, scan_backend=backend) | options))
    with torch.no_grad():
        for i, p in enumerate(block.parameters()):
            p.add_(0.1 * sample(*p.shape, seed=i).to(p))
    return block.to(dtype)


def block_results(block, x, readable=False, dtype=None):
    """y and the gradients of x and of every parameter, by name; `dtype` under autocast."""
    x = x.to(next(block.parameters())).requires_grad_()
    forward = (lambda x: block._forward_readable(x, None)) if readable else block
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        y = forward(x)
    loss = (y * sample(*y.shape, seed=99).to(y)).sum()
    names, parameters = zip(*block.named_parameters(), strict=True)
    grads = torch.autograd.grad(loss, [x, *parameters])
    found = dict(zip(("y", "x", *names), (y.detach() - x.detach(), *grads), strict=True))
    return {name: value.detach().cpu().double() for name, value in found.items()}


@pytest.fixture
def triton_norms(monkeypatch):
    """On the CPU too the norms run in Triton, as they do on CUDA."""
    from mambanorm.norms import base

    if DEVICE == "cpu":
        monkeypatch.setattr(base, "fusible", lambda *tensors: False)
        monkeypatch.setattr(base, "fusible_triton", lambda *tensors: tensors[0].dtype != torch.float64)


@pytest.mark.parametrize("arm", ARMS)
def test_a_fused_block_equals_its_readable_twin(arm, triton_norms):
    x = sample(2, 11, 12)
    block = block_of(arm, "triton").to(DEVICE)
    assert (
        block_module.fused_kernels(block, x.float().to(DEVICE), block._mixer_parameters())[0].__name__ == "mixer_triton"
    )
    ours = block_results(block, x)
    theirs = block_results(block_of(arm, "reference", torch.float64), x, readable=True)
    errors = largest_difference(ours, theirs)
    assert max(errors.values()) <= 2e-5, errors


@pytest.mark.parametrize("options", [dict(dt_rank=17), dict(d_conv=2, expand=1), dict(d_conv=3, d_state=5, dt_rank=3)])
def test_a_fused_block_of_any_size_equals_its_readable_twin(options):
    """Above MOST_RANKS a matrix product makes Δ."""
    x = sample(1, 9, 12)
    for arm in ("RMSN>SSM>None", "None>SSM>LN+B:RMSN"):
        ours = block_results(block_of(arm, "triton", **options).to(DEVICE), x)
        theirs = block_results(block_of(arm, "reference", torch.float64, **options), x, readable=True)
        errors = largest_difference(ours, theirs)
        assert max(errors.values()) <= 2e-5, errors


@pytest.mark.parametrize("arm", ["RMSN>SSM>None", "None>SSM>LN", "RMSN>SSM>RMSN+B:RMSN"])
def test_a_fused_block_under_autocast_is_as_near_to_the_truth_as_its_readable_twin(arm, triton_norms):
    """Under the same autocast both round to bfloat16 at about a dozen places. Against float64, the fused one may be
    half as far off again as the readable one: it rounds at fewer places, but never at the very same ones."""
    x = sample(2, 11, 12)
    exact = block_results(block_of(arm, "reference", torch.float64), x, readable=True)
    ours = block_results(block_of(arm, "triton").to(DEVICE), x, dtype=torch.bfloat16)
    block = block_of(arm, "reference").to(DEVICE)
    theirs = block_results(block, x, readable=True, dtype=torch.bfloat16)
    far, twin = largest_difference(ours, exact), largest_difference(theirs, exact)
    assert max(far.values()) <= 1.5 * max(max(twin.values()), BFLOAT_ULP), (far, twin)


def test_a_fused_block_in_bfloat16_throughout(triton_norms):
    x = sample(2, 11, 12)
    block = block_of("RMSN>SSM>RMSN", "triton").bfloat16().to(DEVICE)
    held = block_of("RMSN>SSM>RMSN", "reference", torch.float64)
    held.load_state_dict({name: v.double() for name, v in block.state_dict().items()})
    errors = largest_difference(block_results(block, x), block_results(held, x.bfloat16().double(), readable=True))
    assert max(errors.values()) <= 12 * BFLOAT_ULP / 2, errors  # a dozen roundings in a row, each by up to half a place


def test_what_keeps_a_block_from_the_fused_step(monkeypatch):
    x = torch.zeros(1, 2, 12, device=DEVICE)
    for backend, fused in (("triton", True), ("reference", False), ("mamba_ssm", False)):
        block = block_of("RMSN>SSM>None", backend).to(DEVICE)
        assert block_module.can_fuse_triton(block, x, block._mixer_parameters()) == fused
        assert not block_module.can_fuse_triton(block, x.double(), block._mixer_parameters())
        block.observer = print
        assert not block_module.can_fuse_triton(block, x, block._mixer_parameters())


@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_non_finite_input_reaches_the_result(value, triton_norms):
    x = sample(1, 9, 12)
    x[0, 4, 3] = value
    with np.errstate(all="ignore"):
        y = block_of("RMSN>SSM>None", "triton").to(DEVICE)(x.float().to(DEVICE)).cpu()
    theirs = block_of("RMSN>SSM>None", "reference", torch.float64)._forward_readable(x, None)
    assert torch.equal(y.isfinite(), theirs.isfinite())
    assert y[0, :4].isfinite().all()
    assert not y[0, 4:].isfinite().any()


@pytest.mark.parametrize("arm", ["RMSN>SSM>None", "None>SSM>LN", "None>SSM>None+B:RMSN"])
def test_a_second_derivative_is_refused(arm, triton_norms):
    block = block_of(arm, "triton").to(DEVICE)
    x = sample(1, 3, 12).float().to(DEVICE).requires_grad_()
    (grad,) = torch.autograd.grad(block(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_a_fused_block_takes_an_input_of_any_strides(triton_norms):
    x = sample(2, 5, 12).float().to(DEVICE)
    block = block_of("RMSN>SSM>LN", "triton").to(DEVICE)
    other = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not other.is_contiguous()
    torch.testing.assert_close(block(other), block(x), rtol=0, atol=1e-6)


def test_only_the_parameters_that_learn_get_gradients():
    block = block_of("None>SSM>None", "triton").to(DEVICE)
    for name, p in block.named_parameters():
        p.requires_grad_(name == "A_log")
    block(sample(1, 5, 12).float().to(DEVICE)).sum().backward()
    assert [name for name, p in block.named_parameters() if p.grad is not None] == ["A_log"]


def test_backward_may_be_asked_for_within_autocast(triton_norms):
    found = []
    for within in (False, True):
        block = block_of("RMSN>SSM>LN", "triton").to(DEVICE)
        x = sample(2, 5, 12).float().to(DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = block(x).float().square().sum()
            if within:
                loss.backward()
        if not within:
            loss.backward()
        found.append([p.grad for p in block.parameters()])
    for outside, inside in zip(*found, strict=True):
        assert outside.dtype == inside.dtype == torch.float32
        torch.testing.assert_close(inside, outside, rtol=BFLOAT_ULP, atol=BFLOAT_ULP * float(outside.abs().max()))


def test_no_gradient_no_states_kept():
    block = block_of("RMSN>SSM>None", "triton").to(DEVICE)
    with torch.no_grad():
        y = block(sample(1, 5, 12).float().to(DEVICE))
    assert not y.requires_grad


# ------------------------------------------------------------------------------------------------ the compiler, no GPU
COMPILE = """
import re, subprocess, sys, tempfile
from pathlib import Path
import torch, triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
import mambanorm as mn
from mambanorm.kernels import conv_triton, norm_token_triton, scan_triton, scan_triton_loops
from mambanorm import block as block_module
from mambanorm.norms import base

class Driver:  # all that compiling asks a driver for; a device of its own for each capability
    def get_current_device(self): return capability
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", capability, 32)

class Recorder:
    def __init__(self, kernel): self.kernel = kernel
    def __getitem__(self, grid):
        return lambda *arguments, **options: made.append(self.kernel.warmup(*arguments, grid=grid, **options))

triton.runtime.driver.set_active(Driver())
made = []
for module in (scan_triton_loops, conv_triton, norm_token_triton):
    module.forward_kernel, module.backward_kernel = Recorder(module.forward_kernel), Recorder(module.backward_kernel)
block_module.can_fuse, scan_triton.usable = lambda *_: False, lambda *_: True
base.fusible, base.fusible_triton = lambda *_: False, lambda *_: True

def resources(kernel):  # bytes of spilled registers, shared memory of a program
    tool = Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"]), file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True).stdout
    return int(re.search("STACK:(\\d+)", said)[1])

whole, odd = (24, 64, 16, None, True, "RMSN>SSM>None"), (7, 12, 3, 17, False, "RMSN>SSM>LN")
for capability, form in ((80, whole), (90, whole), (90, odd)):
    length, d_model, state, rank, low, arm = form  # a rank of 17 is above MOST_RANKS
    n1, n2, more = mn.Arm.parse(arm)
    block = mn.MambaBlock(d_model, n1, n2, more, d_state=state, dt_rank=rank, scan_backend="triton")
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        y = block(torch.randn(40, length, d_model))
    y.sum().backward()
for kernel in made:
    tensor_cores = "mma" in kernel.asm["ptx"]
    print(f"sm_{kernel.metadata.target.arch}", kernel.metadata.name, resources(kernel), kernel.metadata.shared < 48000,
          tensor_cores)
"""


def test_the_step_compiles_for_nvidia_gpus_without_spills(tmp_path):
    """From source to machine code, which needs no GPU. Nothing becomes a matrix product, which would be in TF32."""
    keep = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment = keep | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", COMPILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {arch for arch, *_ in kernels} == {"sm_80", "sm_90"}
    assert len(kernels) == 6 + 6 + 8  # norm, convolution and scan, forward and backward; the odd block has two norms
    assert all(int(spilled) <= 16 for _, _, spilled, *_ in kernels), done.stdout  # bytes; 3.6 spills 8, 3.7 none
    assert all(rest == ["True", "False"] for _, _, _, *rest in kernels), done.stdout


@pytest.mark.parametrize("arm", ["RMSN>SSM>LN", "None>SSM>None+B:RMSN"])
def test_stacked_blocks_take_the_readable_path_around_the_kernels_of_the_scan(arm):
    """Inside vmap no fused function is called: it would be given tensors that stand for several."""
    torch.manual_seed(0)
    blocks = [mn.MambaBlock(6, *mn.Arm.parse(arm), d_state=3, scan_backend="triton").to(DEVICE) for _ in range(2)]
    x = torch.randn(2, 1, 5, 6, device=DEVICE)
    weights, buffers = torch.func.stack_module_state(blocks)

    def one(weights, buffers, x):
        return torch.func.functional_call(blocks[0], (weights, buffers), (x,))

    found = torch.vmap(one)(weights, buffers, x)
    expected = torch.stack([block(row) for block, row in zip(blocks, x, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
