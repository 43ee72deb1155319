"""Our block with the arm of Jamba is Jamba's mixer in transformers: forward and gradients. Models whose checkpoints the
kit loads are compared in test_checkpoints.py.

transformers computes norms and scans in float32 whatever it is given. `Doubles` leaves that out, so that the comparison
in float64 tells another formula from rounding.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from mambanorm.arms import Arm
from mambanorm.block import MambaBlock

B, L, D = 3, 13, 20  # D divides into no power of two beyond 4, L into no chunk
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
JAMBA_NAMES = {"dt_layernorm": "more.delta", "b_layernorm": "more.B", "c_layernorm": "more.C"}


class Doubles(TorchFunctionMode):
    """Within it a tensor stays in float64 where it is asked for in float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        down = func is torch.Tensor.float or (func is torch.Tensor.to and args[1:] == (torch.float32,))
        if down and args[0].dtype == torch.float64:
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def hf():
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read on import: it may look for kernels to download
    module = pytest.importorskip("transformers", reason="transformers is in the dev extra")
    module.logging.set_verbosity_error()  # that there is no fast path is known
    return module


def sample(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scrambled(module, dtype):
    """Every parameter is drawn anew, also where it would start at 1 or 0: none can be mistaken for another."""
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.5 * sample(*p.shape, seed=i))
    return module.to(dtype)


def assert_equal(ours, theirs, dtype):
    """y, the gradient of x, and that of every parameter."""
    direction, found = sample(B, L, D, seed=98).to(dtype), []
    for module in (ours, theirs):
        x = sample(B, L, D, seed=99).to(dtype).requires_grad_()
        with Doubles() if dtype == torch.float64 else nullcontext():
            y = module(x)
        y.backward(direction)
        found.append((y.detach(), x.grad, dict(module.named_parameters())))
    (y, dx, mine), (y_other, dx_other, others) = found
    pairs = {"y": (y, y_other), "x": (dx, dx_other)}
    pairs |= {name: (p.grad, others[named(name)].grad) for name, p in mine.items()}
    for name, (a, b) in pairs.items():
        assert (a - b).abs().max() <= TOLERANCES[dtype] * max(1, b.abs().max()), name


class Residual(nn.Module):
    """A mixer of transformers behind its norm, and the residual: what a block of ours is."""

    def __init__(self, norm, mixer):
        super().__init__()
        self.norm, self.mixer = norm, mixer

    def forward(self, x):
        return x + self.mixer(self.norm(x))


def named(name):
    """Ours → that of Residual."""
    if name.startswith("n1."):
        return name.replace("n1.", "norm.")
    for theirs, ours in JAMBA_NAMES.items():
        name = name.replace(ours, theirs)
    return f"mixer.{name}"


def load(ours, theirs, dtype):
    """Scrambles theirs and copies its parameters to ours, by name; all of ours are among them."""
    scrambled(theirs, dtype)
    others = dict(theirs.named_parameters())
    ours.load_state_dict({name: others[named(name)] for name, _ in ours.named_parameters()})
    return ours.to(dtype)


def jamba_config(hf, **sizes):
    attention = dict(num_attention_heads=2, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1)
    dense = dict(num_hidden_layers=2, intermediate_size=24, vocab_size=8)
    given = dict(num_experts=1, mamba_d_state=5, mamba_dt_rank=3, mamba_d_conv=3, rms_norm_eps=1e-2) | sizes
    return hf.JambaConfig(hidden_size=D, **dense, **attention, **given)


def jamba_block(config):
    given = dict(d_state=config.mamba_d_state, dt_rank=config.mamba_dt_rank, d_conv=config.mamba_d_conv)
    options = {"eps": config.rms_norm_eps}
    return MambaBlock(D, *Arm.parse("preset:Jamba"), expand=config.mamba_expand, norm_options=options, **given)


def jamba(hf, dtype, **sizes):
    from transformers.models.jamba.modeling_jamba import JambaMambaMixer, JambaRMSNorm

    config = jamba_config(hf, **sizes)
    theirs = Residual(JambaRMSNorm(D, config.rms_norm_eps), JambaMambaMixer(config, 0))
    return load(jamba_block(config), theirs, dtype), theirs


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("sizes", [{}, dict(mamba_d_state=1, mamba_dt_rank=1, mamba_d_conv=1, mamba_expand=3)])
def test_a_block_with_the_arm_of_jamba_is_its_mixer(hf, sizes, dtype):
    assert_equal(*jamba(hf, dtype, **sizes), dtype)


@pytest.mark.parametrize("experts", [1, 2])
def test_all_that_jambas_layer_has_beyond_our_block_is_its_feed_forward(hf, experts):
    """Of all its layers a Jamba has attention in one of eight; in the others this block, and behind it a second one,
    x + FF(RMSN(x)), that the kit does not have: an MLP, or experts of which each token takes some."""
    from transformers.models.jamba.modeling_jamba import JambaMambaDecoderLayer

    config = jamba_config(hf, num_experts=experts, expert_layer_period=1, expert_layer_offset=0)
    layer = scrambled(JambaMambaDecoderLayer(config, 0), torch.float32)
    parts = Residual(layer.input_layernorm, layer.mamba)
    ours = jamba_block(config)
    ours.load_state_dict({name: parts.get_parameter(named(name)) for name, _ in ours.named_parameters()})
    x = sample(B, L, D).float()
    y = ours(x)
    expected = y + layer.feed_forward(layer.pre_ff_layernorm(y))
    assert (expected - layer(x)).abs().max() <= 1e-5 * expected.abs().max()
