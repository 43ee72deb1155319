"""The block is Eq. 1–3, carries mamba-ssm's parameters, and all arms of a seed start from the same
weights.
"""

import copy
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

import mambanorm as mn
import mambanorm_study as study
from mambanorm.arms import MORE_SITES
from mambanorm.operations import conv_silu
from mambanorm.operations.conv_gate import causal_conv
from mambanorm_study.basics.settings import FLAT
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.tables.diagnostics import residual_growth
from mambanorm_study.tables.experiments import GRID_ARMS, NORMVARY_ARMS
from mambanorm_study.tables.growth import (
    EXPONENTIAL,
    growth,
    growth_fits,
    norm_quantiles,
)
from mambanorm_study.tasks import load_task
from tests.twins import assert_twins, results, sample

D, L, B = 16, 11, 3
ARMS = (
    "None>SSM>None",
    "RMSN>SSM>None",
    "RMSN>SSM>GN",
    "BN>SSM>BN",
    "IN>SSM>LN",
    "NormVary>SSM>GN-token",
)


@pytest.fixture
def torch_norm():
    """A norm of someone else's in the registry: a plain module."""

    @mn.register_norm(
        "Torch", equation="", source="this test", axes=("D",), causal=True, learnable="γ"
    )
    class Torch(torch.nn.RMSNorm):
        def forward(self, x, lengths=None):
            return super().forward(x)

    yield
    del mn.NORMS["Torch"]


def block_by_hand(block, x):
    """Eq. 1–3 written out in plain torch, one step of the state at a time; each site behind its
    norm, if it has one.
    """
    e, n, r = block.d_inner, block.d_state, block.dt_rank
    at = lambda site, value: dict(block.more).get(site, torch.nn.Identity())(value)
    h = block.n1(x)
    u, z = (h @ block.in_proj.weight.T).split(e, dim=-1)
    padded = torch.cat([torch.zeros(len(x), 3, e, dtype=x.dtype), u], 1)
    taps = block.conv1d.weight[:, 0]
    u = at(
        "conv",
        F.silu(
            sum(padded[:, k : k + x.shape[1]] * taps[:, k] for k in range(4)) + block.conv1d.bias
        ),
    )
    dt, B_, C = (u @ block.x_proj.weight.T).split([r, n, n], dim=-1)
    dt, B_, C = at("delta", dt), at("B", B_), at("C", C)
    delta = F.softplus(at("delta_after", dt @ block.dt_proj.weight.T) + block.dt_proj.bias)
    A, state, ys = -torch.exp(block.A_log), 0, []
    for t in range(x.shape[1]):
        state = torch.exp(delta[:, t, :, None] * A) * state
        state = state + (delta[:, t] * u[:, t])[..., None] * B_[:, t, None, :]
        ys.append((state * C[:, t, None, :]).sum(-1) + block.D * u[:, t])
    f = block.n2(torch.stack(ys, 1))
    return at(
        "residual", x + at("branch", at("gated", f * F.silu(at("z", z))) @ block.out_proj.weight.T)
    )


EVERYWHERE = "RMSN>SSM>RMSN+" + "+".join(
    f"{site}:{norm}" for site, norm in zip(MORE_SITES, 9 * ["LN", "RMSN"])
)


@pytest.mark.parametrize("arm", [*ARMS, EVERYWHERE])
def test_block_equals_the_equations_written_by_hand(arm):
    block, x = mn.MambaBlock(D, *mn.Arm.parse(arm), dt_rank=3), sample(B, L, D)
    ours, theirs = results(block, x), results(partial(block_by_hand, block), x, of=block)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    assert_twins(ours, theirs, 1e-5)


def test_initial_values_are_mamba_ssm_s():
    torch.manual_seed(0)
    block = mn.MambaBlock(64)
    torch.testing.assert_close(block.A_log.exp(), torch.arange(1.0, 17).repeat(128, 1))
    assert torch.equal(block.D, torch.ones(128))
    dt = F.softplus(block.dt_proj.bias)
    assert 1e-3 * 0.99 <= dt.min() <= dt.max() <= 0.1 * 1.01
    assert (
        abs(torch.log(dt).mean() - math.log(1e-2)) < 0.4
    )  # log-uniform over two decades: mean at 1e-2
    assert 0.95 * 4**-0.5 < block.dt_proj.weight.abs().max() <= 4**-0.5
    model = mn.SequenceClassifier(3, vocab_size=50, d_model=64, n_layers=4)
    assert abs(model.stem.weight.std() - 0.02) < 0.002
    bound = 128**-0.5 / 2  # kaiming_uniform(√5) is U(±1/√fan_in), divided by √n_layers
    assert 0.95 * bound < model.blocks[0].out_proj.weight.abs().max() <= bound


