"""Claims about check_model: each check speaks on a sick model, is silent on a sound one, and leaves
the model alone.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm_clinic.model_check import ModuleRun, mixes_rows, norm_kind
from mambanorm_study.advice import blocks

IMAGES = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
STEPS = IMAGES[:, 0]  # (16, 8, 8)
ROWS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 3


def with_source(findings, source: str) -> list:
    return [finding for finding in findings if finding.source.startswith(source)]


class By(nn.Module):
    """A model whose parts are those of a list and whose forward pass is `call(parts, *inputs)`."""

    def __init__(self, call, *parts: nn.Module):
        super().__init__()
        self.parts, self.call = nn.ModuleList(parts), call

    def forward(self, *inputs, **named):
        return self.call(self.parts, *inputs, **named)


class BasicBlock(nn.Module):
    """ResNet's, as torchvision has it."""

    def __init__(self, c: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))) + x)


class PreActivationBlock(BasicBlock):
    def forward(self, x):
        return x + self.conv2(self.relu(self.bn2(self.conv1(self.relu(self.bn1(x))))))


def resnet(block=BasicBlock, depth=4) -> nn.Module:
    stem = [
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*stem, *(block(8) for _ in range(depth)), *head)


def mlp(*norms: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *norms, nn.ReLU(), nn.Linear(8, 3))


SOUND = {
    "a ResNet": (resnet, IMAGES),
    "a ResNet, norm first": (lambda: resnet(PreActivationBlock), IMAGES),
    "the guide's ConvNet with GN": (lambda: blocks.ConvNet(norm="GN"), IMAGES),
    "the guide's LSTM": (lambda: blocks.SequenceNet(8, 10), STEPS),
    "this kit's Transformer, 24 layers": (
        lambda: study.TransformerClassifier(
            10, in_features=8, d_model=16, n_layers=24, norm_position="before", final_norm="LN"
        ),
        STEPS,
    ),
    "a StyleNet": (blocks.StyleNet, IMAGES),
    "a small MLP": (lambda: mlp(nn.BatchNorm1d(8)), ROWS),
    "this kit's Mamba with BN and GN": (
        lambda: mn.SequenceClassifier(
            10, in_features=8, d_model=16, n_layers=4, arm="BN>SSM>GN", scan_backend="reference"
        ),
        STEPS,
    ),
    "this kit's image model": (
        lambda: study.ImageClassifier(
            10, in_channels=1, d_model=16, n_layers=2, patch=2, scan_backend="reference"
        ),
        IMAGES.permute(0, 2, 3, 1),
    ),
    "this kit's language model": (
        lambda: mn.LanguageModel(20, d_model=16, n_layers=2),
        torch.arange(32).view(8, 4) % 20,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_on_a_sound_model(name):
    make, x = SOUND[name]
    torch.manual_seed(0)
    found = clinic.check_model(make(), x)
    assert list(found) == []
    assert found.skipped == ()


def trained(*norms: nn.Module) -> nn.Module:
    model = mlp(*norms)
    for _ in range(200):
        model(ROWS)
    return model.eval()


def part_in_train_mode(part):
    model = trained(part)
    model[1].train()
    return model


def frozen_but_fresh():
    model = blocks.ConvNet()
    model[0][1].eval()
    return model


def deep(zero: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(part for _ in range(9) for part in (nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()))
    )
    model.append(nn.Linear(8, 3))
    if zero is not None:
        nn.init.zeros_(model[zero].weight)
        nn.init.zeros_(model[zero].bias)
    return model


def flat(*layers, width=144):
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


def one_value(norm: nn.Module, width: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width), norm, nn.Linear(width, 3))


OUTPUT, EVAL = "when not to, 1", dict(evaluating=True)
SICK = {  # name → make, input, options, check, severity, words
    "BatchNorm at batch 4": (
        blocks.ConvNet,
        IMAGES[:4],
        {},
        "check 1, mistake 1",
        "warning",
        "batches of 4",
    ),
    "BatchNorm at batch 2": (
        blocks.ConvNet,
        IMAGES[:2],
        {},
        "check 1, mistake 1",
        "serious",
        "batches of 2",
    ),
    "norm behind the activation": (
        lambda: flat(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), width=288),
        IMAGES,
        {},
        "check 4",
        "note",
        "ReLU",
    ),
    "statistics that saw no batch": (
        lambda: blocks.ConvNet().eval(),
        IMAGES,
        EVAL,
        "check 6",
        "serious",
        "3 of 3 norms have seen no batch",
    ),
    "a frozen norm that saw no batch": (
        frozen_but_fresh,
        IMAGES,
        {},
        "check 6",
        "serious",
        "1 of 3",
    ),
    "eval() forgotten": (
        blocks.ConvNet,
        IMAGES,
        EVAL,
        "check 7, mistake 3",
        "serious",
        "other rows of the batch change (the second half of the batch was replaced by copies of",
    ),
    "dropout left on": (
        lambda: mlp(nn.Dropout()),
        ROWS,
        EVAL,
        "check 7, mistake 3",
        "serious",
        "1 dropout layer on",
    ),
    "a norm left in train mode": (
        lambda: part_in_train_mode(nn.BatchNorm1d(8)),
        ROWS,
        EVAL,
        "check 7, mistake 3",
        "serious",
        "this module acts as in training",
    ),
    "no running statistics": (
        lambda: mlp(nn.BatchNorm1d(8, track_running_stats=False)).eval(),
        ROWS,
        EVAL,
        "check 7, mistake 3",
        "serious",
        "this module acts as in training: the output for a row changes",
    ),
    "vanishing gradients": (
        lambda: nn.Sequential(
            *(part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 9)
        ),
        ROWS,
        {},
        "notebook 11, check 8",
        "serious",
        "vanish",
    ),
    "features that end in a norm": (
        lambda: nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)),
        ROWS,
        {},
        OUTPUT,
        "warning",
        "(16, 3)",
    ),
    "a softmax of what a norm puts out": (
        lambda: nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3), nn.LogSoftmax(1)),
        ROWS,
        {},
        OUTPUT,
        "warning",
        "not for logits",
    ),
    "one channel a group": (
        lambda: flat(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), width=288),
        IMAGES,
        {},
        "GroupNorm",
        "note",
        "this is InstanceNorm",
    ),
    "one value a group": (
        lambda: one_value(nn.GroupNorm(8, 8), 8),
        ROWS,
        {},
        "measured on this batch",
        "serious",
        "the same output for every input",
    ),
}
ALSO = {"check 7, mistake 3": {"check 6"}}
"""Of a fresh model that is evaluated both are found."""


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_found_with_its_number_and_nothing_else_is(name):
    make, x, options, check, severity, words = SICK[name]
    torch.manual_seed(0)
    found = clinic.check_model(make(), x, **options)
    (mine,) = with_source(found, check)
    assert (mine.severity, words in mine.message) == (severity, True), found
    assert mine.advice
    assert {finding.source for finding in found} <= {check} | ALSO.get(check, set()), found


