"""The items of source S2, AutoNorm: one test an item. docs/sources.md lists the items.

Each test shows that an item is there and does what the source says, and that its notebook uses it.
"""

import numpy as np
import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm.loop import learning_rate
from mambanorm.models.parts import DropPath
from mambanorm_study.models.attention_arms import AUTONORM
from mambanorm_study.models.transformer import SqueezeExcite, TransformerClassifier
from mambanorm_study.runs import evaluation, regimen
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.training_state import TrainingState
from mambanorm_study.tables import flops, robustness
from mambanorm_study.tables.experiments import PRETRAINED_ON
from mambanorm_study.tasks import Split
from tests.sources.shown import assert_shown
from tests.twins import sample, scrambled

NOTEBOOK = "10_autonorm"


def test_b1_the_selector_blends_dyt_and_ln_with_weights_that_add_up_to_one():
    """S2 §IV.A: "Output = w_0 · DyT(x) + w_1 · LN(x)", with the modes `disable_selector` and
    `random_selector`.
    """
    x = sample(3, 5, 16)
    norm = scrambled(mn.create_norm("NormSelector", 16))
    w = norm.weights(x)
    torch.testing.assert_close(w.sum(-1), torch.ones(3, 5))
    assert w.std(dim=(0, 1)).min() > 0  # the weights depend on the token
    blend = w[..., :1] * norm.dyt(x) + w[..., 1:] * norm.ln(x)
    torch.testing.assert_close(norm(x), blend)
    disabled = mn.create_norm("NormSelector", 16, mode="disable")
    assert torch.equal(disabled(x), mn.create_norm("LN", 16)(x))
    random = mn.create_norm("NormSelector", 16, mode="random")
    assert not torch.equal(random(x), random(x))
    assert_shown(NOTEBOOK, "fig_selector")


def test_b2_the_transformer_has_the_selector_and_the_utility_modules():
    """S2 §IV.B: "integrates the novel `NormSelector` within its Transformer blocks to enable adaptive
    normalization".
    """
    model = TransformerClassifier(10, in_channels=3, patch=2, d_model=16, n_layers=2,
                                  arm="AutoNorm", drop_path=0.5, squeeze_excite=True)  # fmt: skip
    images = sample(4, 8, 8, 3)
    logits = model(images)
    logits.sum().backward()
    assert logits.shape == (4, 10)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    patches = model.stem(images.permute(0, 3, 1, 2))  # PatchEmbedding: 8×8 pixels, 4×4 patches
    assert patches.shape == (4, 16, 4, 4)
    branch = torch.ones(20_000, 1)
    kept = DropPath(0.25).train()(branch)
    assert sorted(kept.unique().tolist()) == pytest.approx([0, 4 / 3])
    assert float(kept.mean()) == pytest.approx(1, abs=0.03)  # the expected value is the branch
    x = sample(2, 5, 16)
    gate = SqueezeExcite(16)(x) / x  # one factor per row and channel, between 0 and 1
    torch.testing.assert_close(gate, gate[:, :1].expand_as(gate))
    assert gate.min() > 0
    assert gate.max() < 1
    linear = scrambled(mn.create_norm("DyT", 16, linear=True))
    torch.testing.assert_close(linear(x), x * linear.alpha)  # DyT(x) = x ⊙ α, as S2 writes it
    assert_shown(NOTEBOOK, "robustness")


def test_b3_each_baseline_is_a_named_model():
    """S2 §IV.C.2: "we compare its performance against several carefully selected baselines"."""
    names = ["AutoNorm", "AutoNorm_DisableSelector", "AutoNorm_RandomSelector", "FrozenDyT"]
    names += ["FrozenLN", "Teacher"]
    assert set(names) <= set(AUTONORM)
    x = sample(2, 8, 8, 1)
    outputs = {}
    for name in names:
        torch.manual_seed(0)
        outputs[name] = TransformerClassifier(10, in_channels=1, d_model=8, n_layers=1, arm=name)(x)
    assert torch.equal(outputs["AutoNorm_DisableSelector"], outputs["FrozenLN"])
    assert not torch.allclose(outputs["FrozenDyT"], outputs["FrozenLN"])
    assert_shown(NOTEBOOK, "notebook_runs", "teacher_effect")


