"""Claims about the Triton scan and convolution: kernels equal the reference, whatever the shapes,
layouts and options.

Without a GPU the kernels run in Triton's interpreter (conftest.py asks for it), one operation at a
time in NumPy: the sizes here are small. With a GPU the same tests run there.

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
from test_scan import FLOATS, OPTIONS, error, example, leaves

import mambanorm as mn
from mambanorm.kernels import backends
from mambanorm.kernels.backends import choose_backend
from mambanorm.kernels.backends import triton_obstacle as obstacle
from mambanorm.operations import layers, low_rank_scan, scan_backend, selective_scan
from mambanorm.operations.conv_gate import causal_conv

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(
    obstacle(DEVICE) is not None, reason=f"backend 'triton' {obstacle(DEVICE)}"
)

if obstacle(DEVICE) is None:
    from mambanorm.kernels import scan_triton, scan_triton_loops
    from mambanorm.kernels.conv_triton import conv_silu_triton
    from mambanorm.kernels.scan_triton import Plan


def on_device(arguments):
    return {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


def scan(arguments, **options):
    return selective_scan(**arguments, **options, backend="triton")


def compare(ours, theirs, forward, backward):
    """Results, last states and every gradient of two sets of leaves, the second one through the
    reference."""
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
    """triton in float32 against the reference in float64, as close as the CPU kernel is."""
    compare(leaves(on_device(arguments)), leaves(arguments, torch.float64), forward, backward)


# ---------------------------------------------------------------------- equality with the reference
SIZES = [
    *(
        dict(batch=1, channels=3, length=length) for length in (1, 3, 5, 8, 9, 17, 33, 41)
    ),  # chunks of 4 to 32, then of 8
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
    """The same inputs in float32 and in `dtype` differ only by the cast of what comes out.

    A cast is off by half a unit in the last place, by a whole one in Triton's interpreter, which
    cuts bfloat16 off where a GPU rounds. The gradients follow with the same bound: each is cast
    once, at its end.
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
@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [-math.inf, math.nan])
def test_a_non_finite_input_reaches_the_result_as_in_the_reference(name, value):
    arguments = example(batch=1, channels=3, length=5)
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
    """Nothing here cancels: all is positive. D = 3 and N = 3 fill tiles of 4 and 4, and 0·∞ in a
    lane is NaN."""
    arguments = example(batch=1, channels=3, length=6, gate=False) | {
        "direction": torch.ones(1, 3, 6)
    }
    arguments |= {
        k: v.abs() for k, v in arguments.items() if k in ("u", "B", "C", "D", "delta_bias")
    }
    arguments[name if name != "grad" else "direction"][..., -1] = math.inf
    found = []
    for place, backend in ((on_device, "triton"), (dict, "reference")):
        inputs = leaves(place(arguments))
        direction = inputs.pop("direction").detach()
        with np.errstate(all="ignore"):
            out, last = selective_scan(**inputs, return_last_state=True, backend=backend)
            out.backward(direction)
        found.append(
            [out.detach(), last, *(inputs[k].grad for k in FLOATS if inputs[k] is not None)]
        )
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours.isinf().cpu(), theirs.isinf())
        assert torch.equal(ours.isnan().cpu(), theirs.isnan())


def surrounded_by_nan(tensor):
    """The same values as a view into a larger tensor whose every other element is NaN."""
    room = tensor.new_full([n + 3 for n in tensor.shape], math.nan)
    view = room[tuple(slice(1, 1 + n) for n in tensor.shape)]
    view.copy_(tensor)
    return view


def results(arguments):
    """Result, last state and all gradients."""
    inputs = [arguments[name].requires_grad_() for name in FLOATS if arguments[name] is not None]
    out, last = scan(arguments, return_last_state=True)
    return [out, last, *torch.autograd.grad(out.square().sum(), inputs)]


