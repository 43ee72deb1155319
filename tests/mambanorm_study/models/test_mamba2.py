"""The Mamba-2 block is the chunked form, is transformers', takes every norm at its sites, steps,
and trains.
"""

import json
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mambanorm as mn
from benchmarks.twins import ChunkedMamba2, scan_chunked
from mambanorm.arms import SITES
from mambanorm_study.cli.main import main
from mambanorm_study.config import run_id_of
from mambanorm_study.models.mamba2 import Mamba2Block
from mambanorm_study.runs.grid import base_config
from mambanorm_study.runs.run import train
from tests.twins import assert_twins, error, results, sample, scrambled, tokens

D, L, B = 24, 13, 3
DOUBLE = torch.float64
PUBLISHED = (("gated", "RMSN"),)
FURTHER = ("conv", "B", "C", "delta", "z", "gated", "branch", "residual")
SIZES = [
    dict(d_state=5, head_dim=8),
    dict(d_state=7, head_dim=6, n_groups=2, d_conv=3),
    dict(d_state=1, head_dim=1, n_groups=4, d_conv=1),
    dict(d_state=9, head_dim=12, n_groups=3, expand=3, d_conv=2),
    dict(d_state=16, head_dim=48),  # one head
]


def block_of(n1="RMSN", n2="None", more=PUBLISHED, kind=Mamba2Block, **options):
    torch.manual_seed(0)
    return scrambled(kind(D, n1, n2, more, **{"d_state": 5, "head_dim": 8} | options))


# the chunked form


@pytest.mark.parametrize(("chunk", "groups"), [(1, 6), (4, 2), (13, 1), (64, 2)])
def test_the_chunked_form_is_the_selective_scan(chunk, groups):
    heads, width, states = 6, 3, 5
    u, delta = (
        sample(B, L, heads, width, dtype=DOUBLE),
        sample(B, L, heads, seed=1, dtype=DOUBLE).abs(),
    )
    A, skip = -sample(heads, seed=2, dtype=DOUBLE).exp(), sample(heads, seed=3, dtype=DOUBLE)
    b, c = (sample(B, L, groups, states, seed=seed, dtype=DOUBLE) for seed in (4, 5))
    inputs = u, delta, A, b, c, skip

    def selective(u, delta, A, b, c, skip):
        wide = [m.repeat_interleave(width, dim=-1) for m in (delta, A, skip)]
        per_state = wide[1][:, None].expand(-1, states)
        b, c = (m.permute(0, 2, 3, 1) for m in (b, c))
        rows = u.flatten(2).transpose(1, 2), wide[0].transpose(1, 2)
        return (
            mn.selective_scan(*rows, per_state, b, c, wide[2])
            .transpose(1, 2)
            .unflatten(-1, (heads, width))
        )

    found = [
        results(scan, *inputs) for scan in (lambda *args: scan_chunked(*args, chunk), selective)
    ]
    assert_twins(*found, 1e-12, at_least=0)
    assert error(found[0][0], found[1][0]) < 1e-13


@pytest.mark.parametrize(
    ("sizes", "norms"),
    list(
        zip(
            SIZES,
            [("None", PUBLISHED), ("LN", ()), ("GN", (("B", "RMSN"), ("z", "LN")))] * 2,
            strict=False,
        )
    ),
    ids=str,
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (torch.float32, 2e-5)])
def test_the_block_is_its_chunked_twin_forward_and_backward(sizes, dtype, tolerance, norms):
    n2, more = norms
    options = sizes | {"norm_options": {"groups": 2}}
    ours, twin = (
        block_of("LN", n2, more, kind, **options).to(dtype) for kind in (Mamba2Block, ChunkedMamba2)
    )
    twin.chunk = 4  # L = 13 is no multiple
    assert_twins(
        *(results(block, sample(B, L, D, dtype=dtype)) for block in (ours, twin)), tolerance
    )


