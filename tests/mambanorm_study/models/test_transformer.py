"""The Transformer equals its equations in float64; its parts do what S2 says of them."""

import math
from functools import partial

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import mambanorm as mn
from mambanorm.models.parts import DropPath, drop_rates
from mambanorm_study.models.attention_arms import AUTONORM, AttentionArm
from mambanorm_study.models.transformer import (
    Attention,
    SqueezeExcite,
    TransformerBlock,
    TransformerClassifier,
)
from mambanorm_study.runs.weight_log import WeightLog, selector_weights
from mambanorm_study.tasks import Split
from tests import twins

B, L, D, H = 3, 7, 8, 2
LENGTHS = torch.tensor([7, 3, 1])


sample = partial(twins.sample, dtype=torch.float64)


def make(**changes):
    return TransformerClassifier(
        4, **(dict(in_features=2, d_model=D, n_layers=2, n_heads=H) | changes)
    )


def attention_by_hand(layer, x, length):
    """Return one row (L, D), head by head, query by query: softmax(q·k/√d) v over `length`
    positions.
    """
    q, k, v = (x @ layer.qkv.weight.T + layer.qkv.bias).split(D, dim=-1)
    out, d = torch.zeros_like(x), D // layer.n_heads
    for head in range(layer.n_heads):
        part = slice(head * d, (head + 1) * d)
        for i in range(len(x)):
            score = torch.stack([q[i, part] @ k[j, part] / math.sqrt(d) for j in range(length)])
            out[i, part] = sum(w * v[j, part] for j, w in enumerate(score.softmax(0)))
    return out @ layer.out_proj.weight.T + layer.out_proj.bias


@pytest.mark.parametrize(("heads", "lengths"), [(1, None), (2, LENGTHS), (8, LENGTHS)])
def test_attention_equals_its_equation_forward_and_gradient(heads, lengths):
    torch.manual_seed(0)
    layer, most = Attention(D, heads).double(), [L] * B if lengths is None else lengths.tolist()

    def by_hand(x):
        return torch.stack(
            [attention_by_hand(layer, row, n) for row, n in zip(x, most, strict=True)]
        )

    found = twins.results(lambda x: layer(x, lengths), sample(B, L, D), of=layer)
    expected = twins.results(by_hand, sample(B, L, D), of=layer)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    twins.assert_twins(found, expected, 1e-12)


@pytest.mark.parametrize("position", ["after", "before"])
def test_a_block_is_its_equation(position):
    torch.manual_seed(0)
    block = TransformerBlock(
        D, "LN", "RMSN", n_heads=H, norm_position=position, squeeze_excite=True
    ).double()
    x = sample(B, L, D)
    if position == "after":
        h = block.n1(x + block.attention(x))
        expected = block.n2(h + block.squeeze(block.feed_forward(h)))
    else:
        h = x + block.attention(block.n1(x))
        expected = h + block.squeeze(block.feed_forward(block.n2(h)))
    torch.testing.assert_close(block(x), expected)


def test_squeeze_and_excite_scales_each_channel_by_what_the_valid_positions_say():
    torch.manual_seed(0)
    layer, x = SqueezeExcite(D).double(), sample(B, L, D)
    y, first, last = layer(x, LENGTHS), layer.excite[0], layer.excite[2]
    for row, n in enumerate(LENGTHS):
        hidden = torch.relu(x[row, :n].mean(0) @ first.weight.T + first.bias)
        scale = torch.sigmoid(hidden @ last.weight.T + last.bias)
        torch.testing.assert_close(y[row], x[row] * scale)


