"""The code that is read is the code that trains: an edited line of the block changes training,
recording and every dtype; and each operation of the block equals its readable twin.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import mambanorm as mn
from mambanorm_study.basics.settings import ROOT
from tests.twins import assert_twins, results, sample

EDITS = {
    "a sigmoid in SiLU's place": ("gated(f, at(\"z\", z))", "f * torch.sigmoid(at(\"z\", z))"),
    "no residual": ("x + at(\"branch\", self.out_proj(f))", "at(\"branch\", self.out_proj(f))"),
    "N1 on the main branch alone": (
        "u, z, dt = self.project(h)", "(u, _, dt), z = self.project(h), self.project(x)[1]",
    ),
}  # fmt: skip
TRAINED = """
import json, sys
from pathlib import Path
import torch
import mambanorm as mn, mambanorm_study as study, mambanorm.block as block

old, new = sys.argv[1:]
if old:  # a copy of the block's file, in which one line is another
    text = Path(block.__file__).read_text()
    assert text.count(old) == 1, old
    exec(compile(text.replace(old, new), block.__file__, "exec"), block.__dict__)

found = {}
for kind in ("MambaBlock", "Mamba2Block", "VSSBlock"):
    for n2 in ("None", "LN"):
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            sizes = dict(d_state=4, head_dim=4) if kind == "Mamba2Block" else dict(d_state=4)
            model = getattr(mn if kind == "MambaBlock" else study, kind)(8, "RMSN", n2, **sizes).to(dtype)
            x = torch.randn(3, 2, 3, 8, dtype=dtype) if kind == "VSSBlock" else torch.randn(3, 6, 8, dtype=dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in range(10):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            with mn.record_sites(model, "residual") as seen, torch.no_grad():
                model(x)
            total = sum(p.double().sum() for p in model.parameters())
            found[f"{kind} {n2} {dtype}"] = [float(total), float(seen.tensors("residual")[0].double().square().sum())]
print(json.dumps(found))
"""


def trained(old: str = "", new: str = "") -> dict[str, list[float]]:
    """Ten steps of each block, arm and dtype in a process of its own: the sum of the weights, and
    what is recorded.
    """
    done = subprocess.run(
        [sys.executable, "-c", TRAINED, old, new], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def as_written():
    return trained()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_line_of_the_block_is_what_trains_in_every_block_dtype_and_recording(
    edit, as_written
):
    edited = trained(*EDITS[edit])
    assert edited.keys() == as_written.keys()
    for case, (weights, recorded) in as_written.items():
        assert abs(edited[case][0] - weights) > 1e-5 * abs(weights), case
        assert abs(edited[case][1] - recorded) > 1e-5 * abs(recorded), case


# --------------------------------------------------------------------------------------------------
# the operations and their readable twins


DOUBLE = torch.float64


def assert_equal_to_twin(operation, twin, inputs):
    """float32 by the operation, float64 by the twin: the result and every gradient."""
    assert_twins(results(operation, *(x.float() for x in inputs)), results(twin, *inputs), 2e-5)


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 5), (2, 65, 130), (5, 300, 64)])
@pytest.mark.parametrize("threads", [1, 2])
def test_gated_equals_its_twin(shape, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        inputs = [sample(*shape, dtype=DOUBLE), 3 * sample(*shape, seed=1, dtype=DOUBLE)]
        assert_equal_to_twin(mn.gated, lambda y, z: y * F.silu(z), inputs)
        assert_equal_to_twin(
            lambda y, z: mn.gated(y.mT, z.mT).mT, lambda y, z: y * F.silu(z), inputs
        )  # any strides
    finally:
        torch.set_num_threads(before)


def low_rank_inputs(batch, length, channels, size, rank, groups=()):
    shapes = [
        (batch, length, channels),
        *((batch, length, *groups, width) for width in (rank, size, size)),
    ]
    shapes += [(channels, rank), (channels,), (channels, size), (channels,)]
    return [0.5 * sample(*shape, seed=i, dtype=DOUBLE) for i, shape in enumerate(shapes)]


def scan_by_its_parts(u, dt, B, C, dt_weight, dt_bias, A_log, D):
    """Δ first, for each group its own; then mamba-ssm's scan, as the loop over time."""
    groups = dt.shape[2] if dt.dim() == 4 else 1
    dt, B, C = (m.reshape(*u.shape[:2], groups, -1) for m in (dt, B, C))
    weights = dt_weight.chunk(groups)
    delta = torch.cat([dt[:, :, g] @ weights[g].T for g in range(groups)], -1)
    B, C = (m.permute(0, 2, 3, 1) for m in (B, C))
    rows = u.mT, delta.mT, -torch.exp(A_log), B, C, D, None, dt_bias, True
    return mn.selective_scan(*rows, backend="reference").mT


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((1, 1, 1, 1, 1), ()),
        ((2, 45, 70, 3, 5), ()),
        ((3, 90, 12, 4, 2), (3,)),
        ((2, 9, 8, 2, 1), (4,)),
    ],
)
def test_the_scan_that_projects_delta_equals_the_projection_and_the_scan(sizes, groups):
    assert_equal_to_twin(mn.low_rank_scan, scan_by_its_parts, low_rank_inputs(*sizes, groups))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cut", [1, 7, 12])
def test_a_scan_goes_on_from_its_last_state(dtype, cut):
    inputs = [value.to(dtype) for value in low_rank_inputs(2, 13, 6, 3, 2)]
    whole, (varying, fixed) = mn.low_rank_scan(*inputs), (inputs[:4], inputs[4:])
    first, state = mn.low_rank_scan(
        *(v[:, :cut] for v in varying), *fixed, state=torch.zeros(2, 6, 3, dtype=dtype)
    )
    rest, _ = mn.low_rank_scan(*(v[:, cut:] for v in varying), *fixed, state=state)
    torch.testing.assert_close(torch.cat([first, rest], 1), whole, rtol=1e-5, atol=1e-5)
