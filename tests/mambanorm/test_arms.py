"""Norms at further sites: the notation, and every site and every norm against the readable twin and
step by step.
"""

from __future__ import annotations

import copy

import pandas as pd
import pytest
import torch

import mambanorm as mn
import mambanorm_study as study
from mambanorm.arms import MORE_SITES, PRESETS, SITES, Arm, further_norms
from mambanorm.block import MambaBlock
from mambanorm.models.classifier import SequenceClassifier
from mambanorm.models.language import LanguageModel
from mambanorm.norms import NORMS
from mambanorm_study.models.vision import VSSBlock
from mambanorm_study.runs.grid import base_config
from tests.twins import assert_twins, results

D, SIZES = 24, dict(d_state=8, dt_rank=4)  # four groups divide every width: 24, 48, 8 and 4


def pairs(norms, *, of=7):
    """Sites with norms: every site with one in seven of the norms, every norm at one in seven of
    the sites.
    """
    numbered = [
        (i + k, site, norm) for i, site in enumerate(MORE_SITES) for k, norm in enumerate(norms)
    ]
    return [(site, norm) for number, site, norm in numbered if number % of == 0]


ALL = pairs([norm for norm in NORMS if norm != "None"])
CAUSAL = pairs([norm for norm in NORMS if norm != "None" and NORMS[norm].causal])


def made(kind=MambaBlock, *args, **options):
    """A block with γ and β away from 1 and 0."""
    torch.manual_seed(0)
    block = kind(D, *args, **SIZES, **options)
    with torch.no_grad():
        for norm in (block.n1, block.n2, *block.more.values()):
            for parameter in norm.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
    return block


def assert_as_in_float64(block, x):
    """There every operation is its readable twin in plain torch."""
    assert_twins(
        results(block, x), results(copy.deepcopy(block).double(), x.double()), 1e-3, at_least=1e-3
    )


# --------------------------------------------------------------------------------------------------
# the notation


@pytest.mark.parametrize(
    "text",
    [
        "NormVary>SSM>GN-token",
        "None>SSM>GN+delta_after:RMSN+gated:RMSN",
        "RMSN>SSM>None+z:LN+branch:LN+residual:LN",
    ],
)
def test_an_arm_comes_back_as_it_was_written(text):
    assert str(Arm.parse(text)) == text
    assert Arm.parse(Arm.parse(text)) == Arm.parse(text)
    assert base_config("digits", "smoke", arm=text).arm == text


def test_the_order_of_sites_and_sites_without_a_norm_make_no_other_arm():
    arm = Arm.parse("RMSN → SSM → None + gated : RMSN + B:LN+C:None")
    assert str(arm) == "RMSN>SSM>None+B:LN+gated:RMSN"
    plain = base_config("digits", "smoke", arm="RMSN>SSM>None")
    assert base_config("digits", "smoke", arm="RMSN>SSM>None+C:None").run_id == plain.run_id
    assert (
        further_norms({"gated": "RMSN", "B": None})
        == further_norms([["gated", "RMSN"]])
        == (("gated", "RMSN"),)
    )
    assert base_config(
        "digits", "smoke", arm=Arm("RMSN", "None", {"gated": "RMSN", "B": "LN"})
    ).arm == str(arm)


def test_further_sites_in_words():
    assert (
        Arm.parse("RMSN>SSM>None+B:RMSN+C:RMSN+delta:LN").label
        == "RMSN→None + RMSN at B, C + LN at Δ"
    )
    assert Arm.parse("RMSN→SSM→GN").label == "RMSN→GN"
    assert str(Arm.parse("preset:Bi-Mamba")) == "LN>SSM>LN"
    assert len(PRESETS) >= 25


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RMSN>GN", r"N1>SSM>N2.*did you mean 'RMSN>SSM>GN'"),
        (3, "an arm is text"),
        ("RMSN>SSM>None+gate:LN", r"unknown site 'gate'.*gated"),
        ("RMSN>SSM>None+B:RMSN+B:LN", "is named twice, with RMSN and LN"),
        ("RMSN>SSM>None+B", "SITE:NORM"),
        ("RMSN>SSM>None+B:RMS", r"unknown norm 'RMS'.*RMSN"),
        ("LN>MHA>LN+B:RMSN", "no further sites"),
    ],
)
def test_what_is_no_arm_is_refused_with_what_is_allowed(text, said):
    with pytest.raises(ValueError, match=said):
        Arm.parse(text)


@pytest.mark.parametrize(
    "name", ["Mamba-2-norms", "Jamba", "Falcon-Mamba", "Mamba-3-norms", "Peri-LN"]
)
def test_presets_of_today_train(name):
    arm, options = Arm.parse(f"preset:{name}"), dict(PRESETS[name].options)
    assert arm.more
    model = SequenceClassifier(
        3, in_features=1, d_model=D, n_layers=2, arm=arm, norm_options=options
    )
    model(torch.randn(2, 7, 1)).sum().backward()
    weightless = name == "Falcon-Mamba"
    assert all((norm.weight is None) == weightless for norm in model.blocks[0].more.values())


