"""Claims about the Triton scan and convolution: the kernels equal the reference in every form.

The kernels run in Triton's interpreter (tests/conftest.py requests it), one operation at a time in
NumPy, so the sizes are small. With MAMBANORM_TEST_DEVICE=cuda the same tests run on the GPU.

Glossary: B batch, L length, D channels, N state size, G groups; see `operations/reference.py` for
the equations.
"""

import math
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mambanorm as mn
from mambanorm.kernels import backends
from mambanorm.kernels.backends import choose_backend, triton_obstacle as obstacle
from mambanorm.operations import layers, scan_backend, selective_scan
from mambanorm.operations.conv_gate import causal_conv
from mambanorm_study.basics.settings import ROOT
from tests.mambanorm.operations.test_scan import FLOATS, OPTIONS, error, example, leaves

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    obstacle(DEVICE) is not None, reason=f"backend 'triton' {obstacle(DEVICE)}"
)

if obstacle(DEVICE) is None:
    from mambanorm.kernels import gluon, scan_triton
    from mambanorm.kernels.conv_triton import conv_silu_triton
    from mambanorm.kernels.scan_triton import Plan


@pytest.fixture(autouse=True)
def small_chunks(request, monkeypatch):
    """Make chunks of 4 to 16 steps, so that short sequences have several."""
    if "chunks_divide" not in request.node.name:
        monkeypatch.setattr(scan_triton, "CHUNK", 8)


def on_device(arguments):
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def scan(arguments, **options):
    return selective_scan(**arguments, **options, backend="triton")


def compare(ours, theirs, forward, backward):
    """Compare results, last states and every gradient of two sets of leaves.

    The second set goes through the reference.
    """
    out, last = scan(ours, return_last_state=True)
    expected, expected_last = selective_scan(**theirs, return_last_state=True, backend="reference")
    direction = torch.randn(expected.shape, dtype=expected.dtype)
    out.backward(direction.to(out))
    expected.backward(direction)
    errors = {
        "out": error(out.detach().cpu(), expected.detach()),
        "last": error(last.cpu(), expected_last),
    }
    grads = {
        name: error(ours[name].grad.cpu(), theirs[name].grad)
        for name in FLOATS
        if ours[name] is not None
    }
    assert max(errors.values()) <= forward, errors
    assert max(grads.values()) <= backward, grads


def assert_equals_reference(arguments, forward=1e-5, backward=2e-5):
    """Compare triton in float32 with the reference in float64, to the CPU kernel's bounds."""
    compare(leaves(on_device(arguments)), leaves(arguments, torch.float64), forward, backward)


# ---------------------------------------------------------------------- equality with the reference
SIZES = [
    *(dict(batch=1, channels=3, length=length) for length in (1, 3, 5, 8, 9, 17, 33, 41)),
    *(
        dict(batch=batch, channels=channels, length=6)
        for batch, channels in ((1, 1), (3, 2), (1, 16), (2, 17))
    ),
    *(dict(length=6, size=size) for size in (1, 4, 33)),
    *(dict(batch=1, channels=6, length=5, b=b, c=c) for b, c in ((0, 3), (2, 0), (3, 2), (2, 3))),
    *(
        dict(batch=n, channels=108, length=3, b=b, c=c)
        for n, b, c in ((2, 2, 2), (1, 3, 2), (1, 0, 2))
    ),  # wide groups
    *(
        dict(batch=1, length=6, skip=skip, gate=skip, bias=bias, softplus=soft)
        for skip, bias, soft in OPTIONS
    ),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_triton_equals_reference(sizes):
    assert_equals_reference(example(**sizes))


# ------------------------------------------------------------------------------------ low precision
@pytest.mark.parametrize(("dtype", "ulp"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10)])
def test_low_precision_inputs_are_computed_in_float32_and_cast_back(dtype, ulp):
    """Results for the same inputs in float32 and in `dtype` differ only by the cast of the result.

    A cast is off by half a unit in the last place. In Triton's interpreter it is off by a whole
    unit, because it truncates bfloat16 and a GPU rounds. The gradients have the same bound: each is
    cast once, at its end.
    """
    low = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) else v
        for k, v in example(length=9, gate=False).items()
    }
    ours, theirs = leaves(on_device(low), dtype), leaves(low, torch.float64)
    compare(ours, theirs, ulp, ulp)
    out, last = scan(ours, return_last_state=True)
    assert out.dtype == dtype
    assert last.dtype == torch.float32
    assert all(ours[name].grad.dtype == dtype for name in FLOATS if name != "z")


