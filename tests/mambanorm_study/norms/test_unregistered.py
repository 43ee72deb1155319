"""adaLN, adaLN-zero and weight standardization against their equations in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mambanorm as mn
import mambanorm_study as study

B, L, D, C, EPS = 3, 5, 8, 6, 1e-5


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def randomise(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(sample(*parameter.shape, seed=10 + i))
    return module


def standardize(x, axes):
    centred = x - x.mean(axes, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(axes, keepdim=True) + EPS)


@pytest.mark.parametrize("zero", [False, True])
def test_adaln_equals_its_equation_forward_and_gradient(zero):
    norm = randomise(study.AdaLN(D, C, zero=zero).double())
    branch = randomise(nn.Linear(D, D).double())
    x, c = sample(B, L, D).requires_grad_(), sample(B, C, seed=1).requires_grad_()
    parts = (F.silu(c) @ norm.map.weight.T + norm.map.bias).view(B, 1, -1, D)
    y = (1 + parts[:, :, 0]) * standardize(x, 2) + parts[:, :, 1]
    block = x + (parts[:, :, 2] if zero else 1) * (y @ branch.weight.T + branch.bias)
    leaves = [x, c, *norm.parameters()]
    for ours, equation in ((norm(x, c), y), (norm.residual(x, branch, c), block)):
        torch.testing.assert_close(ours, equation, rtol=1e-12, atol=1e-12)
        grads = (
            torch.autograd.grad(v.pow(3).sum(), leaves, retain_graph=True) for v in (ours, equation)
        )
        for mine, theirs in zip(*grads, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


def test_adaln_zero_starts_as_the_identity_and_as_plain_ln_and_still_learns():
    norm, branch = study.AdaLN(D, C, zero=True), nn.Linear(D, D)
    x, c = sample(B, L, D).float(), sample(B, C, seed=1).float()
    assert torch.equal(norm.residual(x, branch, c), x)
    torch.testing.assert_close(norm(x, c), mn.create_norm("LN", D)(x))
    norm.residual(x, branch, c).pow(2).sum().backward()
    assert norm.map.weight.grad.abs().sum() > 0
    assert (
        study.AdaLN(D, C)(x, c).sub(norm(x, c)).abs().max() > 1e-3
    )  # without zero the condition counts at once


def test_adaln_gives_each_row_the_scale_and_shift_of_its_own_condition():
    norm, x = study.AdaLN(D, C), sample(1, L, D).float().repeat(2, 1, 1)
    c = sample(2, C, seed=1).float()
    both = norm(x, c)
    assert not torch.allclose(both[0], both[1])
    torch.testing.assert_close(both[1:], norm(x[1:], c[1:]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: study.AdaLN(D, 2.5), "d_condition must be a positive whole number"),
        (lambda: study.AdaLN(D, C, zero="yes"), "zero must be True or False"),
        (
            lambda: study.AdaLN(D, C)(torch.zeros(B, L, D), torch.zeros(B, L, C)),
            r"\(B, d_condition\) = \(3, 6\)",
        ),
        (lambda: study.AdaLN(D, C)(torch.zeros(B, L, D + 1), torch.zeros(B, C)), "D = 8"),
    ],
)
def test_what_adaln_cannot_use_is_refused(call, told):
    with pytest.raises(ValueError, match=told):
        call()


LAYERS = {
    "linear": lambda: nn.Linear(7, 4),
    "conv": lambda: nn.Conv2d(3, 4, 3),
    "conv 1d": lambda: nn.Conv1d(6, 4, 2),
}
INPUT = {"linear": (2, 7), "conv": (2, 3, 5, 5), "conv 1d": (2, 6, 9)}
APPLY = {"linear": F.linear, "conv": F.conv2d, "conv 1d": F.conv1d}


@pytest.mark.parametrize("kind", LAYERS)
def test_standardized_weights_equal_the_equation_forward_and_gradient(kind):
    layer, x = randomise(LAYERS[kind]().double()), sample(*INPUT[kind])
    weight = layer.weight.detach().clone().requires_grad_()
    assert study.standardize_weights(layer) is layer
    expected = APPLY[kind](x, standardize(weight, tuple(range(1, weight.dim()))), layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    layer(x).pow(3).sum().backward(), expected.pow(3).sum().backward()
    original = layer.parametrizations.weight.original
    torch.testing.assert_close(original.grad, weight.grad, rtol=1e-9, atol=1e-9)


def test_each_outputs_weights_have_mean_0_and_variance_1_whatever_the_optimizer_does():
    layer = study.standardize_weights(nn.Conv2d(3, 4, 3))
    with torch.no_grad():
        layer.parametrizations.weight.original.mul_(50).add_(3)
    torch.testing.assert_close(layer.weight.mean((1, 2, 3)), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(layer.weight.var((1, 2, 3), correction=0), torch.ones(4))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (nn.ReLU(), "needs a layer with a weight"),
        (study.standardize_weights(nn.Linear(4, 4)), "have a parametrization already"),
        (nn.Conv1d(4, 4, 1, groups=4), "a single weight"),
    ],
)
def test_a_layer_whose_weights_cannot_be_standardized_is_refused(layer, told):
    with pytest.raises(ValueError, match=told):
        study.standardize_weights(layer)
    with pytest.raises(ValueError, match="eps must be above 0"):
        study.standardize_weights(nn.Linear(4, 4), eps=0)