PAIRS = zip([*ARMS, "LN>SSM>RMSN-DL", "GN-token>SSM>NormVary", "Torch>SSM>Torch"], 5 * [0, 1])
WIDTHS = ((3, 65, 36), {"d_state": 5}), ((4, 7, 48), {"dt_rank": 5})


@pytest.mark.parametrize(("arm", "shape", "sizes"), [(arm, *WIDTHS[i]) for arm, i in PAIRS])
def test_fused_block_equals_its_plain_twin_in_float64_forward_and_backward(
    arm, shape, sizes, torch_norm
):
    found = []
    for dtype in (torch.float32, torch.float64):
        torch.manual_seed(0)
        block = mn.MambaBlock(shape[2], *mn.Arm.parse(arm), **sizes).to(dtype)
        found.append(results(block, sample(*shape, dtype=dtype)))
    assert_twins(*found, 2e-5)


def test_a_block_first_asked_in_inference_mode_learns_afterwards():
    """What the kernels make once and keep is fit for a backward pass, whoever asked for it
    first.
    """
    block, x = (
        mn.MambaBlock(12, "RMSN", "RMSN-DL"),
        torch.randn(3, 5, 12),
    )  # sizes that no other test has
    with torch.inference_mode():
        block(x)
    block(x).sum().backward()
    assert all(p.grad is not None for p in block.parameters())


@pytest.mark.parametrize("shape", [(3, 11, 32), (1, 1, 5), (2, 2, 7), (5, 65, 64), (4, 300, 130)])
def test_fused_convolution_equals_its_twin_and_torchs_own_forward_and_backward(shape):
    channels = shape[2]
    conv = torch.nn.Conv1d(channels, channels, 4, groups=channels, padding=3)
    inputs = [sample(*shape), conv.weight, conv.bias]

    def twin(u, w, b):
        return F.silu(causal_conv(u, w, b))

    def torchs(u, w, b):
        return F.silu(F.conv1d(u.mT, w, b, groups=channels, padding=3)[..., : shape[1]]).mT

    fused = results(conv_silu, *inputs)
    slow, library = (
        results(function, *(t.double() for t in inputs)) for function in (twin, torchs)
    )
    assert_twins(slow, library, 1e-10)
    assert_twins(fused, slow, 3e-6)


def test_fused_convolution_lets_non_finite_values_through_and_gives_the_same_bits_twice():
    u, w, b = sample(3, 9, 6), sample(6, 1, 4), sample(6)
    assert torch.equal(conv_silu(u, w, b), conv_silu(u, w, b))
    u[1, 4, 2] = float("inf")
    y = conv_silu(u, w, b)
    assert torch.equal(y.isfinite(), F.silu(causal_conv(u, w, b)).isfinite())


@pytest.mark.parametrize("arm", ["RMSN>SSM>GN", "IN>SSM>BN", "NormVary>SSM>LN-DL", "BN>SSM>None"])
def test_padding_and_batch_mates_change_no_logits(arm):
    model = mn.SequenceClassifier(4, vocab_size=9, d_model=D, n_layers=2, arm=arm, final_norm="LN")
    tokens = torch.randint(1, 9, (5, 12), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([12, 7, 1, 5, 12])
    model(tokens, lengths)  # moves the running statistics off their start
    model.eval()
    together = model(tokens, lengths)
    other_padding = torch.where(torch.arange(12) < lengths[:, None], tokens, 3)
    torch.testing.assert_close(model(other_padding, lengths), together, rtol=1e-5, atol=1e-6)
    for row, n in enumerate(lengths):
        alone = model(tokens[row : row + 1, :n], lengths[row : row + 1])
        torch.testing.assert_close(alone, together[row : row + 1], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens[row : row + 1, :n]), alone, rtol=1e-5, atol=1e-6)


def test_shared_parameters_start_equal_in_every_arm():
    data, state, reference = load_task("digits", "smoke", 0), torch.get_rng_state(), None
    for arm in [*GRID_ARMS, *NORMVARY_ARMS, EVERYWHERE]:
        model = build_model(base_config("digits", "smoke", arm=str(arm)), data)
        shared = {
            k: v
            for k, v in model.state_dict().items()
            if not {"n1", "n2", "more"} & {*k.split(".")}
        }
        reference = reference or shared
        assert shared.keys() == reference.keys()
        assert all(torch.equal(shared[key], reference[key]) for key in shared), arm
    assert torch.equal(torch.get_rng_state(), state)  # the caller's random numbers go on as before
    other = build_model(base_config("digits", "smoke", seed=1), data).state_dict()
    assert not torch.equal(other["head.weight"], reference["head.weight"])


