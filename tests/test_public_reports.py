"""Public bug reports of Mamba and of the tools around it, each rebuilt as a small input: what must not happen here."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import mambanorm as mn
from mambanorm.arms import MORE_SITES
from mambanorm.norms import NORMS, create_norm

CAUSAL_BLOCKS = {
    "mamba": lambda: mn.MambaBlock(16, "RMSN", "GN", d_state=4),
    "mamba with a norm on Δ": lambda: mn.MambaBlock(16, "LN", "None", {"delta_after": "RMSN"}, d_state=4),
    "mamba2": lambda: mn.Mamba2Block(16, "RMSN", "None", {"gated": "RMSN"}, d_state=4, head_dim=8),
}
BLOCKS = CAUSAL_BLOCKS | {"image": lambda: mn.VSSBlock(16, d_state=4)}


def input_of(block: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 5, 16) if isinstance(block, mn.VSSBlock) else torch.randn(2, 7, 16)


def layers_of(block: nn.Module) -> list[str]:
    """Return the names of the linear layers and convolutions."""
    return [name for name, layer in block.named_modules() if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)]


class Opaque(nn.Module):
    """Calls a layer and shows nothing of it."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.inner, self.calls = layer, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.inner(x)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_wrapper_around_any_layer_of_a_block_is_called(kind):
    """peft wraps a layer in a module; huggingface/peft#2274: Mamba reads the weights, LoRA has no effect."""
    block = BLOCKS[kind]()
    x, names = input_of(block), layers_of(block)
    with torch.no_grad():
        expected = block(x)
        for name in names:
            setattr(block, name, Opaque(getattr(block, name)))
        assert torch.allclose(block(x), expected, atol=1e-5)
    assert {name: getattr(block, name).calls for name in names} == dict.fromkeys(names, 1)


@pytest.mark.parametrize("kind", CAUSAL_BLOCKS)
def test_a_wrapped_block_goes_step_by_step(kind):
    block = CAUSAL_BLOCKS[kind]().eval()
    if "GN" in block.arm.norms:
        block = mn.MambaBlock(16, "RMSN", "RMSN", d_state=4)
    x = input_of(block)
    for name in layers_of(block):
        setattr(block, name, Opaque(getattr(block, name)))
    with torch.no_grad():
        whole, (y, cache) = block(x), block.prefill(x[:, :4])
        later = [block.step(x[:, i], cache) for i in range(4, 7)]
    assert torch.allclose(torch.cat([y, torch.stack(later, 1)], 1), whole, atol=1e-5)


@pytest.mark.parametrize("kind", BLOCKS)
def test_hooks_of_every_layer_fire(kind):
    """Forward, pre-forward and backward hooks, on the layer or on all modules."""
    block = BLOCKS[kind]()
    fired = []
    for name in layers_of(block):
        layer = getattr(block, name)
        layer.register_forward_hook(lambda *_, name=name: fired.append(name))
        layer.register_full_backward_hook(lambda *_, name=name: fired.append(f"{name} back"))
    block(input_of(block).requires_grad_()).sum().backward()
    assert sorted(fired) == sorted(hook for name in layers_of(block) for hook in (name, f"{name} back"))
    seen = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        CAUSAL_BLOCKS["mamba"]()(torch.randn(1, 3, 16))
    finally:
        handle.remove()
    assert [type(layer).__name__ for layer in seen].count("Linear") == 4
    assert [type(layer).__name__ for layer in seen].count("Conv1d") == 1


@pytest.mark.parametrize("kind", BLOCKS)
def test_parametrizations_and_a_replaced_forward_take_effect(kind):
    """accelerate's offloading replaces `forward` of a layer; torch's parametrizations compute its weight."""
    block = BLOCKS[kind]()
    x = input_of(block)
    for name in layers_of(block):
        changed = copy.deepcopy(block)
        layer = getattr(changed, name)
        layer.forward = lambda *given, run=layer.forward: 2 * run(*given)
        assert not torch.allclose(changed(x), block(x)), name
    normed = copy.deepcopy(block)
    parametrizations.weight_norm(normed.in_proj)
    assert torch.allclose(normed(x), block(x), atol=1e-5)
    normed(x).sum().backward()
    assert all(p.grad is not None for p in normed.in_proj.parameters())


