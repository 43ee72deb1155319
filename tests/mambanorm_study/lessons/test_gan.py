"""Norms in a GAN: what a discriminator's scores tell about the batch, and how good the images are."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from mambanorm_study import figures
from mambanorm_study.lessons import gan
from mambanorm_study.lessons.gan import (
    DISCRIMINATORS,
    GENERATORS,
    MIXED,
    NOISE,
    REAL,
    batch_leak,
    frechet_distance,
    make_discriminator,
    make_generator,
    quality,
    scores,
    train_gan,
)


@pytest.fixture(scope="module")
def runs():
    """The recorded runs."""
    return gan.gan_runs("quick")


def images(n, seed=0):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) * 2 - 1


# ------------------------------------------------------------------------------------------ models


@pytest.mark.parametrize("norm", GENERATORS)
def test_a_generator_makes_images_with_the_values_of_digits(norm):
    made = make_generator(norm)(torch.randn(5, NOISE))
    assert made.shape == (5, 1, 8, 8)
    assert made.abs().max() <= 1


@pytest.mark.parametrize("norm", DISCRIMINATORS)
def test_a_discriminator_scores_each_image(norm):
    model = make_discriminator(norm)
    assert model(images(6)).shape == (6, 1)
    n_norms = sum(isinstance(layer, nn.BatchNorm2d | nn.GroupNorm) for layer in model)
    assert n_norms == (0 if norm == "None" else 2)


def test_all_discriminators_start_with_the_same_weights():
    made = []
    for norm in DISCRIMINATORS:
        torch.manual_seed(0)
        made.append([p for p in make_discriminator(norm).parameters() if p.dim() > 1])
    for weights in zip(*made, strict=True):
        assert all(torch.equal(weight, weights[0]) for weight in weights)


# -------------------------------------------------------------------------------------------- leak


def test_the_scores_of_mixed_batches_come_back_in_the_order_of_the_images():
    """A discriminator that returns the mean pixel does not depend on the batch."""
    real, generated = images(6), images(6, seed=1)
    mean_pixel = lambda x: x.mean((1, 2, 3), keepdim=False)[:, None]
    for mixed in (False, True):
        on_real, on_generated = scores(mean_pixel, real, generated, mixed=mixed)
        assert torch.equal(on_real, mean_pixel(real))
        assert torch.equal(on_generated, mean_pixel(generated))


def test_a_mixed_batch_is_half_real_and_half_generated():
    batches = []
    record = lambda x: batches.append(x.mean((1, 2, 3))) or batches[-1][:, None]
    scores(record, torch.ones(4, 1, 8, 8), torch.zeros(4, 1, 8, 8), mixed=True)
    assert [batch.tolist() for batch in batches] == [[1, 1, 0, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.parametrize("norm", DISCRIMINATORS)
def test_only_batch_norm_tells_who_else_is_in_the_batch(norm, steps):
    torch.manual_seed(0)
    generator, discriminator = make_generator("None"), make_discriminator(norm)
    real = images(64).round()
    train_gan(generator, discriminator, real, steps, mixed=norm == MIXED)
    generated = generator(torch.randn(64, NOISE)).detach()
    before = {name: value.clone() for name, value in discriminator.state_dict().items()}
    leak = batch_leak(discriminator, real, generated)
    after = discriminator.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    if norm in ("None", "LN"):
        assert leak["shift"] == leak["shift_same_kind"] == 0
        assert leak["pure_accuracy"] == leak["mixed_accuracy"]
    else:
        assert leak["shift"] > 0.05
        assert leak["shift_same_kind"] > 0


def test_the_leak_is_that_of_the_companions_counted_by_hand():
    """A discriminator that adds the batch's mean pixel; real images are 1, generated ones 0."""
    adds_mean = lambda x: x.mean((1, 2, 3))[:, None] - 0.6 + x.mean()
    with_state = nn.Module()
    with_state.forward = adds_mean
    leak = batch_leak(with_state, torch.ones(8, 1, 8, 8), torch.zeros(8, 1, 8, 8))
    assert leak["shift"] == pytest.approx(0.5)  # the mean of a mixed batch is ½, not 1 or 0
    assert leak["shift_same_kind"] == 0
    assert leak["pure_accuracy"] == 100  # 1 − 0.6 + 1 and 0 − 0.6 + 0
    assert leak["mixed_accuracy"] == 100  # 1 − 0.6 + ½ and 0 − 0.6 + ½