# -------------------------------------------------------------------------------------- inf and NaN
@pytest.mark.parametrize(("length", "skip"), [(5, True), (5, False), (24, True)])
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_non_finite_input_reaches_the_result_as_in_the_reference(name, value, length, skip):
    arguments = example(batch=1, channels=3, length=length, skip=skip)
    if arguments[name] is None:
        pytest.skip("no D")
    arguments[name].view(-1)[arguments[name].numel() // 2] = value
    with np.errstate(all="ignore"):
        ours = scan(on_device(arguments), return_last_state=True)
    theirs = selective_scan(**arguments, return_last_state=True, backend="reference")
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.isinf().cpu(), b.isinf())
        assert torch.equal(a.isnan().cpu(), b.isnan())


@pytest.mark.parametrize("name", ["u", "delta", "B", "C", "grad"])
def test_an_infinity_in_the_last_step_stays_one_and_makes_no_nan_of_what_lies_beyond_the_lanes(
    name,
):
    """All values are positive, so nothing cancels.

    D = 3 and N = 3 fill tiles of 4 and 4, and 0·∞ in a padded lane would be NaN.
    """
    arguments = example(batch=1, channels=3, length=6, gate=False) | {
        "direction": torch.ones(1, 3, 6)
    }
    arguments |= {
        k: v.abs() for k, v in arguments.items() if k in ("u", "B", "C", "D", "delta_bias")
    }
    arguments[name if name != "grad" else "direction"][..., -1] = math.inf
    results = []
    for move, backend in ((on_device, "triton"), (dict, "reference")):
        inputs = leaves(move(arguments))
        direction = inputs.pop("direction").detach()
        with np.errstate(all="ignore"):
            out, last = selective_scan(**inputs, return_last_state=True, backend=backend)
            out.backward(direction)
        results.append(
            [out.detach(), last, *(inputs[k].grad for k in FLOATS if inputs[k] is not None)]
        )
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours.isinf().cpu(), theirs.isinf())
        assert torch.equal(ours.isnan().cpu(), theirs.isnan())


def test_an_infinite_state_stays_infinite_where_the_factor_over_a_chunk_is_0():
    arguments = example(batch=1, channels=3, length=24, softplus=False, bias=False, gate=False)
    arguments["u"][..., 0] = math.inf
    arguments["A"] = -arguments["A"].abs() - 16
    arguments["delta"] = torch.full_like(arguments["delta"], 2.0)
    with np.errstate(all="ignore"):
        _, ours = scan(on_device(arguments), return_last_state=True)
    _, theirs = selective_scan(**arguments, return_last_state=True, backend="reference")
    assert torch.equal(ours.isinf().cpu(), theirs.isinf())
    assert torch.equal(ours.isnan().cpu(), theirs.isnan())


def test_a_state_of_zero_stays_zero_where_the_factor_over_a_chunk_is_infinite():
    """exp(A·Σ Δ) overflows over a chunk, but all inputs before the last step are 0."""
    arguments = example(batch=1, channels=3, length=20, softplus=False, bias=False, gate=False)
    arguments["u"][..., :19] = 0
    arguments["A"] = arguments["A"].abs() + 12
    arguments["delta"] = torch.full_like(arguments["delta"], 3.0)
    with np.errstate(all="ignore"):
        out = scan(on_device(arguments)).cpu()
    expected = selective_scan(**arguments, backend="reference")
    assert error(out, expected.double()) < 1e-5