# --------------------------------------------------------------------------------------------------
# options


def test_options_of_one_site_are_for_the_norm_there():
    options = {"eps": 1e-6, "B": {"affine": False, "eps": 1e-3}, "n2": {"groups": 8}}
    block = MambaBlock(
        D, "RMSN", "GN", {"B": "RMSN", "gated": "GN"}, d_state=8, norm_options=options
    )
    assert (block.n1.eps, block.n2.groups, block.more["gated"].groups, block.more["B"].eps) == (
        1e-6,
        8,
        4,
        1e-3,
    )
    assert block.more["B"].weight is None
    assert block.more["gated"].eps == 1e-6


def test_options_of_a_site_without_a_norm_are_refused():
    with pytest.raises(TypeError, match="statistics"):
        MambaBlock(D, "RMSN", "GN", norm_options={"groups": 2, "statistics": "literal"})
    with pytest.raises(TypeError, match=r"no norm there: add \+B:NORM"):
        MambaBlock(D, norm_options={"B": {"affine": False}})
    with pytest.raises(TypeError, match=r"'afine'.*'affine'"):
        MambaBlock(D, more={"B": "RMSN"}, norm_options={"B": {"afine": False}})
    with pytest.raises(ValueError, match="must be a dict"):
        MambaBlock(D, more={"B": "RMSN"}, norm_options={"B": False})


def test_a_width_that_the_groups_do_not_divide_is_refused():
    with pytest.raises(ValueError, match="2 channels do not divide into 4 groups"):
        MambaBlock(D, more={"delta": "GN"})


def test_options_of_a_site_go_through_every_model():
    options = {"B": {"affine": False}, "eps": 1e-4}
    arm = "RMSN>SSM>None+B:RMSN"
    language = LanguageModel(11, d_model=D, n_layers=1, arm=arm, norm_options=options)
    vision = study.ImageClassifier(
        3, in_channels=1, d_model=D, n_layers=1, arm=arm, norm_options=options, final_norm="LN"
    )
    for block in (language.backbone.layers[0], vision.blocks[0]):
        assert block.more["B"].weight is None
        assert block.n1.eps == 1e-4
    assert language.backbone.norm_f.eps == vision.final_norm.eps == 1e-4


# --------------------------------------------------------------------------------------------------
# every site and every norm


@pytest.mark.parametrize(("site", "norm"), ALL, ids=lambda value: value)
def test_the_block_on_the_fused_operations_equals_it_on_their_readable_twins(site, norm):
    block = made(MambaBlock, "RMSN", "GN" if site == "gated" else "None", {site: norm})
    assert_as_in_float64(block, torch.randn(3, 11, D))


@pytest.mark.parametrize("site", MORE_SITES)
def test_padding_at_a_further_site_changes_no_valid_output(site):
    block = made(MambaBlock, "RMSN", "None", {site: "GN"})
    x, lengths = torch.randn(2, 9, D), torch.tensor([9, 5])
    y = block(x, lengths)
    x[1, 5:] = 100.0
    torch.testing.assert_close(block(x, lengths)[1, :5], y[1, :5])
    torch.testing.assert_close(block(x[1:, :5])[0], y[1, :5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("site", "norm"), CAUSAL, ids=lambda value: value)
def test_step_by_step_gives_what_forward_gives(site, norm):
    block = made(MambaBlock, "RMSN", "LN", {site: norm}).eval()
    x = torch.randn(2, 7, D)
    with torch.no_grad():
        whole = block(x)
        first, cache = block.prefill(x[:, :3])
        assert (cache.conv.shape, cache.state.shape) == ((2, 3, 2 * D), (2, 2 * D, 8))
        rest = [block.step(x[:, t], cache) for t in range(3, 7)]
    torch.testing.assert_close(first, whole[:, :3], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(rest, 1), whole[:, 3:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("site", "norm"), ALL, ids=lambda value: value)
def test_the_vision_block_has_every_site(site, norm):
    block = made(VSSBlock, "LN", "LN", {site: norm})
    x = torch.randn(2, 3, 4, D)
    assert_as_in_float64(block, x)
    assert (made(VSSBlock, "LN", "LN")(x) - block(x)).abs().max() > 1e-6


def test_what_is_recorded_behind_a_norm_is_its_output():
    block = made(
        MambaBlock, "RMSN", "None", {"gated": "RMSN"}, norm_options={"gated": {"affine": False}}
    )
    with mn.record_sites(block) as seen:
        block(torch.randn(2, 9, D))
    rms = pd.DataFrame(seen.rows()).set_index("site").rms
    assert rms["gated"] == pytest.approx(1, abs=0.02)
    assert list(rms.index) == list(SITES)
