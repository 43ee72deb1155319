"""Claims about check_model: each check speaks on a sick model, is silent on a sound one, and leaves the model alone."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import mambanorm as mn
from mambanorm.advice import blocks
from mambanorm.advice.findings import SEVERITIES
from mambanorm.advice.model_check import CHECKS, as_it_was
from mambanorm.advice.swap import swap_norms
from mambanorm.advice.trace import norms_of, takes_batch_statistics

IMAGES = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 10
STEPS = IMAGES[:, 0]  # (16, 8, 8)


def checks(findings) -> set[str]:
    return {finding.check for finding in findings}


class Lambda(nn.Module):
    def __init__(self, parts: dict, call):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = call

    def forward(self, x):
        return self.call(self, x)


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
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


def resnet(block=BasicBlock, depth=4) -> nn.Module:
    stem = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*stem, *(block(8) for _ in range(depth)), *head)


def encoder(norm_first: bool, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    parts = dict(encoder=nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), head=nn.Linear(8, 10))
    return Lambda(parts, lambda self, x: self.head(self.encoder(x).mean(1)))


def crnn() -> nn.Module:
    """Convolutions with BatchNorm before an LSTM, as text is read from images: sound."""
    parts = dict(conv=blocks.ConvBlock(1, 4), lstm=nn.LSTM(32, 16, batch_first=True), head=nn.Linear(16, 10))
    return Lambda(parts, lambda self, x: self.head(self.lstm(self.conv(x).flatten(1, 2).transpose(1, 2))[0][:, -1]))


SOUND = {
    "a ResNet": (resnet, IMAGES),
    "a ResNet, norm first": (lambda: resnet(PreActivationBlock), IMAGES),
    "torch's encoder, pre-norm, 16 layers": (lambda: encoder(True, 16), STEPS),
    "torch's encoder, post-norm, 6 layers": (lambda: encoder(False, 6), STEPS),
    "convolutions before an LSTM": (crnn, IMAGES),
    "the guide's ConvNet": (blocks.ConvNet, IMAGES),
    "the same with GN": (lambda: blocks.ConvNet(norm="GN"), IMAGES),
    "the guide's LSTM": (lambda: blocks.SequenceNet(8, 10), STEPS),
    "the guide's Transformer, 24 layers": (lambda: blocks.DepthNet(8, 8, depth=24), STEPS),
    "the guide's discriminator": (blocks.Discriminator, IMAGES),
    "the guide's generator": (lambda: blocks.Generator(norm="IN"), torch.randn(16, 16)),
    "a StyleNet": (blocks.StyleNet, IMAGES),
    "a small MLP": (lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)),
                    torch.randn(16, 8)),
    "this kit's Mamba": (lambda: mn.SequenceClassifier(10, in_features=8, d_model=16, n_layers=4), STEPS),
    "the same with BN and GN": (
        lambda: mn.SequenceClassifier(10, in_features=8, d_model=16, n_layers=4, arm="BN>SSM>GN"), STEPS),
    "this kit's image model": (lambda: mn.ImageClassifier(10, in_channels=1, d_model=16, n_layers=2, patch=2),
                               IMAGES.permute(0, 2, 3, 1)),
    "this kit's language model": (
        lambda: mn.LanguageModel(20, d_model=16, n_layers=2), torch.arange(32).view(8, 4) % 20),
}  # fmt: skip


@pytest.mark.parametrize("name", SOUND)
def test_nothing_is_found_on_a_sound_model(name):
    make, x = SOUND[name]
    torch.manual_seed(0)
    found = mn.check_model(make(), [x, x.flip(0)])
    assert list(found) == []
    assert found.skipped == ()


def after_activation(x):
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 10))


def functional_activation():
    parts = dict(conv=nn.Conv2d(1, 8, 3), norm=nn.BatchNorm2d(8), head=nn.Linear(8, 10))
    return Lambda(parts, lambda self, x: self.head(self.norm(F.relu(self.conv(x))).mean((2, 3))))


def lstm_with_batch_norm():
    return blocks.SequenceNet(8, 10, n_layers=1, norm="BN")


def fresh_in_eval():
    return blocks.ConvNet().eval()


def momentum_zero():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.0), nn.Flatten(), nn.Linear(144, 3))


def frozen_but_fresh():
    model = blocks.ConvNet()
    model[0][1].eval()
    return model


def stale():
    model = blocks.ConvNet()
    with torch.no_grad():
        for _ in range(50):
            model(IMAGES * 20 + 100)
    return model.eval()


def without_norms():
    layers = [part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())]
    return nn.Sequential(*layers, nn.Linear(8, 10))


def one_channel_groups():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))


def one_value_groups():
    return nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(8, 8), nn.Linear(8, 3))


def padded():
    pad = nn.ZeroPad2d(2)
    return nn.Sequential(nn.Conv2d(1, 4, 3), pad, nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 3))


def padded_words():
    parts = dict(words=nn.Embedding(20, 6, padding_idx=0), norm=blocks.StepBatchNorm(6), head=nn.Linear(6, 3))
    return Lambda(parts, lambda self, x: self.head(self.norm(self.words(x)).mean(1)))


WORDS = torch.cat([torch.arange(1, 17).view(16, 1).expand(16, 4), torch.zeros(16, 4, dtype=torch.long)], 1)

SICK = {
    "BatchNorm at batch 4": (blocks.ConvNet, IMAGES[:4], {}, "check 1, mistake 1", "warning", "batches of 4"),
    "BatchNorm at batch 2": (blocks.ConvNet, IMAGES[:2], {}, "check 1, mistake 1", "serious", "128 values a channel"),
    "the kit's BN at batch 2": (
        lambda: mn.SequenceClassifier(10, in_features=8, d_model=8, n_layers=1, arm="BN>SSM>None"), STEPS[:2], {},
        "check 1, mistake 1", "serious", "16 values a channel"),
    "BatchNorm behind an LSTM": (lstm_with_batch_norm, STEPS, {}, "check 2, mistake 2", "warning", "16 rows × 8 steps"),
    "style transfer with BatchNorm": (
        lambda: blocks.StyleNet(norm="BN"), IMAGES, dict(task="style_transfer"), "check 3, mistake 5", "warning",
        "2 BatchNorms"),
    "norm behind the activation": (lambda: after_activation(0), IMAGES, {}, "check 4", "note", "Relu"),
    "the same by a function": (functional_activation, IMAGES, {}, "check 4", "note", "Relu"),
    "statistics that saw no batch": (
        fresh_in_eval, IMAGES, dict(evaluating=True), "check 6", "serious", "3 of 3 norms have seen no batch"),
    "momentum 0": (momentum_zero, IMAGES, {}, "check 6", "serious", "momentum 0"),
    "a frozen norm that saw no batch": (frozen_but_fresh, IMAGES, {}, "check 6", "serious", "1 of 3"),
    "stale statistics": (stale, IMAGES, dict(evaluating=True), "check 6", "warning", "standard deviations"),
    "eval() forgotten": (
        blocks.ConvNet, IMAGES, dict(evaluating=True), "check 7, mistake 3", "serious", "other rows in its batch"),
    "dropout left on": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3)), torch.randn(8, 8),
        dict(evaluating=True), "check 7, mistake 3", "serious", "1 dropout layer on"),
    "vanishing gradients": (without_norms, torch.randn(16, 8), {}, "check 8", "serious", "vanish"),
    "post-norm, 13 layers of torch": (
        lambda: encoder(False, 13), STEPS, {}, "check 10, mistake 4", "warning", "about 13 layers"),
    "post-norm, 16 layers of our own": (
        lambda: blocks.DepthNet(8, 8, depth=16, place="post"), STEPS, {}, "check 10, mistake 4", "warning",
        "about 16 layers"),
    "a norm on the output": (
        lambda: nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)), torch.randn(16, 8), {}, "when not to, 1", "warning",
        "(16, 3)"),
    "BatchNorm in a discriminator": (
        lambda: blocks.Discriminator(norm="BN"), IMAGES, {}, "GAN; modern advice", "warning", "1 BatchNorm in"),
    "the same, told by the caller": (
        blocks.ConvNet, IMAGES, dict(component="discriminator"), "GAN; modern advice", "warning", "3 BatchNorms"),
    "one channel a group": (one_channel_groups, IMAGES, {}, "GroupNorm", "note", "this is InstanceNorm"),
    "one value a group": (one_value_groups, torch.randn(16, 8), {}, "GroupNorm", "serious", "whatever goes in"),
    "BatchNorm behind padding": (padded, IMAGES, {}, "Batch Normalization", "warning", "64 %"),
    "BatchNorm on padded words": (padded_words, WORDS, {}, "Batch Normalization", "warning", "50 %"),
}  # fmt: skip


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_found_with_its_number_and_nothing_else_is(name):
    make, x, options, check, severity, words = SICK[name]
    torch.manual_seed(0)
    found = mn.check_model(make(), [x, x.flip(0)], **options)
    assert check in checks(found), found
    (mine,) = [finding for finding in found if finding.check == check]
    assert mine.severity == severity
    assert words in mine.found
    assert mine.try_this
    allowed = {check, "check 6"} if "check 7" in check else {check}  # a fresh model that is evaluated is both
    assert checks(found) <= allowed, found


@pytest.mark.parametrize("name", ["BatchNorm behind an LSTM", "post-norm, 13 layers of torch", "momentum 0"])
def test_what_needs_no_batch_is_found_without_one(name):
    make, _, options, check, *_ = SICK[name]
    found = mn.check_model(make(), **options)
    assert check in checks(found)
    assert any("no loader" in why for why in found.skipped)


def test_a_trained_model_in_eval_mode_has_no_findings():
    model = blocks.ConvNet()
    for _ in range(100):
        model(IMAGES)
    found = mn.check_model(model.eval(), [IMAGES, IMAGES.flip(0)], evaluating=True)
    assert list(found) == []
    assert "check 7, mistake 3" in checks(mn.check_model(model.train(), IMAGES, evaluating=True))


@pytest.mark.parametrize(("lr", "seen"), [(0.05, False), (500.0, True)])
def test_a_loss_that_does_not_fall_is_found_and_a_lower_rate_is_tried(lr, seen):
    torch.manual_seed(0)
    batch = (IMAGES, LABELS)
    found = mn.check_model(blocks.ConvNet(norm="GN"), [batch], loss=F.cross_entropy, lr=lr)
    assert ("checks 5, 9 and 11" in checks(found)) is seen


def test_the_tenth_of_the_rate_is_named_where_it_helps():
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    batch = (x, x.sum(1, keepdim=True))
    found = mn.check_model(nn.Linear(4, 1), [batch], loss=F.mse_loss, lr=1.0)
    (finding,) = found
    assert "lr = 0.1: there the loss falls" in finding.try_this


def test_the_other_norm_is_tried_where_the_loss_does_not_fall():
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    (finding,) = mn.check_model(model, [(x, (x[:, :1] > 0).float())], loss=F.mse_loss, lr=0.3)
    assert "lr = 0.03: there the loss falls" in finding.try_this
    assert "GroupNorm in place of BatchNorm1d: with it the loss falls" in finding.try_this
    assert isinstance(model[1], nn.BatchNorm1d)


def test_norms_are_swapped_for_those_that_the_guide_names():
    model = nn.Sequential(nn.BatchNorm2d(12), nn.Sequential(nn.LayerNorm((3, 4), eps=1e-3), nn.BatchNorm2d(7))).eval()
    assert swap_norms(model) == "GroupNorm in place of BatchNorm2d and RMSNorm in place of LayerNorm"
    assert (model[0].num_groups, model[1][1].num_groups, model[1][0].eps) == (3, 1, 1e-3)
    assert not model[0].training
    assert swap_norms(nn.Linear(2, 2)) == ""


def test_the_model_and_every_random_state_are_left_as_they_were():
    model = blocks.ConvNet()
    model[0][1].eval()
    F.cross_entropy(model(IMAGES), LABELS).backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES, LABELS), batch_size=8, shuffle=True)
    mn.check_model(model, data, loss=F.cross_entropy, lr=0.1, evaluating=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_random_states_are_restored_even_after_an_error():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), as_it_was():
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_forward_pass_that_fails_is_told_and_the_rest_is_still_looked_at():
    found = mn.check_model(lstm_with_batch_norm(), torch.randn(4, 8, 5))
    assert "check 2, mistake 2" in checks(found)
    assert any("fails with RuntimeError" in why for why in found.skipped)


def test_a_model_that_wants_more_than_one_input_is_called_as_the_caller_says():
    model = mn.SequenceClassifier(10, vocab_size=20, d_model=8, n_layers=1, arm="BN>SSM>None")
    batch = (WORDS, torch.full((16,), 4))
    found = mn.check_model(model, [batch], forward=lambda m, b: m(b[0], lengths=b[1]))
    assert list(found) == []


def test_findings_come_the_worst_first_and_show_themselves():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    found = mn.check_model(model.append(nn.LayerNorm(3)), IMAGES[:2])
    order = [SEVERITIES.index(f.severity) for f in found]
    assert order == sorted(order)
    assert len(order) == 3
    assert list(found.frame.columns) == ["severity", "where", "found", "try_this", "check"]
    assert found._repr_html_().count("<tr>") == 4
    assert "3 findings" in repr(found)
    assert found[0].where in ("2", "5")


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


@pytest.mark.parametrize("options", [{}, dict(loss=lambda out, _: out.float().square().mean(), lr=0.1)])
@pytest.mark.parametrize(("own", "remedy"), [(1e6, "norm before it, or bfloat16"), (math.inf, "norm before it")])
def test_what_is_not_finite_is_told_where_it_begins_in_the_words_of_diagnose(own, remedy, options):
    model, ids = Gate(own), torch.arange(16).view(2, 8)
    with torch.autocast("cpu", torch.float16):
        found, told = mn.check_model(model, [(ids, ids)], **options), mn.diagnose(model, ids)
        sound = mn.check_model(Gate(1.0), [(ids, ids)], **options)
    (finding,) = found
    assert (finding.where, finding.check) == (told.first.where, "check 8") == ("gate:input", "check 8")
    assert finding.found.startswith(told.findings[0].found)
    assert "gradients of 11 of 11 weights are not finite" in finding.found
    assert remedy in finding.try_this
    assert "check 8" not in checks(sound)


def test_a_logarithm_a_gradient_and_a_loss_that_are_not_finite_are_told_apart():
    def model(behind):
        return Lambda(dict(mix=nn.Linear(8, 8), head=nn.Linear(8, 8)), lambda self, x: self.head(behind(self.mix(x))))

    def only(found):
        (finding,) = found
        return finding

    assert "log or sqrt of a number below 0" in only(mn.check_model(model(torch.log), [STEPS])).try_this
    gradient = only(mn.check_model(model(lambda h: (h - h.detach()).abs().sqrt()), [STEPS]))
    assert "the forward pass is finite; of the backward pass" in gradient.found
    options = dict(loss=lambda out, _: (out - out.detach()).sum().log(), lr=0.1)
    loss = only(mn.check_model(model(torch.tanh), [(STEPS, STEPS)], **options))
    assert "the loss is -inf" in loss.found
    assert "look at the loss" in loss.try_this


def test_each_of_the_eleven_lines_of_the_checklist_has_its_check():
    lines = {int(n) for name in CHECKS for n in name.split(":")[0].replace(",", "").split() if n.isdigit()}
    assert lines == set(range(1, 12))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (dict(task="styletransfer"), ValueError, "did you mean 'style_transfer'"),
        (dict(component="critic"), ValueError, "valid are generator, discriminator, output"),
        (dict(batch_size=0), ValueError, "batch_size must be a positive whole number"),
        (dict(evaluating="yes"), ValueError, "evaluating must be True or False"),
        (dict(loss=F.mse_loss), ValueError, "loss and lr go together"),
        (dict(loss=F.mse_loss, lr=-1), ValueError, "lr must be a number above 0"),
        (dict(loader=[]), ValueError, "no batch with a tensor"),
    ],
)
def test_bad_values_are_answered_in_one_clear_line(options, error, words):
    with pytest.raises(error, match=words):
        mn.check_model(nn.Linear(2, 2), **options)


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        mn.check_model("model")


def test_a_learned_gain_is_no_norm_and_a_switchable_norm_is_one_of_the_batch():
    blocks = nn.Sequential(mn.MambaBlock(8, "Scale", "SwitchNorm"))
    assert [(path, kind) for path, _, kind in norms_of(blocks)] == [("0.n2", "SwitchNorm")]
    assert takes_batch_statistics(blocks[0].n2, "SwitchNorm")