def surrounded_by_nan(tensor):
    """Return the same values as a view of a larger tensor of NaN."""
    wide = tensor.new_full([n + 3 for n in tensor.shape], math.nan)
    view = wide[tuple(slice(1, 1 + n) for n in tensor.shape)]
    view.copy_(tensor)
    return view


def result_and_gradients(arguments):
    """Return result, last state and all gradients."""
    inputs = [arguments[name].requires_grad_() for name in FLOATS if arguments[name] is not None]
    out, last = scan(arguments, return_last_state=True)
    return [out, last, *torch.autograd.grad(out.square().sum(), inputs)]


def test_lanes_beyond_the_inputs_read_nothing_and_every_buffer_is_written_before_it_is_read(
    monkeypatch,
):
    """D = 5 and N = 3 fill tiles of 8 and 4.

    A read without its mask gives NaN, and every new buffer is filled with NaN.
    """
    arguments = on_device(example(length=6, b=1, c=0))
    expected = result_and_gradients(leaves(arguments))
    surrounded = {
        k: surrounded_by_nan(v) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()
    }
    make = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: make(*a, **k).fill_(math.nan))
    actual = result_and_gradients(surrounded)
    monkeypatch.undo()
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


# -------------------------------------------------------------------------------- layout and memory


def test_chunks_divide_the_sequence_where_they_can():
    lengths = {1: 4, 40: 40, 64: 64, 500: 100, 784: 56, 1024: 64, 1009: 64, 2048: 64, 8192: 128}
    for length, chunk in lengths.items():
        assert Plan(1, length, 64, 16).chunk == chunk
    assert not Plan(1, 784, 64, 16).is_padded(Plan(1, 784, 64, 16).tile(4))
    assert Plan(1, 1009, 64, 16).is_padded(Plan(1, 1009, 64, 16).tile(4))


@pytest.mark.parametrize("state_size", [1, 2, 3, 16, 33, 64, 256])
def test_all_threads_of_a_tile_hold_different_cells(state_size):
    tile = Plan(1, 64, 4096, state_size).tile(2)
    threads = 32 * math.prod(tile.cells.warps_per_cta)
    cells = tile.channels * tile.states
    assert cells % threads == 0
    assert tile.states >= state_size
    assert math.prod(tile.cells.threads_per_warp) == 32
    # all steps and 16 cells of each step belong to one thread, more only for very large N
    assert tile.cells.size_per_thread[0] == 2
    assert cells // threads == max(16, tile.states // 16)


def test_blocks_stay_inside_a_group_and_partial_sums_are_few_where_the_gpu_is_busy():
    for plan in (Plan(1, 1, 96, 16, 2, 3), Plan(64, 9, 105, 3, 5, 3)):
        tile = plan.tile(2)
        per_group, blocks = plan.blocks(tile)
        assert per_group * tile.channels >= plan.group_channels
        assert blocks % math.lcm(plan.groups_b, plan.groups_c) == 0
    for batch, part_blocks in ((64, 4), (1, 1)):
        plan = Plan(batch, 1024, 128, 16, multiprocessors=132)
        assert plan.part_blocks(plan.tile(2)) == part_blocks


# ---------------------------------------------------------------------------------------- gradients


def test_gradients_come_where_asked_for_once_and_in_the_layout_of_the_kernel():
    for name in FLOATS:
        arguments = on_device(example(length=3))
        arguments[name].requires_grad_()
        scan(arguments).sum().backward()
        assert [key for key in FLOATS if arguments[key].grad is not None] == [name]
    arguments = leaves(on_device(example(length=6)))
    out, last = scan(arguments, return_last_state=True)
    assert not last.requires_grad
    for loss in (out.sum(), out.square().sum()):
        wanted = [arguments[name] for name in ("u", "delta", "z")]
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(loss, wanted, create_graph=True)
        grads = torch.autograd.grad(loss, wanted, retain_graph=True)
        assert all(x.transpose(1, 2).is_contiguous() for x in (out, *grads))