def test_b4_every_data_set_is_a_task_and_fine_tuning_begins_with_the_head():
    """S2 §IV.C.1 and §IV.C.3: "models are first finetuned with only the classification/regression
    head active, followed by a full finetune of the entire model".
    """
    names = {"mnist_images", "fashion_mnist_images", "svhn_images", "cifar10_images"}
    names |= {"energy", "cifar100_images", "california_housing"}
    assert names <= set(study.TASKS)
    assert PRETRAINED_ON["energy"] == "california_housing"
    config = study.base_config("digits_images", "smoke", arm="FrozenLN")
    data = study.load_task(config.task, config.scale, 0)
    model = build_model(config, data)
    images, _, labels = data.train.batch(slice(0, 8))
    with regimen.freeze_all_but_head(model):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    learning = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learning == {f"head.{name}" for name, _ in model.head.named_parameters()}
    assert_shown(NOTEBOOK, "load_or_train")


def test_b5_the_regimen_is_there_part_by_part():
    """S2 §IV.C.3: "Our training regimen incorporates advanced optimization and regularization
    techniques".
    """
    rate = [learning_rate(s, lr=1.0, steps=100, warmup_steps=10, schedule="cosine_warmup")
            for s in (1, 10, 100)]  # fmt: skip
    assert rate == pytest.approx([0.1, 1, 0], abs=1e-12)
    config = study.base_config("digits_images", "smoke", arm="FrozenLN", mixup=0.4, ema=0.5,
                               label_smoothing=0.1, drop_path=0.1, patience=3)  # fmt: skip
    assert config.optimizer == "adamw"
    data = study.load_task(config.task, config.scale, 0)
    images, _, labels = data.train.batch(slice(0, 8))
    mixed, targets = regimen.mix_rows(images, None, labels, config, step=1)
    assert 0 < targets.share < 1
    assert not torch.equal(mixed, images)
    cut, _ = regimen.mix_rows(images, None, labels, config.but(mixup=0.0, cutmix=1.0), step=1)
    from_own, from_other = (cut == images).float().mean(), (cut != images).float().mean()
    assert from_other > 0
    assert from_own > 0
    logits = sample(8, 10)
    smoothed = regimen.loss_of(logits, regimen.Targets(labels), config)
    expected = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(smoothed, expected)
    taught = regimen.Targets(labels, teacher_outputs=sample(8, 10, seed=1))
    assert regimen.loss_of(logits, taught, config.but(teacher_weight=1.0)) != smoothed
    assert TrainingState(build_model(config, data), config, by_loss=False).averaged is not None
    result = study.train(config)
    assert result.status == "ok"
    assert_shown(NOTEBOOK, "notebook_runs")


def test_b6_every_metric_is_measured():
    """S2 §IV.C.4: "Robustness to noise and rotation: Evaluated using corrupted test loaders"."""
    split = Split(sample(6, 8, 8, 1), torch.zeros(6, dtype=torch.long))
    noisy = robustness.corrupted(split, "noise", 0.5)
    spread = float((noisy.inputs - split.inputs).std() / split.inputs.std())
    assert spread == pytest.approx(0.5, rel=0.15)
    turned = robustness.rotated(split.inputs, torch.full((6,), 90.0))
    torch.testing.assert_close(turned, split.inputs.rot90(1, (1, 2)), atol=1e-5, rtol=0)
    predictions = {"predicted": np.array([[1.0], [5.0]]), "label": np.array([[1.0], [2.0]]),
                   "baseline": np.array([[0.0], [0.0]])}  # fmt: skip
    found = evaluation.errors(predictions)
    assert (found["rmse"], found["mae"]) == pytest.approx((4.5**0.5, 1.5))
    costs = {name: flops.row_flops(TransformerClassifier(10, in_channels=1, d_model=16, n_layers=1,
                                                         arm=name), 64)
             for name in ("FrozenDyT", "FrozenLN", "AutoNorm")}  # fmt: skip
    assert costs["FrozenDyT"] < costs["FrozenLN"] < costs["AutoNorm"]  # the norms are counted
    config = study.base_config("digits_images", "smoke", arm="FrozenLN")
    table = robustness.latency_table([config], rows=(1,))
    assert (table.ms > 0).all()
    assert_shown(
        NOTEBOOK, "robustness_table", "latency_table", "rmse_beside_rivals", "flops_per_value"
    )
