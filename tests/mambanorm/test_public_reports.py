"""Public bug reports of Mamba and of the tools around it, each rebuilt as a small input: what must
not happen here.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

import mambanorm as mn
import mambanorm_clinic as clinic
import mambanorm_study as study
from mambanorm.arms import MORE_SITES
from mambanorm.norms import NORMS, create_norm

CAUSAL_BLOCKS = {
    "mamba": lambda: mn.MambaBlock(16, "RMSN", "GN", d_state=4),
    "mamba with a norm on Δ": lambda: mn.MambaBlock(
        16, "LN", "None", {"delta_after": "RMSN"}, d_state=4
    ),
    "mamba2": lambda: study.Mamba2Block(
        16, "RMSN", "None", {"gated": "RMSN"}, d_state=4, head_dim=8
    ),
}
BLOCKS = CAUSAL_BLOCKS | {"image": lambda: study.VSSBlock(16, d_state=4)}


def input_of(block: nn.Module) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 5, 16) if isinstance(block, study.VSSBlock) else torch.randn(2, 7, 16)


def layers_of(block: nn.Module) -> list[str]:
    """Return the names of the linear layers and convolutions."""
    return [
        name
        for name, layer in block.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d)
    ]


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
    """peft wraps a layer in a module; huggingface/peft#2274: Mamba reads the weights, LoRA has no
    effect.
    """
    block = BLOCKS[kind]()
    x, names = input_of(block), layers_of(block)
    with torch.no_grad():
        expected = block(x)
        for name in names:
            setattr(block, name, Opaque(getattr(block, name)))
        assert torch.allclose(block(x), expected, atol=1e-5)
    twice = {"dt_proj": 2} if "delta_after" in block.more else {}  # its output for 0 is its bias
    assert {name: getattr(block, name).calls for name in names} == dict.fromkeys(names, 1) | twice


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
    assert set(fired) == {hook for name in layers_of(block) for hook in (name, f"{name} back")}
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
    """accelerate's offloading replaces `forward` of a layer; torch's parametrizations compute its
    weight.
    """
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
    """peft's LoRA on each of the layers equals its own merge_and_unload, and every adapter gets a
    gradient.
    """
    from peft import LoraConfig, get_peft_model

    if model == "mamba2" and target in ("x_proj", "dt_proj"):
        pytest.skip("Mamba-2 has no such layer")
    torch.manual_seed(0)
    sizes = {"mamba": {}, "mamba2": {"head_dim": 8}}[model]
    plain = mn.SequenceClassifier(
        3, in_features=4, d_model=16, n_layers=2, d_state=4, model=model, **sizes
    )
    x = torch.randn(2, 6, 4)
    before = plain(x).detach()
    rank = (
        2 if target != "conv1d" else plain.blocks[0].conv1d.groups
    )  # peft takes no other for a depthwise one
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


@pytest.mark.parametrize("method", ["ia3", "lora with a bias", "a hook", "opaque"])
def test_a_norm_after_the_projection_of_delta_leaves_its_bias_out(method):
    """The bias is what the layer puts out for 0, and not the attribute of that name: adapters and
    hooks change it.
    """
    from peft import IA3Config, LoraConfig, get_peft_model

    torch.manual_seed(0)
    arm = "RMSN>SSM>None+delta_after:RMSN"
    model, x = (
        mn.SequenceClassifier(3, in_features=4, d_model=16, n_layers=1, arm=arm, d_state=4),
        torch.randn(2, 6, 4),
    )
    if method in ("a hook", "opaque"):
        plain, block = copy.deepcopy(model), model.blocks[0]
        factor = 2.0 if method == "a hook" else 1.0
        if method == "a hook":
            block.dt_proj.register_forward_hook(lambda _layer, _given, output: 2 * output)
        else:
            block.dt_proj = Opaque(block.dt_proj)
        with torch.no_grad():
            plain.blocks[0].dt_proj.weight *= factor
            plain.blocks[0].dt_proj.bias *= factor
            assert torch.allclose(model(x), plain(x), atol=1e-5)
        return
    how = IA3Config(target_modules=["dt_proj"], feedforward_modules=[], init_ia3_weights=False)
    if method == "lora with a bias":
        how = LoraConfig(r=2, target_modules=["dt_proj"], lora_bias=True, init_lora_weights=False)
    wrapped = get_peft_model(model, how)
    with torch.no_grad():
        logits = wrapped(x)
        assert torch.allclose(wrapped.merge_and_unload()(x), logits, atol=1e-5)


def test_a_pruned_bias_learns():
    """torch's pruning sets the attribute when the layer is called: the one from before has a graph
    that is gone.
    """
    block, x = (
        mn.MambaBlock(16, "RMSN", "None", {"delta_after": "RMSN"}, d_state=4),
        torch.randn(2, 5, 16),
    )
    prune.random_unstructured(block.dt_proj, "bias", 0.5)
    for _ in range(2):
        block(x).square().sum().backward()
        assert block.dt_proj.bias_orig.grad.isfinite().all()


def test_gradients_are_right_when_saved_tensors_return_in_another_layout():
    """Offloading by saved-tensor hooks: the scan read what came back with the strides of before,
    beyond its end.
    """
    for kind in BLOCKS:
        block, x = BLOCKS[kind](), input_of(BLOCKS[kind]())
        expected = slopes(block, x)
        block.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
        ):
            loss = block(x).square().sum()
        loss.backward()
        assert largest_gap({name: p.grad for name, p in block.named_parameters()}, expected) < 1e-4


def test_an_offloaded_model_runs_and_goes_step_by_step():
    """accelerate keeps the weights on meta until their layer is called; huggingface/accelerate's
    cpu_offload.
    """
    import accelerate

    model, ids = (
        mn.LanguageModel(11, d_model=16, n_layers=2, d_state=4).eval(),
        torch.randint(0, 11, (2, 5)),
    )
    with torch.no_grad():
        expected, text = model(ids), model.generate(ids, 3)
        offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        assert torch.allclose(offloaded(ids), expected, atol=1e-5)
        assert torch.equal(offloaded.generate(ids, 3), text)


def test_a_dynamically_quantized_model_runs_near_the_original():
    """'function' object has no attribute 'chunk': a quantized Linear has methods for weight and
    bias.
    """
    model = mn.SequenceClassifier(3, in_features=4, d_model=16, n_layers=2, d_state=4).eval()
    x = torch.randn(2, 6, 4)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(model), {nn.Linear})
        assert torch.allclose(quantized(x), model(x), atol=0.1)


def test_a_replaced_convolution_of_another_kind_is_called():
    """A dilated, or a bias-free, convolution in the place of conv1d is no depthwise convolution
    that can be fused.
    """
    block = mn.MambaBlock(16, d_state=4)
    block.conv1d = nn.Conv1d(32, 32, 3, groups=32, padding=4, dilation=2, bias=False)
    x = torch.randn(2, 7, 16)
    seen = []
    block.observer = lambda site, value: seen.append(value) if site == "conv" else None
    block(x)
    u = nn.functional.linear(block.n1(x), block.in_proj.weight[:32])
    assert torch.allclose(seen[0], nn.functional.silu(block.conv1d(u.mT)[..., :7].mT), atol=1e-6)
    block.observer = None
    with torch.no_grad():  # its cache reaches back as far as it does
        y, cache = block.prefill(x[:, :5])
        later = [block.step(x[:, i], cache) for i in (5, 6)]
        assert torch.allclose(torch.cat([y, torch.stack(later, 1)], 1), block(x), atol=1e-5)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ROUNDING = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""The largest relative error against float64."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_returns_the_dtype_of_its_input(name, dtype):
    """pytorch/pytorch#135969: where a norm and its neighbours differ in dtype, the next product
    raises.
    """
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
        for kind in (mn.MambaBlock, study.Mamba2Block, study.VSSBlock):
            sizes = dict(head_dim=4) if kind is study.Mamba2Block else dict(dt_rank=4)
            sites = [site for site in MORE_SITES if site not in kind.missing_sites]
            block = kind(8, name, name, dict.fromkeys(sites, name), d_state=4, **sizes).to(dtype)
            x = (
                torch.randn(2, *((3, 4) if kind is study.VSSBlock else (6,)), 8)
                .to(dtype)
                .requires_grad_()
            )
            y = block(x)
            assert y.dtype == dtype, (name, kind)
            y.sum().backward()
            assert x.grad.dtype == dtype


def test_under_autocast_rmsn_meets_one_dtype(monkeypatch):
    """torch.rms_norm warns of mixed dtypes on CUDA and then takes its slow path."""
    seen, run = [], nn.functional.rms_norm

    def record(x, shape, weight=None, eps=None):
        seen.append((x.dtype, weight.dtype))
        return run(x, shape, weight, eps)

    monkeypatch.setattr(nn.functional, "rms_norm", record)
    with torch.autocast("cpu", torch.bfloat16):
        assert create_norm("RMSN", 8)(torch.randn(2, 3, 8).bfloat16()).dtype == torch.float32
    assert seen == [(torch.float32, torch.float32)]


# ------------------------------------------------------------------------------- torch's transforms

TRANSFORMED = {
    "mamba": lambda: mn.MambaBlock(8, "RMSN", "GN", d_state=4),
    "mamba with norms along the sequence": lambda: mn.MambaBlock(
        8, "BN", "NormVary", {"delta_after": "IN"}, d_state=4
    ),
    "mamba2": lambda: study.Mamba2Block(8, "LN", "IN", {"gated": "RMSN"}, d_state=4, head_dim=8),
    "image": lambda: study.VSSBlock(8, d_state=4),
}


def transformed(kind: str) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    block = TRANSFORMED[kind]()
    return block, torch.randn(2, 3, 4, 8) if isinstance(block, study.VSSBlock) else torch.randn(
        2, 6, 8
    )


def slopes(block: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    block.zero_grad()
    block(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in block.named_parameters()}


def largest_gap(given: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max(float((given[name] - expected[name]).abs().max()) for name in expected)


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_torch_func_goes_through_a_block(kind):
    """pytorch/functorch's users meet "no memory behind it" or a missing setup_context in most
    custom kernels.
    """
    block, x = transformed(kind)
    # in training torch refuses to let a running statistic follow a transformed value
    block.eval()
    weights = dict(block.named_parameters())
    gradients = grad(lambda given: functional_call(block, given, (x,)).square().sum())(weights)
    assert largest_gap(gradients, slopes(block, x)) < 1e-4
    several = torch.stack([x, x.flip(1), 2 * x])
    assert torch.allclose(
        vmap(block)(several), torch.stack([block(one) for one in several]), atol=1e-5
    )
    direction, step = torch.randn_like(x), 1e-4
    exact = copy.deepcopy(block).double()
    ahead, behind = (exact(x.double() + sign * step * direction.double()) for sign in (1, -1))
    assert torch.allclose(
        jvp(block, (x,), (direction,))[1].double(), (ahead - behind) / (2 * step), atol=1e-3
    )


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_tracing_and_export_give_the_same_outputs(kind):
    """pytorch/pytorch#128061 and others: a kernel that torch does not know breaks, or its output
    becomes a constant.
    """
    block, x = transformed(kind)
    block.eval()
    other = x.flip(0) + 1
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(block, (x,), check_trace=False)
        exported = torch.export.export(block, (x,), strict=False).module()
        for run in (traced, exported):
            assert torch.allclose(run(other), block(other), atol=1e-5)


def test_export_keeps_rows_and_length_free():
    """A batch of as many rows as the block has channels must not be an exception."""
    block, x = transformed("mamba")
    rows, length = (
        torch.export.Dim("rows", min=2, max=64),
        torch.export.Dim("length", min=2, max=1000),
    )
    exported = torch.export.export(
        block, (x,), dynamic_shapes=({0: rows, 1: length},), strict=False
    ).module()
    longer = torch.randn(block.d_inner, 100, 8)
    assert torch.allclose(exported(longer), block(longer), atol=1e-5)


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_a_block_compiles_to_one_graph_and_learns_as_without(kind):
    block, x = transformed(kind)
    plain = copy.deepcopy(block)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert (
        largest_gap(
            slopes(compiled, x), {f"_orig_mod.{name}": g for name, g in slopes(plain, x).items()}
        )
        < 1e-4
    )
    buffers = dict(plain.named_buffers())
    assert all(
        torch.allclose(value, buffers[name], atol=1e-6) for name, value in block.named_buffers()
    )
    torch._dynamo.reset()


def test_a_classifier_with_padding_compiles_to_one_graph_for_every_shape():
    """The last batch of an epoch is smaller: with another shape torch compiles again, for all
    shapes.
    """
    model = mn.SequenceClassifier(
        3, in_features=4, d_model=8, n_layers=1, arm="IN>SSM>BN", d_state=4
    )
    plain, compiled = (
        copy.deepcopy(model),
        torch.compile(model, fullgraph=True, backend="aot_eager"),
    )
    for rows, length in ((4, 9), (3, 7)):
        x, lengths = torch.randn(rows, length, 4), torch.tensor([length, 4, 6, 2][:rows])
        assert torch.allclose(compiled(x, lengths), plain(x, lengths), atol=1e-5)
    torch._dynamo.reset()


def test_compiled_code_refuses_a_scan_that_may_grow():
    """The loops on the CPU need decaying states, and compiled code cannot take the reference: it
    must say so.
    """
    u, B = torch.randn(1, 4, 6), torch.randn(1, 2, 6)
    scan = torch.compile(
        lambda A: mn.selective_scan(u, u.abs(), A, B, B), backend="eager", fullgraph=True
    )
    A = -torch.rand(4, 2)
    assert torch.allclose(scan(A), mn.selective_scan(u, u.abs(), A, B, B), atol=1e-5)
    with pytest.raises(RuntimeError, match="needs A ≤ 0"):
        scan(-A)
    torch._dynamo.reset()


# ---------------------------------------------------------- state that a forward pass leaves behind


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("arm", ["BN>SSM>None", "NormVary>SSM>SwitchNorm"])
def test_activation_checkpointing_moves_running_statistics_once(arm, reentrant):
    """pytorch/pytorch#96136: the recomputation in the backward pass updates BatchNorm a second
    time.
    """
    torch.manual_seed(0)
    n1, n2 = arm.split(">SSM>")
    block, x = mn.MambaBlock(8, n1, n2, d_state=4), torch.randn(2, 6, 8, requires_grad=True)
    for dtype in (torch.float32, torch.float64):
        plain, checked = copy.deepcopy(block).to(dtype), copy.deepcopy(block).to(dtype)
        plain(x.to(dtype)).sum().backward()
        checkpoint(checked, x.to(dtype), use_reentrant=reentrant).sum().backward()
        assert all(
            torch.equal(a, b) for a, b in zip(plain.buffers(), checked.buffers(), strict=True)
        )
        assert all(
            torch.equal(a.grad, b.grad)
            for a, b in zip(plain.parameters(), checked.parameters(), strict=True)
        )


def test_random_weights_refuse_to_be_recomputed():
    """The recomputation would draw other weights than the forward pass had: silently wrong
    gradients.
    """
    norm, x = (
        create_norm("NormSelector", 8, mode="random"),
        torch.randn(2, 5, 8, requires_grad=True),
    )
    with pytest.raises(RuntimeError, match="activation checkpointing"):
        checkpoint(norm, x, use_reentrant=False).sum().backward()


def test_update_statistics_does_for_our_norms_what_torch_does_for_its_own():
    """torch.optim.swa_utils.update_bn looks for torch's classes: the mean of ours stayed 0 where it
    is 5.
    """
    torch.manual_seed(0)
    batches = [torch.randn(4, 10, 8) + 5 for _ in range(3)]
    ours, theirs = create_norm("BN", 8), nn.BatchNorm1d(8)
    clinic.update_statistics([(x, None) for x in batches], ours)
    update_bn([x.transpose(1, 2) for x in batches], theirs)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.allclose(getattr(ours, name), getattr(theirs, name), atol=1e-5)
    assert ours.momentum == 0.1
    for name in ("NormVary", "SwitchNorm"):
        mixed = create_norm(name, 8).eval()
        clinic.update_statistics([{"x": x} for x in batches], mixed)
        assert torch.allclose(mixed.running_mean, theirs.running_mean, atol=1e-5)
        assert not mixed.training
    ours.frozen = nn.Module()  # as torchvision's FrozenBatchNorm2d: statistics without a momentum
    ours.frozen.register_buffer("running_mean", torch.ones(8))
    clinic.update_statistics(batches, ours)
    assert torch.equal(ours.frozen.running_mean, torch.ones(8))
    with pytest.raises(ValueError, match="no batches"):
        clinic.update_statistics([], ours)


def test_a_norm_on_the_meta_device_is_made_and_takes_lengths():
    """accelerate's init_empty_weights: shapes without numbers."""
    x, lengths = torch.empty(2, 5, 8, device="meta"), torch.ones(2, dtype=torch.long, device="meta")
    for name in NORMS:
        with torch.device("meta"):
            made = create_norm(name, 8)
        for norm in (made, create_norm(name, 8).to("meta")):
            assert norm(x, lengths).shape == x.shape