@pytest.mark.parametrize("learning", ["generator", "discriminator"])
def test_each_model_lowers_its_own_loss_while_the_other_stays(learning, monkeypatch):
    torch.manual_seed(0)
    models = {"generator": make_generator("IN"), "discriminator": make_discriminator("LN")}
    real, noise, step = images(32).round(), torch.randn(64, NOISE), gan._step
    own = {id(p) for p in models[learning].parameters()}
    is_own = lambda optimizer: id(optimizer.param_groups[0]["params"][0]) in own
    monkeypatch.setattr(gan, "_step", lambda opt, loss: step(opt, loss) if is_own(opt) else None)

    def loss():
        with torch.no_grad():
            on_generated = models["discriminator"](models["generator"](noise))
            on_real = models["discriminator"](real)
        if learning == "generator":
            return softplus(-on_generated).mean()
        return softplus(-on_real).mean() + softplus(on_generated).mean()

    before = loss()
    train_gan(*models.values(), real, 20, mixed=False)
    assert loss() < before - 0.05


def test_training_changes_both_models():
    torch.manual_seed(0)
    models = make_generator("IN"), make_discriminator("LN")
    before = [[p.clone() for p in model.parameters()] for model in models]
    train_gan(*models, images(40), 1, mixed=False)
    for model, values in zip(models, before, strict=True):
        assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), values, strict=True))


# ----------------------------------------------------------------------------------------- quality


def test_the_frechet_distance_of_normal_vectors_is_that_of_their_means_and_spreads():
    """For diagonal covariances it is ‖μ_a − μ_b‖² + ‖σ_a − σ_b‖²."""
    torch.manual_seed(0)
    a = torch.randn(100_000, 3, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5])
    b = torch.randn(100_000, 3, dtype=torch.float64) + torch.tensor([0.0, 0.0, 2.0])
    assert frechet_distance(a, b) == pytest.approx(4 + 0 + 1 + 0.25, rel=0.02)
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)


def test_quality_counts_the_digits_that_appear():
    class FirstPixel:
        def predict(self, pixels):
            return pixels[:, 0].long().numpy()

    made = torch.zeros(100, 1, 8, 8)
    made[:2, 0, 0, 0], made[2, 0, 0, 0] = 3, 4  # 2 % are a 3, 1 % are a 4, and the others a 0
    found = quality(FirstPixel(), made, images(50))
    assert found["classes"] == 2
    assert len(found["samples"]) == 8 * 64
    assert found["samples"][1:3] == [8, 8]  # zero is in the middle of 0 … 16


# ---------------------------------------------------------------------------------------- the runs


def test_the_recorded_runs_have_every_arm_and_leak_only_with_batch_norm(runs):
    arms = runs[runs.generator != REAL].groupby(["generator", "discriminator"])
    assert len(arms) == len(GENERATORS) * len(DISCRIMINATORS)
    assert (arms.seed.nunique() == 4).all()
    shift = arms["shift"].min().unstack("generator")
    assert (shift.loc[["BN", MIXED]] > 0.01).all(axis=None)
    assert (arms["shift"].max().unstack("generator").loc[["None", "LN"]] == 0).all(axis=None)
    real = runs[runs.generator == REAL]
    assert (real.classes == 10).all()
    assert real.frechet.max() < runs[runs.generator != REAL].frechet.min()


def test_the_figure_has_a_row_for_each_arm(runs):
    fig = figures.fig_gan(runs)
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels[0] == REAL
    assert len(labels) == 1 + len(GENERATORS) * len(DISCRIMINATORS)
    assert "no norm · BN, mixed batches" in labels
    assert len(fig.axes[0].images) == len(labels)


def test_the_runs_can_be_measured_here(tmp_path, monkeypatch):
    monkeypatch.setenv("MAMBANORM_SOURCE", "trained")
    frame = gan.gan_runs("smoke", runs_dir=tmp_path)
    assert len(frame) == 1 + len(GENERATORS) * len(DISCRIMINATORS)
    assert frame.frechet.map(math.isfinite).all()
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
