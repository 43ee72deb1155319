"""The image block scans in four directions, is VMamba v0's without FFN, and its fused twin equals
its plain one.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

import mambanorm as mn
import mambanorm_study as study
from mambanorm.operations import conv_silu
from mambanorm_study import tasks
from mambanorm_study.models.vision import PatchMerging
from mambanorm_study.runs.build import build_model
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import count_positions, train
from mambanorm_study.runs.training_state import optimizer_of
from mambanorm_study.runs.weight_log import part_norms
from mambanorm_study.tasks import load_task

B, D, H, W = 3, 8, 5, 7
ARMS = (
    "LN>SSM>LN",
    "None>SSM>None",
    "RMSN>SSM>GN",
    "BN>SSM>IN",
    "NormVary>SSM>LN-DL",
    "GN-token>SSM>NormVary",
)


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def paths(height, width):
    """Return the pixels (row, column) in the order of each direction, written as
    loops.
    """
    rows = [(y, x) for y in range(height) for x in range(width)]
    columns = [(y, x) for x in range(width) for y in range(height)]
    return rows, columns, rows[::-1], columns[::-1]


def block_by_hand(block, x):
    """Return the block's equations in plain torch: one direction, one pixel, one step at a
    time.
    """
    e, n, r, reach = block.d_inner, block.d_state, block.dt_rank, block.conv2d.kernel_size[0] // 2
    batch, height, width, _ = x.shape
    h = block.n1(x.flatten(1, 2)).view(x.shape)
    raw, z = (h @ block.in_proj.weight.T).split(e, dim=-1)
    u = torch.zeros(batch, height, width, e, dtype=x.dtype) + block.conv2d.bias
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            tap = block.conv2d.weight[:, 0, dy + reach, dx + reach]
            shifted = F.pad(raw, (0, 0, reach, reach, reach, reach))
            u = (
                u
                + tap
                * shifted[:, reach + dy : reach + dy + height, reach + dx : reach + dx + width]
            )
    u, total = F.silu(u), {}
    for g, path in enumerate(paths(height, width)):
        own = slice(g * e, (g + 1) * e)
        A, state = -torch.exp(block.A_logs[own]), 0
        for y, x_ in path:
            pixel = u[:, y, x_]
            dt, B_, C = (pixel @ block.x_proj_weight[g].T).split([r, n, n], dim=-1)
            delta = F.softplus(dt @ block.dt_projs_weight[g].T + block.dt_projs_bias[g])
            state = (
                torch.exp(delta[..., None] * A) * state + (delta * pixel)[..., None] * B_[:, None]
            )
            total[y, x_] = (
                total.get((y, x_), 0) + (state * C[:, None]).sum(-1) + block.Ds[own] * pixel
            )
    f = block.n2(torch.stack([total[pixel] for pixel in paths(height, width)[0]], 1))
    return x + ((f * F.silu(z.flatten(1, 2))) @ block.out_proj.weight.T).view(x.shape)


# the scan in four directions


@pytest.mark.parametrize("size", [(5, 7), (1, 4), (3, 1), (1, 1)])
def test_cross_scan_meets_the_pixels_by_rows_by_columns_and_from_the_end(size):
    x = sample(2, 3, *size)
    four = study.cross_scan(x)
    assert four.shape == (2, 4, 3, size[0] * size[1])
    for g, path in enumerate(paths(*size)):
        assert torch.equal(
            four[:, g], torch.stack([x[:, :, row, column] for row, column in path], -1)
        )


@pytest.mark.parametrize("size", [(5, 7), (1, 4), (3, 1)])
def test_merge_is_the_adjoint_of_scan(size):
    x, y = sample(2, 3, *size).double(), sample(2, 4, 3, size[0] * size[1], seed=1).double()
    torch.testing.assert_close(
        (study.cross_scan(x) * y).sum(), (x * study.cross_merge(y, *size)).sum()
    )
    torch.testing.assert_close(study.cross_merge(study.cross_scan(x), *size), 4 * x)
    assert torch.autograd.gradcheck(study.cross_scan, x.requires_grad_())
    assert torch.autograd.gradcheck(lambda y: study.cross_merge(y, *size), y.requires_grad_())


@pytest.mark.parametrize(
    ("height", "width", "channels", "taps"), [(5, 7, 6, 3), (1, 2, 65, 5), (8, 8, 64, 3)]
)
def test_fused_convolution_equals_torch_s_forward_and_backward(height, width, channels, taps):
    conv = torch.nn.Conv2d(channels, channels, taps, groups=channels, padding=taps // 2)
    inputs, found = (
        [sample(2, height, width, channels), conv.weight.detach(), conv.bias.detach()],
        [],
    )
    conv = conv.double()

    def library(u, weight, bias):
        y = functional_call(conv, dict(weight=weight, bias=bias), u.permute(0, 3, 1, 2))
        return F.silu(y).permute(0, 2, 3, 1)

    for function, dtype in (
        (conv_silu, torch.float32),
        (conv_silu, torch.float64),
        (library, torch.float64),
    ):
        leaves = [t.clone().to(dtype).requires_grad_() for t in inputs]
        y = function(*leaves)
        turned = y.transpose(1, 2)  # so that the gradient of y comes in another order of memory
        found.append(
            [y, *torch.autograd.grad((turned * sample(*turned.shape, seed=1)).sum(), leaves)]
        )
    for fused, slow, theirs in zip(*found, strict=True):
        torch.testing.assert_close(slow, theirs, rtol=1e-10, atol=1e-10)
        assert (fused.double() - slow).abs().max() <= 3e-6 * max(
            float(slow.detach().abs().max()), 1.0
        )


# the block


@pytest.mark.parametrize(
    ("arm", "training"), [*zip(ARMS, [True, False] * 3, strict=True), ("BN>SSM>IN", True)]
)
def test_block_equals_the_equations_written_by_hand_forward_and_backward(arm, training):
    block = (
        study.VSSBlock(D, *mn.Arm.parse(arm), d_state=3, scan_backend="reference")
        .double()
        .train(training)
    )
    x, weight = sample(B, H, W, D).double().requires_grad_(), sample(B, H, W, D, seed=1).double()
    leaves = [x, *block.parameters()]
    found = [
        (y, *torch.autograd.grad((y * weight).sum(), leaves))
        for y in (block(x), block_by_hand(block, x))
    ]
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


CUTS = [
    ((B, H, W, 8), {}, 1),
    ((2, 9, 6, 36), dict(d_state=5, dt_rank=3, d_conv=5), 2),
    ((1, 1, 3, 4), {"d_state": 1}, 1),
]


@pytest.mark.parametrize(
    ("arm", "shape", "sizes", "threads"), [(arm, *CUTS[i % 3]) for i, arm in enumerate(ARMS)]
)
def test_fused_block_equals_its_plain_twin_in_float64_forward_and_backward(
    arm, shape, sizes, threads
):
    found, before = [], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for dtype, backend in (
            (torch.float32, "auto"),
            (torch.float32, "reference"),
            (torch.float64, "auto"),
        ):
            torch.manual_seed(0)
            block = study.VSSBlock(shape[3], *mn.Arm.parse(arm), **sizes, scan_backend=backend).to(
                dtype
            )
            x = sample(*shape).to(dtype).requires_grad_()
            y = block(x)
            loss = (y * sample(*shape, seed=1).to(dtype)).sum()
            found.append(
                [
                    t.detach().double()
                    for t in (y, *torch.autograd.grad(loss, [x, *block.parameters()]))
                ]
            )
    finally:
        torch.set_num_threads(before)
    for fused, plain, exact in zip(*found, strict=True):
        error, rounding = (
            (fused - exact).abs().max(),
            (plain - exact).abs().max(),
        )  # float32 alone may cost more
        assert error <= max(2e-5 * max(1.0, exact.abs().max()), 1.5 * rounding), (
            arm,
            error,
            rounding,
        )


@pytest.mark.parametrize(
    ("kind", "shape"), [(study.VSSBlock, (B, H, W, D)), (mn.MambaBlock, (B, H, D))]
)
def test_a_fused_block_gives_the_same_bits_twice_and_refuses_a_second_derivative(kind, shape):
    block, x = kind(D), sample(*shape).requires_grad_()
    first, second = (
        torch.autograd.grad(block(x).square().sum(), [x, *block.parameters()]) for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(block(x).square().sum(), x, create_graph=True)


def test_the_mean_of_the_directions_is_a_quarter_of_their_sum():
    blocks = [study.VSSBlock(6, "None", "None", merge=merge).double() for merge in ("sum", "mean")]
    blocks[1].load_state_dict(blocks[0].state_dict())
    x = sample(2, 3, 4, 6).double()
    branches = [block(x) - x for block in blocks]  # linear in the scan's output
    torch.testing.assert_close(branches[1], branches[0] / 4)
    with pytest.raises(ValueError, match="unknown merge 'max'"):
        study.VSSBlock(6, merge="max")
    run = train(base_config("glyphs_images", "smoke", arm="RMSN>SSM>None", merge="mean"))
    assert run.config.run_id != base_config("glyphs_images", "smoke", arm="RMSN>SSM>None").run_id


def test_initial_values_are_vmamba_s_in_every_direction():
    torch.manual_seed(0)
    block = study.VSSBlock(64)
    torch.testing.assert_close(block.A_logs.exp(), torch.arange(1.0, 17).repeat(512, 1))
    assert torch.equal(block.Ds, torch.ones(512))
    dt = F.softplus(block.dt_projs_bias)
    assert 1e-3 * 0.99 <= dt.min() <= dt.max() <= 0.1 * 1.01
    assert (torch.log(dt).mean(1) - math.log(1e-2)).abs().max() < 0.4
    assert not torch.equal(block.dt_projs_bias[0], block.dt_projs_bias[1])
    assert 0.95 * 4**-0.5 < block.dt_projs_weight.abs().max() <= 4**-0.5
    assert 0.99 * 128**-0.5 < block.x_proj_weight.abs().max() <= 128**-0.5


# the model


def model_of(**changes):
    return study.ImageClassifier(
        4, **(dict(in_channels=3, d_model=8, n_layers=2, d_state=2) | changes)
    )


def test_a_patch_becomes_one_position_and_the_head_sees_their_mean():
    model = model_of(patch=2, arm="None>SSM>None", n_layers=1).eval()
    x = sample(2, 6, 10, 3)
    with mn.record_sites(model) as seen:
        logits = model(x)
    cell = x[:, 2:4, 4:6].permute(0, 3, 1, 2).flatten(1)
    stem = model.stem.weight.flatten(1)
    torch.testing.assert_close(seen.tensors("x")[0][:, 5 + 2], cell @ stem.T + model.stem.bias)
    torch.testing.assert_close(
        logits, model.head(seen.tensors("residual")[0].mean(1)), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kind", ["none", "learned"])
def test_positions_of_an_image_are_those_of_its_pixels_whatever_its_size(kind):
    def positioned(kind, positions=None):
        torch.manual_seed(3)
        return model_of(positional=kind, positions=positions).eval()

    plain, model = positioned("none"), positioned(kind, (6, 7) if kind == "learned" else None)
    state = model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    x = torch.zeros(1, 6, 7, 8)
    added = model.positional(x)
    assert added.any() == (kind != "none")
    assert torch.equal(model.positional(x[:, :3, :5]), added[:, :3, :5])
    for size in ((6, 7), (2, 5)):
        image = sample(2, *size, 3)
        assert model(image).isfinite().all()
        assert torch.equal(model(image), plain(image)) == (kind == "none")


def test_down_sampling_halves_the_image_doubles_the_width_and_has_no_norm_unless_asked():
    model = model_of(n_layers=3, down_sample=(1,))
    with mn.record_sites(model) as seen:
        model(sample(2, 4, 6, 3))
    assert [tuple(x.shape) for x in seen.tensors("x")] == [(2, 24, 8), (2, 6, 16), (2, 6, 16)]
    assert type(model.merging["1"].norm).__name__ == "NoNorm"
    assert (
        type(model_of(down_sample=(1,), down_norm="LN").merging["1"].norm).__name__ == "LayerNorm"
    )
    merging, x = (
        PatchMerging(3),
        sample(2, 4, 6, 3),
    )  # the four pixels side by side, in VMamba's order
    joined = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
    torch.testing.assert_close(merging(x), joined @ merging.reduction.weight.T)


# the task


def test_digits_images_are_the_digits_in_the_very_same_splits():
    for scale, seed in (("quick", 3), ("smoke", 0)):
        flat, images = load_task("digits", scale, seed), load_task("digits_images", scale, seed)
        for name in ("train", "val", "test"):
            one, other = getattr(flat, name), getattr(images, name)
            assert torch.equal(one.inputs.view(-1, 8, 8, 1), other.inputs)
            assert torch.equal(one.labels, other.labels)
    assert tasks.TASKS["digits_images"].kind == "image"
    assert (images.in_channels, images.in_features, images.vocab_size, images.patch) == (
        1,
        None,
        None,
        2,
    )
    inputs, lengths, _ = images.train.batch([2, 0])
    assert lengths is None
    assert torch.equal(inputs, images.train.inputs[[2, 0]])


# training


@pytest.fixture(scope="module")
def data():
    return load_task("digits_images", "smoke", 0)


def test_a_run_on_images_leaves_what_every_run_leaves():
    result = train(base_config("digits_images", "smoke", arm="NormVary>SSM>LN"))
    assert (result.status, result.steps) == ("ok", 4)
    assert result.diagnostics["part_norms"].shape == (3, 2, 4)
    assert result.diagnostics["singular_values"].shape == (3, 2, 8)
    assert result.diagnostics["mixture"].shape == (3, 2, 2, 5)
    assert np.isfinite(result.curves.grad_norm).all()
    assert count_positions(torch.zeros(3, 8, 6, 1), None, 2) == 36  # those that the blocks see
    assert count_positions(torch.zeros(3, 8, 1), None, 1) == 24
    assert count_positions(torch.zeros(3, 8), torch.tensor([8, 1, 2]), 1) == 11


def test_weight_decay_and_part_norms_leave_out_the_right_parameters(data):
    model = build_model(
        base_config("digits_images", "smoke", arm="NormVary>SSM>GN", weight_decay=0.3), data
    )
    decay, keep = optimizer_of(model, base_config("digits_images", "smoke")).param_groups
    name_of = {id(p): name for name, p in model.named_parameters()}
    ends = (
        "proj.weight",
        "x_proj_weight",
        "dt_projs_weight",
        "conv2d.weight",
        "stem.weight",
        "head.weight",
    )
    assert {name_of[id(p)] for p in decay["params"]} == {
        name for name in name_of.values() if name.endswith(ends)
    }
    assert len(decay["params"]) + len(keep["params"]) == len(name_of)
    own = [
        p for name, p in model.blocks[0].named_parameters() if not name.startswith(("n1.", "n2."))
    ]
    total = torch.stack([p.detach().norm() for p in own]).norm()
    assert np.linalg.norm(part_norms(model.blocks[0])) == pytest.approx(float(total), rel=1e-6)


def test_a_run_may_halve_its_images_and_keeps_spectra_of_unequal_blocks():
    config = base_config("digits_images", "smoke", down_sample=[1], down_norm="LN")
    result = train(config)
    assert result.status == "ok"
    sigma = result.diagnostics["singular_values"]  # d_model 8 in the first block, 16 in the second
    assert np.isnan(sigma[:, 0, 8:]).all()
    assert np.isfinite(sigma[:, 0, :8]).all()
    assert np.isfinite(sigma[:, 1]).all()
    assert np.nanvar(sigma[-1]) > 0
    with pytest.raises(
        ValueError, match=r"down_sample=\(1,\) has no effect on the SequenceClassifier"
    ):
        train(base_config("digits", "smoke", down_sample=(1,)))
