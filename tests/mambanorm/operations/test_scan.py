"""Claims about the selective scan: the CPU kernel equals the reference, which equals its equations.

Glossary: B batch, L length, D channels, N state size, G groups; see `operations/reference.py` for
the equations.
"""

import math
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from mambanorm.kernels import runtime, scan_cpu
from mambanorm.kernels.threads import set_threads
from mambanorm.operations import scan_backend, selective_scan
from mambanorm.operations.reference import scan_reference

FLOATS = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    set_threads(2)
    yield
    set_threads(before)


def matrix(kind, batch, channels, length, size):
    """Return B or C; kind is "constant", 0 for (B, N, L), or the number of groups."""
    if kind == "constant":
        return torch.randn(channels, size)
    shape = (batch, size, length) if kind == 0 else (batch, kind, size, length)
    return torch.randn(shape)


def example(
    batch=2,
    channels=5,
    length=65,
    size=3,
    b=0,
    c=0,
    skip=True,
    gate=True,
    bias=True,
    softplus=True,
    seed=0,
):
    torch.manual_seed(seed)
    full = (batch, channels, length)
    delta = torch.randn(full)
    return {
        "u": torch.randn(full),
        "delta": delta if softplus else 0.5 * delta.abs(),
        "A": -torch.rand(channels, size) * size - 0.01,
        "B": matrix(b, batch, channels, length, size),
        "C": matrix(c, batch, channels, length, size),
        "D": torch.randn(channels) if skip else None,
        "z": torch.randn(full) if gate else None,
        "delta_bias": (torch.randn(channels) - 2 if softplus else 0.1 * torch.rand(channels))
        if bias
        else None,
        "delta_softplus": softplus,
    }


def leaves(arguments, dtype=torch.float32):
    return {
        name: value.detach().to(dtype).requires_grad_()
        if isinstance(value, torch.Tensor)
        else value
        for name, value in arguments.items()
    }


def error(ours, theirs):
    """Return the largest difference relative to the largest value."""
    return ((ours.double() - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30)).item()


def assert_equals_reference(arguments, forward=1e-5, backward=2e-5):
    """Compare cpu in float32 with the reference in float64: result, last state, gradients."""
    ours, theirs = leaves(arguments), leaves(arguments, torch.float64)
    out, last = selective_scan(**ours, return_last_state=True, backend="cpu")
    expected, expected_last = selective_scan(**theirs, return_last_state=True, backend="reference")
    direction = torch.randn(out.shape)
    out.backward(direction)
    expected.backward(direction.double())
    errors = {"out": error(out.detach(), expected.detach()), "last": error(last, expected_last)}
    grads = {
        name: error(ours[name].grad, theirs[name].grad) for name in FLOATS if ours[name] is not None
    }
    assert max(errors.values()) <= forward, errors
    assert max(grads.values()) <= backward, grads