def test_lanes_beyond_the_inputs_read_nothing_and_every_buffer_is_written_before_it_is_read(
    monkeypatch,
):
    """D = 5 and N = 3 fill tiles of 8 and 4; a NaN lies wherever a mask is missing, and in every
    new buffer."""
    arguments = on_device(example(length=6, b=1, c=0))
    expected = results(leaves(arguments))
    room = {
        k: surrounded_by_nan(v) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()
    }
    make = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: make(*a, **k).fill_(math.nan))
    found = results(room)
    monkeypatch.undo()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


# -------------------------------------------------------------------------------- layout and memory


def test_blocks_are_narrower_where_the_batch_leaves_a_gpu_idle():
    assert Plan(64, 1024, 512, 16).block == 32
    assert Plan(8, 1024, 512, 16).block == 16
    assert Plan(8, 1024, 5, 16).block == 8
    assert Plan(64, 1024, 768, 16, groups_b=32).block == 32  # 24 channels a group
    for plan in (Plan(1, 1, 96, 16, 2, 3), Plan(64, 9, 105, 3, 5, 3)):
        assert plan.blocks * plan.block >= plan.channels
        assert (
            plan.blocks % (plan.groups_b * plan.groups_c // math.gcd(plan.groups_b, plan.groups_c))
            == 0
        )


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
    found = []
    for backend in ("triton", "reference"):
        torch.manual_seed(0)
        n1, n2, _ = mn.Arm.parse(arm)
        block = mn.MambaBlock(8, n1, n2, d_state=4, scan_backend=backend).to(DEVICE)
        y = block(torch.randn(2, 5, 8, device=DEVICE))
        y.square().sum().backward()
        found.append([y, *(p.grad for p in block.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert error(ours.detach(), theirs.detach().double()) < 2e-5


def test_autocast_reaches_the_scan_in_bfloat16_and_the_parameters_in_float32(monkeypatch):
    """The block as CUDA runs it, with the convolution that it takes there: what goes into the scan,
    and what comes out.

    Forward and backward, a dozen results in a row are rounded to the 8 bits of bfloat16, by up to
    2^-8 each, as Triton's interpreter cuts off where a GPU rounds: 5 % in all.
    """
    seen, ours = {}, scan_triton.low_rank_scan_triton

    def spy(u, dt, B, C, dt_weight, dt_bias, A_log, D, **options):
        named = dict(u=u, dt=dt, B=B, C=C, dt_weight=dt_weight, dt_bias=dt_bias, A_log=A_log, D=D)
        seen.update({name: value.dtype for name, value in named.items()})
        return ours(u, dt, B, C, dt_weight, dt_bias, A_log, D, **options)

    monkeypatch.setattr(layers, "conv_silu", conv_silu_triton)
    monkeypatch.setattr(scan_triton, "low_rank_scan_triton", spy)
    torch.manual_seed(0)
    block = mn.MambaBlock(8, d_state=4, scan_backend="triton").to(DEVICE)
    x = torch.randn(2, 5, 8, device=DEVICE)
    found = []
    for enabled in (False, True):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=enabled):
            y = block(x)
        found.append([y - x, *torch.autograd.grad(y.square().sum(), list(block.parameters()))])
    low = {"u", "dt", "B", "C"}
    assert low < seen.keys()
    assert seen == {name: torch.bfloat16 if name in low else torch.float32 for name in seen}
    for full, half in zip(*found, strict=True):
        assert half.dtype == torch.float32
        assert error(half.detach(), full.detach().double()) < 0.05


# ----------------------------------------------------------------------- the scan from Δ's low rank
BFLOAT_ULP = 2**-7
"""The last place of bfloat16. A cast is off by half of it, in Triton's interpreter, which cuts off,
by all of it."""


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def strided(x):
    """The same values, (B, L, E), cut out of a wider tensor whose other half is NaN."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), math.nan, dtype=x.dtype, device=x.device)
    wide[..., x.shape[-1] :] = x
    return wide[..., x.shape[-1] :]


def run(function, inputs, dtype, device, place):
    """Result and gradients, in float64; the inputs, by name, in `dtype`; None stays None. `place`
    puts rows "x"."""
    given = {name: None if v is None else v.to(device, dtype) for name, v in inputs.items()}
    given |= {name: place(given[name]) for name in given if name == "x"}
    given = {name: None if v is None else v.detach().requires_grad_() for name, v in given.items()}
    y = function(**given)
    there = [name for name, v in given.items() if v is not None]
    grads = torch.autograd.grad(
        (y * sample(*y.shape, seed=90).to(y)).sum(), [given[name] for name in there]
    )
    found = {"y": y} | dict(zip(there, grads, strict=True))
    return {name: value.detach().cpu().double() for name, value in found.items()}


def assert_equals_twin(kernel, twin, inputs, dtype, bound, place=lambda x: x):
    """The kernel in `dtype` against the twin in float64, on the very numbers that `dtype` holds.
    Errors are relative to the largest number of each result."""
    held = {name: None if v is None else v.to(dtype).double() for name, v in inputs.items()}
    ours, theirs = (
        run(kernel, held, dtype, DEVICE, place),
        run(twin, held, torch.float64, "cpu", lambda x: x),
    )
    errors = {name: float((ours[name] - value).abs().max() / value.abs().max().clamp(min=1e-3))
              for name, value in theirs.items()}  # fmt: skip
    assert max(errors.values()) <= bound, errors


def low_scan(**named):
    return low_rank_scan(**named, backend="triton")


def low_twin(**named):
    """Δ is made first, in float64."""
    return low_rank_scan(**named, backend="reference")


def low_inputs(batch, length, channels, size, rank, groups=1):
    shapes = dict(u=(batch, length, channels), dt=(batch, length, groups, rank), B=(batch, length, groups, size),
                  C=(batch, length, groups, size), dt_weight=(channels, rank), dt_bias=(channels,),
                  A_log=(channels, size), D=(channels,))  # fmt: skip
    return {name: sample(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize(
    ("batch", "length", "channels", "size", "rank", "groups"),
    [
        (1, 1, 1, 1, 1, 1),
        (2, 7, 5, 3, 3, 1),
        (1, 8, 16, 4, 4, 1),
        (1, 37, 18, 2, 5, 1),
        (2, 9, 12, 4, 2, 3),
    ],
)
def test_the_scan_makes_delta_from_its_low_rank(batch, length, channels, size, rank, groups):
    inputs = low_inputs(batch, length, channels, size, rank, groups)
    assert_equals_twin(low_scan, low_twin, inputs, torch.float32, 1e-5)


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
    inputs, place = (
        conv_inputs(batch, length, channels, taps),
        strided if length % 2 else lambda x: x,
    )
    assert_equals_twin(conv_silu_triton, conv_twin, inputs, torch.float32, 2e-6, place)


def test_the_convolution_in_bfloat16_is_off_by_one_cast():
    """Computed in float32 from what bfloat16 holds; the result and each gradient are cast once."""
    assert_equals_twin(
        conv_silu_triton, conv_twin, conv_inputs(2, 19, 6, 4), torch.bfloat16, BFLOAT_ULP
    )


# ----------------------------------------------------------------------------- back ends and errors
@pytest.fixture
def fresh():
    """`obstacle` remembers its answers; tests that change the world start and leave without."""
    obstacle.cache_clear()
    yield
    obstacle.cache_clear()


CUDA = SimpleNamespace(
    device=torch.device("cuda"), dtype=torch.bfloat16
)  # all that the choice looks at


@pytest.mark.parametrize(
    ("mamba_ssm", "triton", "chosen"),
    [
        (True, True, "mamba_ssm"),
        (True, False, "mamba_ssm"),
        (False, True, "triton"),
        (False, False, "reference"),
    ],
)
def test_cuda_takes_mamba_ssm_then_triton_then_the_reference(
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


def test_triton_says_why_it_cannot_run(monkeypatch, fresh):
    with pytest.raises(
        ValueError, match=r"takes float32, bfloat16 or float16, given torch.float64 on cpu"
    ):
        selective_scan(**leaves(example(length=3), torch.float64), backend="triton")
    monkeypatch.setattr(scan_triton_loops, "INTERPRETED", False)
    with pytest.raises(
        ValueError, match=r"'triton' runs on CUDA.*TRITON_INTERPRET=1.*given torch.float32 on cpu"
    ):
        selective_scan(**example(length=3), backend="triton")
    if DEVICE == "cpu":
        assert re.search("cannot start here.*C compiler", obstacle("cuda"), re.DOTALL)
    obstacle.cache_clear()
    monkeypatch.setitem(
        sys.modules, "triton", None
    )  # what an import of it then raises is ImportError
    monkeypatch.delitem(sys.modules, "mambanorm.kernels.scan_triton_loops")
    with pytest.raises(
        ValueError, match="needs the package triton, which cannot be imported.*pip install triton"
    ):
        selective_scan(**example(length=3), backend="triton")


# ----------------------------------------------------------------------------- the compiler, no GPU
DRIVER = """
import torch, triton
from triton.backends.compiler import GPUTarget

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
from mambanorm.kernels import conv_triton, scan_triton
for module in (scan_triton, conv_triton):
    module.forward_kernel, module.backward_kernel = Recorder(module.forward_kernel), Recorder(module.backward_kernel)
"""

KERNELS = """
import re, subprocess, tempfile
from pathlib import Path
from test_scan import example, leaves
from test_triton import conv_inputs, low_inputs
from triton.backends import nvidia

def spilled(kernel):  # bytes of registers
    tool = Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"]), file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True).stdout
    return int(re.search("STACK:(\\d+)", said)[1])

forms = [dict(b=2, c=1, channels=64, size=16), dict(size=1, channels=1, length=1)]
forms += [dict(skip=False, bias=False, softplus=False), dict(batch=40, channels=256, size=64)]
capability = 90
for form, dtype in zip(forms, (torch.float32, torch.bfloat16, torch.float16, torch.float32)):
    arguments = leaves(example(**form, gate=False), dtype)
    del arguments["z"]
    scan_triton.scan_triton(**arguments)[0].sum().backward()
print(*(len(kernel.asm["cubin"]) > 1000 for kernel in made))
made.clear()
whole, odd = (40, 24, 128, 16, 4), (40, 7, 24, 3, 5)  # rows, steps, channels, states, rank
for capability, shape, dtype in ((80, whole, torch.bfloat16), (90, whole, torch.bfloat16), (90, odd, torch.float32)):
    rows = dict.fromkeys(("u", "dt", "B", "C", "x"), dtype)  # the parameters stay in float32
    scan, conv = low_inputs(*shape), conv_inputs(*shape[:3], 4)
    for function, inputs in ((scan_triton.low_rank_scan_triton, scan), (conv_triton.conv_silu_triton, conv)):
        given = {k: v.to(rows.get(k, torch.float32)).requires_grad_() for k, v in inputs.items()}
        out = function(**given)
        (out[0] if function is scan_triton.low_rank_scan_triton else out).sum().backward()
for kernel in made:
    print(f"sm_{kernel.metadata.target.arch}", spilled(kernel), kernel.metadata.shared < 48000,
          "mma" in kernel.asm["ptx"])
"""


def test_the_kernels_compile_for_nvidia_gpus_those_of_a_block_without_spills(tmp_path):
    """The interpreter forgives what the compiler does not; the compiler needs no GPU. From source
    to machine code, in a process of its own, in which kernels are compiled and never started. At
    the sizes of a block nothing becomes a matrix product, which would be in TF32."""
    keep = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = keep | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": path}
    command = [sys.executable, "-c", DRIVER + KERNELS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    every_form, *lines = done.stdout.splitlines()
    assert every_form.split() == ["True"] * 8
    kernels = [line.split() for line in lines]
    assert [arch for arch, *_ in kernels] == ["sm_80"] * 4 + [
        "sm_90"
    ] * 8  # scan and convolution, forward and backward
    assert all(int(spilled) <= 16 for _, spilled, *_ in kernels), (
        lines
    )  # bytes; 3.6 spills 8, 3.7 none
    assert all(rest == ["True", "False"] for _, _, *rest in kernels), lines
