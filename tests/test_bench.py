"""Claims about the benchmarks: they build and count what they say, and say what is missing. Nothing
is timed here."""

import json

import pandas as pd
import pytest
import torch
from PIL import Image

import mambanorm as mn
from benchmarks import cases, peers, run, table, timing
from benchmarks.cases import SECTIONS, Case, Group, Sizes
from benchmarks.timing import Limits

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
QUICK = Limits(repeats=1, budget=1e6, weigh=False)


@pytest.fixture(autouse=True)
def same_threads():
    before = torch.get_num_threads()
    yield
    mn.operations.set_threads(before)


# ---------------------------------------------------------------------------------------- the peers


def as_ours(state, prefix):
    """A peer's weights under our names: its layers.i become blocks.i, stem and head keep theirs."""
    blocks = {
        f"blocks.{key.removeprefix(prefix)}": value
        for key, value in state.items()
        if key.startswith(prefix)
    }
    return blocks | {
        key: value for key, value in state.items() if key.startswith(("stem.", "head."))
    }


@pytest.mark.parametrize("name", cases.STEP_PEERS)
def test_a_peer_with_our_weights_gives_our_logits(name):
    for package in {"mambapy": ("mambapy",), "transformers": ("transformers",)}.get(
        name, ("mambapy", "transformers")
    ):
        pytest.importorskip(package, reason=f"{package} is in the bench extra")
    case = Case("step", name, 2, 16, 32, 4, layers=2)
    torch.manual_seed(1)
    peer, ours = peers.MODELS[name](case), peers.ours(case)
    state = as_ours(peer.state_dict(), "layers.layers.")
    if "transformers" in name:
        sizes = dict(in_features=1, d_model=32, n_layers=2, d_state=4)
        ours = mn.SequenceClassifier(peers.CLASSES, final_norm="RMSN", **sizes)
        state["final_norm.weight"] = peer.state_dict()["layers.norm_f.weight"]
    ours.load_state_dict(state)
    x = torch.randn(2, 16, 1)
    torch.testing.assert_close(peer(x), ours(x), rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------------------- the rows


def planted(monkeypatch, group, seconds):
    """The rows of a group whose cases take the seconds given, without running anything."""
    monkeypatch.setattr(timing, "prepare", lambda case: lambda batch, length: lambda: None)
    monkeypatch.setattr(timing, "judge", lambda *_: 0.001)
    monkeypatch.setattr(timing, "in_turn", lambda plans: seconds)
    return timing.measure(group, QUICK)


def test_medians_quartiles_and_ratios_of_planted_times(monkeypatch):
    group = Group(
        "step", "g", tuple(Case("step", name, 32, 256, 64) for name in ("floor", "ours", "mambapy"))
    )
    rows = planted(monkeypatch, group, [[0.040] * 5, [0.09, 0.08, 0.10, 0.07, 0.30], [1.8]])
    _, ours, peer = rows
    assert ours["median_ms"] == pytest.approx(90)
    assert (ours["low_ms"], ours["high_ms"]) == pytest.approx((80, 100))
    assert ours["times_ms"] == pytest.approx([90, 80, 100, 70, 300])
    assert ours["us_per_token"] == pytest.approx(90_000 / 8192)
    assert ours["ratios"] == pytest.approx({"floor": 2.25, "mambapy": 0.05})
    assert peer["ratios"] == pytest.approx({"floor": 45, "ours": 20})
    assert (peer["low_ms"], peer["repeats"]) == (None, 1)
    lines = table.table(rows)
    assert lines[0] == ["", "ms", "quartiles", "÷ floor", "÷ ours", "peak MB", "runs"]
    assert lines[2] == ["ours", "90.0", "80.0–100", "2.25×", "1.00×", "", "5"]
    assert lines[3] == ["mambapy", "1,800", "", "45.0×", "20.0×", "", "1"]
    found = {one["target"]: one for one in table.verdicts(rows)}
    assert len(found) == 2
    assert found["step by its floor, (32, 256, 64)"]["reached"] is True
    assert found["mambapy's step by ours, (32, 256, 64)"]["measured"] == pytest.approx(20)
    slower = [ours | {"ratios": {"floor": 2.5}}]
    assert [one["reached"] for one in table.verdicts(slower)] == [False]


# ------------------------------------------------------------------------------------------ the run


def test_a_whole_run_writes_rows_tables_and_pictures(tmp_path, capsys):
    code = run.bench(limits=QUICK, threads=1, out_dir=tmp_path, sizes=TINY)
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "cpu.json",
        "cpu.md",
        "cpu-speed.png",
        "cpu-scaling.png",
    }
    result = json.loads((tmp_path / "cpu.json").read_text())
    assert set(result["head"]) == {
        "command",
        "date",
        "machine",
        "threads",
        "commit",
        "versions",
        "took",
    }
    assert f"torch {torch.__version__.split('+')[0]}" in result["head"]["versions"]
    assert "mambapy" in result["head"]["versions"]
    frame = pd.DataFrame(result["rows"])
    assert list(dict.fromkeys(frame.section)) == list(SECTIONS)
    assert len(frame) == sum(len(group.cases) for group in cases.groups(None, TINY, 1))
    assert set(frame.status) <= {"ok", "missing"}
    own = frame[~frame.name.isin(cases.STEP_PEERS)]
    assert (own.median_ms > 0).all()
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


# --------------------------------------------------------------------------------- the command line
