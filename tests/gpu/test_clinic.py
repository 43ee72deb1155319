"""Claims about `diagnose` and `watch` on a GPU: they find there what they find on the CPU."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import mambanorm as mn
import mambanorm_clinic as clinic
from tests.twins import tokens

V = 50
IDS = tokens(V, 4, 24)


def language_model(device, dtype=torch.float32):
    torch.manual_seed(0)
    return mn.LanguageModel(V, d_model=32, n_layers=4).to(device, dtype)


def next_id(logits, ids):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def diagnosed(model, device):
    ids = IDS.to(device)
    return clinic.diagnose(model, (ids, ids), loss=next_id)


def test_diagnose_gives_the_numbers_of_the_cpu(device):
    """Every statistic of every site is within 1 % of the one in float64 on the CPU."""
    report = diagnosed(language_model(device), device)
    expected = diagnosed(language_model("cpu", torch.float64), "cpu")
    assert list(report.findings) == []
    for ours, theirs in ((report.table, expected.table), (report.weights, expected.weights)):
        numbers = ours.select_dtypes("number").columns
        assert len(numbers) >= 3
        np.testing.assert_allclose(ours[numbers], theirs[numbers], rtol=0.01, atol=1e-6)
    assert report.loss == pytest.approx(expected.loss, rel=1e-3)


def test_diagnose_finds_the_first_non_finite_value_where_it_is(device):
    model = language_model(device)
    with torch.no_grad():
        model.blocks[2].x_proj.weight[0, 0] = math.nan
    report = diagnosed(model, device)
    assert report.first.where == "backbone.layers.2.x_proj"
    assert report.first.nan
    assert report.findings[0].severity == "serious"


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
def test_watch_stops_before_a_step_that_is_not_finite_and_keeps_the_weights(half, device, tmp_path):
    """The fourth step overflows in the second block, whose weights have been made too large."""
    model, ids = language_model(device), IDS.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train():
        with clinic.watch(model, optimizer, folder=tmp_path) as watched:
            for step in range(1, 6):
                if step == 4:
                    with torch.no_grad():
                        model.blocks[1].in_proj.weight.fill_(3e38)
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    loss = watched.loss(next_id(model(ids), ids))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    with pytest.raises(clinic.NonFinite) as stopped:
        train()
    report = stopped.value.report
    assert (report.step, len(report.steps)) == (4, 4)
    assert report.where == "backbone.layers.1.in_proj"
    assert report.picture.is_file()
    assert np.isfinite(report.steps.loss[:3]).all()
    saved = load_file(report.checkpoint)
    for name, weight in model.state_dict().items():
        assert weight.isfinite().all(), name
        if name in saved:  # a tied weight is saved once
            assert torch.equal(saved[name], weight.cpu()), name