# --------------------------------------------------------------------------------- padding and text


def test_left_padding_with_an_attention_mask_changes_nothing():
    """state-spaces/mamba#66, huggingface/transformers#31540: left-padded rows give other
    outputs.
    """
    torch.manual_seed(0)
    rows = [torch.randint(1, 7, (n,)) for n in (5, 2, 4)]
    ids, mask = torch.zeros(3, 6, dtype=torch.long), torch.zeros(3, 6, dtype=torch.long)
    for i, (row, start) in enumerate(
        zip(rows, (1, 4, 0), strict=True)
    ):  # left-padded, and one padded behind
        ids[i, start : start + len(row)], mask[i, start : start + len(row)] = row, 1
    classifier = mn.SequenceClassifier(
        3, vocab_size=7, d_model=8, n_layers=2, arm="IN>SSM>GN", d_state=4
    )
    model = mn.LanguageModel(7, d_model=8, n_layers=2, d_state=4)
    with torch.no_grad():
        logits, each = classifier(ids, attention_mask=mask), model(ids, attention_mask=mask.bool())
        for i, row in enumerate(rows):
            assert torch.allclose(logits[i], classifier(row[None])[0], atol=1e-5)
            assert torch.allclose(each[i, mask[i] > 0], model(row[None])[0], atol=1e-5)