def test_a_trained_model_in_eval_mode_and_a_frozen_norm_have_no_findings():
    model = trained(nn.BatchNorm1d(8))
    assert list(clinic.check_model(model, {"input": ROWS}, evaluating=True)) == []
    assert with_source(
        clinic.check_model(model.train(), (ROWS, LABELS), evaluating=True), "check 7"
    )
    model[1].eval()
    assert not with_source(clinic.check_model(model, ROWS, evaluating=True), "check 7")
    assert not with_source(clinic.check_model(model, ROWS[:2]), "check 1")


# --------------------------------------------------------------------------------------------------
# gradients, and what is not finite


def test_a_head_that_begins_at_zero_is_no_fault_of_the_gradients():
    for zero in (None, -1):
        assert list(clinic.check_model(deep(zero), ROWS)) == []


class Gate(nn.Module):
    """Beyond float16 in a gate of one's own, where `scale` is 1e5."""

    def __init__(self, scale: float):
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.head = nn.Embedding(20, 8), nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(9))
        self.gate, self.scale = nn.Identity(), scale

    def forward(self, ids):
        x = self.emb(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x)
            x = self.gate(self.scale * x) if i == 4 else x
        return self.head(x)


@pytest.mark.parametrize("own", [1e6, math.inf])
def test_what_is_not_finite_is_told_as_diagnose_tells_it(own):
    ids = torch.arange(16).view(2, 8)
    with torch.autocast("cpu", torch.float16):
        found, told = clinic.check_model(Gate(own), ids), clinic.diagnose(Gate(own), ids)
        assert list(clinic.check_model(Gate(1.0), ids)) == []
    assert list(found) == list(told.findings)
    assert found[0].where == told.first.where == "gate:input"


# --------------------------------------------------------------------------------------------------
# what is the caller's stays as it is


def test_the_model_and_every_random_state_are_left_as_they_were():
    model = blocks.ConvNet()
    model[0][1].eval()
    F.cross_entropy(model(IMAGES), LABELS).backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads, modes = (
        [p.grad.clone() for p in model.parameters()],
        [m.training for m in model.modules()],
    )
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    clinic.check_model(model, (IMAGES, LABELS), evaluating=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


# --------------------------------------------------------------------------------------------------
# input, and what comes back


def test_findings_come_the_worst_first_and_show_themselves():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)
    )
    found = clinic.check_model(model.append(nn.LayerNorm(3)), IMAGES[:2])
    assert [finding.severity for finding in found] == ["serious", "warning", "note"]
    assert found._repr_html_().count("<tr") == 4
    assert "3 findings" in repr(found)


def test_a_learned_gain_is_no_norm_and_a_switchable_norm_is_one_of_the_batch():
    block = mn.MambaBlock(8, "Scale", "SwitchNorm")
    assert {path: norm_kind(m) for path, m in block.named_modules() if norm_kind(m)} == {
        "n2": "SwitchNorm"
    }
    run = ModuleRun("n2", block.n2, [torch.randn(4, 6, 16)], None)
    assert mixes_rows(run)
    block.eval()
    assert not mixes_rows(run)


def test_bad_input_is_answered_in_one_clear_line():
    with pytest.raises(ValueError, match=r"a torch\.nn\.Module"):
        clinic.check_model("model", ROWS)
    with pytest.raises(
        ValueError, match=r"Sequential refuses this batch \(torch.float32 \(16, 1, 8, 8\)"
    ):
        clinic.check_model(mlp(nn.BatchNorm1d(8)), IMAGES)