@pytest.mark.parametrize("model", ["mamba", "mamba2"])
@pytest.mark.parametrize("target", ["in_proj", "x_proj", "dt_proj", "out_proj", "conv1d"])
def test_lora_adapters_of_a_block_work_and_learn(model, target):
    """peft's LoRA on each of the layers equals its own merge_and_unload, and every adapter gets a gradient."""
    from peft import LoraConfig, get_peft_model

    if model == "mamba2" and target in ("x_proj", "dt_proj"):
        pytest.skip("Mamba-2 has no such layer")
    torch.manual_seed(0)
    sizes = {"mamba": {}, "mamba2": {"head_dim": 8}}[model]
    plain = mn.SequenceClassifier(3, in_features=4, d_model=16, n_layers=2, d_state=4, model=model, **sizes)
    x = torch.randn(2, 6, 4)
    before = plain(x).detach()
    rank = 2 if target != "conv1d" else plain.blocks[0].conv1d.groups  # peft takes no other for a depthwise one
    how = LoraConfig(r=rank, lora_alpha=2000, target_modules=[target], init_lora_weights=False)
    wrapped = get_peft_model(plain, how)
    logits = wrapped(x)
    logits.square().sum().backward()
    adapters = {name: p.grad for name, p in wrapped.named_parameters() if p.requires_grad}
    assert adapters
    assert all(grad is not None and grad.abs().max() > 0 for grad in adapters.values())
    assert (logits - before).abs().max() > 1e-3
    if target != "conv1d":  # peft does not merge into depthwise convolutions
        with torch.no_grad():
            assert torch.allclose(wrapped.merge_and_unload()(x), logits, rtol=1e-4, atol=1e-5)


def test_a_dynamically_quantized_model_runs_near_the_original():
    """'function' object has no attribute 'chunk': a quantized Linear has methods for weight and bias."""
    model = mn.SequenceClassifier(3, in_features=4, d_model=16, n_layers=2, d_state=4).eval()
    x = torch.randn(2, 6, 4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
        assert torch.allclose(quantized(x), model(x), atol=0.1)


def test_a_replaced_convolution_of_another_kind_is_called():
    """A dilated, or a bias-free, convolution in the place of conv1d is no depthwise convolution that can be fused."""
    block = mn.MambaBlock(16, d_state=4)
    block.conv1d = nn.Conv1d(32, 32, 3, groups=32, padding=4, dilation=2, bias=False)
    x = torch.randn(2, 7, 16)
    seen = []
    block.observer = lambda site, value: seen.append(value) if site == "conv" else None
    block(x)
    u = nn.functional.linear(block.n1(x), block.in_proj.weight[:32])
    assert torch.allclose(seen[0], nn.functional.silu(block.conv1d(u.mT)[..., :7].mT), atol=1e-6)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""The largest relative error against float64."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_returns_the_dtype_of_its_input(name, dtype):
    """pytorch/pytorch#135969: where a norm and its neighbours differ in dtype, the next product raises."""
    norm, lengths = create_norm(name, 16).to(dtype), torch.tensor([12, 10, 3])
    exact = copy.deepcopy(norm).double()
    x = (torch.randn(3, 12, 16, dtype=torch.float64) + 0.5).to(dtype)
    for mode in (True, False):
        with torch.no_grad():
            y = norm.train(mode)(x, lengths)
            expected = exact.train(mode)(x.double(), lengths)
        valid = torch.arange(12) < lengths[:, None]
        assert y.dtype == dtype
        assert (y.double() - expected)[valid].norm() <= ROUNDING[dtype] * expected[valid].norm()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_norm_works_at_every_site_in_every_dtype(dtype):
    """Forward and backward, of every kind of block with norms at all of its sites."""
    for name in NORMS:
        for kind in (mn.MambaBlock, mn.Mamba2Block, mn.VSSBlock):
            sizes = dict(head_dim=4) if kind is mn.Mamba2Block else dict(dt_rank=4)
            sites = [site for site in MORE_SITES if site not in kind.lacks]
            block = kind(8, name, name, dict.fromkeys(sites, name), d_state=4, **sizes).to(dtype)
            x = torch.randn(2, *((3, 4) if kind is mn.VSSBlock else (6,)), 8).to(dtype).requires_grad_()
            y = block(x)
            assert y.dtype == dtype, (name, kind)
            y.sum().backward()
            assert x.grad.dtype == dtype


def test_under_autocast_rmsn_meets_one_dtype(monkeypatch):
    """torch.rms_norm warns of mixed dtypes on CUDA and then takes its slow path."""
    seen, run = [], nn.functional.rms_norm
    record = lambda x, shape, weight=None, eps=None: seen.append((x.dtype, weight.dtype)) or run(x, shape, weight, eps)  # noqa: E731
    monkeypatch.setattr(nn.functional, "rms_norm", record)
    with torch.autocast("cpu", torch.bfloat16):
        assert create_norm("RMSN", 8)(torch.randn(2, 3, 8).bfloat16()).dtype == torch.float32
    assert seen == [(torch.float32, torch.float32)]