class Largest(TorchDispatchMode):
    """Mode that records the size of the largest tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return result


def test_no_tensor_has_a_number_for_each_position_channel_and_state():
    block, x = Mamba2Block(16, d_state=64, head_dim=8), sample(4, 1000, 16).requires_grad_()
    with Largest() as seen:
        block(x).sum().backward()
    assert (
        4 * 1000 * 32 <= seen.elements < 4 * 1000 * 32 * 64 / 4
    )  # the kernel's buffers have a fixed size


# norms at the sites


def test_the_norm_behind_the_gate_is_taken_over_groups_where_it_is_mamba_2s_own():
    assert block_of(n_groups=2).more["gated"].groups == 2
    assert block_of(n_groups=2, norm_options={"eps": 0.1}).more["gated"].eps == 0.1
    assert block_of(n_groups=2, more=(("gated", "LN"),)).more["gated"].groups == 1
    assert block_of().more["gated"].groups == 1


@pytest.mark.parametrize("more", [(), PUBLISHED, tuple((site, "LN") for site in FURTHER)], ids=len)
def test_recording_changes_no_output_and_shows_every_site(more):
    block, x = block_of("LN", "GN", more), sample(B, L, D)
    plain = block(x)
    with mn.record_sites(block) as seen:
        observed = block(x)
    assert torch.equal(observed, plain)
    assert [site for _, _, site, _ in seen.values] == [
        site for site in SITES if site != "delta_after"
    ]
    shapes = {site: tuple(value.shape[2:]) for _, _, site, value in seen.values}
    assert shapes["B"] == shapes["C"] == (5,)
    assert shapes["delta"] == shapes["step_size"] == (6,)
    assert shapes["conv"] == shapes["scan"] == shapes["gated"] == (2 * D,)


def test_a_norm_shifts_no_initial_weight_and_values_start_as_mamba_ssms():
    torch.manual_seed(3)
    plain = Mamba2Block(64, "None", "None", d_state=16, head_dim=2)
    torch.manual_seed(3)
    normed = Mamba2Block(64, "NormVary", "LN", PUBLISHED, d_state=16, head_dim=2)
    assert all(torch.equal(p, normed.state_dict()[name]) for name, p in plain.state_dict().items())
    assert plain.A_log.exp().min() >= 1
    assert plain.A_log.exp().max() <= 16
    assert plain.A_log.exp().max() - plain.A_log.exp().min() > 14
    dt = torch.nn.functional.softplus(plain.dt_bias)
    assert 0.9e-3 < dt.min() < 3e-3 < 0.04 < dt.max() < 0.101
    assert torch.equal(plain.D, torch.ones(64))


# step by step


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(DOUBLE, 1e-12), (torch.float32, 1e-5)])
def test_step_by_step_equals_forward_at_every_size(sizes, dtype, tolerance):
    everywhere = [(site, "LN") for site in FURTHER] if dtype == DOUBLE else PUBLISHED
    block, x = block_of("LN", "LN", everywhere, **sizes).to(dtype), sample(B, L, D, dtype=dtype)
    whole = block(x)
    for read in (0, 1, 2, 7):  # shorter and longer than the convolution; 0: from the empty cache
        y, cache = block.prefill(x[:, :read]) if read else (None, block.new_cache(B))
        if read:
            assert error(y, whole[:, :read]) < tolerance
        for t in range(read, L):
            y = block.step(x[:, t], cache)
            assert error(y, whole[:, t]) < tolerance, (read, t)
            assert y.dtype == x.dtype
            assert not y.requires_grad
        assert cache.state.shape == (B, block.d_inner, block.d_state)


# what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(head_dim=7), r"head_dim=7 does not divide d_inner=48"),
        (dict(head_dim=8, n_groups=4), r"n_groups=4 does not divide the 6 heads"),
        (
            dict(more=[("delta_after", "LN")]),
            "'delta_after': valid are conv, B, C, delta.*did you mean 'delta'",
        ),
        (dict(more=[("gate", "LN")]), "'gate': valid are .*did you mean 'gated'"),
    ],
)
def test_a_block_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Mamba2Block(D, **{"head_dim": 8} | options)
    block = block_of()
    block.A_log = torch.nn.Parameter(torch.zeros(1))  # it would be widened to one head
    with pytest.raises(ValueError, match=r"A_log has shape \(1,\), \(6,\) is needed"):
        block(sample(B, L, D))


# models and runs


def test_models_of_sequences_take_it_by_one_argument():
    ids = tokens(9, B, L)
    for model in (
        mn.SequenceClassifier(
            4, vocab_size=9, d_model=D, n_layers=2, model="mamba2", head_dim=8, n_groups=2
        ),
        mn.LanguageModel(9, d_model=D, n_layers=2, model="mamba2", head_dim=8, n_groups=2),
    ):
        blocks = [module for module in model.modules() if isinstance(module, Mamba2Block)]
        assert [(block.head_dim, block.n_groups, block.d_state) for block in blocks] == [
            (8, 2, 16)
        ] * 2
        model(ids).sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())
    with torch.no_grad():
        whole, (logits, cache) = model(ids), model.prefill(ids[:, :4])
        assert error(logits, whole[:, 3]) < 1e-5
        assert error(model.step(ids[:, 4], cache), whole[:, 4]) < 1e-5


def test_a_run_of_mamba_2_differs_in_one_field_and_trains_alike_each_time():
    config = base_config("digits", "smoke", arm="RMSN>SSM>GN", model="mamba2")
    first, again = train(config), train(config)
    assert first.status == "ok"
    assert first.curves.equals(again.curves)
    assert first.parameters != train(config.but(model="mamba")).parameters
    assert config.run_id != config.but(model="mamba").run_id != config.but(head_dim=8).run_id
    assert config.arm == config.but(model="mamba").arm
    assert first.diagnostics["part_norms"].shape[2] == 4
    assert (first.diagnostics["part_norms"] > 0).all()
    assert not math.isnan(first.diagnostics["ring_outputs"].sum())
    values = json.loads(config.but(model="mamba").to_json())
    earlier = {
        name: value for name, value in values.items() if name not in ("head_dim", "n_groups")
    }
    assert (
        run_id_of(earlier) == config.but(model="mamba").run_id
    )  # the ids of earlier runs are as they were
    assert (
        train(
            base_config(
                "pydoc", "smoke", arm="RMSN>SSM>RMSN", model="mamba2", steps=3, eval_every=3
            )
        ).steps
        == 3
    )
    with pytest.raises(
        ValueError,
        match="model='mamba2' has no effect on the ImageClassifier that digits_images needs",
    ):
        train(base_config("digits_images", "smoke", arm="RMSN>SSM>None", model="mamba2"))


def test_the_grid_of_the_study_takes_it_on_the_command_line(store, capsys):
    common = ["--set", "model=mamba2", "--scale", "smoke"]
    assert (
        main(["sweep", "--grid", "grid", "--tasks", "digits", "--seeds", "1", "--dry-run", *common])
        == 0
    )
    assert "36 runs asked for" in capsys.readouterr().out
    assert main(["plan", "--task", "digits", "--no-measure", *common]) == 0
    ours = capsys.readouterr().out
    assert main(["plan", "--task", "digits", "--no-measure", "--scale", "smoke"]) == 0
    assert capsys.readouterr().out != ours
