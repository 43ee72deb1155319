"""The overhead of norms: models and counts that are right; no test asserts a time."""

import nbformat
import pandas as pd
import pytest
import torch
from torch import nn

from mambanorm_study.basics.settings import ROOT
from mambanorm_study.lessons import overheads
from mambanorm_study.lessons.overheads import (
    CLAIMED,
    IMAGE_NORMS,
    MODELS,
    SEQUENCE_NORMS,
    measure_overheads,
    overhead_table,
    overheads_in_words,
    recorded_overheads,
    seconds,
)
from mambanorm_study.tables.norm_catalog import saved_bytes


@pytest.mark.parametrize("norm", IMAGE_NORMS)
@pytest.mark.parametrize("model", MODELS)
def test_a_block_keeps_the_shape_and_learns(model, norm):
    block, _, (_, *shape) = MODELS[model]
    made, x = block(norm), torch.randn(2, *shape)
    y = made(x)
    assert y.shape == x.shape
    y.square().mean().backward()
    assert all(p.grad is not None for p in made.parameters())


@pytest.mark.parametrize("norm", ["BN", "GN", "IN"])
def test_a_norm_of_sequences_takes_its_statistics_over_positions(norm):
    """In train mode each channel (BN, IN) or group of channels (GN) has the mean 0."""
    _, _, (rows, length, width) = MODELS["LSTM"]
    y = SEQUENCE_NORMS[norm]()(3 + torch.randn(rows, length, width))
    means = {
        "BN": y.mean((0, 1)),
        "IN": y.mean(1),
        "GN": y.view(rows, length, overheads.GROUPS, -1).mean((1, 3)),
    }
    assert means[norm].abs().max() < 1e-5


def test_saved_bytes_are_those_counted_by_hand():
    """Two linear layers save their inputs, and ReLU its output, which is the second one's input. A
    LayerNorm saves its input, and a mean and a scale for each row.
    """
    x, one, two = torch.randn(10, 8), nn.Linear(8, 16), nn.Linear(16, 4)
    net, normed = nn.Sequential(one, nn.ReLU(), two), nn.Sequential(one, nn.LayerNorm(16), two)
    floats_of_x, floats_of_hidden = 10 * 8, 10 * 16
    assert saved_bytes(lambda: net(x), net.parameters()) == 4 * (floats_of_x + floats_of_hidden)
    statistics = 2 * 10  # of the rows
    expected = 4 * (floats_of_x + 2 * floats_of_hidden + statistics)
    assert saved_bytes(lambda: normed(x), normed.parameters()) == expected


def test_a_measured_table_has_a_row_for_each_norm_and_counts_the_saved_tensors(monkeypatch):
    """A CNN of one block saves its input and ReLU's output, and with BN also BN's input."""
    monkeypatch.setitem(MODELS, "CNN", (MODELS["CNN"][0], 1, (2, 64, 32, 32)))
    frame = measure_overheads("CNN", rounds=2).set_index("norm")
    assert list(frame.index) == list(IMAGE_NORMS)
    assert list(frame.columns) == [
        "model",
        *("inference", "inference_low", "inference_high"),
        *("training", "training_low", "training_high"),
        *("megabytes", "memory", "versions", "machine"),
    ]
    tensor = 4 * 2 * 64 * 32 * 32 / 1e6
    statistics = 4 * 4 * 64 / 1e6  # those of the batch, and the running ones
    assert frame.megabytes["None"] == pytest.approx(2 * tensor)
    assert frame.megabytes["BN"] == pytest.approx(3 * tensor + statistics)
    assert frame.memory["BN"] == pytest.approx(50, abs=0.2)
    without = frame.loc["None", ["inference", "training", "memory"]]
    assert (without == 0).all()


def test_the_recorded_overheads_have_every_model_and_norm_and_the_guides_numbers():
    frame = recorded_overheads()
    assert len(frame) == len(MODELS) * len(CLAIMED)
    assert set(frame.model) == set(MODELS)
    low = frame[["inference", "training"]].to_numpy() >= frame[["inference_low", "training_low"]]
    assert low.all(axis=None)
    assert (frame.memory > 0).all()
    for norm, claimed in CLAIMED.items():
        rows = frame[frame.norm == norm]
        assert {*zip(rows.claimed_low, rows.claimed_high, strict=True)} == {claimed}


def test_rmsnorm_keeps_most_for_the_backward_pass_as_notebook_11_says():
    memory = recorded_overheads().pivot(index="norm", columns="model", values="memory")
    assert (memory.idxmax()[["CNN", "Transformer"]] == "RMSN").all()


def test_the_sentence_counts_the_overheads_in_the_guides_range():
    frame = pd.DataFrame(
        [
            ("CNN", "BN", 2.0, 2, 2, 9.0, 80.0),  # inside
            ("CNN", "GN", 9.0, 5, 8, 7.0, 81.0),  # above
            ("LSTM", "LN", 2.0, 3, 5, 2.0, 3.0),  # below
        ],
        columns=[
            *("model", "norm", "inference", "claimed_low", "claimed_high"),
            *("training", "memory"),
        ],
    )
    said = overheads_in_words(frame)
    assert "medians of 1 of 3 overheads lie above the guide's range (CNN: GN)" in said
    assert "and 1 below it (LSTM: LN)" in said
    assert "BN in the CNN costs most time, +9 %" in said
    assert "GN in the CNN costs most memory: the activations grow by 81 %" in said


def test_notebook_11_shows_the_recorded_table():
    cells = nbformat.read(ROOT / "notebooks" / "11_choosing.ipynb", as_version=4).cells
    shown = "".join(str(output) for cell in cells for output in cell.get("outputs", ()))
    table = overhead_table(recorded_overheads())
    assert list(table.index.names) == ["model", "norm"]
    assert all(text in shown for text in table["training, %"])
    assert overheads_in_words(recorded_overheads()) in shown


def test_a_step_in_training_computes_gradients_and_inference_does_not():
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), torch.randn(4, 3)
    assert seconds(model, x, training=False) > 0
    assert not model.training
    assert model[0].weight.grad is None
    assert seconds(model, x, training=True) > 0
    assert model.training
    assert model[0].weight.grad is not None