def numpy_scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False):
    """Compute the equations independently: float64, one scalar state at a time."""
    u, delta, A, B, C = (np.asarray(x.detach(), dtype=np.float64) for x in (u, delta, A, B, C))
    batch, channels, length = u.shape

    def element(m, b, d, n, t):
        if m.ndim == 2:
            return m[d, n]
        return m[b, n, t] if m.ndim == 3 else m[b, d * m.shape[1] // channels, n, t]

    out = np.zeros_like(u)
    last = np.zeros((batch, *A.shape))
    for b, d, t in np.ndindex(batch, channels, length):
        step = delta[b, d, t] + (float(delta_bias[d]) if delta_bias is not None else 0.0)
        if delta_softplus and step <= 20:
            step = math.log1p(math.exp(step))
        for n in range(A.shape[1]):
            h = (
                math.exp(step * A[d, n]) * last[b, d, n]
                + step * element(B, b, d, n, t) * u[b, d, t]
            )
            last[b, d, n] = h
            out[b, d, t] += element(C, b, d, n, t) * h
        if D is not None:
            out[b, d, t] += float(D[d]) * u[b, d, t]
        if z is not None:
            gate = float(z[b, d, t])
            out[b, d, t] *= gate / (1 + math.exp(-gate))
    return out, last


FORMS = [(0, 0), (2, 4), ("constant", 2), (0, "constant")]


# ------------------------------------------------------------------------------------ the reference
@pytest.mark.parametrize(("b", "c"), FORMS)
def test_reference_is_the_equations(b, c):
    arguments = example(channels=4, length=9, b=b, c=c)
    # above 20 the softplus is the identity
    arguments["delta"] = torch.linspace(-3, 24, 2 * 4 * 9).view(2, 4, 9)
    arguments = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    out, last = selective_scan(**arguments, return_last_state=True)
    expected, expected_last = numpy_scan(**arguments)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(last.numpy(), expected_last, rtol=1e-12, atol=1e-13)


# ---------------------------------------------------------------------------- cpu against reference
OPTIONS = [
    (True, False, False),
    (False, True, False),
    (False, False, True),
    (True, True, True),
    (False, False, False),
]
# every length, width, state size, form of B and C, and option; a chunk has 44 steps
SIZES = [
    *(dict(channels=33, length=length) for length in (1, 2, 43, 44, 45, 89, 1000)),
    *(dict(batch=batch, channels=channels)
      for batch, channels in ((1, 1), (1, 130), (3, 31), (3, 64), (5, 32))),
    *(dict(channels=34, size=size) for size in (1, 16, 64)),
    *(dict(channels=78, length=50, b=b, c=c, batch=1 + (b + c) % 2, gate=b < c, skip=b > 0)
      for b, c in ((0, 0), (0, 3), (1, 2), (2, 0), (3, 1), (2, 3), (3, 3))),
    *(dict(skip=skip, bias=bias, softplus=softplus, gate=skip == bias)
      for skip, bias, softplus in OPTIONS),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_cpu_equals_reference(sizes):
    assert_equals_reference(example(**sizes))


def test_slow_decay_is_as_exact_as_in_the_reference():
    """A decay near 1 multiplies the rounding of the exponential by 1/(1 - decay), 250 in both."""
    arguments = example(channels=32, length=1000, softplus=False, bias=False)
    arguments |= {
        "A": -torch.rand(32, 3) - 0.5,
        "delta": torch.full((2, 32, 1000), 4e-3),
        "u": torch.ones(2, 32, 1000),
    }
    arguments |= {"B": torch.ones(2, 3, 1000), "z": None}
    _, last = selective_scan(**arguments, return_last_state=True)
    double = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    del double["z"], arguments["z"]
    exact = scan_reference(**double)[1]
    assert error(last, exact) < 2 * error(scan_reference(**arguments)[1], exact)


def test_gradients_come_where_asked_for_once_and_in_the_layout_of_the_kernel():
    for name in FLOATS:
        arguments = example()
        arguments[name].requires_grad_()
        selective_scan(**arguments, backend="cpu").sum().backward()
        assert [key for key in FLOATS if arguments[key].grad is not None] == [name]
    arguments = leaves(example(channels=40))
    for backend in ("reference", "cpu"):
        out, last = selective_scan(**arguments, return_last_state=True, backend=backend)
        assert out.requires_grad
        assert not last.requires_grad
    for loss in (out.sum(), out.square().sum()):
        wanted = [arguments[name] for name in ("u", "delta", "z")]
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad(loss, wanted, create_graph=True)
        grads = torch.autograd.grad(loss, wanted, retain_graph=True)
        assert all(grad.transpose(1, 2).is_contiguous() for grad in grads)


def test_softplus_is_exact_on_both_sides_of_its_threshold():
    delta = torch.linspace(-30, 40, 700).view(1, 1, 700)
    arguments = example(batch=1, channels=1, length=700, gate=False, bias=False, skip=False)
    arguments |= {"delta": delta, "A": torch.full((1, 3), -1e4)}
    arguments |= {"B": torch.ones(1, 3, 700), "C": torch.full((1, 3, 700), 1 / 3)}
    arguments["u"] = torch.ones_like(delta)  # the state decays to 0 at once: out = softplus(delta)
    large = delta > -5
    expected = torch.nn.functional.softplus(delta.double())
    ratio = selective_scan(**arguments)[large].double() / expected[large]
    assert (ratio - 1).abs().max() < 1e-6
    arguments["A"] = torch.zeros(1, 3)  # nothing decays, so the sum contains the tiny ones
    assert error(selective_scan(**arguments), expected.cumsum(-1)) < 2e-6
    tiny = selective_scan(
        **{k: v[..., :1] if k in ("u", "delta", "B", "C") else v for k, v in arguments.items()}
    )
    assert abs(tiny.item() / math.exp(-30) - 1) < 1e-5


# -------------------------------------------------------------------------------------- inf and NaN
def finite_pattern(arguments):
    ours = selective_scan(**arguments, return_last_state=True, backend="cpu")
    theirs = selective_scan(**arguments, return_last_state=True, backend="reference")
    return [(a.isfinite(), b.isfinite()) for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize(
    "change", [{"A": torch.full((3, 3), 90.0)}, {"delta": torch.full((2, 3, 200), -1e6)}]
)
def test_a_growing_state_overflows_where_the_reference_does(change):
    """The CPU kernel assumes states that decay; the reference computes all other scans."""
    arguments = example(channels=3, length=200, softplus=False, bias=False) | change
    for ours, theirs in finite_pattern(arguments):
        assert torch.equal(ours, theirs)
    assert not theirs.all()


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_non_finite_input_reaches_the_result_as_in_the_reference(name, value):
    arguments = example(channels=3, length=100)
    arguments[name].view(-1)[arguments[name].numel() // 2] = value
    for ours, theirs in finite_pattern(arguments):
        assert torch.equal(ours, theirs)


# -------------------------------------------------------------------------- layout, memory, threads
def test_transposed_views_are_taken_without_a_copy(monkeypatch):
    batch, length, channels, size, rank = 2, 70, 40, 4, 3
    rows = [torch.randn(batch, length, 2 * channels) for _ in range(2)]
    mixed = torch.randn(batch, length, rank + 2 * size)
    u, delta = (x[..., :channels].transpose(1, 2) for x in rows)
    B, C = (mixed[..., k : k + size].transpose(1, 2) for k in (rank, rank + size))
    seen, run = set(), scan_cpu.run
    monkeypatch.setattr(
        scan_cpu, "run", lambda *start: seen.update(t.data_ptr() for t in start[-1]) or run(*start)
    )
    out = selective_scan(
        u, delta, -torch.rand(channels, size), B, C, delta_softplus=True, backend="cpu"
    )
    assert {x.data_ptr() for x in (u, delta, B, C)} <= seen
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(16, 128, 256, 16), (8, 128, 1024, 16)])
def test_extra_memory_is_at_most_five_percent_of_the_states(shape, monkeypatch):
    """(B, D, L, N): what the kernel allocates beyond results and gradients."""
    batch, channels, length, size = shape
    arguments = leaves(example(batch, channels, length, size, gate=False))
    plan = scan_cpu.make_plan(batch, length, channels, size, 1, 0, torch.get_num_threads())
    out = selective_scan(**arguments, backend="cpu")
    # tracemalloc must see neither the load of the kernel nor what torch imports on first use
    out.backward(out.detach())
    allocated, make = [], {}
    for name in ("empty", "zeros"):
        make[name] = getattr(scan_cpu, name)

        def count(*shape, make=make[name], **options):
            tensor = make(*shape, **options)
            allocated.append(tensor.nbytes)
            return tensor

        monkeypatch.setattr(scan_cpu, name, count)
    tracemalloc.start()
    out = selective_scan(**arguments, backend="cpu")
    out.backward(out.detach())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    monkeypatch.undo()
    # out, du, ddelta; dB, dC
    gradients = 4 * (3 * batch * channels * length + 2 * batch * length * size)
    scratch = 4 * math.prod(plan.scratch["forward"])  # freed before the backward pass
    assert scratch in allocated
    assert 0 < sum(allocated) - scratch - gradients + peak <= 0.05 * 4 * math.prod(shape)


@pytest.mark.parametrize("batch", [1, 3])
def test_two_runs_give_the_same_bits_and_one_thread_the_same_result(batch):
    results = []
    for threads in (2, 2, 1):
        set_threads(threads)
        arguments = leaves(example(batch=batch, channels=128, length=130, size=16))
        out = selective_scan(**arguments, backend="cpu")
        out.backward(out.detach())
        results.append([out.detach()] + [arguments[name].grad for name in FLOATS])
    assert all(torch.equal(a, b) for a, b in zip(*results[:2], strict=True))
    assert torch.equal(results[0][0], results[2][0])


def test_blocks_cover_every_channel_once_and_respect_groups():
    plan = scan_cpu.make_plan(3, 100, 3 * 80, 16, groups=3, rank=0, threads=2)
    channels = [
        (d, group) for start, width, group in plan.blocks for d in range(start, start + width)
    ]
    assert channels == [(d, d // 80) for d in range(240)]


def test_scans_from_several_python_threads_do_not_disturb_each_other():
    arguments = example(batch=4, channels=64)
    expected = selective_scan(**arguments)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: selective_scan(**arguments), range(4)))
    assert all(torch.equal(expected, result) for result in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_scans_too():
    """OpenMP cannot run in a forked child, so the child takes one thread."""
    arguments = example(batch=2, channels=4)
    selective_scan(**arguments)
    child = os.fork()
    if child == 0:
        os._exit(0 if selective_scan(**arguments).isfinite().all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ----------------------------------------------------------------------------- back ends and errors
def test_auto_takes_the_back_end_for_device_dtype_and_form():
    assert {
        scan_backend(torch.empty(0, dtype=t))
        for t in (torch.float32, torch.bfloat16, torch.float16)
    } == {"cpu"}
    assert scan_backend(torch.empty(0, dtype=torch.float64)) == "reference"
    assert scan_backend(torch.empty(0, device="meta")) == "reference"
    for b, c in (("constant", 0), (0, "constant")):
        arguments = example(b=b, c=c)
        assert torch.equal(
            selective_scan(**arguments), selective_scan(**arguments, backend="reference")
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_computed_in_float32_and_cast_back(dtype):
    low = {
        k: v.to(dtype) if isinstance(v, torch.Tensor) else v for k, v in example(gate=False).items()
    }
    ours, theirs = leaves(low, dtype), leaves(low, torch.float32)
    out, expected = selective_scan(**ours), selective_scan(**theirs)
    assert out.dtype == dtype
    assert torch.equal(out, expected.to(dtype))
    out.sum().backward()
    assert all(ours[name].grad.dtype == dtype for name in FLOATS if name != "z")
    gate = torch.randn(out.shape).to(dtype)
    gated = selective_scan(**{**low, "z": gate})
    assert gated.dtype == dtype
    assert (
        error(gated, out.detach().double() * torch.nn.functional.silu(gate.double()))
        < 2 * torch.finfo(dtype).eps
    )


BAD = {
    "u has shape": {"u": torch.ones(2, 5)},
    "A has shape": {"A": torch.ones(4, 3)},
    r"B has shape \(2, 2, 3, 65\).*G divides 5": {"B": torch.ones(2, 2, 3, 65)},
    r"C has shape \(2, 4, 65\)": {"C": torch.ones(2, 4, 65)},
    "D has shape": {"D": torch.ones(4)},
    "delta_bias has shape": {"delta_bias": torch.ones(1)},
    "A has dtype torch.complex64": {"A": torch.ones(5, 3, dtype=torch.complex64)},
    "B is None": {"B": None},
    "takes float32, bfloat16 or float16, given torch.float64 on cpu": {
        "backend": "cpu",
        "u": torch.ones(2, 5, 65).double(),
    },
    "z is on meta": {"z": torch.ones(2, 5, 65, device="meta")},
    "did you mean 'reference'": {"backend": "referense"},
    "mamba_ssm.*CUDA": {"backend": "mamba_ssm"},
    "backend 'cpu' takes B and C that vary": {"backend": "cpu", "B": torch.ones(5, 3)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_wrong_argument_is_named(message):
    with pytest.raises(ValueError, match=message):
        selective_scan(**(example() | BAD[message]))


def test_wide_registers_are_requested_and_change_no_bit():
    def plain(x, y):
        for i in range(64):
            y[i] = x[i] * x[i] + y[i]

    def wide(x, y):
        runtime.use_wide_registers()
        for i in range(64):
            y[i] = x[i] * x[i] + y[i]

    results = []
    for function in (plain, wide):
        compiled, y = numba.njit(fastmath={"contract"})(function), np.ones(64, np.float32)
        compiled(np.linspace(0, 1, 64, dtype=np.float32), y)
        llvm = compiled.inspect_llvm(compiled.signatures[0])
        assert ('"prefer-vector-width"="512"' in llvm) == (function is wide)
        results.append(y)
    assert results[0].tobytes() == results[1].tobytes()


def test_it_works_where_no_cache_can_be_written(tmp_path):
    """Numba refuses `cache=True` without a writable folder; the kernels must compile anyway."""
    code = """
import numba, numba.core.caching as caching
def refuse(*a, **k): raise RuntimeError("cannot cache function: no locator available")
caching.CacheImpl.__init__ = refuse
import numpy as np
from mambanorm.kernels.runtime import entry, sigmoid
assert entry(lambda x: sigmoid(x))(np.float32(0.0)) == 0.5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


OUTER = """
from tiny.kernels.runtime import _f, entry, sigmoid

@entry
def twice(x):
    return sigmoid(x) + sigmoid(x)

print(twice(_f(0)), sum(twice.stats.cache_hits.values()))
"""


def test_numbas_cache_notices_a_change_of_a_helper_in_another_file(tmp_path):
    """`twice` inlines `sigmoid` of runtime.py.

    If `sigmoid` has changed, `twice` is compiled again; otherwise it is loaded from the cache.
    """
    folder = tmp_path / "tiny" / "kernels"
    folder.mkdir(parents=True)
    helpers, outer = folder / "runtime.py", folder / "outer.py"
    helpers.write_text(Path(runtime.__file__).read_text())
    outer.write_text(OUTER)

    def result():
        command = [sys.executable, "-m", "tiny.kernels.outer"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, check=True, timeout=300
        )
        return tuple(map(float, done.stdout.split()))

    assert result() == (1, 0)
    assert result() == (1, 1)
    source = helpers.read_text()
    assert source.count("return (ONE if x >= ZERO else e) / (ONE + e)") == 1
    helpers.write_text(
        source.replace("return (ONE if x >= ZERO else e)", "return (TWO if x >= ZERO else e)")
    )
    assert result() == (2, 0)
