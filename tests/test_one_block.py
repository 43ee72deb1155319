"""The code that is read is the code that trains: an edited line of the block changes training, recording and every
dtype; each operation of the block equals its readable twin; and the thin part is thin."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mambanorm.basics.settings import ROOT

PACKAGE = ROOT / "mambanorm"
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
import mambanorm as mn, mambanorm.block as block

old, new = sys.argv[1:]
if old:  # a copy of the block's file, in which one line is another
    text = Path(block.__file__).read_text()
    assert text.count(old) == 1, old
    exec(compile(text.replace(old, new), block.__file__, "exec"), block.__dict__)
    for name, kinds in (("mamba2", ["Mamba2Block"]), ("vision", ["VSSBlock"])):
        module = sys.modules.pop(f"mambanorm.{name}", None)

found = {}
for kind in ("MambaBlock", "Mamba2Block", "VSSBlock"):
    for n2 in ("None", "LN"):
        for dtype in (torch.float32, torch.float64):
            torch.manual_seed(0)
            sizes = dict(d_state=4, head_dim=4) if kind == "Mamba2Block" else dict(d_state=4)
            model = getattr(mn, kind)(8, "RMSN", n2, **sizes).to(dtype)
            x = torch.randn(3, 2, 3, 8, dtype=dtype) if kind == "VSSBlock" else torch.randn(3, 6, 8, dtype=dtype)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for _ in range(10):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
            with mn.record(model, "residual") as seen, torch.no_grad():
                model(x)
            total = sum(p.double().sum() for p in model.parameters())
            found[f"{kind} {n2} {dtype}"] = [float(total), float(seen.tensors("residual")[0].double().square().sum())]
print(json.dumps(found))
"""


def trained(old: str = "", new: str = "") -> dict[str, list[float]]:
    """Ten steps of each block, arm and dtype in a process of its own: the sum of the weights, and what is recorded."""
    done = subprocess.run([sys.executable, "-c", TRAINED, old, new], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def as_written():
    return trained()


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_line_of_the_block_is_what_trains_in_every_block_dtype_and_recording(edit, as_written):
    edited = trained(*EDITS[edit])
    assert edited.keys() == as_written.keys()
    for case, (weights, recorded) in as_written.items():
        assert abs(edited[case][0] - weights) > 1e-5 * abs(weights), case
        assert abs(edited[case][1] - recorded) > 1e-5 * abs(recorded), case