def test_masks_that_cannot_be_are_refused_by_name():
    model = mn.SequenceClassifier(3, vocab_size=7, d_model=8, n_layers=1, d_state=4)
    ids, ones = torch.ones(2, 4, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)
    gap, empty, additive = ones.clone(), ones.clone(), ones * -10.0
    gap[1, 1], empty[0] = 0, 0
    for mask, told in (
        (gap, "row 1 .* between valid"),
        (empty, "row 0 .* has no valid position"),
        (additive, "0 .* and 1"),
        (ones[0], "must be"),
    ):
        with pytest.raises(ValueError, match=told):
            model(ids, attention_mask=mask)
    with pytest.raises(ValueError, match="both given"):
        model(ids, torch.tensor([4, 4]), ones)
    language = mn.LanguageModel(7, d_model=8, n_layers=1, d_state=4)
    with pytest.raises(ValueError, match="group the prompts by length"):
        language.generate(ids, 2, attention_mask=gap)
    assert language.generate(ids, 2, attention_mask=ones).shape == (2, 6)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generating_from_weights_that_are_not_finite_raises(temperature):
    """huggingface/transformers: argmax of NaN is id 0, and the text goes on as if nothing had
    happened.
    """
    model = mn.LanguageModel(7, d_model=8, n_layers=1, d_state=4)
    with torch.no_grad():
        model.backbone.layers[0].out_proj.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="logits are not finite"):
        model.generate(torch.ones(1, 3, dtype=torch.long), 2, temperature=temperature)


def test_parameters_without_weight_decay_are_marked_as_in_mamba_ssm():
    """state-spaces/mamba#798: optimizers that look for the mark spare A and D."""
    marked = {
        kind: {
            name for name, p in BLOCKS[kind]().named_parameters() if hasattr(p, "_no_weight_decay")
        }
        for kind in ("mamba", "mamba2", "image")
    }
    assert marked == {
        "mamba": {"A_log", "D"},
        "mamba2": {"A_log", "D", "dt_bias"},
        "image": {"A_logs", "Ds", "dt_projs_bias"},
    }
