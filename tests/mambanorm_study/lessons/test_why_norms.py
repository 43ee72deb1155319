"""Why norms help: the loss along the gradient, and a residual net that starts without a norm."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from mambanorm_study import figures
from mambanorm_study.lessons import why_norms
from mambanorm_study.lessons.why_norms import (
    NET_ARMS,
    RATES,
    STEP_SIZES,
    VGG_ARMS,
    ShiftingNoise,
    losses_along_gradient,
    residual_net,
    vgg,
)


@pytest.fixture(scope="module")
def ranges():
    """The recorded runs."""
    return why_norms.loss_ranges("quick")


@pytest.fixture(scope="module")
def curves():
    return why_norms.normalizer_free_curves("quick")


# ------------------------------------------------------------------------------ loss along gradient


def test_the_losses_along_the_gradient_are_those_after_steps_of_sgd():
    """One step of SGD from the same weights gives each loss, and the model does not change."""
    torch.manual_seed(0)
    x, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    model = vgg("BN")
    cross_entropy(model(x), labels).backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses = losses_along_gradient(model, x, labels)
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    for size, loss in zip(STEP_SIZES, losses, strict=True):
        torch.optim.SGD(model.parameters(), lr=size).step()
        with torch.no_grad():
            assert float(cross_entropy(model(x), labels)) == pytest.approx(loss, rel=1e-4)
        model.load_state_dict(before)


def test_every_loss_of_a_step_has_the_same_noise():
    torch.manual_seed(0)
    x, labels = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    model, state = vgg("BN + noise"), torch.get_rng_state()
    loss = cross_entropy(model(x), labels)
    after = torch.get_rng_state()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)  # no step at all
    assert losses_along_gradient(model, x, labels, state) == [loss.item()] * len(STEP_SIZES)
    assert torch.equal(torch.get_rng_state(), after)  # the next batch is the same as without


def test_the_noise_has_the_published_mean_and_spread_and_shifts_at_each_step():
    torch.manual_seed(0)
    x, noise = torch.ones(4000, 3, 2, 2), ShiftingNoise()
    first, second = noise(x), noise(x)
    assert not torch.allclose(first.mean(0), second.mean(0), atol=0.05)
    means = torch.stack([noise(x[:200]).mean(0) for _ in range(400)])
    assert means.mean() == pytest.approx(1.125, abs=0.01)  # E[σ] + E[μ]
    assert means.std() == pytest.approx((1 / 12 + 0.25**2 / 12) ** 0.5, abs=0.01)
    spread = first.std(0).mean()  # within one step: of s and of m
    assert float(spread) == pytest.approx((0.1**2 + 0.2**2 / 12) ** 0.5, rel=0.02)
    assert noise.eval()(x) is x


def test_the_arms_of_the_vgg_share_their_convolutions():
    made = {}
    for arm in VGG_ARMS:
        torch.manual_seed(0)
        made[arm] = [layer for layer in vgg(arm, channels=3) if isinstance(layer, nn.Conv2d)]
    for layers in zip(*made.values(), strict=True):
        assert all(torch.equal(layer.weight, layers[0].weight) for layer in layers)
    assert vgg("None", channels=3)(torch.rand(2, 3, 32, 32)).shape == (2, 10)  # as of CIFAR-10


def test_batch_norm_makes_the_loss_smooth_and_noise_takes_little_of_the_accuracy(ranges):
    median = ranges.groupby("arm").range.median()
    assert median["BN"] < median["BN + noise"] < median["None"]
    assert median["None"] > 10 * median["BN"]
    assert ((ranges.high - ranges.low) == ranges.range).all()
    accuracy = ranges.groupby("arm").train_accuracy.mean()
    assert accuracy["BN"] - accuracy["BN + noise"] < accuracy["BN"] - accuracy["None"]


def test_the_figure_of_the_ranges_has_a_panel_for_each_arm(ranges):
    fig = figures.fig_loss_ranges(ranges)
    assert [ax.get_title(loc="left") for ax in fig.axes] == ["no norm", "BN", "BN + noise"]
    assert all(ax.get_xlabel() == "training step" for ax in fig.axes)
    assert fig.axes[0].get_ylabel() == "loss along the gradient"


# ------------------------------------------------------------------------------ normalizer-free net


def test_a_normalizer_free_net_starts_as_its_first_and_last_layer():
    """α = 0: each block is the identity. Without α the stream grows by orders of magnitude."""
    x, made = torch.rand(32, 1, 8, 8), {}
    for arm in NET_ARMS:
        torch.manual_seed(0)
        made[arm] = residual_net(arm)
    free = made["normalizer-free"]
    assert torch.equal(free(x), free[-1](free[1](x.flatten(1))))
    assert made["None"](x).abs().max() > 1e3 * free(x).abs().max()
    alphas = [name for name, p in free.named_parameters() if "alpha" in name and p.requires_grad]
    assert len(alphas) == why_norms.DEPTH
    assert not any(p.requires_grad for name, p in made["BN"].named_parameters() if "alpha" in name)


def test_the_normalizer_free_net_trains_where_nothing_diverges(curves):
    reached = curves.groupby(["arm", "lr"]).val_accuracy.mean().unstack("lr")
    assert list(reached) == list(RATES)
    assert (reached.loc["None"] == 10).all()
    assert (reached.loc["BN"] > 90).all()
    assert reached.loc["normalizer-free", 0.05] > 90


@pytest.mark.parametrize("lesson", [why_norms.loss_ranges, why_norms.normalizer_free_curves])
def test_a_lesson_can_be_measured_here(lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    frame = lesson("smoke", 1, runs_dir=tmp_path)
    assert frame.train_accuracy.between(0, 100).all()
    assert set(frame.arm) in ({*VGG_ARMS}, {*NET_ARMS})
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