@pytest.mark.parametrize(
    ("name", "position"), list(zip([*AUTONORM, "AutoNorm"], ["after", "before"] * 4, strict=True))
)
def test_a_padded_row_gives_what_it_gives_alone(name, position):
    torch.manual_seed(1)
    model, x = (
        make(arm=name, norm_position=position, squeeze_excite=True).double().eval(),
        sample(B, L, 2),
    )
    junk = torch.where(torch.arange(L)[None, :, None] < LENGTHS[:, None, None], x, torch.nan)
    together = model(junk, LENGTHS)
    for row, n in enumerate(LENGTHS):
        torch.testing.assert_close(
            together[row], model(x[row : row + 1, :n])[0], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize(
    ("stem", "x", "lengths"),
    [
        (dict(vocab_size=5), torch.randint(0, 5, (B, L)), LENGTHS),
        (dict(in_features=2), torch.randn(B, L, 2), LENGTHS),
        (
            dict(in_channels=3, patch=2, positional="learned", positions=(2, 3)),
            torch.randn(B, 4, 6, 3),
            None,
        ),
    ],
)
def test_tokens_features_and_patches_become_logits_with_gradients_everywhere(stem, x, lengths):
    torch.manual_seed(0)
    model = TransformerClassifier(4, d_model=32, n_layers=2, n_heads=H, squeeze_excite=True, **stem)
    for block in model.blocks:
        for norm in (block.n1, block.n2):
            torch.nn.init.normal_(norm.selector[-1].weight)  # 0 at first
    logits = model(x, lengths)
    assert logits.shape == (B, 4)
    F.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    assert [
        n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0
    ] == []


def test_a_named_models_options_reach_its_norms():
    named = ("disable", "random", "fixed")
    assert (
        tuple(make(arm=f"AutoNorm_{m.title()}Selector").blocks[1].n2.mode for m in named) == named
    )


def test_a_name_says_what_the_model_is_and_cannot_be_contradicted():
    with pytest.raises(
        ValueError,
        match="arm AutoNorm_DisableSelector sets mode='disable', but .* as NormSelector>MHA",
    ):
        make(arm="AutoNorm_DisableSelector", norm_options={"mode": "learned"})
    arms = [AttentionArm.parse(name) for name in (*AUTONORM, "LN>MHA>LN", "LN>SSM>LN")]
    assert len(set(arms)) == len(arms)
    assert all(
        (a == b) == (i == j) != (a != b) for i, a in enumerate(arms) for j, b in enumerate(arms)
    )


def test_all_named_models_start_with_the_same_weights():
    weights = []
    for arm in AUTONORM:
        torch.manual_seed(0)
        model = make(arm=arm)
        weights.append(
            {n: p for n, p in model.named_parameters() if ".n1." not in n and ".n2." not in n}
        )
    for other in weights[1:]:
        assert all(torch.equal(p, other[name]) for name, p in weights[0].items())


# stochastic depth


def test_the_expectation_of_drop_path_is_the_branch():
    torch.manual_seed(0)
    drop, branch = DropPath(0.3), torch.full((20_000, 2, 2), 5.0)
    y = drop(branch)
    kept = y[:, 0, 0] != 0
    assert abs(kept.double().mean() - 0.7) < 0.01  # row by row: 0.7 ± 0.003
    assert abs(y.mean() - 5.0) < 0.1
    torch.testing.assert_close(y[kept], branch[kept] / 0.7)
    assert (y[~kept] == 0).all()
    assert drop.eval()(branch) is branch
    assert DropPath(0.0)(branch) is branch


def test_the_rate_grows_with_the_depth():
    assert drop_rates(0.3, 4) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert drop_rates(0.3, 1) == [0.3]


# inside


def test_diagnostics_see_the_selectors_of_a_transformer():
    torch.manual_seed(0)
    model = TransformerClassifier(4, in_features=2, d_model=D, n_layers=2, n_heads=H)
    with mn.record_sites(model) as seen:
        model(torch.randn(B, L, 2))
    frame = pd.DataFrame(seen.rows())
    sites = ["x", "attention", "selector", "n1", "feed_forward", "selector", "n2", "residual"]
    assert frame.site.tolist() == sites * 2
    assert frame.block[frame.site == "selector"].tolist() == [
        f"blocks.{i}.{n}" for i in (0, 1) for n in ("n1", "n2")
    ]
    for w in seen.tensors("selector"):
        torch.testing.assert_close(w.sum(-1), torch.ones(B, L))
    assert all(block.n1.observer is None for block in model.blocks)
    log = WeightLog(model)
    log.snapshot(0)
    assert log.arrays()["part_norms"].shape == (1, 2, 4)


def test_what_a_selector_chooses_is_told_by_class():
    torch.manual_seed(0)
    model = TransformerClassifier(3, in_features=2, d_model=D, n_layers=2, n_heads=H)
    split = Split(
        torch.randn(6, L, 2), torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([7, 3, 7, 7, 1, 7])
    )
    with mn.record_sites(model.eval(), ["selector"]) as seen:
        model(split.inputs, split.lengths)
    w0 = seen.tensors("selector")[3][..., 0].detach()  # the second block's second norm
    by_class = selector_weights(model.train(), split)
    assert (len(by_class), model.training) == (4 * 3, True)
    last = by_class[by_class.block == "blocks.1.n2"].set_index("label").w0
    assert last[0] == pytest.approx(float(torch.cat([w0[0, :7], w0[1, :3]]).mean()))


# bad input


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(n_heads=3), r"n_heads=3 does not divide d_model=8: valid n_heads are \[1, 2, 4, 8\]"),
        (dict(norm_position="post"), "norm_position"),
        (dict(arm="RMSN>SSM>GN"), "for a Transformer write RMSN>MHA>GN"),
    ],
)
def test_impossible_models_are_named(changes, told):
    with pytest.raises(ValueError, match=told):
        make(**changes)


def test_an_arm_of_attention_is_written_as_it_is_read():
    for text in ("LN>MHA>RMSN", *AUTONORM):
        assert str(mn.Arm.parse(text)) == text
        assert isinstance(mn.Arm.parse(text), AttentionArm)
    assert not isinstance(mn.Arm.parse("LN>SSM>LN"), AttentionArm)
    assert mn.Arm.parse("LN→MHA→RMSN").label == "LN→RMSN"
