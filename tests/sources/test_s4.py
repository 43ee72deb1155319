"""The items of source S4, the guide to norms: one test an item. docs/sources.md lists the items."""

import torch
from torch import nn

import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm_study import advice
from mambanorm_study.advice import blocks
from mambanorm_study.lessons import gan, overheads
from mambanorm_study.models.transformer import TransformerBlock
from tests.sources.shown import assert_shown
from tests.twins import sample

NOTEBOOK = "11_choosing"


def test_d1_every_block_of_the_guide_runs():
    """S4, Architecture-Specific Selection: "class ConvBlock(nn.Module)", "class
    StyleConvBlock(nn.Module)", "class NormalizedLSTM(nn.Module)", "class
    TransformerLayerPostNorm(nn.Module)", "class Generator(nn.Module)".
    """
    images = sample(4, 1, 8, 8)
    for norm in ("BN", "GN", "IN"):
        assert blocks.ConvBlock(1, 16, norm)(images).shape == (4, 16, 8, 8)
    assert blocks.StyleNet("IN")(images).shape == images.shape
    assert blocks.SequenceNet(3, 1, norm="LN")(sample(2, 7, 3)).shape == (2, 1)
    x = sample(2, 5, 16)
    for norm_position in ("before", "after"):  # pre-norm and post-norm
        for norm in ("LN", "RMSN"):
            block = TransformerBlock(16, norm, norm, norm_position=norm_position)
            assert block(x).shape == x.shape
    post, pre = (
        TransformerBlock(16, norm_position=place)(x).detach() for place in ("after", "before")
    )
    assert float(post.mean(-1).abs().max()) < 1e-5 < float(pre.mean(-1).abs().max())
    drawn = gan.make_generator("IN")(sample(4, gan.NOISE))
    assert drawn.shape == images.shape
    for norm in ("None", "LN"):
        discriminator = gan.make_discriminator(norm)
        assert discriminator(drawn).shape == (4, 1)
        assert gan.batch_leak(discriminator, images, drawn)["shift"] == 0
    assert gan.batch_leak(gan.make_discriminator("BN"), images, drawn)["shift"] > 1e-3
    assert_shown(NOTEBOOK, "ConvNet", "fig_gan")


FRAMEWORK = [
    (dict(architecture="cnn", batch_size=32), "BN"),
    (dict(architecture="cnn", batch_size=4), "GN"),
    (dict(architecture="cnn", task="style_transfer"), "IN"),
    (dict(architecture="lstm"), "LN"),
    (dict(architecture="transformer", size=350e6), "LN"),
    (dict(architecture="transformer", size=7e9), "RMSN"),
    (dict(architecture="gan", component="generator", task="image_translation"), "IN"),
    (dict(architecture="gan", component="discriminator"), "None"),
    (dict(architecture="mlp", component="output"), "None"),  # When NOT to Normalize, case 1
    (dict(architecture="mlp", depth=1), "None"),  # case 2
]


def test_d2_the_framework_the_checks_and_the_mistakes():
    """S4, Decision Framework, Implementation Checklist, Common Mistakes, When NOT to Normalize: "If
    < 8, avoid BatchNorm" and "Mistake 4: Post-norm for deep Transformers".
    """
    for question, norm in FRAMEWORK:
        assert study.recommend(**question).norm == norm, question
    assert sorted(advice.MISTAKES) == [1, 2, 3, 4, 5]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.BatchNorm2d(8), nn.Flatten(),
                        nn.Linear(288, 10), nn.LayerNorm(10))  # fmt: skip
    training, predicting = (
        str(clinic.check_model(net, sample(2, 1, 8, 8), evaluating=evaluating))
        for evaluating in (False, True)
    )
    assert "check 1" in training
    assert "check 4" in training
    assert "check 7" in predicting
    assert "check 6" in predicting
    assert_shown(NOTEBOOK, "recommend", "check_model", "mistake_table")


def test_d3_the_guides_numbers_stand_beside_ours():
    """S4, Performance Impact and the tables before it: "Normalization overhead (relative to no
    normalization)" and "batch_size = 2:   BatchNorm = 72.1%, GroupNorm = 75.3%".
    """
    table = advice.claimed_and_measured(
        {name: advice.measure(name, scale="quick") for name in advice.EXPERIMENTS}
    ).set_index("claim")
    assert table.claimed["BN / GN at batch 2"] == "72.1 / 75.3 %"
    small = advice.measure("batch_size", scale="quick").query("batch == 2")
    bn, gn = (small[small.norm == norm].accuracy.mean() for norm in ("BN", "GN"))
    assert table.measured["BN / GN at batch 2"].startswith(f"{bn:.1f} / {gn:.1f} %")
    costs = overheads.recorded_overheads()
    assert len(costs) == 15  # five norms in three models
    assert (costs.training > 0).all()
    assert (costs.memory > 0).all()
    assert dict(zip(costs.norm, costs.claimed_high, strict=True)) == {
        "BN": 2, "LN": 5, "RMSN": 3, "GN": 8, "IN": 5
    }  # fmt: skip
    assert_shown(NOTEBOOK, "claimed_and_measured", "overhead_table")