# positional encoding


@pytest.mark.parametrize("kind", ["none", "learned"])
def test_positions_tell_an_order_shift_no_shared_weight_and_leave_padding_without_effect(kind):
    def made(positional="none", positions=None):
        torch.manual_seed(3)
        own = dict(arm="RMSN>SSM>GN", positional=positional, positions=positions)
        return mn.SequenceClassifier(4, vocab_size=9, d_model=D, n_layers=1, **own).eval()

    plain, model = made(), made(kind, (L,) if kind == "learned" else None)
    state = model.state_dict()
    assert state.keys() - plain.state_dict().keys() == (
        {"positional.weight"} if kind == "learned" else set()
    )
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    same = torch.full((1, L), 5)
    added = (model.positional(model.stem(same)) - plain.stem(same))[0]  # (L, D)
    if kind == "none":
        assert not added.any()
    else:  # no two alike, and as large as what they are added to
        assert torch.pdist(added).min() > 1e-3
        assert 0.2 < added.std() / plain.stem.weight.std() < 5
    ids, lengths = (
        torch.randint(1, 9, (B, L), generator=torch.Generator().manual_seed(0)),
        torch.tensor([L, 4, 7]),
    )
    logits = model(ids, lengths)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(
            logits[row : row + 1], model(ids[row : row + 1, :n]), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("task", "positions"), [("digits", (64,)), ("listops", (None,)), ("digits_images", (4, 4))]
)
def test_a_run_with_learned_positions_has_a_table_for_its_longest_row(task, positions):
    data = load_task(task, "smoke", 0)
    model = build_model(base_config(task, "smoke", positional="learned"), data)
    assert tuple(model.positional.weight.shape[:-1]) == data.positions
    assert data.positions == positions or positions == (None,)
    assert model(data.test.batch([0, 1])[0]).isfinite().all()


def test_an_arm_is_exactly_what_it_says():
    model = mn.SequenceClassifier(4, vocab_size=9, d_model=D, n_layers=2, arm="None>SSM>None")
    norms = [m for m in model.modules() if isinstance(m, torch.nn.LayerNorm | mn.norms.base.Norm)]
    assert {type(m).__name__ for m in norms} == {"NoNorm"}
    assert not any(parameter for m in norms for parameter in m.parameters())


# diagnostics


def test_first_nonfinite_site_is_where_it_starts():
    model = mn.SequenceClassifier(4, in_features=1, d_model=8, n_layers=3)
    with torch.no_grad():
        model.blocks[1].conv1d.bias.fill_(float("inf"))
    with mn.record_sites(model) as seen:
        model(torch.ones(2, 5, 1))
    assert seen.first_nonfinite() == "blocks.1.conv"
    frame = pd.DataFrame(seen.rows())
    assert frame[(frame.block == "blocks.0")].nonfinite.max() == 0
    assert frame[(frame.block == "blocks.1") & (frame.site == "conv")].nonfinite.item() == 1


def test_token_norms_leave_mode_and_buffers_as_found():
    model = mn.SequenceClassifier(4, in_features=1, d_model=8, n_layers=3, arm="BN>SSM>BN").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert len(mn.token_norms(model, sample(2, 5, 1))["l2"]) == 3 * 2 * 2 * 5
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def tokens(*by_depth):
    """A frame of one model and site: the norms of the tokens of each block."""
    rows = [
        dict(depth=d, l2=float(l2)) for d, block in enumerate(by_depth, start=1) for l2 in block
    ]
    where = dict(
        phase="initial", arm="None>SSM>None", mode="train", n_layers=len(by_depth), site="residual"
    )
    return pd.DataFrame(rows).assign(**where)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("blocks", "law", "nonfinite"),
    [
        # the median goes first, and the survivors look flat
        (
            [
                [1, 1, 1, 1],
                [9, 9, 9, 9],
                [2, NAN, NAN, NAN],
                [1, NAN, NAN, NAN],
                [1, INF, INF, INF],
            ],
            "block 3",
            0.45,
        ),
        ([[1, 2, 3]] * 4 + [[NAN] * 3] * 2, "block 5", 1 / 3),  # nothing survives
        ([[1, 2, 3]] * 4 + [[INF] * 3] * 2, "block 5", 1 / 3),
    ],
)
def test_a_block_whose_tokens_are_lost_explodes_and_is_not_left_out(blocks, law, nonfinite):
    (row,) = residual_growth(tokens(*blocks)).to_dict("records")
    assert row["law"] == f"explodes (non-finite from {law})"
    assert row["nonfinite"] == pytest.approx(nonfinite)
    assert row["decades_per_8"] == pytest.approx(8 * 38 / len(blocks))
    assert np.isnan(row["r2"])
    assert row["largest_last"] == row["median_last"] == INF