@pytest.mark.parametrize("arm", ["RMSN>SSM>None", "None>SSM>GN"])
def test_a_block_computes_the_same_with_triton_as_with_the_reference(arm):
    results = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        n1, n2, _ = mn.Arm.parse(arm)
        block = mn.MambaBlock(8, n1, n2, d_state=4, scan_backend=backend).to(DEVICE)
        y = block(torch.randn(2, 5, 8, device=DEVICE))
        y.square().sum().backward()
        results.append([y, *(p.grad for p in block.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert error(ours.detach(), theirs.detach().double()) < 2e-5


def test_autocast_reaches_the_scan_in_bfloat16_and_the_parameters_in_float32(monkeypatch):
    """The block runs as on CUDA, with the convolution that it uses there.

    Forward and backward, a dozen results in a row are rounded to the 8 bits of bfloat16, by up to
    2^-8 each, because Triton's interpreter truncates and a GPU rounds: 5 % in all.
    """
    seen, ours = {}, scan_triton.scan_triton

    def spy(u, delta, A, B, C, D, delta_bias, *options):
        named = dict(u=u, delta=delta, A=A, B=B, C=C, D=D, delta_bias=delta_bias)
        seen.update({name: value.dtype for name, value in named.items()})
        return ours(u, delta, A, B, C, D, delta_bias, *options)

    monkeypatch.setattr(layers, "conv_silu", conv_silu_triton)
    monkeypatch.setattr(scan_triton, "scan_triton", spy)
    torch.manual_seed(0)
    block = mn.MambaBlock(8, d_state=4, scan_backend="triton").to(DEVICE)
    x = torch.randn(2, 5, 8, device=DEVICE)
    results = []
    for enabled in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            y = block(x)
        results.append([y - x, *torch.autograd.grad(y.square().sum(), list(block.parameters()))])
    low = {"u", "delta", "B", "C"}
    assert low < seen.keys()
    assert seen == {name: torch.bfloat16 if name in low else torch.float32 for name in seen}
    for full, half in zip(*results, strict=True):
        assert half.dtype == torch.float32
        assert error(half.detach(), full.detach().double()) < 0.05


# ---------------------------------------------------------- comparison with a twin, any operation
# The last place of bfloat16. A cast is off by half of it; in Triton's interpreter, which truncates,
# by all of it.
BFLOAT_ULP = 2**-7


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def strided(x):
    """Return the same values (B, L, E), as a part of a wider tensor whose other half is NaN."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), math.nan, dtype=x.dtype, device=x.device)
    wide[..., x.shape[-1] :] = x
    return wide[..., x.shape[-1] :]


def run(function, inputs, dtype, device, lay_out):
    """Return result and gradients, in float64.

    The inputs are cast to `dtype`; None stays None. `lay_out` changes the layout of the input x.
    """
    tensors = {}
    for name, value in inputs.items():
        if value is not None:
            value = value.to(device, dtype)
            tensors[name] = (lay_out(value) if name == "x" else value).detach().requires_grad_()
    y = function(**(inputs | tensors))
    loss = (y * sample(*y.shape, seed=90).to(y)).sum()
    grads = torch.autograd.grad(loss, list(tensors.values()))
    results = {"y": y, **dict(zip(tensors, grads, strict=True))}
    return {name: value.detach().cpu().double() for name, value in results.items()}


def assert_equals_twin(kernel, twin, inputs, dtype, bound, lay_out=lambda x: x):
    """Compare the kernel in `dtype` with the twin in float64, on inputs rounded to `dtype`.

    Errors are relative to the largest number of each result.
    """
    rounded = {name: None if v is None else v.to(dtype).double() for name, v in inputs.items()}
    ours = run(kernel, rounded, dtype, DEVICE, lay_out)
    theirs = run(twin, rounded, torch.float64, "cpu", lambda x: x)
    errors = {name: float((ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-3))
              for name, value in theirs.items()}  # fmt: skip
    assert max(errors.values()) <= bound, errors


# -------------------------------------------------------------------------------------- convolution
def conv_twin(x, weight, bias):
    return F.silu(causal_conv(x, weight, bias))


def conv_inputs(batch, length, channels, taps):
    return {"x": sample(batch, length, channels), "weight": sample(channels, 1, taps, seed=1),
            "bias": sample(channels, seed=2)}  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "length", "channels", "taps"),
    [
        (1, 1, 1, 1),
        (2, 1, 3, 4),
        (2, 2, 5, 3),
        (1, 17, 64, 4),
        (2, 31, 67, 2),
        (1, 260, 3, 4),
        (2, 16, 8, 5),
    ],
)
def test_the_convolution_equals_its_twin_at_every_size_and_reads_any_strides(
    batch, length, channels, taps
):
    inputs = conv_inputs(batch, length, channels, taps)
    lay_out = strided if length % 2 else lambda x: x
    assert_equals_twin(conv_silu_triton, conv_twin, inputs, torch.float32, 2e-6, lay_out)


def test_the_convolution_in_bfloat16_is_off_by_one_cast():
    """The kernel computes in float32 from bfloat16 inputs; result and gradients are cast once."""
    assert_equals_twin(
        conv_silu_triton, conv_twin, conv_inputs(2, 19, 6, 4), torch.bfloat16, BFLOAT_ULP
    )


# ----------------------------------------------------------------------------- back ends and errors
@pytest.fixture
def no_cached_obstacle():
    """Empty the cache of `obstacle` before and after a test that changes its answer."""
    obstacle.cache_clear()
    yield
    obstacle.cache_clear()


# a tensor on CUDA, as far as the choice of a back end reads it
CUDA = SimpleNamespace(device=torch.device("cuda"), dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("mamba_ssm", "triton", "chosen"),
    [
        (True, True, "triton"),
        (True, False, "mamba_ssm"),
        (False, True, "triton"),
        (False, False, "reference"),
    ],
)
def test_cuda_takes_triton_then_mamba_ssm_then_the_reference(
    mamba_ssm, triton, chosen, monkeypatch
):
    monkeypatch.setattr(backends, "mamba_ssm", lambda: mamba_ssm or None)
    monkeypatch.setattr(
        backends, "triton_obstacle", lambda device: None if triton else "is missing"
    )
    assert scan_backend(CUDA) == chosen
    assert scan_backend(SimpleNamespace(device=CUDA.device, dtype=torch.float64)) == "reference"
    assert choose_backend("auto", CUDA, 256) == chosen
    assert choose_backend("auto", CUDA, vary=False) == ("mamba_ssm" if mamba_ssm else "reference")
    assert choose_backend("auto", CUDA, 257) == ("triton" if triton else "reference")


def test_triton_says_why_it_cannot_run(monkeypatch, no_cached_obstacle):
    with pytest.raises(
        ValueError, match=r"takes float32, bfloat16 or float16, given torch.float64 on cpu"
    ):
        selective_scan(**leaves(example(length=3), torch.float64), backend="triton")
    monkeypatch.setattr(gluon, "INTERPRETED", False)
    with pytest.raises(
        ValueError, match=r"'triton' runs on CUDA.*TRITON_INTERPRET=1.*given torch.float32 on cpu"
    ):
        selective_scan(**example(length=3), backend="triton")
    obstacle.cache_clear()
    monkeypatch.setattr(backends, "MIN_TRITON", (99, 0))
    assert re.search(r"needs Triton 99.0 or newer, and this is \d", obstacle("cuda"))
    monkeypatch.undo()
    monkeypatch.setattr(gluon, "INTERPRETED", False)
    obstacle.cache_clear()
    if DEVICE == "cpu":
        assert re.search("cannot start here.*C compiler", obstacle("cuda"), re.DOTALL)
    obstacle.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", None)  # then importing it raises ImportError
    monkeypatch.delitem(sys.modules, "mambanorm.kernels.gluon")
    with pytest.raises(
        ValueError, match="needs the package triton, which cannot be imported.*pip install 'triton"
    ):
        selective_scan(**example(length=3), backend="triton")


# ----------------------------------------------------------------------------- the compiler, no GPU
DRIVER = """
import torch, triton
from triton.backends.compiler import GPUTarget

class Driver:  # what the compiler needs of a driver; one device per capability
    def get_current_device(self): return capability
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", capability, 32)

class Recorder:
    def __init__(self, kernel): self.kernel = kernel
    def __getitem__(self, grid):
        def record(*arguments, **options):
            compiled.append(self.kernel.warmup(*arguments, grid=grid, **options))
        return record

triton.runtime.driver.set_active(Driver())
compiled = []
from mambanorm.kernels import conv_triton, scan_triton
for module in (scan_triton, conv_triton):
    for name in [name for name in vars(module) if name.endswith("_kernel")]:
        setattr(module, name, Recorder(getattr(module, name)))
"""

KERNELS = """
import re, subprocess, tempfile
from pathlib import Path
from tests.mambanorm.operations.test_scan import example, leaves
from tests.mambanorm.kernels.test_scan_triton import conv_inputs
from triton.backends import nvidia

def spilled(kernel):  # bytes of registers
    tool = Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [tool, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True).stdout
    return int(re.search("STACK:(\\d+)", usage)[1])

scan_triton.CHUNK = 8  # several chunks
forms = [dict(b=2, c=1, channels=64, size=16), dict(size=1, channels=1, length=1)]
forms += [dict(skip=False, bias=False, softplus=False), dict(batch=40, channels=256, size=64)]
capability = 90
for form, dtype in zip(forms, (torch.float32, torch.bfloat16, torch.float16, torch.float32)):
    arguments = leaves(example(**form, gate=False), dtype)
    del arguments["z"]
    scan_triton.scan_triton(**arguments)[0].sum().backward()
print(*(len(kernel.asm["cubin"]) > 1000 for kernel in compiled))
compiled.clear()
block = dict(batch=40, length=32, channels=128, gate=False)
for capability, size in ((80, 16), (90, 16), (90, 64)):
    arguments = leaves(example(**block, size=size), torch.bfloat16)
    del arguments["z"]
    scan_triton.scan_triton(**arguments)[0].sum().backward()
    x = {k: v.bfloat16().requires_grad_() for k, v in conv_inputs(40, 32, 128, 4).items()}
    conv_triton.conv_silu_triton(**x).sum().backward()
for kernel in compiled:
    print(kernel.name, f"sm_{kernel.metadata.target.arch}", spilled(kernel),
          kernel.metadata.shared < 48000, "mma" in kernel.asm["ptx"])
"""


def test_the_kernels_compile_for_nvidia_gpus_and_spill_little_at_the_sizes_of_a_block(tmp_path):
    """The interpreter accepts code that the compiler refuses; the compiler needs no GPU.

    A separate process compiles the kernels to machine code and never starts them. Nothing may
    become a matrix product, which would be in TF32. Only the kernel of the gradients spills: it is
    fastest with all 255 registers of a thread and some numbers outside of them.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path}
    command = [sys.executable, "-c", DRIVER + KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    every_form, *lines = done.stdout.splitlines()
    # one chunk needs two kernels, several need six
    assert every_form.split() == ["True"] * 20
    kernels = [line.split() for line in lines]
    # six of the scan and two of the convolution
    assert [arch for _, arch, *_ in kernels] == ["sm_80"] * 8 + ["sm_90"] * 16
    for name, _, spilled, fits, uses_mma in kernels:
        assert int(spilled) <= (256 if name == "gradient_kernel" else 0), lines  # bytes
        assert (fits, uses_mma) == ("True", "False"), lines
