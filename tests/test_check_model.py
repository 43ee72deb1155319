"""Claims about check_model: each check speaks on a sick model, is silent on a sound one, and leaves the model alone.

Models and batches are as people have them: odd outputs, frozen norms, any kind of loader.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mambanorm as mn
from mambanorm.advice import blocks
from mambanorm.look.checks_of_behaviour import most_groups, swap_norms
from mambanorm.look.exam import norms_of, takes_batch_statistics, twin_of
from mambanorm.look.findings import SEVERITIES
from mambanorm.look.recording import as_it_was

IMAGES = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
STEPS = IMAGES[:, 0]  # (16, 8, 8)
ROWS = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 3
LEARN = dict(loss=F.cross_entropy, lr=0.1)


def found_by(findings, check: str) -> list:
    return [finding for finding in findings if finding.check.startswith(check)]


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
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


def resnet(block=BasicBlock, depth=4) -> nn.Module:
    stem = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*stem, *(block(8) for _ in range(depth)), *head)


def mlp(*norms: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), *norms, nn.ReLU(), nn.Linear(8, 3))


SOUND = {
    "a ResNet": (resnet, IMAGES),
    "a ResNet, norm first": (lambda: resnet(PreActivationBlock), IMAGES),
    "the guide's ConvNet with GN": (lambda: blocks.ConvNet(norm="GN"), IMAGES),
    "the guide's LSTM": (lambda: blocks.SequenceNet(8, 10), STEPS),
    "the guide's Transformer, 24 layers": (lambda: blocks.DepthNet(8, 8, depth=24), STEPS),
    "a StyleNet": (blocks.StyleNet, IMAGES),
    "a small MLP": (lambda: mlp(nn.BatchNorm1d(8)), ROWS),
    "this kit's Mamba with BN and GN": (
        lambda: mn.SequenceClassifier(
            10, in_features=8, d_model=16, n_layers=4, arm="BN>SSM>GN", scan_backend="reference"), STEPS),
    "this kit's image model": (
        lambda: mn.ImageClassifier(10, in_channels=1, d_model=16, n_layers=2, patch=2, scan_backend="reference"),
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


class StillNorm(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


def unreached(parts, x):
    return parts[0](x) + 0 * parts[1](x)


def deep(zero: int | None = None) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(9) for part in (nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())))
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
    "BatchNorm at batch 4": (blocks.ConvNet, IMAGES[:4], {}, "check 1, mistake 1", "warning", "batches of 4"),
    "BatchNorm at batch 2": (blocks.ConvNet, IMAGES[:2], {}, "check 1, mistake 1", "serious", "128 values a channel"),
    "batch 2 in eval mode": (lambda: trained(nn.BatchNorm1d(8)), ROWS[:2], {}, "check 1, mistake 1", "warning",
                             "would learn, when trained, from batches of 2"),
    "norm behind the activation": (
        lambda: flat(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), width=288), IMAGES, {}, "check 4", "note",
        "Relu"),
    "statistics that saw no batch": (
        lambda: blocks.ConvNet().eval(), IMAGES, EVAL, "check 6", "serious", "3 of 3 norms have seen no batch"),
    "momentum 0": (lambda: mlp(nn.BatchNorm1d(8, momentum=0.0)), ROWS, {}, "check 6", "serious", "does not move the"),
    "a frozen norm that saw no batch": (frozen_but_fresh, IMAGES, {}, "check 6", "serious", "1 of 3"),
    "statistics that stand still": (lambda: mlp(StillNorm(8)), ROWS, {}, "check 6", "serious", "does not move the"),
    "eval() forgotten": (blocks.ConvNet, IMAGES, EVAL, "check 7, mistake 3", "serious",
                         "other rows in its batch (its second half replaced by copies of its first row)"),
    "dropout left on": (lambda: mlp(nn.Dropout()), ROWS, EVAL, "check 7, mistake 3", "serious", "1 dropout layer on"),
    "a norm left in train mode": (
        lambda: part_in_train_mode(nn.BatchNorm1d(8)), ROWS, EVAL, "check 7, mistake 3", "serious", "this part is not"),
    "no running statistics": (lambda: mlp(nn.BatchNorm1d(8, track_running_stats=False)).eval(), ROWS, EVAL,
                              "check 7, mistake 3", "serious", "without running statistics: with other rows"),
    "vanishing gradients": (
        lambda: nn.Sequential(*(part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 9)),
        ROWS, {}, "check 8", "serious", "vanish"),
    "layers that the loss does not reach": (
        lambda: By(unreached, deep()[:9], deep()[:27]), ROWS, {}, "check 8", "serious",
        "the last layers have no gradient"),
    "features that end in a norm": (
        lambda: nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)), ROWS, {}, OUTPUT, "warning", "(16, 3)"),
    "logits that end in a norm": (
        lambda: nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3), nn.LogSoftmax(1)), ROWS, {}, OUTPUT, "serious",
        "a softmax that comes straight from a norm"),
    "one channel a group": (lambda: flat(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU(), width=288), IMAGES, {},
                            "GroupNorm", "note", "this is InstanceNorm"),
    "one value a group": (lambda: one_value(nn.GroupNorm(8, 8), 8), ROWS, {}, "GroupNorm", "serious", "1 value: noth"),
    "two values a group": (lambda: one_value(nn.GroupNorm(4, 8), 8), ROWS, {}, "GroupNorm", "serious",
                           "2 values: only which of the two is larger"),
}  # fmt: skip
ALSO = {"check 7, mistake 3": {"check 6"}}
"""Of a fresh model that is evaluated both are found."""


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_found_with_its_number_and_nothing_else_is(name):
    make, x, options, check, severity, words = SICK[name]
    torch.manual_seed(0)
    found = mn.check_model(make(), [x, x.flip(0)], **options)
    (mine,) = found_by(found, check)
    assert (mine.severity, words in mine.found) == (severity, True), found
    assert mine.try_this
    assert {finding.check for finding in found} <= {check} | ALSO.get(check, set()), found


def test_what_needs_no_batch_is_found_without_one():
    make, _, options, check, *_ = SICK["one channel a group"]
    found = mn.check_model(make(), **options)
    assert found_by(found, check)
    assert any("no loader" in why for why in found.skipped)


def test_a_trained_model_in_eval_mode_and_a_frozen_norm_have_no_findings():
    model = trained(nn.BatchNorm1d(8))
    assert list(mn.check_model(model, [ROWS, ROWS.flip(0)], evaluating=True)) == []
    assert found_by(mn.check_model(model.train(), ROWS, evaluating=True), "check 7")
    model[1].eval()
    assert not found_by(mn.check_model(model, [ROWS], evaluating=True), "check 7")
    assert not found_by(mn.check_model(model, [ROWS[:2]]), "check 1")


def test_groups_divide_the_channels():
    assert [most_groups(n) for n in (9, 14, 18, 32)] == [1, 2, 3, 8]
    model = nn.Sequential(nn.BatchNorm2d(12), nn.Sequential(nn.LayerNorm((3, 4), eps=1e-3), nn.BatchNorm2d(7))).eval()
    assert swap_norms(model) == "GroupNorm in place of BatchNorm2d and RMSNorm in place of LayerNorm"
    assert (model[0].num_groups, model[1][1].num_groups, model[1][0].eps) == (3, 1, 1e-3)
    assert not model[0].training
    assert swap_norms(nn.Linear(2, 2)) == ""


# ---------------------------------------------------------------------------------------------------------------------
# the loss and the gradients


@pytest.mark.parametrize(("lr", "seen"), [(0.05, False), (500.0, True)])
def test_a_loss_that_does_not_fall_is_found(lr, seen):
    torch.manual_seed(0)
    found = mn.check_model(blocks.ConvNet(norm="GN"), [(IMAGES, LABELS)], loss=F.cross_entropy, lr=lr)
    assert bool(found_by(found, "checks 5, 9 and 11")) is seen


def test_another_rate_and_another_norm_are_named_where_they_help():
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    (finding,) = mn.check_model(nn.Linear(4, 1), [(x, x.sum(1, keepdim=True))], loss=F.mse_loss, lr=1.0)
    assert "lr = 0.1: there the loss falls" in finding.try_this
    (finding,) = mn.check_model(mlp(), [(ROWS, LABELS)], loss=F.cross_entropy, lr=1e-9)
    assert float(finding.try_this.split()[2].strip(":")) > 1e-4
    torch.manual_seed(0)
    x = torch.randn(32, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    (finding,) = mn.check_model(model, [(x, (x[:, :1] > 0).float())], loss=F.mse_loss, lr=0.3)
    assert "lr = 0.03: there the loss falls" in finding.try_this
    assert "GroupNorm in place of BatchNorm1d: with it the loss falls" in finding.try_this
    assert isinstance(model[1], nn.BatchNorm1d)


def test_a_head_that_begins_at_zero_is_no_fault_of_the_gradients():
    for options in ({}, LEARN):
        assert not found_by(mn.check_model(deep(-1), [(ROWS, LABELS)], **options), "check 8")


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
    assert not found_by(sound, "check 8")


def test_a_logarithm_a_gradient_and_a_loss_that_are_not_finite_are_told_apart():
    def only(behind, batch=STEPS, **options):
        model = By(lambda parts, x: parts[1](behind(parts[0](x))), nn.Linear(8, 8), nn.Linear(8, 8))
        (finding,) = mn.check_model(model, [batch], **options)
        return finding

    assert "log or sqrt of a number below 0" in only(torch.log).try_this
    gradient = only(lambda h: (h - h.detach()).abs().sqrt())
    assert "the forward pass is finite; of the backward pass" in gradient.found
    loss = only(torch.tanh, (STEPS, STEPS), loss=lambda out, _: (out - out.detach()).sum().log(), lr=0.1)
    assert "the loss is -inf" in loss.found
    assert "look at the loss" in loss.try_this


# ---------------------------------------------------------------------------------------------------------------------
# what cannot be looked at is said


@dataclass
class Output:
    logits: Tensor


def test_a_forward_pass_or_a_loss_may_raise_and_the_rest_is_looked_at():
    def fail(parts, x):
        raise KeyError("why")

    found = mn.check_model(By(fail, nn.Linear(8, 3), nn.GroupNorm(8, 8)), ROWS)
    assert found_by(found, "GroupNorm")
    assert any("fails with KeyError" in why for why in found.skipped)
    found = mn.check_model(mlp(nn.GroupNorm(8, 8)), [(ROWS, ROWS[:3])], **LEARN)
    assert found_by(found, "GroupNorm")
    assert [why.split(":")[0] for why in found.skipped] == ["checks 5, 9, 11", "check 8"]


def test_what_one_row_a_missing_graph_or_an_odd_output_hides_is_said():
    found = mn.check_model(trained(nn.BatchNorm1d(8)), [ROWS[:1]])
    assert not found_by(found, "check 6")  # of one row no variance is told
    assert any(why.startswith("check 8") and "more than 1 value" in why for why in found.skipped)
    found = mn.check_model(By(lambda parts, x: torch.no_grad()(parts[0])(x), mlp(nn.LayerNorm(8))), [ROWS])
    assert any("the output has no graph" in why for why in found.skipped)
    assert mn.check_model(By(lambda parts, x: Output(parts[0](x)), mlp()), [ROWS]).skipped == ()
    found = mn.check_model(By(lambda parts, x: None, mlp()), [ROWS])
    assert any("puts out NoneType, in which no tensor was found" in why for why in found.skipped)
    scalar = By(lambda parts, x: parts[0](x).mean(), mlp(nn.BatchNorm1d(8)))
    assert found_by(mn.check_model(scalar, [ROWS], evaluating=True), "check 7")
    found = mn.check_model(mlp().requires_grad_(False), [(ROWS, LABELS)], **LEARN)
    assert any("no parameter learns" in why for why in found.skipped)


def test_frozen_weights_hide_nothing():
    ends = [nn.Sequential(nn.Linear(8, 3), nn.LayerNorm(3)).requires_grad_(learns) for learns in (True, False)]
    seen = [{finding.check for finding in mn.check_model(model, [ROWS])} for model in ends]
    assert seen[0] == seen[1] != set()


# ---------------------------------------------------------------------------------------------------------------------
# what is the caller's stays as it is


def test_the_model_its_hooks_and_every_random_state_are_left_as_they_were():
    model, calls = blocks.ConvNet(), []
    model[0][1].eval()
    F.cross_entropy(model(IMAGES), LABELS).backward()
    model[0].register_forward_hook(lambda *args: calls.append(args))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    grads, modes = [p.grad.clone() for p in model.parameters()], [m.training for m in model.modules()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    data = torch.utils.data.TensorDataset(IMAGES, LABELS)
    mn.check_model(model, torch.utils.data.DataLoader(data, 8, shuffle=True), **LEARN, evaluating=True)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), grads, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert (len(model[0]._forward_hooks), calls) == (1, [])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()
    with pytest.raises(RuntimeError), as_it_was():  # even after an error
        torch.rand(3) @ torch.rand(4)
    assert torch.equal(torch.get_rng_state(), states[0])


def test_weight_norm_and_cached_activations_do_not_hinder_the_copy():
    cached = By(lambda parts, x: setattr(parts[0], "cache", parts[0](x)) or parts[0].cache, nn.Linear(8, 3))
    for model in (nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(8, 3))), cached):
        model(ROWS)
        assert mn.check_model(model, [(ROWS, LABELS)], **LEARN).skipped == ()
        assert torch.equal(twin_of(model)(ROWS), model(ROWS))


# ---------------------------------------------------------------------------------------------------------------------
# input, and what comes back


def test_targets_are_found_in_tuples_and_in_dicts():
    named = By(lambda parts, x: parts[0](x), mlp())
    for model, batch in ((mlp(), (ROWS, LABELS)), (named, {"x": ROWS, "labels": LABELS})):
        found = mn.check_model(model, [batch], **LEARN)
        assert (list(found), found.skipped) == ([], ())


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


def test_a_learned_gain_is_no_norm_and_a_switchable_norm_is_one_of_the_batch():
    blocks = nn.Sequential(mn.MambaBlock(8, "Scale", "SwitchNorm"))
    assert [(path, kind) for path, _, kind in norms_of(blocks)] == [("0.n2", "SwitchNorm")]
    assert takes_batch_statistics(blocks[0].n2, "SwitchNorm")


def kept_graph():
    model = mlp()
    model.kept = [model(ROWS)]
    return model


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        ("model", {}, TypeError, r"must be a torch\.nn\.Module"),
        (kept_graph(), {}, ValueError, "cannot be copied, and only a copy is looked at.*remove what it keeps"),
        (mlp(), dict(evaluating="yes"), ValueError, "evaluating must be True or False"),
        (mlp(), dict(loss=F.mse_loss), ValueError, "loss and lr go together"),
        (mlp(), dict(loss=F.mse_loss, lr=-1), ValueError, "lr must be a number above 0"),
        (mlp(), dict(loader=[]), ValueError, "no batch with a tensor"),
        (mlp(), dict(loader=[(ROWS,)], **LEARN), ValueError, "loss needs targets"),
        (mlp(), dict(loader=[{"x": ROWS}], **LEARN), ValueError, "loss needs targets"),
        (mlp(), dict(loader=(ROWS, LABELS)), ValueError, r"did you mean \[\(X, y\)\]"),
        (mlp(), dict(loader={"x": ROWS}), ValueError, r"did you mean \[\{…\}\]"),
        (mlp(), dict(loader=5), TypeError, "loader must be one tensor, or a list or a DataLoader of batches, got 5"),
    ],
)
def test_bad_input_is_answered_in_one_clear_line_with_the_way_out(model, options, error, words):
    with pytest.raises(error, match=words):
        mn.check_model(model, **options)