def test_the_quantiles_of_a_block_are_of_all_its_tokens():
    norms = [*range(1, 1000), NAN]
    (row,) = norm_quantiles(tokens(norms)).to_dict("records")
    assert row == {"median": 500.5, "largest": INF, "nonfinite": 0.001}
    values = np.random.default_rng(0).lognormal(size=(5, 4097))
    assert norm_quantiles(tokens(*values))["median"].tolist() == np.median(values, axis=1).tolist()


def test_a_negligible_slope_gets_no_law():
    depth = np.arange(1, 25)
    for slope, law in ((0.24, "flat"), (0.26, EXPONENTIAL), (-0.24, "flat"), (-0.26, EXPONENTIAL)):
        found = growth(pd.Series(10 ** (slope * depth / 8), depth))
        assert (found["law"], found["decades_per_8"]) == (law, pytest.approx(slope))
        assert np.isnan(found["r2"]) == (law == "flat")
    there_and_back = growth(pd.Series(10 ** (2 - np.abs(depth - 12.5) / 6), depth))
    assert there_and_back["decades_per_8"] == pytest.approx(0, abs=1e-9)
    assert there_and_back["law"] == "no trend"
    two_blocks = growth(pd.Series([1.0, 10.0], [1, 2]))
    assert (two_blocks["law"], two_blocks["decades_per_8"]) == ("–", pytest.approx(8))
    assert growth(pd.Series([1.0, 0.0, 0.0, 0.0], [1, 2, 3, 4]))["law"] == "vanishes (0 in block 2)"


def test_a_plain_sum_of_branches_grows_as_much_as_the_threshold_says():
    for blocks, decades in ((16, 0.27), (24, 0.19)):
        depth = np.arange(1, blocks + 1)
        assert growth(pd.Series(np.sqrt(depth), depth))["decades_per_8"] == pytest.approx(
            decades, abs=0.005
        )
    assert study.CLAIMS["H10s"].smallest == FLAT


def test_growth_fits_name_the_law():
    depth = np.arange(1, 25)
    noise = np.random.default_rng(0).normal(0, 0.01, depth.size)
    for law, y in (
        ("exponential", 0.3 * depth),
        ("power", 2 * np.log(depth)),
        ("flat", np.ones(24)),
    ):
        assert growth_fits(depth, y + noise).law[0].startswith(law)


def test_singular_values_of_known_matrices():
    from mambanorm.inside import singular_values
    from mambanorm_study.runs.weight_log import marchenko_pastur

    assert singular_values(torch.eye(6) * 3) == pytest.approx(3)
    sigma = singular_values(0.1 * sample(400, 300))
    low, high = marchenko_pastur((400, 300), 0.1)
    assert sigma[0] == pytest.approx(high, rel=0.03)
    assert sigma[-1] == pytest.approx(low, rel=0.15)
    assert np.isnan(singular_values(torch.full((2, 3), torch.inf))).all()


PUBLIC = {
    name: (lambda name=name: (mn.create_norm(name, 8), torch.randn(3, 5, 8))) for name in mn.NORMS
} | {
    "MambaBlock": lambda: (mn.MambaBlock(8, "RMSN", "NormVary"), torch.randn(3, 5, 8)),
    "VSSBlock": lambda: (study.VSSBlock(8, "BN", "GN"), torch.randn(2, 4, 4, 8)),
}


def gradients_of(module, x):
    """Output, and gradients of x and of the parameters."""
    x = x.clone().requires_grad_()
    y = module(x)
    wanted = [x, *(p for p in module.parameters() if p.requires_grad)]
    return [y, *torch.autograd.grad(y.square().sum(), wanted, allow_unused=True)]


@pytest.mark.parametrize("make", PUBLIC.values(), ids=PUBLIC)
def test_what_the_kernels_write_does_not_depend_on_torchs_defaults(make):
    torch.manual_seed(0)
    module, x = make()
    expected = gradients_of(copy.deepcopy(module), x)
    torch.set_default_dtype(torch.float64)
    try:
        found = gradients_of(copy.deepcopy(module), x)
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        elsewhere = gradients_of(copy.deepcopy(module), x)
    for one, two, three in zip(expected, found, elsewhere):
        assert one is None or torch.equal(one, two)
        assert one is None or torch.equal(one, three)
