"""Claims about the benchmarks: they build what they say, and report what is missing. No time is
compared here.
"""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from PIL import Image

import mambanorm as mn
from benchmarks import cases, peers, run, table, timing
from benchmarks.cases import SECTIONS, Case, Group, Sizes
from benchmarks.timing import Limits
from mambanorm.kernels.threads import set_threads

TINY = Sizes(
    scan=((2, 8, 4),),
    step=((2, 8, 16), (2, 128, 16)),
    block=(2, 8, 16),
    norm=(2, 8, 16),
    lengths=(8, 16),
    tokens=32,
    width=16,
    states=(2, 4),
    middle=(2, 8, 16),
    mamba2=((2, 8, 16, 4),),
    layers=1,
    runs=("digits",),
    scale="smoke",
)
QUICK = Limits(repeats=1, budget=1e6, memory=False)


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    set_threads(before)


# ---------------------------------------------------------------------------------------- the peers


def with_our_names(state, prefix):
    """Return a peer's weights under our names: its layers.i become blocks.i."""
    ours = {}
    for name, weight in state.items():
        if name.startswith(prefix):
            ours[f"blocks.{name.removeprefix(prefix)}"] = weight
        elif name.startswith(("stem.", "head.")):
            ours[name] = weight
    return ours


@pytest.mark.parametrize("name", cases.STEP_PEERS)
def test_a_peer_with_our_weights_gives_our_logits(name):
    for package in name.replace("transformers+mambapy", "transformers mambapy").split():
        pytest.importorskip(package, reason=f"{package} is in the bench extra")
    case = Case("step", name, 2, 16, 32, 4, layers=2)
    torch.manual_seed(1)
    peer, ours = peers.MODELS[name](case), peers.ours(case)
    state = with_our_names(peer.state_dict(), "layers.layers.")
    if "transformers" in name:
        sizes = dict(in_features=1, d_model=32, n_layers=2, d_state=4)
        ours = mn.SequenceClassifier(peers.CLASSES, final_norm="RMSN", **sizes)
        state["final_norm.weight"] = peer.state_dict()["layers.norm_f.weight"]
    ours.load_state_dict(state)
    x = torch.randn(2, 16, 1)
    torch.testing.assert_close(peer(x), ours(x), rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------- the rows


def rows_with_times(monkeypatch, group, seconds):
    """Return the rows of a group whose cases take these seconds; nothing runs."""
    monkeypatch.setattr(timing, "prepare", lambda case: lambda batch, length: lambda: None)
    monkeypatch.setattr(timing, "estimate", lambda *_: 0.001)
    monkeypatch.setattr(timing, "in_turn", lambda plans: seconds)
    return timing.measure(group, QUICK)


def test_rows_have_medians_quartiles_and_ratios(monkeypatch):
    names = ("floor", "ours", "mambapy")
    group = Group("step", "g", tuple(Case("step", name, 32, 256, 64) for name in names))
    times = [[0.040] * 5, [0.09, 0.08, 0.10, 0.07, 0.30], [1.8]]
    rows = rows_with_times(monkeypatch, group, times)
    _, ours, peer = rows
    assert ours.median_ms == pytest.approx(90)
    assert (ours.low_ms, ours.high_ms) == pytest.approx((80, 100))
    assert ours.times_ms == pytest.approx([90, 80, 100, 70, 300])
    assert ours.us_per_token == pytest.approx(90_000 / 8192)
    assert ours.ratios == pytest.approx({"floor": 2.25, "mambapy": 0.05})
    assert peer.ratios == pytest.approx({"floor": 45, "ours": 20})
    assert (peer.low_ms, peer.repeats) == (None, 1)
    lines = table.table(rows)
    assert lines[0] == ["", "ms", "quartiles", "÷ floor", "÷ ours", "peak MB", "runs"]
    assert lines[2] == ["ours", "90.0", "80.0–100", "2.25×", "1.00×", "", "5"]
    assert lines[3] == ["mambapy", "1,800", "", "45.0×", "20.0×", "", "1"]
    results = {result.target: result for result in table.check_targets(rows)}
    assert len(results) == 2
    assert results["step by its floor, (32, 256, 64)"].reached is True
    assert results["mambapy's step by ours, (32, 256, 64)"].measured == pytest.approx(20)
    slower = [replace(ours, ratios={"floor": 2.5})]
    assert [result.reached for result in table.check_targets(slower)] == [False]


# ------------------------------------------------------------------------------------------ the run


def test_a_whole_run_writes_rows_tables_and_pictures(tmp_path, capsys):
    code = run.bench(limits=QUICK, threads=1, out_dir=tmp_path, sizes=TINY)
    assert code == 0
    files = {"cpu.json", "cpu.md", "cpu-speed.png", "cpu-scaling.png"}
    assert {path.name for path in tmp_path.iterdir()} == files
    result = json.loads((tmp_path / "cpu.json").read_text())
    facts = {"command", "date", "machine", "threads", "commit", "versions", "took"}
    assert set(result["head"]) == facts
    assert f"torch {torch.__version__.split('+')[0]}" in result["head"]["versions"]
    assert "mambapy" in result["head"]["versions"]
    frame = pd.DataFrame(result["rows"])
    assert list(dict.fromkeys(frame.section)) == list(SECTIONS)
    assert len(frame) == sum(len(group.cases) for group in cases.groups(None, TINY, 1))
    assert set(frame.status) <= {"ok", "missing"}
    ours = frame[~frame.name.isin(cases.STEP_PEERS)]
    assert (ours.median_ms > 0).all()
    assert (frame.threads == 1).all()
    page, printed = (tmp_path / "cpu.md").read_text(), capsys.readouterr().out
    for heading in (
        "step · (2, 8, 16) · 1 thread",
        "norms · one block, norm before the SSM, (2, 8, 16) · 1 thread",
    ):
        assert heading in page
        assert heading in printed
    for picture in ("cpu-speed.png", "cpu-scaling.png"):
        assert picture in page
        assert Image.open(tmp_path / picture).width > 900
